"""The command line as a process: Ctrl-C, closed pipes, exit codes as a shell sees them."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import karat

SLOW = """
import time
from pathlib import Path

def slow(text):
    with open("calls.txt", "a") as file:
        file.write(text + "\\n")
    if Path("fast").exists():
        return text
    time.sleep({seconds})
    return text
"""


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "karat", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KARAT_PLUGINS": "0"},
    )


@pytest.fixture
def slow(folder: Path) -> Path:
    (folder / "slow.py").write_text(SLOW.format(seconds=0.02))
    (folder / "qa.jsonl").write_text(
        "".join(json.dumps({"id": str(i), "input": str(i)}) + "\n" for i in range(2000))
    )
    return folder


def wait_for_calls(folder: Path, process: subprocess.Popen[str], count: int) -> None:
    calls = folder / "calls.txt"
    while process.poll() is None:
        if calls.exists() and calls.read_text().count("\n") >= count:
            return
    raise AssertionError(process.communicate())


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_continues(slow: Path, says):
    arguments = ["run", "slow.py:slow", "--data", "qa.jsonl", "--concurrency", "2"]
    process = start(*arguments, folder=slow)
    wait_for_calls(slow, process, 20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "interrupted at" in err
    says(re.sub(r"\d+ of ", "NUMBER of ", err))
    assert "to continue: karat run slow.py:slow --data qa.jsonl --concurrency 2" in err
    assert "Traceback" not in err

    (slow / "fast").touch()
    process = start(*arguments, "--json", folder=slow)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    run = json.loads(out)["runs"][0]
    assert run["counts"]["ok"] == 2000
    assert run["notice"].startswith("continues run")
    calls = (slow / "calls.txt").read_text().split()
    assert len(calls) <= 2000 + 2, "at most `concurrency` items are computed again"
    assert set(calls) == {str(i) for i in range(2000)}


def test_ctrl_c_is_json_where_json_is_asked_for(slow: Path):
    process = start("run", "slow.py:slow", "--data", "qa.jsonl", "--json", "--new", folder=slow)
    wait_for_calls(slow, process, 5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    error = json.loads(out)["error"]
    assert error["type"] == "Interrupted"
    assert error["go_on"] == "karat run slow.py:slow --data qa.jsonl --json"
    assert err == ""


def test_a_task_that_cannot_be_stopped_does_not_hold_ctrl_c(slow: Path):
    (slow / "slow.py").write_text(SLOW.format(seconds=600))
    process = start("run", "slow.py:slow", "--data", "qa.jsonl", folder=slow)
    wait_for_calls(slow, process, 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


STUBBORN = """
import asyncio
import time

async def for_ever():
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            pass

def note(text):
    with open("calls.txt", "a") as file:
        file.write(text + "\\n")

async def swallows(text):
    note(text)
    return text if int(text) < 20 else await for_ever()

async def gathers(text):
    note(text)
    return text if int(text) < 20 else await asyncio.gather(for_ever(), for_ever())

async def blocks(text):
    note(text)
    return text if int(text) < 20 else time.sleep(600)

async def in_a_thread(text):
    note(text)
    return text if int(text) < 20 else await asyncio.to_thread(time.sleep, 600)

def sleeps(text):
    note(text)
    return text if int(text) < 20 else time.sleep(600)
"""


@pytest.mark.parametrize("task", ["swallows", "gathers", "blocks", "in_a_thread", "sleeps"])
def test_a_second_ctrl_c_ends_any_task_and_keeps_finished_items(slow: Path, task: str):
    (slow / "stubborn.py").write_text(STUBBORN)
    arguments = ["run", f"stubborn.py:{task}", "--data", "qa.jsonl", "--concurrency", "4"]
    process = start(*arguments, folder=slow)
    wait_for_calls(slow, process, 21)
    try:
        # Two signals at once would be one, and Python notices one that comes just before a blocking call only with the
        # next: a third is needed then.
        for patience in (0.3, 10, 10):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
                break
        _, err = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert err.startswith("karat: interrupted at")
    assert "Traceback" not in err
    out, _ = start("ls", "runs", "--json", folder=slow).communicate(timeout=30)
    (run,) = json.loads(out)["runs"]
    assert (run["status"], run["counts"]["ok"]) == ("interrupted", 20)


def test_one_ctrl_c_is_enough_for_a_thread_that_is_stuck(slow: Path):
    (slow / "stubborn.py").write_text(STUBBORN)
    process = start("run", "stubborn.py:in_a_thread", "--data", "qa.jsonl", folder=slow)
    wait_for_calls(slow, process, 21)
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 130


def test_a_run_that_is_worked_on_is_distinguished_from_one_that_was_killed(slow: Path):
    def state() -> list[str]:
        listed, _ = start("ls", "runs", "--json", folder=slow).communicate(timeout=30)
        (run,) = json.loads(listed)["runs"]
        shown, _ = start("show", run["id"], "--json", folder=slow).communicate(timeout=30)
        text, _ = start("show", run["id"], folder=slow).communicate(timeout=30)
        return [run["status"], json.loads(shown)["status"], text.split()[2]]

    process = start("run", "slow.py:slow", "--data", "qa.jsonl", "--concurrency", "1", folder=slow)
    wait_for_calls(slow, process, 5)
    assert state() == ["running"] * 3
    process.kill()
    process.communicate(timeout=30)
    assert state() == ["interrupted"] * 3
    listed, _ = start("ls", "runs", "--json", folder=slow).communicate(timeout=30)
    counts = json.loads(listed)["runs"][0]["counts"]
    assert counts["ok"] >= 4, "also what a process that was killed could not count"
    assert counts["ok"] + counts["pending"] == counts["total"] == 2000


def test_a_reader_that_stops_early_is_not_an_error(slow: Path):
    (slow / "fast").touch()
    out, _ = start("run", "slow.py:slow", "--data", "qa.jsonl", "--json", folder=slow).communicate(timeout=60)
    process = start("export", json.loads(out)["runs"][0]["id"], folder=slow)
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 0
    assert err == ""


def test_the_demo_is_checked(slow: Path):
    import karat.demo

    experiment = Path(karat.demo.__path__[0]) / "experiment.yaml"
    process = start("run", str(experiment), "--check", "--json", folder=slow)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["examples"] == 60


def test_a_shipped_graph_task_is_checked_in_the_folder_that_init_makes(tmp_path: Path):
    """The folder has files of the names that the task's own files have: those of the task win."""
    made = start("init", "my", folder=tmp_path)
    assert made.wait(60) == 0
    process = start("run", "eval/question_answering/demo", "--check", folder=tmp_path / "my")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


AT_IMPORT = """
import os, signal, sys

_, wanted, number, *given = sys.argv

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), getattr(signal, number))

sys.meta_path.insert(0, Interrupting())
from karat.cli import main

sys.argv = ["karat", *given]
sys.exit(main())
"""
"""karat with a signal at the import of a module."""

MODULES = [
    "karat.process",
    "karat.cli.terminal",
    "karat.errors",
    "argparse",
    "karat.cli.run",
    "karat.store",
    "asyncio",
    "asyncio.coroutines",
    "asyncio.tasks",
    "msgspec",
    "psycopg",
    "psycopg.pq",
    "psycopg.connection_async",
    "psycopg.conninfo",
]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_modules_are_imported_ends_like_ctrl_c(slow: Path, name: str):
    pytest.importorskip("psycopg")
    store = "postgresql://me:s3cret@127.0.0.1:1/none"
    arguments = [name, "run", "slow.py:slow", "--data", "qa.jsonl", "--store", store]
    started = {
        module: subprocess.Popen(
            [sys.executable, "-c", AT_IMPORT, module, *arguments],
            cwd=slow,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "KARAT_PLUGINS": "0"},
        )
        for module in MODULES
        if not (
            name != "SIGINT" and module == "karat.process"
        )  # before that, other signals end the process at once
    }
    codes = {}
    for module, process in started.items():
        out, err = process.communicate(timeout=60)
        codes[module] = process.returncode
        assert "Traceback" not in err + out, (module, err)
        assert "a bug" not in err, (module, err)
        assert "s3cret" not in err, module
    assert {module: code for module, code in codes.items() if code != 130} == {}


WEAK = """
import os, signal, sys, weakref

class Thing: pass

thing = Thing()
at_end = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))

def task(text):
    return text

def unraisable():
    global thing
    del thing

unraisable()
"""


def test_an_interrupt_in_a_callback_is_not_lost(slow: Path):
    """The import system has such callbacks; Python prints what they raise, and continues."""
    (slow / "weak.py").write_text(WEAK)
    process = start("run", "weak.py:task", "--data", "qa.jsonl", folder=slow)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_further_signals_do_not_change_the_exit_code(slow: Path, name: str):
    process = start("run", "slow.py:slow", "--data", "qa.jsonl", "--concurrency", "2", folder=slow)
    wait_for_calls(slow, process, 20)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    for line in process.stderr:
        if "interrupted" in line:
            break
    while process.poll() is None:
        process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err


ENDING = """
import atexit, os, runpy, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    atexit.register(os.kill, os.getpid(), number)
sys.argv = ["karat", "ls"]
runpy.run_module("karat", run_name="__main__")
"""


def test_a_signal_after_the_work_does_not_change_how_it_ended(project, karat):
    karat("run", "experiment.yaml")
    done = subprocess.run(
        [sys.executable, "-c", ENDING], cwd=project, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "run-" in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_does_its_work_where_the_caller_closed_its_files(folder: Path, closed: str):
    (folder / "double.py").write_text("def double(number: int) -> int:\n    return 2 * number\n")
    (folder / "d.jsonl").write_text('{"input": 1}\n')
    command = f"{sys.executable} -m karat run double.py:double --data d.jsonl {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (0, False)
    with karat.open_store(folder / "karat.db") as store:
        assert [run.status for run in store.runs.list()] == ["success"]
        assert store.verify() == []
