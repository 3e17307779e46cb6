"""Run, evaluate and aggregate a trivial task into an SQLite file, beside a bare loop that inserts the same rows.

    python bench/spine.py [--sizes 10000 1000000]

Each size runs in a process of its own, so that the peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from machine import machine, peak_megabytes

PEERS = (
    "peers, measured on a 2-core machine: Intelligence Layer 297/s, Inspect 60/s,"
    " pydantic-evals 4,263/s (keeps nothing)"
)


async def shout(text: str) -> str:
    return text.upper()


def shout_sync(text: str) -> str:
    return text.upper()


def bare(path: Path, count: int) -> float:
    """The physical limit: the same number of rows of the same size, in the same kind of table, in batches."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(
        "CREATE TABLE rows (parent INTEGER, position INTEGER, item BLOB, try_number INTEGER, status INTEGER,"
        " reuse BLOB, payload BLOB, PRIMARY KEY (parent, position, item, try_number)) WITHOUT ROWID"
    )
    payloads = [b"x" * 80, b"x" * 120, b"x" * 230]  # an example, an output, a result
    start = time.perf_counter()
    for parent, payload in enumerate(payloads):
        for first in range(0, count, 64):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                [(parent, i, b"1", 1, 0, None, payload) for i in range(first, min(first + 64, count))],
            )
            connection.execute("COMMIT")
    seconds = time.perf_counter() - start
    connection.close()
    return seconds


def measure(count: int, sync: bool) -> dict[str, float]:
    import karat

    warm = karat.run(shout, karat.Dataset.from_examples([{"input": "a", "expected": "A"}]), store="memory://")
    karat.aggregate(karat.evaluate(warm, ["exact_match"]), ["accuracy"])  # imports are not what is measured
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with (place / "data.jsonl").open("w") as file:
            for i in range(count):
                expected = f"QUESTION {i}" if i % 4 else "WRONG"
                file.write(json.dumps({"id": f"q{i}", "input": f"question {i}", "expected": expected}) + "\n")
        limit = bare(place / "bare.db", count)
        store = karat.open_store(place / "karat.db")
        clock = [time.perf_counter()]
        dataset = store.datasets.put(karat.Dataset.from_file(place / "data.jsonl"))
        clock.append(time.perf_counter())
        run = karat.run(shout_sync if sync else shout, dataset, store=store)
        clock.append(time.perf_counter())
        evaluation = karat.evaluate(run, ["exact_match"])
        clock.append(time.perf_counter())
        aggregation = karat.aggregate(evaluation, ["accuracy"])
        clock.append(time.perf_counter())
        value = aggregation.estimates.get(evaluator="exact_match", aggregator="accuracy").value
        assert value == sum(1 for i in range(count) if i % 4) / count, value
        files = len([f for f in place.iterdir() if f.name.startswith("karat")])
        size = sum(f.stat().st_size for f in place.iterdir() if f.name.startswith("karat")) / 2**20
        store.close()
    steps = [b - a for a, b in pairwise(clock)]
    return {
        "count": count,
        "dataset": steps[0],
        "run": steps[1],
        "evaluate": steps[2],
        "aggregate": steps[3],
        "stages": sum(steps[1:]),
        "bare": limit,
        "peak_mb": peak_megabytes(),
        "files": files,
        "store_mb": size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(int(options.child[0]), options.child[1] == "sync")))
        return
    print(machine())
    print(PEERS)
    print(
        f"{'examples':>10} {'task':>6} {'/s':>9} {'µs each':>8} {'dataset':>8} {'run':>7} {'evaluate':>9}"
        f" {'aggregate':>9} {'bare loop':>10} {'peak MB':>8} {'files':>5}"
    )
    costs = {}
    for sync in (False, True):
        for count in options.sizes:
            command = [sys.executable, __file__, "--child", str(count), "sync" if sync else "async"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            r = json.loads(done.stdout)
            each = 1e6 * r["stages"] / count
            costs[(sync, count)] = each
            print(
                f"{count:>10,} {'sync' if sync else 'async':>6} {count / r['stages']:>9,.0f} {each:>8.1f}"
                f" {r['dataset']:>7.2f}s {r['run']:>6.2f}s {r['evaluate']:>8.2f}s {r['aggregate']:>8.2f}s"
                f" {count / r['bare']:>8,.0f}/s {r['peak_mb']:>8.0f} {r['files']:>5}",
                flush=True,
            )
        if len(options.sizes) > 1:
            first, last = options.sizes[0], options.sizes[-1]
            print(
                f"cost per example at {last:,} is {costs[(sync, last)] / costs[(sync, first)]:.2f} × that at {first:,}"
            )


if __name__ == "__main__":
    main()
