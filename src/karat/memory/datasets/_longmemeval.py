"""LongMemEval: one question over a history of dated sessions.

Session ids such as `answer_4be1b6b4`, question ids that end in `_abs`, and `has_answer` in a turn give the answer away:
sessions and turns get neutral ids, and a turn's speaker and text are all that is read of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from karat.memory._system import Evidence, Question, Sample, Session, Turn, abbreviation
from karat.memory.datasets import memory_datasets
from karat.memory.datasets._reading import (
    REFUSAL,
    DatasetReader,
    Located,
    first_row,
    iso_time,
    rows,
    session_name,
    turn_evidence,
    turn_name,
)

_KEYS = {"question_id", "question", "haystack_sessions", "haystack_dates"}

GRADING = {
    "single-session-preference": "The right answer describes a preference. An answer that makes use of it is right,"
    " also if it does not touch every point of the description.",
    "temporal-reasoning": "A number of days, weeks or months that is off by one is right.",
    "knowledge-update": "An answer that gives an earlier state as well is right if it gives the present one as the one"
    " that holds.",
}
"""How the benchmark grades some types of questions, in karat's words."""


@memory_datasets.register("longmemeval")
class LongMemEval(DatasetReader):
    """One sample per question."""

    type = "longmemeval"
    title = "LongMemEval"
    licence = "MIT; not shipped"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        if not path.is_file() or path.suffix.lower() not in (".json", ".jsonl", ".parquet"):
            return False
        row = first_row(path)
        return isinstance(row, dict) and set(row) >= _KEYS

    def samples(self) -> Iterator[Sample]:
        for file in self.files():
            for row in rows(file):
                yield _sample(row)


def _sample(row: Located) -> Sample:
    question_id = row["question_id"].identifier()
    contents, dates = list(row["haystack_sessions"].items()), list(row["haystack_dates"].items())
    ids = [one.identifier() for one in row.list_at("haystack_session_ids")]
    ids = ids or [str(number) for number in range(len(contents))]
    if not len(contents) == len(dates) == len(ids):
        raise row.error(
            f"haystack_sessions has {len(contents)} elements, haystack_dates {len(dates)},"
            f" haystack_session_ids {len(ids)}: give one date and one id per session"
        )
    times = [iso_time(one.written()) or "" for one in dates]
    order = sorted(range(len(contents)), key=lambda number: times[number])
    notes = (
        []
        if order == list(range(len(order)))
        else ["the sessions were not in the order of their dates: sorted"]
    )
    sessions: list[Session] = []
    marked: list[Turn] = []
    for number, position in enumerate(order, start=1):
        session_id = session_name(number)
        turns = []
        for count, raw in enumerate(contents[position].items(), start=1):
            turn = Turn(
                turn_id=turn_name(session_id, count),
                speaker=raw["role"].text(),
                text=raw.text_at("content"),
                time=times[position] or None,
                session_id=session_id,
            )
            turns.append(turn)
            if raw.has("has_answer") and raw["has_answer"].flag():
                marked.append(turn)
        sessions.append(
            Session(
                session_id=session_id,
                turns=tuple(turns),
                time=times[position] or None,
                source_id=ids[position],
            )
        )
    if not sessions:
        raise row.error("the haystack has no sessions")
    return Sample(
        sample_id=question_id,
        uuid=question_id,
        sessions=tuple(sessions),
        questions=(_question(row, question_id, sessions, marked, notes),),
        notes=tuple(notes),
    )


def _question(
    row: Located, question_id: str, sessions: list[Session], marked: list[Turn], notes: list[str]
) -> Question:
    answerable = not question_id.endswith("_abs")
    type = row.text_at("question_type") if answerable else "abstention"
    given = row.get("answer")
    if given is None and answerable:
        raise row.error("a question needs an answer, unless its id ends in _abs")
    answer = given.written() if given is not None else REFUSAL
    evidence = [turn_evidence(turn) for turn in marked]
    if not evidence and answerable:
        evidence = list(_session_evidence(row, sessions, notes))
    return Question(
        index=0,
        checkpoint_id="end",
        after_session=sessions[-1].session_id,
        question=row["question"].text(),
        answer=answer,
        rubric=(GRADING[type],) if type in GRADING else (),
        answerable=answerable,
        evidence=tuple(evidence) if answerable else (),
        type=type,
        type_abbrev=abbreviation(type),
        now=row.time_at("question_date"),
        source_id=question_id,
    )


def _session_evidence(row: Located, sessions: list[Session], notes: list[str]) -> Iterator[Evidence]:
    """The sessions with the answer, for a file that does not mark turns."""
    by_source = {session.source_id: session for session in sessions}
    for one in row.list_at("answer_session_ids"):
        session = by_source.get(one.identifier())
        if session is None:
            notes.append(
                f"question 0: evidence session {one.identifier()[:40]!r} is not in the haystack and is excluded"
            )
            continue
        text = "\n".join(f"{turn.speaker}: {turn.text}" for turn in session.turns)
        yield Evidence(
            evidence_id=session.session_id, text=text, turn_ids=tuple(turn.turn_id for turn in session.turns)
        )
