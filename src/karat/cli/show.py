"""Shows one thing of the store: its counts, what it was made from and what was made from it.

--example shows one example with its outputs and results; --failed lists failures by kind, with examples.

    karat show run-1a2b
    karat show eval-3c4d --example q17
    karat show run-1a2b --failed
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from karat.cli.commands import UsageError
from karat.cli.parser import Parser
from karat.cli.terminal import Terminal

if TYPE_CHECKING:
    from karat.store import Store


def add_arguments(parser: Parser) -> None:
    """What, and what of it."""
    parser.add_argument("id", metavar="ID", help="an id or its beginning; a dataset also by its name")
    parser.option("--example", metavar="ID", help="one example, with its outputs and results")
    parser.option("--failed", action="store_true", help="failures by kind, with examples")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Shows."""
    from karat.cli import findings
    from karat.cli.outcome import counted
    from karat.experiments.existing_store import open_existing

    if given.example is not None and given.failed:
        raise UsageError(
            "--example shows one example and --failed the failures of all: leave one of them out"
        )
    with open_existing(given.store) as store:
        handle = store.get(given.id)
        if given.example is not None:
            document = findings.example_of(store, handle, given.example)
            terminal.show(document, lambda: findings.example_text(document))
        elif given.failed:
            document = findings.failures_of(findings.failed_first(handle) if given.id == "latest" else handle)
            terminal.show(document, lambda: findings.failures_text(document))
        else:
            document = {**counted(handle).to_dict(), "parents": lineage(store, handle.id, up=True)}
            document["children"] = lineage(store, handle.id, up=False)
            terminal.show(document, lambda: _text(handle, document))
    return 0


def lineage(store: Store, id: str, *, up: bool) -> list[dict[str, Any]]:
    """What something was made from (or what was made from it), and so on, as a tree; each thing is opened once."""
    seen: set[str] = set()

    def tree(of: str) -> list[dict[str, Any]]:
        out = []
        for each in store.parents(of) if up else store.children(of):
            entry: dict[str, Any] = {"id": each}
            if each not in seen:
                seen.add(each)
                entry["parents" if up else "children"] = tree(each)
            out.append(entry)
        return out

    return tree(id)


def _text(handle: Any, document: dict[str, Any]) -> str:
    from karat.cli.outcome import usage_lines
    from karat.formatting import clean, counts_text

    kind = document["kind"]
    if kind == "dataset":
        lines = [f"dataset {clean(handle.label, 80)}  {handle.id}  {len(handle):,} examples"]
    else:
        lines = [f"{kind} {handle.id}  {handle.status}", counts_text(handle.counts)]
        if kind != "aggregation":
            lines += usage_lines(handle)
    lines += [f"{name.ljust(14)} {clean(value, 300)}" for name, value in _facts(document) if value]
    if kind == "aggregation":
        lines += ["", handle.report(whole=True)]
    for title, key in (("made from", "parents"), ("made from it", "children")):
        if document[key]:
            lines += ["", title, *_branches(document[key], key, 1)]
    return "\n".join(lines)


def _facts(document: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a header says, for people: one line each, long ones cut."""
    import json
    import time

    left_out = (
        "kind",
        "id",
        "format",
        "counts",
        "status",
        "parents",
        "children",
        "usage",
        "estimates",
        "tables",
    )
    out: list[tuple[str, Any]] = []
    for name, value in document.items():
        if name in left_out:
            continue
        if name in ("created", "finished") and value:
            value = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
        elif not isinstance(value, (str, int, float, type(None))):
            value = json.dumps(value, ensure_ascii=False) if value else ""
        out.append((name, value))
    return out


def _branches(tree: list[dict[str, Any]], key: str, depth: int) -> list[str]:
    from karat.formatting import clean

    lines = []
    for each in tree:
        lines.append("  " * depth + clean(each["id"], 80))
        lines += _branches(each.get(key, []), key, depth + 1)
    return lines
