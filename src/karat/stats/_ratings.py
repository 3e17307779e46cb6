"""Ratings from pairwise comparisons: Bradley–Terry with its intervals and rank ranges, win rates, classic Elo."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from karat.records import Estimate
from karat.stats._distributions import critical
from karat.stats._means import state_of_clusters, win_rate
from karat.stats._validation import (
    MOST_RESAMPLES,
    StatisticsError,
    check_confidence,
    count,
    finite,
    number_array,
    same_length,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from karat.stats._validation import Labels, Numbers

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


_BLOCK = 1 << 22
"""Numbers of a clusters × runs table that are held at a time (32 MB)."""
_BASE_BITS = 26
_BASE = 1 << _BASE_BITS
"""More than twice the comparisons of a run in one cluster, so that both fit into the 53 bits of a float."""


class Comparisons:
    """Comparisons as columns: both runs, the outcome for the first, the cluster; names and clusters as integers."""

    def __init__(
        self,
        first: Labels,
        second: Labels,
        outcomes: Numbers,
        clusters: Labels | None = None,
        names: Iterable[Hashable] | None = None,
    ) -> None:
        same_length("comparisons", first=first, second=second, outcomes=outcomes)
        self.names, self.first, self.second = _encode_runs(first, second, names)
        self.outcomes: Floats = number_array(outcomes, "outcomes")
        inside = (self.outcomes >= 0.0) & (self.outcomes <= 1.0)
        if not inside.all():
            at = int(np.argmin(inside))
            raise StatisticsError(
                f"outcome of comparison {at} is {self.outcomes[at]}: it must be 1, 0.5 or 0 for the first"
            )
        same = self.first == self.second
        if same.any():
            at = int(np.argmax(same))
            name = self.names[int(self.first[at])]
            raise StatisticsError(f"comparison {at} has {name!r} on both sides: compare two different runs")
        self.clusters: Integers | None = None
        self.cluster_count = len(self.outcomes)
        if clusters is not None:
            same_length("comparisons", first=first, clusters=clusters)
            codes, labels = _encode(clusters)
            if len(labels) < len(codes):
                self.clusters, self.cluster_count = codes, len(labels)
        self.flat: Integers = self.first * len(self.names)
        self.flat += self.second

    def __len__(self) -> int:
        return len(self.outcomes)

    def table(self) -> PairTable:
        """The counts of every ordered pair."""
        k = len(self.names)
        if self.doubled is not None:  # wins, ties and losses are counted in one pass
            codes = 3 * self.flat
            codes += self.doubled
            counts = np.bincount(codes, minlength=3 * k * k).reshape(k, k, 3).astype(np.float64)
            losses, ties, wins = np.moveaxis(counts, 2, 0)
            return PairTable(losses + ties + wins, wins + 0.5 * ties, wins + 0.25 * ties, ties)

        def summed(weights: Floats | None = None) -> Floats:
            return np.bincount(self.flat, weights, minlength=k * k).reshape(k, k).astype(np.float64)

        return PairTable(
            games=summed(),
            points=summed(self.outcomes),
            squares=summed(self.outcomes * self.outcomes),
            ties=summed(self.outcomes == 0.5),
        )

    @functools.cached_property
    def doubled(self) -> Integers | None:
        """Twice the outcomes, where there are only wins, ties and losses."""
        twice = 2.0 * self.outcomes
        codes: Integers = twice.astype(np.int64)
        return codes if (codes == twice).all() else None

    @functools.cached_property
    def points_by_cluster(self) -> list[Counter[tuple[float, int]]]:
        """For each run: how many clusters there are of each number of points and of comparisons."""
        k = len(self.names)
        found: list[Counter[tuple[float, int]]] = [Counter() for _ in range(k)]
        if self.clusters is None:
            values, which = np.unique(self.outcomes, return_inverse=True)
            for runs, each in ((self.first, values), (self.second, 1.0 - values)):
                times = np.bincount(which * k + runs, minlength=len(values) * k).reshape(len(values), k)
                for row, column in zip(*np.nonzero(times), strict=True):
                    found[column][float(each[row]), 1] += int(times[row, column])
            return found
        for rows, cluster, clusters in self.by_cluster(k):
            size = k * clusters
            left, right = self.first[rows] * clusters, self.second[rows] * clusters
            left += cluster
            right += cluster
            if self.doubled is not None:
                # Comparisons and twice the points in one number, which a float holds without rounding.
                once = self.doubled[rows] + float(_BASE)
                codes = np.bincount(left, once, size) + np.bincount(right, 2.0 * _BASE + 2.0 - once, size)
                packed = codes.astype(np.int64).reshape(k, clusters)
                games, doubled = packed >> _BASE_BITS, packed & (_BASE - 1)
                most = 2 * int(games.max(initial=0)) + 1
                if most * most < 10 * clusters + 10_000:
                    # Few different numbers of comparisons: a table of both is fastest.
                    games *= most
                    games += doubled
                    for run, pairs in enumerate(games):
                        times = np.bincount(pairs)
                        for code in np.flatnonzero(times).tolist():
                            if code:  # of a cluster without the run it is 0
                                found[run][(code % most) / 2.0, code // most] += int(times[code])
                    continue
                points: Floats = doubled / 2.0
            else:
                outcome = self.outcomes[rows]
                played = np.bincount(left, minlength=size) + np.bincount(right, minlength=size)
                games = played.reshape(k, clusters)
                summed = np.bincount(left, outcome, size) + np.bincount(right, 1.0 - outcome, size)
                points = np.asarray(summed, dtype=np.float64).reshape(k, clusters)
            for run in range(k):
                seen = games[run] > 0
                found[run].update(zip(points[run, seen].tolist(), games[run, seen].tolist(), strict=True))
        return found

    @functools.cached_property
    def appearances(self) -> Floats:
        """The number of clusters in which each run appears."""
        return np.array([sum(counts.values()) for counts in self.points_by_cluster], dtype=np.float64)

    def by_cluster(self, columns: int) -> Iterator[tuple[Any, Integers, int]]:
        """Blocks of whole clusters: which comparisons, their clusters counted from 0, and how many clusters.

        A block's clusters × columns table fits into memory, however many clusters there are.
        """
        assert self.clusters is not None
        most = max(1, _BLOCK // columns)
        if self.cluster_count <= most:
            yield slice(None), self.clusters, self.cluster_count
            return
        order = np.argsort(self.clusters, kind="stable")
        sorted_clusters = self.clusters[order]
        for start in range(0, self.cluster_count, most):
            stop = min(start + most, self.cluster_count)
            low, high = np.searchsorted(sorted_clusters, (start, stop))
            yield order[low:high], sorted_clusters[low:high] - start, stop - start


class PairTable(msgspec.Struct, frozen=True):
    """For every ordered pair (first, second): how many comparisons, and the first's points in them."""

    games: Any
    points: Any
    squares: Any
    ties: Any

    def outcomes(self) -> tuple[Floats, Floats, Floats]:
        """Count the wins, ties and losses of each run; the points of other outcomes count as wins."""
        games = (self.games + self.games.T).sum(axis=1)
        ties = (self.ties + self.ties.T).sum(axis=1)
        wins = self.points.sum(axis=1) + (self.games - self.points).sum(axis=0) - 0.5 * ties
        return wins, ties, games - wins - ties

    def components(self) -> list[list[int]]:
        """The groups of runs that comparisons connect, largest first."""
        linked = (self.games + self.games.T) > 0
        unseen = set(range(len(linked)))
        groups = []
        while unseen:
            group, frontier = set(), {min(unseen)}
            while frontier:
                group |= frontier
                reached = np.flatnonzero(linked[list(frontier)].any(axis=0))
                frontier = set(reached.tolist()) - group
            unseen -= group
            groups.append(sorted(group))
        return sorted(groups, key=lambda group: (-len(group), group))

    def position_known(self) -> bool:
        """Whether the effect of being first can be separated from strength.

        It cannot when some heights of the runs explain every order: the first always one step above the second.
        """
        height = np.zeros(len(self.games))
        seen = np.zeros(len(self.games), dtype=bool)
        games = self.games > 0
        for members in self.components():
            frontier = np.array(members[:1])
            seen[frontier] = True
            while len(frontier):
                found = []
                for beside, step in ((games[frontier], -1.0), (games[:, frontier].T, 1.0)):
                    new = np.flatnonzero(beside.any(axis=0) & ~seen)
                    height[new] = height[frontier[beside[:, new].argmax(axis=0)]] + step
                    seen[new] = True
                    found.append(new)
                frontier = np.concatenate(found)
        first, second = np.nonzero(games)
        return bool((height[first] - height[second] != 1.0).any())

    def separated(self) -> bool:
        """Whether some runs of a component never lost to the others, so that no finite maximum exists."""
        beats = (self.points + (self.games - self.points).T) > 0
        reach = (beats | np.eye(len(beats), dtype=bool)).astype(np.float32)
        for _ in range(max(1, len(beats).bit_length())):
            reach = ((reach @ reach) > 0).astype(np.float32)
        linked = (self.games + self.games.T) > 0
        return bool((linked & (reach == 0)).any())


def _encode(values: Any) -> tuple[Integers, list[Hashable]]:
    """Labels as integers from 0, and the labels."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.size:
        low, high = int(values.min()), int(values.max())
        if high - low <= 4 * len(values) + 1000:  # a table of all between is cheaper than sorting
            codes: Integers = values.astype(np.int64, copy=False)
            if low:
                codes = codes - low
            present = np.bincount(codes, minlength=high - low + 1) > 0
            if not present.all():
                codes = (np.cumsum(present) - 1)[codes]
            return codes, list((np.flatnonzero(present) + low).tolist())
    if isinstance(values, np.ndarray):
        values = values.tolist()
    index: dict[Hashable, int] = {}
    listed = [index.setdefault(value, len(index)) for value in values]
    return np.array(listed, dtype=np.int64), list(index)


def _encode_runs(
    first: Any, second: Any, names: Iterable[Any] | None
) -> tuple[list[Any], Integers, Integers]:
    """Number the runs of both columns together. Names without a comparison keep their place."""
    both: Any
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        both = np.concatenate([first, second])
    else:
        both = [*first, *second]
    codes, labels = _encode(both)
    if names is not None:
        listed = list(names)
        place = {name: position for position, name in enumerate(listed)}
        missing = [label for label in labels if label not in place]
        if missing:
            raise StatisticsError(
                f"names does not list {missing[0]!r}, which is in a comparison: list every run"
            )
        codes = np.array([place[label] for label in labels], dtype=np.int64)[codes]
        labels = listed
    return labels, codes[: len(first)], codes[len(first) :]


_STEPS = 100
_TOLERANCE = 1e-10
_SMALL = 256
"""Matrices below this are multiplied and inverted in pieces for which BLAS starts no threads: where cores are
shared, those cost a hundred times what they compute (measured: 37 ms for an inverse of 0.2 ms)."""
_STRIP = 1 << 18
"""Multiplications in a product up to which OpenBLAS starts no threads."""


class Fit(msgspec.Struct, frozen=True):
    """The maximum of the likelihood. Strengths are log-odds relative to the mean of their component."""

    strengths: Any
    covariance: Any
    components: list[list[int]]
    degrees: float
    """Degrees of freedom for t: clusters − 1; 0 where the spread cannot be estimated."""
    iterations: int
    tie: float
    """ν of Davidson's model; 0 where ties count half."""
    position: float = 0.0
    position_variance: float = 0.0


def expected_points(gap: float | NDArray[Any], tie: float) -> tuple[Any, Any, Any]:
    """The first's expected points, their variance, and the probability of a tie, for gaps in log-odds.

    With e = e^(−|gap|/2): the better wins with 1/(1 + e² + νe) and ties with νe/(1 + e² + νe); Davidson
    (1970).
    """
    e = np.exp(-0.5 * np.abs(gap))
    if not tie:  # most rankings: half of the work is for ties
        better = 1.0 / (1.0 + e * e)
        return np.where(gap >= 0.0, better, 1.0 - better), better * (1.0 - better), 0.0
    total = 1.0 + e * e + tie * e
    tied = tie * e / total
    better = 1.0 / total
    win = np.where(gap >= 0.0, better, 1.0 - better - tied)
    expected = win + 0.5 * tied
    return expected, win + 0.25 * tied - expected * expected, tied


class _Model:
    """The likelihood of one table: parameters are the strengths, then the position, then log ν."""

    def __init__(self, table: PairTable, prior: float, davidson: bool, position: bool) -> None:
        self.table = table
        self.k = len(table.games)
        self.prior = prior
        self.position = self.k if position else None
        self.davidson = davidson and bool(table.ties.any())
        self.tie_at = self.k + int(position) if self.davidson else None
        self.size = self.k + int(position) + int(self.davidson)
        self.components = table.components()

    def start(self, near: Fit) -> Any:
        """Parameters to start from: those of a fit of the same comparisons without position."""
        parameters = np.zeros(self.size)
        parameters[: self.k] = near.strengths
        if self.tie_at is not None:
            parameters[self.tie_at] = np.log(near.tie)
        return parameters

    def parts(self, parameters: NDArray[Any]) -> tuple[Any, float]:
        """The gap of every ordered pair, and ν."""
        theta = parameters[: self.k]
        gap = theta[:, None] - theta[None, :]
        if self.position is not None:
            gap = gap + parameters[self.position]
        return gap, float(np.exp(parameters[self.tie_at])) if self.tie_at is not None else 0.0

    def objective(self, parameters: NDArray[Any]) -> float:
        """The log-likelihood with the prior."""
        gap, tie = self.parts(parameters)
        size = np.abs(gap)
        norm = 0.5 * size + np.log1p(np.exp(-size) + tie * np.exp(-0.5 * size))
        value = float(((self.table.points - 0.5 * self.table.games) * gap - self.table.games * norm).sum())
        if self.tie_at is not None:
            value += float(self.table.ties.sum() * parameters[self.tie_at])
        size = np.abs(parameters)
        return value - self.prior * float((0.5 * size + np.log1p(np.exp(-size))).sum())

    def derivatives(self, parameters: NDArray[Any]) -> tuple[Any, Any]:
        """The gradient, and the information: the negative matrix of second derivatives."""
        gap, tie = self.parts(parameters)
        games = self.table.games
        expected, variance, tied = expected_points(gap, tie)
        residual, weight = self.table.points - games * expected, games * variance
        gradient, information = np.zeros(self.size), np.zeros((self.size, self.size))
        k = self.k
        gradient[:k] = residual.sum(axis=1) - residual.sum(axis=0)
        both = weight + weight.T
        information[:k, :k] = np.diag(both.sum(axis=1)) - both
        if self.position is not None:
            gradient[k] = residual.sum()
            information[k, k] = weight.sum()
            information[k, :k] = information[:k, k] = weight.sum(axis=1) - weight.sum(axis=0)
        if (at := self.tie_at) is not None:
            gradient[at] = self.table.ties.sum() - (games * tied).sum()
            information[at, at] = (games * tied * (1.0 - tied)).sum()
            cross = games * tied * (0.5 - expected)
            information[at, :k] = information[:k, at] = cross.sum(axis=1) - cross.sum(axis=0)
            if self.position is not None:
                information[at, k] = information[k, at] = cross.sum()
        pull = 1.0 / (1.0 + np.exp(-parameters))
        gradient -= self.prior * (pull - 0.5)
        information[np.diag_indices(self.size)] += self.prior * pull * (1.0 - pull)
        return gradient, information

    def held(self, information: NDArray[Any]) -> Any:
        """The information with the mean of every component held: without a prior it has only differences."""
        if self.prior > 0.0:
            return information
        held = information.copy()
        for members in self.components:
            held[np.ix_(members, members)] += max(1.0, float(np.trace(information)) / self.size)
        return held

    def maximum(self, start: NDArray[Any] | None = None) -> tuple[Any, Any, int]:
        """The parameters, the inverse information there, and how many steps it took."""
        parameters = np.zeros(self.size) if start is None else start
        value = self.objective(parameters)
        nearby = None
        for iteration in range(1, _STEPS + 1):
            gradient, information = self.derivatives(parameters)
            held = self.held(information)
            if nearby is None:
                nearby = _inverse(held)
            step = _solved(held, gradient, nearby)
            length = float(np.abs(step).max())
            if length < _TOLERANCE:
                return parameters, _inverse(held), iteration
            scale, reached = 1.0, parameters + step
            if length > 1e-5:  # nearer than this the likelihood is flat to the last bit and cannot guide
                while (found := self.objective(reached)) < value and scale > 1e-9:
                    scale *= 0.5
                    reached = parameters + scale * step
                value = found
            parameters = reached
        raise StatisticsError("the Bradley–Terry fit did not converge: raise the prior")


def _solved(matrix: Any, right: Any, nearby: Any) -> Any:
    """The solution of matrix · x = right by conjugate gradients, given the inverse of a matrix nearby.

    A few products with vectors in place of a factorisation at every Newton step.
    """
    solution, residual = np.zeros_like(right), right.copy()
    towards = nearby @ residual
    direction, length = towards.copy(), float(residual @ towards)
    enough = 1e-26 * length
    for _ in range(50):
        if length <= enough:
            return solution
        image = matrix @ direction
        pace = length / float(direction @ image)
        solution += pace * direction
        residual -= pace * image
        towards = nearby @ residual
        length, before = float(residual @ towards), length
        direction = towards + (length / before) * direction
    return np.linalg.solve(matrix, right)


def fit_strengths(
    data: Comparisons, table: PairTable, prior: float, davidson: bool, near: Fit | None = None
) -> Fit:
    """The maximum of the likelihood, and its covariance clustered as the comparisons are.

    Given the fit without position, the one with position is found from there.
    """
    model = _Model(table, prior, davidson, position=near is not None)
    parameters, inverse, iterations = model.maximum(None if near is None else model.start(near))
    n, clusters, k = len(data), data.cluster_count, model.k
    scores = _scores(data, model, parameters)
    pull = 1.0 / (1.0 + np.exp(-parameters))
    degrees = float(max(0, clusters - 1))
    if clusters > 1:
        free = k - len(model.components)
        scores *= clusters / (clusters - 1) * (n - 1) / max(1, n - free)
    # Half a win and half a loss against an average run, each a separate observation.
    scores[np.diag_indices(model.size)] += prior * 0.5 * (pull**2 + (1.0 - pull) ** 2)
    if prior > 0.0:
        scores += _unseen(data, model, parameters)
    covariance = _product(_product(inverse, scores), inverse)
    strengths, relative = parameters[:k].copy(), covariance[:k, :k].copy()
    for members in model.components:  # relative to the mean of the component
        strengths[members] -= strengths[members].mean()
        relative[members] -= relative[members].mean(axis=0)
        relative[:, members] -= relative[:, members].mean(axis=1, keepdims=True)
    found = Fit(
        strengths=strengths,
        covariance=relative,
        components=model.components,
        degrees=degrees,
        iterations=iterations,
        tie=float(np.exp(parameters[model.tie_at])) if model.tie_at is not None else 0.0,
    )
    if model.position is None:
        return found
    at = model.position
    return msgspec.structs.replace(
        found, position=float(parameters[at]), position_variance=float(covariance[at, at])
    )


_UNSEEN = 4.0
"""Clusters added to the variance, as Agresti & Coull (1998) add two successes and two failures."""


def _unseen(data: Comparisons, model: _Model, parameters: Any) -> Any:
    """The share of clusters that were not drawn in the sum of the scores' outer products.

    Where all comparisons tie, or rare wins decide, the observed clusters hardly differ and the sandwich estimate is
    too small. So for each run a few clusters are added in which all its usual comparisons deviate from what is
    expected by the standard deviation of one that ends in a win or a loss.
    """
    table, k = model.table, model.k
    games = table.games + table.games.T
    played = games.sum(axis=1)
    usual = np.ones(k)
    if data.clusters is not None:
        usual = played / np.maximum(data.appearances, 1.0)
    expected, _, _ = expected_points(*model.parts(parameters))
    deviation = np.sqrt(expected * (1.0 - expected))
    against = (table.games * deviation + (table.games * deviation).T) / np.maximum(played, 1.0)[:, None]
    change = usual[:, None] * (np.diag(against.sum(axis=1)) - against)
    total = np.zeros((model.size, model.size))
    total[:k, :k] = _UNSEEN * (1.0 - 1.0 / k) * _product(change.T, change)
    if model.position is not None:
        in_cluster = len(data) / data.cluster_count
        variance = float((table.games * deviation**2).sum()) / max(1.0, float(table.games.sum()))
        total[model.position, model.position] = _UNSEEN * variance * in_cluster**2
    return total


def strengths_of(table: PairTable) -> Any:
    """Fit the strengths to a table of (expected) points, without a prior and without covariance."""
    model = _Model(table, 0.0, davidson=False, position=False)
    parameters = model.maximum()[0]
    return parameters - parameters.mean()


def _scores(data: Comparisons, model: _Model, parameters: Any) -> Any:
    """Σ over clusters of the outer product of the cluster's score."""
    gap, tie = model.parts(parameters)
    expected, _, tied = expected_points(gap, tie)
    if data.clusters is None:
        return _independent_scores(model, expected, tied)
    total = np.zeros((model.size, model.size))
    residuals = data.outcomes - expected.ravel()[data.flat]
    surprises = (data.outcomes == 0.5) - tied.ravel()[data.flat] if model.tie_at is not None else None
    for rows, cluster, clusters in data.by_cluster(model.size):
        residual, at = residuals[rows], cluster * model.k
        size = clusters * model.k
        sums = np.bincount(at + data.first[rows], residual, minlength=size)
        sums -= np.bincount(at + data.second[rows], residual, minlength=size)
        columns = [sums.reshape(clusters, model.k)]
        if model.position is not None:
            columns.append(np.bincount(cluster, residual, minlength=clusters)[:, None])
        if surprises is not None:
            columns.append(np.bincount(cluster, surprises[rows], minlength=clusters)[:, None])
        block = columns[0] if len(columns) == 1 else np.hstack(columns)
        for part in np.array_split(
            block, max(1, clusters * model.size**2 >> 17) if model.size < _SMALL else 1
        ):
            total += part.T @ part
    return total


def _product(a: Any, b: Any) -> Any:
    """A matrix product; of small matrices in strips of rows, for which BLAS starts no threads."""
    rows = len(a) if len(a) >= _SMALL else max(1, _STRIP // b.size)
    if rows >= len(a):
        return a @ b
    return np.concatenate([a[start : start + rows] @ b for start in range(0, len(a), rows)])


def _inverse(matrix: Any) -> Any:
    """The inverse of a positive definite matrix, from its quarters where BLAS would start threads."""
    n = len(matrix)
    if n <= 32 or n >= _SMALL:
        return np.linalg.inv(matrix)
    h = n // 2
    corner, side = _inverse(matrix[:h, :h]), matrix[:h, h:]
    across = _product(corner, side)
    rest = _inverse(matrix[h:, h:] - _product(side.T, across))
    out = np.empty_like(matrix)
    out[h:, h:] = rest
    out[:h, h:] = -_product(across, rest)
    out[h:, :h] = out[:h, h:].T
    out[:h, :h] = corner - _product(across, out[h:, :h])
    return out


def _independent_scores(model: _Model, expected: Any, tied: Any) -> Any:
    """The same from the table alone, when every comparison is its own cluster."""
    table, k = model.table, model.k
    square = table.squares - 2.0 * expected * table.points + expected * expected * table.games
    total = np.zeros((model.size, model.size))
    both = square + square.T
    total[:k, :k] = np.diag(both.sum(axis=1)) - both
    lean = square.sum(axis=1) - square.sum(axis=0)
    if model.position is not None:
        total[k, k] = square.sum()
        total[k, :k] = total[:k, k] = lean
    if (at := model.tie_at) is not None:
        # Σ residual · (tied − P(tie)), with the residual of a tie ½ − expected.
        cross = table.ties * (0.5 - expected) - tied * (table.points - expected * table.games)
        total[at, at] = (table.ties * (1.0 - 2.0 * tied) + tied * tied * table.games).sum()
        total[at, :k] = total[:k, at] = cross.sum(axis=1) - cross.sum(axis=0)
        if model.position is not None:
            total[at, k] = total[k, at] = cross.sum()
    return total


def win_rates(data: Comparisons, table: PairTable, confidence: float) -> list[Estimate]:
    """For each run: points per comparison, a tie counting ½, as `MeanState` estimates them by cluster."""
    squares = table.squares.sum(axis=1) + (table.games - 2.0 * table.points + table.squares).sum(axis=0)
    found = []
    for run, clusters in enumerate(_points_by_cluster(data, table)):
        state = state_of_clusters(clusters, float(squares[run]), (0.0, 1.0))
        estimate = win_rate(state, confidence)
        if not state.n:
            estimate = msgspec.structs.replace(estimate, metadata={"reason": "no comparisons"})
        found.append(estimate)
    return found


def _points_by_cluster(data: Comparisons, table: PairTable) -> Iterable[Mapping[tuple[float, int], int]]:
    """`Comparisons.points_by_cluster`; of wins, ties and losses that are clusters of their own, from the table."""
    if data.clusters is not None or data.doubled is None:
        return data.points_by_cluster
    return (
        {key: int(times) for key, times in (((0.0, 1), lost), ((0.5, 1), tied), ((1.0, 1), won)) if times}
        for won, tied, lost in np.column_stack(table.outcomes()).tolist()
    )


ELO_PER_LOGIT = 400.0 / math.log(10.0)


class RankedRun(msgspec.Struct, frozen=True):
    """One run in a ranking."""

    name: Any
    rank: int
    rank_low: int
    """The best rank that the data allow, at the ranking's confidence …"""
    rank_high: int
    """… and the worst."""
    rating: Estimate
    """On the Elo scale around 1500, or in log-odds around 0, relative to the mean of its component."""
    win_rate: Estimate
    """Points per comparison: a win counts 1, a tie ½."""
    wins: int
    losses: int
    ties: int
    component: int
    """Which of the connected components it belongs to; runs of different ones cannot be compared."""


class BradleyTerry(msgspec.Struct, frozen=True):
    """Ratings of runs, from best to worst, with win probabilities and position bias."""

    runs: list[RankedRun]
    components: list[list[Any]]
    position_bias: Estimate
    """The probability that the first of two equally good runs wins: 0.5 without bias."""
    win_probability: list[list[float]]
    """`[i][j]`: of the run at place i against that at place j; a tie counts ½."""
    n: int
    clusters: int
    ties: int
    iterations: int
    confidence: float
    log_odds: list[float]
    covariance: list[list[float]]
    """Of the log-odds, both in the order of `runs`."""
    degrees: float
    tie: float = 0.0
    """ν of Davidson's model; 0 where ties count half."""

    def against(self, one: Hashable, other: Hashable) -> Estimate:
        """The probability that one run beats another, a tie counting ½, with its interval."""
        places = {run.name: place for place, run in enumerate(self.runs)}
        for name in (one, other):
            if name not in places:
                raise StatisticsError(f"{name!r} is not in this ranking of {len(places)} runs")
        i, j = places[one], places[other]
        if self.runs[i].component != self.runs[j].component:
            reason = "no chain of comparisons connects them"
            return Estimate(
                None, method="bradley-terry", confidence=self.confidence, metadata={"reason": reason}
            )
        gap = self.log_odds[i] - self.log_odds[j]
        if self.degrees <= 0:
            lone = {"reason": "one cluster: the spread cannot be estimated"}
            return Estimate(
                _points(gap, self.tie), n=self.n, of=self.n, method="bradley-terry",
                confidence=self.confidence, metadata=lone,
            )  # fmt: skip
        variance = self.covariance[i][i] + self.covariance[j][j] - 2.0 * self.covariance[i][j]
        half = critical(self.confidence, self.degrees) * math.sqrt(max(0.0, variance))
        value, low, high = (_points(g, self.tie) for g in (gap, gap - half, gap + half))
        return Estimate(value, low, high, self.n, self.n, "bradley-terry", self.confidence)


def bradley_terry(
    comparisons: Iterable[tuple[Hashable, Hashable, float]] | None = None,
    *,
    first: Labels | None = None,
    second: Labels | None = None,
    outcomes: Numbers | None = None,
    names: Iterable[Hashable] | None = None,
    clusters: Labels | None = None,
    prior: float = 1.0,
    ties: Literal["half", "davidson"] = "half",
    adjust_position: bool = False,
    confidence: float = 0.95,
    elo_scale: bool = True,
) -> BradleyTerry:
    """Rank runs from pairwise comparisons by the model of Bradley & Terry (1952).

    `comparisons` are `(first, second, outcome)`, outcome 1, 0.5 or 0 for the first; or the three columns
    `first`, `second` and `outcomes`, as lists or NumPy arrays (fast for millions). `clusters` names the
    example of each comparison. log-odds of the first winning = strength(first) − strength(second), fitted by
    Newton.

    - Ties count half a win to both (`half`), or have the probability of Davidson (1970).
    - `prior` is a weak one: that many imaginary comparisons of each run with an average one, half of them
      won. It keeps unanimous results finite, and is part of the variance, so that ten wins of ten give about
      the interval that Wilson's gives. 0 turns it off, with the clusters added to the covariance.
    - The covariance is the sandwich H⁻¹ M H⁻¹, with M the sum over clusters of the outer products of their
      scores and the factor G/(G−1)·(n−1)/(n−runs+1): right under ties and correlated comparisons (White
      1982). A few clusters that a run wins or loses as a whole are added to M, so that ties and rare wins leave room
      for what was not drawn.
    - Ratings are relative to the mean of their component, with t intervals on G − 1 degrees of freedom.
    - A rank range counts the runs that are better, and worse, for certain: the differences from this run at
      the confidence, shared among its comparisons (Bonferroni; Mogstad et al. 2024).
    - The position bias comes from the same model with one more parameter for being first; `adjust_position`
      ranks by that model, which is right where runs were not first equally often.
    """
    confidence = check_confidence(confidence)
    if ties not in ("half", "davidson"):
        raise StatisticsError(f"ties is {ties!r}: choose 'half' or 'davidson'")
    prior = finite(prior, "prior")
    if prior < 0.0:
        raise StatisticsError(f"prior is {prior!r}: give a number of pseudo-comparisons, 0 or more")
    if comparisons is not None:
        rows = list(comparisons)
        first, second, outcomes = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    elif first is None or second is None or outcomes is None:
        raise StatisticsError(
            "give comparisons as (first, second, outcome), or the columns first, second, outcomes"
        )
    data = Comparisons(first, second, outcomes, clusters, names)
    if not data.names:
        return _empty(confidence)
    table = data.table()
    if prior == 0.0 and table.separated():
        raise StatisticsError(
            "some runs won or lost all their comparisons: give a prior above 0 to rank them"
        )
    known = table.position_known()
    if adjust_position and not known:
        raise StatisticsError("position and strength cannot be separated: show pairs in both orders")
    davidson = ties == "davidson"
    fit = fit_strengths(data, table, prior, davidson)
    positioned = fit_strengths(data, table, prior, davidson, near=fit) if known else None
    if adjust_position and positioned is not None:
        fit = positioned
    return _ranking(data, table, fit, positioned, confidence, elo_scale)


def _empty(confidence: float) -> BradleyTerry:
    none = Estimate(
        None, method="bradley-terry", confidence=confidence, metadata={"reason": "no comparisons"}
    )
    return BradleyTerry([], [], none, [], 0, 0, 0, 0, confidence, [], [], 0.0)


def _ranking(
    data: Any, table: Any, fit: Fit, positioned: Fit | None, confidence: float, elo_scale: bool
) -> BradleyTerry:
    theta, covariance = fit.strengths, fit.covariance
    component = np.zeros(len(theta), dtype=int)
    for number, members in enumerate(fit.components):
        component[members] = number
    order = np.lexsort((-theta, component))
    low, high = _rank_ranges(theta, covariance, component, order, confidence, fit.degrees)
    factor, centre = (ELO_PER_LOGIT, 1500.0) if elo_scale else (1.0, 0.0)
    half = critical(confidence, fit.degrees) if fit.degrees > 0 else math.nan
    won, tied, lost = table.outcomes()
    rates = win_rates(data, table, confidence)
    runs = []
    rank = 0
    for place, i in enumerate(order.tolist()):
        before = order[place - 1] if place else i
        if not place or component[before] != component[i] or theta[before] - theta[i] > 1e-9:
            rank = place + 1
        value, error = (
            centre + factor * float(theta[i]),
            factor * math.sqrt(max(0.0, float(covariance[i, i]))),
        )
        n = round(float(won[i] + tied[i] + lost[i]))
        lone = {"reason": "one cluster: the spread cannot be estimated" if n else "no comparisons"}
        rating = Estimate(value, n=n, of=n, method="bradley-terry", confidence=confidence, metadata=lone)
        if fit.degrees > 0 and n:
            rating = msgspec.structs.replace(
                rating,
                low=value - half * error,
                high=value + half * error,
                metadata={"standard_error": error},
            )
        wins, ties = round(float(won[i])), round(float(tied[i]))
        runs.append(
            RankedRun(
                data.names[i], rank, int(low[i]), int(high[i]), rating, rates[i],
                wins, n - wins - ties, ties, int(component[i]),
            )
        )  # fmt: skip
    gaps = theta[order][:, None] - theta[order][None, :]
    return BradleyTerry(
        runs=runs,
        components=[[data.names[i] for i in members] for members in fit.components],
        position_bias=_position_bias(positioned, len(data), confidence),
        win_probability=expected_points(gaps, fit.tie)[0].tolist(),
        n=len(data),
        clusters=data.cluster_count,
        ties=round(float(table.ties.sum())),
        iterations=fit.iterations,
        confidence=confidence,
        log_odds=theta[order].tolist(),
        covariance=covariance[np.ix_(order, order)].tolist(),
        degrees=fit.degrees,
        tie=fit.tie,
    )


def _rank_ranges(
    theta: Any, covariance: Any, component: Any, order: Any, confidence: float, degrees: float
) -> tuple[Any, Any]:
    """The best and the worst rank of each run; runs that nothing connects are neither better nor worse."""
    import numpy as np

    k = len(theta)
    if degrees <= 0 or k < 2:
        return np.ones(k, dtype=int), np.full(k, k)
    variance = np.diag(covariance)[:, None] + np.diag(covariance)[None, :] - 2.0 * covariance
    level = critical(1.0 - (1.0 - confidence) / (k - 1), degrees)
    margin = level * np.sqrt(np.maximum(variance, 0.0))
    gap = theta[:, None] - theta[None, :]
    certain = (gap > margin) & (component[:, None] == component[None, :])
    return 1 + certain.sum(axis=0), k - certain.sum(axis=1)


def _position_bias(fit: Fit | None, n: int, confidence: float) -> Estimate:
    method = "bradley-terry, position"
    if fit is None:
        metadata = {"reason": "position and strength cannot be separated: no pair was shown in both orders"}
        return Estimate(None, of=n, method=method, confidence=confidence, metadata=metadata)
    bias, error = fit.position, math.sqrt(max(0.0, fit.position_variance))
    metadata_known = {"log_odds": bias, "elo": ELO_PER_LOGIT * bias, "standard_error": error}
    if fit.degrees <= 0:
        return Estimate(
            _logistic(bias), n=n, of=n, method=method, confidence=confidence, metadata=metadata_known
        )
    half = critical(confidence, fit.degrees) * error
    low, high = _logistic(bias - half), _logistic(bias + half)
    return Estimate(_logistic(bias), low, high, n, n, method, confidence, metadata=metadata_known)


def _points(gap: float, tie: float) -> float:
    """The expected points of the first, as `expected_points` computes them."""
    e = math.exp(-0.5 * abs(gap))
    worse = e * (e + 0.5 * tie) / (1.0 + e * e + tie * e)
    return 1.0 - worse if gap >= 0.0 else worse


def _logistic(x: float) -> float:
    return _points(x, 0.0)


Outcome = tuple[Hashable, Hashable, float]


def falling_k(n: int) -> float:
    """Return the step of a rating after `n` comparisons: 10·e^(−0.0005·n) + 10."""
    return 10.0 * math.exp(-0.0005 * n) + 10.0


def elo(
    comparisons: Iterable[Outcome],
    start: float = 1500.0,
    scale: float = 400.0,
    k: Callable[[int], float] | float = falling_k,
    *,
    shuffles: int = 0,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[Any, Estimate]:
    """Elo ratings from `(first, second, outcome)`, outcome 1, 0.5 or 0 for the first (Elo 1978).

    After each comparison a player moves by K·(outcome − expected), expected = 1 / (1 + 10^((other −
    own)/scale)), with `k` of the number of comparisons that player had before. With `shuffles` the ratings
    are averaged over that many seeded orders, and the interval says how much the order alone matters: it
    holds that share of the orders, and is no interval for the strength. One win gives 1510 and 1490. Best
    rating first.
    """
    confidence = check_confidence(confidence)
    shuffles = count(shuffles, "shuffles", MOST_RESAMPLES)
    names, first, second, outcomes = _encoded(comparisons)
    played = [0] * len(names)
    for a, b in zip(first, second, strict=True):
        played[a] += 1
        played[b] += 1
    steps = [k(n) if callable(k) else float(k) for n in range(max(played, default=0))]
    if shuffles:
        estimates = _shuffled(
            len(names), first, second, outcomes, steps, (start, scale), shuffles, seed, confidence, played
        )
    else:
        ratings = _in_order(len(names), first, second, outcomes, steps, start, scale)
        estimates = [
            Estimate(r, n=n, of=n, method="elo", confidence=confidence)
            for r, n in zip(ratings, played, strict=True)
        ]
    order = sorted(range(len(names)), key=lambda i: -(estimates[i].value or 0.0))
    return {names[i]: estimates[i] for i in order}


def _encoded(comparisons: Iterable[Outcome]) -> tuple[list[Hashable], list[int], list[int], list[float]]:
    index: dict[Hashable, int] = {}
    first, second, outcomes = [], [], []
    for position, (a, b, outcome) in enumerate(comparisons):
        score = finite(outcome, f"outcome of comparison {position}")
        if not 0.0 <= score <= 1.0:
            raise StatisticsError(
                f"outcome of comparison {position} is {score}: it must be 1, 0.5 or 0 for the first"
            )
        if a == b:
            raise StatisticsError(
                f"comparison {position} has {a!r} on both sides: compare two different runs"
            )
        first.append(index.setdefault(a, len(index)))
        second.append(index.setdefault(b, len(index)))
        outcomes.append(score)
    return list(index), first, second, outcomes


def _in_order(
    players: int,
    first: list[int],
    second: list[int],
    outcomes: list[float],
    steps: list[float],
    start: float,
    scale: float,
) -> list[float]:
    ratings, played = [float(start)] * players, [0] * players
    for a, b, outcome in zip(first, second, outcomes, strict=True):
        expected = _expected(ratings[b] - ratings[a], scale)
        surprise = outcome - expected
        ratings[a] += steps[played[a]] * surprise
        ratings[b] -= steps[played[b]] * surprise
        played[a] += 1
        played[b] += 1
    return ratings


def _expected(gap: float, scale: float) -> float:
    exponent = gap / scale
    return 0.0 if exponent > 300.0 else 1.0 / (1.0 + 10.0**exponent)


def _shuffled(
    players: int,
    first: list[int],
    second: list[int],
    outcomes: list[float],
    steps: list[float],
    scales: tuple[float, float],
    shuffles: int,
    seed: int,
    confidence: float,
    played: list[int],
) -> list[Estimate]:
    """All orders at once: one row of ratings for each, one comparison of each order at a time."""
    import numpy as np

    start, scale = scales
    rng = np.random.default_rng(seed)
    left, right, scores = np.array(first), np.array(second), np.array(outcomes)
    k = np.array(steps)
    orders = np.stack([rng.permutation(len(left)) for _ in range(shuffles)], axis=1)
    rows = np.arange(shuffles)
    ratings = np.full((shuffles, players), float(start))
    so_far = np.zeros((shuffles, players), dtype=np.int64)
    for picks in orders:
        a, b = left[picks], right[picks]
        gap = np.clip((ratings[rows, b] - ratings[rows, a]) / scale, -300.0, 300.0)
        surprise = scores[picks] - 1.0 / (1.0 + 10.0**gap)
        ratings[rows, a] += k[so_far[rows, a]] * surprise
        ratings[rows, b] -= k[so_far[rows, b]] * surprise
        so_far[rows, a] += 1
        so_far[rows, b] += 1
    tails = np.quantile(ratings, (0.5 * (1.0 - confidence), 0.5 * (1.0 + confidence)), axis=0)
    method = f"elo, mean of {shuffles} orders"
    metadata = {"shuffles": shuffles, "seed": seed, "interval": "over orders"}
    return [
        Estimate(
            float(ratings[:, i].mean()),
            float(tails[0, i]),
            float(tails[1, i]),
            n,
            n,
            method,
            confidence,
            metadata=metadata,
        )
        for i, n in enumerate(played)
    ]
