"""How fast the statistics are: Bradley–Terry with covariance against evalica without, on the same data; then all
classification metrics over a million stored results (bench/statistics_aggregators.py).

`python bench/statistics.py` prints the figures and returns 1 when one misses what is wanted of it.
"""

# ruff: noqa: E402 - this folder leaves the path before anything else is imported

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Run as a script this file is importable as `statistics`, and must not hide the standard library's.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

import numpy as np

from karat.stats import bradley_terry


def timed(work: Callable[[], Any], repeats: int = 5) -> tuple[float, float]:
    """The best and the median time of some calls, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    times.sort()
    return times[0], times[len(times) // 2]


def comparisons(runs: int, n: int, examples: int, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Random comparisons of runs of normal strengths, one in seven a tie, spread over examples."""
    rng = np.random.default_rng(seed)
    strength = rng.normal(size=runs)
    first = rng.integers(0, runs, n)
    second = (first + rng.integers(1, runs, n)) % runs
    win = rng.random(n) < 1.0 / (1.0 + np.exp(strength[second] - strength[first]))
    outcomes = np.where(rng.random(n) < 1 / 7, 0.5, win * 1.0)
    return first, second, outcomes, rng.integers(0, examples, n)


def bradley_terry_against_evalica(runs: int = 100, n: int = 1_000_000, examples: int = 10_000) -> bool:
    """Prints both times and how far the strengths differ; whether karat is the faster one, clustered."""
    import evalica

    first, second, outcomes, clusters = comparisons(runs, n, examples)
    plain = timed(lambda: bradley_terry(first=first, second=second, outcomes=outcomes))
    clustered = timed(lambda: bradley_terry(first=first, second=second, outcomes=outcomes, clusters=clusters))
    left, right = first.tolist(), second.tolist()
    words = {1.0: evalica.Winner.X, 0.0: evalica.Winner.Y, 0.5: evalica.Winner.Draw}
    winners = [words[outcome] for outcome in outcomes.tolist()]
    theirs = timed(lambda: evalica.bradley_terry(left, right, winners), repeats=3)
    scores = np.log(evalica.bradley_terry(left, right, winners, tolerance=1e-10, limit=10_000).scores)
    ours = bradley_terry(first=first, second=second, outcomes=outcomes, prior=0.0, elo_scale=False)
    centred = scores - scores.mean()
    apart = max(abs(float(centred[run.name]) - run.rating.value) for run in ours.runs)
    print(f"\nBradley–Terry, {runs} runs, {n:,} comparisons (best, median)")
    print(f"  karat, covariance, ranks, position bias           {plain[0]:.3f} s  {plain[1]:.3f} s")
    print(
        f"  the same, clustered by {examples:,} examples            {clustered[0]:.3f} s  {clustered[1]:.3f} s"
    )
    print(
        f"  evalica {evalica.__version__}, strengths only                    {theirs[0]:.3f} s  {theirs[1]:.3f} s"
    )
    print(f"  strengths differ by at most {apart:.1e} log-odds (without a prior)")
    return clustered[1] < theirs[1]


def main() -> int:
    """Prints the figures; 1 when one misses what is wanted of it."""
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}"
    )
    held = [bradley_terry_against_evalica()]
    aggregators = Path(__file__).with_name("statistics_aggregators.py")
    held.append(subprocess.run([sys.executable, str(aggregators)], check=False).returncode == 0)
    print(f"\n{len(held)} wanted, {held.count(False)} missed")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
