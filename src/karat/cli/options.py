"""Options that several commands share, and their value types."""

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
"""Fields of an evaluator or aggregator in JSON; the stages reject those that do not apply."""


def whole(least: int) -> Callable[[str], int]:
    """Return a reader of integers that are at least `least`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
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
    """Read `name=value`; the value is JSON if it parses as JSON, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def add_part_option(parser: Parser, short: str, long: str, help: str) -> None:
    """Add the option that names evaluators or aggregators."""
    help = f"{help}; repeatable"
    parser.option(short, long, action="append", default=[], type=part, metavar="NAME|JSON", help=help)


def add_parameter_option(parser: Parser, of: str) -> None:
    """Add the option that sets the parameters of a task or a memory system."""
    help = f"a parameter of {of}; repeatable"
    parser.option("--param", action="append", default=[], type=parameter, metavar="K=V", help=help)


def add_confidence_option(parser: Parser, of: str = "the intervals") -> None:
    """Add the option for the confidence level."""
    help = f"confidence level of {of} (default: 0.95)"
    parser.option("--confidence", type=share, default=0.95, metavar="C", help=help)


def add_stage_options(parser: Parser) -> None:
    """Add the options of all stages."""
    parser.option(
        "--label",
        action="append",
        default=[],
        metavar="TEXT",
        help="a label to store with the result; repeatable",
    )
    parser.option(
        "--description", default=None, metavar="TEXT", help="a description to store with the result"
    )
    parser.option("--new", action="store_true", help="start again even if the same work is already stored")


def add_call_options(parser: Parser) -> None:
    """Add the options of commands that share work with other processes and call models."""
    parser.option("--wait", action="store_true", help="wait if another process is doing the same work")
    parser.option("--no-cache", action="store_true", help="do not read or write the cache of model replies")
    parser.option("--refresh", action="store_true", help="call models again and replace the cached replies")
    parser.option(
        "--budget",
        type=positive,
        metavar="DOLLARS",
        help="stop before model calls cost more than this; resumable",
    )


def add_work_options(parser: Parser) -> None:
    """Add the options of the stages that call tasks or judges."""
    parser.option(
        "--concurrency", type=whole(1), metavar="N", help="number of items at a time (default: 100)"
    )
    parser.option("--timeout", type=positive, metavar="SECONDS", help="timeout of one item")
    parser.option("--abort-on-error", action="store_true", default=None, help="stop at the first failure")
    parser.option(
        "--retry-failed", action="store_true", help="retry failed items; earlier failures stay in the history"
    )
    add_call_options(parser)
    parser.option(
        "--batch",
        action="store_true",
        help="use the batch API of OpenAI or Anthropic: half the price, replies within a day",
    )


def cache_mode(given: argparse.Namespace) -> str:
    """The cache mode of --no-cache and --refresh."""
    if given.no_cache and given.refresh:
        raise UsageError("--no-cache and --refresh contradict each other: remove one of them")
    return "off" if given.no_cache else "refresh" if given.refresh else "use"


def import_from_here() -> None:
    """Make modules of the working folder importable; last on the path, so they never hide installed ones."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
