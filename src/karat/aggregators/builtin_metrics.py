"""karat's own aggregator metrics: accuracy, precision, recall, F1 and those over attempts.

Each number stays a plain float under the key it is known by and gets siblings: its interval, `n` and `of`, and
where items are missing the bounds they allow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import repeat
from typing import Any, ClassVar

from karat.aggregators.classification import F1Score, OneMetric, Precision, Recall
from karat.aggregators.efficiency import StepEfficiency, count_of
from karat.aggregators.folding import field_of
from karat.aggregators.labels import LabelState
from karat.aggregators.metrics import (
    AggregatorMetricRegistry,
    BaseAggregatorMetric,
    aggregator_metric,
    unit_result,
)
from karat.aggregators.pass_k import MajorityAtK, OverAttempts, PassAtK, PassHatK, Problem
from karat.evaluators.unit.base import UnitMetricResult
from karat.records import Estimate
from karat.stats.proportions import wilson


def with_siblings(name: str, estimate: Estimate) -> dict[str, Any]:
    """An estimate as the reports write it: the number, its interval, and bounds where items are missing."""
    interval = None if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]
    out: dict[str, Any] = {name: estimate.value, f"{name}_interval": interval}
    if estimate.of > estimate.n and estimate.lowest is not None:
        out[f"{name}_bounds"] = [estimate.lowest, estimate.highest]
    return out


@aggregator_metric("accuracy")
class AccuracyMetric(BaseAggregatorMetric):
    """The share of correct results. `key` is taken for the graphs that give it: correctness is judged already."""

    name: ClassVar[str] = "accuracy"

    def __init__(self, key: str | None = None, confidence: float = 0.95) -> None:
        super().__init__(key=key, confidence=confidence)
        self.confidence = confidence

    def start(self) -> list[int]:
        """How many are correct, wrong and missing."""
        return [0, 0, 0]

    def add(self, state: list[int], result: Any) -> list[int]:
        unit = unit_result(result)
        state[2 if unit is None else 0 if unit.correct else 1] += 1
        return state

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return [x + y for x, y in zip(a, b, strict=True)]

    def finish(self, state: list[int]) -> dict[str, Any]:
        correct, wrong, missing = state
        n, of = correct + wrong, correct + wrong + missing
        return {**with_siblings("accuracy", wilson(correct, n, self.confidence, of=of)), "n": n, "of": of}


class _ClassMetric(BaseAggregatorMetric):
    """What precision, recall and F1 share: labels are counted as pairs and become classes at the end."""

    part: ClassVar[type[OneMetric]]
    word: ClassVar[str]

    def __init__(
        self,
        predicted_key: str | None = None,
        golden_key: str | None = None,
        average: str = "macro",
        normalize: bool | None = None,
        confidence: float = 0.95,
        seed: int = 0,
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
            seed=seed,
        )

    def state_key(self) -> Hashable:
        reading = self.aggregator.reading
        return "labels", reading.golden_key, reading.predicted_key, reading.normalize

    def start(self) -> LabelState:
        return LabelState()

    def add(self, state: LabelState, result: Any) -> LabelState:
        unit = unit_result(result)
        if unit is None:
            state.missing += 1
        else:
            state.add_one(
                self.aggregator.reading.read(unit.correct, unit.golden, unit.predicted, unit.metadata)
            )
        return state

    def merge(self, a: LabelState, b: LabelState) -> LabelState:
        a.merge(b)
        return a

    def finish(self, state: LabelState) -> dict[str, Any]:
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


class _Attempts:
    """Results by problem; where nothing says which, only how many passed, failed and are missing."""

    __slots__ = ("alone", "problems")

    def __init__(self) -> None:
        self.problems: dict[str, Problem] = {}
        self.alone = [0, 0, 0]

    def lone_problems(self) -> Iterator[Problem]:
        """One problem for each result that stands alone."""
        for times, passed, missing in zip(self.alone, ([True], [False], []), (0, 0, 1), strict=True):
            problem = Problem()
            problem.passed, problem.answers, problem.missing = list(passed), [None] * len(passed), missing
            yield from repeat(problem, times)


class _AttemptMetric(BaseAggregatorMetric):
    """What pass@k, pass^k and majority@k share. `problem_key` says which results are attempts at one problem:
    a field of the result's metadata, or of its golden value. k = 1 needs none."""

    part: ClassVar[type[OverAttempts]]

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
        if problem_key is None and max(self.aggregator.k) > 1:
            raise ValueError(
                f"k is {k}, so it matters which results are attempts at one problem: name the field that says it"
                " with problem_key"
            )

    def start(self) -> _Attempts:
        return _Attempts()

    def add(self, state: _Attempts, result: Any) -> _Attempts:
        unit = unit_result(result)
        if self.problem_key is None:
            state.alone[2 if unit is None else 0 if unit.correct else 1] += 1
            return state
        problem = state.problems.setdefault(self._problem(unit, result), Problem())
        if unit is None:
            problem.missing += 1
        else:
            problem.passed.append(unit.correct)
            problem.answers.append(unit.predicted if isinstance(unit.predicted, str) else None)
        return state

    def _problem(self, unit: UnitMetricResult | None, result: Any) -> str:
        assert self.problem_key is not None
        metadata = unit.metadata if unit is not None else result.get("metadata") if result else None
        for place in (metadata, unit.golden if unit is not None else None):
            found = field_of(place, self.problem_key) if isinstance(place, dict) else None
            if found is not None:
                return str(found)
        raise ValueError(
            f"a result has no field {self.problem_key!r}, which problem_key says names its problem"
        )

    def merge(self, a: _Attempts, b: _Attempts) -> _Attempts:
        a.alone = [x + y for x, y in zip(a.alone, b.alone, strict=True)]
        for place, problem in b.problems.items():
            have = a.problems.setdefault(place, Problem())
            have.passed += problem.passed
            have.answers += problem.answers
            have.missing += problem.missing
        return a

    def finish(self, state: _Attempts) -> dict[str, Any]:
        folded = self.aggregator.start()
        for problem in (*state.problems.values(), *state.lone_problems()):
            folded = self.aggregator.add_problems(folded, [problem], {})
        out: dict[str, Any] = {}
        for k in self.aggregator.k:
            name, estimate = f"{self.get_metric_name()[:-1]}{k}", self.aggregator.of_k(folded, k)
            out |= {**with_siblings(name, estimate), f"{name}_n": estimate.n, f"{name}_of": estimate.of}
        first = self.aggregator.of_k(folded, self.aggregator.k[0])
        out |= with_siblings(self.get_metric_name(), first)
        return {**out, "k": list(self.aggregator.k), "n": first.n, "of": first.of}


class PassAtKMetric(_AttemptMetric):
    """The probability that at least one of k attempts passes, unbiased, averaged over problems."""

    name: ClassVar[str] = "pass_at_k"
    part = PassAtK


class PassHatKMetric(_AttemptMetric):
    """The probability that all of k attempts pass, unbiased, averaged over problems."""

    name: ClassVar[str] = "pass_hat_k"
    part = PassHatK


class MajorityAtKMetric(_AttemptMetric):
    """The probability that the most frequent answer of k attempts is right, averaged over problems."""

    name: ClassVar[str] = "majority_at_k"
    part = MajorityAtK


@aggregator_metric("step_efficiency")
class StepEfficiencyMetric(BaseAggregatorMetric):
    """Fewest steps / steps taken for what is correct, 0 for what is not, averaged.

    `predicted_key` is where a result tells the steps taken (its predicted value, or its metadata), `golden_key` where
    it tells the fewest (its golden value, or its metadata): numbers, or lists that are counted.
    """

    name: ClassVar[str] = "step_efficiency"

    def __init__(
        self, predicted_key: str = "steps", golden_key: str = "optimal_steps", confidence: float = 0.95
    ) -> None:
        super().__init__(predicted_key=predicted_key, golden_key=golden_key, confidence=confidence)
        self.predicted_key = predicted_key
        self.golden_key = golden_key
        self.aggregator = StepEfficiency(predicted_key, golden_key, confidence=confidence)

    def start(self) -> Any:
        return self.aggregator.start()

    def add(self, state: Any, result: Any) -> Any:
        unit = unit_result(result)
        if unit is None:
            state.every.missing += 1
            return state
        taken = _steps(self.predicted_key, unit.predicted, unit.metadata)
        fewest = _steps(self.golden_key, unit.golden, unit.metadata)
        return self.aggregator.add_told(state, [(taken, fewest, unit.correct)], {})

    def merge(self, a: Any, b: Any) -> Any:
        return self.aggregator.merge(a, b)

    def finish(self, state: Any) -> dict[str, Any]:
        made = self.aggregator.finish(state).estimates
        every, passed = made[""], made["passed"]
        return {
            **with_siblings("step_efficiency", every),
            **with_siblings("step_efficiency_passed", passed),
            "step_efficiency_passed_n": passed.n,
            "step_efficiency_passed_of": passed.of,
            "n": every.n,
            "of": every.of,
        }


def _steps(key: str, *places: Any) -> float | None:
    found = (count_of(field_of(place, key)) for place in places if isinstance(place, dict))
    return next((steps for steps in found if steps is not None), None)


AggregatorMetricRegistry.register("pass_at_k", PassAtKMetric, ["pass@k"])
AggregatorMetricRegistry.register("pass_hat_k", PassHatKMetric, ["pass^k"])
AggregatorMetricRegistry.register("majority_at_k", MajorityAtKMetric, ["maj@k"])
