"""PersonaMem: multiple-choice questions at places within long chats that several questions share.

`questions_32k.csv` names, for each question, a chat in `shared_contexts_32k.jsonl` and how many of its messages come
before the question. A sample is a chat; a session ends where the chat starts a new one (a system message) and where a
question is asked. The options are part of the prompt, not of the retrieval query.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from karat.datasets import bounded_lines
from karat.errors import DataError, clip
from karat.memory._system import Question, Sample, Session, Turn, abbreviation
from karat.memory.datasets import memory_datasets
from karat.memory.datasets._reading import DatasetReader, Located, rows, session_name, turn_name

_QUESTIONS = re.compile(r"questions(_.*)?\.csv")
_OPTION = re.compile(r"(?:^|\n|, |['\"])\s*\(([a-z])\)\s*", re.IGNORECASE)
_LONGEST_OPTIONS = 200_000
_SYSTEM_REFUSED = "the context of shared_context_id {} is not in {}: give the file of the same size"


@memory_datasets.register("personamem")
class PersonaMem(DatasetReader):
    """One sample per shared context."""

    type = "personamem"
    title = "PersonaMem"
    licence = "MIT; not shipped"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._questions = _questions_file(path)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        found = _questions_file(path)
        return found is not None and _contexts_file(found).is_file()

    def files(self) -> list[Path]:
        if self._questions is None:
            raise DataError(
                f"{self.path}: expected one questions_<size>.csv beside its shared_contexts_<size>.jsonl:"
                " give the path of the CSV file"
            )
        return [self._questions, _contexts_file(self._questions)]

    def samples(self) -> Iterator[Sample]:
        questions, contexts = self.files()
        asked: dict[str, list[Located]] = {}
        for row in rows(questions):
            asked.setdefault(row["shared_context_id"].identifier(), []).append(row)
        offsets = _offsets(contexts)
        for context_id, listed in asked.items():
            if context_id not in offsets:
                raise listed[0].error(_SYSTEM_REFUSED.format(clip(context_id, 80), contexts.name))
            yield _sample(context_id, _context(contexts, *offsets[context_id]), listed)


def _questions_file(path: Path) -> Path | None:
    if path.is_file():
        return path if _QUESTIONS.fullmatch(path.name) else None
    found = [one for one in path.iterdir() if _QUESTIONS.fullmatch(one.name)]
    return found[0] if len(found) == 1 else None


def _contexts_file(questions: Path) -> Path:
    return questions.with_name(
        questions.name.replace("questions", "shared_contexts", 1).removesuffix("csv") + "jsonl"
    )


def _offsets(path: Path) -> dict[str, tuple[int, int, int]]:
    """Return the place of each chat in the file: line, offset and length."""
    found: dict[str, tuple[int, int, int]] = {}
    decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in bounded_lines(file, str(path)):
                if line.strip():
                    try:
                        for key in decode(line):
                            found.setdefault(key, (number, offset, len(line)))
                    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                        raise DataError(f"{path} line {number}: {error}") from None
                offset += len(line)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return found


def _context(path: Path, number: int, offset: int, length: int) -> Located:
    with path.open("rb") as file:
        file.seek(offset)
        line = file.read(length)
    try:
        return Located(msgspec.json.decode(line), f"{path} line {number}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} line {number}: {error}") from None


def _sample(context_id: str, line: Located, listed: list[Located]) -> Sample:
    messages = list(line[context_id].items())
    ends = {_end(row, len(messages)) for row in listed}
    starts = {number for number, one in enumerate(messages) if one["role"].text() == "system"}
    borders = sorted({0, len(messages)} | ends | starts)
    sessions: list[Session] = []
    session_ending: dict[int, str] = {}
    for start, end in pairwise(borders):
        session_id = session_name(len(sessions) + 1)
        turns = tuple(
            Turn(
                turn_id=turn_name(session_id, count),
                speaker=one["role"].text(),
                text=one.text_at("content"),
                session_id=session_id,
            )
            for count, one in enumerate(messages[start:end], start=1)
        )
        sessions.append(Session(session_id=session_id, turns=turns))
        session_ending[end] = session_id
    questions = tuple(
        _question(row, index, session_ending[_end(row, len(messages))]) for index, row in enumerate(listed)
    )
    return Sample(sample_id=context_id, uuid=context_id, sessions=tuple(sessions), questions=questions)


def _end(row: Located, most: int) -> int:
    given = row["end_index_in_shared_context"]
    text = given.written()
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise given.error(f"expected a number of messages from 1 to {most}, found {clip(text, 40)}")
    return int(text)


def _question(row: Located, index: int, session_id: str) -> Question:
    options = _options(row["all_options"])
    given = row["correct_answer"].text().strip()
    letter = given.strip("() ").lower()
    chosen = next((option for option in options if option.lower().startswith(f"({letter})")), None)
    if chosen is None:
        raise row["correct_answer"].error(f"{clip(given, 40)} is none of the options")
    type = row.text_at("question_type")
    return Question(
        index=index,
        checkpoint_id=f"after_{session_id}",
        after_session=session_id,
        question=row["user_question_or_message"].text(),
        answer=chosen,
        answers=(f"({letter})", chosen.partition(")")[2].strip()),
        type=type,
        type_abbrev=abbreviation(type),
        choices=tuple(options),
        source_id=row.text_at("question_id"),
    )


def _options(given: Located) -> list[str]:
    """The options as `(a) …`: the text of a Python list, a list, or lines."""
    if isinstance(given.value, list):
        return given.texts()
    text = given.text()
    if len(text) > _LONGEST_OPTIONS:
        raise given.error(f"the options have more than {_LONGEST_OPTIONS:,} characters")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = None
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    marks = list(_OPTION.finditer(text))
    if not marks:
        raise given.error("expected options that begin with (a), (b), …")
    ends = [one.start() for one in marks[1:]] + [len(text)]
    return [
        f"({mark[1].lower()}) {text[mark.end() : end].strip()}" for mark, end in zip(marks, ends, strict=True)
    ]
