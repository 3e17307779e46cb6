"""Show the rows of a run, an evaluation or a dataset with their scores and reasons, or an aggregation.

--failed keeps the rows that failed or were skipped, and counts them by kind. --grep keeps those that contain a text.
--where keeps those that satisfy conditions on id, status, score, seconds, cost, attempt, run, error, output, an
evaluator's key or a metadata field: = is exact, : ignores case, ~ means contains, and < <= > >= compare numbers; and,
or, not and parentheses combine them. --sort FIELD puts the lowest first, --sort=-FIELD the highest. --example shows
one example with every try, its results, and a trajectory as numbered steps. --details shows settings, parents and
children.

    karat show run-1a2b
    karat show candidate --where 'score<0.5 and topic=law' --sort score
    karat show eval-3c4d q17
    karat show run-1a2b --failed
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from karat.analysis.filters import FIELDS, All, Filter, FilterError, TextSearch, parse, row_values
from karat.analysis.outcomes import failure_kinds
from karat.cli.parser import Parser, UsageError, integer
from karat.cli.terminal import Terminal
from karat.errors import RequestError, UnknownName, did_you_mean, plural
from karat.formatting import Block, Details, Heading, Paragraph, Table, clean, counts_text
from karat.layout import Styled
from karat.records import EvaluatorSpec, Example, ItemResult, Output, summary_of
from karat.serialization import prepared
from karat.store.backend import FAILED, SKIPPED, RecordDecoder
from karat.store.columns import load_columns
from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset
from karat.store.repositories import output_decoder, result_decoder
from karat.store.rows import (
    LONGEST_CELL,
    POSITIONS_AT_ONCE,
    Row,
    evaluation_rows,
    place_name,
    row_tables,
    run_rows,
    trajectory_of,
    value_text,
)
from karat.store.run_labels import settings_of

if TYPE_CHECKING:
    from karat.store import Store

PAGE = 20
MOST_SCORES = 4
"""Estimates of a run that are shown above its rows."""


def add_arguments(parser: Parser) -> None:
    """Declare the id and the view."""
    parser.add_argument(
        "id", metavar="ID", help="an id, a unique prefix of one, a label, or latest; for a dataset its name"
    )
    parser.add_argument(
        "example_id", metavar="EXAMPLE", nargs="?", help="the id of an example, as with --example"
    )
    parser.option("--example", metavar="ID", help="show this example with its outputs, tries and results")
    parser.option("--failed", action="store_true", help="only rows that failed or were skipped, by kind")
    parser.option("--where", metavar="FILTER", help="only rows that match, such as 'score<0.5 and topic=law'")
    parser.option("--grep", metavar="TEXT", help="only rows that contain this text, ignoring case")
    parser.option(
        "--sort", metavar="FIELD", help="the rows with the lowest value first; --sort=-FIELD: the highest"
    )
    parser.option(
        "--limit", type=integer(1), default=PAGE, metavar="N", help=f"rows of a page (default: {PAGE})"
    )
    parser.option("--page", type=integer(1), default=1, metavar="N", help="the page to show (default: 1)")
    parser.option("--details", action="store_true", help="show all settings, the parents and the children")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Show the item."""
    from karat.cli.outcome import counted, latest_notice
    from karat.store import open_existing

    if given.example_id is not None:
        if given.example is not None:
            raise UsageError(
                f"{given.example_id!r} and --example {given.example!r} contradict each other: remove one"
            )
        given.example = given.example_id
    picks = [f"--{name}" for name in ("where", "grep", "sort") if getattr(given, name) is not None]
    picks += ["--failed"] if given.failed else []
    if given.example is not None and picks:
        raise UsageError(f"--example and {picks[0]} contradict each other: remove one of them")
    with open_existing(given.store) as store:
        handle = counted(store.get(given.id))
        terminal.notice(latest_notice(handle) if given.id == "latest" else "")
        if given.example is not None:
            document = example_of(store, handle, given.example)
            terminal.show(document, lambda: example_blocks(document))
            return 0
        if given.failed:
            handle = _failing(handle)
        elif isinstance(handle, Aggregation) and picks:
            handle = _only_evaluation(handle, picks[0])
        document = {**handle.to_dict(), "parents": lineage(store, handle.id, up=True)}
        document["children"] = lineage(store, handle.id, up=False)
        blocks = _head(handle)
        if given.details:
            blocks += _details(document)
        if given.failed:
            kinds = failures_of(handle)
            document |= {"kinds": kinds}
            blocks += failure_blocks(handle, kinds)
        if isinstance(handle, Aggregation):
            blocks += _aggregation(handle)
        elif not given.details or picks:
            page = _page(handle, given)
            document |= {
                "rows": [msgspec.to_builtins(row) for row in page.rows],
                "page": given.page,
                "matched": page.matched,
            }
            fields = [each.lstrip("-") for each in _fields(given)]
            blocks += [*row_tables(page.rows, _specs(handle), fields), *_footer(page, given, bool(picks))]
        terminal.show(document, lambda: blocks)
    return 0


def _page(handle: Any, given: argparse.Namespace) -> RowPage:
    return read_page(
        handle,
        where=make_filter(given.where, given.grep),
        failed=given.failed,
        sort=given.sort,
        first=(given.page - 1) * given.limit,
        count=given.limit,
    )


def _specs(handle: Any) -> list[EvaluatorSpec]:
    evaluations = evaluations_of(handle) if isinstance(handle, Run) else [handle]
    return [spec for each in evaluations if isinstance(each, Evaluation) for spec in each.header.evaluators]


def _fields(given: argparse.Namespace) -> list[str]:
    """The fields that the filter and the sort order name: they are shown too."""
    where = make_filter(given.where, None)
    return [*(where.fields if where is not None else []), *([given.sort] if given.sort else [])]


def _footer(page: RowPage, given: argparse.Namespace, picked: bool) -> list[Block]:
    """`rows 1–20 of 1,000; next: --page 2`."""
    if not page.rows:
        if page.first:
            matched = page.matched or 0
            pages = plural(-(-matched // given.limit), "page")
            return [Paragraph(f"page {given.page:,} is empty: there are {plural(matched, 'row')} on {pages}")]
        return [] if given.failed else [Paragraph("no row matches" if picked else "there are no rows")]
    last = page.first + len(page.rows)
    total = "" if page.matched is None else f" of {page.matched:,}{' that match' if picked else ''}"
    more = page.matched is None or page.matched > last
    after = f"; next page: --page {given.page + 1}" if more else ""
    return [Paragraph(Styled(f"rows {page.first + 1:,}–{last:,}{total}{after}", "dim"))]


# The head: what it is ------------------------------------------------------------


def _head(handle: Any) -> list[Block]:
    """Describe the item in a few lines."""
    if isinstance(handle, StoredDataset):
        labels = [("labels", [", ".join(handle.labels)])] if handle.labels else []
        head = Heading(f"dataset {handle.label}, {plural(len(handle), 'example')}, {handle.id}")
        return [head, *([Details("", labels)] if labels else [])]
    header = handle.header
    fields: list[tuple[str, list[str]]] = [("items", [counts_text(handle.counts)])]
    if isinstance(handle, Run):
        made_with = settings_of(header).items()
        settings = " ".join(f"{name}={value_text(value)}" for name, value in made_with if value is not None)
        fields.append(("task", [f"{header.task} on {handle.dataset.label}"]))
        fields += [("settings", [clean(settings, LONGEST_CELL)])] if settings else []
        fields += _scores(handle)
    elif isinstance(handle, Evaluation):
        fields.append(("evaluators", [", ".join(spec.key for spec in header.evaluators)]))
        fields.append(("runs", [", ".join(header.runs)]))
    for model, usage in getattr(header, "usage", {}).items():
        cost = "cost unknown" if usage.cost is None else f"${usage.cost:.4f}"
        cached = f" ({usage.cached_calls:,} from cache)" if usage.cached_calls else ""
        tokens = f"{usage.input_tokens:,} + {usage.output_tokens:,} tokens"
        fields.append(("model", [f"{model}: {plural(usage.calls, 'call')}{cached}, {tokens}, {cost}"]))
        if len(usage.served) > 1:
            fields.append(
                (
                    "warning",
                    [Styled(f"{len(usage.served)} models served: {', '.join(usage.served)}", "warning")],
                )
            )
    for name in ("labels", "description", "error"):
        value = getattr(header, name, None)
        if value:
            fields.append((name, [value if isinstance(value, str) else ", ".join(value)]))
    return [Details(f"{handle.kind} {handle.id}: {handle.status}", fields)]


def _scores(run: Run) -> list[tuple[str, list[str]]]:
    """The estimates that are stored of a run."""
    from karat.cli.ls import newest_estimates
    from karat.formatting import number
    from karat.records import interval_text

    found = list(newest_estimates(run.store).get(run.id, {}).values())
    texts = [
        f"{each.label} {number(each.value)} {interval_text(each)}".rstrip()
        + (f" over {each.n:,} of {each.of:,} items" if each.n < each.of else "")
        for each in found[:MOST_SCORES]
    ]
    if len(found) > MOST_SCORES:
        texts.append(
            f"{plural(len(found) - MOST_SCORES, 'more estimate')}: {run.store.command('report', run.id)}"
        )
    return [("score" if place == 0 else "", [text]) for place, text in enumerate(texts)]


def _details(document: dict[str, Any]) -> list[Block]:
    fields = [(name, [str(value)]) for name, value in _facts(document) if value]
    blocks: list[Block] = [Details("settings", fields, 300)]
    for key in ("parents", "children"):
        if document[key]:
            rows = [[each] for each in _branches(document[key], key, 0)]
            blocks.append(Table([key], rows))
    return blocks


def _aggregation(handle: Aggregation) -> list[Block]:
    """The estimates; of a comparison or a ranking, its report."""
    for table in handle.tables:
        kind = table.value.get("kind") if isinstance(table.value, dict) else None
        if kind == "comparison":
            from karat.analysis.comparison import Comparison, comparison_blocks

            return comparison_blocks(msgspec.convert(table.value, prepared(Comparison)))
        if kind == "ranking":
            from karat.analysis.ranking import Ranking, ranking_blocks

            return ranking_blocks(msgspec.convert(table.value, prepared(Ranking)))
    return handle.blocks(None)


def _only_evaluation(handle: Aggregation, option: str) -> Evaluation:
    evaluations = handle.evaluations
    if len(evaluations) != 1:
        raise RequestError(
            f"{handle.id} has {plural(len(evaluations), 'evaluation')}, and {option} needs the rows of one: name it,"
            f" one of {', '.join(each.id for each in evaluations)}"
        )
    return evaluations[0]


def lineage(store: Store, id: str, *, up: bool) -> list[dict[str, Any]]:
    """The tree of parents (or children) of an item; a repeated item is expanded once."""
    seen: set[str] = set()

    def tree(of: str) -> list[dict[str, Any]]:
        out = []
        for each in _oldest_first(store, store.parents(of) if up else store.children(of)):
            entry: dict[str, Any] = {"id": each}
            if each not in seen:
                seen.add(each)
                entry["parents" if up else "children"] = tree(each)
            out.append(entry)
        return out

    return tree(id)


def _oldest_first(store: Store, ids: list[str]) -> list[str]:
    return sorted(ids, key=lambda id: store.get(id).header.created)


LEFT_OUT = (
    *("kind", "id", "format", "counts", "status", "parents", "children", "usage", "estimates", "tables"),
    *("rows", "page", "matched", "kinds"),
)


def _facts(document: dict[str, Any]) -> list[tuple[str, Any]]:
    """The fields of a header, one per line, with long values cut."""
    import json
    import time

    out: list[tuple[str, Any]] = []
    for name, value in document.items():
        if name in LEFT_OUT:
            continue
        if name in ("created", "finished") and value:
            value = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
        elif not isinstance(value, (str, int, float, type(None))):
            value = json.dumps(value, ensure_ascii=False) if value else ""
        out.append((name, value))
    return out


def _branches(tree: list[dict[str, Any]], key: str, depth: int) -> list[str]:
    lines = []
    for each in tree:
        lines.append("· " * depth + each["id"])
        lines += _branches(each.get(key, []), key, depth + 1)
    return lines


# One example -----------------------------------------------------------------------

LONGEST_VALUE = 2000
MOST_STEPS = 200


def example_of(store: Store, handle: Any, id: str) -> dict[str, Any]:
    """An example with every try of its outputs (of a run, or of the runs of an evaluation) and of their results.

    `compared` are the outputs of other runs that a run's were compared with.
    """
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
    position, example = find_example(dataset, id)
    results = [
        {"evaluation": each.id, **msgspec.to_builtins(result)}
        for each in evaluations
        for result in _results(each, position)
        if not isinstance(handle, Run) or handle.id in result.runs
    ]
    shown = {run for result in results for run in result["runs"]} - {run.id for run in runs}
    others = [run for run in _runs(evaluations) if run.id in shown]
    outputs, compared = (
        [{"run": run.id, **msgspec.to_builtins(output)} for run in some for output in _outputs(run, position)]
        for some in (runs, others)
    )
    return {
        "example": msgspec.to_builtins(example),
        "outputs": outputs,
        "compared": compared,
        "results": results,
    }


def _runs(evaluations: list[Evaluation]) -> list[Run]:
    return list({run.id: run for each in evaluations for run in each.runs}.values())


def find_example(dataset: StoredDataset, id: str) -> tuple[int, Any]:
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
    return [result_decoder.decode(row.payload) for row in rows]


def example_blocks(document: dict[str, Any]) -> list[Block]:
    """An example, its outputs with their steps, and its results, for a terminal."""
    example = document["example"]
    summed_up = {name for output in document["outputs"] for name in summary_of(output.get("metadata") or {})}
    fields = [
        (name, [value_text(example[name])])
        for name in ("input", "expected", "metadata")
        if example.get(name) not in (None, {}) and name not in summed_up
    ]
    blocks: list[Block] = [Details(f"example {clean(example['id'])}", fields)]
    for output in document["outputs"]:
        blocks += _output_blocks(output)
    for result in document["results"]:
        # Of several units, each evaluator applies to some: the others would hide its results.
        if not result.get("unit") or result["outcome"].get("applicable", True):
            blocks.append(_result_block(result, document))
    return blocks


def _attempt(record: dict[str, Any]) -> str:
    unit = f", unit {clean(record['unit'], 80)}" if record.get("unit") else ""
    tries = f", try {record['try_number']}" if record.get("try_number", 1) > 1 else ""
    return f"attempt {record.get('attempt', 1)}{unit}{tries}"


def _output_blocks(output: dict[str, Any]) -> list[Block]:
    title = f"output of {output['run']}, {_attempt(output)}"
    steps = _steps(output)
    if steps:
        rows = [[str(number), *step] for number, step in enumerate(steps[:MOST_STEPS], 1)]
        blocks: list[Block] = [
            Heading(title),
            Table(["step", "who", "what"], rows, [0], cell=LONGEST_VALUE, lines=12),
        ]
        if len(steps) > MOST_STEPS:
            blocks.append(Paragraph(f"and {len(steps) - MOST_STEPS:,} more steps: --json has all of them"))
        retried = _retried_failures(output) + [
            _call(call) for call in output.get("trace", []) if _retries(call)
        ]
        return [*blocks, *([Details("", retried)] if retried else [])]
    fields = _summary(output) or [_outcome(output["outcome"])]
    fields += _retried_failures(output)
    fields += [_call(call) for call in output.get("trace", [])]
    return [Details(title, fields)]


def _retried_failures(output: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The failures after which the task was called again."""
    errors = (output.get("metadata") or {}).get("retried", ())
    return [
        (_times(len(errors)) if place == 0 else "", [Styled(clean(each, 400), "warning")])
        for place, each in enumerate(errors)
    ]


def _times(retries: int) -> str:
    return "1 retry" if retries == 1 else f"{retries:,} retries"


def _steps(output: dict[str, Any]) -> list[list[str]]:
    """Return a trajectory as steps, each with its role and its text or action; empty if it is not a trajectory."""
    trajectory = trajectory_of(output["outcome"].get("value"))
    if trajectory is None:
        return []
    steps = []
    for step in trajectory.steps:
        if step.tool_result is not None:
            result = step.tool_result
            text = value_text(result.content)
            steps.append([f"tool {result.name or ''}".strip(), Styled(text, "bad") if result.error else text])
            continue
        if step.text or not step.tool_calls:
            steps.append([step.role, step.text or value_text(step.content)])
        for call in step.tool_calls:
            arguments = call.raw if call.raw is not None else _arguments(call.arguments)
            steps.append([step.role, Styled(f"{call.name}({arguments})", "bold")])
    return steps


def _arguments(arguments: Any) -> str:
    if isinstance(arguments, dict):
        return ", ".join(f"{name}={value_text(value)}" for name, value in arguments.items())
    return value_text(arguments)


def _result_block(result: dict[str, Any], document: dict[str, Any]) -> Details:
    title = f"result of {clean(result['key'], 80)} in {result['evaluation']}"
    runs = result["runs"]
    if len(runs) == 1 and len({output["run"] for output in document["outputs"]}) > 1:
        title += f", {runs[0]}"
    title += f", {_attempt(result)}"
    fields: list[tuple[str, list[str]]] = []
    if len(runs) > 1:
        for number, run in enumerate(runs, 1):
            output = _compared_output(run, result, document)
            fields.append((f"shown {place_name(number)}", [f"{run}: {output}"]))
    fields += _judgment(result["outcome"])
    fields += [_call(call) for call in result.get("trace", [])]
    return Details(title, fields)


def _compared_output(run: str, result: dict[str, Any], document: dict[str, Any]) -> str:
    same = [
        output
        for output in [*document["outputs"], *document["compared"]]
        if output["run"] == run
        and output.get("attempt", 1) == result.get("attempt", 1)
        and output.get("unit", "") == result.get("unit", "")
    ]
    return clean(_outcome(same[-1]["outcome"])[1][0], 300) if same else "no output"


def _call(call: dict[str, Any]) -> tuple[str, list[str]]:
    retries = _retries(call)
    retried = f" ({_times(retries)})" if retries else ""
    result_text = clean(call["error"], 400) if call.get("error") else value_text(call.get("output"))
    return "call", [f"{clean(call['name'], 80)}{retried}: {result_text}"]


def _retries(call: dict[str, Any]) -> int:
    """Count the retries of a request: each failed attempt is recorded."""
    failed = len(call.get("metadata", {}).get("attempts", ()))
    return max(0, failed - 1) if call.get("error") else failed


def _summary(output: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the task's summary of an output, which replaces its values in text, or nothing without one."""
    summary = summary_of(output.get("metadata") or {})
    fields = [
        (name if place == 0 else "", [clean(line, LONGEST_VALUE)])
        for name in ("input", "expected", "output")
        for place, line in enumerate((summary.get(name) or "").splitlines())
    ]
    return fields if "output" in summary or not fields else [*fields, _outcome(output["outcome"])]


def _outcome(outcome: dict[str, Any]) -> tuple[str, list[str]]:
    if outcome["status"] == "ok":
        return "output", [value_text(outcome["value"]) or '""']
    if outcome["status"] == "skipped":
        return "skipped", [Styled(clean(outcome["reason"], 400), "warning")]
    error = outcome["error"]
    where = f"  ({clean(error['where'], 200)})" if error.get("where") else ""
    text = f"{clean(error['type'], 80)}: {clean(error['message'], 400)}{where}"
    return "failed", [Styled(text, "bad")]


def _judgment(outcome: dict[str, Any]) -> list[tuple[str, list[str]]]:
    if outcome["status"] != "ok":
        return [_outcome(outcome)]
    result = outcome["value"]
    score, value = result.get("score"), result.get("value")
    fields = [("score", [f"{score:g}"])] if score is not None else []
    if value is not None:
        fields.append(("value", [value_text(value)]))
    if result.get("comment"):
        fields.append(("why", [result["comment"]]))
    return fields or [("score", ["none"])]


# Failures ----------------------------------------------------------------------------


def _failing(handle: Any) -> Any:
    """The item whose failures to show: for one without failures, the first of those it was made from or by."""
    if isinstance(handle, StoredDataset):
        raise RequestError(
            f"{handle.label} is a dataset and has no failures: name a run, an evaluation or an aggregation"
        )
    if isinstance(handle, Aggregation):
        return handle if handle.header.failures else failed_first(handle)
    return failed_first(handle) if isinstance(handle, Run) else handle


def failed_first(handle: Any) -> Any:
    """The earliest of an item, its runs and its evaluations that has failures; else the item itself."""
    if isinstance(handle, Run):
        earlier = [handle, *evaluations_of(handle)]
    else:
        evaluations = handle.evaluations if isinstance(handle, Aggregation) else [handle]
        judged = [each for each in evaluations if isinstance(each, Evaluation)]
        earlier = [*_runs(judged), *judged]
    return next((each for each in earlier if each.counts.failed), handle)


def failures_of(handle: Any) -> list[dict[str, Any]]:
    """The failed and skipped items of a run or an evaluation by kind, most frequent first."""
    if isinstance(handle, Aggregation):
        return [
            {
                "kind": failure.error.type,
                "status": "failed",
                "count": 1,
                "examples": [{"of": failure.label, **msgspec.to_builtins(failure.error)}],
            }
            for failure in handle.header.failures
        ]
    kinds = []
    for kind in failure_kinds(handle):
        name = kind.type if kind.what == "output" else f"{kind.what}: {kind.type}"
        kinds.append({"kind": name, "status": kind.status, "count": kind.count, "examples": kind.examples})
    return kinds


def failure_blocks(handle: Any, kinds: list[dict[str, Any]]) -> list[Block]:
    """The kinds of failures, most frequent first, with their first examples."""
    if not kinds:
        pending = handle.counts.pending
        waiting = f"; {plural(pending, 'item')} {'is' if pending == 1 else 'are'} pending" if pending else ""
        low = f"; low scores: {handle.store.command('show', handle.id, '--where', 'score<1')}"
        return [Paragraph(f"no failures in {handle.id}{waiting}{low if handle.kind == 'evaluation' else ''}")]
    rows = []
    for kind in kinds:
        first = kind["examples"][0] if kind["examples"] else {}
        names = [
            (each.get("example") or each.get("of", ""))
            + (f" ({', '.join(each['runs'])})" if each.get("runs") else "")
            for each in kind["examples"]
        ]
        where = f" ({first['where']})" if first.get("where") else ""
        more = ", …" if kind["count"] > len(names) else ""
        rows.append(
            [
                f"{kind['count']:,}",
                Styled(kind["status"], "bad" if kind["status"] == "failed" else "warning"),
                kind["kind"],
                f"{first.get('message', '')}{where}",
                ", ".join(names) + more,
            ]
        )
    return [
        Table(
            ["count", "status", "kind", "first message", "examples"], rows, [0], cell=LONGEST_CELL, drop=[4]
        )
    ]


# Pages of rows: filtered, sorted, a page at a time.


Rows = StoredDataset | Run | Evaluation

MOST_FIELDS = 1000
"""Names of metadata fields that are remembered for messages."""


class RowPage(msgspec.Struct, frozen=True):
    """Some of the rows that match."""

    rows: list[Row]
    first: int
    """The place of the first of them among those that match, from 0."""
    matched: int | None = None
    """How many rows match; None where that would need reading all of them."""


def make_filter(where: str | None, grep: str | None) -> Filter | None:
    """The filter of `--where` and `--grep`; None without either."""
    parts = []
    if where is not None:
        parts.append(parse(where).expression)
    if grep is not None:
        parts.append(TextSearch(grep))
    if not parts:
        return None
    return Filter(" ".join(filter(None, [where, grep])), All(tuple(parts)))


def read_page(
    handle: Rows,
    *,
    where: Filter | None = None,
    failed: bool = False,
    sort: str | None = None,
    first: int = 0,
    count: int = 20,
) -> RowPage:
    """Read a page of rows. Without a filter and a sort order, no more rows are read than are returned.

    `sort` is a field of the filter grammar, lowest first; with a minus before it, highest first. `failed` keeps the
    rows whose output or one of whose results failed or was skipped.
    """
    if where is not None or sort is not None or failed:
        if isinstance(handle, Run):
            return _page_by_columns(handle, evaluations_of(handle), where, failed, sort, first, count)
        if isinstance(handle, Evaluation) and len(handle.header.runs) == 1 and _judges_single(handle):
            return _page_by_columns(handle.runs[0], [handle], where, failed, sort, first, count)
    rows = _rows(handle, _failed_positions(handle) if failed else _candidates(handle, where, sort))
    if where is None and sort is None:
        if failed:
            rows = (row for row in rows if has_failed(row))
        before = sum(1 for _ in islice(rows, first))
        page = list(islice(rows, count))
        more = next(rows, None) is not None
        known = None if failed else _row_count(handle)
        return RowPage(page, first, known if more else before + len(page))
    names = _Names()
    matching = (
        row
        for row in names.seen(rows)
        if (not failed or has_failed(row)) and (where is None or where.matches(row))
    )
    page, matched = _sorted_page(matching, sort, first, count) if sort else _page_of(matching, first, count)
    names.check(where, sort)
    return RowPage(page, first, matched)


def _page_by_columns(
    run: Run,
    evaluations: list[Evaluation],
    where: Filter | None,
    failed: bool,
    sort: str | None,
    first: int,
    count: int,
) -> RowPage:
    """A page of the rows of a run that columns select; only the records of the page are read, or all for a text."""
    import numpy as np

    from karat.analysis.tables import RunTable, joined_rows

    table = RunTable(run, evaluations)
    table.text_seconds = math.inf  # whoever waits for it can interrupt it
    mask = np.ones(len(table), bool)
    if failed:
        mask &= table.failing()
    if where is not None:
        mask &= where.mask(table)
    chosen = np.flatnonzero(mask)
    if sort is not None:
        chosen = table.order(sort, chosen)
    page = chosen[first : first + count]
    found = joined_rows(table, page)
    return RowPage([found[row] for row in page.tolist()], first, len(chosen))


def _row_count(handle: Rows) -> int | None:
    """Return the number of rows if it is known without reading them."""
    if isinstance(handle, StoredDataset):
        return len(handle)
    if isinstance(handle, Run):
        return handle.counts.total
    return sum(run.counts.total for run in handle.runs) if _judges_single(handle) else None


def _judges_single(evaluation: Evaluation) -> bool:
    """Whether all its evaluators judge single outputs."""
    return all(spec.kind == "single" for spec in evaluation.header.evaluators)


def has_failed(row: Row) -> bool:
    """Whether its output, or a result, failed or was skipped because of a failure."""
    return row.status in ("failed", "skipped") or any(
        judged.status in ("failed", "skipped") for judged in row.results.values()
    )


def evaluations_of(run: Run) -> list[Evaluation]:
    """The evaluations of a run, oldest first, without those that a newer one replaces."""
    found = [run.store.get(each) for each in run.store.children(run.id)]
    evaluations = sorted(
        (each for each in found if isinstance(each, Evaluation)), key=lambda each: each.header.created
    )
    covered: set[str] = set()
    needed = []
    for each in reversed(evaluations):
        keys = {spec.key for spec in each.header.evaluators if spec.kind == "single"}
        if keys - covered:
            covered |= keys
            needed.append(each)
    return needed[::-1]


def _rows(handle: Rows, positions: Sequence[int] | None) -> Iterator[Row]:
    """The rows of some examples, or of all."""
    if isinstance(handle, StoredDataset):
        for example in handle if positions is None else _examples_at(handle, positions):
            yield Row(
                id=example.id,
                input=example.input,
                expected=example.expected,
                metadata=example.metadata,
                run="",
                run_label="",
                status="",
            )
        return
    if isinstance(handle, Run):
        yield from run_rows(handle, evaluations_of(handle), positions)
    else:
        yield from evaluation_rows(handle, positions)


def _examples_at(data: StoredDataset, positions: Sequence[int]) -> Iterator[Example]:
    decode = RecordDecoder(Example).decode
    for start in range(0, len(positions), POSITIONS_AT_ONCE):
        for row in data.scan_at(positions[start : start + POSITIONS_AT_ONCE]):
            yield decode(row.payload)


def _candidates(handle: Rows, where: Filter | None, sort: str | None) -> list[int] | None:
    """The positions that a text leaves. None without one, and if another field has to be searched in all rows."""
    fields = [*(where.fields if where else ()), *([sort.removeprefix("-")] if sort else ())]
    if where is None or any(field not in FIELDS for field in fields):
        return None
    from karat.analysis.text_search import candidate_positions  # loads NumPy

    if isinstance(handle, Evaluation):
        return candidate_positions([handle.runs[0].dataset, *handle.runs, handle], where)
    return candidate_positions([handle], where)


def _failed_positions(handle: Rows) -> list[int] | None:
    """The positions of examples with a failed or skipped item; None for all."""
    import numpy as np

    if not isinstance(handle, Evaluation):
        return None

    columns = load_columns(handle, ())
    found: list[int] = np.unique(columns.positions[np.isin(columns.statuses, (FAILED, SKIPPED))]).tolist()
    return found


def _page_of(rows: Iterator[Row], first: int, count: int) -> tuple[list[Row], int]:
    """Return a page of rows in their order, and the number of all rows."""
    page, place = [], -1
    for place, row in enumerate(rows):
        if first <= place < first + count:
            page.append(row)
    return page, place + 1


def _sorted_page(rows: Iterator[Row], sort: str, first: int, count: int) -> tuple[list[Row], int]:
    """A page of rows by a field; rows without a value come last. Memory grows with the pages before it."""
    field, down = sort.removeprefix("-"), sort.startswith("-")
    matched = 0

    def keyed() -> Iterator[tuple[tuple[Any, ...], int, Row]]:
        nonlocal matched
        for row in rows:
            values = [value for value in row_values(field, row) if value is not None]
            yield _sort_key(values, down), matched, row
            matched += 1

    best = heapq.nsmallest(first + count, keyed(), key=lambda each: each[:2])
    return [row for _, _, row in best[first:]], matched


def _sort_key(values: list[Any], down: bool) -> tuple[Any, ...]:
    numbers = [float(value) for value in values if isinstance(value, (int, float))]
    if numbers:
        return (0, -max(numbers) if down else min(numbers), "")
    if values:
        text = str(values[0])
        return (1, 0.0, tuple(-ord(c) for c in text) if down else tuple(map(ord, text)))
    return (2, 0.0, "")


class _Names:
    """The field names of rows, to suggest the nearest one for an unknown field in a filter."""

    def __init__(self) -> None:
        self._metadata: dict[str, None] = {}
        self._keys: set[str] = set()

    def seen(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Return the same rows."""
        for row in rows:
            if len(self._metadata) < MOST_FIELDS:
                self._metadata.update(dict.fromkeys(row.metadata))
            self._keys.update(row.results)
            yield row

    def check(self, where: Filter | None, sort: str | None) -> None:
        """Raise where a filter or sort order names a field that no row has."""
        known = [*self._keys, *self._metadata]
        if where is not None:
            where.check(known)
        if sort is not None:
            field = sort.removeprefix("-")
            try:
                parse(f"{field}:none").check(known)
            except FilterError:
                raise FilterError(
                    f"cannot sort by {field!r}: {did_you_mean(field, [*SORTABLE, *known])}"
                ) from None


SORTABLE = ("id", "status", "score", "seconds", "cost", "attempt", "run")
