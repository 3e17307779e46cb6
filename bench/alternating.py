"""Run benchmarks of two checkouts in turns, and compare the processor time that each takes.

    python bench/alternating.py OLDER_CHECKOUT [--rounds 5] ["spine.py --sizes 10000" "graphs.py --sizes 20000" …]

Each checkout runs its own script with its own source, in the environment of this interpreter. The order changes from
round to round, so that neither checkout always has the warm caches. Processor time (user and system, of all processes
that the script starts) varies less with other work on the machine than wall time does. A ratio above 1 means that this
checkout takes more.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

from machine import CHECKOUT, machine, write_bytecode

BENCHMARKS = [
    "spine.py --sizes 20000",
    "graphs.py --sizes 20000 --calls 500",
    "evaluators.py",
    "statistics_aggregators.py 200000",
    "models.py --records 1000 --rounds 3",
    "startup.py",
]


def processor_seconds(checkout: Path, command: str) -> float:
    """The processor time of a benchmark's processes."""
    script, *arguments = command.split()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, str(checkout / "bench" / script), *arguments],
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):  # 1: a figure misses its target
        raise SystemExit(f"{command} in {checkout.name} failed:\n{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def median(values: list[float]) -> float:
    """The value in the middle: `statistics` would be the benchmark of that name."""
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("older", type=Path)
    parser.add_argument("benchmarks", nargs="*", default=BENCHMARKS)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_intermixed_args()
    print(machine())
    write_bytecode(given.older)
    write_bytecode(CHECKOUT)
    print(f"{'benchmark':38} {'older, least':>12} {'median':>8} {'this, least':>12} {'median':>8}   ratios")
    for command in given.benchmarks:
        taken: dict[Path, list[float]] = {given.older.resolve(): [], CHECKOUT: []}
        for number in range(given.rounds):
            for checkout in list(taken)[:: 1 if number % 2 else -1]:
                taken[checkout].append(processor_seconds(checkout, command))
        old, new = taken.values()
        ratios = min(new) / min(old), median(new) / median(old)
        print(
            f"{command:38} {min(old):11.2f}s {median(old):7.2f}s {min(new):11.2f}s"
            f" {median(new):7.2f}s   {ratios[0]:.2f} {ratios[1]:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
