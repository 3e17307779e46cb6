"""List the datasets, runs, evaluations and aggregations of the store, newest last.

karat ls
karat ls runs --json
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from karat.cli.commands import UsageError
from karat.cli.options import whole
from karat.cli.parser import Parser
from karat.cli.terminal import Terminal

if TYPE_CHECKING:
    from karat.store import Store

KINDS = ("datasets", "runs", "evaluations", "aggregations")


def add_arguments(parser: Parser) -> None:
    """Declare the kind."""
    parser.add_argument("kind", metavar="KIND", nargs="?", help=f"{', '.join(KINDS)} (default: all)")
    parser.option("--last", type=whole(1), metavar="N", help="list only the newest N of each kind")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """List the contents of the store."""
    from karat.cli.outcome import counted
    from karat.errors import did_you_mean
    from karat.store.existing import open_existing

    if given.kind is not None and given.kind not in KINDS:
        raise UsageError(f"unknown kind {given.kind!r}: {did_you_mean(given.kind, KINDS)}")
    with open_existing(given.store) as store:
        kinds = [given.kind] if given.kind else list(KINDS)
        newest = slice(-(given.last or 0), None)
        listed = {kind: [counted(each) for each in getattr(store, kind).list()[newest]] for kind in kinds}
        document = {"store": store.url, **{k: [_entry(store, each) for each in v] for k, v in listed.items()}}
        terminal.show(document, lambda: _text(store, listed))
    return 0


def _entry(store: Store, handle: Any) -> dict[str, Any]:
    entry: dict[str, Any] = handle.to_dict()
    if entry["kind"] == "dataset":
        named = store.backend.named(dataset=handle.id)
        entry["names"] = [f"{name}@{version}" for name, version, _ in named]
        for name, version, _ in named[:1]:
            entry |= {"name": name, "version": version}
    return entry


def _names(store: Store, dataset: str) -> list[str]:
    return [f"{name}@{version}" for name, version, _ in store.backend.named(dataset=dataset)]


def _text(store: Store, listed: dict[str, list[Any]]) -> str:
    from karat.formatting import clean, table

    parts: list[str] = []
    for kind, handles in listed.items():
        if not handles:
            continue
        rows = _datasets(store, handles) if kind == "datasets" else _TABLES[kind](handles)
        parts.append(f"{kind}\n" + table([[clean(cell, 60) for cell in row] for row in rows]))
    return "\n\n".join(parts) or f"{clean(store.url)} is empty"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _counts(handle: Any) -> str:
    counts = handle.counts
    return f"{counts.ok:,} of {counts.total:,}" + (f", {counts.failed:,} failed" if counts.failed else "")


def _datasets(store: Store, handles: list[Any]) -> list[list[str]]:
    rows = [["id", "name", "examples", "made"]]
    for each in handles:
        names = ", ".join(_names(store, each.id)) or each.label
        rows.append([each.id, names, f"{len(each):,}", _when(each.header.created)])
    return rows


def _runs(handles: list[Any]) -> list[list[str]]:
    from karat.store.run_labels import matrix_labels

    matrix = matrix_labels([each.header for each in handles])
    rows = [["id", "task", *(["matrix"] if matrix else []), "status", "ok", "made", "description"]]
    for each in handles:
        header, model = each.header, each.header.metadata.get("model")
        named = model and "model" not in header.metadata.get("matrix", {})
        task = f"{header.task} {model}" if named else header.task
        which = [matrix.get(each.id, "")] if matrix else []
        cells = [each.id, task, *which, each.status, _counts(each), _when(header.created), header.description]
        rows.append(cells)
    return rows


def _evaluations(handles: list[Any]) -> list[list[str]]:
    rows = [["id", "evaluators", "runs", "status", "ok", "made"]]
    for each in handles:
        keys = ", ".join(spec.key for spec in each.header.evaluators)
        runs = ", ".join(each.header.runs[:3]) + (" …" if len(each.header.runs) > 3 else "")
        rows.append([each.id, keys, runs, each.status, _counts(each), _when(each.header.created)])
    return rows


def _aggregations(handles: list[Any]) -> list[list[str]]:
    rows = [["id", "aggregators", "evaluations", "status", "made"]]
    for each in handles:
        keys = ", ".join(spec.key for spec in each.header.aggregators)
        rows.append(
            [each.id, keys, ", ".join(each.header.evaluations[:3]), each.status, _when(each.header.created)]
        )
    return rows


_TABLES = {"runs": _runs, "evaluations": _evaluations, "aggregations": _aggregations}
