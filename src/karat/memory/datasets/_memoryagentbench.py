"""MemoryAgentBench: long texts that are memorised piece by piece, then questions.

Rows have `context`, `questions`, `answers` and `metadata`. The context becomes one session whose turns are pieces of at
most 4,000 characters, cut between sentences. Of `metadata` only the questions' dates, types, ids and key points are
read, which older files have beside the questions: `haystack_sessions` marks the answers. The benchmark wraps each
question into a template of its source, which says how to answer; karat gives the same instructions, in words of its
own, to the answering model and not to the memory system.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from karat.errors import plural
from karat.memory._system import Question, Sample, Session, Turn, abbreviation
from karat.memory.datasets import memory_datasets
from karat.memory.datasets._reading import (
    DatasetReader,
    Located,
    first_row,
    iso_time,
    json_files,
    rows,
    session_name,
    turn_name,
)

PIECE = 4_000
"""Characters of one turn."""
INSTRUCTIONS = (
    (("ruler_", "qa"), "Give only the answer, without any other words."),
    (("longmemeval_",), "Answer as briefly as you can, with a single phrase if possible."),
    (("eventqa_",), "Complete the task: name the event that happens next."),
    (
        ("icl_",),
        "The memories are texts with numeric labels. Give the label of the text in the question, as"
        ' "label: NUMBER", and nothing else.',
    ),
    (
        ("recsys_", "redial"),
        "You recommend movies. The memories are dialogues with users; the question is a new one. Reply with a numbered"
        " list of 20 recommendations and nothing else.",
    ),
    (("infbench_", "sum"), "The memories are a book. Summarise it as the question asks."),
    (("detective_", "qa"), "Keep strictly to the output format that the question asks for."),
    (
        ("factconsolidation_",),
        "Each fact in the memories begins with its number. Where facts contradict each other, the one with the largest"
        " number holds. Answer very briefly from these facts alone, even where the real world is different.",
    ),
)
"""How to answer the questions of a source, by parts of the source's name."""
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")


@memory_datasets.register("memoryagentbench")
class MemoryAgentBench(DatasetReader):
    """One sample per context."""

    type = "memoryagentbench"
    title = "MemoryAgentBench"
    licence = "MIT; not shipped"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        if path.is_dir():
            first = json_files(path, "*.parquet")[:1]
            return bool(first) and cls.recognises(first[0])
        if path.suffix.lower() not in (".json", ".jsonl", ".parquet"):
            return False
        row = first_row(path)
        return isinstance(row, dict) and {"context", "questions", "answers"} <= set(row)

    def files(self) -> list[Path]:
        return [self.path] if self.path.is_file() else json_files(self.path, "*.parquet")

    def samples(self) -> Iterator[Sample]:
        for file in self.files():
            for number, row in enumerate(rows(file)):
                yield _sample(row, f"{file.stem}-{number}")


def _sample(row: Located, name: str) -> Sample:
    session_id = session_name(1)
    given = row.get("metadata")
    metadata = given if given is not None else Located({}, row.source)
    turns = tuple(
        Turn(turn_id=turn_name(session_id, count), speaker="user", text=piece, session_id=session_id)
        for count, piece in enumerate(_pieces(row["context"].text()), start=1)
    )
    session = Session(session_id=session_id, turns=turns)
    source = row.text_at("source") or metadata.text_at("source")
    questions = tuple(
        _question(index, question, answers, (row, metadata), source, session_id)
        for index, (question, answers) in enumerate(_questions_of(row))
    )
    return Sample(sample_id=name, uuid=name, sessions=(session,), questions=questions)


def _pieces(text: str) -> Iterator[str]:
    """Parts of a text of at most `PIECE` characters, cut after a sentence where there is one."""
    piece = ""
    for sentence in _SENTENCE_END.split(text):
        for start in range(0, len(sentence), PIECE):
            part = sentence[start : start + PIECE]
            if piece and len(piece) + 1 + len(part) > PIECE:
                yield piece
                piece = ""
            piece = f"{piece} {part}" if piece else part
    if piece:
        yield piece


def _questions_of(row: Located) -> Iterator[tuple[str, list[str]]]:
    questions = row["questions"].texts()
    answers = list(row["answers"].items()) if isinstance(row["answers"].value, list) else [row["answers"]]
    if len(questions) == 1:
        # One question: the whole list holds its answers.
        yield questions[0], [text for one in answers for text in one.texts()]
        return
    if len(questions) != len(answers):
        raise row.error(
            f"{len(questions)} questions, but {plural(len(answers), 'list')} of answers: give each question one"
        )
    for question, answer in zip(questions, answers, strict=True):
        yield question, answer.texts()


def _question(
    index: int,
    question: str,
    answers: list[str],
    places: tuple[Located, Located],
    source: str,
    session_id: str,
) -> Question:
    question_id = _element(places, "question_ids", index) or _element(places, "qa_pair_ids", index)
    answerable = not question_id.endswith("_abs")
    type = _element(places, "question_types", index) or source
    if not answers:
        raise places[0].error(f"question {index} has no answer")
    rubric = next((found for place in places if (found := place.get("keypoints")) is not None), None)
    instruction = next((text for parts, text in INSTRUCTIONS if all(each in source for each in parts)), "")
    return Question(
        index=index,
        checkpoint_id="end",
        after_session=session_id,
        question=question,
        answer=answers[0],
        answers=tuple(dict.fromkeys(answers[1:])),
        rubric=tuple(rubric.texts()) if rubric is not None else (),
        answerable=answerable,
        type=type if answerable else "abstention",
        type_abbrev=abbreviation(type if answerable else "abstention"),
        now=iso_time(_element(places, "question_dates", index)),
        instruction=instruction,
        source_id=question_id,
    )


def _element(places: tuple[Located, Located], key: str, index: int) -> str:
    """The element of a list in the row or in its metadata that belongs to a question."""
    for place in places:
        found = list(place.list_at(key)) if place.has(key) and isinstance(place.value[key], list) else []
        if index < len(found) and found[index].value is not None:
            return found[index].written()
    return ""
