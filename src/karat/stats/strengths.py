"""Bradley–Terry rankings: ratings clustered by example, rank ranges, win probabilities, position bias."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from karat.records import Estimate
from karat.stats.distributions import critical
from karat.stats.validation import StatisticsError, check_confidence

if TYPE_CHECKING:
    from karat.stats.strength_model import Fit

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
    """A ranking: the runs from best to worst, and what else the comparisons say."""

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

    def against(self, one: Any, other: Any) -> Estimate:
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
        variance = self.covariance[i][i] + self.covariance[j][j] - 2.0 * self.covariance[i][j]
        half = critical(self.confidence, self.degrees) * math.sqrt(max(0.0, variance))
        value, low, high = (_points(g, self.tie) for g in (gap, gap - half, gap + half))
        return Estimate(value, low, high, self.n, self.n, "bradley-terry", self.confidence)


def bradley_terry(
    comparisons: Iterable[tuple[Any, Any, float]] | None = None,
    *,
    first: Any = None,
    second: Any = None,
    outcomes: Any = None,
    names: Iterable[Any] | None = None,
    clusters: Any = None,
    prior: float = 1.0,
    ties: Literal["half", "davidson"] = "half",
    adjust_position: bool = False,
    confidence: float = 0.95,
    elo_scale: bool = True,
) -> BradleyTerry:
    """Ranks runs from pairwise comparisons by the model of Bradley & Terry (1952).

    `comparisons` are `(first, second, outcome)`, outcome 1, 0.5 or 0 for the first; or the three columns
    `first`, `second` and `outcomes`, as lists or NumPy arrays (fast for millions). `clusters` names the
    example of each comparison. log-odds of the first winning = strength(first) − strength(second), fitted by
    Newton.

    - Ties count half a win to both (`half`), or have the probability of Davidson (1970).
    - `prior` is a weak one: that many imaginary comparisons of each run with an average one, half of them
      won. It keeps unanimous results finite, and is part of the variance, so that ten wins of ten give about
      the interval that Wilson's gives. 0 turns it off.
    - The covariance is the sandwich H⁻¹ M H⁻¹, with M the sum over clusters of the outer products of their
      scores and the factor G/(G−1)·(n−1)/(n−runs+1): right under ties and correlated comparisons (White
      1982).
    - Ratings are relative to the mean of their component, with t intervals on G − 1 degrees of freedom.
    - A rank range counts the runs that are better, and worse, for certain: the differences from this run at
      the confidence, shared among its comparisons (Bonferroni; Mogstad et al. 2024).
    - The position bias comes from the same model with one more parameter for being first; `adjust_position`
      ranks by that model, which is right where runs were not first equally often.
    """
    from karat.stats.comparisons import Comparisons
    from karat.stats.strength_model import fit_strengths

    confidence = check_confidence(confidence)
    if ties not in ("half", "davidson"):
        raise StatisticsError(f"ties is {ties!r}: known are 'half' and 'davidson'")
    if not 0.0 <= prior < math.inf:
        raise StatisticsError(f"prior is {prior!r}: it counts imaginary comparisons and is not negative")
    if comparisons is not None:
        rows = list(comparisons)
        first, second, outcomes = ([row[column] for row in rows] for column in range(3))
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
        raise StatisticsError("position and strength cannot be told apart: show pairs in both orders")
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
    import numpy as np

    from karat.stats.strength_model import expected_points
    from karat.stats.win_rates import win_rates

    theta, covariance = fit.strengths, fit.covariance
    component = np.zeros(len(theta), dtype=int)
    for number, members in enumerate(fit.components):
        component[members] = number
    order = np.lexsort((-theta, component))
    low, high = _rank_ranges(theta, covariance, component, order, confidence, fit.degrees)
    factor, centre = (ELO_PER_LOGIT, 1500.0) if elo_scale else (1.0, 0.0)
    half = critical(confidence, fit.degrees) if fit.degrees > 0 else math.nan
    games = (table.games + table.games.T).sum(axis=1)
    tied = (table.ties + table.ties.T).sum(axis=1)
    points = table.points.sum(axis=1) + (table.games - table.points).sum(axis=0)
    rates = win_rates(data, table, confidence)
    runs = []
    for place, i in enumerate(order.tolist()):
        value, error = (
            centre + factor * float(theta[i]),
            factor * math.sqrt(max(0.0, float(covariance[i, i]))),
        )
        n = int(games[i])
        rating = Estimate(value, n=n, of=n, method="bradley-terry", confidence=confidence)
        if fit.degrees > 0 and n:
            rating = msgspec.structs.replace(
                rating,
                low=value - half * error,
                high=value + half * error,
                metadata={"standard_error": error},
            )
        wins = round(float(points[i] - 0.5 * tied[i]))
        losses = n - wins - round(float(tied[i]))
        runs.append(
            RankedRun(
                data.names[i], place + 1, int(low[i]), int(high[i]), rating, rates[i],
                wins, losses, round(float(tied[i])), int(component[i]),
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
        metadata = {"reason": "position and strength cannot be told apart: no pair was shown in both orders"}
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
    """The expected points of the first, as `strength_model.expected_points` has them."""
    e = math.exp(-0.5 * abs(gap))
    worse = e * (e + 0.5 * tie) / (1.0 + e * e + tie * e)
    return 1.0 - worse if gap >= 0.0 else worse


def _logistic(x: float) -> float:
    return _points(x, 0.0)
