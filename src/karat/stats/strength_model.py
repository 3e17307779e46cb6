"""The Bradley–Terry likelihood: its maximum by Newton steps, and the sandwich covariance there."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from karat.stats.comparisons import Comparisons, PairTable
from karat.stats.validation import StatisticsError

_STEPS = 100
_TOLERANCE = 1e-10
_SMALL = 256
"""Matrices below this are multiplied and inverted in pieces for which BLAS starts no threads: where cores are
shared, those cost a hundred times what they compute (measured: 37 ms for an inverse of 0.2 ms)."""


class Fit(msgspec.Struct, frozen=True):
    """The maximum of the likelihood. Strengths are log-odds relative to the mean of their component."""

    strengths: Any
    covariance: Any
    components: list[list[int]]
    degrees: float
    """Of freedom, for t: clusters − 1; 0 where there is nothing to tell a spread from."""
    iterations: int
    tie: float
    """ν of Davidson's model; 0 where ties count half."""
    position: float = 0.0
    position_variance: float = 0.0


def expected_points(gap: Any, tie: float) -> tuple[Any, Any, Any]:
    """The first's expected points, their variance, and the probability of a tie, for gaps in log-odds.

    With e = e^(−|gap|/2): the better wins with 1/(1 + e² + νe) and ties with νe/(1 + e² + νe); Davidson
    (1970).
    """
    e = np.exp(-0.5 * np.abs(gap))
    total = 1.0 + e * e + tie * e
    tied = tie * e / total
    better = 1.0 / total
    win = np.where(gap >= 0.0, better, 1.0 - better - tied)
    expected = win + 0.5 * tied
    variance = win + 0.25 * tied - expected * expected if tie else better * (1.0 - better)
    return expected, variance, tied


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

    def parts(self, parameters: Any) -> tuple[Any, float]:
        """The gap of every ordered pair, and ν."""
        theta = parameters[: self.k]
        gap = theta[:, None] - theta[None, :]
        if self.position is not None:
            gap = gap + parameters[self.position]
        return gap, float(np.exp(parameters[self.tie_at])) if self.tie_at is not None else 0.0

    def objective(self, parameters: Any) -> float:
        """The log-likelihood with the prior."""
        gap, tie = self.parts(parameters)
        size = np.abs(gap)
        norm = 0.5 * size + np.log1p(np.exp(-size) + tie * np.exp(-0.5 * size))
        value = float(((self.table.points - 0.5 * self.table.games) * gap - self.table.games * norm).sum())
        if self.tie_at is not None:
            value += float(self.table.ties.sum() * parameters[self.tie_at])
        size = np.abs(parameters)
        return value - self.prior * float((0.5 * size + np.log1p(np.exp(-size))).sum())

    def derivatives(self, parameters: Any) -> tuple[Any, Any]:
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

    def held(self, information: Any) -> Any:
        """The information with the mean of every component held: without a prior it has only differences."""
        if self.prior > 0.0:
            return information
        held = information.copy()
        for members in self.components:
            held[np.ix_(members, members)] += max(1.0, float(np.trace(information)) / self.size)
        return held

    def maximum(self, start: Any = None) -> tuple[Any, Any, int]:
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
            scale = 1.0
            if length > 1e-5:  # nearer than this the likelihood is flat to the last bit and cannot guide
                while self.objective(parameters + scale * step) < value and scale > 1e-9:
                    scale *= 0.5
            parameters = parameters + scale * step
            value = self.objective(parameters)
        raise StatisticsError(
            "the Bradley–Terry likelihood has no maximum that Newton reaches: raise the prior"
        )


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
    # Half a win and half a loss against an average run, each an observation of its own.
    scores[np.diag_indices(model.size)] += prior * 0.5 * (pull**2 + (1.0 - pull) ** 2)
    covariance = _product(_product(inverse, scores), inverse)
    centring = np.eye(k)
    for members in model.components:
        centring[np.ix_(members, members)] -= 1.0 / len(members)
    found = Fit(
        strengths=centring @ parameters[:k],
        covariance=_product(_product(centring, covariance[:k, :k]), centring),
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


def strengths_of(table: PairTable) -> Any:
    """The strengths that a table of (expected) points amounts to, without a prior and without covariance."""
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
    for rows, cluster, count in data.by_cluster(model.size):
        residual, at = residuals[rows], cluster * model.k
        size = count * model.k
        sums = np.bincount(at + data.first[rows], residual, minlength=size)
        sums -= np.bincount(at + data.second[rows], residual, minlength=size)
        columns = [sums.reshape(count, model.k)]
        if model.position is not None:
            columns.append(np.bincount(cluster, residual, minlength=count)[:, None])
        if surprises is not None:
            columns.append(np.bincount(cluster, surprises[rows], minlength=count)[:, None])
        block = columns[0] if len(columns) == 1 else np.hstack(columns)
        for part in np.array_split(block, max(1, count * model.size**2 >> 17) if model.size < _SMALL else 1):
            total += part.T @ part
    return total


def _product(a: Any, b: Any) -> Any:
    """A matrix product, without the threads of BLAS where the matrices are small."""
    return np.einsum("ij,jk->ik", a, b) if len(a) < _SMALL else a @ b


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
