"""LoCoMo: two people talk over many sessions; all questions are asked at the end.

The published file is an array of `{sample_id, conversation, qa}`; an older release has one file per conversation with
the sessions at its top level. Only `speaker`, `text`, `dia_id` and `blip_caption` of a turn are read: `query` (the
search that found a picture), `observation`, `event_summary` and `session_summary` give answers away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from karat.memory._system import Attachment, Evidence, Question, Sample, Session, Turn
from karat.memory.datasets import memory_datasets
from karat.memory.datasets._reading import (
    REFUSAL,
    DatasetReader,
    EvidenceSet,
    Located,
    document,
    end_of,
    first_row,
    json_files,
    keys_of,
    rows,
    session_name,
    turn_evidence,
    turn_name,
    with_captions,
)

_SESSION = re.compile(r"session_(\d{1,4})")
_DATE = re.compile(r"session_(\d{1,4})_date_time")
_EVIDENCE = re.compile(r"D:?(\d{1,4}):(\d{1,5})")
_CATEGORIES = {
    "1": ("multi_hop", "MH"),
    "2": ("temporal", "TR"),
    "3": ("open_domain", "OD"),
    "4": ("single_hop", "SH"),
    "5": ("adversarial", "AD"),
}


@memory_datasets.register("locomo")
class LoCoMo(DatasetReader):
    """Dialogues of two people, with evidence as turn ids."""

    type = "locomo"
    title = "LoCoMo"
    tested = True
    licence = "CC BY-NC 4.0; not shipped"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        if path.is_dir():
            first = json_files(path)[:1]
            return bool(first) and cls.recognises(first[0])
        if {"speaker_a", "session_1", "qa"} <= keys_of(path):
            return True
        row = first_row(path) if path.suffix.lower() in (".json", ".jsonl") else None
        return isinstance(row, dict) and {"conversation", "qa"} <= set(row)

    def samples(self) -> Iterator[Sample]:
        for file in self.files():
            if "speaker_a" in keys_of(file):
                sample = document(file)
                yield _sample(sample, sample, file.stem)
                continue
            for number, row in enumerate(rows(file)):
                yield _sample(row, row["conversation"], row.text_at("sample_id", f"{file.stem}-{number}"))

    def turn_id(self, source: str) -> str:
        found = _EVIDENCE.fullmatch(source.strip())
        return turn_name(session_name(int(found[1])), int(found[2])) if found else source


def _sample(row: Located, conversation: Located, sample_id: str) -> Sample:
    notes: list[str] = []
    keys = conversation.names()
    numbers = sorted(
        {int(found[1]) for key in keys if (found := _SESSION.fullmatch(key)) and conversation.has(key)}
    )
    without = sorted({int(found[1]) for key in keys if (found := _DATE.fullmatch(key))} - set(numbers))
    if without:
        shown = ", ".join(map(str, without[:50]))
        notes.append(f"dates are given for sessions that are missing, and are ignored: {shown}")
    turns: dict[str, Turn] = {}
    sessions = [_session(conversation, number, turns, notes) for number in numbers]
    if not sessions:
        raise conversation.error("the conversation has no sessions: expected session_1, session_2, …")
    questions = tuple(
        _question(raw, index, sessions[-1], turns, notes) for index, raw in enumerate(row["qa"].items())
    )
    pictures = any(turn.attachments for turn in turns.values())
    return Sample(
        sample_id=sample_id,
        uuid=sample_id,
        sessions=tuple(sessions),
        questions=questions,
        modality="caption" if pictures else "text",
        notes=tuple(notes),
    )


def _session(conversation: Located, number: int, turns: dict[str, Turn], notes: list[str]) -> Session:
    session_id = session_name(number)
    time = conversation.time_at(f"session_{number}_date_time")
    if time is None:
        notes.append(f"session {number} has no date")
    session_turns = []
    for count, raw in enumerate(conversation[f"session_{number}"].items(), start=1):
        caption = raw.text_at("blip_caption")
        attachments = (Attachment(image_id=f"{session_id}_img_{count}", caption=caption),) if caption else ()
        turn = Turn(
            turn_id=turn_name(session_id, count),
            speaker=raw["speaker"].text(),
            text=with_captions(raw.text_at("text"), attachments),
            time=time,
            attachments=attachments,
            session_id=session_id,
        )
        session_turns.append(turn)
        for found in _EVIDENCE.finditer(raw.text_at("dia_id", f"D{number}:{count}")):
            turns.setdefault(_plain(found), turn)
    return Session(
        session_id=session_id, turns=tuple(session_turns), time=time, source_id=f"session_{number}"
    )


def _plain(found: re.Match[str]) -> str:
    """An evidence id in its usual form: `D30:05` and `D:30:5` are `D30:5`."""
    return f"D{int(found[1])}:{int(found[2])}"


def _question(raw: Located, index: int, last: Session, turns: dict[str, Turn], notes: list[str]) -> Question:
    category = raw.text_at("category")
    name, abbrev = _CATEGORIES.get(category, (f"category_{category or 'unknown'}", f"C{category}"))
    answer = raw.get("answer")
    answerable = answer is not None
    if not answerable and category != "5":
        raise raw.error("a question needs an answer, unless its category is 5 (adversarial)")
    evidence = EvidenceSet()
    given = raw.get("evidence")
    for text in given.texts() if given is not None else []:
        found = [_plain(one) for one in _EVIDENCE.finditer(text)]
        for name_of_turn in found or [text]:
            turn = turns.get(name_of_turn)
            evidence.add(
                name_of_turn, None if turn is None else _rename_evidence(turn_evidence(turn), name_of_turn)
            )
    note = evidence.note(index, "turn")
    if note:
        notes.append(note)
    return Question(
        index=index,
        checkpoint_id="end",
        after_session=last.session_id,
        question=raw["question"].text(),
        answer=answer.written() if answer is not None else REFUSAL,
        answerable=answerable,
        evidence=tuple(evidence.found.values()) if answerable else (),
        type=name,
        type_abbrev=abbrev,
        now=end_of(last),
    )


def _rename_evidence(evidence: Evidence, name: str) -> Evidence:
    return Evidence(evidence_id=name, text=evidence.text, turn_ids=evidence.turn_ids)
