"""Prompt-task records against a server with 50 ms latency in another process, outputs and results persisted.

    python bench/models.py [--records 2000] [--concurrency 200] [--latency 0.05] [--rounds 7]

Beside it, in the same run, a bare aiohttp loop that makes the same calls and keeps nothing. Then the same records with
30 % of the answers 429 and 5 % of the connections dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from machine import machine
from models_transport import bare, measured, middle

import karat
from karat.tasks.prompt import PromptTask
from karat.testing import FakeProvider

PEERS = "peers, measured on a 2-core machine: Inspect 42 records/s and 24 ms of CPU, SyGra 107/s and 12.5 ms"


async def records(spec: str, place: Path, count: int, concurrency: int, number: int) -> None:
    """A run and its evaluation through karat, everything kept."""
    store = karat.open_store(place / f"karat-{number}.db")
    dataset = karat.Dataset.from_examples(
        (
            {"id": str(i), "input": f"question {i}: what is it?", "expected": f"question {i}: what is it?"}
            for i in range(count)
        ),
        name="questions",
    )
    task = PromptTask("{input}", model=spec)
    run = await karat.run_async(task, dataset, store=store, concurrency=concurrency)
    evaluation = await karat.evaluate_async(run, ["exact_match"])
    aggregation = await karat.aggregate_async(evaluation, ["accuracy"])
    estimate = aggregation.estimates.get(evaluator="exact_match", aggregator="accuracy")
    assert (estimate.n, estimate.value) == (count, 1.0), estimate
    store.close()


def faults(place: Path, count: int, concurrency: int) -> None:
    """All succeed, none is asked more often than its retries allow."""
    with FakeProvider.in_process(latency=0.02, rates={"429": 0.30, "drop": 0.05}, seed=7) as server:
        rate, _ = measured(records(server.spec(), place, count, concurrency, 1000), count)
        counts = server.stats()
    print(f"30 % 429 and 5 % dropped: {count:,} of {count:,} succeeded, {rate:,.0f} records/s,"
          f" {counts['count']:,} requests, at most {counts['most']} for one record")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    count, width = given.records, given.concurrency
    print(machine())
    print(PEERS)
    plain: list[tuple[float, float]] = []
    whole: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KARAT_CACHE"] = str(Path(folder) / "replies.db")
        with FakeProvider.in_process(latency=given.latency) as server:
            asyncio.run(bare(server.url, width, width))
            asyncio.run(records(server.spec(), Path(folder), width, width, 0))
            for number in range(1, given.rounds + 1):
                plain.append(measured(bare(server.url, count, width), count))
                os.environ["KARAT_CACHE"] = str(Path(folder) / f"replies-{number}.db")
                karat.models.close()
                whole.append(measured(records(server.spec(), Path(folder), count, width, number), count))
        limit, reached = middle([r for r, _ in plain]), middle([r for r, _ in whole])
        print(
            f"{count:,} records, {width} at a time, {given.latency * 1000:g} ms latency, medians of {given.rounds}"
        )
        for name, rate, figures in (
            ("bare aiohttp loop", limit, plain),
            ("karat, all three stages", reached, whole),
        ):
            print(f"{name:26} {rate:8,.0f}/s {middle([cpu for _, cpu in figures]):7.3f} ms of CPU each")
        print(f"of the bare loop's rate: {reached / limit:.2f} (wanted 0.6); CPU wanted at most 0.6 ms")
        os.environ["KARAT_CACHE"] = str(Path(folder) / "replies-faults.db")
        karat.models.close()
        faults(Path(folder), count, width)
    karat.models.close()


if __name__ == "__main__":
    main()
