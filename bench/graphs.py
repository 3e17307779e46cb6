"""Graph tasks: a lambda-only graph with exact_match and four aggregators, and an LLM graph beside a bare loop.

    python bench/graphs.py [--sizes 200 20000 200000] [--calls 2000]

Each size runs in a process of its own, so that the peak memory is its own. The figure is for everything from the data
file to the report: dataset, run into an SQLite file, output file, report.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import machine, peak_megabytes

PEERS = (
    "SyGra on a 2-core machine: lambda graph 128 to 179 records/s, crash at 30,000; LLM graph 107/s at best"
)

GRAPH = """
data_config:
  source: {type: disk, file_path: data.jsonl, file_format: jsonl}
graph_config:
  nodes:
    predict:
      node_type: lambda
      lambda: predicting.predict
      output_keys: [predicted]
    unit_metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_key: topic
      predicted_key: predicted
      unit_metrics_map:
        - {name: exact_match, params: {key: text}}
      output_keys: [exact_match]
  edges:
    - {from: START, to: predict}
    - {from: predict, to: unit_metrics}
    - {from: unit_metrics, to: END}
output_config:
  output_map:
    id: {from: id}
    topic: {from: topic}
    predicted: {from: predicted}
    exact_match: {from: exact_match}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map:
        - {name: accuracy, params: {key: text}, unit_metrics_results: [exact_match]}
        - {name: precision, params: {predicted_key: text}, unit_metrics_results: [exact_match]}
        - {name: recall, params: {golden_key: text}, unit_metrics_results: [exact_match]}
        - {name: f1_score, params: {predicted_key: text, golden_key: text}, unit_metrics_results: [exact_match]}
"""

PREDICTING = """
TOPICS = ["Music", "Politics", "Other", "Sports"]

def predict(state):
    number = int(state["id"])
    return {"predicted": TOPICS[(number if number % 5 else number + 1) % 4]}
"""

ASKING = """
graph_config:
  nodes:
    answer:
      node_type: llm
      prompt:
        - user: "What is {question}?"
      output_keys: [answer]
      model: {name: "MODEL", parameters: {temperature: 0.5}}
    unit_metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_key: expected
      predicted_key: answer
      unit_metrics_map: [{name: exact_match}]
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map: [{name: accuracy, unit_metrics_results: [exact_match]}]
"""


def lambda_graph(count: int) -> dict[str, float]:
    import karat
    from karat.graph import load_task, write_files

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        place = Path(folder)
        Path("graph_config.yaml").write_text(GRAPH)
        Path("predicting.py").write_text(PREDICTING)
        topics = ["Music", "Politics", "Other", "Sports"]
        with open("data.jsonl", "w") as file:
            for i in range(count):
                file.write(json.dumps({"id": str(i), "topic": topics[i % 4], "text": f"question {i}"}) + "\n")
        start = time.perf_counter()
        task = load_task(str(place))
        with karat.open_store(place / "karat.db") as store:
            data = store.datasets.put(task.dataset())
            read = time.perf_counter()
            run = karat.run(task, data, store=store, progress=False)
            ran = time.perf_counter()
            written = write_files(run, task, place / "out")
            end = time.perf_counter()
        report = json.loads(written.reports["MetricCollatorPostProcessor"].read_text())[0]
        value = report["results"]["exact_match-accuracy"]["accuracy"]
        right = sum(1 for i in range(count) if i % 5) / count
        assert report["evaluation_summary"]["total_records"] == count
        assert abs(value - right) < 1e-9, (value, right)
        size = written.output.stat().st_size / 2**20
    return {
        "count": count,
        "data": read - start,
        "run": ran - read,
        "files": end - ran,
        "all": end - start,
        "output_mb": size,
        "peak_mb": peak_megabytes(),
    }


async def bare(url: str, count: int, concurrency: int) -> float:
    """Requests of the same kind with nothing around them."""
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:
        numbers = iter(range(count))

        async def worker() -> None:
            for number in numbers:
                content = [{"role": "user", "content": f"What is {number}?"}]
                body = {"model": "fake", "messages": content, "temperature": 0.5}
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    await response.json()

        start = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return count / (time.perf_counter() - start)


def llm_graph(count: int, concurrency: int = 100) -> dict[str, float]:
    import karat
    from karat.graph import load_task, write_files
    from karat.testing import FakeProvider

    with tempfile.TemporaryDirectory() as folder, FakeProvider.in_process(latency=0.05) as server:
        os.environ["KARAT_CACHE"] = f"{folder}/cache.db"
        loop = asyncio.run(bare(server.url, count, concurrency))
        place = Path(folder)
        (place / "graph_config.yaml").write_text(ASKING.replace("MODEL", server.spec()))
        rows = [{"id": str(i), "question": str(i), "expected": f"What is {i}?"} for i in range(count)]
        (place / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        start = time.perf_counter()
        task = load_task(folder)
        with karat.open_store(place / "karat.db") as store:
            data = store.datasets.put(task.dataset(file=str(place / "data.jsonl")))
            run = karat.run(task, data, store=store, progress=False, concurrency=concurrency)
            written = write_files(run, task, place / "out")
        seconds = time.perf_counter() - start
        report = json.loads(written.reports["MetricCollatorPostProcessor"].read_text())[0]
        assert report["results"]["exact_match-accuracy"]["accuracy"] == 1.0, report
    return {"graph": count / seconds, "bare": loop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 20_000, 200_000])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        lambda_graph(5)  # imports are not what is measured
        work = lambda_graph if options.child[0] == "lambda" else llm_graph
        print(json.dumps(work(int(options.child[1]))))
        return
    print(machine())
    print(PEERS)
    print(
        f"{'records':>9} {'/s':>8} {'run /s':>8} {'data':>7} {'run':>7} {'files':>7} {'output MB':>10} {'peak MB':>8}"
    )
    for count in options.sizes:
        r = child("lambda", count)
        print(
            f"{count:>9,} {count / r['all']:>8,.0f} {count / (r['run'] + r['files']):>8,.0f} {r['data']:>6.2f}s"
            f" {r['run']:>6.2f}s {r['files']:>6.2f}s {r['output_mb']:>10.1f} {r['peak_mb']:>8.0f}",
            flush=True,
        )
    if options.calls:
        r = child("llm", options.calls)
        share = r["graph"] / r["bare"]
        print(
            f"LLM graph, {options.calls:,} calls of 50 ms, 100 at once: {r['graph']:,.0f}/s,"
            f" bare loop {r['bare']:,.0f}/s ({share:.0%})"
        )


def child(kind: str, count: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", kind, str(count)]
    # The helper thread of NumPy's OpenBLAS spins for some 30 ms after the import, which is not what is measured.
    settings = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=settings)
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
