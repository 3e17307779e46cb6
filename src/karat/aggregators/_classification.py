"""Precision, recall and F1 of predicted classes, with the confusion matrix they come from."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import msgspec

from karat import paths
from karat.aggregators._base import (
    Aggregate,
    Aggregator,
    FieldNames,
    Group,
    Passing,
    add_sizes,
    register_aggregator,
)
from karat.errors import did_you_mean
from karat.evaluators._values import TextRules, json_text, text_of, value_at
from karat.records import Estimate, EvaluatorSpec, Ok, Result
from karat.stats._classification import (
    Averages,
    Classification,
    ConfusionState,
    Misused,
    Tally,
    macro_bounds,
    metrics_of,
    weighted_bounds,
)
from karat.stats._validation import check_confidence

MOST_PAIRS = 100_000
MOST_CLASSES = 2_000
LONGEST = 200
NOTHING = "(no prediction)"
"""The column of items for which nothing was predicted. It is no class: averages over classes leave it out."""

EXACT, CASE, SPACES = 0, 1, 2
"""What does not tell labels apart: nothing, case, runs of whitespace, or (their sum) both."""
_FOLDS = [
    TextRules(case_sensitive=not kind & CASE, normalize_whitespace=bool(kind & SPACES)).normaliser()
    for kind in (EXACT, CASE, SPACES, CASE | SPACES)
]
FOLDING = frozenset({"exact_match", "fuzzy_match", "typed_value_match"})
"""Unit metrics that compare text without regard to case and whitespace unless their metadata say otherwise."""


ASSUMED = {"bounds_assume": "missing items are of the classes seen"}
"""In the metadata of averages over classes: a missing item of another class would add a class to the average."""
MOST_FIELDS = 5


class Absent(NamedTuple):
    """Stands for a predicted label if the prediction is an object without the named field."""

    fields: tuple[str, ...]
    """Some of the fields that it has."""


Labelled = tuple[str, str | Absent | None, bool, int]
"""What one result says, as it is counted: golden, predicted, whether it is correct, and what does not tell its labels
apart."""


class Reading(Passing):
    """How labels are found in results: where, and what counts as the same."""

    def __init__(
        self,
        golden_key: str | None = None,
        predicted_key: str | None = None,
        normalize: bool | None = None,
        threshold: float = 0.5,
        lower_is_better: bool = False,
    ) -> None:
        for name, value in (("golden_key", golden_key), ("predicted_key", predicted_key)):
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"{name} must be the name of a field of the label, not {value!r}")
        if normalize not in (None, True, False):
            raise ValueError(f"normalize must be true or false, not {normalize!r}")
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
            raise ValueError(f"threshold must be a number, not {threshold!r}")
        self.named = bool(golden_key or predicted_key)
        """Whether a label is a field of what was judged, which may then be wrong for more than its label."""
        self.golden_key = golden_key or predicted_key
        self.predicted_key = predicted_key or golden_key
        self.normalize = normalize
        self.threshold = threshold
        self.lower_is_better = lower_is_better
        self.last: tuple[Result | None, Labelled | None] = (None, None)
        """What was read last: precision, recall and F1 ask for the same result one after the other."""

    def labels_of(self, result: Result) -> Labelled | None:
        """The labels of a stored result; None where it has no score or no golden one."""
        score, metadata = result.score, result.metadata
        labels = None
        if score is not None:
            correct = self.passes(score)
            labels = self.read(correct, metadata.get("golden"), metadata.get("predicted"), metadata)
        self.last = (result, labels)
        return labels

    def read(
        self, correct: bool, golden: object, predicted: object, metadata: Mapping[str, Any]
    ) -> Labelled | None:
        """The labels of a result; None where there is no golden one, or it is not known what was predicted.

        A correct prediction without the field that is named predicted something, and nothing says what.
        """
        if type(golden) is not str and (golden := label(golden, self.golden_key)) is None:
            return None
        found: str | Absent | None
        if type(predicted) is str:
            found = predicted
        else:
            found = None if predicted is None else self._predicted(predicted)
            if correct and self.named and not isinstance(found, str):
                return None
        if self.normalize is not None:
            return golden, found, correct, (CASE | SPACES) * self.normalize
        get = metadata.get
        sensitive, spaces = get("case_sensitive"), get("normalize_whitespace")
        case = get("validator") in FOLDING if sensitive is None else not sensitive
        return golden, found, correct, CASE * case | SPACES * bool(case if spaces is None else spaces)

    def _predicted(self, value: object) -> str | Absent | None:
        found = label(value, self.predicted_key)
        if found is not None or self.predicted_key is None or not isinstance(value, Mapping):
            return found
        if paths.find(value, self.predicted_key) is not paths.MISSING:
            return None
        return Absent(tuple(sorted(map(str, value))[:MOST_FIELDS]))


_reading_for = functools.lru_cache(64)(Reading)


def reading_for(*parameters: Any) -> Reading:
    """One reading for all aggregators that read alike."""
    try:
        return _reading_for(*parameters)
    except TypeError:  # a list or a mapping, which no parameter is
        return Reading(*parameters)


def label(value: object, key: str | None) -> str | None:
    """A golden or predicted value as a label: the field that is named, else its text, else its JSON."""
    if key is not None and type(value) is dict and type(found := value.get(key)) is str:
        return found  # as almost all are: no need to look at the rest of it
    if key is not None and isinstance(value, Mapping):
        try:
            value = value_at(value, key, "the label")
        except Exception:  # a prediction without the field predicted nothing
            return None
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return json_text(value, "the label")
    try:
        return text_of(value, "the label")
    except Exception:  # several fields that could be meant: the whole value is the label
        return json_text(value, "the label")


class LabelState:
    """Counts of the labels in results, by cluster where examples have several."""

    __slots__ = ("clustered", "fields", "missing", "parts", "right", "singles", "unlabelled")

    def __init__(self) -> None:
        self.singles: dict[Labelled, int] = {}
        """Of clusters of one result."""
        self.clustered = ConfusionState()
        """Of clusters of several; its cells hold `Labelled` pairs, not classes yet."""
        self.right: Counter[tuple[int, int]] = Counter()
        """How many of these have so many right items, of so many."""
        self.parts: dict[str, Counter[Labelled]] = {}
        """Of clusters by a metadata field, which arrive in parts."""
        self.fields = FieldNames()
        self.missing = 0
        self.unlabelled = 0

    def add_one(self, labels: Labelled | None) -> None:
        """Add a cluster of one result."""
        if labels is None:
            self.unlabelled += 1
            return
        singles = self.singles
        if labels in singles:
            singles[labels] += 1
        else:
            self._new(labels, 1)

    def _new(self, labels: Labelled, times: int) -> None:
        if len(self.singles) >= MOST_PAIRS:
            raise ValueError(
                f"more than {MOST_PAIRS:,} different pairs of labels: this looks like free text; use accuracy"
            )
        self.singles[labels] = times

    def add(
        self, labels: Sequence[Labelled | None], metadata: Mapping[str, Any], cluster: str | None
    ) -> None:
        """Add the results of one example."""
        known = [each for each in labels if each is not None]
        self.unlabelled += len(labels) - len(known)
        value = None
        if cluster is not None:
            value = paths.get(metadata, cluster)
            self.fields.note(metadata, value)
        if value is not None:
            self.parts.setdefault(str(value), Counter()).update(known)
        elif len(known) == 1:
            self.add_one(known[0])
        else:
            self.clustered.add((each, None) for each in known)
            if known:
                self.right[sum(correct for _, _, correct, _ in known), len(known)] += 1

    def merge(self, other: LabelState) -> None:
        """Merge another state into this one."""
        for labels, times in other.singles.items():
            if labels in self.singles:
                self.singles[labels] += times
            else:
                self._new(labels, times)
        self.clustered.merge(other.clustered)
        self.right.update(other.right)
        for value, counts in other.parts.items():
            self.parts.setdefault(value, Counter()).update(counts)
        self.fields.merge(other.fields)
        self.missing += other.missing
        self.unlabelled += other.unlabelled

    def confusion(self, cluster: str | None, reading: Reading) -> ConfusionState:
        """Return the confusion matrix over all classes."""
        counts: Counter[Labelled] = Counter(self.singles)
        counts.update({cell[0]: times for cell, times in self.clustered.counts.items()})  # type: ignore[misc]  # as added
        for part in self.parts.values():
            counts.update(part)
        if not counts:
            return ConfusionState()
        if cluster is not None and not self.parts:
            self.fields.check(cluster, "cluster")
        _check_predicted(counts, reading)
        cells = _cells(counts, reading.named)
        out = ConfusionState()
        for labels, times in self.singles.items():
            out.counts[cells[labels]] += times
        add_sizes(out, 1, sum(self.singles.values()))
        for cell, times in self.clustered.counts.items():
            out.counts[cells[cell[0]]] += times  # type: ignore[index]  # as added
        for (one, other), times in self.clustered.pairs.items():
            out.pairs[cells[one[0]], cells[other[0]]] += times  # type: ignore[index]  # as added
        out.right.update(self.right)
        out.several.merge(self.clustered.several)
        out.singles += self.clustered.singles
        for part in self.parts.values():
            out.add(cells[labels] for labels in part.elements())
        return out

    def metrics(self, confidence: float, cluster: str | None, reading: Reading) -> tuple[Classification, int]:
        """All classification metrics, with the number of items they are based on."""
        state = self.confusion(cluster, reading)
        of = state.n + self.missing + self.unlabelled
        if not state.n and self.unlabelled:
            keys = f" (golden_key {reading.golden_key!r}, predicted_key {reading.predicted_key!r})"
            raise ValueError(
                f"these results have no labels{keys if reading.named else ''}: the evaluator must put golden and"
                " predicted into its metadata, as unit:exact_match does"
            )
        if len(state.labels()) > MOST_CLASSES:
            raise ValueError(
                f"more than {MOST_CLASSES:,} different labels: this looks like free text; use accuracy"
            )
        return metrics_of(state, of=of, confidence=confidence, drawn=cluster is not None), of


def _check_predicted(counts: Mapping[Labelled, int], reading: Reading) -> None:
    """Refuse a predicted_key that no prediction has: every prediction would count as missing."""
    predicted = {labels[1] for labels in counts}
    absent = [each for each in predicted if isinstance(each, Absent)]
    if absent and not any(isinstance(each, str) for each in predicted):
        fields = {field for each in absent for field in each.fields}
        key = reading.predicted_key or ""
        raise ValueError(
            f"no prediction has the field {key!r}, which predicted_key names: {did_you_mean(key, fields)}"
        )


def _cells(counts: Mapping[Labelled, int], parts: bool) -> dict[Labelled, tuple[str, str | Misused]]:
    """The class of each golden and predicted label; a prediction that was judged right is of the golden class.

    One that is of the golden class and was judged wrong is a contradiction, unless the labels are `parts` of what was
    judged: the right tool, used wrongly.
    """
    spellings: dict[str, Counter[str]] = {}
    for (golden, predicted, _, folded), times in counts.items():
        for text, weight in ((golden, 1 << 40), (predicted, 1)):
            if isinstance(text, str):
                # Golden spellings come before all predicted ones.
                spellings.setdefault(_key(text, folded), Counter())[_bound(text)] += times * weight
    names = {key: min(spelled, key=lambda text: (-spelled[text], text)) for key, spelled in spellings.items()}
    taken: dict[str, str] = {}
    for key in sorted(names):  # two classes may be spelled alike, when case matters to some results only
        if taken.setdefault(names[key], key) != key:
            names[key] = key
    cells: dict[Labelled, tuple[str, str | Misused]] = {}
    for labels in counts:
        golden, predicted, correct, folded = labels
        row = names[_key(golden, folded)]
        column: str | Misused = names[_key(predicted, folded)] if isinstance(predicted, str) else NOTHING
        if correct:
            column = row
        elif row == column and golden != predicted:
            column = repr(predicted)[:LONGEST]  # the metric was stricter than the classes are
        elif row == column and parts:
            column = Misused(row)
        elif row == column:
            raise ValueError(
                f"golden and predicted are both {row[:60]!r}, but the result is incorrect: the labels are not the"
                " judged values; set golden_key and predicted_key, or use accuracy"
            )
        cells[labels] = (row, column)
    return cells


def _key(text: str, folded: int) -> str:
    return _bound(_FOLDS[folded](text))


def _bound(text: str) -> str:
    """A label of bounded length; longer ones are identified by a hash."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}… {hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


Average = Literal["macro", "micro", "weighted", "seed"]
AVERAGES = ("macro", "micro", "weighted", "seed")


class Metrics:
    """The metrics of a confusion matrix, with averages over classes."""

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
        return Averages(*(_scale(each, every / real) for each in (macro.precision, macro.recall, macro.f1)))

    def average(self, metric: str, average: str) -> Estimate:
        """Return one average of `precision`, `recall` or `f1`, with n and of."""
        if average == "seed" and metric == "f1":
            return _harmonic(self.average("precision", average), self.average("recall", average))
        if average == "seed":
            estimate = self._seed_average(metric)
        else:
            averages = {"macro": self.macro, "micro": self.found.micro, "weighted": self.found.weighted}
            estimate = getattr(averages[average], metric)
        return self._bound(msgspec.structs.replace(estimate, of=self.of), metric, average)

    def _bound(self, estimate: Estimate, metric: str, average: str) -> Estimate:
        """An estimate with its bounds given the missing items, which may belong to any known class."""
        missing = self.of - self.found.n
        is_accuracy = average == "micro" or (average == "weighted" and metric == "recall")
        if not missing or is_accuracy or not self.classes:
            return estimate
        tallies = self._tallies
        if average == "weighted":
            lowest, highest = weighted_bounds(list(tallies.values()), metric, missing)
        else:
            shown = self._averaged_classes(metric) if average == "seed" else list(self.classes)
            lowest, highest = macro_bounds(
                [tallies[name] for name in shown], metric, missing, len(self.classes) - len(shown)
            )
            estimate = msgspec.structs.replace(estimate, metadata={**estimate.metadata, **ASSUMED})
        return msgspec.structs.replace(estimate, lowest=lowest, highest=highest)

    @property
    def _tallies(self) -> dict[str, Tally]:
        return {name: Tally(each.right, each.support, each.predicted) for name, each in self.classes.items()}

    def _averaged_classes(self, metric: str) -> list[str]:
        """The classes that the average `seed` is over: predicted (precision), golden (recall), either (F1)."""
        return [
            name
            for name, each in self.classes.items()
            if metric == "f1" or (each.predicted if metric == "precision" else each.support)
        ]

    def _seed_average(self, metric: str) -> Estimate:
        """The macro average, over the classes shown alone: the others score 0."""
        shown = self._averaged_classes(metric)
        macro: Estimate = getattr(self.macro, metric)
        if not shown:
            return msgspec.structs.replace(macro, value=None, low=None, high=None)
        return _scale(macro, len(self.classes) / len(shown))

    def confusion(self) -> dict[str, Any]:
        """The confusion matrix as a table: rows are golden classes, columns predicted ones."""
        return {
            "labels": [str(label) for label in self.found.labels],
            "matrix": self.found.matrix,
            "support": {name: each.support for name, each in self.classes.items()},
        }


def _harmonic(precision: Estimate, recall: Estimate) -> Estimate:
    """The harmonic mean of an averaged precision and an averaged recall.

    Its limits are those of both: the mean grows with each of them, so they are never too narrow.
    """

    def mean(one: float | None, other: float | None) -> float | None:
        if one is None or other is None:
            return None
        return 2 * one * other / (one + other) if one + other else 0.0

    return msgspec.structs.replace(
        precision,
        value=mean(precision.value, recall.value),
        low=mean(precision.low, recall.low),
        high=mean(precision.high, recall.high),
        lowest=mean(precision.lowest, recall.lowest),
        highest=mean(precision.highest, recall.highest),
        method="from precision and recall" if precision.low is not None else precision.method,
    )


def _scale(estimate: Estimate, factor: float) -> Estimate:
    """An average over classes of which some score 0, as the average over the others."""

    def up(value: float | None) -> float | None:
        return None if value is None else min(1.0, value * factor)

    return msgspec.structs.replace(
        estimate, value=up(estimate.value), low=up(estimate.low), high=up(estimate.high)
    )


class _Classified(Passing, Aggregator[LabelState]):
    """The base of metrics of classes: labels come from results, are counted as pairs, and become classes at the end."""

    needs_labels: ClassVar[bool] = True

    def __init__(
        self,
        golden_key: str | None = None,
        predicted_key: str | None = None,
        average: Average = "macro",
        normalize: bool | None = None,
        threshold: float = 0.5,
        cluster: str | None = None,
        confidence: float = 0.95,
    ) -> None:
        if average not in AVERAGES:
            raise ValueError(f"average is {average!r}: {did_you_mean(str(average), AVERAGES)}")
        self._read_as = (golden_key, predicted_key, normalize, threshold)
        self.reading = reading_for(*self._read_as)
        self.average = average
        self.cluster = cluster
        self.confidence = check_confidence(confidence)

    def for_evaluator(self, spec: EvaluatorSpec) -> Self:
        """The same aggregator with the direction that an evaluator declares."""
        adapted = super().for_evaluator(spec)
        adapted.reading = reading_for(*self._read_as, adapted.lower_is_better)
        return adapted

    def start(self) -> LabelState:
        return LabelState()

    def add(self, state: LabelState, group: Group) -> LabelState:
        results, reading = group.results, self.reading
        if len(results) == 1 and self.cluster is None and not group.pending:
            outcome = results[0].outcome
            if isinstance(outcome, Ok):
                last, labels = reading.last
                if last is not outcome.value:
                    labels = reading.labels_of(outcome.value)
                if labels in state.singles:
                    state.singles[labels] += 1
                else:
                    state.add_one(labels)
                return state
        every = [reading.labels_of(r.outcome.value) for r in results if isinstance(r.outcome, Ok)]
        state.add(every, group.metadata, self.cluster)
        state.missing += group.missing
        return state

    def merge(self, a: LabelState, b: LabelState) -> LabelState:
        a.merge(b)
        return a

    def metrics(self, state: LabelState) -> Metrics:
        """Return every metric of the labels."""
        return Metrics(*state.metrics(self.confidence, self.cluster, self.reading))


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
        return self.oriented(out)


@register_aggregator("precision")
class Precision(OneMetric):
    """The share of predictions of a class that are right: for each class and on average.

    `average` is macro (over the union of golden and predicted classes), micro, weighted by support, or `seed`:
    over the classes that were predicted. `golden_key` and `predicted_key` name the field of a label that is an
    object; `normalize` says whether case distinguishes classes, where the evaluator does not.
    """

    name = "precision"
    metric = "precision"


@register_aggregator("recall")
class Recall(OneMetric):
    """The share of items of a class that are predicted as it: for each class and on average.

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
        return self.oriented(out)
