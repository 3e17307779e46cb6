"""Precision, recall and F1 of predicted classes, with the confusion matrix they come from."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from karat.aggregators.base import Aggregate, Aggregator, Group, register_aggregator
from karat.aggregators.labels import NOTHING, LabelState, reading_for
from karat.errors import did_you_mean
from karat.records import Estimate, Ok
from karat.stats._classification import Averages, Classification, Tally, macro_bounds, weighted_bounds

Average = Literal["macro", "micro", "weighted", "seed"]
AVERAGES = ("macro", "micro", "weighted", "seed")


class Metrics:
    """What a confusion matrix says, with the averages over classes as they are reported here."""

    def __init__(self, found: Classification, of: int) -> None:
        self.found = found
        self.of = of
        self.classes = {name: each for name, each in found.classes.items() if name != NOTHING}
        self.macro = self._over_classes(found.macro)

    def _over_classes(self, macro: Averages) -> Averages:
        """The macro average without the column of items for which nothing was predicted, which scores 0."""
        every, real = len(self.found.classes), len(self.classes)
        if every == real or not real:
            return macro
        return Averages(*(_scaled(each, every / real) for each in (macro.precision, macro.recall, macro.f1)))

    def average(self, metric: str, average: str) -> Estimate:
        """One average of `precision`, `recall` or `f1`, over n of how many items."""
        if average == "seed":
            estimate = self._of_seeds(metric)
        else:
            averages = {"macro": self.macro, "micro": self.found.micro, "weighted": self.found.weighted}
            estimate = getattr(averages[average], metric)
        return self._bounded(msgspec.structs.replace(estimate, of=self.of), metric, average)

    def _bounded(self, estimate: Estimate, metric: str, average: str) -> Estimate:
        """With what the missing items could make of it; nothing predicted is no class that they could be of."""
        missing = self.of - self.found.n
        if not missing or average == "micro" or not self.classes:
            return estimate
        tallies = self._tallies
        if average == "weighted":
            lowest, highest = weighted_bounds(list(tallies.values()), metric, missing)
        else:
            shown = self._shown(metric) if average == "seed" else list(self.classes)
            lowest, highest = macro_bounds(
                [tallies[name] for name in shown], metric, missing, len(self.classes) - len(shown)
            )
        return msgspec.structs.replace(estimate, lowest=lowest, highest=highest)

    @property
    def _tallies(self) -> dict[str, Tally]:
        return {name: Tally(each.right, each.support, each.predicted) for name, each in self.classes.items()}

    def _shown(self, metric: str) -> list[str]:
        """The classes that the average `seed` is over: predicted (precision), golden (recall), either (F1)."""
        return [
            name
            for name, each in self.classes.items()
            if metric == "f1" or (each.predicted if metric == "precision" else each.support)
        ]

    def _of_seeds(self, metric: str) -> Estimate:
        """The macro average, over the classes shown alone: the others score 0."""
        shown = self._shown(metric)
        macro: Estimate = getattr(self.macro, metric)
        if not shown:
            return msgspec.structs.replace(macro, value=None, low=None, high=None)
        return _scaled(macro, len(self.classes) / len(shown))

    def confusion(self) -> dict[str, Any]:
        """The confusion matrix as a table: rows are golden classes, columns predicted ones."""
        return {
            "labels": [str(label) for label in self.found.labels],
            "matrix": self.found.matrix,
            "support": {name: each.support for name, each in self.classes.items()},
        }


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    """An average over classes of which some score 0, as the average over the others."""

    def up(value: float | None) -> float | None:
        return None if value is None else min(1.0, value * factor)

    return msgspec.structs.replace(
        estimate, value=up(estimate.value), low=up(estimate.low), high=up(estimate.high)
    )


class _Classified(Aggregator[LabelState]):
    """What they share: labels come from results, are counted as pairs, and become classes at the end."""

    def __init__(
        self,
        golden_key: str | None = None,
        predicted_key: str | None = None,
        average: Average = "macro",
        normalize: bool | None = None,
        threshold: float = 0.5,
        cluster: str | None = None,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        if average not in AVERAGES:
            raise ValueError(f"average is {average!r}: {did_you_mean(str(average), AVERAGES)}")
        self.reading = reading_for(golden_key, predicted_key, normalize, threshold)
        self.average = average
        self.cluster = cluster
        self.confidence = confidence
        self.seed = seed

    def start(self) -> LabelState:
        return LabelState()

    def add(self, state: LabelState, group: Group) -> LabelState:
        results, reading = group.results, self.reading
        if len(results) == 1 and self.cluster is None and not group.pending:
            outcome = results[0].outcome
            if isinstance(outcome, Ok):
                last, said = reading.last
                if last is not outcome.value:
                    said = reading.said(outcome.value)
                if said in state.singles:
                    state.singles[said] += 1
                else:
                    state.add_one(said)
                return state
        every = [reading.said(r.outcome.value) for r in results if isinstance(r.outcome, Ok)]
        state.add(every, group.metadata, self.cluster)
        state.missing += group.missing
        return state

    def merge(self, a: LabelState, b: LabelState) -> LabelState:
        a.merge(b)
        return a

    def metrics(self, state: LabelState) -> Metrics:
        """All that the labels say."""
        return Metrics(*state.metrics(self.confidence, self.cluster, self.seed, self.reading.named))


class OneMetric(_Classified):
    metric: ClassVar[str]

    def finish(self, state: LabelState) -> Aggregate:
        metrics = self.metrics(state)
        out = Aggregate([metrics.average(self.metric, self.average)])
        for average in ("micro", "macro", "weighted"):
            out.add(metrics.average(self.metric, average), average)
        for name, each in metrics.classes.items():
            out.add(getattr(each, self.metric), group={"class": name})
        out.add_table(metrics.confusion(), "confusion")
        return out


@register_aggregator("precision")
class Precision(OneMetric):
    """Of what was predicted as a class, the share that is one: for each class and on average.

    `average` is macro (over the union of golden and predicted classes), micro, weighted by support, or `seed`:
    over the classes that were predicted. `golden_key` and `predicted_key` name the field of a label that is an
    object; `normalize` says whether case tells classes apart, where the evaluator does not.
    """

    name = "precision"
    metric = "precision"


@register_aggregator("recall")
class Recall(OneMetric):
    """Of the items of a class, the share that was predicted as it: for each class and on average.

    Parameters as those of `precision`; the average `seed` is over the golden classes.
    """

    name = "recall"
    metric = "recall"


@register_aggregator("f1_score", "f1")
class F1Score(OneMetric):
    """The harmonic mean of precision and recall: for each class and on average. Parameters as `precision`."""

    name = "f1_score"
    metric = "f1"


@register_aggregator("classification")
class ClassificationReport(_Classified):
    """Accuracy, precision, recall and F1 at once, for each class and on average, from one pass over the labels."""

    name = "classification"

    def finish(self, state: LabelState) -> Aggregate:
        metrics = self.metrics(state)
        out = Aggregate()
        out.add(metrics.found.accuracy, "accuracy")
        for metric in ("precision", "recall", "f1"):
            for average in ("micro", "macro", "weighted"):
                out.add(metrics.average(metric, average), f"{average}_{metric}")
        for name, each in metrics.classes.items():
            for metric in ("precision", "recall", "f1"):
                out.add(getattr(each, metric), metric, group={"class": name})
        out.add_table(metrics.confusion(), "confusion")
        return out
