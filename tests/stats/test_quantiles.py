"""Order statistics as limits of quantiles."""

from __future__ import annotations

import pytest
from scipy import stats

from karat.stats._distributions import quantile_ranks, scaled_ranks


@pytest.mark.parametrize("n", [1, 5, 20, 59, 100, 1000])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_ranks_are_the_narrowest_that_hold(n: int, p: float, confidence: float) -> None:
    tail = (1 - confidence) / 2
    low, high = quantile_ranks(p, n, confidence)
    if low is None:
        assert stats.binom.cdf(0, n, p) > tail
    else:
        assert stats.binom.cdf(low - 1, n, p) <= tail < stats.binom.cdf(low, n, p)
    if high is None:
        assert stats.binom.cdf(n - 1, n, p) < 1 - tail
    else:
        assert stats.binom.cdf(high - 1, n, p) >= 1 - tail > stats.binom.cdf(high - 2, n, p)


def test_twenty_values_have_no_upper_limit_for_a_high_quantile() -> None:
    assert quantile_ranks(0.95, 20) == (17, None)
    assert quantile_ranks(0.05, 20) == (None, 4)
    assert quantile_ranks(0.5, 5) == (None, None)


def test_correlated_values_have_the_ranks_of_fewer() -> None:
    assert scaled_ranks(0.5, 100, 100.0) == quantile_ranks(0.5, 100)
    low, high = scaled_ranks(0.5, 100, 20.0)
    narrow_low, narrow_high = quantile_ranks(0.5, 100)
    assert low < narrow_low < narrow_high < high
