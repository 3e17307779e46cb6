"""HaluMem: one user per line, with gold memory points and questions in each session.

`persona_info` is the profile that the dialogues were generated from; it and `is_generated_qa_session` are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from karat.memory._system import Evidence, MemoryPoint, Question, Sample, Session, Turn, abbreviation
from karat.memory.datasets import memory_datasets
from karat.memory.datasets._reading import (
    REFUSAL,
    DatasetReader,
    Located,
    end_of,
    first_row,
    is_unanswerable_type,
    json_files,
    rows,
    session_name,
    turn_name,
)


@memory_datasets.register("halumem")
class HaluMem(DatasetReader):
    """Questions are asked after the session they are given with."""

    type = "halumem"
    title = "HaluMem"
    licence = "CC BY-NC-ND 4.0; not shipped"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        if path.is_dir():
            first = json_files(path, "*.jsonl")[:1]
            return bool(first) and cls.recognises(first[0])
        if path.suffix.lower() not in (".jsonl", ".json"):
            return False
        row = first_row(path)
        if not isinstance(row, dict) or not {"uuid", "sessions"} <= set(row):
            return False
        sessions = row["sessions"]
        return isinstance(sessions, list) and all(
            isinstance(one, dict) and "start_time" in one for one in sessions[:1]
        )

    def files(self) -> list[Path]:
        return [self.path] if self.path.is_file() else json_files(self.path, "*.jsonl")

    def samples(self) -> Iterator[Sample]:
        for file in self.files():
            for row in rows(file):
                yield _sample(row)


def _sample(row: Located) -> Sample:
    uuid = row["uuid"].identifier()
    sessions: list[Session] = []
    questions: list[Question] = []
    points: dict[str, Evidence] = {}
    for number, raw in enumerate(row["sessions"].items(), start=1):
        session_id = session_name(number)
        turns = tuple(
            Turn(
                turn_id=turn_name(session_id, count),
                speaker=turn["role"].text(),
                text=turn.text_at("content"),
                time=turn.time_at("timestamp") or raw.time_at("start_time"),
                session_id=session_id,
            )
            for count, turn in enumerate(raw.list_at("dialogue"), start=1)
        )
        read = [
            _point(one, session_id, count) for count, one in enumerate(raw.list_at("memory_points"), start=1)
        ]
        session = Session(
            session_id=session_id,
            turns=turns,
            time=raw.time_at("start_time"),
            new=tuple(one for one in read if one.source != "interference" and not one.is_update),
            updates=tuple(one for one in read if one.source != "interference" and one.is_update),
            interference=tuple(one for one in read if one.source == "interference"),
            source_id=str(number - 1),
        )
        sessions.append(session)
        for point in read:
            points.setdefault(point.text, Evidence(evidence_id=point.memory_id, text=point.text))
        for one in raw.list_at("questions"):
            questions.append(_question(one, len(questions), session, raw, points))
    return Sample(sample_id=uuid, uuid=uuid, sessions=tuple(sessions), questions=tuple(questions))


def _point(raw: Located, session_id: str, count: int) -> MemoryPoint:
    update, originals, importance = raw.get("is_update"), raw.get("original_memories"), raw.get("importance")
    number = importance.value if importance is not None else None
    return MemoryPoint(
        memory_id=f"mp_{session_id}_{count}",
        text=raw["memory_content"].written(),
        type=raw.text_at("memory_type"),
        source=raw.text_at("memory_source"),
        is_update=update.flag() if update is not None else False,
        original=tuple(originals.texts()) if originals is not None else (),
        importance=float(number) if isinstance(number, int | float) else None,
        time=raw.time_at("timestamp"),
    )


def _question(
    raw: Located, index: int, session: Session, within: Located, points: dict[str, Evidence]
) -> Question:
    type = raw.text_at("question_type")
    answerable = not is_unanswerable_type(type)
    answer = raw.get("answer")
    if answer is None and answerable:
        raise raw.error("a question needs an answer")
    found: dict[str, Evidence] = {}
    for number, one in enumerate(raw.list_at("evidence"), start=1):
        text = one.text() if isinstance(one.value, str) else one["memory_content"].written()
        evidence = points.get(text) or Evidence(evidence_id=f"question_{index}_evidence_{number}", text=text)
        found.setdefault(evidence.evidence_id, evidence)
    return Question(
        index=index,
        checkpoint_id=f"after_{session.session_id}",
        after_session=session.session_id,
        question=raw["question"].text(),
        answer=answer.written() if answer is not None else REFUSAL,
        answerable=answerable,
        evidence=tuple(found.values()) if answerable else (),
        type=type,
        type_abbrev=abbreviation(type),
        difficulty=raw.text_at("difficulty"),
        now=within.time_at("end_time") or end_of(session),
    )
