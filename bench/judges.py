"""Judging against a server with 50 ms latency in another process, and agreement with people on public data.

    python bench/judges.py [--records 200] [--samples 3] [--concurrency 100] [--latency 0.05] [--rounds 5]
    python bench/judges.py --llmbar FOLDER

The first form judges `records` outputs with `samples` votes each, everything stored, beside a bare aiohttp loop that
makes the same number of calls and keeps nothing; then it judges again, which makes no call.

The second form takes the folder `Dataset/LLMBar` of github.com/princeton-nlp/LLMBar (MIT; Zeng et al. 2024): verdicts
of several judges on pairs of outputs, each in both orders, with people's labels and the authors' statistics. It
recomputes their accuracy in each order and their kappa between the orders with karat's functions; and it corrects the
share of pairs in which the first output is better from a random third of the labels (PPI++), against the share over all
labels. Nothing of the data is part of this repository.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from pathlib import Path

from machine import machine
from models_transport import bare, middle

import karat
from karat.testing import FakeProvider

REPLY = json.dumps({"analysis": "The answer is right.", "pass": True})


def answer(input: str) -> str:
    return f"an answer to {input}"


async def judged(spec: str, place: Path, options: argparse.Namespace, number: int) -> float:
    """Seconds to judge every output of a run."""
    store = karat.open_store(f"sqlite:///{place}/karat-{number}.db")
    data = [
        {"id": f"{number}/{i}", "input": f"question {i} of round {number}"} for i in range(options.records)
    ]
    run = await karat.run_async(answer, data, store=store)
    judge = {"name": "llm_judge", "params": {"judge": {"model": spec, "samples": options.samples}}}
    start = time.perf_counter()
    evaluation = await karat.evaluate_async(run, [judge], concurrency=options.concurrency)
    seconds = time.perf_counter() - start
    assert evaluation.counts.ok == options.records
    again = await karat.evaluate_async(run, [judge, "exact_match"])
    assert again.counts.reused == options.records
    store.close()
    return seconds


def speed(options: argparse.Namespace) -> None:
    calls = options.records * options.samples
    with (
        tempfile.TemporaryDirectory() as folder,
        FakeProvider.in_process(answers=REPLY, latency=options.latency) as server,
    ):
        os.environ["KARAT_CACHE"] = f"{folder}/replies.db"
        spec = server.spec()
        with_karat, alone = [], []
        for number in range(options.rounds):
            before = server.stats()["count"]
            with_karat.append(asyncio.run(judged(spec, Path(folder), options, number)))
            made = server.stats()["count"] - before
            assert made == calls, f"{made} calls for {calls} votes"
            start = time.perf_counter()
            asyncio.run(bare(server.url, calls, options.concurrency * options.samples))
            alone.append(time.perf_counter() - start)
    print(machine())
    mine, loop = middle(with_karat), middle(alone)
    print(
        f"{options.records} records × {options.samples} samples, {options.latency * 1000:.0f} ms: {mine:.2f} s,"
        f" bare loop {loop:.2f} s, ratio {mine / loop:.2f}; judging again makes no call"
    )


ORDERS = ("swap = False", "swap = True")


def published(folder: Path, rounds: int) -> None:
    """Every judge of the data: karat's figures beside the published ones."""
    from karat.stats import cohen_kappa, percent_agreement

    judges, kappas, apart, covered, intervals = 0, 0, 0.0, 0, 0
    for path in sorted(folder.rglob("result.json")):
        figures = json.loads(path.with_name("statistics.json").read_text(encoding="utf-8"))
        rows = [row for row in json.loads(path.read_text(encoding="utf-8")) if row.get("results")]
        if "kappa_agreement" not in figures or not all(isinstance(row["results"][-1], dict) for row in rows):
            continue  # judges of another form, such as those that see both orders at once
        human = [str(row["label"]) for row in rows]
        winners = [[str(row["results"][-1].get(order, {}).get("winner")) for row in rows] for order in ORDERS]
        judges += 1
        for name, found in (
            ("correct_False", percent_agreement(winners[0], human)),
            ("correct_True", percent_agreement(winners[1], human)),
            ("equal", percent_agreement(*winners)),
        ):
            apart = max(apart, abs(100 * (found.value or 0.0) - percent(figures[name])))
        kappa = cohen_kappa(*winners)
        if kappa.value is not None and "None" not in winners[0] + winners[1]:
            # Where a verdict is missing, the authors count it as no class, and the figures are not the same.
            kappas += 1
            apart = max(apart, 100 * abs(kappa.value - figures["kappa_agreement"]))
        inside, total = corrected([w == "1" for w in winners[0]], [h == "1" for h in human], rounds)
        covered, intervals = covered + inside, intervals + total
    print(
        f"{judges} judges: agreement in each order, consistency and (for {kappas} judges without missing verdicts)"
        f" kappa differ from the published figures by at most {apart:.2g} percentage points; the corrected share"
        f" covers the truth in {covered / intervals:.1%} of {intervals:,} samples"
    )


def percent(text: str) -> float:
    """95.0 of `95 / 100 = 95.0%`."""
    return float(text.rpartition("=")[2].strip().rstrip("%"))


def corrected(judge: list[bool], human: list[bool], rounds: int) -> tuple[int, int]:
    """How many corrected intervals hold the share over all labels."""
    from karat.stats import ppi

    truth, inside = sum(human) / len(human), 0
    for seed in range(rounds):
        chosen = set(random.Random(seed).sample(range(len(human)), len(human) // 3))
        rest = [judge[i] for i in range(len(judge)) if i not in chosen]
        estimate = ppi([human[i] for i in chosen], [judge[i] for i in chosen], rest)
        low, high = estimate.low, estimate.high
        inside += (low is None or low <= truth) and (high is None or truth <= high)
    return inside, rounds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--llmbar", type=Path)
    options = parser.parse_args()
    if options.llmbar:
        published(options.llmbar, options.rounds)
    else:
        speed(options)


if __name__ == "__main__":
    main()
