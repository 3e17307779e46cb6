"""How fast the evaluators are that need no model. Run: python bench/evaluators.py

Each figure is the best of several rounds, so that other work on the machine counts as little as possible.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import machine
from rapidfuzz import __version__ as rapidfuzz_version
from rapidfuzz.distance import Levenshtein

from karat.evaluators import EditDistance, ExactMatch

ROUNDS = 9


def rates(count: int, *works: Callable[[], Any]) -> list[float]:
    """Items a second of each, in its best round; they take turns, so that all meet the same machine."""
    best = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for at, work in enumerate(works):
            began = time.perf_counter()
            work()
            best[at] = min(best[at], time.perf_counter() - began)
    return [count / seconds for seconds in best]


def exact_match() -> None:
    """`exact_match` through `evaluate_many`, for shares of items that match."""
    count = 100_000
    evaluator = ExactMatch()
    print(f"exact_match, evaluate_many over {count:,} items (wanted: 500,000/s)")
    for share in (1.0, 0.5, 0.0):
        items = [
            {"outputs": f"answer {at}", "reference_outputs": f"answer {at if at < share * count else -at}"}
            for at in range(count)
        ]
        [done] = rates(count, lambda items=items: evaluator.evaluate_many(items))
        print(f"  {share:4.0%} match   {done:12,.0f}/s")


def edit_distance() -> None:
    """`edit_distance` beside bare rapidfuzz, at 1,000 characters."""
    count, length = 300, 1_000
    source = random.Random(1)
    evaluator = EditDistance()
    print(
        f"edit_distance at {length:,} characters beside rapidfuzz {rapidfuzz_version} (wanted: at most 2 times)"
    )
    for kind in ("unrelated", "10 % edited", "one edit"):
        pairs = [_pair(source, kind, length) for _ in range(count)]
        items = [{"outputs": a, "reference_outputs": b} for a, b in pairs]
        bare, ours = rates(
            count,
            lambda pairs=pairs: [Levenshtein.distance(a, b) for a, b in pairs],
            lambda items=items: evaluator.evaluate_many(items),
        )
        print(
            f"  {kind:12} bare {1e6 / bare:7.2f} µs   evaluate_many {1e6 / ours:7.2f} µs   {bare / ours:5.2f} times"
        )


def _pair(source: random.Random, kind: str, length: int) -> tuple[str, str]:
    letters = "abcdefghijklmnopqrstuvwxyz     "
    first = [source.choice(letters) for _ in range(length)]
    if kind == "unrelated":
        return "".join(first), "".join(source.choice(letters) for _ in range(length))
    second = list(first)
    for at in source.sample(range(length), 1 if kind == "one edit" else length // 10):
        second[at] = "X"
    return "".join(first), "".join(second)


OPENEVALS = """
import time
from openevals.exact import exact_match
from openevals.string.levenshtein import levenshtein_distance
a, b = "".join(chr(97 + i * 7 % 26) for i in range(1000)), "".join(chr(97 + i * 11 % 26) for i in range(1000))
for name, count, work in (
    ("exact_match", 2000, lambda: exact_match(outputs="Paris", reference_outputs="Paris")),
    ("edit distance, 1,000 characters", 3, lambda: levenshtein_distance(outputs=a, reference_outputs=b)),
):
    began = time.perf_counter()
    for _ in range(count):
        work()
    print(f"  openevals, {name}: {count / (time.perf_counter() - began):,.0f}/s")
"""


def openevals(folder: str | None) -> None:
    """The same two with openevals, where it is installed in the peers' virtual environment."""
    python = Path(folder or "", "bin", "python")
    if folder is None or subprocess.run([python, "-c", "import openevals"], capture_output=True).returncode:
        print(
            "  openevals: not installed here, skipped (--peers DIR names a virtual environment that has it)"
        )
        return
    environment = {**os.environ, "LANGSMITH_TRACING": "false"}
    print(
        subprocess.run([python, "-c", OPENEVALS], capture_output=True, text=True, env=environment).stdout,
        end="",
    )


def main() -> None:
    """Prints the machine, then every table; `--peers DIR` names a virtual environment with the peers."""
    import trajectories

    print(machine())
    exact_match()
    edit_distance()
    given = sys.argv[1:]
    openevals(given[given.index("--peers") + 1] if "--peers" in given[:-1] else None)
    trajectories.main()


if __name__ == "__main__":
    main()
