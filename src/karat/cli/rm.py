"""Permanently remove datasets, runs, evaluations or aggregations from the store.

karat refuses to remove an item that others depend on, and lists those; --cascade removes them too. On a terminal karat
asks for confirmation; elsewhere --yes is required. --dry-run lists the items without removing them.

    karat rm run-1a2b --cascade
    karat rm eval-3c4d eval-5e6f --yes
"""

from __future__ import annotations

import argparse
import sys

from karat.cli.parser import Parser, UsageError
from karat.cli.terminal import Terminal


def add_arguments(parser: Parser) -> None:
    """Declare the objects to remove and the options."""
    parser.add_argument("ids", metavar="ID", nargs="+", help="the ids to remove")
    parser.option("--cascade", action="store_true", help="also remove everything that depends on them")
    parser.option("--dry-run", action="store_true", help="list the items, and remove nothing")
    parser.option("-y", "--yes", action="store_true", help="do not ask for confirmation")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Remove all items or none."""
    from karat.errors import plural
    from karat.formatting import clean
    from karat.store import open_existing

    with open_existing(given.store) as store:
        doomed = store.removable(*given.ids, cascade=given.cascade)
        if given.dry_run:
            text = "\n".join(f"would remove {clean(each, 80)}" for each in doomed)
            terminal.show({"removed": [], "would_remove": doomed}, text)
            return 0
        if not given.yes and not _confirm(doomed, plural(len(doomed), "item"), terminal):
            terminal.done({"removed": []}, "nothing was removed")
            return 1
        removed = store.remove(*doomed)  # exactly these: a child created since is not removed
        terminal.done({"removed": removed}, "\n".join(f"removed {clean(each, 80)}" for each in removed))
    return 0


def _confirm(doomed: list[str], count: str, terminal: Terminal) -> bool:
    """Ask for confirmation; raise an error if there is no terminal."""
    if terminal.as_json or not sys.stdin.isatty():
        raise UsageError(
            f"karat rm would permanently remove {count}: add --yes to confirm, or --dry-run to list them"
        )
    terminal.notice("\n".join([f"this permanently removes {count}:", *(f"  {each}" for each in doomed)]))
    terminal.ask("remove? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
