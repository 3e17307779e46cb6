"""BEAM: chats of up to ten million tokens with probing questions of ten kinds.

Either the folders of the repository (`chat.json` and `probing_questions/probing_questions.json`) or the rows of the hub
(`chat`, and `probing_questions` as the text of a Python literal). A user's message ends in `->-> 1,1`, its place in the
plan of the chat, which is removed; `index`, `question_type` and everything in a question but its text are not shown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from karat.errors import plural
from karat.memory._system import Question, Sample, Session, Turn, abbreviation
from karat.memory.datasets import memory_datasets
from karat.memory.datasets._reading import (
    REFUSAL,
    DatasetReader,
    EvidenceSet,
    Located,
    document,
    end_of,
    first_row,
    is_unanswerable_type,
    rows,
    session_name,
    turn_evidence,
    turn_name,
)

_GOLD = ("answer", "ideal_answer", "ideal_response", "ideal_summary", "expected_compliance")
"""Where a question's gold answer is, by the kind of question."""
_TO_THE_END = re.compile(r"[ \t]*->->[^\n]*")
_NUMBERS = re.compile(r"[ \t]*->->[ \t]*(?:\d+[ \t]*,[ \t]*\d*)?")
_LONGEST_LITERAL = 5_000_000
_MOST_EVIDENCE = 10_000


@memory_datasets.register("beam")
class Beam(DatasetReader):
    """Sessions are the batches of a chat; all questions are asked at the end."""

    type = "beam"
    title = "BEAM"
    tested = True
    licence = "not stated; not shipped"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        if path.is_dir():
            return bool(_chats(path, most=1))
        row = first_row(path) if path.suffix.lower() in (".json", ".jsonl", ".parquet") else None
        return isinstance(row, dict) and {"chat", "probing_questions"} <= set(row)

    def files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        return [
            file for folder in _chats(self.path) for file in (_chat_file(folder), _questions_file(folder))
        ]

    def notes(self) -> list[str]:
        if self.path.is_file():
            return []
        lacking = _question_folders(self.path) - set(_chats(self.path))
        if not lacking:
            return []
        named = ", ".join(sorted(str(each.relative_to(self.path)) for each in lacking)[:5])
        more = ", …" if len(lacking) > 5 else ""
        return [
            f"{plural(len(lacking), 'folder')} left out, with questions and without a chat.json: {named}{more}"
        ]

    def samples(self) -> Iterator[Sample]:
        if self.path.is_file():
            for number, row in enumerate(rows(self.path)):
                name = row.text_at("conversation_id", str(number))
                yield _sample(name, row["chat"].items(), _literal(row["probing_questions"]))
            return
        for folder in _chats(self.path):
            name = "-".join(folder.relative_to(self.path).parts) or folder.name
            yield _sample(name, rows(_chat_file(folder)), document(_questions_file(folder)))


def _chats(root: Path, most: int = 100_000) -> list[Path]:
    """The folders with a chat and its questions, in the order of their numbers."""
    found = islice((folder for folder in _question_folders(root) if _chat_file(folder).is_file()), most)
    return sorted(found, key=lambda one: [(len(part), part) for part in one.parts])


def _question_folders(root: Path) -> set[Path]:
    """The folders with questions."""
    folders = {
        file.parent.parent
        for file in root.rglob("probing_questions.json")
        if file.parent.name == "probing_questions"
    }
    return {folder for folder in folders if folder.is_relative_to(root)}


def _chat_file(folder: Path) -> Path:
    """The chat that the questions were made for: the shortened one where there is one, as the benchmark's code does."""
    shortened = folder / "chat_trunecated.json"
    return shortened if shortened.is_file() else folder / "chat.json"


def _questions_file(folder: Path) -> Path:
    return folder / "probing_questions" / "probing_questions.json"


def _literal(given: Located) -> Located:
    """The questions of a row: an object, or the text of one."""
    if not isinstance(given.value, str):
        return given
    if len(given.value) > _LONGEST_LITERAL:
        raise given.error(f"the text has more than {_LONGEST_LITERAL:,} characters")
    try:
        value = ast.literal_eval(given.value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise given.error(f"not readable as an object: {str(error)[:200]}") from None
    return Located(value, given.source, given.path)


def _sample(name: str, chat: Iterator[Located], questions: Located) -> Sample:
    sessions: list[Session] = []
    turns: dict[str, Turn] = {}
    notes: list[str] = []
    highest, offset = -1, 0
    time: str | None = None
    for batch, starts_plan in _batches(chat):
        session_id = session_name(len(sessions) + 1)
        if isinstance(batch.value, dict):
            time = batch.time_at("time_anchor") or time
        session_turns = []
        for count, message in enumerate(_messages(batch), start=1):
            time = message.time_at("time_anchor") or time
            speaker = message["role"].text()
            turn = Turn(
                turn_id=turn_name(session_id, count),
                speaker=speaker,
                text=_without_plan(message.text_at("content"), speaker),
                time=time,
                session_id=session_id,
            )
            session_turns.append(turn)
            number = message.value.get("id")
            if isinstance(number, int) and not isinstance(number, bool):
                if starts_plan and count == 1:
                    # On the hub each plan numbers its messages from 0; in the repository they go on.
                    offset = highest + 1 if number <= highest else 0
                turns.setdefault(str(number + offset), turn)
                highest = max(highest, number + offset)
        sessions.append(
            Session(
                session_id=session_id,
                turns=tuple(session_turns),
                time=next((t.time for t in session_turns if t.time), None),
            )
        )
    if not sessions:
        raise questions.error("the chat of these questions has no messages")
    asked = tuple(
        _question(raw, index, kind, sessions[-1], turns, notes)
        for index, (kind, raw) in enumerate(
            (kind, raw) for kind in questions.names() for raw in questions.list_at(kind)
        )
    )
    return Sample(sample_id=name, uuid=name, sessions=tuple(sessions), questions=asked, notes=tuple(notes))


def _batches(chat: Iterator[Located]) -> Iterator[tuple[Located, bool]]:
    """The batches of a chat, and whether each starts a plan. Chats of ten million tokens have several plans."""
    for element in chat:
        if isinstance(element.value, dict) and "turns" not in element.value:
            plans = [key for key in element.value if element.has(key)]
            for plan in plans:
                for number, batch in enumerate(element[plan].items()):
                    yield batch, number == 0
        else:
            yield element, False


def _messages(batch: Located) -> Iterator[Located]:
    """Return the messages of a batch: a list of messages, or an object with lists of messages in `turns`."""
    for element in batch["turns"].items() if isinstance(batch.value, dict) else batch.items():
        if isinstance(element.value, list):
            yield from element.items()
        else:
            yield element


def _without_plan(text: str, speaker: str) -> str:
    """A message without its place in the plan. Labels follow it in some users' messages, so the line ends there."""
    if "->->" not in text:
        return text
    return (_TO_THE_END if speaker == "user" else _NUMBERS).sub("", text)


def _question(
    raw: Located, index: int, kind: str, last: Session, turns: dict[str, Turn], notes: list[str]
) -> Question:
    answerable = not is_unanswerable_type(kind)
    gold = raw.get(*_GOLD)
    if gold is None and answerable:
        raise raw.error(f"a question needs one of {', '.join(_GOLD)}")
    evidence = EvidenceSet()
    given = raw.get("source_chat_ids")
    for name in _flat(given.value if given is not None else None, given or raw):
        turn = turns.get(name)
        evidence.add(name, turn_evidence(turn) if turn is not None else None)
    note = evidence.note(index, "message")
    if note:
        notes.append(note)
    rubric = raw.get("rubric")
    return Question(
        index=index,
        checkpoint_id="end",
        after_session=last.session_id,
        question=raw["question"].text(),
        answer=gold.written() if gold is not None else REFUSAL,
        rubric=tuple(rubric.texts()) if rubric is not None else (),
        answerable=answerable,
        evidence=tuple(evidence.found.values()) if answerable else (),
        type=kind,
        type_abbrev=abbreviation(kind),
        difficulty=raw.text_at("difficulty"),
        now=end_of(last),
    )


def _flat(value: Any, place: Located) -> list[str]:
    """The ids in `source_chat_ids`: a number, a list, a list of lists, or lists by name."""
    found: list[str] = []
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            pending += reversed(list(one.values()))
        elif isinstance(one, list):
            pending += reversed(one)
        elif isinstance(one, int) and not isinstance(one, bool):
            found.append(str(one))
        elif isinstance(one, str):
            found += re.findall(r"\d+", one) or [one]
        elif one is not None:
            raise place.error(f"expected numbers of messages, found {type(one).__name__}")
        if len(found) + len(pending) > _MOST_EVIDENCE:
            raise place.error(f"more than {_MOST_EVIDENCE:,} messages as evidence of one question")
    return found
