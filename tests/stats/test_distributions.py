"""The quantiles karat computes itself, against SciPy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from karat.stats._distributions import (
    beta_cdf,
    beta_quantile,
    binomial_cdf,
    binomial_probability,
    critical,
    normal_cdf,
    normal_quantile,
    t_cdf,
    t_quantile,
    t_two_sided,
)


@pytest.mark.parametrize("p", [1e-200, 1e-12, 0.001, 0.025, 0.3, 0.5, 0.8, 0.975, 0.9999])
def test_normal(p: float) -> None:
    assert normal_quantile(p) == pytest.approx(stats.norm.ppf(p), rel=1e-9, abs=1e-12)
    assert normal_cdf(normal_quantile(p)) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize("df", [1, 1.5, 2, 3.3, 10, 29, 100.7, 1e4, 1e7, math.inf])
@pytest.mark.parametrize("p", [0.005, 0.4, 0.5, 0.51, 0.8, 0.9, 0.975, 0.9995])
def test_t(df: float, p: float) -> None:
    assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8, abs=1e-12)
    assert t_cdf(stats.t.ppf(p, df), df) == pytest.approx(p, rel=1e-8)
    assert t_two_sided(2.5, df) == pytest.approx(2 * stats.t.sf(2.5, df), rel=1e-8)


@pytest.mark.parametrize("p", [0.5001, 0.6, 0.95, 0.975, 0.9995])
@pytest.mark.parametrize("df", [4_000.0, 123_456.7, 1e8])
def test_many_degrees_of_freedom_lose_no_digits(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=2e-14)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1, 20), (3.3, 200), (5e4, 7e4)])
@pytest.mark.parametrize("p", [1e-6, 0.025, 0.5, 0.975])
def test_beta(a: float, b: float, p: float) -> None:
    assert beta_quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), rel=1e-8)
    assert beta_cdf(stats.beta.ppf(p, a, b), a, b) == pytest.approx(p, rel=1e-7)


def test_the_ends_of_the_beta_distribution() -> None:
    assert (beta_cdf(-1, 2, 3), beta_cdf(2, 2, 3)) == (0, 1)
    assert (beta_quantile(0, 2, 3), beta_quantile(1, 2, 3)) == (0, 1)


@pytest.mark.parametrize(("k", "n", "p"), [(3, 10, 0.5), (0, 5, 0.2), (40, 100, 0.37), (4900, 10_000, 0.5)])
def test_binomial(k: int, n: int, p: float) -> None:
    assert binomial_cdf(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-9)
    assert binomial_probability(k, n, p) == pytest.approx(stats.binom.pmf(k, n, p), rel=1e-9)


def test_the_ends_of_the_binomial_distribution() -> None:
    assert (binomial_cdf(-1, 5, 0.5), binomial_cdf(5, 5, 0.5)) == (0, 1)
    assert (binomial_probability(0, 3, 0.0), binomial_probability(1, 3, 1.0)) == (1, 0)
    assert binomial_probability(4, 3, 0.5) == 0


def test_critical_values_everybody_knows() -> None:
    assert critical(0.95) == pytest.approx(1.959964, abs=1e-6)
    assert critical(0.95, 19) == pytest.approx(2.093024, abs=1e-6)
