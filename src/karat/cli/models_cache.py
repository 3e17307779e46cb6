"""Show the size of the cache of model replies (stats), or clear it (clear).

karat models cache stats
karat models cache clear --model openai/gpt-4o-mini --older-than 30
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from karat.cli.commands import UsageError
from karat.cli.options import positive
from karat.cli.parser import Parser
from karat.cli.terminal import Terminal
from karat.formatting import Block, Paragraph, Table

ACTIONS = ("stats", "clear")
DAY = 86_400


def add_arguments(parser: Parser) -> None:
    """Declare the action and its filters."""
    parser.add_argument("action", metavar="stats|clear", help="show the size of the cache, or clear it")
    parser.option("--model", metavar="MODEL", help="clear only replies of this model")
    parser.option(
        "--older-than", type=positive, metavar="DAYS", help="clear only replies older than DAYS days"
    )


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Show or clear the cache."""
    from karat.errors import did_you_mean
    from karat.models import cache_clear, cache_stats

    if given.action not in ACTIONS:
        raise UsageError(
            f"karat models cache: unknown action {given.action!r}: {did_you_mean(given.action, ACTIONS)}"
        )
    if given.action == "stats":
        if given.model is not None or given.older_than is not None:
            raise UsageError("--model and --older-than apply to karat models cache clear only")
        stats = cache_stats()
        terminal.show(stats, lambda: _blocks(stats))
        return 0
    older = given.older_than * DAY if given.older_than is not None else None
    gone = cache_clear(given.model, older)
    terminal.show({"cleared": gone}, f"cleared {gone:,} {'reply' if gone == 1 else 'replies'}")
    return 0


def _blocks(stats: dict[str, Any]) -> list[Block]:
    head = f"{stats['path']}: {stats['entries']:,} replies, {stats['bytes']:,} bytes"
    if stats["oldest"] is not None:
        head += f", the oldest from {time.strftime('%Y-%m-%d', time.localtime(stats['oldest']))}"
    rows = [[name, f"{count:,}"] for name, count in stats["models"].items()]
    return [Paragraph(head), Table(["model", "replies"], rows, [1], cell=80)]
