"""Stage 1: a memory system is driven through the sessions and questions of a sample, one unit after another.

A unit is the line that the seed's pipeline files have for a session or a question. Each is committed before the next
begins. A system that can save is saved with each session, so a sample continues where it was interrupted. Questions
are answered from retrieved memories by one prompt, one tokenizer and one budget for every system.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from karat import models
from karat.errors import KaratError, RequestError, Stopped
from karat.memory._system import (
    STATUSES,
    Capabilities,
    ControlSystem,
    MemoryPoint,
    MemorySystem,
    Question,
    Retrieval,
    RetrievedMemory,
    Sample,
    Session,
    StoredMemory,
    abbreviation,
    as_sample,
    count_tokens,
    cumulative_points,
    cut_tokens,
    distance,
    question_unit,
    session_unit,
    summary_of_unit,
    units_of,
)
from karat.models import record_tool_call
from karat.records import Example, Output
from karat.registry import check_parameters, parameters_of
from karat.serialization import encode, prepared, to_json_value
from karat.tasks import Context, Task, source_file, task_code

MOST_MEMORIES = 200_000
"""Memories in one snapshot; more is taken for a fault of the system."""
LARGEST_SNAPSHOT = 256 * 1024 * 1024
"""Characters of all texts of a snapshot."""
LARGEST_RETRIEVAL = 32 * 1024 * 1024
"""Characters of all texts of a retrieval."""
LONGEST_TRACE = 100_000
"""Bytes of what a system says about a retrieval."""

Snapshots = str
"""`all`, or `checkpoints`: full snapshots only where a question or an update or interference point needs one."""


class SystemFault(Exception):
    """A memory system did something that its contract does not allow."""


@contextmanager
def _calling(system: str) -> Iterator[None]:
    """Turn what a memory system raises to end a program, a task or a generator into a failure of the system."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or (
            isinstance(error, Exception) and not isinstance(error, StopIteration)
        ):
            raise
        raise SystemFault(f"{system} raised {type(error).__name__}({str(error)[:200]})") from error


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that have to be equal for a fair comparison of systems."""

    top_k: int = 5
    context_tokens: int | None = None
    snapshots: Snapshots = "all"
    seed: int = 0

    def shared(self, answerer: Answerer) -> dict[str, Any]:
        """The settings that `compare` requires to be equal."""
        return {
            "top_k": self.top_k,
            "context_tokens": self.context_tokens,
            "tokenizer": TOKENIZER,
            "answer_method": answerer.method,
            "answer_model": answerer.identity(),
            "answer_prompt": prompt_identity(),
            "answer_tokens": ANSWER_TOKENS,
        }


class SystemSpec(msgspec.Struct, frozen=True):
    """A requested memory system: how to create one, and its description."""

    name: str
    make: Callable[[], MemorySystem]
    version: str
    capabilities: Capabilities
    configuration: Any
    control: bool
    code: str | None
    source: str
    """The file of its code."""
    asked_for: str
    """How it was named, such as `file.py:Class`."""


METHODS: dict[str, tuple[Any, ...]] = {
    "reset": (Path(),),
    "ingest_turn": (None,),
    "end_session": ("",),
    "snapshot": (),
    "retrieve": ("", 1, None),
}
"""What every memory system has to have, each with arguments as karat gives them."""


def _check_methods(given: object, system: MemorySystem) -> None:
    """Refuse a system without a method, or with one that takes other arguments, before the first session."""
    kind = type(system)
    what = f"the memory system {given!r}" if isinstance(given, str) else f"the memory system {kind.__name__}"
    missing = [
        name
        for name in METHODS
        if name != "end_session" and getattr(kind, name) is getattr(MemorySystem, name)
    ]
    if missing:
        raise RequestError(
            f"{what} has no {' and no '.join(missing)}: define it in the class {kind.__name__}"
        )
    for name, arguments in METHODS.items():
        if inspect.iscoroutinefunction(getattr(system, name)):
            raise RequestError(
                f"{what}: {kind.__name__}.{name} is a coroutine function, which karat does not await: define it with"
                " def, and run what must be awaited with asyncio.run"
            )
        try:
            inspect.signature(getattr(system, name)).bind(*arguments)
        except TypeError as error:
            expected = str(inspect.signature(getattr(MemorySystem, name))).partition(" ->")[0]
            raise RequestError(
                f"{what}: {kind.__name__}.{name} has the wrong signature ({error}): define it as"
                f" {name}{expected}"
            ) from None
        except ValueError:  # no signature is known, as of a function in C
            continue


def system_spec(given: object, params: Mapping[str, Any] | None = None, seed: int = 0) -> SystemSpec:
    """A memory system from its name, `file.py:Class`, a class or a function; one is made to ask what it can do."""
    from karat.memory import memory_systems

    factory = memory_systems.get(given) if isinstance(given, str) else given
    if isinstance(factory, MemorySystem):
        raise RequestError(
            "give the class of a memory system, or a function that makes one: each sample has its own"
        )
    if not callable(factory):
        raise RequestError(
            f"{given!r} is not a memory system: give a name, file.py:Class, a class or a function"
        )
    options = dict(params or {})
    known = parameters_of(factory)
    if "seed" in known:
        options.setdefault("seed", seed)
    check_parameters(factory, options, f"memory system {given!r}")

    def make() -> MemorySystem:
        system = factory(**options)
        if not isinstance(system, MemorySystem):
            raise RequestError(
                f"{given!r} makes a {type(system).__name__}, which is not a karat.memory.MemorySystem: derive the class"
                " from it (docs/memory-tutorial.md, 'Your own memory system')"
            )
        _check_methods(given, system)
        return system

    with _faults_of(given, "cannot be made"):
        first = make()
    registered = isinstance(given, str) and memory_systems.has(given)
    with _faults_of(given, "does not say what it is"):
        name = given if registered and "name" not in options else first.name
        if not isinstance(name, str) or not name:
            raise SystemFault(f"its name is {name!r:.40}, not a text")
        capabilities = first.capabilities()
        if not isinstance(capabilities, Capabilities):
            raise SystemFault(f"capabilities() returned {type(capabilities).__name__}, not Capabilities")
        made = SystemSpec(
            name=name,
            make=make,
            version=str(first.version),
            capabilities=capabilities,
            configuration=to_json_value(first.configuration(), f"the configuration of {name}"),
            control=isinstance(first, ControlSystem),
            code=task_code(type(first)),
            source=source_file(type(first)),
            asked_for=given if isinstance(given, str) else name,
        )
    with _faults_of(given, "cannot be closed"):
        first.close()
    return made


@contextmanager
def _faults_of(given: Any, what: str) -> Iterator[None]:
    """Turn what a memory system raises before it is run into a sentence that names it."""
    try:
        with _calling("it"):
            yield
    except KaratError:
        raise
    except Exception as error:
        named = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
        problem = str(error) if isinstance(error, SystemFault) else f"{type(error).__name__}: {error}"
        raise RequestError(f"memory system {named!r} {what}: {problem}") from error


class MemoryTask(Task):
    """A memory system as a task: the sessions and questions of a sample are its units."""

    units_declared = True
    names_models = True

    def __init__(self, system: SystemSpec, settings: Settings, answerer: Answerer, state: Path) -> None:
        self.system = system
        self.settings = settings
        self.answerer = answerer
        self.name = system.name
        self.restarted: list[str] = []
        """Samples that were restarted from their first session."""
        self.not_closed: list[str] = []
        """What systems raised when they were closed after a sample."""
        self._state = state
        self._lock = threading.Lock()

    def units(self, example: Example) -> list[str]:
        return units_of(example)

    def summarize(self, example: Example, unit: str, output: Mapping[str, Any] | None) -> dict[str, str]:
        return summary_of_unit(example, unit, output)

    def configuration(self) -> Any:
        system = self.system
        return {
            "task": system.name,
            "kind": "memory",
            "version": system.version,
            "system": system.configuration,
            "capabilities": msgspec.to_builtins(system.capabilities),
            "control": system.control,
            "shared_settings": self.settings.shared(self.answerer),
            "snapshots": self.settings.snapshots,
            "seed": self.settings.seed,
        }

    def code(self) -> str | None:
        return self.system.code

    def source(self) -> str:
        return self.system.source

    def call_units(self, example: Example, context: Context) -> Iterator[tuple[str, Any]]:
        sample = as_sample(example)
        folder = self._state / context.run / _folder_name(example.id)
        drive = _Drive(self, sample, folder, context.done)
        try:
            yield from drive.units()
        finally:
            try:
                with _calling(self.name):
                    drive.close()
            except Exception as error:  # what it stored and answered is complete
                self._note(self.not_closed, f"{type(error).__name__}: {error}")
        shutil.rmtree(folder, ignore_errors=True)

    def note_restart(self, sample_id: str) -> None:
        """Record a sample that was restarted although units of it are stored."""
        self._note(self.restarted, sample_id)

    def _note(self, kept: list[str], text: str) -> None:
        with self._lock:
            kept.append(text)


def _folder_name(example: str) -> str:
    return hashlib.blake2b(example.encode(), digest_size=10).hexdigest()


HIDDEN = ("sample_id", "sample_uuid", "gold_state")
"""Fields of a session's record that a memory system must not find: its gold, and ids that may reveal labels."""


class _Saved(msgspec.Struct):
    """The data that karat stores beside the saved state of a system. The system could read it, so it has no gold."""

    session: int
    record: dict[str, Any]
    """The record of the session, with None for each of `HIDDEN`."""
    origins: dict[str, str]


class _Drive:
    """One sample and its own memory system."""

    def __init__(self, task: MemoryTask, sample: Sample, folder: Path, done: Mapping[str, Output]) -> None:
        self.task = task
        self.sample = sample
        self.folder = folder
        self.done = done
        self.settings = task.settings
        self.baseline = task.system.name
        self.system: MemorySystem | None = None
        self.previous: dict[str, StoredMemory] = {}
        self.origins: dict[str, str] = {}
        """The session in which each memory was added or last changed."""
        self.turns = {turn.turn_id: turn for session in sample.sessions for turn in session.turns}
        self._spent: dict[str, float] = {}

    def close(self) -> None:
        if self.system is not None:
            self.system.close()
            self.system = None

    # The order of the work ----------------------------------------------------

    def units(self) -> Iterator[tuple[str, Any]]:
        sessions = self.sample.sessions
        asked: dict[str, list[Question]] = {}
        for question in sorted(self.sample.questions, key=lambda each: each.index):
            asked.setdefault(question.after_session, []).append(question)
        first = next((n for n, s in enumerate(sessions) if self._is_missing(s, asked)), None)
        if first is None:
            return
        with _calling(self.baseline):
            saved = self._resume(first)
        start = 0 if saved is None else saved.session
        if saved is None and self.done:
            self.task.note_restart(self.sample.sample_id)
        for number, points in enumerate(cumulative_points(self.sample)):
            session = sessions[number]
            if number < start:
                continue
            following = asked.get(session.session_id, [])
            if saved is not None and number == start:
                yield session_unit(session.session_id), {**saved.record, **self._hidden(session, points)}
            else:
                with _calling(self.baseline):
                    record = self._session(session, points, bool(following))
                    self._save(number, record)
                yield session_unit(session.session_id), record
                self._forget(number)
            for question in following:
                unit = question_unit(question.index)
                if unit not in self.done:
                    yield unit, self._question_or_error(question)

    def _is_missing(self, session: Session, asked: Mapping[str, list[Question]]) -> bool:
        questions = asked.get(session.session_id, [])
        units = [session_unit(session.session_id), *(question_unit(each.index) for each in questions)]
        return any(unit not in self.done for unit in units)

    def _resume(self, first: int) -> _Saved | None:
        """Start the system: with the latest saved state that lacks no missing unit, or empty."""
        self._start()
        if not self.task.system.capabilities.save:
            return None
        for place in sorted(self.folder.glob("saved-*"), reverse=True):
            try:
                saved = msgspec.json.decode((place / "karat.json").read_bytes(), type=prepared(_Saved))
            except (OSError, msgspec.DecodeError):
                continue
            if saved.session <= first and self._load(place):
                self.origins = saved.origins
                return saved
        return None

    def _start(self) -> None:
        """Make a system with an empty memory and an empty directory."""
        self.close()
        self.system = self.task.system.make()
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        self._call("reset", work)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call the system. A coroutine is refused: it is never awaited, so the call did nothing."""
        returned = getattr(self.system, method)(*arguments)
        if inspect.iscoroutine(returned):
            returned.close()  # without a warning that it was never awaited
            raise SystemFault(f"{self.baseline}: {method}() returned a coroutine, which karat does not await")
        return returned

    def _load(self, place: Path) -> bool:
        """Load a saved state; a system that cannot load it is started again, empty."""
        assert self.system is not None
        try:
            self._call("load", place / "system")
            self.previous = {each.memory_id: each for each in self._snapshot()}
        except Stopped:
            raise
        except Exception:
            self.previous = {}
            self._start()
            return False
        return True

    def _save(self, number: int, record: dict[str, Any]) -> None:
        """Save the system and the record of its session, which becomes visible as a whole or not at all."""
        assert self.system is not None
        if not self.task.system.capabilities.save:
            return
        place, draft = self.folder / f"saved-{number:06}", self.folder / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        (draft / "system").mkdir(parents=True)
        self._call("save", draft / "system")
        kept = _Saved(number, {**record, **dict.fromkeys(HIDDEN)}, self.origins)
        (draft / "karat.json").write_bytes(encode(kept))
        shutil.rmtree(place, ignore_errors=True)
        draft.rename(place)

    def _hidden(self, session: Session, points: Sequence[MemoryPoint]) -> dict[str, Any]:
        """The fields of a session's record that are not saved beside the system."""
        return {
            "sample_id": self.sample.sample_id,
            "sample_uuid": self.sample.uuid,
            "gold_state": gold_state(session, points),
        }

    def _forget(self, number: int) -> None:
        """Remove the states before a session that is stored."""
        for place in self.folder.glob("saved-*"):
            if place.name < f"saved-{number:06}":
                shutil.rmtree(place, ignore_errors=True)

    # Sessions -------------------------------------------------------------------

    def _session(self, session: Session, points: Sequence[MemoryPoint], asked: bool) -> dict[str, Any]:
        assert self.system is not None
        start = time.perf_counter()
        for turn in session.turns:
            self._call("ingest_turn", turn)
        self._call("end_session", session.session_id)
        self._spend("memory.write", start, {"turns": len(session.turns)})
        start = time.perf_counter()
        stored = self._snapshot()
        self._spend("memory.snapshot", start, {"memories": len(stored)})
        delta = self._delta(session.session_id, stored)
        keep = self.settings.snapshots == "all" or asked or session.updates or session.interference
        record: dict[str, Any] = {
            "sample_id": self.sample.sample_id,
            "sample_uuid": self.sample.uuid,
            "session_id": session.session_id,
            "memory_snapshot": [self._memory_record(each) for each in stored] if keep else [],
            "memory_delta": delta,
            "gold_state": gold_state(session, points),
            "dialogue": [
                {"turn_id": turn.turn_id, "speaker": turn.speaker, "text": turn.text, "time": turn.time}
                for turn in session.turns
            ],
            "num_stored": len(stored),
            "modality": self.sample.modality,
        }
        if not keep:
            record["snapshot_omitted"] = True
        return record

    def _snapshot(self) -> list[StoredMemory]:
        assert self.system is not None
        return checked_snapshot(self._call("snapshot"), self.baseline)

    def _memory_record(self, memory: StoredMemory) -> dict[str, Any]:
        out = {
            "memory_id": memory.memory_id,
            "text": memory.text,
            "session_id": memory.session_id or self.origins.get(memory.memory_id),
            "status": memory.status,
            "source": self.baseline,
            "raw_backend_id": memory.raw_backend_id,
            "raw_backend_type": memory.raw_backend_type,
            "metadata": to_json_value(dict(memory.metadata), "metadata of a memory"),
        }
        if memory.turn_ids:
            out["turn_ids"] = list(memory.turn_ids)
        return out

    def _delta(self, session_id: str, stored: Sequence[StoredMemory]) -> list[dict[str, Any]]:
        """The changes of a session, by id and content: added, updated and archived memories."""
        out, now = [], {memory.memory_id: memory for memory in stored}
        for memory in stored:
            before = self.previous.get(memory.memory_id)
            replaced = list(dict.fromkeys(name for name in memory.replaces if name in self.previous))
            if memory.status != "active":
                if before is not None and before.status == "active":
                    out.append(self._change(session_id, "archive", memory, []))
                continue
            if before is None or before.status != "active":
                out.append(self._change(session_id, "update" if replaced else "add", memory, replaced))
            elif before.text != memory.text:
                others = [name for name in replaced if name != memory.memory_id]
                out.append(self._change(session_id, "update", memory, [memory.memory_id, *others]))
            else:
                continue
            self.origins[memory.memory_id] = session_id
        gone = [
            memory for name, memory in self.previous.items() if name not in now and memory.status == "active"
        ]
        out += [self._change(session_id, "archive", memory, []) for memory in gone]
        self._check_ids(gone, now)
        self.previous = now
        return out

    def _check_ids(self, gone: Sequence[StoredMemory], now: Mapping[str, StoredMemory]) -> None:
        """Refuse a system whose memories get other ids with each snapshot: every one would count as added again."""
        if len(gone) < 2 or any(name in now for name in self.previous):
            return
        texts = {memory.text for memory in now.values()}
        if all(memory.text in texts for memory in gone):
            raise SystemFault(
                f"{self.baseline}: snapshot() returned all {len(gone)} memories with new ids since the last session:"
                " the id of a memory must stay the same, or each one counts as added again"
            )

    def _change(
        self, session_id: str, op: str, memory: StoredMemory, replaced: Sequence[str]
    ) -> dict[str, Any]:
        metadata: dict[str, Any] = {"baseline": self.baseline}
        if replaced:
            metadata["previous_texts"] = [self.previous[name].text for name in replaced]
        return {
            "session_id": session_id,
            "op": op,
            "text": memory.text,
            "linked_previous": list(replaced),
            "raw_backend_id": memory.raw_backend_id or memory.memory_id,
            "metadata": metadata,
        }

    # Questions ------------------------------------------------------------------

    def _question_or_error(self, question: Question) -> Any:
        """The record of a question, or what went wrong with it alone."""
        try:
            with _calling(self.baseline):
                return self._question(question)
        except Stopped:
            raise
        except Exception as error:
            return error

    def _question(self, question: Question) -> dict[str, Any]:
        assert self.system is not None
        query = question_text(question)
        top_k = self.settings.top_k
        control = self.system if isinstance(self.system, ControlSystem) else None
        if control is not None and control.needs_gold:
            evidence = question.evidence if question.answerable else ()
            turns = [self.turns[name] for each in evidence for name in each.turn_ids if name in self.turns]
            control.give_gold(
                list({turn.turn_id: turn for turn in turns}.values()), [e.text for e in evidence]
            )
        start = time.perf_counter()
        found = self._call("retrieve", query, top_k, question.now)
        self._spend("memory.read", start, {"top_k": top_k})
        items = checked_retrieval(found, self.baseline, None if control and control.every_item else top_k)
        context = fit([(item.memory_id, item.text) for item in items], self.settings.context_tokens)
        asked = Asked(query, question.now, question.choices, question.instruction)
        answer, method = self._answer(control, asked, context)
        texts = {item.number: item.text for item in context.items}
        stored = [memory for memory in self.previous.values() if memory.status == "active"]
        share = share_of_store(items, stored)
        gold = question.evidence if question.answerable else ()
        far = distance(self.sample, question)
        return {
            "sample_id": self.sample.sample_id,
            "sample_uuid": self.sample.uuid,
            "checkpoint_id": question.checkpoint_id,
            "question": question.question,
            "gold_answer": question.answer,
            "gold_evidence_memory_ids": [each.evidence_id for each in gold],
            "gold_evidence_contents": [each.text for each in gold],
            "question_type": question.type,
            "question_type_abbrev": question.type_abbrev or abbreviation(question.type),
            "difficulty": question.difficulty,
            "retrieval": {
                "query": query,
                "top_k": top_k,
                "items": [_retrieved_record(rank, item) for rank, item in enumerate(items)],
                "raw_trace": {**checked_trace(found.trace), "baseline": self.baseline},
            },
            "generated_answer": answer.text,
            "cited_memories": [texts[number] for number in answer.cited],
            "question_index": question.index,
            "session_id": question.after_session,
            "now": question.now,
            "answerable": question.answerable,
            "gold_answers": list(question.answers),
            "rubric": list(question.rubric),
            "choices": list(question.choices),
            "instruction": question.instruction,
            "gold_evidence_turn_ids": [list(each.turn_ids) for each in gold],
            "caption_has_answer": question.caption_has_answer,
            "modality": self.sample.modality,
            "answer_method": method,
            "answer_tokens": None if answer.text is None else count_tokens(answer.text),
            "cited_ranks": [number - 1 for number in answer.cited],
            "num_invented_citations": answer.invented,
            "num_stored": len(stored),
            "share_of_store": share,
            "retrieval_bypassed": bool(stored) and (top_k >= len(stored) or share == 1.0),
            "context": {
                "tokens": context.tokens,
                "items": len(context.items),
                "items_cut": context.items_cut,
                "tokens_cut": context.tokens_cut,
            },
            "provenance": self.task.system.capabilities.provenance,
            "session_distance": far.sessions,
            "updates_since": far.updates,
        }

    def _answer(
        self, control: ControlSystem | None, asked: Asked, context: AnswerContext
    ) -> tuple[Answer, str]:
        answerer = self.task.answerer
        if control is not None and control.fixed_answer is not None and answerer.method != "none":
            return Answer(control.fixed_answer), "control"
        return answerer.answer(asked, context), answerer.method

    def _spend(self, name: str, start: float, counts: dict[str, Any]) -> None:
        """Record how long a step took, and what the system's own models used in it."""
        assert self.system is not None
        seconds = time.perf_counter() - start
        spent = {
            name: float(value)
            for name, value in self.system.usage().items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }
        used = {name: value - self._spent.get(name, 0.0) for name, value in spent.items()}
        self._spent = spent
        record_tool_call(name, counts, used or None, seconds=seconds)


# ---------------------------------------------------------------- the parts of a record


def question_text(question: Question) -> str:
    """The query: exactly the question, and the caption of its picture."""
    if question.image_caption:
        return f"{question.question} [image: {question.image_caption}]"
    return question.question


def share_of_store(items: Sequence[RetrievedMemory], stored: Sequence[StoredMemory]) -> float | None:
    """The share of what is stored that was retrieved: by the turns it comes from, or by the number of items."""
    if not stored:
        return None
    turns = {turn for memory in stored for turn in memory.turn_ids}
    if turns:
        return len(turns & {turn for item in items for turn in item.turn_ids}) / len(turns)
    return min(1.0, len(items) / len(stored))


def gold_state(session: Session, points: Sequence[MemoryPoint]) -> dict[str, Any]:
    """The gold of a session: all new and update points so far, and those of the session by kind."""
    return {
        "session_id": session.session_id,
        "cumulative_gold_memories": [point_record(point) for point in points],
        "session_new_memories": [point_record(point) for point in session.new],
        "session_update_memories": [point_record(point) for point in session.updates],
        "session_interference_memories": [point_record(point) for point in session.interference],
    }


def point_record(point: MemoryPoint) -> dict[str, Any]:
    """A gold point as the files have it."""
    return {
        "memory_id": point.memory_id,
        "memory_content": point.text,
        "memory_type": point.type,
        "memory_source": point.source,
        "is_update": point.is_update,
        "original_memories": list(point.original),
        "importance": point.importance,
        "timestamp": point.time,
    }


def _retrieved_record(rank: int, item: RetrievedMemory) -> dict[str, Any]:
    out = {
        "rank": rank,
        "memory_id": item.memory_id,
        "text": item.text,
        "score": None if item.score is None else float(item.score),
        "raw_backend_id": item.raw_backend_id,
    }
    if item.turn_ids:
        out["turn_ids"] = list(item.turn_ids)
    return out


# ---------------------------------------------------------------- what a system returns


def checked_snapshot(given: object, who: str) -> list[StoredMemory]:
    """Check a snapshot against the protocol; raise SystemFault with the problem."""
    if not isinstance(given, (list, tuple)):
        raise SystemFault(f"{who}: snapshot() returned {type(given).__name__}, not a list of StoredMemory")
    if len(given) > MOST_MEMORIES:
        raise SystemFault(f"{who}: the snapshot has {len(given):,} memories, more than {MOST_MEMORIES:,}")
    seen: set[str] = set()
    size = 0
    for memory in given:
        if not isinstance(memory, StoredMemory):
            raise SystemFault(f"{who}: the snapshot has a {type(memory).__name__}, not a StoredMemory")
        _check_texts(
            memory, ("memory_id", "text", "status", "raw_backend_type"), ("session_id", "raw_backend_id"), who
        )
        if memory.status not in STATUSES:
            raise SystemFault(
                f"{who}: the status of memory {memory.memory_id!r} is {memory.status!r:.40}, which is none of"
                f" {', '.join(STATUSES)}"
            )
        _check_names(memory.replaces, "replaces", who)
        _check_names(memory.turn_ids, "turn_ids", who)
        if not isinstance(memory.metadata, Mapping):
            raise SystemFault(f"{who}: metadata of memory {memory.memory_id!r} is not a mapping")
        if memory.memory_id in seen:
            raise SystemFault(f"{who}: the snapshot has the id {memory.memory_id!r} twice")
        seen.add(memory.memory_id)
        size += len(memory.text)
    if size > LARGEST_SNAPSHOT:
        raise SystemFault(f"{who}: the snapshot has {size:,} characters, more than {LARGEST_SNAPSHOT:,}")
    return list(given)


def checked_retrieval(given: object, who: str, most: int | None) -> tuple[RetrievedMemory, ...]:
    """The items of a retrieval that keeps the contract."""
    if not isinstance(given, Retrieval) or not isinstance(given.items, (tuple, list)):
        raise SystemFault(f"{who}: retrieve() returned {type(given).__name__}, not a Retrieval with items")
    if most is not None and len(given.items) > most:
        raise SystemFault(f"{who}: retrieve() returned {len(given.items)} items, and top_k is {most}")
    seen: set[str] = set()
    size = 0
    for item in given.items:
        if not isinstance(item, RetrievedMemory):
            raise SystemFault(f"{who}: retrieve() returned a {type(item).__name__}, not a RetrievedMemory")
        _check_texts(item, ("memory_id", "text"), ("raw_backend_id",), who)
        if item.memory_id in seen:
            raise SystemFault(f"{who}: retrieve() returned the id {item.memory_id!r} twice")
        seen.add(item.memory_id)
        size += len(item.text)
        if size > LARGEST_RETRIEVAL:
            raise SystemFault(f"{who}: retrieve() returned more than {LARGEST_RETRIEVAL:,} characters")
        _check_names(item.turn_ids, "turn_ids", who)
        score = item.score
        if score is not None and (
            isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score)
        ):
            raise SystemFault(f"{who}: the score of {item.memory_id!r} is {score!r:.40}, not a finite number")
    return tuple(given.items)


def checked_trace(trace: object) -> dict[str, Any]:
    """Return a system's trace of a retrieval, or a note if it is not a mapping or too long."""
    if not isinstance(trace, Mapping):
        return {"omitted": f"{type(trace).__name__} is not a mapping"}
    plain: dict[str, Any] = to_json_value(dict(trace), "the trace of a retrieval")
    size = len(encode(plain))
    return plain if size <= LONGEST_TRACE else {"omitted": f"{size:,} bytes"}


def _check_texts(memory: Any, required: Sequence[str], optional: Sequence[str], who: str) -> None:
    for name in (*required, *optional):
        value = getattr(memory, name)
        if not isinstance(value, str) and not (value is None and name in optional):
            raise SystemFault(f"{who}: {name} of a memory is {type(value).__name__}, not text")
        if value is not None and not _is_unicode(value):
            raise SystemFault(f"{who}: {name} of a memory has half a character (a lone surrogate)")
    if not memory.memory_id:
        raise SystemFault(f"{who}: a memory has an empty memory_id")


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _check_names(given: Any, field: str, who: str) -> None:
    if not isinstance(given, (tuple, list)) or not all(isinstance(each, str) for each in given):
        raise SystemFault(f"{who}: {field} of a memory is not a tuple of texts")


# Answers from retrieved memories: one prompt, one tokenizer and one budget for every memory system.
#
# The model sees numbered items, the question and its date. It cites items by number; karat resolves the numbers.


EXTRACTIVE = "extractive"
"""The name of the offline answerer, which is no language model."""

TOKENIZER = "karat.memory 1"
"""The name of the rule by which `count_tokens` counts, part of the settings that compared systems share."""

ANSWER_TOKENS = 2048
"""The limit on the length of an answer, reasoning included."""

REFUSAL = "I don't know."

PROMPT = """\
You answer a question about earlier conversations. All that is left of them are the numbered memories in the message.

Use the memories and nothing else. Memories may be out of date: where two contradict each other, the later one holds. If
the memories do not contain the answer, say that you do not know; do not guess. Work out relative dates ("last week")
from the date of the memory they are in. Answer in one short sentence, or with the bare fact.

Reply with a JSON object. "answer" is the answer. "cited" lists the numbers of the memories that the answer rests on; it
is empty if there are none."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "cited": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["answer", "cited"],
    "additionalProperties": False,
}


def prompt_identity() -> str:
    """The hash of everything in the answer prompt that is the same for all questions."""
    return hashlib.blake2b((PROMPT + repr(SCHEMA)).encode(), digest_size=8).hexdigest()


class ContextItem(msgspec.Struct, frozen=True):
    """A retrieved memory as the answering model sees it, with its number from 1."""

    number: int
    memory_id: str
    text: str


class AnswerContext(msgspec.Struct, frozen=True):
    """The items that fit into the budget, and what was cut."""

    items: tuple[ContextItem, ...]
    tokens: int
    items_cut: int = 0
    """Items that were left out or shortened."""
    tokens_cut: int = 0


def fit(retrieved: Sequence[tuple[str, str]], budget: int | None) -> AnswerContext:
    """Items `(memory id, text)` in order of rank, up to a number of tokens; the item that crosses it is shortened."""
    kept: list[ContextItem] = []
    used = cut = tokens_cut = 0
    for number, (memory_id, text) in enumerate(retrieved, 1):
        size = count_tokens(text)
        room = size if budget is None else min(size, max(0, budget - used))
        if size > room:
            cut += 1
            tokens_cut += size - room
            text = cut_tokens(text, room)
        if text:
            kept.append(ContextItem(number, memory_id, text))
            used += room
    return AnswerContext(tuple(kept), used, cut, tokens_cut)


class Asked(msgspec.Struct, frozen=True):
    """A question as an answerer sees it, without the gold answer."""

    question: str
    now: str | None = None
    choices: tuple[str, ...] = ()
    instruction: str = ""


class Answer(msgspec.Struct, frozen=True):
    """An answer and the numbers of the items it cites; `text` is None without an answering model."""

    text: str | None
    cited: tuple[int, ...] = ()
    invented: int = 0
    """Cited numbers that name no item."""


class Answerer:
    """An answerer that answers nothing: used without a model, so that only memories and retrieval are measured."""

    method = "none"

    def identity(self) -> Any:
        """Everything that the answers depend on, JSON-able."""
        return None

    def answer(self, asked: Asked, context: AnswerContext) -> Answer:
        """The answer to a question from the items of a context."""
        return Answer(None)


class ExtractiveAnswerer(Answerer):
    """An answerer that copies the sentence that shares most words with the question, without a language model."""

    method = "extractive"

    def identity(self) -> Any:
        return {"extractive": 3}

    def answer(self, asked: Asked, context: AnswerContext) -> Answer:
        from karat.memory._language import content_words, sentences

        wanted = content_words(asked.question)
        best: tuple[float, int, str] | None = None
        for item in context.items:
            for sentence in sentences(item.text):
                words = content_words(sentence)
                shared = len(wanted & words)
                if shared:
                    score = shared + shared / (len(words) + 1)
                    if best is None or score > best[0]:
                        best = (score, item.number, sentence)
        if best is None:
            return Answer(REFUSAL)
        return Answer(best[2], (best[1],))


class ModelAnswerer(Answerer):
    """An answerer that asks a model of `karat.models`."""

    method = "model"

    def __init__(self, model: Any) -> None:
        self.model = models.get(model)
        self.model.check_options({"max_tokens": ANSWER_TOKENS})

    def identity(self) -> Any:
        return {"model": self.model.spec, "endpoint": self.model.identity()}

    def answer(self, asked: Asked, context: AnswerContext) -> Answer:
        reply = self.model.generate_sync(
            [{"role": "system", "content": PROMPT}, {"role": "user", "content": message(asked, context)}],
            schema=self._schema(context),
            max_tokens=ANSWER_TOKENS,
        )
        return resolve(reply.parsed, context)

    def _schema(self, context: AnswerContext) -> dict[str, Any]:
        """The schema of a reply; bounded for a grammar, which would write until its limit."""
        if not self.model.follows_grammar:
            return SCHEMA
        cited = {
            "type": "array",
            "items": {"type": "integer"},
            "maxItems": max(1, min(5, len(context.items))),
        }
        return {**SCHEMA, "properties": {"answer": {"type": "string", "maxLength": 300}, "cited": cited}}


def message(asked: Asked, context: AnswerContext) -> str:
    """The user message: memories, date, question, instruction and choices."""
    lines = ["Memories:"]
    lines += [f"{item.number}. {item.text}" for item in context.items] or ["(none)"]
    if asked.now is not None:
        lines += ["", f"Today is {asked.now}."]
    lines += ["", f"Question: {asked.question}"]
    if asked.instruction:
        lines += ["", asked.instruction]
    if asked.choices:
        lines += ["", "Answer with one of these:", *(f"- {choice}" for choice in asked.choices)]
    return "\n".join(lines)


def resolve(given: object, context: AnswerContext) -> Answer:
    """An answer from the model's reply; a number that names no item is counted as invented."""
    if not isinstance(given, dict) or not isinstance(given.get("answer"), str):
        raise ValueError("the answering model's reply has no text in 'answer'")
    known = {item.number for item in context.items}
    cited = given.get("cited")
    if not isinstance(cited, list):
        raise ValueError("'cited' of the answering model's reply is not a list of numbers")
    numbers = list(dict.fromkeys(n for n in cited if isinstance(n, int) and not isinstance(n, bool)))
    right = tuple(number for number in numbers if number in known)
    invented = len(numbers) - len(right) + sum(isinstance(n, bool) or not isinstance(n, int) for n in cited)
    return Answer(given["answer"], right, invented)


def answerer_of(model: object) -> Answerer:
    """The answerer that `--model` names: a model, `extractive`, or none."""
    if model is None:
        return Answerer()
    if model == EXTRACTIVE:
        return ExtractiveAnswerer()
    if isinstance(model, str) and not model.strip():
        raise RequestError("model is empty: name a model, or extractive")
    return ModelAnswerer(model)
