"""How much better or worse runs are than a baseline: paired by example, with intervals, tests and the examples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from karat.analysis.gates import Gate, Limit, judge, read_limit, worst
from karat.analysis.regressions import Worse, worse_examples
from karat.analysis.scores import (
    Paired,
    Scores,
    Source,
    chosen_keys,
    pair_scores,
    read_scores,
    sources_of,
    things_of,
)
from karat.errors import RequestError, did_you_mean, nearest
from karat.execution.arguments import as_list, store_of
from karat.execution.evaluate import evaluate_async
from karat.execution.sync import plain
from karat.formatting import (
    Block,
    Heading,
    Paragraph,
    Table,
    bounds_text,
    interval,
    number,
    percent,
    probability,
)
from karat.stats._paired import PairedComparison, holm, paired
from karat.stats._validation import check_confidence
from karat.store import Store
from karat.store.handles import Run
from karat.store.run_labels import differing, run_labels

THRESHOLD = 0.5


class ComparedRun(msgspec.Struct, frozen=True):
    """A run of a comparison, for people."""

    id: str
    label: str
    task: str
    dataset: str
    settings: dict[str, Any] = {}
    """What differs between it and the others."""


class Difference(msgspec.Struct, frozen=True):
    """One metric of one run against the baseline. Positive differences and wins are the run's."""

    evaluator: str
    """The evaluator's key."""
    aggregator: str
    """`accuracy`, the share of items that pass, or `mean`."""
    baseline: str
    run: str
    compared: PairedComparison
    adjusted_p_value: float | None = None
    """By Holm's method over all metrics and runs of the comparison."""
    note: str = ""
    """Over what it was compared, where that is not everything."""

    @property
    def metric(self) -> str:
        """Evaluator and aggregator, for people: `exact_match accuracy`."""
        return f"{self.evaluator} {self.aggregator}"


class Comparison(msgspec.Struct, frozen=True):
    """Runs against a baseline, the first of them."""

    runs: list[ComparedRun]
    differences: list[Difference]
    worse: list[Worse] = []
    gates: list[Gate] = []
    notes: list[str] = []
    confidence: float = 0.95

    @property
    def verdict(self) -> str:
        """`holds`, `fails` or `undecided`; holds where no gate was asked for."""
        return worst(self.gates)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-able values."""
        out = {"kind": "comparison", "verdict": self.verdict, **msgspec.to_builtins(self)}
        for written, each in zip(out["differences"], self.differences, strict=True):
            for name in ("wins", "losses", "ties", "smallest_effect", "power"):  # zeros are written too
                written["compared"][name] = getattr(each.compared, name)
        return out

    def report(self) -> str:
        """Tables for a terminal."""
        from karat.analysis.comparison import comparison_blocks
        from karat.formatting import as_text

        return as_text(comparison_blocks(self))

    def markdown(self) -> str:
        """The same as Markdown."""
        from karat.analysis.comparison import comparison_blocks
        from karat.formatting import as_markdown

        return as_markdown(comparison_blocks(self))


def compare_runs(
    store: Store,
    given: Sequence[Any],
    *,
    metrics: Sequence[str] | None = None,
    cluster: str | None = None,
    test: str = "auto",
    limits: Sequence[Limit] = (),
    examples: int = 5,
    confidence: float = 0.95,
) -> Comparison:
    """Compares runs, or the runs of evaluations, with the first of them, by what evaluations already hold.

    `metrics` are evaluator keys, each alone or followed by ` accuracy` or ` mean`; all that the runs share by default.
    `cluster` is a field of the examples' metadata; several attempts are clustered by example in any case.
    """
    check_confidence(confidence)
    runs, evaluations = things_of(store, given)
    if len(runs) < 2:
        if len(given) > 1:
            those = "both" if len(given) == 2 else "all of these"
            raise RequestError(f"{those} are {runs[0].id}: a comparison needs two different runs")
        raise RequestError("a comparison needs two runs or more: karat compare BASELINE RUN")
    sources = sources_of(store, runs, evaluations)
    keys = chosen_keys(
        sources, runs, list(dict.fromkeys(_key(name, sources, sources) for name in metrics or ())) or None
    )
    plain = list(keys) if metrics else list(sources)
    """The evaluators that plain `accuracy` can be of."""
    limits = [_spelled_out(limit, sources, plain) for limit in limits]
    asked = [*(metrics or ()), *(limit.metric for limit in limits)]
    for limit in limits:
        keys += [key for key in [_key(limit.metric, sources, plain)] if key not in keys]
    work = _Work(store, runs, cluster, test, confidence)
    differences: list[Difference] = []
    for key in keys:
        if not all(run.id in sources[key] for run in runs):
            chosen_keys(sources, runs, [key])
        forms = [name for name in dict.fromkeys(asked) if _key(name, sources, plain) == key]
        differences += work.compare(key, sources[key], forms)
    adjusted = holm([each.compared.p_value for each in differences])
    differences = [
        msgspec.structs.replace(each, adjusted_p_value=p)
        for each, p in zip(differences, adjusted, strict=True)
    ]
    headers = [run.header for run in runs]
    labels = run_labels(headers)
    return Comparison(
        runs=[
            ComparedRun(run.id, labels[run.id], run.header.task, work.datasets[run.header.dataset], settings)
            for run, settings in zip(runs, differing(headers), strict=True)
        ],
        differences=differences,
        worse=[each for part in work.worse(examples) for each in part],
        gates=_gates(limits, differences, sources),
        notes=work.notes,
        confidence=confidence,
    )


def _spelled_out(limit: Limit, sources: dict[str, dict[str, Source]], plain: Collection[str]) -> Limit:
    """A limit on plain `accuracy` or `mean`, with the evaluator it is about."""
    if limit.metric in sources or limit.metric not in ("accuracy", "mean"):
        return limit
    key = _key(limit.metric, sources, plain)
    return Limit(f"{key} {limit.metric}", limit.margin) if key in sources else limit


def _key(name: str, sources: dict[str, dict[str, Source]], plain: Collection[str]) -> str:
    """The evaluator key that a metric's name means; plain `accuracy` is of the only one there is to mean."""
    if name in sources:
        return name
    for suffix in ("accuracy", "mean"):
        if name.endswith(f" {suffix}") and name[: -len(suffix) - 1] in sources:
            return name[: -len(suffix) - 1]
        if name == suffix and len(plain) == 1:
            return next(iter(plain))
        if name == suffix and sources:
            named = ", ".join(f"'{key} {suffix}'" for key in plain)
            raise RequestError(f"{name!r} is ambiguous, several evaluators have results: choose {named}")
    if not sources:
        return name
    near = nearest(name, [*sources, "accuracy", "mean"]) or list(sources)
    raise RequestError(f"no results of {name!r}: {did_you_mean(name, near)}")


def _form(name: str, key: str) -> str | None:
    """Whether a metric's name asks for `accuracy` or `mean`; None where it leaves that open."""
    return next((word for word in ("accuracy", "mean") if name in (word, f"{key} {word}")), None)


def _gates(
    limits: Sequence[Limit], differences: Sequence[Difference], sources: dict[str, dict[str, Source]]
) -> list[Gate]:
    gates = []
    for limit in limits:
        key = _key(limit.metric, sources, sources)
        form = _form(limit.metric, key)
        for each in differences:
            if each.evaluator == key and (form is None or each.aggregator == form):
                gates.append(judge(limit, each.baseline, each.run, each.compared.difference))
    return gates


class _Work:
    """A comparison being made: what is read once for all metrics."""

    def __init__(
        self, store: Store, runs: list[Run], cluster: str | None, test: str, confidence: float
    ) -> None:
        self.store = store
        self.runs = runs
        self.cluster = cluster
        self.test = test
        self.confidence = confidence
        self.notes: list[str] = []
        self.datasets = {run.header.dataset: run.dataset.label for run in runs}
        self.shared, self.groups = self._examples()
        self.paired: list[tuple[str, Run, Run, Scores, Scores, Paired]] = []

    def _examples(self) -> tuple[Callable[[str], bool], dict[str, str]]:
        """Whether an example is the same in all datasets, and the cluster of each where one is asked for."""
        from karat.analysis.examples import cluster_labels, shared_examples

        ids = list(self.datasets)
        shared, note = shared_examples(self.store, ids)
        if note:
            self.notes.append(note)
        groups = cluster_labels(self.store, ids, self.cluster) if self.cluster is not None else {}
        return shared, groups

    def compare(self, key: str, sources: dict[str, Source], names: Sequence[str]) -> list[Difference]:
        """Every run against the first, by one evaluator."""
        tables = read_scores([(run, sources[run.id]) for run in self.runs])
        for table in tables:
            if table.not_applicable:
                self.notes.append(
                    f"{key}: not applicable to {table.not_applicable:,} items of {table.run.id}"
                )
        binary = all(score in (None, 0.0, 1.0) for table in tables for score in table.items.values())
        usual = "accuracy" if binary else "mean"
        forms = dict.fromkeys(_form(name, key) or usual for name in names) or {usual: None}
        found = []
        for form in forms:
            transform = _passed if form == "accuracy" and not binary else float
            for table in tables[1:]:
                pairs = pair_scores(tables[0], table, self.shared, transform)
                if not pairs.examples:
                    raise RequestError(
                        f"runs {tables[0].run.id} and {table.run.id} have no example in common that {key!r} judged"
                    )
                self.paired.append((key, tables[0].run, table.run, tables[0], table, pairs))
                found.append(self._difference(key, form, tables[0].run, table.run, pairs))
        return found

    def _difference(self, key: str, form: str, baseline: Run, run: Run, pairs: Paired) -> Difference:
        clusters = None
        if self.cluster is not None:
            clusters = [self.groups.get(example, example) for example in pairs.examples]
        elif pairs.several:
            clusters = pairs.examples
        within = all(score is None or 0 <= score <= 1 for score in (*pairs.first, *pairs.second))
        compared = paired(
            pairs.first,
            pairs.second,
            clusters,
            test=self.test,  # type: ignore[arg-type]  # checked there
            bounds=(0.0, 1.0) if within else None,
            confidence=self.confidence,
        )
        return Difference(key, form, baseline.id, run.id, compared, note=pairs.note)

    def worse(self, most: int) -> list[list[Worse]]:
        """The examples that got worse, the worst first."""
        seen: set[tuple[str, str]] = set()
        out = []
        for key, baseline, run, first, _, pairs in self.paired:
            if most and (key, run.id) not in seen:
                seen.add((key, run.id))
                out.append(worse_examples(key, baseline, run, first.positions, pairs, most))
        return out


def _passed(score: float) -> float:
    return float(score >= THRESHOLD)


async def compare_async(
    given: Any,
    *more: Any,
    evaluators: Any = None,
    metrics: Sequence[str] | str | None = None,
    cluster: str | None = None,
    test: str = "auto",
    fail_if_worse: Any = None,
    examples: int = 5,
    confidence: float = 0.95,
    store: str | Store | None = None,
    **evaluating: Any,
) -> Comparison:
    """Compares with the first, paired by example, by what evaluations of these runs hold.

    `evaluators` judge the runs first (only what is missing is computed; further options are those of `evaluate`).
    `fail_if_worse` is `"accuracy:0.01"`, a list of such, or `{"accuracy": 0.01}`; the comparison's `verdict` is then
    `holds`, `fails` or `undecided`.
    """
    things = [*as_list(given), *more]
    the_store = store_of(store, things)
    if evaluators is not None:
        runs, _ = things_of(the_store, things)
        made = await evaluate_async(runs, evaluators, store=the_store, **evaluating)
        things = [made]
        if metrics is None and fail_if_worse is None:
            metrics = [spec.key for spec in made.header.evaluators if spec.kind == "single"]
    return compare_runs(
        the_store,
        things,
        metrics=as_list(metrics) or None,
        cluster=cluster,
        test=test,
        limits=_limits(fail_if_worse),
        examples=examples,
        confidence=confidence,
    )


compare = plain(compare_async)


def _limits(given: Any) -> list[Limit]:
    if isinstance(given, dict):
        return [read_limit(f"{metric}:{margin}") for metric, margin in given.items()]
    return [each if isinstance(each, Limit) else read_limit(each) for each in as_list(given)]


SHOWN = 160
"""Characters of an output that are shown side by side with the other."""


def comparison_blocks(comparison: Comparison) -> list[Block]:
    """The legend, the differences, the gates, and the examples that got worse."""
    labels = {run.id: run.label for run in comparison.runs}
    baseline = comparison.runs[0]
    blocks: list[Block] = [
        Heading(f"{len(comparison.runs)} runs compared, the baseline is {baseline.label}", 1),
        Table(
            ["run", "id", "task", "dataset"],
            [[run.label, run.id, run.task, run.dataset] for run in comparison.runs],
        ),
        *(Paragraph(note) for note in comparison.notes),
        _differences(comparison, labels),
        *(Paragraph(f"{labels[e.run]}, {e.metric}: {e.note}") for e in comparison.differences if e.note),
        Paragraph(_explained(comparison)),
    ]
    if comparison.gates:
        blocks += [
            Heading(f"gate: {comparison.verdict}"),
            Table(
                ["metric", "run", "may be worse by", "verdict", "why"],
                [[g.metric, labels[g.run], f"{g.margin:g}", g.verdict, g.reason] for g in comparison.gates],
                [2],
            ),
        ]
    for (metric, run), found in _grouped(comparison.worse).items():
        blocks += _worse(f"examples that got worse: {metric}, {labels[run]}", found)
    return blocks


def _differences(comparison: Comparison, labels: dict[str, str]) -> Table:
    several = len(comparison.differences) > 1
    head = [
        "metric",
        "run",
        "baseline",
        "run's",
        "difference",
        f"{percent(comparison.confidence)} interval",
        "p",
    ]
    head += [*(["p (Holm)"] if several else []), "won/lost/tied", "smallest effect", "n"]
    rows = []
    for each in comparison.differences:
        compared = each.compared
        row = [
            each.metric,
            labels[each.run],
            number(compared.first.value),
            number(compared.second.value),
            "—" if compared.difference.value is None else f"{compared.difference.value:+.3f}",
            interval(compared.difference.low, compared.difference.high, signed=True),
            probability(compared.p_value),
            *([probability(each.adjusted_p_value)] if several else []),
            f"{compared.wins:,}/{compared.losses:,}/{compared.ties:,}",
            number(compared.smallest_effect),
            _denominator(each),
        ]
        rows.append(row)
    return Table(head, rows, [2, 3, 4, 6, *([7] if several else [])])


def _denominator(each: Difference) -> str:
    difference = each.compared.difference
    bounds = bounds_text(difference, sign="+")
    return f"{difference.n:,} of {difference.of:,}{f'; {bounds}' if bounds else ''}"


def _explained(comparison: Comparison) -> str:
    methods = dict.fromkeys(e.compared.difference.method for e in comparison.differences)
    tests = dict.fromkeys(e.compared.test.method for e in comparison.differences)
    text = f"Paired by example. Intervals: {', '.join(methods)}; tests: {', '.join(tests)}."
    effects = [e.compared.difference.metadata.get("design_effect") for e in comparison.differences]
    known = [effect for effect in effects if effect is not None]
    if known:
        text += f" Design effect {', '.join(f'{effect:.2f}' for effect in known)}."
    power = comparison.differences[0].compared.power
    return text + f" The smallest effect is what this data would have shown with power {power:g}."


def _grouped(worse: list[Worse]) -> dict[tuple[str, str], list[Worse]]:
    out: dict[tuple[str, str], list[Worse]] = {}
    for each in worse:
        out.setdefault((each.metric, each.run), []).append(each)
    return out


def _worse(title: str, found: list[Worse]) -> list[Block]:
    calls = any(each.calls for each in found)
    head = ["example", "input", "expected", "score", "baseline's output", "run's output"]
    rows = [
        [
            each.example,
            each.input,
            each.expected,
            f"{each.first:g} → {each.second:g}",
            each.first_output,
            each.second_output,
            *([each.calls] if calls else []),
        ]
        for each in found
    ]
    return [Heading(title), Table([*head, *(["tool calls"] if calls else [])], rows, cell=SHOWN)]
