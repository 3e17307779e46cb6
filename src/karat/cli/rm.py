"""Removes datasets, runs, evaluations or aggregations from the store, for good.

What others were made from is not removed, and the others are listed; --cascade removes them with it.

    karat rm run-1a2b --cascade
"""

from __future__ import annotations

import argparse

from karat.cli.parser import Parser
from karat.cli.terminal import Terminal


def add_arguments(parser: Parser) -> None:
    """What, and whether with what was made from it."""
    parser.add_argument("ids", metavar="ID", nargs="+", help="what to remove")
    parser.option("--cascade", action="store_true", help="and everything made from it")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Removes all of them, or none."""
    from karat.errors import RequestError
    from karat.experiments.existing_store import open_existing
    from karat.formatting import clean

    with open_existing(given.store) as store:
        targets = list(dict.fromkeys(store.get(each).id for each in given.ids))
        for target in targets:
            left = [each for each in store.descendants(target) if each not in targets]
            if left and not given.cascade:
                raise RequestError(
                    f"{target} cannot be removed, {', '.join(left)} were made from it: --cascade"
                )
        below = [each for target in targets for each in reversed(store.descendants(target))]
        doomed = list(dict.fromkeys([*below, *targets]))
        store.backend.delete(doomed)
        terminal.show({"removed": doomed}, "\n".join(f"removed {clean(each, 80)}" for each in doomed))
    return 0
