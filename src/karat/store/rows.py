"""Rows: examples joined with their outputs and results, for display, filters and export.

Rows are read from the dataset, the runs and the evaluation in chunks of positions, so that a million rows take no more
memory than a few hundred.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from karat.errors import plural
from karat.formatting import Block, Table, short_number
from karat.layout import Styled
from karat.records import (
    HUMAN,
    EvaluatorSpec,
    Example,
    Failed,
    ItemResult,
    Ok,
    Output,
    Skipped,
    groups_of,
    summary_of,
    usage_of,
)
from karat.store.backend import RecordDecoder, latest
from karat.store.columns import cost_of
from karat.store.run_labels import run_labels

if TYPE_CHECKING:
    from karat.store.handles import Evaluation, Run
    from karat.traces import Trajectory


POSITIONS_AT_ONCE = 16
"""Positions whose records are held in memory together: a record may be some mebibytes large."""


def place_name(number: int) -> str:
    """Return the name of an output of a comparison in flat rows and tables: `first` to `fourth`, then `5th`."""
    if number <= 4:
        return ("first", "second", "third", "fourth")[number - 1]
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


class Judged(msgspec.Struct, frozen=True):
    """The result of one evaluator for a row."""

    status: str
    """`ok`, `failed`, `skipped` or `pending`."""
    score: float | None = None
    value: Any = None
    comment: str = ""
    error: str | None = None
    """The error, or the reason of a skip."""
    metadata: dict[str, Any] = {}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a run, with its example and its results; of a comparison, with the outputs that were compared."""

    id: str
    input: Any
    expected: Any = None
    metadata: dict[str, Any] = {}
    run: str
    run_label: str
    attempt: int = 1
    unit: str = ""
    status: str
    """Of the output: `ok`, `failed`, `skipped` or `pending`."""
    output: Any = None
    error: str | None = None
    output_metadata: dict[str, Any] = {}
    """What was stored with the output; of a failed model call, its attempts."""
    service_seconds: float | None = None
    queue_seconds: float | None = None
    cost: float | None = None
    """In dollars; None where no model was called or a price is unknown."""
    try_number: int = 1
    results: dict[str, Judged] = {}
    """By evaluator key."""
    others: list[Row] = []
    """Of a comparison: the outputs that were compared with this one, in the order in which they were shown."""

    def shown(self, field: Literal["input", "expected", "output"]) -> Any:
        """Return what tables show for a field: the task's summary of the unit, or else the value."""
        return summary_of(self.output_metadata).get(field, getattr(self, field))

    def flat(self) -> dict[str, Any]:
        """Return the row with one level of names: results as `KEY.score`, the second output as `second.output`."""
        fields = {
            name: getattr(self, name) for name in self.__struct_fields__ if name not in ("results", "others")
        }
        for key, judged in self.results.items():
            for name in ("score", "value", "comment", "error"):
                fields[f"{key}.{name}"] = getattr(judged, name)
        for number, other in enumerate(self.others, 2):
            for name in ("run", "run_label", "status", "output", "error"):
                fields[f"{place_name(number)}.{name}"] = getattr(other, name)
        return fields


def run_rows(
    run: Run, evaluations: Sequence[Evaluation] = (), positions: Collection[int] | None = None
) -> Iterator[Row]:
    """The rows of a run, in dataset order: one for each example, attempt and unit.

    They have the results of `evaluations`; if several have the same evaluator, the last one counts. With `positions`,
    only the examples at these positions are read.
    """
    keys = {
        spec.key: each.id for each in evaluations for spec in each.header.evaluators if spec.kind == "single"
    }
    reader = _Reader([run], evaluations)
    for position, example, outputs in reader.examples(positions):
        found: dict[tuple[int, str], dict[str, Judged]] = {}
        for evaluation, result in reader.results_by_evaluation(position):
            if keys.get(result.key) == evaluation and result.runs == (run.id,):
                found.setdefault((result.attempt, result.unit), {})[result.key] = judged_of(result)
        for row in reader.rows(example, run, outputs[0]):
            if not keys:
                yield row
                continue
            known = found.get((row.attempt, row.unit), {})
            cells = {key: known.get(key, Judged("pending")) for key in keys}
            yield msgspec.structs.replace(row, results=cells)


def evaluation_rows(evaluation: Evaluation, positions: Collection[int] | None = None) -> Iterator[Row]:
    """The rows of an evaluation, in dataset order.

    One for each example, run, attempt and unit, with the result of every evaluator that judges single outputs; then
    one for each comparison, with the verdict; comparisons that are pending come last.
    """
    specs = evaluation.header.evaluators
    single = [spec.key for spec in specs if spec.kind == "single"]
    reader = _Reader(evaluation.runs, [evaluation])
    expected = expected_comparisons(evaluation)
    for position, example, outputs in reader.examples(positions):
        results = [result for _, result in reader.results_by_evaluation(position)]
        by_item: dict[tuple[str, int, str], dict[str, Judged]] = {}
        for result in results:
            if result.key in single:
                item = by_item.setdefault((result.runs[0], result.attempt, result.unit), {})
                item[result.key] = judged_of(result)
        made: dict[tuple[str, int, str], Row] = {}
        for run, here in zip(evaluation.runs, outputs, strict=True):
            for row in reader.rows(example, run, here):
                known = by_item.get((run.id, row.attempt, row.unit), {})
                cells = {key: known.get(key, Judged("pending")) for key in single}
                made[run.id, row.attempt, row.unit] = row
                if single:
                    yield msgspec.structs.replace(row, results=cells)
        for result in results:
            if result.key not in single:
                shown = [made.get((run, result.attempt, result.unit)) for run in result.runs]
                rows = [row for row in shown if row is not None]
                if rows:
                    yield msgspec.structs.replace(
                        rows[0], results={result.key: judged_of(result)}, others=rows[1:]
                    )
        judged = {
            (each.key, runs, each.attempt, each.unit) for each in results for runs in _orders(each.runs)
        }
        for place, group in expected:
            spec, ids = specs[place], tuple(evaluation.header.runs[index] for index in group)
            for row in [row for (run, _, _), row in made.items() if run == ids[0]]:
                compared = [made.get((run, row.attempt, row.unit)) for run in ids[1:]]
                others = [other for other in compared if other is not None]
                asked = (spec.key, ids if spec.both_orders else frozenset(ids), row.attempt, row.unit)
                if len(others) == len(compared) and asked not in judged:
                    yield msgspec.structs.replace(row, results={spec.key: Judged("pending")}, others=others)


def _orders(runs: tuple[str, ...]) -> tuple[Collection[str], ...]:
    """Compared runs as they were shown, and in any order."""
    return runs, frozenset(runs)


def expected_comparisons(evaluation: Evaluation) -> list[tuple[int, tuple[int, ...]]]:
    """The comparisons that an unfinished evaluation has when it is complete: the places of evaluator and runs."""
    header = evaluation.header
    if header.finished is not None and not header.counts.pending:
        return []
    return [
        (place, group)
        for place, spec in enumerate(header.evaluators)
        if spec.kind != "single" and spec.name != HUMAN
        for group in groups_of(spec.kind, spec.both_orders, len(header.runs))
    ]


def rows_at(
    run: Run, positions: Sequence[int], sources: Mapping[str, Evaluation] | None = None
) -> Iterator[tuple[int, Row]]:
    """Yield `(position, row)` for the rows of a run at some positions, in dataset order.

    `sources` maps each evaluator to the evaluation with its results.
    """
    reader, backend, data = _Reader([run]), run.store.backend, run.dataset
    sources = sources or {}
    decode_example = RecordDecoder(Example).decode
    decode_output = RecordDecoder(Output).decode
    decode_result = RecordDecoder(ItemResult).decode
    selection, wanted = run.selection(len(data)), sorted(set(positions))
    for start in range(0, len(wanted), POSITIONS_AT_ONCE):
        some = wanted[start : start + POSITIONS_AT_ONCE]
        outputs: dict[int, list[Output]] = {}
        for row in latest(backend.scan_at(run.number, some)):
            outputs.setdefault(row.position, []).append(decode_output(row.payload))
        judged: dict[tuple[int, int, str], dict[str, Judged]] = {}
        for evaluation in {each.id: each for each in sources.values()}.values():
            for row in latest(backend.scan_at(evaluation.number, some)):
                result = decode_result(row.payload)
                source = sources.get(result.key)
                if source is not None and source.id == evaluation.id and result.runs == (run.id,):
                    place = (row.position, result.attempt, result.unit)
                    judged.setdefault(place, {})[result.key] = judged_of(result)
        for row in data.scan_at(some):
            position, example = row.position, decode_example(row.payload)
            reader.select({run.id: position in selection})
            for made in reader.rows(example, run, outputs.get(position, [])):
                known = judged.get((position, made.attempt, made.unit), {})
                cells = {key: known.get(key, Judged("pending")) for key in sources}
                yield position, msgspec.structs.replace(made, results=cells)


def judged_of(result: ItemResult) -> Judged:
    """A stored result as a cell of a row."""
    outcome = result.outcome
    if isinstance(outcome, Ok):
        found = outcome.value
        return Judged("ok", found.score, found.value, found.comment, metadata=found.metadata)
    return Judged(outcome.status, error=error_text(outcome))


def error_text(outcome: Ok[Any] | Failed | Skipped) -> str | None:
    """The error of a failure, the reason of a skip; None where all is there."""
    if isinstance(outcome, Failed):
        return f"{outcome.error.type}: {outcome.error.message}"
    return outcome.reason if isinstance(outcome, Skipped) else None


def metadata_of(output: Output) -> dict[str, Any]:
    """The metadata of an output; of one that failed, with that of its error."""
    failed = output.outcome.error.metadata if isinstance(output.outcome, Failed) else {}
    return {**output.metadata, **failed}


def _ranges(positions: Collection[int]) -> Iterator[tuple[int, int]]:
    """Positions as ranges of neighbours, in order."""
    ordered = sorted(set(positions))
    start = 0
    for place, position in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != position + 1 or place - start >= LONGEST_RANGE:
            yield ordered[start], position + 1
            start = place + 1


LONGEST_RANGE = 256


class _Reader:
    """The dataset, the outputs of runs and the results of evaluations, side by side."""

    def __init__(self, runs: list[Run], evaluations: Sequence[Evaluation] = ()) -> None:
        self.runs = runs
        self.evaluations = evaluations
        self.labels: Mapping[str, str] = run_labels([run.header for run in runs])
        self._results: dict[int, list[tuple[str, ItemResult]]] = {}
        self._selected: dict[str, bool] = {}

    def examples(
        self, positions: Collection[int] | None = None
    ) -> Iterator[tuple[int, Example, list[list[Output]]]]:
        """Each example that a run selects, or each of these positions, with the current outputs of each run."""
        from karat.store.handles import Chunks, check_complete

        read = dict.fromkeys([each.id for each in (*self.runs, *self.evaluations)], 0)
        data = self.runs[0].dataset
        backend = data.store.backend
        decode_example = RecordDecoder(Example).decode
        decode_output = RecordDecoder(Output).decode
        decode_result = RecordDecoder(ItemResult).decode
        selections = [run.selection(len(data)) for run in self.runs]
        chunks = Chunks(min(each.start for each in selections), max(each.stop for each in selections))
        for start, stop in chunks if positions is None else _ranges(positions):
            outputs: list[dict[int, list[Output]]] = []
            for run in self.runs:
                found: dict[int, list[Output]] = {}
                for row in latest(chunks.saw(backend.scan(run.number, start, stop))):
                    found.setdefault(row.position, []).append(decode_output(row.payload))
                    read[run.id] += 1
                outputs.append(found)
            self._results = {}
            for evaluation in self.evaluations:
                for row in latest(chunks.saw(backend.scan(evaluation.number, start, stop))):
                    found_here = self._results.setdefault(row.position, [])
                    found_here.append((evaluation.id, decode_result(row.payload)))
                    read[evaluation.id] += 1
            for row in chunks.saw(data.scan(start, stop)):
                here = [found.get(row.position, []) for found in outputs]
                self.select(
                    {run.id: row.position in each for run, each in zip(self.runs, selections, strict=True)}
                )
                yield row.position, decode_example(row.payload), here
        if positions is None:
            handles: list[Run | Evaluation] = [*self.runs, *self.evaluations]
            for handle in handles:
                # Of an evaluation of other runs too, not all examples were read.
                if read.keys() >= set(getattr(handle.header, "runs", ())):
                    check_complete(handle, read[handle.id])

    def select(self, selected: dict[str, bool]) -> None:
        """Set which runs select the example whose rows come next."""
        self._selected = selected

    def results_by_evaluation(self, position: int) -> list[tuple[str, ItemResult]]:
        """The current results of the example that was read last, each with the id of its evaluation."""
        return self._results.get(position, [])

    def rows(self, example: Example, run: Run, outputs: list[Output]) -> Iterator[Row]:
        """The rows of one example in one run; attempts without an output are pending."""
        about: dict[str, Any] = {
            "id": example.id,
            "input": example.input,
            "expected": example.expected,
            "metadata": example.metadata,
            "run": run.id,
            "run_label": self.labels[run.id],
        }
        for output in outputs:
            yield Row(
                **about,
                attempt=output.attempt,
                unit=output.unit,
                status=output.outcome.status,
                output=output.value,
                error=error_text(output.outcome),
                output_metadata=metadata_of(output),
                service_seconds=output.service_seconds,
                queue_seconds=output.queue_seconds,
                cost=cost_of(usage_of(output.trace).values()),
                try_number=output.try_number,
            )
        if self._selected[run.id]:
            have = {output.attempt for output in outputs}
            for attempt in range(1, run.header.attempts + 1):
                if attempt not in have:
                    yield Row(**about, attempt=attempt, status="pending")


# Rows as tables for people: examples with outputs, scores and reasons; comparisons with both outputs.

LONGEST_CELL = 300
MOST_SCORES = 4
"""Scores that are shown rather than the input where there is little room."""
LONGEST_VALUE = 2000


def row_tables(
    rows: Sequence[Row], specs: Iterable[EvaluatorSpec] = (), fields: Sequence[str] = ()
) -> list[Block]:
    """Rows as one table, and comparisons as another. `fields` are metadata fields to show as columns."""
    return _Tables(specs, fields).tables(rows)


class _Tables:
    """Rows as tables: those of single outputs, and those of comparisons."""

    def __init__(self, specs: Iterable[EvaluatorSpec], fields: Sequence[str]) -> None:
        self.specs = {spec.key: spec for spec in specs}
        self.fields = list(dict.fromkeys(fields))

    def tables(self, rows: Sequence[Row]) -> list[Block]:
        """Return the tables of some rows."""
        single = [row for row in rows if not row.others]
        pairs = [row for row in rows if row.others]
        blocks: list[Block] = [self._single(single)] if single else []
        return [*blocks, *([self._pairs(pairs)] if pairs else [])]

    def _single(self, rows: Sequence[Row]) -> Table:
        keys = list(dict.fromkeys(key for row in rows for key in row.results))
        several = {
            "run": len({row.run for row in rows}) > 1,
            "attempt": len({row.attempt for row in rows}) > 1,
            "unit": any(row.unit for row in rows),
            "expected": any(row.expected is not None for row in rows),
            "output": any(row.run for row in rows),
        }
        extra = [field for field in self.fields if any(field in row.metadata for row in rows)]
        whys = [_why(row) for row in rows]
        head = ["example", *(name for name in ("run", "attempt", "unit") if several[name]), *extra, "input"]
        head += [name for name in ("expected", "output") if several[name]]
        alone = not several["output"] and any(row.metadata for row in rows)  # the examples of a dataset
        head += [*keys, *(["why"] if any(whys) else []), *(["metadata"] if alone else [])]
        table = []
        for row, why in zip(rows, whys, strict=True):
            cells = {"run": row.run_label, "attempt": str(row.attempt), "unit": row.unit}
            line = [row.id, *(cells[name] for name in cells if several[name])]
            line += [value_text(row.metadata.get(field)) for field in extra]
            line.append(value_text(row.shown("input")))
            line += [_shown_value(row.shown("expected"))] if several["expected"] else []
            line += [_output(row)] if several["output"] else []
            line += [self._score(key, row.results.get(key)) for key in keys]
            table.append(
                [*line, *([why] if any(whys) else []), *([value_text(row.metadata)] if alone else [])]
            )
        place = {name: index for index, name in enumerate(head)}
        right = [place[key] for key in keys]
        unscored = [key for key in keys if all(_skipped_result(row.results.get(key)) for row in rows)]
        # Of many metrics the first ones stay, and those that were asked for.
        ranked = sorted((key for key in keys if key not in unscored), key=lambda key: key not in self.fields)
        few, others = ranked[:MOST_SCORES], ranked[MOST_SCORES:]
        order = (*unscored, "expected", *reversed(others), "input", *reversed(few[1:]))
        drop = [place[name] for name in order if name in place]
        return Table(head, table, right, cell=LONGEST_CELL, drop=drop)

    def _pairs(self, rows: Sequence[Row]) -> Table:
        """Comparisons: the outputs in the order in which they were shown, and the verdict."""
        head = ["example", "shown first", "shown second", "first output", "second output", "verdict", "why"]
        table = []
        for row in rows:
            [(key, judged)] = row.results.items()
            names = [row.run_label, *(other.run_label for other in row.others)]
            outputs = [_output(row), *(_output(other) for other in row.others)]
            verdict = value_text(judged.value) if judged.value is not None else self._score(key, judged)
            why = judged.comment or judged.error or ""
            first, *others = zip(names, outputs, strict=True)
            table.append(
                [
                    row.id,
                    first[0],
                    ", ".join(name for name, _ in others),
                    first[1],
                    " | ".join(output for _, output in others),
                    f"{key}: {verdict}",
                    why,
                ]
            )
        return Table(head, table, cell=LONGEST_CELL, drop=[3, 4])

    def _score(self, key: str, judged: Judged | None) -> str:
        if judged is None:
            return "—"
        if judged.status != "ok":
            return Styled(judged.status, "bad" if judged.status == "failed" else "warning")
        if judged.score is None:
            return value_text(judged.value)
        spec = self.specs.get(key)
        low, high = (spec.bounds if spec is not None and spec.bounds else None) or (0.0, 1.0)
        text = short_number(judged.score)
        if low is None or high is None or spec is None:
            return text
        good = judged.score >= (low + high) / 2
        return Styled(text, "good" if good == spec.higher_is_better else "bad")


def _output(row: Row) -> str:
    if row.status == "ok":
        return _shown_value(row.shown("output"))
    return Styled(row.status, "bad" if row.status == "failed" else "warning")


def _shown_value(value: Any) -> str:
    return steps_line(value) or value_text(value)


def _skipped_result(judged: Judged | None) -> bool:
    return judged is None or judged.status == "skipped"


def _why(row: Row) -> str:
    """The error of the output, else the reasons of the results."""
    if row.error and row.status == "failed":
        return row.error
    reasons = {key: judged.comment or judged.error or "" for key, judged in row.results.items()}
    given = {key: reason for key, reason in reasons.items() if reason}
    if not all(_skipped_result(judged) for judged in row.results.values()):
        given = {key: reason for key, reason in given.items() if not _skipped_result(row.results[key])}
    imperfect = {key: reason for key, reason in given.items() if row.results[key].score != 1.0}
    given = imperfect or given
    if len(reasons) == 1 or len(set(given.values())) == 1:
        return next(iter(given.values()), "")
    return "; ".join(f"{key}: {reason}" for key, reason in given.items())


def trajectory_of(value: Any) -> Trajectory | None:
    """A value as a trajectory with steps or calls; None where it is none."""
    from karat.traces import TraceError, normalize

    if not isinstance(value, (list, dict)) or not value:
        return None
    try:
        trajectory = normalize(value)
    except (TraceError, ValueError, RecursionError):
        return None
    return trajectory if trajectory.calls or len(trajectory.steps) > 1 else None


def steps_line(value: Any) -> str:
    """A trajectory in a line: `3 steps: search, open, answer`; empty where it is none."""
    trajectory = trajectory_of(value)
    if trajectory is None:
        return ""
    names = [call.name for call in trajectory.calls]
    shown = " → ".join(names[:6]) + (" → …" if len(names) > 6 else "")
    return f"{plural(len(trajectory.steps), 'step')}: {shown or trajectory.steps[-1].text}"


def value_text(value: Any) -> str:
    """Return a value as bounded text: text unchanged, empty for None, anything else as JSON."""
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return text[: LONGEST_VALUE - 1] + "…" if len(text) > LONGEST_VALUE else text
