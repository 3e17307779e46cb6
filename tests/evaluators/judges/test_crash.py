"""A judge that is killed repeats no call whose reply was stored, and judging again makes none."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
import urllib.request

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


def stored_replies(folder):
    """The replies in the cache of a process that was killed."""
    file = folder / "replies.db"
    if not file.exists():
        return 0
    with sqlite3.connect(file) as cache:
        tables = {name for (name,) in cache.execute("select name from sqlite_master where type = 'table'")}
        return cache.execute("select count(*) from replies").fetchone()[0] if "replies" in tables else 0


def received(server):
    """The requests that arrived, with those that a killed process left in the sockets."""
    while True:
        before = server.count
        with urllib.request.urlopen(server.url.removesuffix("/v1") + "/stats") as reply:
            reply.read()
        if server.count == before and server.in_flight == 0:
            return before
        time.sleep(0.01)


def test_a_killed_evaluation_repeats_no_call_whose_reply_was_stored(folder):
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM % (EXAMPLES, SAMPLES, CONCURRENCY)))
    store = f"sqlite:///{folder}/k.db"
    total = EXAMPLES * SAMPLES
    with FakeProvider('{"analysis": "", "pass": true}', latency=0.01) as server:
        kept = asked = 0
        for kill in range(KILLS + 1):
            child = subprocess.Popen(
                [sys.executable, str(program), store, server.spec()], stdout=subprocess.PIPE, text=True
            )
            if kill < KILLS:
                goal = (kill + 1) * total // (KILLS + 2)
                while child.poll() is None and server.count < goal:
                    time.sleep(0.001)
                os.kill(child.pid, signal.SIGKILL)
            output, _ = child.communicate(timeout=120)
            made, now = received(server) - asked, stored_replies(folder)
            assert made <= total - kept, "a stored reply was asked for again"
            kept, asked = now, asked + made
        assert output.strip() == str(EXAMPLES)
        # At most `concurrency` items are lost by a kill: their calls were in flight, or about to be committed.
        assert asked <= total + KILLS * CONCURRENCY * SAMPLES
        run = karat.open_store(store).runs.get("latest")
        judge = {"name": "llm_judge", "params": {"judge": {"model": server.spec(), "samples": SAMPLES}}}
        again = karat.evaluate(run, [judge, "exact_match"])
        assert server.count == asked
        assert again.counts.reused == EXAMPLES


ACKNOWLEDGING = """
    import os, sys

    from karat.models import _cache

    kept, file = _cache.ReplyCache.put, os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def put(self, key, *rest):
        done = kept(self, key, *rest)
        os.write(file, key.hex().encode() + b"\\n")
        return done

    _cache.ReplyCache.put = put
"""


def test_a_kill_repeats_no_call_whose_reply_was_received(folder):
    """Every reply that the process has got is noted by it; none is asked for again, whenever it is killed."""
    program, notes = folder / "program.py", folder / "received"
    program.write_text(
        textwrap.dedent(ACKNOWLEDGING) + textwrap.dedent(PROGRAM % (EXAMPLES, SAMPLES, CONCURRENCY))
    )
    store, total, kills = f"sqlite:///{folder}/k.db", EXAMPLES * SAMPLES, 10
    with FakeProvider('{"analysis": "", "pass": true}', latency=0.01) as server:
        for kill in range(kills + 1):
            child = subprocess.Popen(
                [sys.executable, str(program), store, server.spec(), str(notes)],
                stdout=subprocess.PIPE,
                text=True,
            )
            if kill < kills:
                goal = (kill + 1) * total // (kills + 2)
                while child.poll() is None and _lines(notes) < goal:
                    time.sleep(0.0005)
                os.kill(child.pid, signal.SIGKILL)
            output, _ = child.communicate(timeout=120)
        assert output.strip() == str(EXAMPLES)
        keys = notes.read_text().splitlines()
        assert len(keys) == len(set(keys)), "a reply that was received was asked for again"
        assert (
            len(keys) >= total - kills
        )  # a kill between the journal and this note leaves a reply that is not noted
        # What is repeated was in flight: sent, and its reply not received.
        assert received(server) <= total + kills * CONCURRENCY * SAMPLES
    assert not list(folder.glob("*.journal")), "a process that ends by itself leaves no journal"


def _lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0
