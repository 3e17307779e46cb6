"""A part of bench/coverage.py with fixed seeds: the 95 % intervals hold the truth about that often."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "coverage.py"
    spec = importlib.util.spec_from_file_location("bench_coverage", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("n", [*range(20, 41), 50, 75, 100, 150, 200])
def test_proportions_exactly(coverage: ModuleType, n: int) -> None:
    average, least, _ = coverage.wilson_range(n)
    assert 0.94 <= average <= 0.965
    assert least >= 0.91


def test_paired_proportions_exactly(coverage: ModuleType) -> None:
    shares = [(b, c) for b in (0.05, 0.1, 0.2) for c in (0.05, 0.1, 0.3)]
    assert all(0.93 <= found <= 0.99 for found in coverage.tango_coverage(30, shares))


@pytest.mark.parametrize("scores", ["normal", "uniform"])
def test_means(coverage: ModuleType, scores: str) -> None:
    assert 0.93 <= coverage.mean_coverage(coverage.SCORES[scores], 20, 2000, seed=1) <= 0.97


@pytest.mark.parametrize("scores", ["normal", "uniform"])
@pytest.mark.parametrize("sizes", ["1 to 10", "geometric"])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_clustered_means(coverage: ModuleType, scores: str, sizes: str, correlation: float) -> None:
    found = coverage.clustered_mean_coverage(
        coverage.SCORES[scores], coverage.SIZES[sizes], 20, correlation, 1000, seed=2
    )
    assert 0.93 <= found <= 0.97


@pytest.mark.parametrize("scores", ["normal", "uniform"])
@pytest.mark.parametrize("sizes", [None, "1 to 10"])
def test_paired_differences(coverage: ModuleType, scores: str, sizes: str | None) -> None:
    found = coverage.paired_coverage(
        coverage.SCORES[scores], 20, 1000, seed=3, sizes=coverage.SIZES[sizes] if sizes else None
    )
    assert 0.93 <= found <= 0.97


@pytest.mark.parametrize("every_pair", [True, False])
def test_bradley_terry_correlated_within_examples(coverage: ModuleType, every_pair: bool) -> None:
    found = coverage.bradley_terry_coverage(4, 30, 1.0, 0.1, 500, 4, every_pair)
    assert 0.93 <= found.mean() <= 0.97
