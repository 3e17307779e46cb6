"""How fast the evaluators are that need no model. Run: python bench/evaluators.py

Each figure is the best of several rounds, so that other work on the machine counts as little as possible.

`--turns CHECKOUT` compares with an older checkout: each part in processes that take turns, the least processor time of
an item on either side, for `exact_match`, `edit_distance` and trajectories of 5, 50 and 500 calls.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import CHECKOUT, machine, write_bytecode
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


def measured() -> dict[str, float]:
    """Processor seconds for each item of a fixed amount of work, the least of several rounds."""
    import gc

    import trajectories

    exact, edit = ExactMatch(), EditDistance()
    source = random.Random(1)
    works: dict[str, tuple[int, Callable[[], Any]]] = {}
    for share in (1.0, 0.5, 0.0):
        items = [
            {"outputs": f"answer {at}", "reference_outputs": f"answer {at if at < share * 20_000 else -at}"}
            for at in range(20_000)
        ]
        works[f"exact_match, {share:.0%} match"] = len(items), functools.partial(exact.evaluate_many, items)
    for kind in ("unrelated", "10 % edited", "one edit"):
        pairs = [_pair(source, kind, 1_000) for _ in range(300)]
        given = [{"outputs": a, "reference_outputs": b} for a, b in pairs]
        works[f"edit_distance, {kind}"] = len(given), functools.partial(edit.evaluate_many, given)
    for mode in trajectories.MODES:
        match = trajectories.build_karat(mode, "exact")
        for row, times in (("5", 200), ("5 wrong", 200), ("50", 40), ("500", 6), ("500 objects", 6)):
            agent, reference = trajectories.case(mode, row)
            works[f"trajectory {mode}, {row}"] = (
                times,
                functools.partial(_repeat, match, agent, reference, times),
            )
    best = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, (count, work) in works.items():
            gc.collect()
            began = time.process_time()
            work()
            best[name] = min(best[name], (time.process_time() - began) / count)
    return best


def _repeat(match: Callable[..., Any], agent: Any, reference: Any, times: int) -> None:
    for _ in range(times):
        match(outputs=agent, reference_outputs=reference)


def turns(older: Path, rounds: int) -> None:
    """Print the least time of each part of `measured` with the source of either checkout, in turns."""
    best: dict[Path, dict[str, float]] = {older.resolve(): {}, CHECKOUT: {}}
    for checkout in best:
        write_bytecode(checkout)
    for number in range(rounds):
        for checkout in list(best)[:: 1 if number % 2 else -1]:
            done = subprocess.run(
                [sys.executable, __file__, "--measure"],
                env={**os.environ, "PYTHONPATH": str(checkout / "src")},
                capture_output=True,
                text=True,
                check=True,
            )
            for name, seconds in json.loads(done.stdout.splitlines()[-1]).items():
                best[checkout][name] = min(seconds, best[checkout].get(name, seconds))
    old, new = best.values()
    print(f"{'processor time of an item':36} {'older':>11} {'this':>11}   ratio")
    for name, seconds in old.items():
        print(f"{name:36} {seconds * 1e6:8.2f} µs {new[name] * 1e6:8.2f} µs {new[name] / seconds:7.3f}")


def main() -> None:
    """Prints the machine, then every table; `--peers DIR` names a virtual environment with the peers."""
    import trajectories

    parser = argparse.ArgumentParser(description="How fast the evaluators are that need no model.")
    parser.add_argument("--peers", help="folder of a virtual environment that has the peers")
    parser.add_argument("--turns", type=Path, help="an older checkout to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each checkout with --turns")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured()))
        return
    print(machine())
    if given.turns:
        turns(given.turns, given.rounds)
        return
    exact_match()
    edit_distance()
    openevals(given.peers)
    trajectories.main(["--peers", given.peers] if given.peers else [])


if __name__ == "__main__":
    main()
