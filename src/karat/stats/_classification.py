"""Accuracy, precision, recall and F1 from a confusion matrix, with intervals and bounds for missing items."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from karat.records import Estimate
from karat.stats._distributions import critical
from karat.stats._exact import exact_sum
from karat.stats._means import MeanState, Sizes, with_clusters_noted
from karat.stats._proportions import exact_limits, share, wilson_limits, with_bounds
from karat.stats._validation import StatisticsError, check_confidence, check_labels, count, items_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


Cell = tuple[Hashable, Hashable]
"""The golden and the predicted class."""


class Misused(NamedTuple):
    """A prediction of the golden class for an item that is wrong for another reason."""

    label: Hashable


def class_of(predicted: Hashable) -> Hashable:
    """Return the predicted class, also of a `Misused` one."""
    return predicted.label if isinstance(predicted, Misused) else predicted


class ConfusionState:
    """Counts of (golden, predicted) cells, and of pairs of cells within a cluster.

    All are whole numbers, so `merge` in any grouping and order gives the same metrics to the last bit. The
    memory is that of the distinct cells, and of the distinct pairs of cells seen within clusters of several
    items.
    """

    __slots__ = ("counts", "pairs", "right", "several", "singles")

    def __init__(self) -> None:
        self.counts: Counter[Cell] = Counter()
        self.right: Counter[tuple[int, int]] = Counter()
        """How many clusters of several items have so many right ones, of so many."""
        self.pairs: Counter[tuple[Cell, Cell]] = Counter()
        """Σ over clusters of several items of count(cell)·count(other), less the count where both are one
        cell: with the counts themselves this is the second moment of the clusters' matrices."""
        self.several = Sizes()
        """The sizes of the clusters of several items."""
        self.singles = 0
        """How many clusters have one item."""

    def add_one(self, golden: Hashable, predicted: Hashable) -> None:
        """Add a cluster of one item."""
        self.counts[golden, predicted] += 1
        self.singles += 1

    def add(self, items: Iterable[Cell]) -> None:
        """Add the (golden, predicted) pairs of one cluster: the attempts at one example."""
        inside = Counter(items)
        size = inside.total()
        if not size:
            return
        self.counts.update(inside)
        if size == 1:
            self.singles += 1
            return
        self.several.add(size)
        self.right[sum(times for cell, times in inside.items() if cell[0] == cell[1]), size] += 1
        for cell, times in inside.items():
            for other, others in inside.items():
                product = times * (others - 1) if cell == other else times * others
                if product:
                    self.pairs[cell, other] += product

    def merge(self, other: ConfusionState) -> ConfusionState:
        """Add the clusters of another state; a cluster must be wholly in one of the two states."""
        self.counts.update(other.counts)
        self.pairs.update(other.pairs)
        self.right.update(other.right)
        self.several.merge(other.several)
        self.singles += other.singles
        return self

    @property
    def n(self) -> int:
        """The number of items added."""
        return self.several.items + self.singles

    @property
    def sizes(self) -> Sizes:
        """The sizes of all clusters."""
        return self.several.with_singles(self.singles)

    def accuracy(self, confidence: float, of: int) -> Estimate:
        """The share of items that are right: the same as of scores 1 and 0."""
        mean = MeanState()
        ones = sum(times for (golden, predicted), times in self.counts.items() if golden == predicted)
        ones -= sum(right * times for (right, _), times in self.right.items())
        mean.add_one(1.0, ones)
        mean.add_one(0.0, self.singles - ones)
        for (right, size), times in self.right.items():
            total = exact_sum([float(right)])
            mean.add_cluster(total, total, size, float(right == size), float(right > 0), times)
        return mean.proportion(confidence, of=of)

    def labels(self) -> list[Hashable]:
        """The union of the golden and the predicted classes, in an order that does not depend on arrival."""
        seen = {class_of(label) for cell in self.counts for label in cell}
        return sorted(seen, key=lambda label: (type(label).__name__, _sortable(label)))

    def matrix(self) -> tuple[list[Hashable], list[list[int]]]:
        """The labels and the counts: one row for each golden class, one column for each predicted."""
        labels, counts = self.labels(), Counter[Cell]()
        for (golden, predicted_class), times in self.counts.items():
            counts[golden, class_of(predicted_class)] += times
        return labels, [[counts[row, column] for column in labels] for row in labels]


def _sortable(label: Hashable) -> tuple[int, float | int, str]:
    if isinstance(label, (int, float)):
        return 0, label, ""
    return 1, 0.0, str(label)


def state_of_matrix(labels: Iterable[Hashable], counts: Iterable[Iterable[int]]) -> ConfusionState:
    """The state of a confusion matrix of independent items."""
    names = list(labels)
    state = ConfusionState()
    for golden, row in zip(names, counts, strict=True):
        for predicted, times in zip(names, row, strict=True):
            if times:
                state.counts[golden, predicted] += int(times)
                state.singles += int(times)
    return state


Bounds = tuple[float, float]


class Tally(msgspec.Struct, frozen=True):
    """One class: items that are right, that have the class, and that were predicted as it."""

    right: int
    support: int
    predicted: int

    def ratio(self, metric: str) -> tuple[float, float]:
        """Numerator and denominator of `precision`, `recall` or `f1`."""
        if metric == "f1":
            return 2.0 * self.right, float(self.support + self.predicted)
        return float(self.right), float(self.predicted if metric == "precision" else self.support)


def class_bounds(tally: Tally, metric: str, missing: int) -> Bounds:
    """Bounds for one class: all missing items wrong, and all right."""
    top, bottom = tally.ratio(metric)
    each = 2.0 if metric == "f1" else 1.0  # a right item counts on both sides of F1, a wrong one on one
    if not bottom + missing:
        return 0.0, 1.0
    return top / (bottom + missing), (top + each * missing) / (bottom + each * missing)


def macro_bounds(tallies: Sequence[Tally], metric: str, missing: int, entering: int = 0) -> Bounds:
    """Bounds for the mean over classes. `entering` more classes join it once a missing item belongs to them."""
    worst, best = _sums(tallies, [1.0] * len(tallies), metric, missing)
    joining = min(entering, missing)
    classes = len(tallies)
    if not classes:
        return 0.0, 1.0
    return _within(worst / (classes + joining), (best + joining) / (classes + joining))


def weighted_bounds(tallies: Sequence[Tally], metric: str, missing: int) -> Bounds:
    """Bounds for the mean weighted by support: missing items count nothing at worst, and as right ones at best."""
    supports = [float(tally.support) for tally in tallies]
    items = sum(supports) + missing
    if not items:
        return 0.0, 1.0
    worst, best = _sums(tallies, supports, metric, missing)
    return _within(worst / items, (best + missing) / items)


def _sums(tallies: Sequence[Tally], weights: Sequence[float], metric: str, missing: int) -> Bounds:
    """The least and the largest Σ weight · metric that the missing items allow."""
    budget = (2.0 if metric == "f1" else 1.0) * missing
    ratios = [tally.ratio(metric) for tally in tallies]
    known = [(w, top, bottom) for w, (top, bottom) in zip(weights, ratios, strict=True) if bottom]
    worst = _least([(w * top, bottom) for w, top, bottom in known], budget)
    lost = _least([(w * (bottom - top), bottom) for w, top, bottom in known], budget)
    empty = sorted((w for w, (_, bottom) in zip(weights, ratios, strict=True) if not bottom), reverse=True)
    best = math.fsum(w for w, _, _ in known) - lost + math.fsum(empty[:missing])
    return worst, best


def _least(parts: Sequence[tuple[float, float]], budget: float) -> float:
    """Minimise Σ top / (bottom + x) over x ≥ 0 with Σ x = budget.

    At the minimum all parts with x > 0 have the same √top / (bottom + x). Parts join in descending order of
    √top / bottom, as long as theirs is larger than the common value of the joined parts.
    """
    if not budget:
        return math.fsum(top / bottom for top, bottom in parts)
    order = sorted(parts, key=lambda part: (-math.sqrt(part[0]) / part[1], part))
    roots, bottoms, joined = 0.0, budget, 0
    for top, bottom in order:
        if joined and math.sqrt(top) * bottoms <= roots * bottom:
            break
        if not top:
            break
        roots, bottoms, joined = roots + math.sqrt(top), bottoms + bottom, joined + 1
    rest = math.fsum(top / bottom for top, bottom in order[joined:])
    return rest + (roots * roots / bottoms if joined else 0.0)


def _within(low: float, high: float) -> Bounds:
    return max(0.0, low), min(1.0, high)


METRICS = ("precision", "recall", "f1")


class ClassMetrics(msgspec.Struct, frozen=True):
    """The metrics of one class, its items (`support`) and its predictions."""

    precision: Estimate
    recall: Estimate
    f1: Estimate
    support: int
    predicted: int
    right: int
    """Items of the class that were predicted as it and are right: all, unless more than the class was judged."""


class Averages(msgspec.Struct, frozen=True):
    """One kind of average of precision, recall and F1 over the classes."""

    precision: Estimate
    recall: Estimate
    f1: Estimate


class Classification(msgspec.Struct, frozen=True):
    """All metrics of a confusion matrix. Rows of `matrix` are golden classes, columns predicted ones."""

    accuracy: Estimate
    classes: dict[str, ClassMetrics]
    micro: Averages
    macro: Averages
    weighted: Averages
    labels: list[Any]
    matrix: list[list[int]]
    n: int


def classification_metrics(
    labels: Sequence[Hashable],
    counts: Iterable[Iterable[int]],
    *,
    of: int | None = None,
    confidence: float = 0.95,
) -> Classification:
    """All classification metrics of a confusion matrix: `counts[golden][predicted]`, of independent items.

    See `metrics_of` for what each interval is, and for items that come in clusters.
    """
    rows = [[count(cell, "a cell of the confusion matrix") for cell in row] for row in counts]
    check_labels(labels)
    if len(set(labels)) != len(labels):
        raise StatisticsError("labels lists a class twice: list each class once")
    if len(rows) != len(labels) or any(len(row) != len(labels) for row in rows):
        raise StatisticsError(f"counts must be a square of {len(labels)} rows, one for each label")
    state = state_of_matrix(labels, rows)
    return metrics_of(state, of=of, confidence=confidence)


def metrics_of(
    state: ConfusionState,
    *,
    of: int | None = None,
    confidence: float = 0.95,
    drawn: bool = False,
) -> Classification:
    """All classification metrics of a state, over the union of the classes that are golden or predicted.

    Accuracy, and precision and recall of a class, are proportions: Wilson; clustered, accuracy has the interval of
    `MeanState.proportion`. So is tp / (tp + fp + fn), of
    which F1 = 2J / (1 + J) is a monotone function: Wilson's limits carried over. Macro and weighted averages combine
    the limits of the classes, with the correlation that shared confusions give (Zou & Donner 2008), and are not
    narrower than the linearised variance; see `_combine_limits`. Clustered: every variance is linearised, Σ_g of the
    squared derivative along the cluster's matrix with the factor (G/(G−1))², and becomes the exact interval on the
    effective number of items.

    A precision without predictions of the class, or a recall without items of it, is None with the reason; in
    averages it counts as 0, as scikit-learn has it.

    With items missing, what they could make of each number if they are of the classes seen is in `lowest` and
    `highest`; any of them may belong to a class, so its `of` has them all. Clusters that were `drawn` and named, unlike
    the attempts at an example, are noted where they are few.
    """
    confidence = check_confidence(confidence)
    of = items_of(state.n, of)
    labels, matrix = state.matrix()
    index = {label: position for position, label in enumerate(labels)}

    def place(cell: Cell) -> tuple[int, int, bool]:
        return index[cell[0]], index[class_of(cell[1])], not isinstance(cell[1], Misused)

    cells = tuple(sorted((*place(cell), times) for cell, times in state.counts.items()))
    if state.sizes.clustered:
        where = {cell[:3]: position for position, cell in enumerate(cells)}
        pairs = sorted((where[place(a)], where[place(b)], times) for (a, b), times in state.pairs.items())
        accuracy = state.accuracy(confidence, of)
        found = _Table(_Numbers(cells, pairs), state.sizes, confidence, of, accuracy).estimates()
    else:
        found = _independent(cells, confidence, of)
    classes = {str(label): each for label, each in zip(labels, found.classes, strict=True)}
    if len(classes) < len(labels):
        raise StatisticsError("two classes are written the same, such as 1 and '1': make them one type")
    micro = Averages(precision=found.accuracy, recall=found.accuracy, f1=found.accuracy)
    made = Classification(
        found.accuracy, classes, micro, found.macro, found.weighted, list(labels), matrix, state.n
    )
    return _with_note(made, state.sizes.clusters) if drawn else made


def _with_note(found: Any, clusters: int) -> Any:
    """The metrics with the note of few clusters on each estimate."""
    if isinstance(found, Estimate):
        return with_clusters_noted(found, clusters)
    if isinstance(found, dict):
        return {name: _with_note(each, clusters) for name, each in found.items()}
    if isinstance(found, msgspec.Struct):
        parts = {name: _with_note(getattr(found, name), clusters) for name in found.__struct_fields__}
        return msgspec.structs.replace(found, **parts)
    return found


_RARE = 10.0
"""Successes or failures of an effective sample size up to which a clustered share has the exact interval."""

Numbered = tuple[int, int, bool, int]
"""A cell of the matrix: its row, its column, whether being of that row and column is right, how many."""


class _Estimates(NamedTuple):
    accuracy: Estimate
    classes: list[ClassMetrics]
    macro: Averages
    weighted: Averages


@functools.lru_cache(8)
def _independent(cells: tuple[Numbered, ...], confidence: float, of: int) -> _Estimates:
    """The estimates of a matrix of independent items.

    It follows from its arguments alone, and precision, recall and F1 of the same results ask for it one after the
    other: it is computed once for the three.
    """
    sizes = Sizes().with_singles(sum(times for *_, times in cells))
    return _Table(_Numbers(cells), sizes, confidence, of).estimates()


class _Numbers:
    """The occupied cells of the matrix as arrays: which row, which column, how many."""

    def __init__(self, cells: Sequence[Numbered], pairs: Sequence[tuple[int, int, int]] = ()) -> None:
        import numpy as np

        self.rows, self.columns, right, self.counts = np.array(cells, dtype=np.int64).reshape(-1, 4).T
        self.k = 1 + max(row if row > column else column for row, column, *_ in cells) if cells else 0
        self.diagonal = ((self.rows == self.columns) & (right > 0)).astype(np.float64)
        self.everything = np.ones(len(cells))
        self.left, self.right, self.together = np.array(pairs, dtype=np.int64).reshape(-1, 3).T

    def tallies(self, counts: Integers) -> Floats:
        """True positives, supports and predictions × classes × matrices, for one matrix or many (one to a row)."""
        import numpy as np

        many = np.ascontiguousarray(np.atleast_2d(counts).T, dtype=np.float64)
        found = np.zeros((3, self.k, many.shape[1]))
        right = self.diagonal > 0
        found[0, self.rows[right]] = many[right]
        for tally, classes in ((found[1], self.rows), (found[2], self.columns)):
            order = np.argsort(classes, kind="stable")
            present, starts = np.unique(classes[order], return_index=True)
            tally[present] = np.add.reduceat(many[order], starts, axis=0)
        return found

    def squared(self, direction: Floats) -> float:
        """Σ over clusters of (direction · the cluster's matrix)²."""
        import numpy as np

        single = float(np.dot(direction * direction, self.counts))
        if not len(self.left):
            return single
        return single + float(np.dot(direction[self.left] * direction[self.right], self.together))


class _Table:
    """The estimates of one confusion matrix at one confidence."""

    def __init__(
        self,
        numbers: _Numbers,
        sizes: Sizes,
        confidence: float,
        of: int,
        accuracy: Estimate | None = None,
    ) -> None:
        """Without `accuracy`, items are independent, and it is computed here."""
        self.numbers = numbers
        self.sizes = sizes
        self.confidence = confidence
        self.of = of
        self.missing = of - sizes.items
        self.accuracy = accuracy or with_bounds(self.ratio(numbers.diagonal, numbers.everything), of)
        if sizes.items:
            self.tallies = numbers.tallies(numbers.counts)
            self.tp, self.support, self.predicted = self.tallies[:, :, 0]

    def estimates(self) -> _Estimates:
        """Return all estimates."""
        return _Estimates(self.accuracy, [self.of_class(k) for k in range(self.numbers.k)], *self.averages())

    def of_class(self, k: int) -> ClassMetrics:
        """Precision, recall and F1 of one class."""
        numbers = self.numbers
        right = numbers.diagonal * (numbers.rows == k)
        golden, predicted_class = (numbers.rows == k) * 1.0, (numbers.columns == k) * 1.0
        precision = self.ratio(right, predicted_class, "nothing was predicted as this class")
        recall = self.ratio(right, golden, "no item has this class")
        jaccard = self.ratio(right, golden + predicted_class - right)
        f1 = msgspec.structs.replace(
            jaccard, value=_dice(jaccard.value), low=_dice(jaccard.low), high=_dice(jaccard.high)
        )
        tally = self.tally(k)
        bounded = {
            metric: self.of_more(each, class_bounds(tally, metric, self.missing))
            for metric, each in zip(METRICS, (precision, recall, f1), strict=True)
        }
        return ClassMetrics(
            **bounded, support=tally.support, predicted=tally.predicted, right=int(self.tp[k])
        )

    def tally(self, k: int) -> Tally:
        """The counts of one class."""
        return Tally(int(self.tp[k]), int(self.support[k]), int(self.predicted[k]))

    def of_more(self, estimate: Estimate, bounds: Bounds) -> Estimate:
        """An estimate that the missing items could belong to as well, with what they could make of it."""
        if not self.missing:
            return estimate
        return msgspec.structs.replace(
            estimate, of=estimate.n + self.missing, lowest=bounds[0], highest=bounds[1]
        )

    def _with_bounds(self, found: list[list[Estimate]]) -> tuple[Averages, Averages]:
        """Macro and weighted averages with the bounds that missing items allow."""
        tallies = [self.tally(k) for k in range(self.numbers.k)] if self.missing else []
        macro, weighted = (
            Averages(
                *(
                    self.of_more(each, over(tallies, metric, self.missing))
                    for each, metric in zip(row, METRICS, strict=True)
                )
            )
            for row, over in zip(found, (macro_bounds, weighted_bounds), strict=True)
        )
        return macro, weighted

    def ratio(self, top: Floats, bottom: Floats, reason: str = "no items") -> Estimate:
        """A share of cells among others, with its interval, linearised when clustered."""
        counts = self.numbers.counts
        total = round(float(bottom @ counts)) if len(counts) else 0
        method = "wilson, clustered" if self.sizes.clustered else "wilson"
        if not total:
            return Estimate(
                None, of=total, method=method, confidence=self.confidence, metadata={"reason": reason}
            )
        value = float(top @ counts) / total
        if not self.sizes.clustered:
            found = share(round(float(top @ counts)), total, self.confidence)
            return msgspec.structs.replace(found, lowest=None, highest=None)
        return self.linearised(value, (top - value * bottom) / total, total, method)

    def linearised(self, value: float, direction: Floats, n: int, method: str) -> Estimate:
        """The interval of a share on the effective sample size that the variance between clusters implies.

        Clusters: that size is reduced further for the degrees of freedom, and where few items succeed, or fail, the
        limits are Clopper and Pearson's exact ones (Korn & Graubard 1998); Wilson's cover 0.91 in 20 clusters at 0.9.
        """
        clusters = self.sizes.clusters
        if clusters < 2:
            metadata: dict[str, Any] = {"clusters": clusters, "reason": "one cluster has no spread"}
            return Estimate(value, n=n, of=n, method=method, confidence=self.confidence, metadata=metadata)
        # The factor of the jackknife over clusters: with G/(G−1) alone 20 clusters cover 0.925 at a share of 0.9.
        robust = self.numbers.squared(direction) * (clusters / (clusters - 1)) ** 2
        plain = float((direction * direction) @ self.numbers.counts)
        if plain > 0.0 and robust > 0.0 and 0.0 < value < 1.0:
            effect = max(1.0, robust / plain) if self.sizes.clustered else 1.0
            df = self.sizes.degrees(effect) if self.sizes.clustered else math.inf
            effective = value * (1.0 - value) / (plain * effect)
        else:
            # Nothing varies: the items of a cluster count as one.
            effect, df = self.sizes.items / self.sizes.fully_correlated(), math.inf
            effective = n / effect
        if not self.sizes.clustered:
            low, high = wilson_limits(value, effective, critical(self.confidence))
            return Estimate(value, low, high, n, n, method, self.confidence)
        factor = critical(self.confidence) / critical(self.confidence, df)
        effective *= factor * factor
        if min(value, 1.0 - value) * effective > _RARE:
            low, high = wilson_limits(value, effective, critical(self.confidence))
        else:
            low, high = exact_limits(value * effective, effective, self.confidence)
        metadata = {"design_effect": effect, "clusters": clusters}
        return Estimate(value, low, high, n, n, method, self.confidence, metadata=metadata)

    def averages(self) -> tuple[Averages, Averages]:
        """The macro and the support-weighted averages."""
        n = self.sizes.items
        if not n:
            none = Estimate(None, of=self.of, confidence=self.confidence, metadata={"reason": "no items"})
            return Averages(none, none, none), Averages(none, none, none)
        values = _averages(self.tallies)[:, :, 0]
        of_one = self._average_clustered if self.sizes.clustered else self._combine_limits
        macro, weighted = self._with_bounds(
            [[of_one(a, m, float(values[a, m])) for m in range(3)] for a in range(2)]
        )
        return macro, msgspec.structs.replace(
            weighted, recall=self.accuracy
        )  # weighted by support, it is the same

    def _combine_limits(self, average: int, metric: int, value: float) -> Estimate:
        """An average of independent items, with limits from those of the classes.

        value ∓ √(d'R d) with d the weighted distances of the classes' Wilson limits and R the correlation of their
        scores (Zou & Donner 2008): two classes that are confused with each other share those errors. It is not less
        than z times the linearised standard error, which is larger where many classes are averaged. Both are
        widened by √(n / (n − 2·classes)) for the two shares estimated in each class. The mean of F1 is
        f(1 − f)/(support + predicted) below its true value in each class, to which the upper limit is moved. The
        correlations and the standard error come from the matrix with one more item for each class, spread as if
        golden and predicted were independent, so that a cell that happens to be empty is not taken to be impossible.
        """
        import numpy as np

        n, k, z = self.sizes.items, self.numbers.k, critical(self.confidence)
        weights = np.full(k, 1.0 / k) if average == 0 else self.support / n
        below, above, bias = self._distances(metric, z)
        smooth = _Smoothed(self, metric)
        lower = math.sqrt(smooth.variance(weights * below / smooth.errors))
        upper = math.sqrt(smooth.variance(weights * above / smooth.errors))
        if average == 0:
            error = math.sqrt(smooth.variance(weights))
        else:
            direction = self._direction(average, metric, value)
            error = math.sqrt(float((direction * direction) @ self.numbers.counts))
        wider = math.sqrt(n / max(n - 2.0 * k, n / 3.0))
        low = max(0.0, value - wider * max(lower, z * error))
        high = min(1.0, value + wider * max(upper, z * error) + float(weights @ bias))
        return Estimate(value, low, high, n, n, "wilson, combined over classes", self.confidence)

    def _distances(self, metric: int, z: float) -> tuple[Floats, Floats, Floats]:
        """Return the distances of each class's Wilson limits from its score, and the bias of its mean."""
        import numpy as np

        tp, both = self.tp, self.support + self.predicted
        items = np.maximum((self.predicted, self.support, both - tp)[metric], 1.0)
        share = tp / items
        spread = z * np.sqrt(share * (1.0 - share) / items + z * z / (4.0 * items**2))
        middle = share + z * z / (2.0 * items)
        shrunk = 1.0 + z * z / items
        low, high = np.maximum(0.0, (middle - spread) / shrunk), np.minimum(1.0, (middle + spread) / shrunk)
        if metric < 2:
            return share - low, high - share, np.zeros_like(share)
        # The bias is judged with one success and one failure more: a class of three items of which none was right
        # would have none. Without that, nine such classes beside a large one cover 0.87.
        likely = (tp + 1.0) / (items + 2.0)
        f1, low, high, likely = (2.0 * each / (1.0 + each) for each in (share, low, high, likely))
        bias = np.maximum(f1 * (1.0 - f1), likely * (1.0 - likely)) / np.maximum(both, 1.0)
        return f1 - low, high - f1, bias

    def _average_clustered(self, average: int, metric: int, value: float) -> Estimate:
        """An average of clustered items: as of independent ones, widened by the design effect, or linearised if wider.

        The design effect is that of the derivative of the average with respect to every cell. Alone, the linearised
        interval covers too rarely where classes are small, as it does for independent items.
        """
        direction = self._direction(average, metric, value)
        found = self.linearised(value, direction, self.sizes.items, "linearised, clustered")
        if found.low is None or found.high is None:
            return found
        alone, effect = self._combine_limits(average, metric, value), found.metadata["design_effect"]
        df = self.sizes.degrees(effect) if 0.0 < value < 1.0 else math.inf
        factor = math.sqrt(effect) * critical(self.confidence, df) / critical(self.confidence)
        low = value - factor * (value - (alone.low or 0.0))
        high = value + factor * ((1.0 if alone.high is None else alone.high) - value)
        return msgspec.structs.replace(
            found,
            low=max(0.0, min(found.low, low)),
            high=min(1.0, max(found.high, high)),
            method="wilson, combined over classes, clustered",
        )

    def _direction(self, average: int, metric: int, value: float) -> Floats:
        """The derivative of an average with respect to the count of every cell."""
        import numpy as np

        n, k, numbers = self.sizes.items, self.numbers.k, self.numbers
        tp, support, predicted = self.tp, self.support, self.predicted
        bottom = (predicted, support, support + predicted)[metric]
        twice = 2.0 if metric == 2 else 1.0
        safe = np.where(bottom > 0, bottom, 1.0)
        score = twice * tp / safe
        weight = np.full(k, 1.0 / k) if average == 0 else support / n
        by_tp = weight * twice / safe
        by_bottom = -weight * score / safe
        by_support = by_bottom if metric in (1, 2) else np.zeros(k)
        by_predicted = by_bottom if metric in (0, 2) else np.zeros(k)
        if average == 1:
            by_support = by_support + (score - value) / n
        direction = by_support[numbers.rows] + by_predicted[numbers.columns]
        found: Floats = direction + by_tp[numbers.rows] * numbers.diagonal
        return found


class _Smoothed:
    """The covariance of the scores of the classes, from a matrix with one more item for each class."""

    def __init__(self, table: _Table, metric: int) -> None:
        import numpy as np

        numbers, n, k = table.numbers, table.sizes.items, table.numbers.k
        self.metric = metric
        # The added items: share[i] · other[j] in the cell (i, j).
        self.share = (table.support + 0.5) * k / (n + 0.5 * k)
        self.other = (table.predicted + 0.5) / (n + 0.5 * k)
        added = self.share * self.other
        tp = table.tp + added
        support = table.support + self.share * self.other.sum()
        predicted = table.predicted + self.other * self.share.sum()
        inside = numbers.rows == numbers.columns
        wrong = np.zeros(k)  # of the class and predicted as it, and still wrong
        np.add.at(wrong, numbers.rows[inside], numbers.counts[inside] * (1.0 - numbers.diagonal[inside]))
        bottom = (predicted, support, support + predicted)[metric]
        if metric < 2:
            self.score = tp / bottom
            variance = self.score * (1.0 - self.score) / bottom
        else:
            self.score = f1 = 2.0 * tp / bottom
            single = bottom - 2.0 * tp - 2.0 * wrong
            variance = (4.0 * tp * (1.0 - f1) ** 2 + 4.0 * wrong * f1**2 + single * f1**2) / bottom**2
        self.errors: Floats = np.sqrt(np.maximum(variance, 1e-30))
        self.pull = self.score / bottom
        """By how much one error lowers the F1 of a class."""
        self.added = added
        self.rows, self.columns = numbers.rows[~inside], numbers.columns[~inside]
        self.counts = numbers.counts[~inside]

    def variance(self, weights: Floats) -> float:
        """The variance of the weighted sum of the scores."""
        own = float((weights * self.errors) @ (weights * self.errors))
        if self.metric < 2:
            return own
        x = weights * self.pull
        shared = float((self.counts * x[self.rows]) @ x[self.columns])
        shared += float(self.share @ x) * float(self.other @ x) - float(self.added @ (x * x))
        return max(0.0, own + 2.0 * shared)


def _dice(jaccard: float | None) -> float | None:
    return None if jaccard is None else 2.0 * jaccard / (1.0 + jaccard)


def _averages(tallies: Floats) -> Floats:
    """[macro, weighted] × [precision, recall, F1] × matrices, over the classes each matrix holds."""
    import numpy as np

    tp, support, predicted = tallies
    both = support + predicted
    classes = np.maximum((both > 0).sum(axis=0), 1)
    total = np.maximum(support.sum(axis=0), 1.0)
    out = np.empty((2, 3, tp.shape[1]))
    for metric, bottom in enumerate((predicted, support, 0.5 * both)):
        score = tp / np.maximum(bottom, 0.5)  # where nothing is below, nothing is above
        out[0, metric] = score.sum(axis=0) / classes
        out[1, metric] = (score * support).sum(axis=0) / total
    return out
