"""karat's own aggregator metrics: accuracy, precision, recall and F1.

Each number stays a plain float under the key it is known by and gets siblings: its interval, `n` and `of`, and
where items are missing the bounds they allow.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

from karat.aggregators import F1Score, Precision, Recall
from karat.graph.metrics._aggregator import BaseAggregatorMetric, aggregator_metric, unit_result
from karat.records import Estimate
from karat.stats import share


def with_siblings(name: str, estimate: Estimate) -> dict[str, Any]:
    """An estimate as the reports write it: the number, its interval, and bounds where items are missing."""
    interval = None if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]
    out: dict[str, Any] = {name: estimate.value, f"{name}_interval": interval}
    if estimate.of > estimate.n and estimate.lowest is not None:
        out[f"{name}_bounds"] = [estimate.lowest, estimate.highest]
    return out


@aggregator_metric("accuracy")
class AccuracyMetric(BaseAggregatorMetric):
    """The share of correct results. `key` is accepted for compatibility and has no effect."""

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
        return {**with_siblings("accuracy", share(correct, n, self.confidence, of=of)), "n": n, "of": of}


class _ClassMetric(BaseAggregatorMetric):
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

    def start(self) -> Any:
        return self.aggregator.start()

    def add(self, state: Any, result: Any) -> Any:
        unit = unit_result(result)
        if unit is None:
            state.missing += 1
        else:
            state.add_one(
                self.aggregator.reading.read(unit.correct, unit.golden, unit.predicted, unit.metadata)
            )
        return state

    def merge(self, a: Any, b: Any) -> Any:
        a.merge(b)
        return a

    def finish(self, state: Any) -> dict[str, Any]:
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
