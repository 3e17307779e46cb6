"""The run stage: what a task may be, what is kept, what is computed again and what is not."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import threading
import time
from typing import Any

import msgspec
import pydantic
import pytest

import karat
from karat.errors import Aborted, CodeChanged, RequestError, StoreBusy, StoreError
from karat.records import Failed, Ok
from karat.tasks import FunctionTask, Task
from karat.testing import FakeProvider


@pytest.fixture
def store(tmp_path):
    with karat.open_store(tmp_path / "karat.db") as opened:
        yield opened


def examples(count):
    return karat.Dataset.from_examples(
        [
            {"id": f"e{i}", "input": i, "expected": i * 2, "metadata": {"even": i % 2 == 0}}
            for i in range(count)
        ]
    )


def double(number):
    return number * 2


async def double_async(number):
    await asyncio.sleep(0)
    return number * 2


class Doubler:
    def __init__(self, factor=2):
        self.factor = factor

    def __call__(self, number):
        return number * self.factor


class AsyncDoubler:
    async def __call__(self, number):
        return number * 2


def values(run):
    return [output.value for output in run.outputs()]


# ------------------------------------------------------------------ what a task may be


@pytest.mark.parametrize(
    "task", [double, double_async, Doubler(), Doubler, AsyncDoubler(), FunctionTask(double)]
)
def test_functions_and_callable_objects_sync_and_async_are_tasks(store, task):
    run = karat.run(task, examples(20), store=store)
    assert values(run) == [i * 2 for i in range(20)]
    assert run.status == "success"
    assert run.counts.to_dict() | {"total": 20, "ok": 20, "failed": 0, "pending": 0} == run.counts.to_dict()


def test_a_task_gets_what_it_asks_for_by_name(store):
    def task(number, example, attempt, context):
        return [number, example.id, example.metadata["even"], attempt, context.replicate, context.run[:4]]

    run = karat.run(task, examples(2), store=store, attempts=2)
    assert values(run) == [
        [0, "e0", True, 1, 1, "run-"],
        [0, "e0", True, 2, 1, "run-"],
        [1, "e1", False, 1, 1, "run-"],
        [1, "e1", False, 2, 1, "run-"],
    ]


def test_a_task_that_takes_nothing_is_refused(store, refuses):
    def answer():
        return 42

    with refuses(RequestError):
        karat.run(answer, examples(3), store=store)


def test_a_task_that_asks_for_something_unknown_is_refused(store, refuses):
    def task(number, weather):
        return number

    with refuses(RequestError):
        karat.run(task, examples(1), store=store)


def test_parameters_are_passed_and_are_part_of_the_configuration(store):
    def scale(number, factor=1):
        return number * factor

    first = karat.run(FunctionTask(scale, parameters={"factor": 3}), examples(3), store=store)
    other = karat.run(FunctionTask(scale, parameters={"factor": 4}), examples(3), store=store)
    assert (values(first), values(other)) == ([0, 3, 6], [0, 4, 8])
    assert first.id != other.id


def test_inputs_are_decoded_to_the_annotated_type(store):
    @dataclasses.dataclass
    class Question:
        text: str
        hints: list[str]

    class Struct(msgspec.Struct):
        text: str

    class Model(pydantic.BaseModel):
        text: str

    def of_dataclass(question: Question) -> int:
        return len(question.hints)

    def of_struct(question: Struct) -> str:
        return question.text

    def of_model(question: Model) -> dict[str, Any]:
        return question.model_dump()

    of_dataclass.__annotations__["question"] = Question
    of_struct.__annotations__["question"] = Struct
    of_model.__annotations__["question"] = Model
    data = karat.Dataset.from_examples([{"input": {"text": "a", "hints": ["x", "y"]}}])
    assert values(karat.run(of_dataclass, data, store=store)) == [2]
    assert values(karat.run(of_struct, data, store=store)) == ["a"]
    assert values(karat.run(of_model, data, store=store)) == [{"text": "a"}]


def test_outputs_may_be_anything_that_can_be_stored_and_nothing_else(store, says):
    @dataclasses.dataclass
    class Answer:
        text: str

    def task(number):
        return [
            Answer("a"),
            b"bytes",
            {"a": [1, None]},
            object(),
            float("nan"),
            {"deep": [float("inf")]},
            "\ud800",
        ][number]

    run = karat.run(task, examples(7), store=store)
    outcomes = [output.outcome for output in run.outputs()]
    assert [type(o) for o in outcomes] == [Ok, Ok, Ok, Failed, Failed, Failed, Failed]
    says(outcomes[3].error.message)
    assert "NaN" in outcomes[4].error.message
    assert "inf" in outcomes[5].error.message
    assert (run.status, run.counts.failed) == ("partial", 4)


def test_a_tool_call_that_cannot_be_stored_fails_its_item(store):
    def task(number):
        karat.models.record_tool_call("search", {"index": object() if number else 0})
        return number

    run = karat.run(task, examples(2), store=store)
    stored, refused = [output.outcome for output in run.outputs()]
    assert (type(stored), type(refused)) == (Ok, Failed)
    assert refused.error.message.startswith("trace[0].input.index ")


def test_an_output_that_cannot_be_stored_keeps_the_calls_that_were_made_for_it(store):
    def task(number):
        karat.models.record_tool_call("search", {"index": number})
        return object()

    [output] = karat.run(task, examples(1), store=store).outputs()
    assert type(output.outcome) is Failed
    assert [(call.name, call.input) for call in output.trace] == [("search", {"index": 0})]


def test_a_task_may_say_more_about_an_output_that_cannot_be_stored(store):
    class Precise(karat.tasks.Task):
        name = "precise"

        def call(self, example, context):
            return {"found": object()}

        def storage_error(self, output, error):
            return LookupError(f"{sorted(output)}: {error}")

    [output] = karat.run(Precise(), examples(1), store=store).outputs()
    assert output.outcome.error.type == "LookupError"
    assert output.outcome.error.message.startswith("['found']: output.found ")


def test_recorded_outputs_are_a_task(store, tmp_path, says):
    from karat.tasks.recorded import RecordedOutputs

    lines = [{"id": "e0", "output": "zero"}, {"id": "e2", "error": "the server was down"}]
    (tmp_path / "recorded.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = karat.run(RecordedOutputs(tmp_path / "recorded.jsonl"), examples(3), store=store)
    outcomes = [output.outcome for output in run.outputs()]
    assert outcomes[0] == Ok("zero")
    says(outcomes[1].error.message)
    assert outcomes[2].error.message == "the server was down"


@pytest.mark.parametrize(
    "content",
    ["", '{"id": 1}\n', "not json",
     '{"id": "a", "output": 1}\n{"id": "a", "output": 2}\n'],
)  # fmt: skip
def test_bad_recorded_outputs_are_named(tmp_path, content, refuses):
    from karat.errors import DataError
    from karat.tasks.recorded import RecordedOutputs

    (tmp_path / "bad.jsonl").write_text(content)
    with refuses(DataError):
        RecordedOutputs(tmp_path / "bad.jsonl")


def test_a_task_with_units_gives_one_output_for_each(store):
    class Sessions(Task):
        name = "sessions"
        units_declared = True
        version = "1"

        def units(self, example):
            return [f"session/{i}" for i in range(example.input)]

        def call(self, example, context):
            return {unit: unit.upper() for unit in self.units(example) if not unit.endswith("3")}

    run = karat.run(Sessions(), examples(5), store=store)
    by_unit = [(output.example, output.unit, output.outcome.status) for output in run.outputs()]
    assert len(by_unit) == 0 + 1 + 2 + 3 + 4
    assert ("e4", "session/3", "failed") in by_unit
    assert run.counts.total == 10


def test_a_task_with_units_that_raises_fails_each_of_them_and_all_add_up(store):
    class Sessions(Task):
        name = "sessions"
        units_declared = True
        version = "1"
        broken = True

        def units(self, example):
            return ["a", "b", "c"]

        def call(self, example, context):
            if self.broken and example.input == 1:
                raise ValueError("down")
            return {"a": 1, "b": 2, "c": 3}

    task = Sessions()
    run = karat.run(task, examples(4), store=store)
    assert (run.counts.ok, run.counts.failed, run.counts.pending) == (9, 3, 0)
    task.broken = False
    run = karat.run(task, examples(4), store=store, retry_failed=True)
    assert (run.counts.ok, run.counts.failed, run.counts.pending) == (12, 0, 0)
    assert run.status == "success"


@pytest.mark.parametrize("options", [{"attempts": 3}, {"retries": 2}])
def test_every_call_gets_an_unmodified_example(store, options):
    data = karat.Dataset.from_examples([{"id": "chat", "input": ["hello"]}])
    seen = []

    def task(messages, example):
        seen.append((list(messages), list(example.input)))
        messages.append("and more")
        if len(seen) < 3:
            raise ValueError("not yet")
        return len(messages)

    karat.run(task, data, store=store, concurrency=1, **options)
    assert seen == [(["hello"], ["hello"])] * 3


# ------------------------------------------------------------------ what fails


def test_an_exception_of_a_task_is_the_failure_of_its_item(store):
    def task(number):
        if number % 3 == 0:
            raise ValueError(f"no answer to {number}")
        return number

    run = karat.run(task, examples(10), store=store)
    assert (run.counts.ok, run.counts.failed, run.status) == (6, 4, "partial")
    failure = next(run.outputs()).outcome.error
    assert (failure.type, failure.message) == ("ValueError", "no answer to 0")
    assert "test_run.py" in failure.where


class Panic(BaseException):
    """As extensions raise it that must not be caught by accident."""


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("it has no words")


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("error", [Panic("index out of bounds"), SystemExit(3), Unspeakable()])
def test_any_exception_of_a_task_fails_only_its_item(store, kind, error):
    def task(number):
        if number == 1:
            raise error
        return number

    async def task_async(number):
        return task(number)

    run = karat.run(task if kind == "sync" else task_async, examples(4), store=store)
    assert (run.counts.ok, run.counts.failed) == (3, 1)
    failure = next(o.outcome.error for o in run.outputs() if isinstance(o.outcome, Failed))
    assert failure.type == type(error).__name__
    assert failure.message


def test_an_empty_selection_is_no_data(store):
    run = karat.run(double, examples(3), store=store, offset=3)
    assert (run.status, run.counts.total) == ("no_data", 0)


def test_retries_call_again_at_once_and_are_recorded(store):
    calls: dict[int, int] = {}

    def flaky(number):
        calls[number] = calls.get(number, 0) + 1
        if calls[number] < 3:
            raise OSError("hiccup")
        return number

    run = karat.run(flaky, examples(2), store=store, retries=2)
    assert run.status == "success"
    assert next(run.outputs()).metadata == {"retried": ["OSError: hiccup", "OSError: hiccup"]}


def test_a_timeout_cancels_async_work(store):
    cancelled = []

    async def slow(number):
        if number == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(number)
                raise
        return number

    run = karat.run(slow, examples(3), store=store, timeout=0.05)
    assert [o.outcome.status for o in run.outputs()] == ["ok", "failed", "ok"]
    assert cancelled == [1]


def test_a_thread_that_cannot_be_stopped_is_marked_failed_abandoned_and_counted(store):
    release = threading.Event()

    def stuck(number):
        if number == 1:
            release.wait(60)
        return number

    run = karat.run(stuck, examples(4), store=store, timeout=0.1, concurrency=2)
    release.set()
    assert [o.outcome.status for o in run.outputs()] == ["ok", "failed", "ok", "ok"]
    assert run.header.metadata["abandoned_threads"] == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_abort_on_error_cancels_what_has_not_started(store, kind, refuses):
    started = []

    def task(number):
        started.append(number)
        if number == 3:
            raise ValueError("stop here")
        return number

    async def task_async(number):
        await asyncio.sleep(0.001)
        return task(number)

    chosen = task if kind == "sync" else task_async
    with refuses(Aborted):
        karat.run(chosen, examples(500), store=store, abort_on_error=True, concurrency=4)
    assert len(started) < 50
    run = store.runs.get("latest")
    assert run.header.finished is None
    assert run.counts.ok + run.counts.failed == len(started)
    assert run.counts.pending == 500 - len(started)


def test_async_code_that_raises_cancelled_itself_fails_its_item_only(store):
    async def odd(number):
        if number == 1:
            raise asyncio.CancelledError
        return number

    run = karat.run(odd, examples(3), store=store)
    assert [o.outcome.status for o in run.outputs()] == ["ok", "failed", "ok"]


def test_sync_tasks_run_in_threads_with_their_context(store):
    import contextvars

    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("caller's")
    main = threading.current_thread()
    seen = set()

    def task(number):
        seen.add(threading.current_thread() is main)
        return variable.get()

    run = karat.run(task, examples(5), store=store)
    assert values(run) == ["caller's"] * 5
    assert seen == {False}


def test_concurrency_is_a_bound_and_is_reached(store):
    running, most = 0, 0

    async def task(number):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return number

    karat.run(task, examples(60), store=store, concurrency=7)
    assert most == 7


def test_it_works_inside_a_running_event_loop(store):
    async def notebook_cell():
        return karat.run(double_async, examples(5), store=store)

    assert values(asyncio.run(notebook_cell())) == [0, 2, 4, 6, 8]


async def test_the_async_twin(store):
    assert values(await karat.run_async(double, examples(3), store=store)) == [0, 2, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"concurrency": 0}, {"attempts": 0}, {"limit": 0}, {"offset": -1}, {"retries": -1}),
        *({name: 1.5} for name in ("concurrency", "attempts", "limit", "offset", "retries")),
    ],
)
def test_wrong_numbers_are_refused(store, wrong, refuses):
    with refuses(RequestError) as caught:
        karat.run(double, examples(1), store=store, **wrong)
    assert next(iter(wrong)) in str(caught.value)


# ------------------------------------------------------------------ what is computed again


class Counting:
    """A task that counts its calls; its class is its code, `version` its declared one."""

    def __init__(self):
        self.version = "1"
        self.calls = []
        self.broken = set()

    def __call__(self, number):
        self.calls.append(number)
        if number in self.broken:
            raise ValueError("broken")
        return number


def counting_task(task):
    return (
        FunctionTask(lambda number: task(number), name="counting")
        if task.version is None
        else _Declared(task)
    )


class _Declared(FunctionTask):
    def __init__(self, task):
        super().__init__(lambda number: task(number), name="counting")
        self._version = task.version

    def code(self):
        return f"version {self._version}"


def test_a_finished_run_is_returned_with_a_notice(store):
    task = Counting()
    first = karat.run(counting_task(task), examples(5), store=store)
    again = karat.run(counting_task(task), examples(5), store=store)
    assert again.id == first.id
    assert "already finished" in again.notice
    assert len(task.calls) == 5


def test_new_makes_a_replicate_whose_calls_are_made_again(store):
    task = Counting()
    first = karat.run(counting_task(task), examples(5), store=store)
    second = karat.run(counting_task(task), examples(5), store=store, new=True)
    assert second.id != first.id
    assert (first.header.replicate, second.header.replicate) == (1, 2)
    assert len(task.calls) == 10


@pytest.mark.parametrize("change", [{"limit": 3}, {"attempts": 2}, {"offset": 1}])
def test_another_selection_is_another_run(store, change):
    task = Counting()
    first = karat.run(counting_task(task), examples(5), store=store)
    assert karat.run(counting_task(task), examples(5), store=store, **change).id != first.id


def test_another_dataset_is_another_run(store):
    task = Counting()
    first = karat.run(counting_task(task), examples(5), store=store)
    assert karat.run(counting_task(task), examples(6), store=store).id != first.id


TASKS = {
    "computes": ("", "len(str(number))", False),
    "uses the standard library": ("import json, math", "json.dumps(math.sqrt(2))", False),
    "asks karat's default model": ("from karat import models", "models.get and number", True),
    "asks through the package": ("import karat", "karat.models and number", True),
    "reads the environment": ("import os", "os.environ.get('KARAT_MODEL') or number", True),
    "may use a client": ("import aiohttp", "aiohttp and number", True),
    "starts a program": ("import subprocess", "subprocess and number", True),
    "imports in the function": ("", "__import__('os') and number", True),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("variable", ["KARAT_MODEL", "OPENAI_MODEL", "OPENAI_BASE_URL"])
def test_a_model_variable_belongs_to_a_run_only_if_its_code_may_ask_a_model(
    store, tmp_path, monkeypatch, name, variable
):
    imports, body, asks = TASKS[name]
    file = tmp_path / f"task_{abs(hash((name, variable)))}.py"
    file.write_text(f"{imports}\n\n\ndef task(number):\n    return str({body})\n")
    first = karat.run(f"{file}:task", examples(2), store=store)
    monkeypatch.setenv(variable, "http://localhost:9/v1" if "URL" in variable else "openai/other")
    assert (karat.run(f"{file}:task", examples(2), store=store).id != first.id) == asks


def test_a_project_module_that_calls_a_model_counts(store, tmp_path, monkeypatch):
    (tmp_path / "asking_client.py").write_text(
        "import os\n\n\ndef ask(text):\n    return os.environ.get('M')\n"
    )
    (tmp_path / "asking_task.py").write_text(
        "from asking_client import ask\n\n\ndef task(number):\n    return ask(number) or number\n"
    )
    first = karat.run(f"{tmp_path}/asking_task.py:task", examples(2), store=store)
    monkeypatch.setenv("KARAT_MODEL", "openai/other")
    assert karat.run(f"{tmp_path}/asking_task.py:task", examples(2), store=store).id != first.id


def stop_after(task, count):
    """Makes a task stop the stage, as a lost store would, after so many calls."""

    def limited(number):
        if len(task.calls) >= count:
            raise StoreError("the disk is gone")
        return task(number)

    declared = _Declared(task)
    declared.function = limited
    return declared


def test_an_unfinished_run_is_continued_with_exactly_what_is_missing(store):
    task = Counting()
    with pytest.raises(StoreError):
        karat.run(stop_after(task, 4), examples(10), store=store, concurrency=1)
    unfinished = store.runs.get("latest")
    assert (unfinished.status, unfinished.header.error) == ("fatal_error", "the disk is gone")
    run = karat.run(counting_task(task), examples(10), store=store)
    assert run.id == unfinished.id
    assert "continues" in run.notice
    assert sorted(task.calls) == list(range(10))
    assert values(run) == list(range(10))


def test_changed_code_is_refused_accepted_or_made_new(store):
    task = Counting()
    with pytest.raises(StoreError):
        karat.run(stop_after(task, 4), examples(10), store=store, concurrency=1)
    task.version = "2"
    with pytest.raises(CodeChanged, match="accept_code_change=True"):
        karat.run(counting_task(task), examples(10), store=store)
    run = karat.run(counting_task(task), examples(10), store=store, accept_code_change=True)
    codes = [output.code for output in run.outputs()]
    assert codes[:4] == [None] * 4
    assert codes[4:] == ["version 2"] * 6
    calls = len(task.calls)
    again = karat.run(counting_task(task), examples(10), store=store)
    assert (again.id, len(task.calls)) == (run.id, calls), "the same command returns what it finished"


def test_accepted_code_continues_after_another_interruption(store):
    task = Counting()
    with pytest.raises(StoreError):
        karat.run(stop_after(task, 4), examples(10), store=store, concurrency=1)
    task.version = "2"
    with pytest.raises(StoreError):
        karat.run(stop_after(task, 2), examples(10), store=store, concurrency=1, accept_code_change=True)
    run = karat.run(counting_task(task), examples(10), store=store)
    assert "continues" in run.notice
    assert run.header.accepted_code == ["version 2"]
    assert values(run) == list(range(10))


@pytest.mark.parametrize("options", [{"attempts": 10**23}, {"retries": 10**6}, {"concurrency": 10**9}])
def test_counts_that_are_a_slip_are_refused(store, options, refuses):
    with refuses(RequestError):
        karat.run(Counting(), examples(2), store=store, **options)


def test_retry_failed_adds_tries_and_keeps_their_history(store):
    task = Counting()
    task.broken = {1, 3}
    first = karat.run(counting_task(task), examples(5), store=store)
    assert (first.status, first.counts.failed) == ("partial", 2)
    task.broken = {3}
    again = karat.run(counting_task(task), examples(5), store=store, retry_failed=True)
    assert again.id == first.id
    assert sorted(task.calls[5:]) == [1, 3]
    assert (again.counts.ok, again.counts.failed, again.counts.total) == (4, 1, 5)
    history = [(o.example, o.try_number, o.outcome.status) for o in again.outputs(history=True)]
    assert ("e1", 1, "failed") in history
    assert ("e1", 2, "ok") in history
    assert [o.try_number for o in again.outputs()] == [1, 2, 1, 2, 1]


def test_source_that_cannot_be_known_is_never_continued(store):
    task = eval("lambda number: number")
    first = karat.run(task, examples(3), store=store)
    second = karat.run(task, examples(3), store=store)
    assert second.id != first.id
    assert "version=" in second.notice


def test_a_run_held_by_a_live_holder_is_refused_or_waited_for(store, refuses):
    task = Counting()
    with pytest.raises(StoreError):
        karat.run(stop_after(task, 1), examples(3), store=store, concurrency=1)
    run = store.runs.get("latest")
    from karat.store.lease import Held

    held = Held.take(store.backend, run.number)
    with refuses(StoreBusy):
        karat.run(counting_task(task), examples(3), store=store)
    threading.Timer(0.2, held.release).start()
    assert karat.run(counting_task(task), examples(3), store=store, wait=True).status == "success"


@pytest.mark.parametrize("meets_an_error", [False, True])
def test_a_stage_that_lost_its_lease_does_not_overwrite_the_status_of_the_new_holder(store, meets_an_error):
    """As after a machine slept: another process took the run over and finished it in the meantime."""

    def task(number):
        if number == 2:
            row = store.runs.get("latest")
            mine = store.backend.lease(row.number)
            theirs = mine._replace(owner="another", host="elsewhere", process=1)
            assert store.backend.take_lease(row.number, theirs, mine.owner)
            finished = msgspec.structs.replace(row.header, status="success", finished=1.0)
            store.runs.save(row.number, finished)
            if meets_an_error:
                raise StoreError("the disk is gone")
        return number

    with pytest.raises(StoreError if meets_an_error else StoreBusy):
        karat.run(task, examples(3), store=store, concurrency=1)
    assert store.runs.get("latest").status == "success"


def test_what_is_recorded_about_a_run(store):
    run = karat.run(
        double, examples(2), store=store, labels=["nightly"], metadata={"ticket": 7}, description="a try"
    )
    told = store.runs.get(run.id).to_dict()
    assert told["labels"] == ["nightly"]
    assert told["metadata"] == {"ticket": 7}
    assert told["description"] == "a try"
    assert set(told["environment"]) >= {"karat", "python", "platform"}
    assert told["counts"]["total"] == 2
    assert run.dataset.id == told["dataset"]


def test_code_that_changed_after_a_finished_run_asks_models_nothing_twice(store):
    task = Counting()
    run = karat.run(counting_task(task), examples(3), store=store)
    task.version = "2"
    other = karat.run(counting_task(task), examples(3), store=store)
    assert other.id != run.id
    assert (run.header.replicate, other.header.replicate) == (1, 1), "a replicate is a series of answers"
    assert karat.run(counting_task(task), examples(3), store=store).id == other.id
    assert karat.run(counting_task(task), examples(3), store=store, new=True).header.replicate == 2


def test_progress_of_a_retry_ends_at_the_total(store):
    task, seen = Counting(), []
    task.broken = {2, 3}
    karat.run(counting_task(task), examples(5), store=store)
    task.broken = set()
    listen = lambda progress: seen.append((progress.done, progress.total))  # noqa: E731 - one line is all it is
    karat.run(counting_task(task), examples(5), store=store, retry_failed=True, progress=listen)
    assert seen[-1] == (5, 5)


def test_progress_is_reported(store):
    seen = []
    karat.run(double, examples(50), store=store, progress=lambda p: seen.append((p.done, p.total)))
    assert seen[-1] == (50, 50)
    assert seen == sorted(seen)


def test_times_and_outputs_are_in_dataset_order(store):
    async def task(number):
        await asyncio.sleep(0.02 if number < 5 else 0)
        return number

    run = karat.run(task, examples(20), store=store, concurrency=20)
    assert values(run) == list(range(20))
    assert next(run.outputs()).seconds >= 0.01


def test_memory_does_not_grow_with_the_dataset(store):
    import tracemalloc

    def peak(count):
        data = store.datasets.put(karat.Dataset.from_examples({"input": f"{i}" * 20} for i in range(count)))
        tracemalloc.start()
        karat.run(double_async, data, store=store)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(500)
    assert peak(8000) < 2 * peak(2000)


async def test_code_that_ignores_cancellation_does_not_block_the_end_of_a_stage(store, monkeypatch):
    from karat.execution import engines as local

    monkeypatch.setattr(local, "PATIENCE_SECONDS", 0)
    let_go = asyncio.Event()
    calls = []

    async def stubborn(number):
        calls.append(number)
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return number

    running = asyncio.ensure_future(karat.run_async(stubborn, examples(9), store=store, concurrency=2))
    while len(calls) < 2:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    run = store.runs.get("latest")
    assert (run.status, store.backend.lease(run.number)) == ("interrupted", None)
    let_go.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert calls == [0, 1], "nothing more is begun"


def test_an_interrupted_notebook_cell_comes_back_when_the_run_is_closed(store):
    async def slow(number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0.1)  # cleans up
        return number

    async def cell():
        karat.run(slow, examples(9), store=store, concurrency=1)

    notebook = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        notebook.run_until_complete(cell())
    notebook.close()
    run = store.runs.get("latest")
    assert (run.status, run.counts.ok, run.counts.pending) == ("interrupted", 3, 6)
    assert store.backend.lease(run.number) is None


def test_a_handle_read_while_somebody_worked_says_what_became_of_it(store):
    early = []

    def look(number):
        early.append(store.runs.get("latest"))
        assert early[-1].status == "running"
        return number

    karat.run(look, examples(1), store=store)
    assert (early[0].header.status, early[0].status) == ("running", "success")


def test_interrupting_keeps_finished_items(store):
    async def interrupted():
        async def slow(number):
            await asyncio.sleep(0 if number < 30 else 60)
            return number

        stage = asyncio.create_task(
            karat.run_async(FunctionTask(slow, name="slow"), examples(100), store=store)
        )
        while not (store.runs.list() and store.backend.marks(store.runs.list()[0].number, 0, 100)[29:]):
            await asyncio.sleep(0.005)
        stage.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stage

    start = time.monotonic()
    asyncio.run(interrupted())
    assert time.monotonic() - start < 50
    run = store.runs.get("latest")
    assert (run.counts.ok, run.counts.pending, run.status) == (30, 70, "interrupted")
    assert store.backend.lease(run.number) is None


def test_what_is_said_about_an_existing_run_is_added_or_refused(store, says):
    first = karat.run(double, examples(3), store=store, labels=["a"], metadata={"team": 1})
    again = karat.run(
        double, examples(3), store=store, labels=["b", "a"], metadata={"ticket": 7}, description="why"
    )
    assert again.id == first.id
    stored = store.runs.get(first.id).header
    assert (stored.labels, stored.metadata, stored.description) == (
        ["a", "b"],
        {"team": 1, "ticket": 7},
        "why",
    )
    assert stored.finished == first.header.finished
    refused = karat.run(double, examples(3), store=store, metadata={"team": 2}, description="other")
    says(refused.notice)
    assert store.runs.get(first.id).header == stored
    evaluation = karat.evaluate(first, ["exact_match"], labels=["x"])
    assert karat.evaluate(first, ["exact_match"], labels=["y"]).header.labels == ["x", "y"]
    assert store.evaluations.get(evaluation.id).header.labels == ["x", "y"]
    made = karat.aggregate(evaluation, ["mean"], labels=["x"])
    assert karat.aggregate(evaluation, ["mean"], labels=["y"], description="d").id == made.id
    found = store.aggregations.get(made.id).header
    assert (found.labels, found.description) == (["x", "y"], "d")


def test_labels_and_metadata_for_an_unfinished_run_are_added_on_resume(store):
    broken = [True]

    def task(number):
        if number == 2 and broken:
            raise StoreError("gone")
        return number

    with pytest.raises(StoreError):
        karat.run(task, examples(4), store=store, labels=["a"], concurrency=1)
    broken.clear()
    run = karat.run(
        task, examples(4), store=store, labels=["b"], metadata={"ticket": 7}, accept_code_change=True
    )
    assert store.runs.get(run.id).header.labels == ["a", "b"]
    assert store.runs.get(run.id).header.metadata == {"ticket": 7}
    assert len(store.runs.list()) == 1


class _QuotingError(Exception):
    def __str__(self):
        return f"wrong key {os.environ['SOME_API_KEY']!r}"


@pytest.mark.parametrize("padding", [0, 3990])
def test_a_key_that_code_of_a_task_quotes_is_not_stored(monkeypatch, padding):
    """The environment has it, and a message of an exception is stored, shown and exported."""
    key = "ca'nary-Zq8Lm2Xv9Rt4"
    monkeypatch.setenv("SOME_API_KEY", key)
    monkeypatch.setenv("SOME_TOKEN_COUNT", "1234567890")

    def task(number):
        if number == 0:
            raise _QuotingError
        raise ValueError(f"{'x' * padding}{key} of 1234567890")

    run = karat.run(task, [{"id": "a", "input": 0}, {"id": "b", "input": 1}], store="memory://")
    messages = [output.outcome.error.message for output in run.outputs()]
    assert not any("nary" in each for each in messages), messages
    assert "[secret]" in messages[0]
    assert messages[1].startswith("x" * padding)
    if not padding:
        assert messages[1] == "[secret] of 1234567890", "other variables stay"


@pytest.mark.parametrize("value", [object(), {"a": [object()]}])
def test_an_output_that_cannot_be_stored_is_named_by_its_place_in_the_output(value, says):
    run = karat.run(lambda text: value, [{"id": "a", "input": "x"}], store="memory://", progress=False)
    [output] = run.outputs()
    says(output.outcome.error.message)


def test_a_dataset_is_no_run(refuses):
    with refuses(RequestError):
        karat.evaluate(
            karat.Dataset.from_examples([("a", "b")], name="few"), ["exact_match"], store="memory://"
        )


def test_a_run_that_was_not_awaited_is_no_run(refuses):
    with refuses(RequestError):
        karat.evaluate(karat.run_async(double, examples(1), store="memory://"), ["exact_match"])


def test_a_larger_selection_pays_only_for_new_examples(store, tmp_path, monkeypatch):
    """Another selection is another run, whose replies come from the cache."""
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache"))
    with FakeProvider() as server:
        model = server.spec()

        def ask(number):
            return karat.models.get(model).generate_sync(f"question {number}").text

        ids = []
        for options, paid in (
            ({"limit": 4}, 4),
            ({}, 12),
            ({"offset": 2, "limit": 5}, 12),
            ({"limit": 4}, 12),
        ):
            run = karat.run(ask, examples(12), store=store, **options)
            assert (run.status, server.count) == ("success", paid)
            ids.append(run.id)
        assert len(set(ids)) == 3
        assert ids[0] == ids[-1]


def test_a_larger_selection_judges_only_what_is_new(store, tmp_path, monkeypatch):
    """Results are copied by content: the ten examples of a trial are not judged again with the others."""
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache"))
    judged: list[object] = []

    def own(outputs, expected):
        judged.append(outputs)
        return True

    own.version = "1"  # what it appends to is no part of it

    def answer(body):
        asked = body["messages"][-1]["content"]
        return '{"analysis": "", "pass": true}' if "response_format" in body else f"about {asked[:11]}"

    with FakeProvider(answer) as server:
        judge = {"name": "llm_judge", "params": {"judge": server.spec(), "criterion": "short"}}
        task = karat.tasks.PromptTask("question {input}", model=server.spec())
        sums = []
        for options in ({"limit": 4}, {}, {"attempts": 2}):
            run = karat.run(task, examples(12), store=store, **options)
            evaluation = karat.evaluate(run, [judge, own])
            assert evaluation.status == "success"
            sums.append((server.count, len(judged), evaluation.counts.reused))
    # Asked and judged 4 times; then 8 more times; then the 12 second attempts, whose outputs are the same as the first.
    assert sums == [(8, 4, 0), (24, 12, 8), (36, 12, 48)]
