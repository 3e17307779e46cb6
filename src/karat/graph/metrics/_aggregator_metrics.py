"""karat's own aggregator metrics: accuracy, precision, recall and F1; pass@k, pass^k, majority@k, step efficiency.

Each number stays a plain float under the key it is known by and gets siblings: its interval, `n` and `of`, and
where items are missing the bounds they allow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar

from karat import paths
from karat.aggregators import (
    Accuracy,
    F1Score,
    MajorityAtK,
    PassAtK,
    PassHatK,
    Precision,
    Problem,
    Recall,
    StepEfficiency,
    count_of,
)
from karat.graph.metrics._aggregator import (
    AggregatorMetricRegistry,
    BaseAggregatorMetric,
    MetricResult,
    State,
    aggregator_metric,
    unit_result,
)
from karat.graph.metrics._unit import UnitMetricResult
from karat.records import MISSING_ATTEMPTS, Estimate
from karat.stats import MeanState

# How few tries steps took: 1 for a step that was right at once, less for each retry, 0 for one that never was.
#
# A step's value is known once nothing that is missing could change it: a try without a verdict counts neither as right
# nor as wrong, and only matters where no earlier try was right.


def retry_of(metadata: Mapping[str, Any]) -> int | None:
    """Return the try of a result, 0 for the first: `retry_number`, or the number at the end of `retry_id`."""
    retry = metadata.get("retry_number")
    if retry is None:
        retry = metadata.get("retry_id")
    if retry is None:
        return None
    number = retry.rpartition("_")[2] if isinstance(retry, str) else retry
    if isinstance(number, str) and number.isdecimal() and len(number) < 10:
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(
            f"{retry!r:.60} is not a retry: give a number from 0, or a text that ends in one such as retry_0"
        )
    return number


class _Step:
    """The first try at a step that was right, and the first that has no verdict."""

    __slots__ = ("right", "unjudged")

    def __init__(self) -> None:
        self.right: int | None = None
        self.unjudged: int | None = None

    @property
    def known(self) -> bool:
        """Whether the value is known without the missing tries."""
        return self.unjudged is None or (self.right is not None and self.right < self.unjudged)


class Tries:
    """The tries at steps, identified by `mission_id` and `step_id`. States merge in any order."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str], _Step] = {}

    def add(self, metadata: Mapping[str, Any], retry: int, correct: bool | None) -> None:
        """Add a try: whether it was right, or None where that is unknown."""
        name = (str(metadata.get("mission_id")), str(metadata.get("step_id")))
        step = self.steps.setdefault(name, _Step())
        if correct is None:
            step.unjudged = _first(step.unjudged, retry)
        elif correct:
            step.right = _first(step.right, retry)

    def merge(self, other: Tries) -> None:
        """Merge the tries of another state into this one."""
        for name, theirs in other.steps.items():
            step = self.steps.setdefault(name, _Step())
            step.right = _first(step.right, theirs.right)
            step.unjudged = _first(step.unjudged, theirs.unjudged)

    def efficiency(self, penalty: float, unknown: int, confidence: float) -> Estimate:
        """The mean over steps; `unknown` are results of which not even the step is known, a step each."""
        known = [step for step in self.steps.values() if step.known]
        shares = [0.0 if step.right is None else max(0.0, 1.0 - penalty * step.right) for step in known]
        mean = MeanState()
        for each in shares:
            mean.add([each])
        return mean.estimate(confidence, of=len(self.steps) + unknown, bounds=(0.0, 1.0))

    def counts(self) -> dict[str, Any]:
        """Count the steps with a known value: right at once, right later, never right."""
        rights = list(self._rights())
        found = [right for right in rights if right is not None]
        return {
            "first_attempt_correct": found.count(0),
            "retry_correct": len(found) - found.count(0),
            "never_correct": len(rights) - len(found),
            "avg_retries_when_correct": sum(found) / len(found) if found else None,
        }

    def _rights(self) -> Iterator[int | None]:
        return (step.right for step in self.steps.values() if step.known)


def _first(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


class _OfAggregator(BaseAggregatorMetric):
    """Base of metrics that an aggregator folds and finishes; they lay its estimates out as reports have them."""

    aggregator: Any

    def start(self) -> Any:
        return self.aggregator.start()

    def add(self, state: State, result: MetricResult) -> Any:
        return self.add_attempts(state, [result])

    def merge(self, a: State, b: State) -> Any:
        return self.aggregator.merge(a, b)


class _Attempts:
    """Results by problem; without a problem key, only the counts of passed, failed and missing."""

    __slots__ = ("alone", "examples", "problems")

    def __init__(self, examples: Any) -> None:
        self.problems: dict[str, Problem] = {}
        self.alone = [0, 0, 0]
        self.examples = examples
        """The state of the aggregator with the examples that have several attempts, a problem each."""

    def lone_problems(self) -> Iterator[Problem]:
        """Return one problem for each result without a problem key."""
        for times, passed, missing in zip(self.alone, ([True], [False], []), (0, 0, 1), strict=True):
            problem = Problem()
            problem.passed, problem.answers, problem.missing = list(passed), [None] * len(passed), missing
            yield from repeat(problem, times)


class _AttemptMetric(BaseAggregatorMetric):
    """Base of pass@k, pass^k and majority@k. Results with the same `problem_key` are attempts at one problem; the key
    is a field of the result's metadata, or of its golden value.

    k = 1 needs no key. For k > 1 without a key, all results are taken as attempts at one problem (`pooled`), for each
    number up to `k`, and without an interval, since the variation between problems is unknown.
    """

    part: ClassVar[type[PassAtK] | type[PassHatK] | type[MajorityAtK]]
    symbol: ClassVar[str]
    """What stands before k in the keys of results that no problem is named of: `pass@3`."""
    pools: ClassVar[bool] = True
    locates_missing: ClassVar[bool] = True

    def __init__(
        self,
        k: int | Sequence[int] = 1,
        problem_key: str | None = None,
        key: str | None = None,
        confidence: float = 0.95,
    ) -> None:
        super().__init__(k=k, problem_key=problem_key, key=key, confidence=confidence)
        self.aggregator = self.part(k, confidence=confidence)
        self.problem_key = problem_key
        self.pooled = problem_key is None and max(self.aggregator.k) > 1
        if self.pooled and not self.pools:
            raise ValueError(
                f"k is {k}, so results must be grouped by problem: set problem_key to the field that identifies the"
                " problem"
            )
        if self.pooled and isinstance(k, int):
            self.aggregator = self.part(range(1, k + 1), confidence=confidence)

    def start(self) -> _Attempts:
        return _Attempts(self.aggregator.start())

    def add(self, state: _Attempts, result: MetricResult) -> _Attempts:
        unit = result if type(result) is UnitMetricResult else unit_result(result)
        if self.problem_key is None:
            state.alone[2 if unit is None else 0 if unit.correct else 1] += 1
            return state
        _attempt(state.problems.setdefault(self._problem(unit, result), Problem()), unit)
        return state

    def add_attempts(self, state: _Attempts, results: Sequence[MetricResult]) -> _Attempts:
        if self.pooled or len(results) < 2:
            for result in results:
                self.add(state, result)
            return state
        if self.problem_key is not None:
            # A missing attempt of which nothing else is known is at the problem of the other attempts.
            known = next((result for result in results if result is not None), None)
            for result in results:
                if result is None and known is not None:
                    state.problems.setdefault(
                        self._problem(unit_result(known), known), Problem()
                    ).missing += 1
                else:
                    self.add(state, result)
            return state
        problem = Problem()
        for result in results:
            _attempt(problem, unit_result(result))
        self.aggregator.add_problems(state.examples, [problem], {})
        return state

    def _problem(self, unit: UnitMetricResult | None, result: Any) -> str:
        assert self.problem_key is not None
        metadata = unit.metadata if unit is not None else result.get("metadata") if result else None
        for place in (metadata, unit.golden if unit is not None else None):
            found = paths.get(place, self.problem_key) if isinstance(place, dict) else None
            if found is not None:
                return str(found)
        raise ValueError(f"a result has no field {self.problem_key!r}, which problem_key names")

    def merge(self, a: _Attempts, b: _Attempts) -> _Attempts:
        a.alone = [x + y for x, y in zip(a.alone, b.alone, strict=True)]
        a.examples = self.aggregator.merge(a.examples, b.examples)
        for place, problem in b.problems.items():
            have = a.problems.setdefault(place, Problem())
            have.passed += problem.passed
            have.answers += problem.answers
            have.missing += problem.missing
        return a

    def finish(self, state: _Attempts) -> dict[str, Any]:
        if self.pooled:
            return self._of_all(*state.alone)
        folded = self.aggregator.merge(self.aggregator.start(), state.examples)
        for problem in (*state.problems.values(), *state.lone_problems()):
            folded = self.aggregator.add_problems(folded, [problem], {})
        out: dict[str, Any] = {}
        for k in self.aggregator.k:
            name, estimate = f"{self.get_metric_name()[:-1]}{k}", self.aggregator.of_k(folded, k)
            out |= {**with_siblings(name, estimate), f"{name}_n": estimate.n, f"{name}_of": estimate.of}
            if self.problem_key is None:
                out[f"{self.symbol}{k}"] = estimate.value
        first = self.aggregator.of_k(folded, self.aggregator.k[0])
        out |= with_siblings(self.get_metric_name(), first)
        return {**out, "k": list(self.aggregator.k), "n": first.n, "of": first.of}

    def _of_all(self, passed: int, wrong: int, missing: int) -> dict[str, Any]:
        """All results as attempts at one problem."""
        n, of = passed + wrong, passed + wrong + missing
        expected = self.aggregator.expected
        out: dict[str, Any] = {}
        for k in self.aggregator.k:
            names = [f"{self.symbol}{k}", *([self.get_metric_name()] if k == max(self.aggregator.k) else [])]
            for name in names:
                out[name] = expected(n, passed, k) if n >= k else None
                if missing and of >= k:
                    out[f"{name}_bounds"] = [expected(of, passed, k), expected(of, passed + missing, k)]
        return {**out, "k": list(self.aggregator.k), "pooled": True, "n": n, "of": of}


def _attempt(problem: Problem, unit: UnitMetricResult | None) -> None:
    """Adds an attempt at a problem; None for one that is missing."""
    if unit is None:
        problem.missing += 1
    else:
        problem.passed.append(unit.correct)
        problem.answers.append(unit.predicted if isinstance(unit.predicted, str) else None)


class PassAtKMetric(_AttemptMetric):
    """The probability that at least one of k attempts passes, unbiased, averaged over problems."""

    name: ClassVar[str] = "pass_at_k"
    part = PassAtK
    symbol = "pass@"


class PassHatKMetric(_AttemptMetric):
    """The probability that all of k attempts pass, unbiased, averaged over problems."""

    name: ClassVar[str] = "pass_hat_k"
    part = PassHatK
    symbol = "pass^"

    def _of_all(self, passed: int, wrong: int, missing: int) -> dict[str, Any]:
        n = passed + wrong
        return {"success_rate": passed / n if n else None, **super()._of_all(passed, wrong, missing)}


class MajorityAtKMetric(_AttemptMetric):
    """The probability that the most frequent answer of k attempts is right, averaged over problems."""

    name: ClassVar[str] = "majority_at_k"
    part = MajorityAtK
    symbol = "maj@"
    pools: ClassVar[bool] = False  # answers to different problems do not vote with each other


@aggregator_metric("step_efficiency")
class StepEfficiencyMetric(_OfAggregator):
    """The mean of (fewest steps / steps taken), 0 for incorrect results; or a score of the retries of each step.

    `predicted_key` is the field with the steps taken (in the predicted value or the metadata), `golden_key` the field
    with the fewest steps (in the golden value or the metadata): a number, or a list whose items are counted. Results
    without steps that have a `retry_number` (or a `retry_id` such as `retry_2`) in their metadata are tries at the step
    with that `mission_id` and `step_id`. A step that is correct at once scores 1, less `penalty_per_retry` for each
    retry, and 0 if no try was correct. `key` is accepted for compatibility and has no effect.
    """

    name: ClassVar[str] = "step_efficiency"
    locates_missing: ClassVar[bool] = True

    def __init__(
        self,
        predicted_key: str = "steps",
        golden_key: str = "optimal_steps",
        confidence: float = 0.95,
        penalty_per_retry: float = 0.2,
        key: str | None = None,
    ) -> None:
        super().__init__(
            predicted_key=predicted_key,
            golden_key=golden_key,
            confidence=confidence,
            penalty_per_retry=penalty_per_retry,
            key=key,
        )
        if isinstance(penalty_per_retry, bool) or not 0 <= penalty_per_retry <= 1:
            raise ValueError(
                f"penalty_per_retry is {penalty_per_retry!r}: it must be a number between 0 and 1"
            )
        self.predicted_key = predicted_key
        self.golden_key = golden_key
        self.penalty = penalty_per_retry
        self.aggregator = StepEfficiency(predicted_key, golden_key, confidence=confidence)

    def start(self) -> tuple[Any, Tries]:
        """The steps taken, and the tries at each step."""
        return self.aggregator.start(), Tries()

    def add_attempts(self, state: tuple[Any, Tries], results: Sequence[MetricResult]) -> tuple[Any, Tries]:
        found = [steps for result in results if (steps := self._taken(state, result)) is not None]
        if found:
            self.aggregator.add_steps(state[0], found, {})
        return state

    def _taken(
        self, state: tuple[Any, Tries], result: MetricResult
    ) -> tuple[float | None, float | None, bool] | None:
        """The steps of a result, the fewest, and whether it is correct; None for what is counted otherwise."""
        unit = result if type(result) is UnitMetricResult else unit_result(result)
        steps, tries = state
        metadata = (
            unit.metadata
            if unit is not None
            else result.get("metadata") or {}
            if isinstance(result, dict)
            else {}
        )
        taken = _steps(self.predicted_key, unit.predicted if unit else None, metadata)
        fewest = _steps(self.golden_key, unit.golden if unit else None, metadata)
        has_steps = taken is not None and fewest is not None
        if not has_steps and (retry := retry_of(metadata)) is not None:
            tries.add(metadata, retry, None if unit is None else unit.correct)
        elif unit is None:
            steps.every.missing += 1
        else:
            return taken, fewest, unit.correct
        return None

    def merge(self, a: tuple[Any, Tries], b: tuple[Any, Tries]) -> tuple[Any, Tries]:
        a[1].merge(b[1])
        return self.aggregator.merge(a[0], b[0]), a[1]

    def finish(self, state: tuple[Any, Tries]) -> dict[str, Any]:
        steps, tries = state
        if tries.steps:
            if steps.unknown or steps.every.mean.n:
                raise ValueError("some results have a retry number and others do not")
            unknown = steps.every.missing
            estimate = tries.efficiency(self.penalty, unknown, self.aggregator.confidence)
            counts = {"total_steps": estimate.of, **tries.counts()}
            return {
                **with_siblings("step_efficiency", estimate),
                **counts,
                "n": estimate.n,
                "of": estimate.of,
            }
        made = self.aggregator.finish(steps)
        every, passed = made.get(), made.get("passed")
        return {
            **with_siblings("step_efficiency", every),
            **with_siblings("step_efficiency_passed", passed),
            "step_efficiency_passed_n": passed.n,
            "step_efficiency_passed_of": passed.of,
            "n": every.n,
            "of": every.of,
        }


def _steps(key: str, *places: Any) -> float | None:
    found = (count_of(paths.get(place, key)) for place in places if isinstance(place, dict))
    return next((steps for steps in found if steps is not None), None)


AggregatorMetricRegistry.register("pass_at_k", PassAtKMetric, ["pass@k"])
AggregatorMetricRegistry.register("pass_hat_k", PassHatKMetric, ["pass^k"])
AggregatorMetricRegistry.register("majority_at_k", MajorityAtKMetric, ["maj@k"])


def with_siblings(name: str, estimate: Estimate) -> dict[str, Any]:
    """An estimate as the reports write it: the number, its interval, and bounds where items are missing."""
    interval = None if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]
    out: dict[str, Any] = {name: estimate.value, f"{name}_interval": interval}
    if estimate.missing and estimate.lowest is not None:
        out[f"{name}_bounds"] = [estimate.lowest, estimate.highest]
        if "bounds_assume" in estimate.metadata:
            out[f"{name}_bounds_assume"] = estimate.metadata["bounds_assume"]
        if MISSING_ATTEMPTS in estimate.metadata:
            out[f"{name}_missing"] = estimate.missing
    return out


@aggregator_metric("accuracy")
class AccuracyMetric(_OfAggregator):
    """The share of correct results. `key` is accepted for compatibility and has no effect."""

    name: ClassVar[str] = "accuracy"

    def __init__(self, key: str | None = None, confidence: float = 0.95) -> None:
        super().__init__(key=key, confidence=confidence)
        self.aggregator = Accuracy(confidence=confidence)

    def add_attempts(self, state: State, results: Sequence[MetricResult]) -> Any:
        verdicts: list[bool | None] = []
        for result in results:
            unit = result if type(result) is UnitMetricResult else unit_result(result)
            verdicts.append(None if unit is None else unit.correct)
        return self.aggregator.add_verdicts(state, verdicts)

    def finish(self, state: State) -> dict[str, Any]:
        estimate = self.aggregator.finish(state).get()
        return {**with_siblings("accuracy", estimate), "n": estimate.n, "of": estimate.of}


class _ClassMetric(_OfAggregator):
    """Base of precision, recall and F1: label pairs are counted, and classes are formed at the end.

    The default `average` is that of SyGra's reports: precision over the predicted classes, recall over the golden
    classes, F1 as the harmonic mean of the two averages. A report names the average and contains the others too.
    """

    part: ClassVar[type[Precision] | type[Recall] | type[F1Score]]
    word: ClassVar[str]

    def __init__(
        self,
        predicted_key: str | None = None,
        golden_key: str | None = None,
        average: str = "seed",
        normalize: bool | None = None,
        confidence: float = 0.95,
    ) -> None:
        super().__init__(
            predicted_key=predicted_key,
            golden_key=golden_key,
            average=average,
            normalize=normalize,
            confidence=confidence,
        )
        self.aggregator = self.part(
            golden_key,
            predicted_key,
            average,  # type: ignore[arg-type]  # checked there
            normalize,
            confidence=confidence,
        )

    def state_key(self) -> Hashable:
        reading = self.aggregator.reading
        return "labels", reading.golden_key, reading.predicted_key, reading.normalize

    def add_attempts(self, state: State, results: Sequence[MetricResult]) -> Any:
        read, labels = self.aggregator.reading.read, []
        for result in results:
            unit = result if type(result) is UnitMetricResult else unit_result(result)
            if unit is None:
                state.missing += 1
            else:
                labels.append(read(unit.correct, unit.golden, unit.predicted, unit.metadata))
        if len(labels) == 1:
            state.add_one(labels[0])
        elif labels:
            state.add(labels, {}, None)
        return state

    def finish(self, state: State) -> dict[str, Any]:
        metrics, metric, word = self.aggregator.metrics(state), self.part.metric, self.word
        of_seeds = self.aggregator.average == "seed"
        classes = {
            name: getattr(each, metric)
            for name, each in metrics.classes.items()
            if not of_seeds or getattr(each, metric).value is not None
        }
        out = with_siblings(f"average_{word}", metrics.average(metric, self.aggregator.average))
        out[f"{word}_per_class"] = {name: each.value or 0.0 for name, each in classes.items()}
        out[f"{word}_per_class_interval"] = {
            name: None if each.low is None else [each.low, each.high] for name, each in classes.items()
        }
        if metrics.of > metrics.found.n:
            out[f"{word}_per_class_bounds"] = {
                name: [each.lowest, each.highest] for name, each in classes.items()
            }
        for average in ("micro", "macro", "weighted"):
            out |= with_siblings(f"{average}_{word}", metrics.average(metric, average))
        confusion = metrics.confusion()
        return {
            **out,
            "average": self.aggregator.average,
            "support": confusion.pop("support"),
            "confusion_matrix": confusion,
            "n": metrics.found.n,
            "of": metrics.of,
        }


@aggregator_metric("precision")
class PrecisionMetric(_ClassMetric):
    """Of what was predicted as a class, the share that is one: per class, and averaged over all classes."""

    name: ClassVar[str] = "precision"
    part = Precision
    word = "precision"


@aggregator_metric("recall")
class RecallMetric(_ClassMetric):
    """Of the items of a class, the share that was predicted as it: per class, and averaged over all classes."""

    name: ClassVar[str] = "recall"
    part = Recall
    word = "recall"


@aggregator_metric("f1_score")
class F1ScoreMetric(_ClassMetric):
    """The harmonic mean of precision and recall: per class, and averaged over all classes."""

    name: ClassVar[str] = "f1_score"
    part = F1Score
    word = "f1_score"
