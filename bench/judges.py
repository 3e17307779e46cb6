"""Judging against a server with 50 ms latency in another process, and agreement with people on public data.

    python bench/judges.py [--records 200] [--samples 3] [--concurrency 100] [--latency 0.05] [--rounds 5]
    python bench/judges.py --llmbar FOLDER

The first form judges `records` outputs with `samples` votes each, everything stored, beside a bare aiohttp loop that
makes the same number of calls and keeps nothing; then it judges again, which makes no call.

The second form takes the folder `Dataset/LLMBar` of github.com/princeton-nlp/LLMBar (MIT; Zeng et al. 2024): verdicts
of several judges on pairs of outputs, each in both orders, with people's labels and the authors' statistics. It
recomputes their accuracy in each order and their kappas (with people, between the orders) with karat's functions and
corrects the share of pairs in which the first output is better from a random third of the labels (PPI++), against the
share over all labels. For some judges the published verdicts are replayed as replies of a model: judged, labelled
(`judge import`), aligned, corrected (`judge correct`) and aggregated. Nothing of the data is part of this repository.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Iterable
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


ORDERS = {"False": "swap = False", "True": "swap = True"}


def published(folder: Path, rounds: int) -> None:
    """Every judge of the data: karat's figures beside the published ones."""
    from karat.stats import cohen_kappa, percent_agreement

    judges, apart, covered, intervals, replayed = 0, 0.0, 0, 0, []
    for path in sorted(folder.rglob("result.json")):
        figures = json.loads(path.with_name("statistics.json").read_text(encoding="utf-8"))
        rows = [row for row in json.loads(path.read_text(encoding="utf-8")) if row.get("results")]
        if "kappa_agreement" not in figures or not all(isinstance(row["results"][-1], dict) for row in rows):
            continue  # judges of another form, such as those that see both orders at once
        human = [str(row["label"]) for row in rows]
        winners = {
            name: [str(row["results"][-1].get(order, {}).get("winner")) for row in rows]
            for name, order in ORDERS.items()
        }
        # The authors' kappas code the second output as 0 among the judge's winners and as 2 among the labels. Coded
        # like that they are the same; with one code for both, kappa with people is much higher.
        coded = {name: ["1" if w == "1" else "0" for w in each] for name, each in winners.items()}
        judges += 1
        found = {
            "correct_False": percent_agreement(winners["False"], human),
            "correct_True": percent_agreement(winners["True"], human),
            "equal": percent_agreement(winners["False"], winners["True"]),
            "kappa_False": cohen_kappa(coded["False"], human),
            "kappa_True": cohen_kappa(coded["True"], human),
            "kappa_agreement": cohen_kappa(coded["False"], coded["True"]),
        }
        for name, estimate in found.items():
            given = figures[name]
            expected = percent(given) / 100 if isinstance(given, str) else float(given)
            if estimate.value is None:
                assert math.isnan(expected) or expected in (0.0, 1.0), (path, name, expected)
            else:
                apart = max(apart, 100 * abs(estimate.value - expected))
        inside, total = corrected([w == "1" for w in winners["False"]], [h == "1" for h in human], rounds)
        covered, intervals = covered + inside, intervals + total
        if "None" not in winners["False"] and len(rows) >= 100:
            replayed.append((path, winners["False"], human, percent(figures["correct_False"])))
    print(
        f"{judges} judges: agreement with people and kappa in each order, consistency and kappa between the orders"
        f" differ from the published figures by at most {apart:.2g} percentage points; the corrected share covers the"
        f" truth in {covered / intervals:.1%} of {intervals:,} samples"
    )
    for path, winners_, human, figure in replayed[:: max(1, len(replayed) // 4)]:
        replay(str(path.parent.relative_to(folder)), winners_, human, figure, rounds)


def replay(name: str, winners: list[str], human: list[str], published: float, rounds: int) -> None:
    """Published verdicts as the replies of a judge: stored, labelled, aligned, corrected and aggregated by karat."""
    from karat.analysis.judges.agreement import alignment
    from karat.analysis.judges.labels import correct, import_labels
    from karat.stats import cohen_kappa

    def reply(body: dict[str, Any]) -> str:
        number = int(body["messages"][-1]["content"].rpartition("pair ")[2].split()[0])
        return json.dumps({"analysis": "", "pass": winners[number] == "1"})

    truth = sum(h == "1" for h in human) / len(human)
    with tempfile.TemporaryDirectory() as folder, FakeProvider(reply) as server:
        os.environ["KARAT_CACHE"] = f"{folder}/replies.db"
        covered, n = 0, len(human)
        with karat.open_store(f"sqlite:///{folder}/karat.db") as store:
            run = karat.run(_pair, [{"id": str(i), "input": i} for i in range(n)], store=store)
            judge = {"name": "llm_judge", "params": {"criterion": "1 is better.", "judge": server.spec()}}
            evaluation = karat.evaluate(run, [judge])
            labels = Path(folder) / "labels.csv"
            _write(labels, human, range(n))
            import_labels(labels, evaluation, annotator="all", sampling="uniform")
            [overall] = alignment(evaluation)
            assert abs(100 * (overall.agreement.value or 0.0) - published) < 1e-9
            same = cohen_kappa([w == "1" for w in winners], [h == "1" for h in human])
            assert overall.kappa.value == same.value
            wrong = [i for i in range(n) if winners[i] != human[i]]
            for i in wrong:
                correct(evaluation, str(i), verdict=human[i] == "1", annotator="corrector")
            selected = [each for each in alignment(evaluation) if each.labels == "selected"]
            assert [each.n for each in selected] == [len(wrong)]
        for number in range(rounds):
            with karat.open_store(f"sqlite:///{folder}/karat-{number}.db") as store:
                run = karat.run(_pair, [{"id": str(i), "input": i} for i in range(n)], store=store)
                evaluation = karat.evaluate(run, [judge])
                _write(labels, human, random.Random(number).sample(range(n), n // 3))
                import_labels(labels, evaluation, sampling="uniform")
                found = karat.aggregate(evaluation, ["accuracy"]).estimates.get(aggregator="corrected")
                assert found.low is not None
                assert found.high is not None
                covered += found.low <= truth <= found.high
    bias = overall.bias.value or 0.0
    print(
        f"{name}: agreement {overall.agreement.value:.0%} as published, kappa with people {overall.kappa.value:.2f},"
        f" bias {bias:+.2f}; {len(wrong)} verdicts corrected; {covered} of {rounds} corrected estimates from a third of"
        f" the labels cover {truth:.2f}"
    )


def _pair(input: int) -> str:
    return f"pair {input} "


def _write(path: Path, human: list[str], chosen: Iterable[int]) -> None:
    lines = [f"{i},{'pass' if human[i] == '1' else 'fail'}" for i in chosen]
    path.write_text("\n".join(["example,label", *lines]) + "\n", encoding="utf-8")


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
