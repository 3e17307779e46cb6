"""Rows as tables for people: examples with outputs, scores and reasons; comparisons with both outputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from karat.formatting import Block, Table, plural
from karat.layout import Styled
from karat.records import EvaluatorSpec
from karat.store.rows import Judged, Row

if TYPE_CHECKING:
    from karat.traces import Trajectory

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
        """The tables of some rows."""
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
            line += [value_text(row.shown("expected"))] if several["expected"] else []
            line += [_output(row)] if several["output"] else []
            line += [self._score(key, row.results.get(key)) for key in keys]
            table.append(
                [*line, *([why] if any(whys) else []), *([value_text(row.metadata)] if alone else [])]
            )
        place = {name: index for index, name in enumerate(head)}
        right = [place[key] for key in keys]
        unscored = [key for key in keys if all(_skipped(row.results.get(key)) for row in rows)]
        # Of many metrics the first ones stay, and those that were asked for.
        ranked = sorted((key for key in keys if key not in unscored), key=lambda key: key not in self.fields)
        few, others = ranked[:MOST_SCORES], ranked[MOST_SCORES:]
        order = (*unscored, "expected", *reversed(others), "input", "attempt", *reversed(few[1:]))
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
        text = f"{judged.score:.3g}"
        if low is None or high is None or spec is None:
            return text
        good = judged.score >= (low + high) / 2
        return Styled(text, "good" if good == spec.higher_is_better else "bad")


def _output(row: Row) -> str:
    if row.status == "ok":
        shown = row.shown("output")
        return steps_line(shown) or value_text(shown)
    return Styled(row.status, "bad" if row.status == "failed" else "warning")


def _skipped(judged: Judged | None) -> bool:
    return judged is None or judged.status == "skipped"


def _why(row: Row) -> str:
    """The error of the output, else the reasons of the results."""
    if row.error and row.status == "failed":
        return row.error
    reasons = {key: judged.comment or judged.error or "" for key, judged in row.results.items()}
    given = {key: reason for key, reason in reasons.items() if reason}
    if not all(_skipped(judged) for judged in row.results.values()):
        given = {key: reason for key, reason in given.items() if not _skipped(row.results[key])}
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
