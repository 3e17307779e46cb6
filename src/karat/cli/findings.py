"""What `karat show` looks for inside the records: one example with all that became of it, and the failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.analysis.failure_kinds import kind_of
from karat.errors import RequestError, UnknownName, did_you_mean
from karat.formatting import clean
from karat.records import Failed, ItemResult, Output, Skipped, to_builtins
from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset
from karat.store.repositories import latest, output_decoder, result_decoder

if TYPE_CHECKING:
    from karat.store import Store

EXAMPLES_OF_A_KIND = 5
MOST_KINDS = 1000
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
    return [output_decoder.decode(row.payload) for row in latest(rows)]


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
        lines += ["", f"output of {output['run']}, attempt {output.get('attempt', 1)}{unit}"]
        lines.append(f"  {_outcome(output['outcome'])}")
        lines += [f"  {_call(call)}" for call in output.get("trace", [])]
    for result in document["results"]:
        runs = f" ({', '.join(result['runs'])})" if len(document["outputs"]) > 1 else ""
        lines += ["", f"result of {clean(result['key'], 80)} in {result['evaluation']}{runs}"]
        lines.append(f"  {_judgment(result['outcome'])}")
    return "\n".join(lines)


def _call(call: dict[str, Any]) -> str:
    tries = len(call.get("metadata", {}).get("attempts", ())) + (0 if call.get("error") else 1)
    often = f" ({tries} times)" if tries > 1 else ""
    said = clean(call["error"], 400) if call.get("error") else _value(call.get("output"))
    return f"asked {clean(call['name'], 80)}{often}: {said}"


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


def failed_first(handle: Any) -> Any:
    """Of something and of what it was made from, the earliest in which an item failed; else itself."""
    evaluations = handle.evaluations if isinstance(handle, Aggregation) else [handle]
    judged = [each for each in evaluations if isinstance(each, Evaluation)]
    earlier = [*_runs(judged), *judged]
    return next((each for each in earlier if each.counts.failed), handle)


def failures_of(handle: Any) -> dict[str, Any]:
    """The failed and skipped items of a run or an evaluation by kind, most frequent first."""
    if isinstance(handle, Aggregation):
        failures = to_builtins(handle.header.failures)
        kinds = [
            {"kind": failure["type"], "status": "failed", "count": 1, "examples": [{"of": name, **failure}]}
            for name, failure in failures.items()
        ]
        return {"id": handle.id, "kinds": kinds, "counts": handle.counts.to_dict()}
    if isinstance(handle, StoredDataset):
        raise RequestError(f"{handle.label} is a dataset: runs, evaluations and aggregations have failures")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    several = isinstance(handle, Evaluation) and len(handle.header.runs) > 1
    for item in handle.outputs() if isinstance(handle, Run) else handle.results():
        _add(found, item, several)
    kinds = sorted(found.values(), key=lambda kind: -kind["count"])
    return {"id": handle.id, "kinds": kinds, "counts": handle.counts.to_dict()}


def _add(found: dict[tuple[str, str], dict[str, Any]], item: Output | ItemResult, several: bool) -> None:
    outcome = item.outcome
    if isinstance(outcome, Failed):
        (kind, message), where = kind_of(outcome.error), outcome.error.where
    elif isinstance(outcome, Skipped):
        kind, message, where = outcome.reason, "", ""
    else:
        return
    if isinstance(item, ItemResult):
        kind = f"{item.key}: {kind}"
    key = (outcome.status, kind)
    if key not in found and len(found) >= MOST_KINDS:
        key = (outcome.status, "others")
    entry = found.setdefault(key, {"kind": key[1], "status": outcome.status, "count": 0, "examples": []})
    entry["count"] += 1
    if len(entry["examples"]) < EXAMPLES_OF_A_KIND:
        runs = list(item.runs) if several and isinstance(item, ItemResult) else []
        about = {
            "example": item.example,
            "attempt": item.attempt,
            "runs": runs,
            "message": message,
            "where": where,
        }
        entry["examples"].append({name: value for name, value in about.items() if value})


def failures_text(document: dict[str, Any]) -> str:
    """The same, for a terminal."""
    if not document["kinds"]:
        pending = document["counts"]["pending"]
        return f"nothing failed in {document['id']}" + (f"; {pending:,} items are pending" if pending else "")
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
