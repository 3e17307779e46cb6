"""What ends a stage early: a lost lease, a lost store, a signal. Finished items stay stored."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import karat
from karat import models
from karat.errors import StoreBusy, StoreError
from karat.store import lease
from karat.store.backend import LeaseRow
from karat.testing import FakeProvider

DATA = [{"id": str(n), "input": f"question {n}"} for n in range(40)]


@pytest.mark.parametrize("how", ["async", "sync"])
@pytest.mark.parametrize("stage", ["run", "evaluate"])
def test_a_process_that_lost_its_lease_makes_no_further_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, stage: str
) -> None:
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    now = [1000.0]
    monkeypatch.setattr(lease, "clock", lambda: now[0])
    calls, sent = itertools.count(1), 0
    with FakeProvider() as server, karat.open_store(tmp_path / "karat.db") as store:
        model = models.get(server.spec())

        def take_over() -> None:
            """Another machine takes over what is being worked on, while this process is stopped for 33 seconds."""
            nonlocal sent
            if next(calls) == 5:
                handle = (store.runs if stage == "run" else store.evaluations).get("latest")
                mine = store.backend.lease(handle.number)
                assert mine is not None
                other = LeaseRow("another-machine", "elsewhere", 1, 1.0, 0.0, store.backend.now())
                assert store.backend.take_lease(handle.number, other, mine.owner)
                now[0] += 33.0
                sent = server.count  # other threads go on asking until here

        async def ask_async(text: str) -> str:
            for n in range(10):
                await model.generate(f"{text} {n}")
                take_over()
            return text

        def ask(text: str) -> str:
            for n in range(10):
                model.generate_sync(f"{text} {n}")
                take_over()
            return text

        asking: Any = ask if how == "sync" else ask_async
        if stage == "run":
            work = lambda: karat.run(asking, DATA, store=store, concurrency=3)  # noqa: E731 - chosen here
        else:
            run = karat.run(lambda text: text, DATA, store=store)
            if how == "sync":

                def judge(outputs: str) -> str:
                    return ask(outputs)
            else:

                async def judge(outputs: str) -> str:  # type: ignore[misc]  # one of the two
                    return await ask_async(outputs)

            work = lambda: karat.evaluate(run, [judge], concurrency=3)  # type: ignore[assignment,return-value]  # noqa: E731
        with pytest.raises(StoreBusy):
            work()
        assert 5 <= sent <= server.count <= sent + 3, "only requests in flight may complete"
        handle = (store.runs if stage == "run" else store.evaluations).get("latest")
        found = store.backend.lease(handle.number)
        assert found is not None
        assert found.owner == "another-machine", "what another process holds is not released"


@pytest.mark.parametrize("how", ["deleted", "replaced"])
@pytest.mark.parametrize("at", [5, 39])
def test_a_store_that_disappears_during_a_run_is_no_success(
    tmp_path: Path, how: str, at: int, refuses
) -> None:
    path = tmp_path / "karat.db"

    def task(text: str, example: karat.Example) -> str:
        if example.id == str(at):
            path.unlink()
            if how == "replaced":
                karat.open_store(path).close()
        return text

    with karat.open_store(path) as store, refuses(StoreError) as stopped:
        karat.run(task, DATA, store=store, concurrency=4)
    assert stopped.value.exit_code == 3


PROGRAM = """
    import asyncio, os, signal, sys
    import karat

    async def slow(text):
        if text == "question 20":
            print("working", flush=True)
        if int(text.split()[1]) >= 20:
            await asyncio.sleep(600)
        return text

    data = [{"id": str(n), "input": f"question {n}"} for n in range(40)]
    try:
        karat.run(slow, data, store="karat.db", concurrency=40)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("shell", ["foreground", "background"])
def test_a_signal_ends_a_stage_like_ctrl_c(tmp_path: Path, number: signal.Signals, shell: str) -> None:
    def start_as_a_shell_does() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if shell == "background" else signal.default_int_handler)

    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    process = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=start_as_a_shell_does,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "working"
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert (out.strip(), process.returncode) == ("interrupted", 0), errors
    with karat.open_store(tmp_path / "karat.db") as store:
        run = store.runs.get("latest")
        assert run.counts.ok == 20
        assert run.status == "interrupted"


COMMITTING = """
    import os, signal
    import karat
    from karat.store import open_store

    finished = []

    async def quick(text):
        finished.append(text)
        return text

    data = [{"id": str(n), "input": f"question {n}"} for n in range(40)]
    with open_store("karat.db") as store:
        append = store.backend.append

        def append_with_signal(*arguments):
            if finished:
                finished.clear()
                os.kill(os.getpid(), signal.SIGTERM)
            return append(*arguments)

        store.backend.append = append_with_signal
        try:
            karat.run(quick, data, store=store, concurrency=40)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""


@pytest.mark.parametrize("shell", ["foreground", "background"])
def test_a_signal_during_a_commit_loses_nothing(tmp_path: Path, shell: str) -> None:
    """A shell starts background commands with SIGINT ignored: then no handler of Ctrl-C cancels the work."""
    handler = signal.SIG_IGN if shell == "background" else signal.default_int_handler
    (tmp_path / "program.py").write_text(textwrap.dedent(COMMITTING))
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler) and None,
    )
    assert (done.stdout.strip(), done.returncode) == ("interrupted", 0), done.stderr
    with karat.open_store(tmp_path / "karat.db") as store:
        assert store.runs.get("latest").counts.ok == 40


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path: Path) -> None:
    program = textwrap.dedent(PROGRAM).replace("await asyncio.sleep(600)", "await asyncio.sleep(0.2)")
    (tmp_path / "program.py").write_text(program)
    process = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN) and None,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "working"
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", 0)
    with karat.open_store(tmp_path / "karat.db") as store:
        assert store.runs.get("latest").status == "success"


def test_a_handler_that_a_program_has_installed_stays(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    mine = signal.getsignal(signal.SIGTERM)
    try:
        seen: list[Any] = []

        async def task(text: str) -> str:
            seen.append(signal.getsignal(signal.SIGTERM))
            return text

        karat.run(task, DATA[:1], store="memory://")
        assert seen == [mine]
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_store_that_disappears_before_aggregating_is_no_success(tmp_path: Path, refuses) -> None:
    path = tmp_path / "karat.db"
    with karat.open_store(path) as store:
        evaluation = karat.evaluate(karat.run(lambda text: text, DATA, store=store), ["exact_match"])
        path.unlink()
        with refuses(StoreError):
            karat.aggregate(evaluation, ["mean"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_the_command_line_ends_like_ctrl_c(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n\ndef slow(text):\n    print('working', flush=True)\n    time.sleep(600)\n"
    )
    (tmp_path / "qa.jsonl").write_text('{"id": "1", "input": "a"}\n')
    process = subprocess.Popen(
        [sys.executable, "-m", "karat", "run", "slow.py:slow", "--data", "qa.jsonl"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "working"
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_doctor_finds_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "karat.db"
    with karat.open_store(path) as store:
        karat.run(lambda text: f"needle {text}", DATA, store=store)
    content = bytearray(path.read_bytes())
    content[content.index(b"needle question")] ^= 1
    path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-m", "karat", "doctor", "--store", str(path), "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (found,) = [each for each in json.loads(done.stdout)["checks"] if each["what"] == "store"]
    assert found["state"] == "broken"
    assert "damaged content" in found["found"]


def test_the_command_to_continue_with_shows_no_password() -> None:
    from karat.cli import _same_command

    for url in (
        "postgresql://user@host/db?password=s3cr@et",
        "postgresql://user:s3cr/et@host/db",
        "postgresql://user@host/db?pass%77ord=s3cr",
    ):
        for words in (["run", "x.yaml", "--store", url], ["run", "x.yaml", f"--store={url}"]):
            assert "s3cr" not in _same_command(words)


@pytest.mark.parametrize("stage", ["run", "evaluation"])
def test_labels_that_are_given_while_a_stage_works_stay(tmp_path: Path, stage: str) -> None:
    """The stage writes its header at its end, and a handle that was made before writes only its labels."""
    url, early = f"sqlite:///{tmp_path / 'karat.db'}", []

    def work(number: int) -> int:
        if number == 5:
            with karat.open_store(url) as other:
                repository: Any = other.runs if stage == "run" else other.evaluations
                (handle,) = repository.list()
                other.tag(handle.id, ["golden"])
                repository.describe(handle, metadata={"by": "someone"}, description="best")
                early.append(handle)
        return number

    def judge(*, outputs: int, **_: object) -> float:
        return float(work(outputs))

    with karat.open_store(url) as store:
        examples = [{"id": str(number), "input": number} for number in range(8)]
        run = karat.run(work if stage == "run" else (lambda number: number), examples, store=store)
        handle = run if stage == "run" else karat.evaluate(run, [judge], store=store)
        stored = store.get(handle.id)
        for header in (handle.header, stored.header):
            assert (header.labels, header.metadata.get("by"), header.description) == (
                ["golden"],
                "someone",
                "best",
            )
            assert header.status == "success"
        assert early[0].header.status == "running"
        repository: Any = store.runs if stage == "run" else store.evaluations
        repository.describe(type(handle)(store, handle.number, early[0].header), labels=["late"])
        assert (store.get(handle.id).header.status, store.get(handle.id).header.labels) == (
            "success",
            ["golden", "late"],
        )
