"""Options that several commands share, and the values they take."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any

from karat.cli.commands import UsageError
from karat.cli.parser import Parser
from karat.errors import did_you_mean

FIELDS = ("name", "params", "key", "of", "from_output")
"""What an evaluator or an aggregator may say of itself; those that it has not are told apart later."""


def whole(least: int) -> Callable[[str], int]:
    """A whole number that is at least so large."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return read


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def share(text: str) -> float:
    """A number between 0 and 1."""
    number = positive(text)
    if number >= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1, such as 0.95")
    return number


def part(text: str) -> Any:
    """A name, or JSON with name, params, key."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        entry = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    for field in entry:
        if field not in FIELDS:
            raise argparse.ArgumentTypeError(
                f"{text!r} has no field {field!r}: {did_you_mean(field, FIELDS)}"
            )
    return entry


def parameter(text: str) -> tuple[str, Any]:
    """`name=value`; the value as JSON where it is some, else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not written name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def add_stage_options(parser: Parser) -> None:
    """What every stage that computes takes."""
    parser.option(
        "--label", action="append", default=[], metavar="TEXT", help="a label to keep with it; repeatable"
    )
    parser.option("--description", default=None, metavar="TEXT", help="what it is, for people")
    parser.option("--new", action="store_true", help="make another, though there is one already")


def add_work_options(parser: Parser) -> None:
    """What the stages that call tasks or judges take."""
    parser.option("--concurrency", type=whole(1), metavar="N", help="how many items at once (default: 100)")
    parser.option("--timeout", type=positive, metavar="SECONDS", help="for one item")
    parser.option("--abort-on-error", action="store_true", default=None, help="stop at the first failure")
    parser.option("--retry-failed", action="store_true", help="try failed items again; their history stays")
    parser.option("--wait", action="store_true", help="wait while another process works on the same")
    parser.option("--no-cache", action="store_true", help="neither use nor keep model answers")
    parser.option("--refresh", action="store_true", help="ask models again, and keep the new answers")
    parser.option(
        "--budget",
        type=positive,
        metavar="DOLLARS",
        help="stop before model calls cost more; can be continued",
    )
    parser.option(
        "--batch",
        action="store_true",
        help="send model calls by the batch API of OpenAI or Anthropic: half the price, within a day",
    )


def cache_mode(given: argparse.Namespace) -> str:
    """How kept model answers are used."""
    if given.no_cache and given.refresh:
        raise UsageError("--no-cache keeps nothing and --refresh keeps new answers: leave one of them out")
    return "off" if given.no_cache else "refresh" if given.refresh else "use"


def import_from_here() -> None:
    """Lets a dotted path mean the modules of the working folder too; last, so that they hide nothing installed."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
