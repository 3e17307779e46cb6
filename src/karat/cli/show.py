"""Show a dataset, run, evaluation or aggregation: its counts, settings, parents and children.

--example shows one example with its outputs and results. --failed groups failures by kind and lists examples.

    karat show run-1a2b
    karat show eval-3c4d --example q17
    karat show run-1a2b --failed
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from karat.analysis.failures import failure_kinds
from karat.cli.commands import UsageError
from karat.cli.parser import Parser
from karat.cli.terminal import Terminal
from karat.errors import RequestError, UnknownName, did_you_mean
from karat.formatting import clean
from karat.records import ItemResult, Output, to_builtins
from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset
from karat.store.repositories import latest, output_decoder, result_decoder

if TYPE_CHECKING:
    from karat.store import Store


def add_arguments(parser: Parser) -> None:
    """Declare the id and the view."""
    parser.add_argument("id", metavar="ID", help="an id or a unique prefix; for a dataset also its name")
    parser.option("--example", metavar="ID", help="show this example with its outputs and results")
    parser.option("--failed", action="store_true", help="list failures by kind, with examples")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Show the item."""
    from karat.cli.outcome import counted
    from karat.store.existing import open_existing

    if given.example is not None and given.failed:
        raise UsageError("--example and --failed contradict each other: remove one of them")
    with open_existing(given.store) as store:
        handle = store.get(given.id)
        if given.example is not None:
            document = example_of(store, handle, given.example)
            terminal.show(document, lambda: example_text(document))
        elif given.failed:
            document = failures_of(_failing(handle, given.id))
            terminal.show(document, lambda: failures_text(document))
        else:
            document = {**counted(handle).to_dict(), "parents": lineage(store, handle.id, up=True)}
            document["children"] = lineage(store, handle.id, up=False)
            terminal.show(document, lambda: _text(handle, document))
    return 0


def lineage(store: Store, id: str, *, up: bool) -> list[dict[str, Any]]:
    """The tree of parents (or children) of an item; a repeated item is expanded once."""
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
    for title, key in (("parents", "parents"), ("children", "children")):
        if document[key]:
            lines += ["", title, *_branches(document[key], key, 1)]
    return "\n".join(lines)


def _facts(document: dict[str, Any]) -> list[tuple[str, Any]]:
    """The fields of a header, one per line, with long values cut."""
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


LONGEST_VALUE = 2000


def example_of(store: Store, handle: Any, id: str) -> dict[str, Any]:
    """An example with its outputs (of a run, or of the runs of an evaluation) and their results."""
    evaluations: list[Evaluation] = []
    if isinstance(handle, Aggregation):
        evaluations = handle.evaluations
    elif isinstance(handle, Evaluation):
        evaluations = [handle]
    elif isinstance(handle, Run):
        made = [store.get(each) for each in store.children(handle.id)]
        evaluations = [each for each in made if isinstance(each, Evaluation)]
    runs = [handle] if isinstance(handle, Run) else _runs(evaluations)
    dataset = handle if isinstance(handle, StoredDataset) else runs[0].dataset
    position, example = _find(dataset, id)
    return {
        "example": to_builtins(example),
        "outputs": [
            {"run": run.id, **to_builtins(output)} for run in runs for output in _outputs(run, position)
        ],
        "results": [
            {"evaluation": each.id, **to_builtins(result)}
            for each in evaluations
            for result in _results(each, position)
            if not isinstance(handle, Run) or handle.id in result.runs
        ],
    }


def _runs(evaluations: list[Evaluation]) -> list[Run]:
    return list({run.id: run for each in evaluations for run in each.runs}.values())


def _find(dataset: StoredDataset, id: str) -> tuple[int, Any]:
    """The position of an example. Ids are not indexed: the dataset is read up to it."""
    seen: list[str] = []
    for position, example in enumerate(dataset):
        if example.id == id:
            return position, example
        if len(seen) < 10_000:
            seen.append(example.id)
    raise UnknownName(f"{dataset.label} has no example {id!r}: {did_you_mean(id, seen)}")


def _outputs(run: Run, position: int) -> list[Output]:
    rows = run.store.backend.scan(run.number, position, position + 1)
    return [output_decoder.decode(row.payload) for row in rows]


def _results(evaluation: Evaluation, position: int) -> list[ItemResult]:
    rows = evaluation.store.backend.scan(evaluation.number, position, position + 1)
    return [result_decoder.decode(row.payload) for row in latest(rows)]


def example_text(document: dict[str, Any]) -> str:
    """The same, for a terminal."""
    example = document["example"]
    lines = [f"example {clean(example['id'])}"]
    for name in ("input", "expected", "metadata"):
        if example.get(name) not in (None, {}):
            lines.append(f"  {name.ljust(9)} {_value(example[name])}")
    for output in document["outputs"]:
        unit = f", unit {clean(output['unit'], 80)}" if output.get("unit") else ""
        tries = f", try {output['try_number']}" if output.get("try_number", 1) > 1 else ""
        lines += ["", f"output of {output['run']}, attempt {output.get('attempt', 1)}{unit}{tries}"]
        lines.append(f"  {_outcome(output['outcome'])}")
        lines += [f"  {_call(call)}" for call in output.get("trace", [])]
    for result in document["results"]:
        runs = f" ({', '.join(result['runs'])})" if len(document["outputs"]) > 1 else ""
        lines += ["", f"result of {clean(result['key'], 80)} in {result['evaluation']}{runs}"]
        lines.append(f"  {_judgment(result['outcome'])}")
    return "\n".join(lines)


def _call(call: dict[str, Any]) -> str:
    tries = len(call.get("metadata", {}).get("attempts", ())) + (0 if call.get("error") else 1)
    retried = "" if tries < 2 else " (1 retry)" if tries == 2 else f" ({tries - 1} retries)"
    said = clean(call["error"], 400) if call.get("error") else _value(call.get("output"))
    return f"call to {clean(call['name'], 80)}{retried}: {said}"


def _value(value: Any) -> str:
    import json

    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), LONGEST_VALUE)


def _outcome(outcome: dict[str, Any]) -> str:
    if outcome["status"] == "ok":
        return _value(outcome["value"])
    if outcome["status"] == "skipped":
        return f"skipped: {clean(outcome['reason'], 400)}"
    error = outcome["error"]
    where = f"  ({clean(error['where'], 200)})" if error.get("where") else ""
    return f"failed: {clean(error['type'], 80)}: {clean(error['message'], 400)}{where}"


def _judgment(outcome: dict[str, Any]) -> str:
    if outcome["status"] != "ok":
        return _outcome(outcome)
    result = outcome["value"]
    score = result.get("score")
    said = f"score {score:g}" if score is not None else f"value {_value(result.get('value'))}"
    return f"{said}: {clean(result['comment'], 400)}" if result.get("comment") else said


def _failing(handle: Any, id: str) -> Any:
    """The item whose failures to show: for an aggregation without failures, its evaluations or runs."""
    if isinstance(handle, Aggregation):
        return handle if handle.header.failures else failed_first(handle)
    return failed_first(handle) if id == "latest" else handle


def failed_first(handle: Any) -> Any:
    """The earliest of an item and its parents that has failures; else the item itself."""
    evaluations = handle.evaluations if isinstance(handle, Aggregation) else [handle]
    judged = [each for each in evaluations if isinstance(each, Evaluation)]
    earlier = [*_runs(judged), *judged]
    return next((each for each in earlier if each.counts.failed), handle)


def failures_of(handle: Any) -> dict[str, Any]:
    """The failed and skipped items of a run or an evaluation by kind, most frequent first."""
    if isinstance(handle, Aggregation):
        kinds: list[dict[str, Any]] = [
            {
                "kind": failure.error.type,
                "status": "failed",
                "count": 1,
                "examples": [{"of": failure.label, **to_builtins(failure.error)}],
            }
            for failure in handle.header.failures
        ]
        return {"id": handle.id, "kinds": kinds, "counts": handle.counts.to_dict()}
    if isinstance(handle, StoredDataset):
        raise RequestError(
            f"{handle.label} is a dataset and has no failures: name a run, an evaluation or an aggregation"
        )
    kinds = []
    for kind in failure_kinds(handle):
        name = kind.type if kind.what == "output" else f"{kind.what}: {kind.type}"
        kinds.append({"kind": name, "status": kind.status, "count": kind.count, "examples": kind.examples})
    return {"id": handle.id, "kinds": kinds, "counts": handle.counts.to_dict()}


def failures_text(document: dict[str, Any]) -> str:
    """The same, for a terminal."""
    if not document["kinds"]:
        pending = document["counts"]["pending"]
        return f"no failures in {document['id']}" + (f"; {pending:,} items are pending" if pending else "")
    lines = []
    for kind in document["kinds"]:
        lines.append(f"{kind['count']:,} {kind['status']}: {clean(kind['kind'])}")
        for each in kind["examples"]:
            runs = f" ({', '.join(each['runs'])})" if each.get("runs") else ""
            name = clean(each.get("example") or each.get("of", ""), 60) + runs
            where = f"  ({clean(each['where'], 120)})" if each.get("where") else ""
            lines.append(
                f"    {name}" + (f": {clean(each['message'], 200)}{where}" if each.get("message") else "")
            )
        more = kind["count"] - len(kind["examples"])
        if more:
            lines.append(f"    and {more:,} more")
    return "\n".join(lines)
