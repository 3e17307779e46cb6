"""Tests of whether two paired sets of scores differ: McNemar's exact test and the paired t test."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from karat.stats.distributions import binomial_cdf, binomial_probability, t_two_sided
from karat.stats.validation import count


class PairedTest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a test says: its p-value, None where it could not be made, with the reason in the metadata."""

    p_value: float | None
    method: str
    n: int = 0
    """How many pairs (for McNemar: discordant ones) it speaks over."""
    statistic: float | None = None
    metadata: dict[str, Any] = {}


def mcnemar(b: int, c: int, *, mid_p: bool = False) -> PairedTest:
    """McNemar's exact test from the discordant pairs: in `b` the first alone succeeded, in `c` the second.

    Under no difference the smaller of b and c is binomial with b + c trials of ½: p = 2·P(X ≤ min(b, c)), at
    most 1. `mid_p` takes half of the probability of what was seen (Fagerland, Lydersen & Laake 2013), which
    is less conservative. Without discordant pairs p is 1.
    """
    b, c = count(b, "b"), count(c, "c")
    n, fewer = b + c, min(b, c)
    method = "McNemar, mid-p" if mid_p else "McNemar, exact"
    p = 2.0 * binomial_cdf(fewer, n, 0.5)
    if mid_p:
        p -= binomial_probability(fewer, n, 0.5)
    if b == c:
        p = 1.0
    return PairedTest(min(1.0, max(0.0, p)), method, n, statistic=float(fewer))


def paired_t(difference: float, standard_error: float, df: float, n: int) -> PairedTest:
    """The paired t test from a mean difference, its (cluster-robust) standard error and its degrees."""
    if standard_error > 0.0:
        t = difference / standard_error
        return PairedTest(t_two_sided(t, df), "paired t", n, statistic=t, metadata={"df": df})
    if difference == 0.0:
        return PairedTest(1.0, "paired t", n, metadata={"reason": "all differences are zero"})
    # Without spread t is infinite; what remains is that every pair went the same way.
    return PairedTest(
        math.ldexp(2.0, -max(1, math.ceil(df) + 1)),
        "sign",
        n,
        metadata={"reason": "all differences are equal: the sign test in place of t"},
    )
