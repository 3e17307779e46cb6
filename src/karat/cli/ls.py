"""List the datasets, runs, evaluations and aggregations of the store, newest last.

The list shows each run's labels, what distinguishes it from the others of its task and dataset, its score, cost and
age.

    karat ls
    karat ls runs --task answer --limit 50
    karat ls runs --label nightly --json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from karat.cli.parser import Parser, UsageError, integer
from karat.cli.terminal import Terminal

if TYPE_CHECKING:
    from karat.formatting import Block, Table
    from karat.records import Estimate
    from karat.store import Store

Metric = tuple[str, str]
"""The label of an estimate and the fingerprint of its evaluator: other parameters make another metric."""
KINDS = ("datasets", "runs", "evaluations", "aggregations")
LIMIT = 20
"""Items of each kind that are listed for a person; JSON has all of them unless --limit says otherwise."""


def add_arguments(parser: Parser) -> None:
    """Declare the kind and the filters."""
    parser.add_argument("kind", metavar="KIND", nargs="?", help=f"{', '.join(KINDS)} (default: all)")
    parser.option("--label", metavar="LABEL", help="list only items with this label")
    parser.option("--task", metavar="TASK", help="list only runs of this task")
    parser.option(
        "--limit",
        "--last",
        type=integer(1),
        metavar="N",
        help=f"list only the newest N of each kind (default: {LIMIT}; with --json, all)",
    )


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """List the contents of the store."""
    from karat.cli.outcome import counted
    from karat.errors import did_you_mean
    from karat.store import open_existing

    if given.kind is not None and given.kind not in KINDS:
        raise UsageError(f"unknown kind {given.kind!r}: {did_you_mean(given.kind, KINDS)}")
    if given.task is not None and given.kind not in (None, "runs"):
        raise UsageError(f"--task applies to runs, not to {given.kind}: remove one of them")
    with open_existing(given.store) as store:
        kinds = [given.kind] if given.kind else list(KINDS) if given.task is None else ["runs"]
        limit = given.limit or (None if terminal.as_json else LIMIT)
        listed: dict[str, list[Any]] = {}
        older: dict[str, int] = {}
        for kind in kinds:
            found = [each for each in getattr(store, kind).list() if _matches(each, given)]
            listed[kind] = [counted(each) for each in found[-(limit or 0) :]]
            older[kind] = len(found) - len(listed[kind])
        _refuse_unknown(store, given, listed)
        scores = {}
        if listed.get("runs"):
            scores = _headlines(listed["runs"], newest_estimates(store))
        document = {
            "store": store.url,
            **{kind: [_entry(store, each, scores) for each in those] for kind, those in listed.items()},
        }
        terminal.show(document, lambda: _blocks(store, listed, older, scores))
    return 0


def _matches(handle: Any, given: argparse.Namespace) -> bool:
    if given.label is not None and given.label not in handle.header.labels:
        return False
    return given.task is None or handle.header.task == given.task


def _refuse_unknown(store: Store, given: argparse.Namespace, listed: dict[str, list[Any]]) -> None:
    """Raise for a label or task that nothing has, with the nearest one."""
    from karat.errors import UnknownName, did_you_mean

    if any(listed.values()) or (given.label is None and given.task is None):
        return
    runs = store.runs.list()
    tasks = {run.header.task for run in runs}
    if given.task is not None and given.task not in tasks:
        raise UnknownName(f"no run of a task {given.task!r}: {did_you_mean(given.task, tasks)}")
    labels = {label for kind in KINDS for each in getattr(store, kind).list() for label in each.header.labels}
    if given.label is not None and given.label not in labels:
        raise UnknownName(f"nothing has the label {given.label!r}: {did_you_mean(given.label, labels)}")


def _entry(store: Store, handle: Any, scores: dict[str, Estimate]) -> dict[str, Any]:
    import msgspec

    entry: dict[str, Any] = handle.to_dict()
    if entry["kind"] == "dataset":
        named = store.backend.named(dataset=handle.id)
        entry["names"] = [f"{name}@{version}" for name, version, _ in named]
        for name, version, _ in named[:1]:
            entry |= {"name": name, "version": version}
    if entry["kind"] == "run" and handle.id in scores:
        entry["headline"] = msgspec.structs.asdict(scores[handle.id])
    return entry


def newest_estimates(store: Store) -> dict[str, dict[Metric, Estimate]]:
    """The newest estimate of each metric of each run, over all items; those of its newest aggregation first."""
    from karat.analysis.stored_analyses import is_analysis

    evaluations = {each.id: each.header for each in store.evaluations.list()}
    found: dict[str, dict[Metric, Estimate]] = {}
    for aggregation in reversed(store.aggregations.list()):
        if is_analysis(aggregation):
            continue
        members = [evaluations[id] for id in aggregation.header.evaluations if id in evaluations]
        about = dict.fromkeys(run for each in members for run in each.runs)
        only = next(iter(about)) if len(about) == 1 else None
        made_by = {spec.key: spec.fingerprint for each in members for spec in each.evaluators}
        for estimate in aggregation.header.estimates:
            run = estimate.run or only
            if run is not None and not estimate.group and estimate.value is not None:
                metric = estimate.label, made_by.get(estimate.evaluator, "")
                found.setdefault(run, {}).setdefault(metric, estimate)
    return found


def _headlines(handles: list[Any], estimates: dict[str, dict[Metric, Estimate]]) -> dict[str, Estimate]:
    """The estimate that the list shows of each run: of the metric that most runs of its task and dataset have."""
    from collections import Counter

    groups: dict[tuple[str, str], list[str]] = {}
    for each in reversed(handles):  # of equally common metrics, the first one of the newest run
        if each.id in estimates:
            groups.setdefault((each.header.task, each.header.dataset), []).append(each.id)
    out: dict[str, Estimate] = {}
    for runs in groups.values():
        common = Counter(metric for run in runs for metric in estimates[run])
        place = {metric: place for place, (metric, _) in enumerate(common.most_common())}
        out |= {run: estimates[run][min(estimates[run], key=place.__getitem__)] for run in runs}
    return out


def _blocks(
    store: Store, listed: dict[str, list[Any]], older: dict[str, int], scores: dict[str, Estimate]
) -> list[Block]:
    from karat.formatting import Heading, Paragraph
    from karat.layout import Styled

    tables: dict[str, Callable[[list[Any]], Table]] = {
        "datasets": lambda handles: _datasets(store, handles),
        "runs": lambda handles: _runs(handles, scores),
        "evaluations": _evaluations,
        "aggregations": _aggregations,
    }
    blocks: list[Block] = []
    for kind, handles in listed.items():
        if handles:
            blocks += [Heading(kind), tables[kind](handles)]
            if older[kind]:
                every = len(handles) + older[kind]
                command = store.command("ls", kind, "--limit", str(every))
                note = f"{older[kind]:,} older: {command}"
                blocks.append(Paragraph(Styled(note, "dim")))
    return blocks or [Paragraph(f"{store.url} is empty: karat run creates the first run")]


def age(seconds: float) -> str:
    """Format the age of an object: `now`, `5 min`, `3 h`, `2 d`, or the date if it is older than 30 days."""
    if seconds < 60:
        return "now"
    for limit, unit, name in ((3600, 60, "min"), (86400, 3600, "h"), (30 * 86400, 86400, "d")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name}"
    return time.strftime("%Y-%m-%d", time.localtime(time.time() - seconds))


def _age(handle: Any) -> str:
    return age(max(0.0, time.time() - handle.header.created))


def _counts(handle: Any) -> str:
    counts = handle.counts
    return f"{counts.ok:,} of {counts.total - counts.not_applicable:,}" + (
        f", {counts.failed:,} failed" if counts.failed else ""
    )


def _status(handle: Any) -> str:
    from karat.cli.outcome import status_text

    return status_text(handle.status)


def _datasets(store: Store, handles: list[Any]) -> Table:
    from karat.formatting import Table

    rows = []
    for each in handles:
        named = [f"{name}@{version}" for name, version, _ in store.backend.named(dataset=each.id)]
        labels = ", ".join(each.header.labels)
        rows.append([each.id, ", ".join(named) or each.label, labels, f"{len(each):,}", _age(each)])
    return _without_empty(Table(["id", "name", "labels", "examples", "age"], rows, [3]))


def _runs(handles: list[Any], scores: dict[str, Estimate]) -> Table:
    from karat.formatting import Table, number
    from karat.records import interval_text

    datasets = {each.header.dataset: each.dataset.label for each in handles}
    labels = _distinguishing_settings(handles)
    metrics = {each.label for each in (scores.get(handle.id) for handle in handles) if each is not None}
    only = next(iter(metrics)) if len(metrics) == 1 else None
    rows = []
    for each in handles:
        score = scores.get(each.id)
        rows.append(
            {
                "id": each.id,
                "labels": ", ".join(each.header.labels),
                "task": each.header.task,
                "dataset": datasets[each.header.dataset],
                "what differs": labels[each.id],
                "status": _status(each),
                "ok": _counts(each),
                "score": "" if score is None else f"{number(score.value)} {interval_text(score)}".rstrip(),
                "metric": "" if score is None or only else score.label,
                "cost": _cost(each),
                "age": _age(each),
                "description": each.header.description,
            }
        )
    names = list(rows[0])
    drop = ["description", "ok", "age", "status", "cost", "metric"]
    # Where all runs are of one task or dataset, its name says nothing.
    drop.insert(2 if len(datasets) == 1 else -1, "dataset")
    drop.insert(2 if len({each.header.task for each in handles}) == 1 else -1, "task")
    head = [only or name if name == "score" else name for name in names]
    return _without_empty(
        Table(
            head,
            [list(row.values()) for row in rows],
            [names.index(name) for name in ("score", "cost", "age")],
            cell=60,
            drop=[names.index(name) for name in drop],
        )
    )


def _distinguishing_settings(handles: list[Any]) -> dict[str, str]:
    """For each run, what distinguishes it from the others of the same task and dataset; empty where nothing does."""
    import msgspec

    from karat.store.run_labels import run_labels

    groups: dict[tuple[str, str], list[Any]] = {}
    for each in handles:
        # Their labels have a column of their own.
        header = msgspec.structs.replace(each.header, labels=[])
        groups.setdefault((header.task, header.dataset), []).append(header)
    out = {}
    for (task, _), headers in groups.items():
        for id, label in run_labels(headers).items():
            label = label.removesuffix(f" ({id})")
            out[id] = "" if label == task else label
        code = {each.id: each.code for each in headers}
        for id in code:
            if len({code[each] for each in code if out[each] == out[id]}) > 1:
                alike = [each for each in code if out[each] == out[id]]
                out |= {each: f"{out[each]} code {(code[each] or '?')[:8]}".lstrip() for each in alike}
    return out


def _cost(handle: Any) -> str:
    usage = handle.header.usage
    if not usage:
        return ""
    costs = [each.cost for each in usage.values()]
    return "unknown" if None in costs else f"${sum(costs):.4f}"


def _evaluations(handles: list[Any]) -> Table:
    from karat.formatting import Table

    rows = []
    for each in handles:
        keys = ", ".join(spec.key for spec in each.header.evaluators)
        runs = ", ".join(each.header.runs[:3]) + (" …" if len(each.header.runs) > 3 else "")
        labels = ", ".join(each.header.labels)
        rows.append([each.id, labels, keys, runs, _status(each), _counts(each), _cost(each), _age(each)])
    head = ["id", "labels", "evaluators", "runs", "status", "ok", "cost", "age"]
    return _without_empty(Table(head, rows, [6, 7], cell=60, drop=[5, 3, 6, 1, 7]))


def _aggregations(handles: list[Any]) -> Table:
    from karat.formatting import Table, headlines

    rows = []
    for each in handles:
        keys = ", ".join(spec.label for spec in each.header.aggregators)
        found = each.header.metadata.get("conclusions") or headlines(each.header.estimates, {})
        labels = ", ".join(each.header.labels)
        rows.append([each.id, labels, keys, found[0] if found else "", _status(each), _age(each)])
    head = ["id", "labels", "aggregators", "result", "status", "age"]
    return _without_empty(Table(head, rows, [5], cell=120, drop=[5, 1, 4]))


def _without_empty(table: Table) -> Table:
    """The table without columns in which every cell is empty."""
    import msgspec

    kept = [i for i in range(len(table.head)) if any(row[i] for row in table.rows)]
    place = {old: new for new, old in enumerate(kept)}
    return msgspec.structs.replace(
        table,
        head=[table.head[i] for i in kept],
        rows=[[row[i] for i in kept] for row in table.rows],
        right=[place[i] for i in table.right if i in place],
        drop=[place[i] for i in table.drop if i in place],
    )
