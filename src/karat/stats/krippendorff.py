"""Krippendorff's alpha: agreement of any number of raters, with missing ratings, on any scale."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from karat.records import Estimate
from karat.stats.distributions import critical
from karat.stats.proportions import wilson_limits
from karat.stats.validation import StatisticsError, check_confidence, finite

Level = Literal["nominal", "ordinal", "interval"]
_MOST_PATTERNS = 4_000_000
"""Patterns × classes² held at once; beyond it the resamples are drawn in more, smaller blocks."""


def krippendorff_alpha(
    ratings: Sequence[Sequence[Any]],
    level: Level = "nominal",
    *,
    order: Sequence[Any] | None = None,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Krippendorff's alpha of `ratings[item][rater]`, None where a rating is missing (Krippendorff 2011).

    1 − D_o / D_e: the disagreement seen within items over that expected from all values together. Two values
    disagree by whether they differ (nominal), by how many values lie between them (ordinal: in `order`, or
    sorted), or by their squared difference (interval: numbers). Items with fewer than two ratings say nothing
    and are only counted in `of`. The interval is the percentile one over resampled items, seeded; agreement
    on everything gets Wilson's limit on the share of items that could disagree. One value only: None, with
    the reason.
    """
    import numpy as np

    confidence = check_confidence(confidence)
    if level not in ("nominal", "ordinal", "interval"):
        raise StatisticsError(f"level is {level!r}: known are 'nominal', 'ordinal' and 'interval'")
    units = [[rating for rating in item if rating is not None] for item in ratings]
    units = [unit for unit in units if len(unit) >= 2]
    n, of, method = len(units), len(ratings), f"krippendorff, {level}"
    values = _ordered({rating for unit in units for rating in unit}, level, order)
    if len(values) < 2:
        reason = "only one value was used" if n else "no item has two ratings"
        return Estimate(None, n=n, of=of, method=method, confidence=confidence, metadata={"reason": reason})
    place = {value: position for position, value in enumerate(values)}
    patterns = Counter(tuple(sorted(place[rating] for rating in unit)) for unit in units)
    kinds = sorted(patterns)
    times = np.array([patterns[kind] for kind in kinds], dtype=np.float64)
    scale = np.array(values, dtype=np.float64) if level == "interval" else np.arange(len(values)) * 1.0
    alpha = _Alpha(kinds, scale, level)
    value = float(alpha(times[None])[0])
    if n < 2:
        metadata: dict[str, Any] = {"reason": "one item has no spread"}
        return Estimate(value, n=n, of=of, method=method, confidence=confidence, metadata=metadata)
    metadata = {"resamples": n_resamples, "seed": seed}
    if all(len(set(kind)) == 1 for kind in kinds):
        share, _ = wilson_limits(1.0, n, critical(confidence))
        low = max(-1.0, 1.0 - (1.0 - share) / alpha.chance_of_differing(times))
        return Estimate(value, low, value, n, of, method, confidence, metadata={"reason": "agreement on all"})
    rng = np.random.default_rng(seed)
    step = max(1, _MOST_PATTERNS // (len(kinds) + len(values) ** 2))
    drawn = np.concatenate(
        [
            alpha(rng.multinomial(n, times / n, size=min(step, n_resamples - start)).astype(np.float64))
            for start in range(0, n_resamples, step)
        ]
    )
    known = drawn[~np.isnan(drawn)]
    if len(known) < len(drawn):
        metadata["undefined"] = len(drawn) - len(known)
    low, high = (float(q) for q in np.quantile(known, (0.5 * (1 - confidence), 0.5 * (1 + confidence))))
    return Estimate(value, min(low, value), max(high, value), n, of, method, confidence, metadata=metadata)


def _ordered(seen: set[Any], level: Level, order: Sequence[Any] | None) -> list[Any]:
    if level == "interval":
        return sorted({finite(value, "a rating") for value in seen})
    if any(isinstance(value, float) and math.isnan(value) for value in seen):
        raise StatisticsError("a rating is NaN: write None for a missing rating")
    if order is not None:
        unknown = [value for value in seen if value not in set(order)]
        if unknown:
            raise StatisticsError(f"order lacks {unknown[0]!r}, which is a rating: list every value")
        return [value for value in order if value in seen]
    try:
        return sorted(seen)
    except TypeError:
        if level == "ordinal":
            raise StatisticsError("ratings of several types have no order: give order=[…]") from None
        return sorted(seen, key=str)


class _Alpha:
    """Alpha as a function of how often each kind of item occurs, for many such tables at once."""

    def __init__(self, kinds: list[tuple[int, ...]], scale: Any, level: Level) -> None:
        import numpy as np

        self.level, self.scale, v = level, scale, len(scale)
        self.counts = np.zeros((len(kinds), v))
        for row, kind in enumerate(kinds):
            for position in kind:
                self.counts[row, position] += 1.0
        self.sizes = self.counts.sum(axis=1)
        if level == "ordinal":
            # Coincidences of every two values within each kind of item: ordinal distances weigh them.
            pairs = self.counts[:, :, None] * self.counts[:, None, :]
            pairs[:, np.arange(v), np.arange(v)] -= self.counts
            self.pairs = (pairs / (self.sizes - 1.0)[:, None, None]).reshape(len(kinds), v * v)
            return
        if level == "nominal":
            within = self.sizes**2 - (self.counts**2).sum(axis=1)
        else:
            centred = scale - scale.mean()
            within = 2.0 * (self.sizes * (self.counts @ centred**2) - (self.counts @ centred) ** 2)
        self.within = within / (self.sizes - 1.0)

    def __call__(self, times: Any) -> Any:
        """Alpha for each row of `times`; NaN where all values are the same."""
        import numpy as np

        marginal = times @ self.counts
        total = marginal.sum(axis=1)
        if self.level == "nominal":
            seen = times @ self.within
            expected = total**2 - (marginal**2).sum(axis=1)
        elif self.level == "interval":
            centred = self.scale - self.scale.mean()
            seen = times @ self.within
            expected = 2.0 * (total * (marginal @ centred**2) - (marginal @ centred) ** 2)
        else:
            seen, expected = self._ordinal(times, marginal)
        expected = np.where(expected > 1e-12 * np.maximum(total, 1.0), expected, np.nan)
        return 1.0 - (total - 1.0) * seen / expected

    def _ordinal(self, times: Any, marginal: Any) -> tuple[Any, Any]:
        """(Σ of the values from c to k, less half of both ends)², with the marginals of each table."""
        import numpy as np

        v = marginal.shape[1]
        middle = np.cumsum(marginal, axis=1) - 0.5 * marginal
        distance = (middle[:, :, None] - middle[:, None, :]) ** 2
        coincidences = (times @ self.pairs).reshape(-1, v, v)
        seen = (coincidences * distance).sum(axis=(1, 2))
        expected = (marginal[:, :, None] * marginal[:, None, :] * distance).sum(axis=(1, 2))
        return seen, expected

    def chance_of_differing(self, times: Any) -> float:
        """The probability that two values drawn from all differ."""
        marginal = times @ self.counts
        total = float(marginal.sum())
        return float(total**2 - (marginal**2).sum()) / (total * (total - 1.0))
