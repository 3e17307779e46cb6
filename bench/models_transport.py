"""What karat.models adds to a call: rate and CPU beside a bare aiohttp loop, against a server in another process.

Run: python bench/models_transport.py [--calls 2000] [--concurrency 200] [--latency 0.05]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from karat import models
from karat.testing import FakeProvider


def body_of(number: int) -> dict:
    return {"model": "fake", "messages": [{"role": "user", "content": f"question {number}: what is it?"}]}


async def bare(url: str, calls: int, concurrency: int) -> None:
    """The same calls with nothing around them."""
    numbers = iter(range(calls))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def worker() -> None:
            for number in numbers:
                async with session.post(url + "/chat/completions", json=body_of(number)) as response:
                    answer = json.loads(await response.read())
                    assert answer["choices"][0]["message"]["content"]

        await asyncio.gather(*(worker() for _ in range(concurrency)))


async def through_karat(spec: str, calls: int, concurrency: int, cache: str, replicate: int) -> None:
    """Through Model.generate, recorded, and kept in the cache unless that is off."""
    model = models.get(spec)
    numbers = iter(range(calls))

    async def worker() -> None:
        for number in numbers:
            with models.recording(example=str(number), cache=cache, replicate=replicate) as trace:
                reply = await model.generate(f"question {number}: what is it?")
                assert trace[0].output == reply.text

    await asyncio.gather(*(worker() for _ in range(concurrency)))


def measured(work, calls: int) -> tuple[float, float]:
    """`(calls a second, milliseconds of CPU a call)`."""
    start, used = time.perf_counter(), time.process_time()
    asyncio.run(work)
    seconds, cpu = time.perf_counter() - start, time.process_time() - used
    return calls / seconds, cpu / calls * 1000


def middle(values: list[float]) -> float:
    """The median of an odd number of values, the upper one of an even number."""
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    calls, width = given.calls, given.concurrency
    rows: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KARAT_CACHE"] = str(Path(folder) / "replies.db")
        with FakeProvider.in_process(latency=given.latency) as server:
            asyncio.run(bare(server.url, width, width))
            asyncio.run(through_karat(server.spec(), width, width, "off", 0))
            for number in range(1, given.rounds + 1):
                for name, work in {
                    "bare aiohttp": bare(server.url, calls, width),
                    "karat, cache off": through_karat(server.spec(), calls, width, "off", number),
                    "karat, answers kept": through_karat(server.spec(), calls, width, "use", number),
                    "karat, kept before": through_karat(server.spec(), calls, width, "use", number),
                }.items():
                    rows.setdefault(name, []).append(measured(work, calls))
        models.close()
    bare_rate = middle([rate for rate, _ in rows["bare aiohttp"]])
    print(
        f"{calls} calls, {width} at a time, {given.latency * 1000:g} ms latency, Python {sys.version.split()[0]}"
    )
    print(f"{'':22}{'calls/s':>9}{'of bare':>9}{'CPU ms':>9}")
    for name, figures in rows.items():
        rate = middle([rate for rate, _ in figures])
        cpu = middle([cpu for _, cpu in figures])
        print(f"{name:22}{rate:9.0f}{rate / bare_rate:9.2f}{cpu:9.3f}")


if __name__ == "__main__":
    main()
