"""Judging against a server with 50 ms latency in another process, and agreement with people on public data.

    python bench/judges.py [--records 200] [--samples 3] [--concurrency 100] [--latency 0.05] [--rounds 5]
    python bench/judges.py --labels FILE.jsonl [--judge-field NAME] [--human-field NAME]

The first form judges `records` outputs with `samples` votes each, everything stored, beside a bare aiohttp loop that
makes the same number of calls and keeps nothing; then it judges again, which makes no call.

The second form takes published verdicts of a judge with people's labels, one JSON object to a line with the fields
`judge` and `human` (pass/fail, 0/1, true/false, or a name for pairs), and recomputes the published agreement: percent,
Cohen's kappa, sensitivity, specificity; and, with labels of a random tenth, the corrected share (PPI++) against the
share over all labels. Nothing of the data is part of this repository.
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
from typing import Any

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


WORDS = {"pass": 1, "fail": 0, "true": 1, "false": 0, "yes": 1, "no": 0, "correct": 1, "incorrect": 0}


def read(path: str, fields: tuple[str, str]) -> list[tuple[Any, Any]]:
    """Pairs of verdicts; rows in which one is missing are left out and counted."""
    out, missing = [], 0
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        pair = tuple(_plain(row.get(field)) for field in fields)
        if None in pair:
            missing += 1
        else:
            out.append(pair)
    print(f"{path}: {len(out)} pairs, {missing} rows without one of the two")
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return WORDS.get(value.strip().lower(), value.strip().lower() or None)
    return int(value) if isinstance(value, (bool, float)) else value


def agreement(options: argparse.Namespace) -> None:
    from karat.stats import agreement_between, ppi, proportion

    pairs = read(options.labels, (options.judge_field, options.human_field))
    judge, human = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = agreement_between(judge, human)
    print(f"agreement {found.percent}\nkappa     {found.kappa}\nalpha     {found.alpha}")
    if set(judge) | set(human) > {0, 1}:
        return
    print(f"sensitivity {proportion([j == 1 for j, h in pairs if h == 1])}")
    print(f"specificity {proportion([j == 0 for j, h in pairs if h == 0])}")
    truth, inside, width = sum(human) / len(human), 0, []
    for seed in range(options.rounds * 20):
        draw = random.Random(seed)
        chosen = set(draw.sample(range(len(pairs)), max(10, len(pairs) // 10)))
        estimate = ppi(
            [human[i] for i in chosen],
            [judge[i] for i in chosen],
            [judge[i] for i in range(len(pairs)) if i not in chosen],
        )
        inside += estimate.low <= truth <= estimate.high
        width.append(estimate.high - estimate.low)
    total = options.rounds * 20
    print(
        f"share of passes by people {truth:.3f}, raw by the judge {sum(judge) / len(judge):.3f}; corrected from a"
        f" random tenth of the labels it lies in {inside} of {total} intervals, of mean width {sum(width) / total:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--labels")
    parser.add_argument("--judge-field", default="judge")
    parser.add_argument("--human-field", default="human")
    options = parser.parse_args()
    if options.labels:
        agreement(options)
    else:
        speed(options)


if __name__ == "__main__":
    main()
