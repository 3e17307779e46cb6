"""What memory systems and models may return, and what becomes of it: errors with a place, never scores."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

import karat
from karat.errors import DataError, RequestError
from karat.memory import MemorySystem, Retrieval, RetrievedMemory, StoredMemory, Turn
from karat.testing import FakeProvider
from tests.memory.parts import Notes, sample
from tests.memory.test_files import lines, run

SNAPSHOTS: dict[str, Any] = {
    "none": None,
    "text": "memories",
    "dicts": [{"memory_id": "1", "text": "a"}],
    "twice": [StoredMemory(memory_id="1", text="a"), StoredMemory(memory_id="1", text="b")],
    "number": [StoredMemory(memory_id=1, text="a")],  # type: ignore[arg-type]
    "empty id": [StoredMemory(memory_id="", text="a")],
    "no text": [StoredMemory(memory_id="1", text=None)],  # type: ignore[arg-type]
    "bytes": [StoredMemory(memory_id="1", text=b"a")],  # type: ignore[arg-type]
    "metadata": [StoredMemory(memory_id="1", text="a", metadata=[1])],  # type: ignore[arg-type]
    "object": [StoredMemory(memory_id="1", text="a", metadata={"x": object()})],
    "turns": [StoredMemory(memory_id="1", text="a", turn_ids="T1")],  # type: ignore[arg-type]
    "surrogate": [StoredMemory(memory_id="1", text="\ud800")],
    "status": [StoredMemory(memory_id="1", text="a", status="stale")],
}
RETRIEVALS: dict[str, Any] = {
    "none": None,
    "list": [RetrievedMemory(memory_id="1", text="a")],
    "texts": Retrieval(items=("a",)),  # type: ignore[arg-type]
    "no id": Retrieval(items=(RetrievedMemory(memory_id=None, text="a"),)),  # type: ignore[arg-type]
    "nan": Retrieval(items=(RetrievedMemory(memory_id="1", text="a", score=math.nan),)),
    "infinite": Retrieval(items=(RetrievedMemory(memory_id="1", text="a", score=math.inf),)),
    "boolean": Retrieval(items=(RetrievedMemory(memory_id="1", text="a", score=True),)),
    "twice": Retrieval(items=(RetrievedMemory(memory_id="1", text="a"),) * 2),
    "raises": ZeroDivisionError("no"),
}


def returning(snapshot: Any = None, retrieval: Any = None) -> type[MemorySystem]:
    class Hostile(Notes):
        """Returns what it was made with."""

        name = "hostile"
        saves = False

        def snapshot(self) -> Any:
            return super().snapshot() if snapshot is None else snapshot[0]

        def retrieve(self, query: str, top_k: int, now: str | None) -> Any:
            if retrieval is None:
                return super().retrieve(query, top_k, now)
            if isinstance(retrieval[0], Exception):
                raise retrieval[0]
            return retrieval[0]

    return Hostile


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_that_breaks_the_contract_fails_its_sample(tmp_path, name):
    made = run(tmp_path, returning(snapshot=[SNAPSHOTS[name]]), [sample()])
    assert made.metrics["missing"] == {"sessions": 3, "questions": 3, "of_sessions": 3, "of_questions": 3}
    assert made.exit_code == 1
    assert (tmp_path / "session_records.jsonl").read_text() == ""
    assert made.metrics["memory_recall"]["applicable"] is False


@pytest.mark.parametrize("name", RETRIEVALS)
def test_a_retrieval_that_breaks_the_contract_fails_its_question_alone(tmp_path, name):
    made = run(tmp_path, returning(retrieval=[RETRIEVALS[name]]), [sample()])
    assert made.metrics["missing"] == {"sessions": 0, "questions": 3, "of_sessions": 3, "of_questions": 3}
    assert made.metrics["memory_recall"]["num_sessions_with_recall"] == 2


def test_a_huge_snapshot_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("karat.memory._pipeline.LARGEST_SNAPSHOT", 10)
    made = run(tmp_path, Notes, [sample()])
    assert made.metrics["missing"]["sessions"] == 3


def test_a_huge_retrieval_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("karat.memory._pipeline.LARGEST_RETRIEVAL", 10)
    made = run(tmp_path, Notes, [sample()])
    assert made.metrics["missing"]["questions"] == 3


def raising(*args: Any) -> Any:
    raise KeyError("gone")


def exiting(*args: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("capabilities", lambda self: None),
        ("capabilities", lambda self: {"save": True}),
        ("capabilities", raising),
        ("configuration", raising),
        ("configuration", lambda self: object()),
        ("__init__", raising),
        ("__init__", exiting),
        ("capabilities", exiting),
        ("close", raising),
        ("close", exiting),
        ("name", None),
        ("name", ""),
    ],
)
def test_a_system_without_a_description_of_itself_is_refused(tmp_path, member, value):
    with pytest.raises(RequestError):
        run(tmp_path, type("Wrong", (Notes,), {"name": "wrong", member: value}), [sample()])
    assert not (tmp_path / ".karat").exists()


ENDING: dict[str, BaseException] = {
    "exit": SystemExit(3),
    "generator": GeneratorExit(),
    "cancelled": asyncio.CancelledError(),
    "iteration": StopIteration(),
    "own": type("Own", (BaseException,), {})("gone"),
}
"""What ends a program, a task or a generator in which it is raised."""


def ending(method: str, error: BaseException) -> type[MemorySystem]:
    def raise_it(self: Any, *arguments: Any) -> Any:
        if self.turns or method not in ("close", "save"):
            raise error

    return type("Ending", (Notes,), {"name": "ending", method: raise_it})


@pytest.mark.parametrize("method", ["reset", "ingest_turn", "end_session", "snapshot", "save", "usage"])
@pytest.mark.parametrize("error", ENDING)
def test_a_system_exit_of_a_system_fails_only_its_sample(tmp_path, method, error):
    made = run(tmp_path, ending(method, ENDING[error]), [sample("ana"), sample("bea", "Rome")])
    assert made.metrics["missing"]["sessions"] == 6
    assert made.exit_code == 1
    assert "ana session/S00: SystemFault: " in made.problems[0]
    assert f" {type(ENDING[error]).__name__}" in made.problems[0]


@pytest.mark.parametrize("error", ENDING)
def test_a_system_exit_of_a_retrieval_fails_only_its_question(tmp_path, error):
    made = run(tmp_path, ending("retrieve", ENDING[error]), [sample()])
    missing = made.metrics["missing"]
    assert (missing["sessions"], missing["questions"]) == (0, 3)


@pytest.mark.parametrize("error", ENDING)
def test_an_exception_in_close_ends_nothing(tmp_path, error):
    made = run(tmp_path, ending("close", ENDING[error]), [sample()])
    assert made.exit_code == 0
    assert any("closed after 1 sample" in notice for notice in made.notices)


def test_a_system_that_cannot_be_closed_after_its_sample_keeps_its_answers(tmp_path):
    class Open(Notes):
        """Cannot be closed once it holds something."""

        name = "open"

        def close(self) -> None:
            if getattr(self, "turns", None):
                raise OSError("still in use")

    made = run(tmp_path, Open, [sample()])
    assert made.exit_code == 0
    assert any("closed after 1 sample" in notice for notice in made.notices)


def test_a_huge_trace_is_left_out(tmp_path):
    found = Retrieval(items=(), trace={"log": "x" * 200_000})
    run(tmp_path, returning(retrieval=[found]), [sample()])
    trace = lines(tmp_path / "pipeline_qa.jsonl")[0]["retrieval"]["raw_trace"]
    assert set(trace) == {"omitted", "baseline"}


def test_a_system_that_fails_in_the_middle_keeps_what_it_did(tmp_path):
    class Breaks(Notes):
        """Fails in the second session."""

        name = "breaks"

        def ingest_turn(self, turn: Any) -> None:
            if turn.session_id == "S01":
                raise OSError("disk full")
            super().ingest_turn(turn)

    made = run(tmp_path, Breaks, [sample()])
    assert made.metrics["missing"] == {"sessions": 2, "questions": 2, "of_sessions": 3, "of_questions": 3}
    assert [each["session_id"] for each in lines(tmp_path / "session_records.jsonl")] == ["S00"]
    assert made.exit_code == 1
    assert "OSError: disk full" in made.problems[0]


@pytest.mark.parametrize(
    "reply",
    ["no json", '{"answer": 3, "cited": []}', '{"answer": "x"}', '{"answer": "x", "cited": "1"}', "[]", ""],
)
def test_a_reply_of_the_answering_model_that_cannot_be_read_fails_the_question(tmp_path, monkeypatch, reply):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    with FakeProvider(reply) as server:
        made = run(tmp_path / "out", Notes, [sample()], model=server.spec())
    assert made.metrics["missing"]["questions"] == 3
    assert made.metrics["question_answering"]["num_valid"] == 0


def test_samples_that_cannot_be_keyed_are_refused(tmp_path):
    good = sample()
    late = msgspec.structs.replace(good.questions[0], after_session="S99")
    twice = msgspec.structs.replace(good, sessions=(good.sessions[0], good.sessions[0]))
    for bad in (
        msgspec.structs.replace(good, questions=(late,)),
        twice,
        msgspec.structs.replace(good, sessions=()),
    ):
        with pytest.raises(DataError):
            run(tmp_path / "out", Notes, [bad])
    with pytest.raises(RequestError):
        run(tmp_path / "out", Notes, [good, good])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 0},
        {"context_tokens": 0},
        {"max_samples": 0},
        {"concurrency": 0},
        {"max_judge_errors": 2},
        {"snapshots": "some"},
    ],
)
def test_settings_out_of_range_are_refused(tmp_path, options):
    with pytest.raises(RequestError):
        run(tmp_path / "out", **options)


def test_an_object_that_is_not_a_memory_system_is_refused(tmp_path):
    for wrong in ("NoSuchMemory", Notes(), 3, lambda: object()):
        with pytest.raises(RequestError):
            run(tmp_path / "out", wrong)


def test_an_output_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(RequestError, match="file"):
            run(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 99}', "[" * 10_000])
def test_a_damaged_manifest_is_named(tmp_path, content):
    run(tmp_path / "out")
    (tmp_path / "out" / ".karat" / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json"):
        run(tmp_path / "out")


@pytest.mark.parametrize(
    "part",
    [
        {"baseline": 3},
        {"run": ["run-1"]},
        {"dataset": "demo"},
        {"dataset": {"notes": 5}},
        {"models": []},
        {"models": {"answer": "extractive"}},
        {"pipeline": [1]},
        {"missing": {"sessions": 0}},
        {"efficiency": {"write": {}}},
    ],
)
def test_a_manifest_with_a_damaged_part_is_named(tmp_path, part):
    run(tmp_path / "out", samples=[sample()])
    path = tmp_path / "out" / ".karat" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **part}))
    with pytest.raises(DataError, match=rf"manifest\.json .*{next(iter(part))}"):
        karat.memory.evaluate(
            None, output_dir=tmp_path / "out", eval_only=True, judge="deterministic", store="memory://"
        )


def test_snapshots_at_checkpoints_are_written_where_they_are_needed(tmp_path):
    whole = run(tmp_path / "all", samples=[sample()])
    made = run(tmp_path / "some", samples=[sample()], snapshots="checkpoints")
    records = lines(tmp_path / "some" / "session_records.jsonl")
    assert [each.get("snapshot_omitted", False) for each in records] == [False, False, False]
    quiet = msgspec.structs.replace(sample(), questions=sample().questions[1:])
    run(tmp_path / "quiet", samples=[quiet], snapshots="checkpoints")
    records = lines(tmp_path / "quiet" / "session_records.jsonl")
    assert [each.get("snapshot_omitted", False) for each in records] == [True, False, False]
    assert records[0]["memory_snapshot"] == []
    assert records[0]["memory_delta"] != []
    assert made.metrics["update_handling"] == whole.metrics["update_handling"]


def test_an_omitted_snapshot_is_never_judged_as_empty(tmp_path):
    folder = tmp_path / "out"
    run(folder, samples=[sample()])
    path = folder / "pipeline_sessions.jsonl"
    records = [{**each, "memory_snapshot": [], "snapshot_omitted": True} for each in lines(path)]
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    (folder / ".karat" / "manifest.json").unlink()
    made = karat.memory.evaluate(
        None, output_dir=folder, eval_only=True, judge="deterministic", store="memory://", max_judge_errors=1
    )
    assert made.metrics["update_handling"]["applicable"] is False
    assert made.metrics["interference_rejection"]["num_judge_errors"] == 1


def test_deltas_have_additions_updates_and_archives(tmp_path):
    class Edits(MemorySystem):
        """Keeps one note that it rewrites, replaces another, and drops a third."""

        name = "edits"

        def reset(self, directory: Path) -> None:
            self.round = -1

        def ingest_turn(self, turn: Any) -> None:
            """Nothing depends on turns."""

        def end_session(self, session_id: str) -> None:
            self.round += 1

        def snapshot(self) -> list[StoredMemory]:
            first = [StoredMemory(memory_id=n, text=n) for n in ("kept", "rewritten", "replaced", "dropped")]
            if self.round == 0:
                return first
            new = StoredMemory(memory_id="successor", text="successor", replaces=("replaced",))
            old = StoredMemory(memory_id="replaced", text="replaced", status="archived")
            return [first[0], StoredMemory(memory_id="rewritten", text="other words"), old, new]

        def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
            return Retrieval(items=())

    run(tmp_path, Edits, [sample()])
    first, second, third = lines(tmp_path / "pipeline_sessions.jsonl")
    assert [each["op"] for each in first["memory_delta"]] == ["add"] * 4
    found = {(each["op"], each["text"]): each["linked_previous"] for each in second["memory_delta"]}
    assert found == {
        ("update", "other words"): ["rewritten"],
        ("archive", "replaced"): [],
        ("update", "successor"): ["replaced"],
        ("archive", "dropped"): [],
    }
    assert third["memory_delta"] == []
    stored = {each["memory_id"]: each["session_id"] for each in third["memory_snapshot"]}
    assert stored == {"kept": "S00", "rewritten": "S01", "replaced": "S00", "successor": "S01"}


def test_an_update_names_everything_that_it_replaces_once(tmp_path):
    class Merges(Notes):
        """Unites its two first notes under the id of the first."""

        name = "merges"
        saves = False

        def snapshot(self) -> list[StoredMemory]:
            first, second, *_ = stored = super().snapshot()
            if len(stored) == 2:
                return stored
            return [
                msgspec.structs.replace(first, text="both", replaces=(second.memory_id, "T2", "T1", "gone"))
            ]

    run(tmp_path, Merges, [sample()])
    changes = lines(tmp_path / "pipeline_sessions.jsonl")[1]["memory_delta"]
    assert [(each["op"], each["linked_previous"]) for each in changes] == [
        ("update", ["T1", "T2"]),
        ("archive", []),
    ]
    assert changes[0]["metadata"]["previous_texts"] == [
        "user: My dog is called Bruno.",
        "user: I live in Lyon.",
    ]


class WithoutRetrieve(MemorySystem):
    """Leaves a method out."""

    name = "without"

    def reset(self, directory: Path) -> None: ...

    def ingest_turn(self, turn: Turn) -> None: ...

    def snapshot(self) -> list[StoredMemory]:
        return []


class OtherArguments(Notes):
    """Defines a method with arguments of its own."""

    name = "other"

    def retrieve(self, query: str) -> Retrieval:  # type: ignore[override]  # the mistake under test
        return Retrieval(items=())


@pytest.mark.parametrize("system", [WithoutRetrieve, OtherArguments])
def test_a_method_that_is_missing_or_takes_other_arguments_is_refused_before_the_first_session(
    tmp_path, system
):
    with pytest.raises(RequestError, match=rf"{system.__name__}.*retrieve"):
        run(tmp_path, system)
    assert not (tmp_path / "pipeline_sessions.jsonl").exists()


async def forever(*arguments: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("method", ["reset", "ingest_turn", "end_session", "snapshot", "retrieve"])
def test_a_coroutine_function_is_refused_before_the_first_session(tmp_path, method, refuses):
    with refuses(RequestError) as caught:
        run(tmp_path, type("Waiting", (Notes,), {"name": "waiting", method: forever}))
    assert f"Waiting.{method} " in str(caught.value)
    assert not (tmp_path / "pipeline_sessions.jsonl").exists()


@pytest.mark.parametrize("method", ["reset", "ingest_turn", "end_session", "save", "snapshot", "retrieve"])
@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_is_never_awaited_is_a_fault_of_the_system(tmp_path, method):
    members = {"name": "waiting", method: lambda self, *arguments: forever()}
    made = run(tmp_path, type("Waiting", (Notes,), members), [sample()])
    failed = "questions" if method == "retrieve" else "sessions"
    assert made.metrics["missing"][failed] == 3
    assert "returned" in made.problems[0]
    assert "coroutine" in made.problems[0]


class NewIds(Notes):
    """Numbers its memories anew with each snapshot."""

    name = "new ids"
    saves = False
    calls = 0

    def snapshot(self) -> list[StoredMemory]:
        NewIds.calls += 1
        return [
            StoredMemory(memory_id=f"{NewIds.calls}.{n}", text=text) for n, (_, text) in enumerate(self.turns)
        ]


def test_ids_that_change_with_each_snapshot_are_a_fault_of_the_system(tmp_path):
    made = run(tmp_path, NewIds)
    assert made.metrics["missing"]["sessions"] > 0
    assert made.exit_code == 1
    assert "SystemFault" in made.problems[0]
    assert "new ids" in made.problems[0]


def test_the_first_failure_is_named_with_its_place(tmp_path):
    class Raises(Notes):
        name = "raises"

        def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
            raise ValueError("no space left")

    made = run(tmp_path, Raises)
    assert "ana question/0: ValueError: no space left" in made.problems[0]
    assert made.to_dict()["problems"] == made.problems


def test_the_first_failure_is_the_first_in_the_order_of_the_sample(tmp_path):
    class Raises(Notes):
        name = "raises"

        def ingest_turn(self, turn: Turn) -> None:
            raise ValueError

    made = run(tmp_path, Raises)
    assert "ana session/S00: ValueError" in made.problems[0]
