"""A judge that is killed repeats no call that was answered, and judging again makes none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import karat
from karat.testing import FakeProvider

EXAMPLES, SAMPLES, CONCURRENCY, KILLS = 60, 3, 4, 4

PROGRAM = """
    import sys
    import karat

    data = [{"id": str(i), "input": f"question {i}"} for i in range(%d)]

    def answer(input):
        return f"answer to {input}"

    run = karat.run(answer, data, store=sys.argv[1], wait=True)
    judge = {"name": "llm_judge", "params": {"judge": {"model": sys.argv[2], "samples": %d}}}
    evaluation = karat.evaluate(run, [judge], concurrency=%d, wait=True)
    print(evaluation.counts.ok)
"""


def test_a_killed_evaluation_repeats_no_answered_call(folder):
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM % (EXAMPLES, SAMPLES, CONCURRENCY)))
    store = f"sqlite:///{folder}/k.db"
    with FakeProvider('{"analysis": "", "pass": true}', latency=0.01) as server:
        for kill in range(KILLS + 1):
            child = subprocess.Popen(
                [sys.executable, str(program), store, server.spec()], stdout=subprocess.PIPE, text=True
            )
            if kill < KILLS:
                goal = (kill + 1) * EXAMPLES * SAMPLES // (KILLS + 2)
                while child.poll() is None and server.count < goal:
                    time.sleep(0.001)
                os.kill(child.pid, signal.SIGKILL)
            output, _ = child.communicate(timeout=120)
        assert output.strip() == str(EXAMPLES)
        # A kill loses the calls in flight, and those answered whose row was not committed yet.
        assert server.count <= EXAMPLES * SAMPLES + KILLS * CONCURRENCY * SAMPLES
        made = server.count
        run = karat.open_store(store).runs.get("latest")
        judge = {"name": "llm_judge", "params": {"judge": {"model": server.spec(), "samples": SAMPLES}}}
        again = karat.evaluate(run, [judge, "exact_match"])
        assert server.count == made
        assert again.counts.reused == EXAMPLES
