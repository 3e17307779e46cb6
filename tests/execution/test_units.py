"""Tasks that yield units: each is stored when it is complete, and a run continues with the units that are missing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import karat
from karat.errors import StoreError
from karat.records import Example, Failed, Output
from karat.tasks import Context, Task

UNITS = ["session/1", "session/2", "session/3"]


class Sessions(Task):
    """Counts the sessions that it works on; raises before a given one."""

    name = "sessions"
    units_declared = True
    version = "1"

    def __init__(self) -> None:
        self.worked: list[tuple[str, str]] = []
        self.done: list[Mapping[str, Output]] = []
        self.raises: dict[str, BaseException] = {}

    def configuration(self) -> Any:
        return {"task": self.name}

    def units(self, example: Example) -> list[str]:
        return UNITS

    def _unit(self, example: Example, unit: str) -> tuple[str, Any]:
        self.worked.append((example.id, unit))
        if unit in self.raises and example.id == "1":
            raise self.raises[unit]
        return unit, f"{example.input} {unit}"

    def call_units(self, example: Example, context: Context) -> Iterator[tuple[str, Any]]:
        self.done.append(context.done)
        for unit in UNITS:
            if unit not in context.done:
                yield self._unit(example, unit)


class AsyncSessions(Sessions):
    is_async = True

    async def call_units(self, example: Example, context: Context) -> AsyncIterator[tuple[str, Any]]:  # type: ignore[override]
        self.done.append(context.done)
        for unit in UNITS:
            await asyncio.sleep(0)
            if unit not in context.done:
                yield self._unit(example, unit)


DATA = [{"id": str(n), "input": n} for n in range(3)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    with karat.open_store(tmp_path / "karat.db") as opened:
        yield opened


@pytest.fixture(params=[Sessions, AsyncSessions], ids=["sync", "async"])
def task(request: pytest.FixtureRequest) -> Sessions:
    made: Sessions = request.param()
    return made


def outcomes(run: karat.Run, example: str = "1") -> dict[str, str]:
    return {o.unit: o.outcome.status for o in run.outputs() if o.example == example}


def test_each_unit_is_an_output(store: Any, task: Sessions) -> None:
    run = karat.run(task, DATA, store=store)
    assert (run.counts.ok, run.counts.total, run.status) == (9, 9, "success")
    assert [o.value for o in run.outputs()][:3] == [f"0 {unit}" for unit in UNITS]


def test_a_failure_leaves_earlier_units_ok_and_fails_the_rest(store: Any, task: Sessions) -> None:
    task.raises = {"session/2": ValueError("down")}
    run = karat.run(task, DATA, store=store)
    assert outcomes(run) == {"session/1": "ok", "session/2": "failed", "session/3": "failed"}
    assert (run.counts.ok, run.counts.failed, run.counts.pending) == (7, 2, 0)
    task.raises, task.worked, task.done = {}, [], []
    again = karat.run(task, DATA, store=store, retry_failed=True)
    assert again.id == run.id
    assert task.worked == [("1", "session/2"), ("1", "session/3")]
    assert [{unit: o.value for unit, o in done.items()} for done in task.done] == [
        {"session/1": "1 session/1"}
    ]
    assert again.status == "success"


def test_an_error_in_place_of_an_output_fails_that_unit_alone(store: Any, task: Sessions) -> None:
    class Forgiving(type(task)):  # type: ignore[misc]  # the sync or the async one
        def _unit(self, example: Example, unit: str) -> tuple[str, Any]:
            return unit, ValueError("no answer") if unit == "session/2" else unit

    run = karat.run(Forgiving(), DATA[:2], store=store)
    assert outcomes(run) == {"session/1": "ok", "session/2": "failed", "session/3": "ok"}
    failure = next(o.outcome for o in run.outputs() if isinstance(o.outcome, Failed))
    assert failure.error.type == "ValueError"


def test_units_that_are_stored_are_not_computed_again_after_an_interruption(
    store: Any, task: Sessions
) -> None:
    task.raises = {"session/3": StoreError("the store went away")}
    with pytest.raises(StoreError):
        karat.run(task, DATA, store=store, concurrency=1)
    stopped = store.runs.get("latest")
    assert outcomes(stopped) == {"session/1": "ok", "session/2": "ok"}
    before = set(task.worked)
    task.raises, task.worked, task.done = {}, [], []
    run = karat.run(task, DATA, store=store)
    assert run.id == stopped.id
    assert ("1", "session/3") in task.worked
    assert not (set(task.worked) & (before - {("1", "session/3")}))
    assert run.status == "success"
    assert len(list(run.outputs(history=True))) == 9


def test_retries_start_the_generator_again_with_what_is_done(store: Any, task: Sessions) -> None:
    class Recovers(type(task)):  # type: ignore[misc]  # the sync or the async one
        def _unit(self, example: Example, unit: str) -> tuple[str, Any]:
            made: tuple[str, Any] = super()._unit(example, unit)
            if unit == "session/2" and self.worked.count((example.id, unit)) == 1:
                raise OSError("hiccup")
            return made

    run = karat.run(Recovers(), DATA[:1], store=store, retries=1)
    assert run.status == "success"
    assert [o.metadata.get("retried") for o in run.outputs()] == [
        None,
        ["OSError: hiccup"],
        ["OSError: hiccup"],
    ]


def test_a_unit_that_is_yielded_again_is_ignored(store: Any) -> None:
    class FromTheStart(Sessions):
        def call_units(self, example: Example, context: Context) -> Iterator[tuple[str, Any]]:
            for unit in UNITS:
                yield self._unit(example, unit)

    task = FromTheStart()
    task.raises = {"session/2": StoreError("gone")}
    with pytest.raises(StoreError):
        karat.run(task, DATA[1:2], store=store)
    task.raises = {}
    run = karat.run(task, DATA[1:2], store=store)
    assert (run.counts.ok, run.counts.total) == (3, 3)
    assert len(list(run.outputs(history=True))) == 3


@pytest.mark.parametrize(
    ("yielded", "failure"), [("session/1", "TypeError"), (("elsewhere", 1), "ValueError")]
)
def test_a_wrong_unit_fails_the_remaining_units(store: Any, yielded: Any, failure: str) -> None:
    class Odd(Sessions):
        def call_units(self, example: Example, context: Context) -> Iterator[Any]:
            yield "session/1", 1
            yield yielded

    run = karat.run(Odd(), DATA[:1], store=store)
    assert outcomes(run, "0") == {"session/1": "ok", "session/2": "failed", "session/3": "failed"}
    failed = [o.outcome for o in run.outputs() if isinstance(o.outcome, Failed)]
    assert {each.error.type for each in failed} == {failure}


def test_units_that_were_never_yielded_are_failed(store: Any) -> None:
    class Short(Sessions):
        def call_units(self, example: Example, context: Context) -> Iterator[tuple[str, Any]]:
            yield "session/2", 1

    run = karat.run(Short(), DATA[:1], store=store)
    assert outcomes(run, "0") == {"session/1": "failed", "session/2": "ok", "session/3": "failed"}


async def test_a_timeout_leaves_the_units_that_were_complete(store: Any) -> None:
    class Slow(AsyncSessions):
        async def call_units(self, example: Example, context: Context) -> AsyncIterator[tuple[str, Any]]:  # type: ignore[override]
            yield "session/1", 1
            await asyncio.Event().wait()

    run = await karat.run_async(Slow(), DATA[:1], store=store, timeout=0.05)
    assert outcomes(run, "0") == {"session/1": "ok", "session/2": "failed", "session/3": "failed"}


def test_calls_and_seconds_stay_with_their_unit(store: Any) -> None:
    class Calls(Sessions):
        def _unit(self, example: Example, unit: str) -> tuple[str, Any]:
            karat.models.record_tool_call("remember", {"unit": unit})
            return unit, unit

    run = karat.run(Calls(), DATA[:1], store=store)
    assert [[call.input["unit"] for call in o.trace] for o in run.outputs()] == [[unit] for unit in UNITS]


PROGRAM = """
    import os, signal, sys
    import karat
    from karat.tasks import Task

    class Sessions(Task):
        name, units_declared, version = "sessions", True, "1"

        def units(self, example):
            return [f"session/{n}" for n in range(4)]

        def call_units(self, example, context):
            for unit in self.units(example):
                if unit in context.done:
                    continue
                with open("worked", "a") as file:
                    file.write(f"{example.id} {unit}\\n")
                yield unit, unit
                if len(open("worked").readlines()) % 5 == 0 and not os.path.exists("calm"):
                    os.kill(os.getpid(), signal.SIGKILL)

    karat.run(Sessions(), [{"id": str(n), "input": n} for n in range(6)], store="k.db", concurrency=1)
"""


def test_a_killed_process_repeats_no_unit_that_was_stored(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    kills = 0
    while True:
        done = subprocess.run(
            [sys.executable, str(program)], cwd=tmp_path, env=environment, capture_output=True, check=False
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
    worked = (tmp_path / "worked").read_text().splitlines()
    assert kills >= 3
    assert len(worked) == len(set(worked)) == 24
    with karat.open_store(tmp_path / "k.db") as store:
        run = store.runs.get("latest")
        assert (run.counts.ok, run.counts.total) == (24, 24)
