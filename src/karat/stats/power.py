"""The smallest effect that some data could have shown."""

from __future__ import annotations

import math

from karat.stats.distributions import critical, t_quantile
from karat.stats.validation import StatisticsError, check_confidence


def smallest_effect(
    standard_error: float, df: float = math.inf, confidence: float = 0.95, power: float = 0.8
) -> float:
    """The true difference that a two-sided test at this confidence would find with probability `power`.

    (t_{1−α/2} + t_{power}) · standard error, with `df` degrees of freedom (Bloom 1995, the minimum detectable
    effect). It is within 1 % of the exact one from the noncentral t distribution from 10 pairs on.
    """
    check_confidence(confidence)
    if not 0.0 < power < 1.0:
        raise StatisticsError(f"power is {power!r}: give a number between 0 and 1, such as 0.8")
    if not standard_error >= 0.0:
        raise StatisticsError(f"standard_error is {standard_error!r}: it is not negative")
    return (critical(confidence, df) + t_quantile(power, df)) * standard_error


def fewest_discordant(confidence: float = 0.95) -> int:
    """How many pairs must differ, all in one direction, before the exact McNemar test can reject: 6 at 95 %.

    The smallest k with 2 · 0.5^k ≤ 1 − confidence.
    """
    check_confidence(confidence)
    return math.ceil(1.0 - math.log2(1.0 - confidence))
