"""Comparisons of runs with a baseline: paired by example, with intervals, tests and the examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, Unpack

import msgspec

from karat.analysis.gates import (
    VERDICT_STYLES,
    Gate,
    Limit,
    Verdict,
    judge,
    limits_with_missing,
    negated,
    read_limit,
    refuse_harmless,
    worst,
)
from karat.analysis.outcomes import Spread, latency_of, seconds_text
from karat.analysis.scores import (
    Paired,
    RunOrEvaluation,
    Scores,
    Shared,
    Source,
    chosen_keys,
    cluster_labels,
    example_at,
    pair_scores,
    read_scores,
    runs_and_evaluations,
    shared_examples,
    sources_of,
)
from karat.analysis.stored_analyses import Analysis, find_or_compute
from karat.analysis.text_diff import excerpt, word_diff
from karat.errors import RequestError, did_you_mean, nearest, option, plural, wording
from karat.execution.arguments import (
    DEFAULT_CONCURRENCY,
    EvaluatorLike,
    StageOptions,
    StoreLike,
    as_list,
    read_options,
    store_of,
)
from karat.execution.engines import in_thread
from karat.execution.evaluate import evaluate_async
from karat.execution.progress import Listener
from karat.formatting import (
    Block,
    Details,
    Heading,
    Paragraph,
    Table,
    bounds_text,
    enumerated,
    interval,
    number,
    percent,
    probability,
    short_number,
)
from karat.layout import Styled
from karat.records import Estimate, EvaluatorSpec, Failed, Ok, Output, RunHeader, Skipped
from karat.stats._paired import (
    PairedComparison,
    Test,
    holm,
    paired_arrays,
    score_differences,
    with_clusters_note,
)
from karat.stats._validation import check_confidence
from karat.store import Store
from karat.store.columns import distinct, example_columns
from karat.store.handles import Run
from karat.store.repositories import latest, output_decoder
from karat.store.run_labels import differing, run_labels, shorten
from karat.sync import sync_twin
from karat.traces import TraceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# The examples on which a run is better or worse than the baseline, with both outputs side by side.

LONGEST_OUTPUT = 2000
"""Characters that are kept of an input or an output; reports show fewer."""


class ChangedExample(msgspec.Struct, frozen=True):
    """One example that got better or worse."""

    metric: str
    example: str
    baseline: str
    run: str
    unit: str = ""
    """The unit that changed by most, whose outputs are shown; empty for examples without units."""
    first: float = 0.0
    """The baseline's score, the mean of its attempts and units."""
    second: float = 0.0
    input: str = ""
    expected: str = ""
    first_output: str = ""
    second_output: str = ""
    calls: str = ""
    """What differs in the tool calls, where both outputs are trajectories."""
    attempts: int = 1
    """How many attempts the scores are the mean of; the outputs are those of the first."""


class ExampleChanges(msgspec.Struct, frozen=True):
    """How many examples are better, worse and the same, and which lack a score; the mean of their attempts counts."""

    better: int = 0
    worse: int = 0
    same: int = 0
    missing: int = 0


class Changes:
    """The mean scores of two runs for each example that both have."""

    def __init__(self, spec: EvaluatorSpec, pairs: Paired, most: int) -> None:
        """Keep so many of the examples that changed, in either direction."""
        import numpy as np

        self._spec = spec
        sign = 1.0 if spec.higher_is_better else -1.0
        complete = ~(np.isnan(pairs.first) | np.isnan(pairs.second))
        examples: NDArray[Any] = pairs.examples
        if len(examples) > 1 and not bool((examples[1:] > examples[:-1]).all()):
            examples, places = np.unique(examples, return_inverse=True)
            # Pairs of no known example, at −1, are pending: their examples are there by other pairs.
            places, count = places[complete], int((examples >= 0).sum())
            n = np.bincount(places, minlength=len(examples))
            scored = n > 0
            examples, n = examples[scored], n[scored]
            first, second = (
                np.bincount(places, weights=scores[complete], minlength=len(scored))[scored] / n
                for scores in (pairs.first, pairs.second)
            )
        else:  # a pair for each example, in order
            count = len(examples)
            examples, first, second = examples[complete], pairs.first[complete], pairs.second[complete]
            n = examples
        changes = sign * score_differences(first, second)
        better, worse = int((changes > 0).sum()), int((changes < 0).sum())
        self.counts = ExampleChanges(better, worse, len(n) - better - worse, count - len(n))

        def largest(direction: int) -> list[_Changed]:
            falls = direction * changes
            chosen = np.flatnonzero(falls < 0)
            order = chosen[np.lexsort((examples[chosen], falls[chosen]))][:most]
            columns = (examples[order].tolist(), first[order].tolist(), second[order].tolist())
            units = [unit_of(example, direction) for example in columns[0]]
            return [_Changed(*each) for each in zip(*columns, units, strict=True)]

        def unit_of(example: int, direction: int) -> str:
            """The unit of an example that changed by most."""
            if pairs.units is None:
                return ""
            here = np.flatnonzero((pairs.examples == example) & complete)
            return pairs.units(int(here[np.argmin(direction * sign * (pairs.second - pairs.first)[here])]))

        self._worse, self._better = largest(1), largest(-1)

    def examples(self, baseline: Run, run: Run, most: int, *, better: bool) -> list[ChangedExample]:
        """The examples that changed by most in one direction, at most so many, then in dataset order."""
        return [
            _side_by_side(self._spec.key, baseline, run, each)
            for each in (self._better if better else self._worse)[:most]
        ]


class _Changed(NamedTuple):
    """The position of an example, its mean scores in both runs, and the unit that changed by most."""

    position: int
    first: float
    second: float
    unit: str


def _side_by_side(key: str, baseline: Run, run: Run, changed: _Changed) -> ChangedExample:
    position = changed.position
    known = example_at(baseline.store, baseline.header.dataset, position)
    example = known.id if known else ""
    # In another dataset the same example may have another position.
    there = position if run.header.dataset == baseline.header.dataset else _position(run, example)
    mine, theirs = _output(baseline, position, changed.unit), _output(run, there, changed.unit)
    summary = mine.summary if mine is not None else {}
    return ChangedExample(
        metric=key,
        example=example,
        baseline=baseline.id,
        run=run.id,
        unit=changed.unit,
        first=changed.first,
        second=changed.second,
        input=shown(summary.get("input", known.input)) if known else "",
        expected=shown(summary.get("expected", known.expected))
        if known and known.expected is not None
        else "",
        first_output=_outcome(mine),
        second_output=_outcome(theirs),
        calls=call_differences(mine, theirs),
        attempts=max(baseline.header.attempts, run.header.attempts),
    )


def _position(run: Run, example: str) -> int:
    return next((place for place, each in enumerate(run.dataset) if each.id == example), -1)


def _output(run: Run, position: int, unit: str) -> Output | None:
    """The first attempt of a run at a unit of the example at a position."""
    rows = latest(run.store.backend.scan(run.number, position, position + 1)) if position >= 0 else ()
    outputs = (output_decoder.decode(row.payload) for row in rows)
    return next((output for output in outputs if output.unit == unit), None)


def _outcome(output: Output | None) -> str:
    if output is None:
        return ""
    outcome = output.outcome
    if isinstance(outcome, Ok):
        return shown(output.summary.get("output", outcome.value))
    if isinstance(outcome, Failed):
        return f"failed: {outcome.error.type}: {outcome.error.message[:LONGEST_OUTPUT]}"
    assert isinstance(outcome, Skipped)
    return f"skipped: {outcome.reason}"


def shown(value: object) -> str:
    """Return a value as bounded text: text unchanged, anything else as JSON."""
    if isinstance(value, str):
        text = value[: LONGEST_OUTPUT + 1]
    else:
        text = msgspec.json.encode(value, enc_hook=repr)[: 4 * LONGEST_OUTPUT].decode("utf-8", "replace")
    return text if len(text) <= LONGEST_OUTPUT else text[: LONGEST_OUTPUT - 1] + "…"


def call_differences(first: Output | None, second: Output | None) -> str:
    """How the tool calls of a run differ from the baseline's, in words; empty where there are none to compare."""
    from karat.evaluators.trajectory.match import TrajectoryMatchEvaluator

    if (
        first is None
        or second is None
        or not isinstance(first.outcome, Ok)
        or not isinstance(second.outcome, Ok)
    ):
        return ""
    try:
        reference = _trajectory(first)
        if reference is None or _trajectory(second) is None:
            return ""
        judged = TrajectoryMatchEvaluator().evaluate(
            outputs=second.value, reference_outputs=reference, output=second
        )
    except TraceError:
        return ""
    if judged.score == 1.0:
        return "the same calls"
    # "expected" in it is what the baseline called, and not what the example expects
    return f"against the baseline as reference: {judged.comment.partition(': ')[2]}"[:LONGEST_OUTPUT]


def _trajectory(output: Output) -> Any:
    """The output as a trajectory with tool calls, or None."""
    from karat.evaluators.trajectory._calls import read_trajectory

    try:
        trajectory = read_trajectory(output.value, output.trace)
    except TraceError:
        return None
    return trajectory.to_dict()["steps"] if trajectory.calls else None


Limits: TypeAlias = str | Limit | Mapping[str, float] | Sequence[str | Limit]
"""Gates as callers write them: `"accuracy:0.01"`, a list of such, or `{"accuracy": 0.01}`."""


class ComparedRun(msgspec.Struct, frozen=True):
    """A run of a comparison, for people."""

    id: str
    label: str
    task: str
    dataset: str
    settings: dict[str, Any] = {}
    """What differs between it and the others."""
    service_seconds: Spread = {}
    """How long an output took without waiting: `mean`, `median`, `p95`, `max`."""
    queue_seconds: Spread = {}
    """How long its model calls waited for a slot, a rate limit or a retry."""


class Difference(msgspec.Struct, frozen=True):
    """One metric of one run against the baseline."""

    evaluator: str
    """The evaluator's key."""
    aggregator: str
    """`accuracy`, the share of items that pass, or `mean`."""
    baseline: str
    run: str
    compared: PairedComparison
    """The run's scores minus the baseline's; wins are the items on which the run is better."""
    adjusted_p_value: float | None = None
    """By Holm's method over all metrics and runs of the comparison."""
    note: str = ""
    """Over what it was compared, where that is not everything."""
    higher_is_better: bool = True
    examples: int = 0
    """The examples that both runs have a score of."""
    conclusion: str = ""
    """What follows from it, in a sentence."""
    changed: ExampleChanges = ExampleChanges()
    """How many examples are better, worse and the same."""

    @property
    def metric(self) -> str:
        """Evaluator and aggregator, for people: `exact_match accuracy`."""
        return f"{self.evaluator} {self.aggregator}"

    @property
    def improvement(self) -> Estimate:
        """The difference, positive where the run is better."""
        difference = self.compared.difference
        return difference if self.higher_is_better else negated(difference)


class Leader(msgspec.Struct, frozen=True):
    """The run with the best value of a metric, and the runs that are not significantly different from it."""

    evaluator: str
    aggregator: str
    run: str
    indistinguishable: list[str] = []
    """The runs whose paired difference from the best is not significant, after the correction for all of them."""
    without_result: list[str] = []
    """The runs that have no value of the metric, because every item failed or is missing."""


def leader_sentence(leader: Leader, labels: Mapping[str, str], noun: str, value: str = "") -> str:
    """Say in a sentence, without its full stop, how certain it is which run is best.

    `labels` has every run that was compared; `noun` is what the reader calls them; `value` is the leader's own.
    """
    best, others = labels[leader.run], [labels[run] for run in leader.indistinguishable]
    without = [labels[run] for run in leader.without_result]
    count = len(labels) - len(without)
    if count == 1:
        found = f"only {best} has a result{value and ', '}{value}"
    elif len(others) == count - 1:
        found = f"the {count} {noun}s{' with a result' if without else ''} are not distinguishable;"
        found += f" {best} has the best value{value and ', '}{value}"
    else:
        found = f"{best} is best{value and ' with '}{value}"
        if others:
            found += f", but not distinguishable from {enumerated(others)}"
        else:
            found += f", and better than {'the other' if count == 2 else 'each of the others'}"
            found += " with a result" if without else ""
    if without:
        found += f"; {enumerated(without)} {'has' if len(without) == 1 else 'have'} no result"
    return f"{leader.evaluator} {leader.aggregator}: {found}"


class Comparison(Analysis, msgspec.Struct, frozen=True):
    """A comparison of runs with a baseline, which is the first run."""

    runs: list[ComparedRun]
    differences: list[Difference]
    worse: list[ChangedExample] = []
    """The first of the examples that got worse, by metric and run."""
    better: list[ChangedExample] = []
    """The first of the examples that got better."""
    gates: list[Gate] = []
    notes: list[str] = []
    confidence: float = 0.95
    conclusions: list[str] = []
    """One sentence for each difference."""
    id: str = ""
    """The id of the aggregation that stores it."""
    differs: list[SettingDifference] = []
    """What differs between the runs besides their scores."""
    warnings: list[str] = []
    leaders: list[Leader] = []
    """The best run by each metric."""

    @property
    def verdict(self) -> Verdict | None:
        """`holds`, `fails` or `undecided`; None where no gate was asked for."""
        return worst(self.gates)

    def estimates(self) -> list[Estimate]:
        """The differences, each with its evaluator, aggregator (`difference`) and run."""
        found = []
        for each in self.differences:
            facts = {"baseline": each.baseline, "p_value": each.compared.p_value}
            metadata = {**each.compared.difference.metadata, **facts}
            estimate = msgspec.structs.replace(each.compared.difference, metadata=metadata)
            found.append(
                estimate.about(
                    evaluator=each.evaluator, aggregator="difference", name=each.aggregator, run=each.run
                )
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        out = {"kind": "comparison", "verdict": self.verdict, **msgspec.to_builtins(self)}
        for written, each in zip(out["differences"], self.differences, strict=True):
            # Zeros are written too.
            for name in ("wins", "losses", "ties", "smallest_effect", "power", "effect_reason"):
                written["compared"][name] = getattr(each.compared, name)
        return out

    def blocks(self) -> list[Block]:
        """Return the sentences and tables."""
        return comparison_blocks(self)

    def __repr__(self) -> str:
        return f"<comparison {self.id}: {' '.join(self.conclusions)}>"


def compare_runs(
    store: Store,
    given: Sequence[RunOrEvaluation],
    *,
    metrics: Sequence[str] | None = None,
    cluster: str | None = None,
    test: Test = "auto",
    limits: Sequence[Limit] = (),
    examples: int = 5,
    confidence: float = 0.95,
    unequal: bool = False,
    **storing: Any,
) -> Comparison:
    """Compare runs, or the runs of evaluations, with the first run by their stored results.

    `metrics` are evaluator keys, each alone or followed by ` accuracy` or ` mean`; by default all that the runs share.
    `cluster` is a field of the examples' metadata; several attempts are clustered by example in any case.
    """
    check_confidence(confidence)
    runs, evaluations = runs_and_evaluations(store, given)
    if len(runs) < 2:
        if len(given) > 1:
            those = "both" if len(given) == 2 else "all of these"
            raise RequestError(f"{those} are {runs[0].id}: a comparison needs two different runs")
        how = wording("karat compare BASELINE RUN", "karat.compare([baseline, run])")
        raise RequestError(f"a comparison needs two runs or more: {how}")
    headers = [run.header for run in runs]
    differing = unequal_settings(headers, run_labels(headers))
    if differing and not unequal:
        raise RequestError(
            f"{differing[0]}: a comparison would measure that too; run them with equal settings, or add"
            f" {option('unequal', True)}"
        )
    sources = sources_of(runs, evaluations)
    asked = list(dict.fromkeys(_key(name, sources, sources) for name in metrics or ()))
    keys = chosen_keys(sources, runs, evaluations, asked or None)
    plain_keys = list(keys) if metrics else list(sources)
    """The evaluators that plain `accuracy` can be of."""
    limits = [_spelled_out(limit, sources, plain_keys) for limit in limits]
    for limit in limits:
        keys += [key for key in [_key(limit.metric, sources, plain_keys)] if key not in keys]
    chosen_keys(sources, runs, evaluations, keys)
    for limit in limits:
        refuse_harmless(limit, sources[_key(limit.metric, sources, plain_keys)][runs[0].id].spec)
    names = dict.fromkeys([*(metrics or ()), *(limit.metric for limit in limits)])
    forms = {key: [name for name in names if _key(name, sources, plain_keys) == key] for key in keys}
    used = {
        sources[key][run.id].evaluation.id: sources[key][run.id].evaluation for key in keys for run in runs
    }

    def compute() -> Comparison:
        work = _Work(store, runs, cluster, test, confidence, alone=len(keys) == 1, examples=examples)
        differences = [each for key in keys for each in work.compare(key, sources[key], forms[key])]
        return _comparison(work, differences, limits, sources, examples)

    return find_or_compute(
        "comparison",
        Comparison,
        compute,
        store=store,
        runs=runs,
        evaluations=list(used.values()),
        settings={
            "runs": [run.id for run in runs],
            "metrics": forms,
            "sources": {key: sorted({s.spec.fingerprint for s in sources[key].values()}) for key in keys},
            "cluster": cluster,
            "test": test,
            "limits": {limit.metric: limit.margin for limit in limits},
            "examples": examples,
            "confidence": confidence,
        },
        **storing,
    )


class Found(NamedTuple):
    """Differences from the first run, and what is said about all of them."""

    differences: list[Difference]
    notes: list[str]
    confidence: float


def find_differences(
    store: Store, runs: Sequence[Run], keys: Sequence[str], scores: Callable[[str], Sequence[Scores]]
) -> Found:
    """Compare runs with the first one by some evaluators, whose scores a function gives; nothing is stored."""
    work = _Work(store, list(runs), None, "auto", 0.95, alone=len(keys) == 1)
    found = [each for key in keys for each in work.paired(key, scores(key), ())]
    labels = run_labels([run.header for run in runs])
    notes = [*work.notes, *_not_applicable_note(work.not_applicable)]
    return Found(_conclude(work, found, labels), notes, work.confidence)


def _conclude(work: _Work, differences: Sequence[Difference], labels: Mapping[str, str]) -> list[Difference]:
    """Differences with probabilities adjusted for their number, and conclusions."""
    adjusted = holm([each.compared.p_value for each in differences])
    differences = [
        msgspec.structs.replace(each, adjusted_p_value=p)
        for each, p in zip(differences, adjusted, strict=True)
    ]
    several = len(differences)
    return [
        msgspec.structs.replace(each, conclusion=_conclusion(each, labels, several, work.confidence))
        for each in differences
    ]


def _comparison(
    work: _Work,
    differences: Sequence[Difference],
    limits: Sequence[Limit],
    sources: dict[str, dict[str, Source]],
    examples: int,
) -> Comparison:
    headers = [run.header for run in work.runs]
    labels = run_labels(headers)
    differences = _conclude(work, differences, labels)
    return Comparison(
        runs=[
            ComparedRun(
                run.id,
                labels[run.id],
                run.header.task,
                work.datasets[run.header.dataset],
                settings,
                latency.service,
                latency.queue,
            )
            for run, settings in zip(work.runs, differing(headers), strict=True)
            for latency in [latency_of(run)]
        ],
        differences=list(differences),
        worse=work.changed_examples(examples, better=False),
        better=work.changed_examples(examples, better=True),
        differs=setting_differences(headers, [work.datasets[header.dataset] for header in headers]),
        warnings=[*unequal_settings(headers, labels), *served_warnings(headers, labels)],
        leaders=_leaders(work, differences, sources),
        gates=_gates(limits, differences, sources),
        notes=[*work.notes, *_not_applicable_note(work.not_applicable)],
        confidence=work.confidence,
        conclusions=[each.conclusion for each in differences],
    )


def _leaders(
    work: _Work, differences: Sequence[Difference], sources: dict[str, dict[str, Source]]
) -> list[Leader]:
    """The best run by each metric. Where that is not the baseline, the others are compared with it as well.

    Like the conclusions, the comparisons with the best are corrected for the number of all of them.
    """
    found: list[tuple[Leader, list[tuple[str, float | None]]]] = []
    for evaluator, aggregator in dict.fromkeys((each.evaluator, each.aggregator) for each in differences):
        mine = [each for each in differences if (each.evaluator, each.aggregator) == (evaluator, aggregator)]
        baseline = mine[0].baseline
        # A run without results has no pair with the baseline, which then has no value in that pair.
        firsts = (each.compared.first.value for each in mine)
        values = {baseline: next((value for value in firsts if value is not None), None)}
        values |= {each.run: each.compared.second.value for each in mine}
        sign = 1.0 if mine[0].higher_is_better else -1.0
        known = {run: sign * value for run, value in values.items() if value is not None}
        if not known:
            continue
        best = max(known, key=lambda run: known[run])
        if best == baseline or len(mine) > 1:
            if best != baseline:
                order = sorted(work.runs, key=lambda run: run.id != best)
                again = _Work(work.store, order, work.cluster, work.test, work.confidence)
                mine = again.compare(evaluator, sources[evaluator], [f"{evaluator} {aggregator}"])
            pairs = [(each.run, each.compared.p_value) for each in mine]
        else:  # the same pair, seen from the other side
            pairs = [(baseline, mine[0].compared.p_value)]
        without = [run for run in values if run not in known]
        found.append((Leader(evaluator, aggregator, best, without_result=without), pairs))
    adjusted = iter(holm([p for _, pairs in found for _, p in pairs]))
    leaders = []
    for leader, pairs in found:
        p_values = {run: next(adjusted) for run, _ in pairs}
        same = [run for run, p in p_values.items() if p is None or p > 1.0 - work.confidence]
        same = [run for run in same if run not in leader.without_result]
        leaders.append(msgspec.structs.replace(leader, indistinguishable=same))
    return leaders


def _conclusion(each: Difference, labels: Mapping[str, str], several: int, confidence: float) -> str:
    """`exact_match accuracy: B is worse than A by 0.12 [0.05, 0.19].`"""
    run, baseline = labels[each.run], labels[each.baseline]
    better, p = each.improvement, each.adjusted_p_value
    missing = better.of - better.n
    if better.value is None:
        found = f"{run} and {baseline} have no scored item in common, so they cannot be compared"
    elif p is not None and p <= 1.0 - confidence and better.value:
        side = better if better.value > 0 else negated(better)
        found = (
            f"{run} is {'better' if better.value > 0 else 'worse'} than {baseline}"
            f" by {number(side.value)} {interval(side.low, side.high)}"
        )
        least, _ = limits_with_missing(side)
        if missing and (least is None or least <= 0):
            turn = "reverse" if side.lowest is None or side.lowest <= 0 else "undo"
            found += f", but the {missing:,} missing {_items(missing)} could {turn} that"
    elif p is None and better.value:
        word, reason = (
            "better" if better.value > 0 else "worse",
            better.metadata.get("reason", "too few pairs"),
        )
        found = (
            f"{run} scored {word} than {baseline} by {number(abs(better.value))},"
            f" but no interval and no test can be given ({reason})"
        )
    else:
        found = f"no difference found between {run} and {baseline}"
        if several > 1 and each.compared.p_value is not None and each.compared.p_value <= 1.0 - confidence:
            found += f" after the correction for {several} comparisons"
        effect = each.compared.smallest_effect
        if effect is not None:
            found += f"; one smaller than {number(effect)} may have been missed"
        else:
            few = each.compared.effect_reason == "too few clusters"
            found += "; the smallest detectable effect cannot be stated: too few clusters" if few else ""
            found += "" if few else "; there are too few examples to detect one"
        if missing:
            found += f", and {missing:,} {_items(missing)} {'is' if missing == 1 else 'are'} missing"
    return f"{each.metric}: {found}."


def _not_applicable_note(counts: Mapping[str, Sequence[int]]) -> list[str]:
    """Return a line on items to which evaluators do not apply, or no line if there are none."""
    parts = []
    for key, found in counts.items():
        if len(set(found)) > 1:
            parts.append(f"{key} {' / '.join(f'{count:,}' for count in found)}")
        elif any(found):
            parts.append(f"{key} {found[0]:,}")
    return [f"not applicable, excluded (items per run): {', '.join(parts)}"] if parts else []


def _items(count: int) -> str:
    return "item" if count == 1 else "items"


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
                gates.append(judge(limit, each.baseline, each.run, each.improvement, each.examples))
    return gates


class _Work:
    """A comparison in progress: what is read once for all metrics."""

    def __init__(
        self,
        store: Store,
        runs: list[Run],
        cluster: str | None,
        test: Test,
        confidence: float,
        alone: bool = False,
        examples: int = 0,
    ) -> None:
        self.store = store
        self.alone = alone
        """Whether there is one evaluator: then a comparison without its scores is empty."""
        self.examples = examples
        """How many of the examples that changed are kept, in either direction."""
        self.runs = runs
        self.cluster = cluster
        self.test = test
        self.confidence = confidence
        self.notes: list[str] = []
        self.not_applicable: dict[str, list[int]] = {}
        """By evaluator, the number of items it does not apply to, in the order of the runs."""
        self.datasets = {run.header.dataset: run.dataset.label for run in runs}
        self.shared, self.groups = self._examples()
        self.changes: list[tuple[str, Run, Run, Changes]] = []

    def _examples(self) -> tuple[Shared, dict[str, str]]:
        """Whether an example is the same in all datasets, and the cluster of each where one is asked for."""
        ids = list(self.datasets)
        shared, note = shared_examples(self.store, ids)
        if note:
            self.notes.append(note)
        groups = cluster_labels(self.store, ids, self.cluster) if self.cluster is not None else {}
        return shared, groups

    def compare(self, key: str, sources: dict[str, Source], names: Sequence[str]) -> list[Difference]:
        """Compare every run with the first, by one evaluator."""
        return self.paired(key, read_scores([(run, sources[run.id]) for run in self.runs]), names)

    def paired(self, key: str, tables: Sequence[Scores], names: Sequence[str]) -> list[Difference]:
        """Compare scores with those of the first run."""
        self.not_applicable[key] = [len(table.not_applicable[0]) for table in tables]
        if not names and not self.alone and not all(len(table.scores) for table in tables):
            unscored = ", ".join(table.run.id for table in tables if not len(table.scores))
            self.notes.append(f"{key}: not compared, it has no score in {unscored}")
            return []
        spec = tables[0].source.spec
        binary = all(is_binary(spec, table.scores) for table in tables)
        usual = spec.usual_metric
        forms = dict.fromkeys(_form(name, key) or usual for name in names) or {usual: None}
        found = []
        for form in forms:
            # More passes are better, for scores of either direction.
            oriented = msgspec.structs.replace(spec, higher_is_better=True) if form == "accuracy" else spec
            passed = spec if form == "accuracy" and not (binary and spec.higher_is_better) else None
            for table in tables[1:]:
                pairs = pair_scores(tables[0], table, self.shared, passed=passed)
                if not len(pairs.examples):
                    raise RequestError(
                        f"runs {tables[0].run.id} and {table.run.id} have no example in common that {key!r} judged"
                    )
                changes = Changes(oriented, pairs, self.examples)
                if self.examples:
                    self.changes.append((spec.key, tables[0].run, table.run, changes))
                made = self._difference(oriented, form, tables[0].run, table.run, pairs)
                found.append(msgspec.structs.replace(made, changed=changes.counts))
        return found

    def _difference(
        self, spec: EvaluatorSpec, form: str, baseline: Run, run: Run, pairs: Paired
    ) -> Difference:
        import numpy as np

        complete = ~(np.isnan(pairs.first) | np.isnan(pairs.second))
        clusters: Any = None
        if self.cluster is not None:
            clusters = self._clusters(baseline, pairs.examples)
        elif pairs.several:
            clusters = pairs.examples
        compared = paired_arrays(
            pairs.first,
            pairs.second,
            clusters,
            test=self.test,
            bounds=score_bounds(None if form == "accuracy" else spec.bounds, pairs.first, pairs.second),
            confidence=self.confidence,
        )
        if form != "accuracy" and spec.bounds is not None and None in spec.bounds:
            # A missing score could be any number: bounds of 0 to 1 would be wrong.
            unbounded = msgspec.structs.replace(compared.difference, lowest=None, highest=None)
            compared = msgspec.structs.replace(compared, difference=unbounded)
        note = pairs.note
        if clusters is not None and self.cluster is not None:
            compared = with_clusters_note(compared, len(distinct(clusters[complete])))
            note = "; ".join(filter(None, [note, compared.difference.metadata.get("note")]))
        if not spec.higher_is_better:  # wins are where the run is better
            compared = msgspec.structs.replace(compared, wins=compared.losses, losses=compared.wins)
        return Difference(
            spec.key,
            form,
            baseline.id,
            run.id,
            compared,
            note=note,
            higher_is_better=spec.higher_is_better,
            examples=len(distinct(pairs.examples[complete])),
        )

    def _clusters(self, baseline: Run, examples: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Number the cluster of each pair; each example without the field is a separate cluster."""
        import numpy as np

        ids = example_columns(baseline.dataset)
        names = [ids.id(position) if position >= 0 else "" for position in examples.tolist()]
        codes: dict[str, int] = {}
        return np.array([codes.setdefault(self.groups.get(name, name), len(codes)) for name in names], "<i8")

    def changed_examples(self, most: int, *, better: bool) -> list[ChangedExample]:
        """The examples that got better or worse, those that changed most first."""
        out: list[ChangedExample] = []
        seen: set[tuple[str, str]] = set()
        for key, baseline, run, changes in self.changes:
            if most and (key, run.id) not in seen:
                seen.add((key, run.id))
                out += changes.examples(baseline, run, most, better=better)
        return out


def score_bounds(
    declared: tuple[float | None, float | None] | None, *scores: NDArray[np.float64]
) -> tuple[float, float] | None:
    """The range of scores: what the evaluator declares, else 0 to 1; None where it is open or a score lies outside."""
    low, high = declared or (0.0, 1.0)
    if low is None or high is None:
        return None
    import numpy as np

    inside = all((np.isnan(each) | ((each >= low) & (each <= high))).all() for each in scores)
    return (low, high) if inside else None


def is_binary(spec: EvaluatorSpec, scores: NDArray[np.float64]) -> bool:
    """Whether all scores that are there are 0 or 1, and these are not just grades of a wider range."""
    import numpy as np

    return spec.bounds in (None, (0.0, 1.0)) and bool(
        (np.isnan(scores) | (scores == 0.0) | (scores == 1.0)).all()
    )


async def compare_async(
    runs: RunOrEvaluation | Sequence[RunOrEvaluation],
    *more: RunOrEvaluation,
    evaluators: EvaluatorLike | Sequence[EvaluatorLike] | None = None,
    metrics: str | Sequence[str] | None = None,
    cluster: str | None = None,
    test: Test = "auto",
    fail_if_worse: Limits | None = None,
    examples: int = 5,
    confidence: float = 0.95,
    unequal: bool = False,
    store: StoreLike | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    progress: bool | Listener | None = None,
    **options: Unpack[StageOptions],
) -> Comparison:
    """Compare runs with the first run, paired by example, using their stored results.

    `evaluators` evaluate the runs first and compute only missing results; `concurrency`, `progress` and the further
    options are those of `evaluate`. `fail_if_worse` is a gate: `"accuracy:0.01"`, a list of such strings, or
    `{"accuracy": 0.01}`; the comparison's `verdict` is then `holds`, `fails` or `undecided`.

    Runs of memory systems must have equal settings where a fair comparison needs them; `unequal=True` compares other
    runs too, and warns about each setting that differs.

    The comparison is stored as an aggregation (`comparison.id`). The same call returns it again until a run or an
    evaluation changes; `new=True` computes it again.
    """
    things = [*as_list(runs), *more]
    the_store = store_of(store, things)
    how = read_options(compare_async, StageOptions, options, concurrency=concurrency, progress=progress)
    wanted = as_list(metrics)
    if evaluators is not None:
        compared, _ = runs_and_evaluations(the_store, things)
        made = await evaluate_async(
            compared, evaluators, store=the_store, concurrency=concurrency, progress=progress, **options
        )
        things = [made]
        if not wanted and fail_if_worse is None:
            wanted = [spec.key for spec in made.header.evaluators if spec.kind == "single"]
    return await in_thread(
        lambda: compare_runs(
            the_store,
            things,
            metrics=wanted or None,
            cluster=cluster,
            test=test,
            limits=_limits(fail_if_worse),
            examples=examples,
            confidence=confidence,
            unequal=unequal,
            new=how.new,
            labels=how.labels,
            metadata=how.metadata,
            description=how.description,
        )
    )


compare = sync_twin(compare_async)


def _limits(given: Limits | None) -> list[Limit]:
    if isinstance(given, Mapping):
        return [read_limit(f"{metric}:{margin}") for metric, margin in given.items()]
    return [each if isinstance(each, Limit) else read_limit(each) for each in as_list(given)]


SHOWN = 400
"""Characters of an input or an expected output that are shown."""
SHORT = 40
"""Settings up to this length are shown whole; longer ones as a word diff."""


def comparison_blocks(comparison: Comparison) -> list[Block]:
    """The blocks of a comparison: settings that differ, conclusions, counts, examples that changed, statistics."""
    labels = {run.id: run.label for run in comparison.runs}
    baseline = comparison.runs[0]
    others = [run.label for run in comparison.runs[1:]]
    title = f"{others[0]} compared with {baseline.label}"
    if len(others) > 1:
        title = f"{len(others)} runs compared with {baseline.label}"
    blocks: list[Block] = [Heading(title, 1), *_differing_blocks(comparison)]
    blocks += [Paragraph(Styled(f"warning: {warning}", "warning")) for warning in comparison.warnings]
    blocks.append(Heading("conclusion" if len(comparison.conclusions) == 1 else "conclusions"))
    blocks += [Paragraph(_with_tone(each)) for each in comparison.differences]
    if comparison.gates:
        blocks += [
            Heading(f"gate: {comparison.verdict}"),
            Table(
                ["metric", "run", "may be worse by", "verdict", "why"],
                [
                    [
                        g.metric,
                        labels[g.run],
                        f"{g.margin:g}",
                        Styled(g.verdict, VERDICT_STYLES[g.verdict]),
                        g.reason,
                    ]
                    for g in comparison.gates
                ],
                [2],
            ),
        ]
    blocks += [Paragraph(note) for note in comparison.notes]
    blocks.append(_count_sentence(comparison, labels))
    blocks += _changed_blocks(comparison, labels)
    blocks += [
        Heading("statistics"),
        _differences(comparison, labels),
        *(Paragraph(f"{labels[e.run]}, {e.metric}: {e.note}") for e in comparison.differences if e.note),
        Paragraph(_explanation(comparison)),
        Heading("runs"),
        _compared_runs(comparison),
    ]
    return blocks


def _with_tone(each: Difference) -> str:
    """The conclusion, green or red where it is one."""
    word = each.conclusion.partition(" than ")[0].rpartition(" is ")[2]
    style = {"better": "good", "worse": "bad"}.get(word, "")
    return Styled(each.conclusion, style) if style else each.conclusion


def _differing_blocks(comparison: Comparison) -> list[Block]:
    """Describe what differs between the runs: in words for two runs, as a table for more."""
    if not comparison.differs:
        return [
            Paragraph(
                "Nothing differs between the runs: the same task, parameters, code, environment and models."
            )
        ]
    if len(comparison.runs) == 2:
        fields = [(each.name, _change(*each.values)) for each in comparison.differs]
        return [Details("what differs", fields)]
    head = ["what differs", *(run.label for run in comparison.runs)]
    rows = []
    for each in comparison.differs:
        # Long texts, such as prompts, are shown from where they part: they may begin alike.
        short = shorten({value for value in each.values if value is not None}, SHORT)
        rows.append([each.name, *("—" if value is None else short[value] for value in each.values)])
    return [Table(head, rows, split=True)]


def _change(first: str | None, second: str | None) -> list[str]:
    """`a → b`; of long texts the words that differ."""
    if first is not None and second is not None and max(len(first), len(second)) > SHORT:
        pieces = excerpt(word_diff(first, second))
        return [Styled(p.text, p.kind) if p.kind in ("added", "removed") else p.text or " … " for p in pieces]
    return [f"{'—' if first is None else first or _EMPTY} → {'—' if second is None else second or _EMPTY}"]


_EMPTY = '""'


def _count_sentence(comparison: Comparison, labels: dict[str, str]) -> Table:
    """Count the examples that are better, worse, the same and missing."""
    several = len(comparison.runs) > 2
    rows = []
    for each in comparison.differences:
        changed = each.changed
        rows.append(
            [
                f"{each.metric} {arrow(each.higher_is_better)}",
                *([labels[each.run]] if several else []),
                Styled(f"{changed.better:,}", "good" if changed.better else ""),
                Styled(f"{changed.worse:,}", "bad" if changed.worse else ""),
                f"{changed.same:,}",
                Styled(f"{changed.missing:,}", "warning" if changed.missing else ""),
            ]
        )
    head = ["examples", *(["run"] if several else []), "better", "worse", "same", "missing"]
    return Table(head, rows, [len(head) - 4, len(head) - 3, len(head) - 2, len(head) - 1])


FEW_GROUPS = 4
"""Metrics and runs of which every changed example that was kept is shown; of more …"""
MOST_CHANGED = 20
"""… so many examples in a direction, as evenly as there is room …"""
MOST_GROUPS = 10
"""… of the first so many."""
NAMED = 5


def _changed_blocks(comparison: Comparison, labels: dict[str, str]) -> list[Block]:
    """The examples that got worse, then those that got better, with what differs in their outputs."""
    blocks: list[Block] = []
    several = len(comparison.runs) > 2
    totals = {(each.evaluator, each.run): each.changed for each in comparison.differences}
    directions = {"worse": _by_change(comparison.worse), "better": _by_change(comparison.better)}
    groups = list(dict.fromkeys(name for found in directions.values() for name in found))
    shown, most = groups[:MOST_GROUPS], max(1, MOST_CHANGED // max(1, len(groups)))
    for direction, by_group in directions.items():
        for metric, run in shown:
            found = by_group.get((metric, run), [])
            if len(groups) > FEW_GROUPS:
                found = found[:most]
            if not found:
                continue
            counts = totals[metric, run]
            total = counts.worse if direction == "worse" else counts.better
            whose = f"{metric}, {labels[run]}" if several else metric
            blocks.append(Heading(f"examples that got {direction}: {whose}, {len(found):,} of {total:,}"))
            blocks += [_changed_table(each, direction) for each in found]
    if len(groups) > len(shown):
        left = dict.fromkeys(metric for metric, _ in groups[len(shown) :])
        names = ", ".join(list(left)[:NAMED]) + (", …" if len(left) > NAMED else "")
        blocks.append(
            Paragraph(
                f"The changed examples of {names} are left out:"
                f" {wording('--metric', 'metrics=[KEY]')} shows those of one."
            )
        )
    return blocks


def _changed_table(each: ChangedExample, direction: str) -> Details:
    fields = [("input", [each.input])] if each.input else []
    fields += [("expected", [each.expected])] if each.expected else []
    fields = [
        (name, [texts[0][: SHOWN - 1] + "…" if len(texts[0]) > SHOWN else texts[0]]) for name, texts in fields
    ]
    pieces = excerpt(word_diff(each.first_output, each.second_output))
    for name, kind in (("baseline", "removed"), ("run", "added")):
        spans = [
            Styled(p.text, kind) if p.kind == kind else p.text or "…"
            for p in pieces
            if p.kind in ("same", "left_out", kind)
        ]
        fields.append((name, spans or [_EMPTY]))
    if each.calls:
        fields.append(("tool calls", [each.calls]))
    return Details(
        f"{each.example}: {short_number(each.first)} → {short_number(each.second)} ({direction})"
        + (f", most in {each.unit}" if each.unit else "")
        + (f", means of {each.attempts} attempts; the first is shown" if each.attempts > 1 else ""),
        fields,
    )


def _compared_runs(comparison: Comparison) -> Table:
    return Table(
        ["run", "id", "task", "dataset", "seconds, median", "p95", "waiting"],
        [
            [
                run.label,
                run.id,
                run.task,
                run.dataset,
                *(seconds_text(run.service_seconds.get(name, 0.0)) for name in ("median", "p95")),
                seconds_text(run.queue_seconds.get("median", 0.0)),
            ]
            for run in comparison.runs
        ],
        [4, 5, 6],
        drop=[6, 2, 5, 3],
    )


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
            f"{each.metric} {arrow(each.higher_is_better)}",
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
    last = len(head) - 1
    right = [2, 3, 4, 6, *([7] if several else [])]
    # Of several p values, the one without a correction goes first: alone it would mislead. Of several runs, the column
    # that tells their rows apart stays.
    plain = [2, 3] if len({each.run for each in comparison.differences}) > 1 else [1]
    drop = [last - 2, last - 1, *([6] if several else []), last, *plain, *([7] if several else [])]
    return Table(head, rows, right, drop=drop)


def arrow(higher_is_better: bool) -> str:
    """The direction in which a metric gets better."""
    return "↑" if higher_is_better else "↓"


def _denominator(each: Difference) -> str:
    difference = each.compared.difference
    bounds = bounds_text(difference, sign="+")
    return f"{difference.n:,} of {difference.of:,}{f'; {bounds}' if bounds else ''}"


def _explanation(comparison: Comparison) -> str:
    methods = dict.fromkeys(e.compared.difference.method for e in comparison.differences)
    tests = dict.fromkeys(e.compared.test.method for e in comparison.differences)
    text = f"Paired by example. Intervals: {', '.join(methods)}; tests: {', '.join(tests)}."
    if not all(each.higher_is_better for each in comparison.differences):
        text += " ↑: higher is better; ↓: lower is better."
    effects = [e.compared.difference.metadata.get("design_effect") for e in comparison.differences]
    known = [effect for effect in effects if effect is not None]
    if known:
        text += f" Design effect {', '.join(f'{effect:.2f}' for effect in known)}."
    text += correction_text(comparison)
    power = comparison.differences[0].compared.power
    return text + f" The smallest effect is the difference that this data would detect with power {power:g}."


def correction_text(comparison: Comparison) -> str:
    """What the adjusted p-values allow for and the intervals do not; empty for one difference."""
    several = len(comparison.differences)
    return f" p (Holm) allows for all {several} comparisons, the intervals do not." if several > 1 else ""


def _by_change(changed: list[ChangedExample]) -> dict[tuple[str, str], list[ChangedExample]]:
    out: dict[tuple[str, str], list[ChangedExample]] = {}
    for each in changed:
        out.setdefault((each.metric, each.run), []).append(each)
    return out


LONGEST = 4000
"""Characters that are kept of a setting, such as a prompt."""

Aspect = Literal["parameter", "task", "dataset", "code", "environment", "served model"]


class SettingDifference(msgspec.Struct, frozen=True):
    """A setting that is not the same in all runs."""

    aspect: Aspect
    name: str
    values: list[str | None]
    """One for each run; None where a run has no such setting."""


def setting_differences(headers: Sequence[RunHeader], datasets: Sequence[str]) -> list[SettingDifference]:
    """List the settings that differ between runs, the most likely cause of a difference first."""
    settings = differing(headers)
    names = dict.fromkeys(name for each in settings for name in each)
    found = [_difference("task", "task", [header.task for header in headers])]
    found += [_difference("parameter", name, [each.get(name) for each in settings]) for name in names]
    found.append(_difference("dataset", "dataset", datasets))
    found.append(_difference("code", "code", [header.code and header.code[:10] for header in headers]))
    found.append(
        _difference("code", "commit", [(h.environment.get("git_commit") or "")[:10] or None for h in headers])
    )
    rest = dict.fromkeys(name for h in headers for name in h.environment if name != "git_commit")
    found += [_difference("environment", name, [h.environment.get(name) for h in headers]) for name in rest]
    found.append(_difference("served model", "served model", [_served_models(header) for header in headers]))
    return [each for each in found if each is not None]


def served_warnings(headers: Sequence[RunHeader], labels: dict[str, str]) -> list[str]:
    """A warning for each run in which one model was served by several versions."""
    out = []
    for header in headers:
        for model, usage in header.usage.items():
            if len(usage.served) > 1:
                parts = [f"{name} ({plural(calls, 'call')})" for name, calls in sorted(usage.served.items())]
                out.append(
                    f"{labels.get(header.id, header.id)}: {model} was served by {len(parts)} models within one run:"
                    f" {', '.join(parts)}; its scores mix them"
                )
    return out


def _served_models(header: RunHeader) -> str | None:
    return ", ".join(sorted({name for usage in header.usage.values() for name in usage.served})) or None


def _difference(aspect: Aspect, name: str, values: Sequence[Any]) -> SettingDifference | None:
    texts = [None if value is None else _text(value) for value in values]
    return SettingDifference(aspect, name, texts) if len(set(texts)) > 1 else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def unequal_settings(headers: Sequence[RunHeader], labels: dict[str, str]) -> list[str]:
    """A sentence for each setting that runs say they have to share (`shared_settings`) and do not."""
    shared = [header.parameters.get("shared_settings") for header in headers]
    if not any(isinstance(each, dict) for each in shared):
        return []
    known = [each if isinstance(each, dict) else {} for each in shared]
    out = []
    for name in dict.fromkeys(name for each in known for name in each):
        values = [json.dumps(each.get(name), sort_keys=True, ensure_ascii=False) for each in known]
        if len(set(values)) > 1:
            listing = ", ".join(
                f"{value[:80]} in {labels.get(header.id, header.id)}"
                for value, header in zip(values, headers, strict=True)
            )
            out.append(f"{name} is not the same in all runs: {listing}")
    return out
