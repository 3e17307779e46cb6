"""The HTML report: one file with everything about some runs, plots included. No script, no request, made to print."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

import karat
from karat.analysis.comparison import (
    ChangedExample,
    Comparison,
    Difference,
    ExampleChanges,
    compare_runs,
    correction_text,
    leader_sentence,
)
from karat.analysis.judges.agreement import Calibration, JudgeAgreement, alignment, calibrations
from karat.analysis.outcomes import seconds_text
from karat.analysis.ranking import Ranking
from karat.analysis.scores import THRESHOLD, Source, sources_of
from karat.analysis.summary import Metric, RunSummary, Summary
from karat.analysis.text_diff import Piece, excerpt, word_diff
from karat.errors import RequestError, plural
from karat.formatting import (
    Child,
    Markup,
    counts_text,
    direction_arrow,
    element,
    enumerated,
    estimate_sentence,
    interval,
    join,
    notes_text,
    number,
    percent,
    probability,
    short_number,
)
from karat.records import (
    HUMAN,
    AggregateTable,
    Estimate,
    UsualMetric,
    group_text,
    interval_text,
    missing_span,
    missing_text,
)
from karat.reporting import marks
from karat.reporting.marks import HALF, WIDE, Plot, PlotRow, Point, direction_of
from karat.serialization import prepared
from karat.store import Store

MOST_METRICS = 5
"""Metrics in the table of runs and in the conclusion; the plots have all."""
METRICS_ABREAST = 3
"""Metrics beside each other in a table of runs."""
MOST_EXAMPLES = 12
"""Changed examples that are shown."""
MOST_ROWS = 40
"""Rows of a plot of slices."""
MOST_PLOTS = 4
"""Plots of slices, and confusion matrices."""
MOST_SLICES = 8
"""Plots of slices: of metrics and fields."""
MOST_SLICED = 100_000
"""Examples of a dataset whose metadata is read for default slices."""
MOST_VALUES, MOST_FIELDS = 8, 2
"""Values of a field of the metadata that becomes slices, and such fields."""
MOST_CLASSES = 20
MOST_KINDS = 15
LONGEST = 400
"""Characters of a setting, an input or an output."""
MOST_SLICE_ROWS = 160
"""Rows of all plots of slices together."""
WITH_MISSING = "with the missing"
"""The heading of the span of values that missing items leave open."""
MOST_NAMED, LONGEST_NAME = 4, 25
"""Runs that plots and tables call by their whole labels, and the characters of a label where there are more runs: a
narrow plot has room for no more, and a report on ten runs repeats each label more than a hundred times."""


class Content(msgspec.Struct, frozen=True):
    """The content of a report beside its summary."""

    summary: Summary
    comparisons: list[Comparison] = []
    rankings: list[Ranking] = []
    calibrations: list[Calibration] = []
    agreements: list[JudgeAgreement] = []
    slices: list[Estimate] = []
    """Means by the metadata, where nothing has aggregated by it."""
    notes: list[str] = []
    confidence: float = 0.95


def html_report(store: Store, summary: Summary, confidence: float = 0.95) -> str:
    """The report on what a summary is about."""
    return write_report(gather(store, summary, confidence))


def gather(store: Store, summary: Summary, confidence: float) -> Content:
    """Read what a report needs beside the summary: paired differences, and what people say of judges."""
    comparisons = [
        msgspec.convert(table.value, prepared(Comparison))
        for table in summary.tables
        if _kind(table) == "comparison"
    ]
    rankings = [
        msgspec.convert(table.value, prepared(Ranking))
        for table in summary.tables
        if _kind(table) == "ranking"
    ]
    notes = list(summary.notes)
    if len(summary.runs) > 1 and not comparisons and not rankings:
        try:
            comparisons = _compare_runs(store, summary, confidence)
        except RequestError as error:
            notes.append(f"The runs could not be compared pair by pair: {error}")
    found: list[Calibration] = []
    agreements: list[JudgeAgreement] = []
    for each in summary.evaluations:
        evaluation = store.evaluations.get(each["id"])
        new = calibrations(evaluation, confidence)
        found += new
        if new:
            agreements += alignment(evaluation, confidence=confidence, keep=False)
    slices = [] if any(each.estimate.group for each in summary.metrics) else _sliced(store, summary)
    return Content(summary, comparisons, rankings, found, agreements, slices, notes, confidence)


def _sliced(store: Store, summary: Summary) -> list[Estimate]:
    """The first score that all runs have, by the metadata fields with few values."""
    runs = [store.runs.get(run.id) for run in summary.runs]
    sources = sources_of(runs, [store.evaluations.get(each["id"]) for each in summary.evaluations])
    key = next(
        (
            key
            for key, by_run in sources.items()
            if len(by_run) == len(runs) and all(each.spec.name != HUMAN for each in by_run.values())
        ),
        None,
    )
    if key is None or any(len(run.dataset) > MOST_SLICED for run in runs):
        return []
    from karat.analysis.tables import RunTable, metadata_slices  # NumPy is not loaded before it is needed

    tables = [RunTable(run, {key: sources[key][run.id]}) for run in runs]
    form = _shown_metric(summary, key, sources)
    return [each for table in tables for each in metadata_slices(table, key, MOST_VALUES, MOST_FIELDS, form)]


def _compare_runs(store: Store, summary: Summary, confidence: float) -> list[Comparison]:
    """Compare the runs with the first run by the evaluators that judged all runs, without human labels."""
    runs = [store.runs.get(run.id) for run in summary.runs]
    sources = sources_of(runs, [store.evaluations.get(each["id"]) for each in summary.evaluations])
    keys = [
        key
        for key, by_run in sources.items()
        if len(by_run) == len(runs) and all(source.spec.name != HUMAN for source in by_run.values())
    ]
    if not keys:
        return []
    names = [f"{key} {_shown_metric(summary, key, sources)}" for key in keys]
    made = compare_runs(store, runs, metrics=names, examples=MOST_EXAMPLES, confidence=confidence, keep=False)
    return [made]


def _shown_metric(summary: Summary, key: str, sources: dict[str, dict[str, Source]]) -> UsualMetric:
    """Return the metric that compares runs: the evaluator's usual one, or another if the report shows only that."""
    shown = {
        each.estimate.aggregator
        for each in summary.metrics
        if each.estimate.evaluator == key and each.estimate.metadata.get("threshold", THRESHOLD) == THRESHOLD
    }
    usual = next(iter(sources[key].values())).spec.usual_metric
    other: UsualMetric = "mean" if usual == "accuracy" else "accuracy"
    return other if usual not in shown and other in shown else usual


def _kind(table: AggregateTable) -> str:
    return str(table.value.get("kind", "")) if isinstance(table.value, dict) else ""


def write_report(content: Content) -> str:
    """Write the HTML document."""
    return _Report(content).document()


class _Report:
    """A report in progress: its sections, and the number of the next plot."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.summary = content.summary
        self.labels = {run.id: run.label for run in self.summary.runs}
        for comparison in content.comparisons:
            self.labels |= {run.id: run.label for run in comparison.runs if run.id not in self.labels}
        self.names = short_names(self.labels)
        self.lower = self.summary.lower_is_better
        self.whole = _without_repetitions(self.summary.metrics)
        self.headlines = _headlines(self.summary, self.whole)
        self.main = [m for i, m in enumerate(self.headlines) if _first_of_evaluator(self.headlines, i)]
        self.plots = 0
        self.sections: list[tuple[str, str, Markup]] = []

    # ------------------------------------------------------------ the document

    def document(self) -> str:
        self._add("runs", "Runs", self._runs())
        self._add("metrics", "Estimates", self._metrics())
        self._add("differences", "Paired differences", self._differences())
        self._add("changes", "Changed examples", self._changes())
        self._add("ranking", "Ranking", self._rankings())
        self._add("slices", "Slices", self._slices())
        self._add("confusion", "Confusion", self._confusion())
        self._add("cost", "Cost, time and quality", self._cost())
        self._add("judges", "Judges against people", self._judges())
        self._add("failures", "Failures", self._failures())
        self._add("made-with", "Made with", self._made_with())
        style = Markup(_style())
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        title = self._title()
        nav = [element("a", name, href=f"#{id}") for id, name, _ in self.sections]
        body = [element("section", element("h2", name), part, id=id) for id, name, part in self.sections]
        return (
            "<!doctype html>\n"
            + element(
                "html",
                element(
                    "head",
                    element("meta", charset="utf-8"),
                    element(
                        "meta",
                        http_equiv="Content-Security-Policy",
                        content=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
                    ),
                    element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                    element("meta", name="referrer", content="no-referrer"),
                    element("meta", name="generator", content=f"karat {karat.__version__}"),
                    element("title", title),
                    element("style", style),
                ),
                element(
                    "body",
                    element(
                        "header",
                        element("h1", title),
                        element("p", self._subtitle(), class_="muted"),
                        self._conclusion(),
                        self._tiles(),
                        element("nav", *nav, aria_label="Sections"),
                    ),
                    element("main", *body),
                    self._footer(),
                ),
                lang="en",
            )
            + "\n"
        )

    def _add(self, id: str, name: str, part: Markup | None) -> None:
        if part:
            self.sections.append((id, name, part))

    def _title(self) -> str:
        tasks = list(dict.fromkeys(run.task for run in self.summary.runs))
        data = list(dict.fromkeys(run.dataset for run in self.summary.runs))
        return _cut(f"{', '.join(tasks)} on {', '.join(data)}", 160)

    def _subtitle(self) -> str:
        runs = self.summary.runs
        made = sorted({time.strftime("%Y-%m-%d", time.gmtime(run.created)) for run in runs})
        days = made[0] if len(made) == 1 else f"{made[0]} to {made[-1]}"
        examples = max((run.examples for run in runs), default=0)
        return (
            f"{plural(len(runs), 'run')} · {plural(examples, 'example')} · {days} · karat {karat.__version__}"
        )

    def _footer(self) -> Markup:
        ids = " ".join(run.id for run in self.summary.runs)
        return element(
            "footer",
            element(
                "p",
                f"Intervals are at {percent(self.content.confidence)} unless a row says otherwise. n is the number of "
                "items with a score, of all that should have one; a dashed line spans the values that are "
                "possible with the missing items. A failed or pending item is never left out of a denominator.",
            ),
            element("p", "The same numbers as data: ", element("code", f"karat report {ids} -o report.json")),
        )

    # ------------------------------------------------------------ the conclusion

    def _conclusion(self) -> Markup:
        sentences = self._sentences()
        first, rest = sentences[0], sentences[1:]
        items = element("ul", *(element("li", each) for each in rest)) if rest else None
        return element("div", element("h2", "Conclusion"), element("p", first), items, class_="conclusion")

    def _sentences(self) -> list[str]:
        sentences: list[str] = []
        for comparison in self.content.comparisons:
            sentences += [*_compared_sentences(comparison, self.labels, self.whole), *comparison.warnings]
            if comparison.verdict is not None:
                sentences.insert(0, f"The gate {_GATE[comparison.verdict]}.")
        for ranking in self.content.rankings:
            sentences += ranking.conclusions
        if not sentences:
            for metric in self.main[:MOST_METRICS]:
                sentences += [
                    _estimate_sentence(each, self.labels)
                    for each in self.whole
                    if each.identity == metric.identity
                ]
        if not sentences:
            sentences.append(self.summary.next_step)
        for name in ("failed", "pending"):
            those = [run for run in self.summary.runs if getattr(run.counts, name)]
            if those:
                named = [
                    f"{run.label} {getattr(run.counts, name):,} of {run.counts.total:,}" for run in those
                ]
                sentences.append(f"Items that {_LOST[name]} count as missing: {enumerated(named)}.")
        return sentences + self.content.notes

    def _tiles(self) -> Markup | None:
        """The headline numbers, where there is one run; several are in the table of runs."""
        if len(self.summary.runs) != 1:
            return None
        run = self.summary.runs[0]
        tiles = []
        for metric in self.main[:3]:
            each = metric.estimate
            note = f"{interval_text(each, marks.digits_of(each))} · {_of(each)}".removeprefix(" · ")
            tiles.append((each.label + direction_arrow(each, self.lower), _value(each), note))
        counts = run.counts
        tiles.append(("items", f"{counts.total:,}", counts_text(counts).partition(": ")[2]))
        cost = _run_cost(run)
        if run.usage:
            tokens = sum(u.input_tokens + u.output_tokens for u in run.usage.values())
            tiles.append(("cost", "unknown" if cost is None else f"${cost:.4f}", f"{tokens:,} tokens"))
        if run.service_seconds:
            p95 = seconds_text(run.service_seconds["p95"])
            tiles.append(
                ("median seconds per output", seconds_text(run.service_seconds["median"]), f"p95 {p95}")
            )
        return element(
            "ul",
            *(
                element(
                    "li",
                    element("span", name, class_="name"),
                    element("span", value, class_="value"),
                    element("span", note, class_="note"),
                )
                for name, value, note in tiles
            ),
            class_="tiles",
        )

    # ------------------------------------------------------------ sections

    def _runs(self) -> Markup:
        runs, columns = self.summary.runs, self.main[:MOST_METRICS]
        # A table that is wider than a page would be cut off in print.
        tables = [
            columns[start : start + METRICS_ABREAST] for start in range(0, len(columns), METRICS_ABREAST)
        ]
        parts: list[Child] = [
            self._runs_table(some, first=place == 0, last=place >= len(tables) - 1)
            for place, some in enumerate(tables or [[]])
        ]
        if len(runs) > 1 and columns:
            parts.append(
                element(
                    "p",
                    "★ the best value in its column. Whether a difference could be chance is under Paired differences.",
                    class_="muted",
                )
            )
        parts += [element("p", f"{run.label}: {run.description}") for run in runs if run.description]
        return join(*parts)

    def _runs_table(self, columns: Sequence[Metric], *, first: bool, last: bool) -> Markup:
        """The runs by some metrics; the first table has their items, the last one their cost and time."""
        runs = self.summary.runs
        best = {metric.identity: _best(self._estimates(metric), self.lower) for metric in columns}
        head = ["run", *(["items"] if first else [])]
        right = len(head)
        head += [m.estimate.label + direction_arrow(m.estimate, self.lower) for m in columns]
        priced = last and any(run.usage for run in runs)
        timed = last and any(run.service_seconds for run in runs)
        head += [*(["cost"] if priced else []), *(["seconds, median"] if timed else [])]
        rows: list[list[Child]] = []
        for run in runs:
            name = self.names[run.id]
            whole = _sub(run.label) if name != run.label else None
            cells: list[Child] = [join(element("strong", name), whole, _sub(run.id))]
            if first:
                cells.append(join(run.status, _sub(counts_text(run.counts))))
            for metric in columns:
                each = self._estimates(metric).get(run.id)
                if each is None:
                    cells.append("—")
                    continue
                leads = len(runs) > 1 and run.id in best[metric.identity]
                cells.append(
                    join(_value(each) + (" ★" if leads else ""), _sub(_interval(each)), _sub(_of(each)))
                )
            if priced:
                cost = _run_cost(run)
                cells.append(
                    "unknown" if run.usage and cost is None else f"${cost or 0:.4f}" if run.usage else "—"
                )
            if timed:
                cells.append(seconds_text(run.service_seconds["median"]) if run.service_seconds else "—")
            rows.append(cells)
        return _table(head, rows, right=range(right, len(head)))

    def _estimates(self, metric: Metric) -> dict[str, Estimate]:
        """The estimate of each run by one metric."""
        return {
            m.estimate.run: m.estimate
            for m in self.whole
            if m.identity == metric.identity and m.estimate.run is not None
        }

    def _metrics(self) -> Markup | None:
        identities = dict.fromkeys(metric.identity for metric in self.whole)
        if not identities:
            return None
        by_identity = {id: [m.estimate for m in self.whole if m.identity == id] for id in identities}
        plots: list[Plot] = []
        if len(self.summary.runs) == 1:
            for family in _families([each[0] for each in by_identity.values()]):
                rows = [PlotRow(e.label + direction_arrow(e, self.lower), e, about=_about(e)) for e in family]
                plots.append(marks.forest("Estimates with their intervals", rows))
        else:
            for estimates in by_identity.values():
                first = estimates[0]
                best = _best({e.run or "": e for e in estimates}, self.lower)
                rows = [
                    PlotRow(
                        self.names.get(e.run or "", e.run or "all runs")
                        + (" ★" if e.run in best and len(best) < len(estimates) else ""),
                        e,
                        bold=e.run in best,
                        about=_about(e),
                    )
                    for e in estimates
                ]
                narrow = len(by_identity) > 1
                title = first.label + direction_arrow(first, self.lower)
                plots.append(marks.forest(title, rows, width=HALF if narrow else WIDE, notes=not narrow))
        return join(
            self._figures(plots), self._estimate_table([e for each in by_identity.values() for e in each])
        )

    def _estimate_table(self, estimates: Sequence[Estimate]) -> Markup:
        several = len(self.summary.runs) > 1
        head = ["metric", *(["run"] if several else []), "value", "interval", "n"]
        head += [WITH_MISSING, "method", "notes"]
        rows: list[list[Child]] = [
            [
                e.label,
                *([self.names.get(e.run or "", e.run or "")] if several else []),
                _value(e),
                _interval(e) or "—",
                _of(e),
                missing_span(e),
                e.method,
                notes_text(e),
            ]
            for e in estimates
        ]
        _drop_empty(head, rows)
        table = _table(head, rows, grouped=several)
        return element("details", element("summary", "The numbers as a table"), table)

    def _differences(self) -> Markup | None:
        parts: list[Child] = []
        for comparison in self.content.comparisons:
            baseline = comparison.runs[0].label
            parts.append(
                element(
                    "p",
                    f"Each run against the baseline {baseline}, paired by example; to the right is better. ▲ better "
                    f"and ▼ worse after Holm's correction for {plural(len(comparison.differences), 'comparison')},"
                    " ○ no difference found.",
                )
            )
            by_metric: dict[str, list[Difference]] = {}
            for each in comparison.differences:
                by_metric.setdefault(each.metric, []).append(each)
            plots = []
            if len(comparison.runs) == 2:
                for family in _families(comparison.differences, lambda each: each.improvement):
                    title = f"{comparison.runs[1].label} against {baseline}"
                    plots.append(
                        marks.differences(title, family, self.labels, comparison.confidence, by_metric=True)
                    )
            else:
                width = HALF if len(by_metric) > 1 else WIDE
                for metric, found in by_metric.items():
                    plots.append(
                        marks.differences(
                            metric, found, self.names, comparison.confidence, by_metric=False, width=width
                        )
                    )
            parts += [self._figures(plots), self._difference_table(comparison), self._gates(comparison)]
        return join(*parts) if parts else None

    def _difference_table(self, comparison: Comparison) -> Markup:
        head = ["metric", "run", "baseline's", "run's", "better by", "interval", "p (Holm)"]
        head += ["better / worse / same", "smallest effect", "n", WITH_MISSING, "note"]
        rows: list[list[Child]] = []
        for each in comparison.differences:
            better, compared = each.improvement, each.compared
            rows.append(
                [
                    each.metric,
                    self.names[each.run],
                    number(compared.first.value),
                    number(compared.second.value),
                    "—" if better.value is None else f"{better.value:+.3f}",
                    interval(better.low, better.high, signed=True),
                    probability(each.adjusted_p_value),
                    f"{compared.wins:,} / {compared.losses:,} / {compared.ties:,}",
                    number(compared.smallest_effect),
                    _of(better),
                    missing_span(better, signed=True),
                    each.note,
                ]
            )
        _drop_empty(head, rows)
        tests = ", ".join(dict.fromkeys(each.compared.test.method for each in comparison.differences))
        methods = ", ".join(dict.fromkeys(each.compared.difference.method for each in comparison.differences))
        return element(
            "details",
            element("summary", "The numbers as a table"),
            _table(head, rows, right=(2, 3, 4, 6), grouped=len(comparison.runs) > 2),
            element(
                "p", f"Intervals: {methods}; tests: {tests}.{correction_text(comparison)}", class_="muted"
            ),
        )

    def _gates(self, comparison: Comparison) -> Markup | None:
        if not comparison.gates:
            return None
        rows: list[list[Child]] = [
            [
                gate.metric,
                self.labels[gate.run],
                f"{gate.margin:g}",
                element("strong", gate.verdict),
                gate.reason,
            ]
            for gate in comparison.gates
        ]
        head = ["metric", "run", "may be worse by", "verdict", "why"]
        return join(element("h3", f"Gate: {comparison.verdict}"), _table(head, rows, right=(2,)))

    def _changes(self) -> Markup | None:
        """The examples that changed most, both ways, as evenly over metrics and runs as there is room."""
        parts: list[Child] = []
        for comparison in self.content.comparisons:
            groups: dict[tuple[str, str], list[list[ChangedExample]]] = {}
            for side, found in enumerate((comparison.worse, comparison.better)):
                for each in found:
                    groups.setdefault((each.metric, each.run), [[], []])[side].append(each)
            each_side = max(1, MOST_EXAMPLES // max(1, 2 * len(groups)))
            left = MOST_EXAMPLES
            for (metric, run), sides in groups.items():
                shown = [side[: min(each_side, left)] for side in sides]
                left -= sum(map(len, shown))
                if not any(shown):
                    break
                baseline = (sides[0] or sides[1])[0].baseline
                counts = _changed_counts(comparison, metric, run)
                parts.append(element("h3", f"{metric}: {self.labels[run]} against {self.labels[baseline]}"))
                words = f"Worse: {len(shown[0])} of {counts.worse:,}. Better: {len(shown[1])} of {counts.better:,}."
                parts.append(
                    element(
                        "p", f"{words} {counts.same:,} the same, {counts.missing:,} missing.", class_="muted"
                    )
                )
                parts += [self._change(each, "worse") for each in shown[0]]
                parts += [self._change(each, "better") for each in shown[1]]
        return join(*parts) if parts else None

    def _change(self, each: ChangedExample, direction: str) -> Markup:
        pieces = excerpt(word_diff(each.first_output, each.second_output), longest=2 * LONGEST)
        fields: list[tuple[str, Child]] = [("input", _cut(each.input, LONGEST))]
        if each.expected:
            fields.append(("expected", _cut(each.expected, LONGEST)))
        fields.append((_cut(self.labels[each.baseline], 40), _side(pieces, "removed")))
        fields.append((_cut(self.labels[each.run], 40), _side(pieces, "added")))
        if each.calls:
            fields.append(("tool calls", _cut(each.calls, LONGEST)))
        sign, tone = marks.FOUND[direction]
        title = join(
            element("span", f"{sign} {direction} ", class_=f"{tone} badge"),
            each.example,
            element(
                "span",
                f" · score {short_number(each.first)} → {short_number(each.second)}"
                + (f", means of {each.attempts} attempts; the first is shown" if each.attempts > 1 else ""),
                class_="muted",
            ),
        )
        return element(
            "div",
            element("h4", title),
            element("dl", *(join(element("dt", name), element("dd", value)) for name, value in fields)),
            class_="example",
        )

    def _rankings(self) -> Markup | None:
        parts: list[Child] = []
        for ranking in self.content.rankings:
            rows = [
                PlotRow(
                    f"{place.rank}. {place.label}",
                    place.rating,
                    note=f"rank {place.rank_low}–{place.rank_high} · {place.wins:,} won, {place.losses:,} lost,"
                    f" {place.ties:,} tied",
                    about={"run": place.run, "evaluator": ranking.source},
                )
                for place in ranking.places
            ]
            parts.append(self._figures([marks.forest(f"Ratings by {ranking.source}", rows)]))
            names = [f"{place.rank}. {place.label}" for place in ranking.places]
            if ranking.win_probability and len(names) <= MOST_CLASSES:
                cells: list[list[Child]] = [
                    [element("strong", name), *("—" if p is None else f"{p:.2f}" for p in row)]
                    for name, row in zip(names, ranking.win_probability, strict=True)
                ]
                head = ["wins against →", *(str(place.rank) for place in ranking.places)]
                parts += [
                    element("h3", "Probability of winning"),
                    _table(head, cells, right=range(1, len(head))),
                ]
        for table in self.summary.tables:
            value = table.value
            if (
                isinstance(value, dict)
                and "runs" in value
                and "win_probability" in value
                and not _kind(table)
            ):
                rows = [
                    PlotRow(
                        f"{run['rank']}. {self.labels.get(run['name'], run['name'])}",
                        msgspec.convert(run["rating"], prepared(Estimate)),
                        note=f"rank {run['rank_low']}–{run['rank_high']} · {run['wins']:,} won, {run['losses']:,} lost,"
                        f" {run['ties']:,} tied",
                        about={"run": run["name"], "evaluator": table.evaluator},
                    )
                    for run in value["runs"]
                ]
                parts.append(self._figures([marks.forest(f"Ratings: {table.label}", rows)]))
        return join(*parts) if parts else None

    def _slices(self) -> Markup | None:
        plots, left_out = slice_plots(self.summary, self.names, self.content.slices)
        if not plots:
            return None
        note = f"{left_out:,} more estimates of slices are in the JSON report." if left_out else ""
        return join(self._figures(plots), element("p", note, class_="muted") if note else None)

    def _confusion(self) -> Markup | None:
        plots, notes = confusion_plots(self.summary, self.names)
        if not plots and not notes:
            return None
        return join(
            element("p", "Shading is the share of the expected class; the underlined diagonal is right."),
            self._figures(plots, pair=True),
            *(element("p", note, class_="muted") for note in notes),
        )

    def _cost(self) -> Markup | None:
        parts: list[Child] = [self._figures(cost_plots(self.summary, self.names, self.headlines))]
        rows: list[list[Child]] = [
            [run.label, model, *_usage(msgspec.to_builtins(usage))]
            for run in self.summary.runs
            for model, usage in run.usage.items()
        ]
        for each in self.summary.evaluations:
            rows += [
                [f"judging, {each['id']}", model, *_usage(usage)] for model, usage in each["usage"].items()
            ]
        if rows:
            head = ["run", "model", "calls", "cached", "tokens in", "tokens out", "cost"]
            parts.append(_table(head, rows, right=range(2, 7)))
        times: list[list[Child]] = [
            [
                run.label,
                *(seconds_text(run.service_seconds[name]) for name in ("mean", "median", "p95", "max")),
                *(seconds_text(run.queue_seconds[name]) for name in ("median", "p95")),
            ]
            for run in self.summary.runs
            if run.service_seconds
        ]
        if times:
            head = [
                "seconds for an output",
                "mean",
                "median",
                "p95",
                "max",
                "waiting, median",
                "waiting, p95",
            ]
            parts.append(_table(head, times, right=range(1, 7)))
        return join(*parts) if rows or times else None

    def _judges(self) -> Markup | None:
        if not self.content.calibrations:
            return None
        plots = [
            marks.calibration(
                f"{each.evaluator}: {plural(each.n, 'label')} by {', '.join(each.annotators)}",
                each.bins,
                {"evaluator": each.evaluator, "evaluation": each.evaluation},
            )
            for each in self.content.calibrations
        ]
        head = [
            "evaluator",
            "labels",
            "agreement",
            "kappa",
            "passes what people pass",
            "fails what people fail",
        ]
        head += ["rate above people's"]
        rows: list[list[Child]] = [
            [
                join(each.evaluator + (f", {each.part}" if each.part else "")),
                f"{each.n:,} {each.labels}",
                *(
                    "—" if e is None else join(_value(e), _sub(_interval(e)))
                    for e in (each.agreement, each.kappa, each.sensitivity, each.specificity)
                ),
                join(
                    "—" if each.bias.value is None else f"{each.bias.value:+.3f}",
                    _sub(interval(each.bias.low, each.bias.high, signed=True)),
                ),
            ]
            for each in self.content.agreements
        ]
        return join(
            element(
                "p",
                "What people say of the same outputs, over the judge's score. On the dashed diagonal, the judge agrees "
                "with people.",
            ),
            self._figures(plots, pair=True),
            _table(head, rows) if rows else None,
        )

    def _failures(self) -> Markup | None:
        kinds = self.summary.failures
        if not kinds:
            return None
        shown = sorted(kinds, key=lambda kind: -kind.count)[:MOST_KINDS]
        rows: list[list[Child]] = []
        for kind in shown:
            first = kind.examples[0] if kind.examples else {}
            others = kind.further()
            rows.append(
                [
                    element("strong", kind.type),
                    f"{kind.what}, {self.labels.get(kind.where, kind.where)}",
                    f"{kind.count:,}",
                    join(
                        _cut(first.get("example", ""), 80),
                        _sub(f"also {_cut(others, 120)}" if others else ""),
                    ),
                    _cut(first.get("message", ""), LONGEST),
                ]
            )
        more = len(kinds) - len(shown)
        return join(
            self._figures([marks.failures("Failures by kind", shown, self.names)]),
            _table(["kind", "where", "count", "example", "message"], rows, right=(2,)),
            element("p", f"{plural(more, 'more kind')} in the JSON report.", class_="muted")
            if more > 0
            else None,
        )

    def _made_with(self) -> Markup:
        parts: list[Child] = [self._what_differs(comparison) for comparison in self.content.comparisons]
        for title, facts in (
            ("Settings", [run.settings for run in self.summary.runs]),
            ("Environment", [{k: v for k, v in run.environment.items() if v} for run in self.summary.runs]),
        ):
            names = list(dict.fromkeys(name for each in facts for name in each))
            same = [name for name in names if len({_json(each.get(name)) for each in facts}) == 1]
            differ = [name for name in names if name not in same]
            if differ and not self.content.comparisons:
                rows: list[list[Child]] = [
                    [
                        element("strong", run.label),
                        *(_cut(_shown(each[name]), LONGEST) if name in each else "—" for name in differ),
                    ]
                    for run, each in zip(self.summary.runs, facts, strict=True)
                ]
                parts += [element("h3", f"{title} that differ"), _table(["run", *differ], rows)]
            if same:
                shared: list[list[Child]] = [
                    [element("strong", name), _cut(_shown(facts[0][name]), LONGEST)] for name in same
                ]
                both = " shared by all runs" if len(facts) > 1 else ""
                parts += [element("h3", f"{title}{both}"), _table(["name", "value"], shared)]
        rows = []
        for run in self.summary.runs:
            made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.created))
            rows.append([element("strong", run.label), element("code", run.id), run.task, run.dataset, made])
        parts += [element("h3", "Runs"), _table(["run", "id", "task", "dataset", "made"], rows)]
        judged: list[list[Child]] = [
            [element("strong", spec["key"]), spec["name"], _cut(_shown(spec["params"]), LONGEST), each["id"]]
            for each in self.summary.evaluations
            for spec in each["evaluators"]
        ]
        if judged:
            head = ["evaluator", "name", "parameters", "evaluation"]
            parts += [element("h3", "Evaluators"), _table(head, judged)]
        return join(*parts)

    def _what_differs(self, comparison: Comparison) -> Markup | None:
        if not comparison.differs:
            return element("p", "No recorded setting differs between the runs: they are replicates.")
        rows: list[list[Child]] = []
        for run, values in zip(
            comparison.runs, zip(*(each.values for each in comparison.differs), strict=True), strict=True
        ):
            rows.append(
                [element("strong", run.label), *("—" if v is None else _cut(v, LONGEST) for v in values)]
            )
        return join(
            element("h3", "What differs"), _table(["run", *(each.name for each in comparison.differs)], rows)
        )

    # ------------------------------------------------------------ figures

    def _figures(self, plots: Iterable[Plot], *, pair: bool = False) -> Markup:
        out, narrow = [], pair
        for plot in plots:
            self.plots += 1
            narrow = narrow or plot.width <= HALF
            drawn = Markup(marks.svg(plot, f"plot-{self.plots}"))
            out.append(element("figure", element("figcaption", plot.title), drawn))
        return element("div", *out, class_="pair" if narrow and len(out) > 1 else None)


# ---------------------------------------------------------------- plots that the viewer shows too


def slice_plots(
    summary: Summary, labels: Mapping[str, str], more: Sequence[Estimate] = ()
) -> tuple[list[Plot], int]:
    """The estimates of groups, a plot for each metric and field, and how many estimates were left out.

    A field whose values are whole numbers (a distance, a count) is an axis, and every run a line over it.
    """
    grouped: dict[tuple[str, str, tuple[str, ...]], list[Estimate]] = {}
    for each in [*(metric.estimate for metric in summary.metrics), *more]:
        if each.group:
            grouped.setdefault((each.evaluator, each.metric, tuple(each.group)), []).append(each)
    plots, left_out, room = [], 0, MOST_SLICE_ROWS
    for place, ((evaluator, metric_name, fields), estimates) in enumerate(grouped.items()):
        if place >= MOST_SLICES:
            left_out += len(estimates)
            continue
        title = f"{evaluator} {metric_name}".strip() + direction_arrow(estimates[0], summary.lower_is_better)
        if len(grouped) > 1:
            title += f" by {', '.join(fields)}"
        by_group: dict[str, list[Estimate]] = {}
        for each in estimates:
            by_group.setdefault(group_text(each.group), []).append(each)
        if len(fields) == 1 and len(by_group) > 1 and all(_is_count(e.group or {}) for e in estimates):
            plots.append(_line_plot(title, fields[0], estimates, labels))
            continue
        several = len({each.run for each in estimates}) > 1
        rows: list[PlotRow] = []
        shown = 0
        for group, found in by_group.items():
            if len(rows) + len(found) > min(MOST_ROWS, room):
                break
            shown += len(found)
            if several:
                rows.append(PlotRow(group))
                rows += [PlotRow(labels.get(e.run or "", e.run or ""), e, about=_about(e)) for e in found]
            else:
                rows += [PlotRow(group, e, about=_about(e)) for e in found]
        left_out += len(estimates) - shown
        room -= len(rows)
        if rows:
            plots.append(marks.forest(title, rows))
    return plots, left_out


def _is_count(group: Mapping[str, str]) -> bool:
    return all(value.isascii() and value.isdigit() and len(value) < 10 for value in group.values())


def _line_plot(title: str, field: str, estimates: Sequence[Estimate], labels: Mapping[str, str]) -> Plot:
    runs: dict[str, list[Point]] = {}
    for each in estimates:
        label = labels.get(each.run or "", each.run or "")
        point = Point(label, float((each.group or {})[field]), each, _about(each))
        runs.setdefault(each.run or "", []).append(point)
    return marks.lines(title, list(runs.values()), field)


def confusion_plots(summary: Summary, labels: Mapping[str, str]) -> tuple[list[Plot], list[str]]:
    """The confusion matrices, and notes on those that are too large."""
    plots: list[Plot] = []
    notes: list[str] = []
    for table in summary.tables:
        value = table.value
        known = table.run is None or table.run in labels
        if not (known and isinstance(value, dict) and "labels" in value and "matrix" in value):
            continue
        run = labels.get(table.run or "", "") if len(summary.runs) > 1 else ""
        title = f"{table.label}, {run}" if run else table.label
        if len(value["labels"]) > MOST_CLASSES:
            notes.append(f"{title}: {len(value['labels']):,} classes; the JSON report has the whole matrix.")
        elif len(plots) >= MOST_PLOTS:
            notes.append(f"{title}: in the JSON report.")
        else:
            about = {"evaluator": table.evaluator, **({"run": table.run} if table.run else {})}
            plots.append(
                marks.confusion(title, [str(name) for name in value["labels"]], value["matrix"], about)
            )
    return plots, notes


def cost_plots(summary: Summary, labels: Mapping[str, str], headlines: Sequence[Metric]) -> list[Plot]:
    """Quality over cost and over time, of the first metric that all runs have."""
    if not headlines or len(summary.runs) < 2:
        return []
    metric = headlines[0]
    found = {m.estimate.run: m.estimate for m in summary.metrics if m.identity == metric.identity}
    evaluator = metric.estimate.evaluator
    lower = metric.estimate.better(summary.lower_is_better) == "lower"
    y_label = f"{metric.estimate.label}, {'lower' if lower else 'higher'} is better; {marks.FRONTIER}"
    plots = []
    for name, x_label, value in (
        ("cost", "dollars for the run", _run_cost),
        ("time", "median seconds for an output", lambda run: run.service_seconds.get("median")),
    ):
        points = [
            Point(labels[run.id], x, found[run.id], {"run": run.id, "evaluator": evaluator})
            for run in summary.runs
            if run.id in found and (x := value(run)) is not None
        ]
        if len(points) > 1 and (name != "cost" or any(point.x for point in points)):
            title = f"Quality over {name}"
            plots.append(marks.scatter(title, points, x_label, y_label, higher_is_better=not lower))
    return plots


# ---------------------------------------------------------------- words

_GATE = {"holds": "holds", "fails": "fails", "undecided": "is undecided"}


def _compared_sentences(
    comparison: Comparison, labels: Mapping[str, str], metrics: Sequence[Metric]
) -> list[str]:
    """State the conclusions of a comparison in a sentence for each metric."""
    if len(comparison.runs) == 2:
        found = list(comparison.differences)
        if len(found) > MOST_METRICS:  # a difference that was found is not among those left out
            found.sort(key=lambda each: direction_of(each, comparison.confidence) not in ("better", "worse"))
        return _shorten([each.conclusion for each in found])
    baseline = comparison.runs[0]
    compared = {run.id: labels[run.id] for run in comparison.runs}
    sentences = []
    for leader in comparison.leaders:
        name = (leader.evaluator, leader.aggregator)
        mine = [each for each in comparison.differences if (each.evaluator, each.aggregator) == name]
        # The values of a comparison are those of the pairs; the report shows each run's own.
        own = next(
            (
                m.estimate
                for m in metrics
                if (*name, leader.run) == (m.estimate.evaluator, m.estimate.metric, m.estimate.run)
            ),
            None,
        )
        value = "" if own is None else f"{_value(own)} {_interval(own)}".rstrip()
        words = leader_sentence(leader, compared, "run", value)
        gap = next((each for each in mine if each.run == leader.run), None)
        if gap is not None and direction_of(gap, comparison.confidence) == "better":
            words += f"; it is better than the baseline {baseline.label} by {number(gap.improvement.value)}"
        worse = [labels[each.run] for each in mine if direction_of(each, comparison.confidence) == "worse"]
        if worse:
            verb = "is" if len(worse) == 1 else "are"
            words += f"; {enumerated(worse)} {verb} worse than the baseline {baseline.label}"
        sentences.append(words + ".")
    return _shorten(sentences)


_LOST = {"failed": "failed", "pending": "are pending"}


def _shorten(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - MOST_METRICS
    end = [f"{plural(more, 'more metric')} under Paired differences."] if more > 0 else []
    return [*sentences[:MOST_METRICS], *end]


def _estimate_sentence(metric: Metric, labels: Mapping[str, str]) -> str:
    each = metric.estimate
    run = labels.get(each.run or "", "") if len(labels) > 1 else ""
    name = f"{run}, {each.label}" if run else each.label
    if each.value is None:
        return f"{name} has no value: {each.n:,} of {plural(each.of, 'item')} have a score."
    missing = missing_text(each)
    return estimate_sentence(each, name, marks.digits_of(each)) + (f"; {missing}." if missing else ".")


def _headlines(summary: Summary, whole: Sequence[Metric]) -> list[Metric]:
    """The metrics that all runs have: one of each evaluator, then the others; none of people's labels.

    The one of an evaluator is that by which runs are compared, so that the conclusion and the table agree.
    """
    usual = {s["key"]: s["usual_metric"] for each in summary.evaluations for s in each["evaluators"]}
    people = {s["key"] for each in summary.evaluations for s in each["evaluators"] if s["name"] == HUMAN}
    counts: dict[Any, int] = {}
    firsts: dict[Any, Metric] = {}
    for metric in whole:
        each = metric.estimate
        if each.run is not None and each.aggregator != "ranking" and each.evaluator not in people:
            counts[metric.identity] = counts.get(metric.identity, 0) + 1
            firsts.setdefault(metric.identity, metric)
    complete = [firsts[identity] for identity, count in counts.items() if count == len(summary.runs)]
    known = complete or list(firsts.values())
    main: dict[str, Metric] = {}
    for metric in sorted(known, key=lambda m: usual.get(m.estimate.evaluator) != m.estimate.aggregator):
        main.setdefault(metric.estimate.evaluator, metric)
    return [m for m in known if m in main.values()] + [m for m in known if m not in main.values()]


def _without_repetitions(metrics: Sequence[Metric]) -> list[Metric]:
    """The estimates over all items, without those of a grouping aggregator that another aggregator gives too."""
    whole = [metric for metric in metrics if not metric.estimate.group]
    grouping = {
        (m.estimate.evaluator, m.estimate.aggregator, m.estimate.name) for m in metrics if m.estimate.group
    }
    seen: dict[tuple[Any, ...], tuple[str, str]] = {}
    kept = []
    for metric in whole:
        e = metric.estimate
        same = (e.evaluator, e.run, e.value, e.low, e.high, e.n, e.of)
        mine = (e.aggregator, e.name)
        if seen.setdefault(same, mine) == mine or (e.evaluator, *mine) not in grouping:
            kept.append(metric)
    return kept


def _first_of_evaluator(metrics: Sequence[Metric], place: int) -> bool:
    evaluator = metrics[place].estimate.evaluator
    return all(metric.estimate.evaluator != evaluator for metric in metrics[:place])


def _best(estimates: Mapping[str, Estimate], lower: set[str]) -> set[str]:
    """The runs with the best value."""
    known = {run: e.value for run, e in estimates.items() if e.value is not None}
    if len(known) < 2:
        return set()
    better = next(iter(estimates.values())).better(lower)
    if better is None:
        return set()
    best = min(known.values()) if better == "lower" else max(known.values())
    return {run for run, value in known.items() if value == best}


def _families(
    things: Sequence[Any], estimate: Callable[[Any], Estimate] = lambda each: each
) -> list[list[Any]]:
    """Things that can share an axis: those between −1 and 1 together, any other alone."""
    together, alone = [], []
    for each in things:
        found = estimate(each)
        values = [v for v in (found.value, found.low, found.high) if v is not None]
        if all(math.isfinite(v) and abs(v) <= 1.0 for v in values):
            together.append(each)
        else:
            alone.append([each])
    return ([together] if together else []) + alone


def _changed_counts(comparison: Comparison, metric: str, run: str) -> ExampleChanges:
    for each in comparison.differences:
        if each.evaluator == metric and each.run == run:
            return each.changed
    return ExampleChanges()


def _about(estimate: Estimate) -> dict[str, str]:
    found = {"evaluator": estimate.evaluator}
    if estimate.run:
        found["run"] = estimate.run
    if estimate.group:
        found |= {f"group.{name}": value for name, value in estimate.group.items()}
    return found


def _value(estimate: Estimate) -> str:
    return number(estimate.value, marks.digits_of(estimate))


def _interval(estimate: Estimate) -> str:
    return interval_text(estimate, marks.digits_of(estimate))


def _of(estimate: Estimate) -> str:
    return f"{estimate.n:,} of {estimate.of:,}"


def _run_cost(run: RunSummary) -> float | None:
    """Return the cost of a run; None if it is unknown or no model was called."""
    costs = [usage.cost for usage in run.usage.values()]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if costs and len(known) == len(costs) else None


def _usage(usage: Mapping[str, Any]) -> list[str]:
    names = ("calls", "cached_calls", "input_tokens", "output_tokens")
    cost = usage.get("cost")
    return [*(f"{usage.get(name, 0):,}" for name in names), "unknown" if cost is None else f"${cost:.4f}"]


def _side(pieces: Sequence[Piece], mine: str) -> Markup:
    """Return one of two texts with its differences marked."""
    out: list[Child] = []
    for piece in pieces:
        if piece.kind == "left_out":
            out.append(element("span", " … ", class_="gap"))
        elif piece.kind == "same":
            out.append(piece.text)
        elif piece.kind == mine:
            out.append(element("del" if mine == "removed" else "ins", piece.text))
    return join(*out) if out else element("span", "(empty)", class_="gap")


def _drop_empty(head: list[str], rows: list[list[Child]]) -> None:
    """Drop the columns that are empty throughout."""
    for place in reversed(range(len(head))):
        if not any(row[place] for row in rows):
            del head[place]
            for row in rows:
                del row[place]


def short_names(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of runs, cut where there are many; those that are alike then begin with their number."""
    if len(labels) <= MOST_NAMED:
        return dict(labels)
    cut = {run: _cut(label, LONGEST_NAME) for run, label in labels.items()}
    alike = {name for name, count in Counter(cut.values()).items() if count > 1}
    return {
        run: _cut(f"{place}. {labels[run]}", LONGEST_NAME) if name in alike else name
        for place, (run, name) in enumerate(cut.items(), 1)
    }


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[Child]],
    right: Iterable[int] = (),
    *,
    grouped: bool = False,
) -> Markup:
    """A table; where it is `grouped`, rows that follow each other share their first cell."""
    at_right = set(right)

    def cell(name: str, value: Child, **attributes: str | int | None) -> Markup:
        # HTML ends a cell where the next one begins; in a large report the end tags alone would be 15 kB.
        return Markup(element(name, value, **attributes).removesuffix(f"</{name}>"))

    def cells(name: str, values: Sequence[Child]) -> list[Markup]:
        scope = "col" if name == "th" else None
        return [
            cell(name, value, class_="r" if place in at_right else None, scope=scope)
            for place, value in enumerate(values)
        ]

    if grouped:
        body = []
        for first, group in groupby(rows, key=lambda row: row[0]):
            some = [cells("td", row)[1:] for row in group]
            heading = cell("th", first, scope="rowgroup", rowspan=len(some))
            body += [element("tr", heading if place == 0 else None, *row) for place, row in enumerate(some)]
    else:
        body = [element("tr", *cells("td", row)) for row in rows]
    table = element("table", element("thead", element("tr", *cells("th", head))), element("tbody", *body))
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=", ".join(head[:3]))


def _sub(text: str) -> Markup | None:
    return element("span", text, class_="sub") if text else None


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _style() -> str:
    folder = Path(__file__).parent
    return "".join((folder / name).read_text(encoding="utf-8") for name in ("theme.css", "report.css"))
