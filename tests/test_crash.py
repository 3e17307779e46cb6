"""A run and an evaluation are killed at random moments and resumed: nothing is lost, little is done twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import karat

EXAMPLES, CONCURRENCY, KILLS = 1500, 8, 25

PROGRAM = """
    import asyncio, os, sys
    import karat
    from karat.evaluators import Evaluator

    folder = sys.argv[1]
    calls = os.open(folder + "/calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    judged = os.open(folder + "/judged", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def task(number):
        os.write(calls, b"x")
        await asyncio.sleep(0.0005)
        return number * 2

    class Judge(Evaluator):
        name = "judge"
        is_async = True

        async def evaluate_async(self, *, outputs, reference_outputs=None, inputs=None, **context):
            os.write(judged, b"x")
            await asyncio.sleep(0.0005)
            return karat.Result("judge", float(outputs == reference_outputs))

    data = karat.Dataset.from_examples(
        [{{"id": str(i), "input": i, "expected": i * 2}} for i in range({examples})], name="numbers"
    )
    run = karat.run(task, data, store=sys.argv[2], concurrency={concurrency}, wait=True)
    karat.evaluate(run, [Judge()], concurrency={concurrency}, wait=True)
    print("finished")
"""


def harness(folder, url, kills, seed):
    """Runs the program, killing it `kills` times; returns how often the task and the judge were called."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(examples=EXAMPLES, concurrency=CONCURRENCY)))
    moments = random.Random(seed)
    # How much work is done when a kill comes: anywhere in the run and in the evaluation.
    thresholds = sorted(moments.randrange(2 * EXAMPLES * 6 // 10) for _ in range(kills))
    done = 0
    while True:
        child = subprocess.Popen(
            [sys.executable, str(program), str(folder), url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done < kills:
            before = size(folder)
            while child.poll() is None and size(folder) <= max(before, thresholds[done]):
                time.sleep(0.001)
            time.sleep(moments.uniform(0.0, 0.004))
            if child.poll() is None:
                os.kill(child.pid, signal.SIGKILL)
                done += 1
        output, errors = child.communicate(timeout=120)
        if child.returncode == 0:
            assert output.strip() == "finished"
            return (folder / "calls").stat().st_size, (folder / "judged").stat().st_size, done
        assert child.returncode == -signal.SIGKILL, errors


def size(folder):
    return sum((folder / name).stat().st_size for name in ("calls", "judged") if (folder / name).exists())


def check(url, calls, judged, kills):
    with karat.open_store(url) as store:
        assert store.check() == []
        (run,), (evaluation,) = store.runs.list(), store.evaluations.list()
        assert [o.example for o in run.outputs(history=True)] == [str(i) for i in range(EXAMPLES)]
        assert [o.value for o in run.outputs()] == [i * 2 for i in range(EXAMPLES)]
        results = list(evaluation.results(history=True))
        assert [r.example for r in results] == [str(i) for i in range(EXAMPLES)]
        assert all(r.score == 1.0 for r in results)
        assert run.status == evaluation.status == "success"
        assert run.counts.total == evaluation.counts.total == EXAMPLES
    assert EXAMPLES <= calls <= EXAMPLES + kills * CONCURRENCY
    assert EXAMPLES <= judged <= EXAMPLES + kills * CONCURRENCY


def test_killed_at_random_moments_and_resumed(tmp_path):
    url = f"sqlite:///{tmp_path}/karat.db"
    calls, judged, kills = harness(tmp_path, url, KILLS, seed=20)
    check(url, calls, judged, kills)
    assert kills == KILLS


def test_the_same_with_a_server(tmp_path, postgres_url):
    calls, judged, kills = harness(tmp_path, postgres_url, 6, seed=21)
    check(postgres_url, calls, judged, kills)
    assert kills == 6


MODEL_PROGRAM = """
    import sys
    import karat
    from karat.tasks.prompt import PromptTask

    data = karat.Dataset.from_examples(
        [{{"id": str(i), "input": f"question {{i}}", "expected": f"question {{i}}"}} for i in range({examples})],
        name="questions",
    )
    task = PromptTask("{{input}}", model=sys.argv[1], name="asked")
    run = karat.run(task, data, store=sys.argv[2], concurrency={concurrency}, wait=True)
    karat.evaluate(run, ["exact_match"], wait=True)
    print("finished")
"""


def test_calls_of_a_killed_run_are_not_paid_twice(tmp_path, monkeypatch):
    from karat.testing import FakeProvider

    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(MODEL_PROGRAM.format(examples=400, concurrency=CONCURRENCY)))
    url = f"sqlite:///{tmp_path}/karat.db"
    moments, kills = random.Random(3), 0
    with FakeProvider.in_process(latency=0.01) as server:
        while True:
            before = server.stats()["count"]
            child = subprocess.Popen(
                [sys.executable, str(program), server.spec(), url],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            while kills < 10 and child.poll() is None and server.stats()["count"] == before:
                time.sleep(0.002)
            time.sleep(moments.uniform(0.0, 0.1) if kills < 10 else 0)
            if kills < 10 and child.poll() is None:
                os.kill(child.pid, signal.SIGKILL)
                kills += 1
            _, errors = child.communicate(timeout=120)
            if child.returncode == 0:
                break
            assert child.returncode == -signal.SIGKILL, errors
        asked = server.stats()["count"]
    with karat.open_store(url) as store:
        assert store.check() == []
        (run,) = store.runs.list()
        assert [output.value for output in run.outputs(history=True)] == [f"question {i}" for i in range(400)]
    assert kills >= 5
    assert 400 <= asked <= 400 + kills * CONCURRENCY
