"""Samples as examples of a dataset, the order of their units, and units as short texts for tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from karat.errors import DataError
from karat.memory._system import MemoryPoint, Question, Sample, Session
from karat.records import Example
from karat.serialization import prepared

GOLD_OF_SESSION = ("new", "updates", "interference", "source_id")
GOLD_OF_QUESTION = (
    "answer",
    "answers",
    "rubric",
    "answerable",
    "evidence",
    "type",
    "type_abbrev",
    "difficulty",
    "checkpoint_id",
    "caption_has_answer",
    "source_id",
)
"""Fields that are expected and not input: what no memory system and no answering model may see."""


def session_unit(session_id: str) -> str:
    """The unit of a session."""
    return f"session/{session_id}"


def question_unit(index: int) -> str:
    """The unit of a question."""
    return f"question/{index}"


def as_example(sample: Sample) -> Example:
    """A sample as an example: dialogue and questions are its input, everything gold is what is expected."""
    check_sample(sample)
    sessions, questions = msgspec.to_builtins(sample.sessions), msgspec.to_builtins(sample.questions)
    gold_sessions = [_taken(each, GOLD_OF_SESSION) for each in sessions]
    gold_questions = [_taken(each, GOLD_OF_QUESTION) for each in questions]
    metadata: dict[str, Any] = {"uuid": sample.uuid, "modality": sample.modality}
    if sample.notes:
        metadata["notes"] = list(sample.notes)
    return Example(
        sample.sample_id,
        {"sessions": sessions, "questions": questions},
        {"sessions": gold_sessions, "questions": gold_questions},
        metadata,
    )


def _taken(fields: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: fields.pop(name) for name in names if name in fields}


def as_sample(example: Example) -> Sample:
    """The sample that an example was made of."""
    given, gold = example.input, example.expected
    return Sample(
        sample_id=example.id,
        uuid=example.metadata["uuid"],
        sessions=tuple(_joined(Session, given["sessions"], gold["sessions"])),
        questions=tuple(_joined(Question, given["questions"], gold["questions"])),
        modality=example.metadata.get("modality", "text"),
        notes=tuple(example.metadata.get("notes", ())),
    )


def _joined(kind: Any, given: list[dict[str, Any]], gold: list[dict[str, Any]]) -> Iterator[Any]:
    for one, other in zip(given, gold, strict=True):
        yield msgspec.convert({**one, **other}, prepared(kind))


def units_of(example: Example) -> list[str]:
    """The units of an example: its sessions, then its questions, each in the order of the dataset."""
    sessions = [session_unit(each["session_id"]) for each in example.input["sessions"]]
    return sessions + [question_unit(each["index"]) for each in example.input["questions"]]


def check_sample(sample: Sample) -> None:
    """Raise an error for duplicate ids in a sample, or for a question that is not asked after any session."""
    where = f"sample {sample.sample_id!r}"
    if not sample.sessions:
        raise DataError(f"{where} has no session")
    ids = [session.session_id for session in sample.sessions]
    _check_unique(ids, f"{where}: session id")
    _check_unique([t.turn_id for s in sample.sessions for t in s.turns], f"{where}: turn id")
    _check_unique([question.index for question in sample.questions], f"{where}: question index")
    for question in sample.questions:
        if question.after_session not in ids:
            raise DataError(
                f"{where}, checkpoint {question.checkpoint_id!r}: question {question.index} is asked after the"
                f" session {question.after_session!r}, which the sample does not have"
            )


def _check_unique(values: list[Any], what: str) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise DataError(f"{what} {twice[0]!r} occurs twice")


def cumulative_points(sample: Sample) -> Iterator[list[MemoryPoint]]:
    """For each session, all new and update points up to its end."""
    so_far: list[MemoryPoint] = []
    for session in sample.sessions:
        so_far += [*session.new, *session.updates]
        yield list(so_far)


class Distance(msgspec.Struct, frozen=True):
    """Return the time between the latest evidence and a question; None if the dataset does not state it."""

    sessions: int | None
    updates: int | None


def distance(sample: Sample, question: Question) -> Distance:
    """Sessions, and update points in them, between a question's latest evidence and the question."""
    place = {session.session_id: number for number, session in enumerate(sample.sessions)}
    said_in: dict[str, int] = {}
    for number, session in enumerate(sample.sessions):
        for turn in session.turns:
            said_in[turn.turn_id] = number
            for attachment in turn.attachments:
                said_in.setdefault(attachment.image_id, number)
        for point in (*session.new, *session.updates):
            said_in.setdefault(point.memory_id, number)
    found = [
        said_in[name]
        for evidence in question.evidence
        for name in (*evidence.turn_ids, evidence.evidence_id)
        if name in said_in
    ]
    asked = place[question.after_session]
    if not found or not question.answerable:
        return Distance(None, None)
    latest = max(found)
    between = sample.sessions[latest + 1 : asked + 1]
    return Distance(max(0, asked - latest), sum(len(session.updates) for session in between))


# Sessions and questions as short texts, for the tables that show the rows of a run.

LONGEST = 1000
"""Characters of a text."""
MOST_LINES = 20


def summary_of_unit(example: Example, unit: str, record: Mapping[str, Any] | None) -> dict[str, str]:
    """What tables show of a session or a question; of one that failed, only its input."""
    if record is None:
        return _failed(example, unit)
    if "memory_delta" in record:
        turns = [f"{turn['speaker']}: {turn['text']}" for turn in record.get("dialogue") or ()]
        gold = record["gold_state"]
        kinds = ("new", "update", "interference")
        points = [
            f"{kind}: {point['memory_content']}"
            for kind in kinds
            for point in gold[f"session_{kind}_memories"]
        ]
        changes = [f"{each['op']}: {each['text']}" for each in record["memory_delta"]]
        return {
            "input": _lines(turns),
            "expected": _lines(points),
            "output": _lines(changes) or "the session changed no memory",
        }
    retrieved = [f"retrieved: {item['text']}" for item in record["retrieval"]["items"]]
    answer = record["generated_answer"]
    return {
        "input": _cut(record["retrieval"]["query"]),
        "expected": _cut(record["gold_answer"]),
        "output": _lines(["no answer" if answer is None else answer, *retrieved]),
    }


def _failed(example: Example, unit: str) -> dict[str, str]:
    kind, _, name = unit.partition("/")
    for each in example.input[f"{kind}s"]:
        if kind == "question" and str(each["index"]) == name:
            return {"input": _cut(each["question"]), "expected": ""}
        if kind == "session" and each["session_id"] == name:
            turns = (f"{turn['speaker']}: {turn['text']}" for turn in each.get("turns", ()))
            return {"input": _lines(turns), "expected": ""}
    return {}


def _lines(texts: Iterable[str]) -> str:
    kept: list[str] = []
    room = LONGEST
    for text in texts:
        if room <= 0 or len(kept) == MOST_LINES:
            kept.append("…")
            break
        kept.append(" ".join(text[:room].split()))
        room -= len(text) + 1
    return _cut("\n".join(kept))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
