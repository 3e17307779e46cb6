"""How fast aggregation is: all classification metrics with intervals over a million stored results.

`python bench/statistics_aggregators.py [N]` stores N results (default 1,000,000), scans and decodes them, then
aggregates them, and returns 1 when the aggregation takes more than 4 times the scan or its memory grows with N.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Run as a script this folder holds a module `statistics`, which must not hide the standard library's.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

import karat  # noqa: E402 - after the path is right
from karat.evaluators import Evaluator  # noqa: E402 - after the path is right
from karat.records import Result  # noqa: E402 - after the path is right
from karat.store.handles import CHUNK  # noqa: E402 - after the path is right
from karat.store.repositories import latest, result_decoder  # noqa: E402 - after the path is right

TIMES = 4.0
ROUNDS = 3
CLASSES = ["Music", "Politics", "Art", "Sports", "Science", "History", "Other"]
AGGREGATORS = ["accuracy", "precision", "recall", "f1_score"]


class Labels(Evaluator):
    """Golden and predicted labels, as a classifier's evaluator tells them."""

    name = "label"
    reuse = False
    batched = True
    version = "1"

    def evaluate(
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        same = outputs == reference_outputs
        return Result("label", float(same), same, "", {"golden": reference_outputs, "predicted": outputs})


def predict(golden: str) -> str:
    """Right four times of five, else any class."""
    return golden if random.random() < 0.8 else random.choice(CLASSES)


def stored(n: int, store: Any) -> Any:
    """An evaluation of n results."""
    rng = random.Random(0)
    random.seed(1)

    def examples() -> Any:
        for i in range(n):
            golden = rng.choice(CLASSES)
            yield {"id": f"e{i}", "input": golden, "expected": golden, "metadata": {"topic": CLASSES[i % 3]}}

    data = karat.Dataset.from_examples(list(examples()), name="classes")
    run = karat.run(predict, data, store=store, progress=False)
    return karat.evaluate(run, [Labels()], store=store, progress=False)


def scan(evaluation: Any) -> int:
    """Reads and decodes every result, and nothing else."""
    backend, number, seen = evaluation.store.backend, evaluation.number, 0
    decode = result_decoder.decode
    for start in range(0, backend.extent(number), CHUNK):
        for row in latest(backend.scan(number, start, start + CHUNK)):
            decode(row.payload)
            seen += 1
    return seen


def peak() -> float:
    """The largest resident size so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(work: Any) -> float:
    """Processor seconds of one call: other work on the machine does not count."""
    started = time.process_time()
    work()
    return time.process_time() - started


def measure(n: int) -> bool:
    """Prints the figures of n results; whether they hold."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/bench.db"
        # In another process, so that this one's memory is that of reading alone.
        subprocess.run([sys.executable, __file__, "--store", url, str(n)], check=True)
        with karat.open_store(url) as store:
            evaluation = store.evaluations.get("latest")
            scan(evaluation)
            before = peak()
            made: list[Any] = []

            def all_of_them() -> None:
                made.append(karat.aggregate(evaluation, AGGREGATORS, new=True, progress=False))

            # In turns, so that other work on the machine slows both.
            rounds = [(timed(lambda: scan(evaluation)), timed(all_of_them)) for _ in range(ROUNDS)]
            scanned, taken = (min(column) for column in zip(*rounds, strict=True))
            grown = peak() - before
    estimate = made[0].estimates.get(aggregator="f1_score")
    print(f"{n:,} stored results: scan and decode {scanned:.2f} s ({n / scanned:,.0f}/s)")
    print(f"  {', '.join(AGGREGATORS)} with intervals {taken:.2f} s, {taken / scanned:.2f} × the scan")
    print(f"  peak memory {peak():.0f} MiB, {grown:+.0f} MiB by aggregating; macro F1 {estimate}")
    return taken <= TIMES * scanned


def main() -> int:
    """Measures, or fills a store for a measurement."""
    given = sys.argv[1:]
    if given[:1] == ["--store"]:
        with karat.open_store(given[1]) as store:
            stored(int(given[2]), store)
        return 0
    n = int(given[0]) if given else 1_000_000
    measure(n // 10)
    return 0 if measure(n) else 1


if __name__ == "__main__":
    sys.exit(main())
