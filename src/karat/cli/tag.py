"""Give a dataset, run, evaluation or aggregation labels, by which every command finds it.

A label is unique among the items of a kind; --move takes it from the item that has it.

    karat tag run-1a2b baseline
    karat tag latest candidate --move
    karat compare baseline candidate
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from karat.cli.parser import Parser, UsageError
from karat.cli.terminal import Terminal

if TYPE_CHECKING:
    from karat.store import Store

LONGEST = 100


def add_arguments(parser: Parser) -> None:
    """Declare the id and the labels."""
    parser.add_argument(
        "id", metavar="ID", help="an id, a unique prefix of one, a label, or latest (the latest run)"
    )
    parser.add_argument("labels", metavar="LABEL", nargs="*", help="the labels to add")
    parser.option("--remove", action="append", default=[], metavar="LABEL", help="remove a label; repeatable")
    parser.option("--move", action="store_true", help="take the labels from others of the same kind")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Add and remove the labels."""
    from karat.cli.outcome import counted
    from karat.formatting import clean
    from karat.store import open_existing
    from karat.store.run_labels import check_labels

    if not given.labels and not given.remove:
        raise UsageError("karat tag needs a LABEL to add, or --remove LABEL")
    for label in given.labels:
        if not label.isprintable() or len(label) > LONGEST:
            raise UsageError(f"{label!r} cannot be a label: use 1 to {LONGEST} printable characters")
        check_labels([label])
    with open_existing(given.store) as store:
        for label in given.labels:
            if store.datasets.by_name(label) is not None:
                raise UsageError(
                    f"{label!r} cannot be a label: it is the name of a dataset; use another word"
                )
        if not given.move:
            _refuse_others(store, store.get(given.id), given.labels)
        handle = counted(store.tag(given.id, given.labels, remove=given.remove, move=given.move))
        labels = handle.header.labels
        text = (
            f"{handle.id}: {', '.join(clean(each) for each in labels)}"
            if labels
            else f"{handle.id}: no labels"
        )
        terminal.done({"id": handle.id, "labels": labels}, text)
    return 0


def _refuse_others(store: Store, handle: Any, labels: Sequence[str]) -> None:
    """Refuse a label that another item of the same kind has: it would be ambiguous."""
    for repository in (store.runs, store.evaluations, store.aggregations, store.datasets):
        for other in repository.list() if repository.kind == _kind(handle) else ():
            taken = [label for label in labels if label in other.labels and other.id != handle.id]
            if taken:
                raise UsageError(
                    f"{taken[0]!r} is a label of {other.id}, and a label must be unique among {repository.kind}s:"
                    " add --move to take it from there, or use another word"
                )


def _kind(handle: Any) -> str:
    return getattr(handle, "kind", "dataset")
