"""The parts of readers of memory benchmarks: located JSON values, neutral ids, dates, refusals.

A value from a file carries its place, so that an error names the file, the line and the path of the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from karat.datasets import MAX_ROW, BadRow, RowSource, bounded_lines
from karat.errors import DataError, clip
from karat.memory._system import Attachment, Evidence, Question, Sample, Session, Turn
from karat.serialization import prepared

MOST_ITEMS = 200_000
"""Elements of one list: more sessions, turns or questions than any dialogue has."""

LONGEST_ID = 1_000
"""Characters of an id: ids are keys, and are quoted in errors."""

REFUSAL = "The conversation does not contain this information."
"""The gold answer of an unanswerable question whose file gives none."""


class DatasetReader:
    """The reader of one kind of memory benchmark. Register a subclass, or a function of a path that yields samples."""

    type: ClassVar[str] = ""
    title: ClassVar[str] = ""
    tested: ClassVar[bool] = False
    """Whether the reader was tested on original data, and not only on files made by hand."""
    licence: ClassVar[str] = "unknown"

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether a file or folder looks like this kind of dataset."""
        return False

    def files(self) -> list[Path]:
        """The files that the samples come from, in a stable order."""
        return [self.path] if self.path.is_file() else json_files(self.path)

    def notes(self) -> list[str]:
        """Notes on what the files as a whole lack, one sentence each; a sample has its own notes."""
        return []

    def turn_id(self, source: str) -> str:
        """The neutral id of a turn from its id in the file, for label corrections."""
        return source

    def samples(self) -> Iterator[Sample]:
        """The samples, one at a time, in the order of the files."""
        raise TypeError(f"dataset reader {self.type!r} has no samples")


class Located:
    """A JSON value with the place it was read from."""

    __slots__ = ("path", "source", "value")

    def __init__(self, value: Any, source: str, path: str = "") -> None:
        self.value = value
        self.source = source
        """The file, with a line where it has lines."""
        self.path = path

    @property
    def place(self) -> str:
        """The file, the line and the path of the value."""
        return f"{self.source}: {self.path}" if self.path else self.source

    def error(self, problem: str) -> DataError:
        """An error about this value."""
        return DataError(f"{self.place}: {problem}")

    def has(self, key: str) -> bool:
        """Whether this object has a key whose value is not null."""
        return isinstance(self.value, dict) and self.value.get(key) is not None

    def __getitem__(self, key: str) -> Located:
        """The value of a required key."""
        if not isinstance(self.value, dict):
            raise self.error(f"expected an object with {key!r}, found {_kind(self.value)}")
        if key not in self.value:
            known = ", ".join(sorted(clip(name, 40) for name in list(self.value)[:20]))
            raise self.error(f"the key {key!r} is missing (found: {known or 'none'})")
        return self._child(key)

    def get(self, *keys: str) -> Located | None:
        """The value of the first of these keys that is present and not null."""
        if not isinstance(self.value, dict):
            raise self.error(f"expected an object, found {_kind(self.value)}")
        return next((self._child(key) for key in keys if self.value.get(key) is not None), None)

    def _child(self, key: str) -> Located:
        name = key if key.isidentifier() else f"[{clip(key, 40)}]"
        path = f"{self.path}.{name}" if self.path and key.isidentifier() else f"{self.path}{name}"
        return Located(self.value[key], self.source, path)

    def names(self) -> list[str]:
        """The keys of this object, in the order of the file."""
        if not isinstance(self.value, dict):
            raise self.error(f"expected an object, found {_kind(self.value)}")
        return list(self.value)

    def items(self) -> Iterator[Located]:
        """The elements of this list."""
        if not isinstance(self.value, list):
            raise self.error(f"expected a list, found {_kind(self.value)}")
        if len(self.value) > MOST_ITEMS:
            raise self.error(f"the list has more than {MOST_ITEMS:,} elements: split the file")
        for index, element in enumerate(self.value):
            yield Located(element, self.source, f"{self.path}[{index}]")

    def list_at(self, key: str) -> Iterator[Located]:
        """The elements of the list under a key; none where the key is missing or null."""
        found = self.get(key)
        return iter(()) if found is None else found.items()

    def text(self) -> str:
        """This value as text; it must be a string."""
        if not isinstance(self.value, str):
            raise self.error(f"expected text, found {_kind(self.value)}")
        return self.value

    def written(self) -> str:
        """This value as text: a string, a number or a boolean."""
        if isinstance(self.value, bool):
            return "Yes" if self.value else "No"
        if isinstance(self.value, int | float):
            return str(self.value)
        return self.text()

    def identifier(self) -> str:
        """This value as an id: text that is not empty, or an integer."""
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return str(self.value)
        text = self.text().strip()
        if not text:
            raise self.error("an id must not be empty")
        if len(text) > LONGEST_ID:
            raise self.error(f"an id has more than {LONGEST_ID:,} characters")
        return text

    def text_at(self, key: str, default: str = "") -> str:
        """The text or number under a key; the default where it is missing or null."""
        found = self.get(key)
        return default if found is None else found.written()

    def time_at(self, *keys: str) -> str | None:
        """The date under the first of these keys, as ISO 8601 where its form is known."""
        found = self.get(*keys)
        return None if found is None else iso_time(found.written())

    def flag(self) -> bool:
        """This value as a boolean. HaluMem writes the strings "True" and "False"."""
        if isinstance(self.value, bool):
            return self.value
        if isinstance(self.value, str) and self.value.strip().lower() in ("true", "false"):
            return self.value.strip().lower() == "true"
        raise self.error(f'expected true, false, "True" or "False", found {clip(str(self.value), 40)}')

    def texts(self) -> list[str]:
        """This value as a list of texts: one text is a list of one."""
        if isinstance(self.value, list):
            return [item.written() for item in self.items()]
        return [self.written()]


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def rows(path: Path) -> Iterator[Located]:
    """The rows of a JSON array, JSON Lines, CSV or Parquet file, one at a time."""
    source = RowSource(path)
    for line, row in source.read():
        if isinstance(row, BadRow):
            raise DataError(row.sentence(str(path), source.unit))
        yield Located(row, f"{path} {source.unit} {line}")


def first_row(path: Path) -> Any:
    """The first row of a file, for recognising it; None where there is none."""
    try:
        for located in rows(path):
            return located.value
    except DataError:
        pass
    return None


def document(path: Path) -> Located:
    """A JSON file that holds one sample, whole."""
    try:
        size = path.stat().st_size
        if size > MAX_ROW:
            raise DataError(f"{path} has more than {MAX_ROW >> 20} MiB, too much for one sample: split it")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return Located(msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf")), str(path))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON: {error}") from None


def keys_of(path: Path) -> set[str]:
    """The keys of the object that a JSON file holds; empty for anything else. For recognising a file."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return set()
    try:
        value = document(path).value
    except DataError:
        return set()
    return set(value) if isinstance(value, dict) else set()


def json_files(folder: Path, pattern: str = "*.json", most: int = 100_000) -> list[Path]:
    """The JSON files under a folder, sorted, without those in folders of pictures and in hidden folders."""
    found: list[Path] = []
    for path in folder.rglob(pattern):
        parts = path.relative_to(folder).parts
        if "images" in parts or any(part.startswith(".") for part in parts) or not path.is_file():
            continue
        found.append(path)
        if len(found) > most:
            raise DataError(f"{folder} holds more than {most:,} JSON files: give the folder of one dataset")
    return sorted(found)


class LineIndex:
    """The offset of each sample's row in a JSON Lines file, so that the file need not be in memory."""

    class _Key(msgspec.Struct):
        sample_id: str | int

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[str, tuple[int, int, int]] = {}
        decode = msgspec.json.Decoder(prepared(self._Key)).decode
        try:
            with path.open("rb") as file:
                offset = 0
                for number, line in bounded_lines(file, str(path)):
                    if line.strip():
                        try:
                            sample = str(decode(line.removeprefix(b"\xef\xbb\xbf")).sample_id)
                        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                            raise DataError(f"{path} line {number}: {error}") from None
                        if sample in self._offsets:
                            first = self._offsets[sample][0]
                            raise DataError(
                                f"{path} line {number}: sample_id {clip(sample, 80)} is already on line {first}:"
                                " give each sample one line"
                            )
                        self._offsets[sample] = (number, offset, len(line))
                    offset += len(line)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error

    def get(self, sample_id: str) -> Located:
        """The row of a sample."""
        found = self._offsets.get(sample_id)
        if found is None:
            raise DataError(
                f"{self.path}: sample {clip(sample_id, 80)} has no line: add one, or remove the sample"
            )
        number, offset, length = found
        with self.path.open("rb") as file:
            file.seek(offset)
            line = file.read(length)
        source = f"{self.path} line {number}"
        try:
            return Located(msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf")), source)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{source}: not readable as JSON: {error}") from None


def session_name(number: int) -> str:
    """The neutral id of the n-th session, from 1."""
    return f"S{number:02d}"


def turn_name(session_id: str, number: int) -> str:
    """The neutral id of the n-th turn of a session, from 1."""
    return f"{session_id}:{number}"


def with_captions(text: str, attachments: Iterable[Attachment]) -> str:
    """The text of a turn with its pictures, each as `[image ID: caption]`."""
    shown = [f"[image {one.image_id}: {one.caption}]" for one in attachments]
    return "\n".join([text, *shown] if text else shown)


def end_of(session: Session) -> str | None:
    """The end of a session: the time of its last dated turn, otherwise of the session."""
    return next((turn.time for turn in reversed(session.turns) if turn.time), session.time)


_FORMS = (
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d",
    "%Y/%m/%d %H:%M:%S",
    "%Y/%m/%d %H:%M",
    "%Y/%m/%d",
    "%b %d, %Y, %H:%M:%S",
    "%b %d, %Y %H:%M:%S",
    "%b %d, %Y",
    "%B %d, %Y, %H:%M:%S",
    "%B %d, %Y",
    "%B-%d-%Y",
    "%I:%M %p on %d %B, %Y",
    "%I:%M %p on %d %B %Y",
    "%d %B, %Y",
    "%d %B %Y",
)
_WEEKDAY = re.compile(r"\s*\((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\)\s*")


def iso_time(text: str) -> str | None:
    """A date as ISO 8601 where its form is known, otherwise unchanged; None for an empty one."""
    text = text.strip()
    if not text:
        return None
    plain = _WEEKDAY.sub(" ", text).strip()
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}(T\S+)?", plain):
        return plain
    for form in _FORMS:
        try:
            found = datetime.strptime(plain, form)
        except ValueError:
            continue
        return found.date().isoformat() if "%H" not in form and "%I" not in form else found.isoformat()
    return text


_UNANSWERABLE_TYPES = {
    *("unanswerable", "abstention", "answerrefusal", "refusal", "adversarial", "memoryboundary"),
    *("falsepremise", "rejection"),
}


def is_unanswerable_type(name: str) -> bool:
    """Whether a question type is that of questions without an answer."""
    return re.sub(r"[^a-z]", "", name.lower()) in _UNANSWERABLE_TYPES


class EvidenceSet:
    """The evidence of one question: without duplicates, and without ids that name nothing, which are listed."""

    def __init__(self) -> None:
        self.found: dict[str, Evidence] = {}
        self.unknown: list[str] = []

    def add(self, evidence_id: str, evidence: Evidence | None) -> None:
        """Add the evidence that an id names, or list the id."""
        if evidence is not None:
            self.found.setdefault(evidence.evidence_id, evidence)
        elif evidence_id not in self.unknown:
            self.unknown.append(evidence_id)

    def note(self, index: int, what: str) -> str | None:
        """A sentence about the ids that name nothing."""
        if not self.unknown:
            return None
        shown = ", ".join(clip(one, 40) for one in self.unknown[:20])
        more = f" and {len(self.unknown) - 20} more" if len(self.unknown) > 20 else ""
        return f"question {index}: evidence {shown}{more} names no {what} and is excluded"


def turn_evidence(turn: Turn) -> Evidence:
    """A turn as evidence."""
    return Evidence(evidence_id=turn.turn_id, text=f"{turn.speaker}: {turn.text}", turn_ids=(turn.turn_id,))


# Label corrections: a file that lies over a dataset and corrects its gold answers and evidence.
#
# One object per question, in JSON Lines or a JSON array: `sample_id` and `index` name the question (never its text,
# which may occur twice), `answer`, `answers`, `evidence` and `answerable` replace its labels, `exclude` removes it,
# `reason` is the explanation. The public audit of LoCoMo is read in its own form (`question_id: locomo_0_qa1`,
# `correct_answer`, `correct_evidence`).

_AUDIT = re.compile(r"locomo_(\d{1,6})_qa(\d{1,6})")


class Corrections:
    """The corrections of one file, and how many were applied."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._by_key: dict[tuple[str, int], Located] = {}
        for row in rows(path):
            key = _key(row)
            if key in self._by_key:
                raise row.error("this question is corrected twice: give one correction each")
            self._by_key[key] = row
        self._used: set[tuple[str, int]] = set()
        self.questions = self.changed = self.excluded = 0

    def restart(self) -> None:
        """Count from the start: the dataset is read again."""
        self._used.clear()
        self.questions = self.changed = self.excluded = 0

    def apply(self, sample: Sample, number: int, turn_id: Callable[[str], str]) -> Sample:
        """The sample with corrected labels. `number` is its place in the dataset, from 0."""
        turns = {turn.turn_id: turn for session in sample.sessions for turn in session.turns}
        changed = excluded = 0
        kept: list[Question] = []
        for question in sample.questions:
            self.questions += 1
            key = next(
                (
                    k
                    for k in ((sample.sample_id, question.index), (f"#{number}", question.index))
                    if k in self._by_key
                ),
                None,
            )
            if key is None:
                kept.append(_with_index(question, len(kept)))
                continue
            self._used.add(key)
            row = self._by_key[key]
            if row.has("exclude") and row["exclude"].flag():
                excluded += 1
                continue
            corrected = _correct_question(question, row, turns, turn_id)
            if (corrected.answer, corrected.answerable) != (question.answer, question.answerable):
                changed += 1
            kept.append(_with_index(corrected, len(kept)))
        self.changed += changed
        self.excluded += excluded
        note = f"label corrections: {changed} of {len(sample.questions)} answers, {excluded} excluded"
        notes = (*sample.notes, note) if changed or excluded else sample.notes
        return msgspec.structs.replace(sample, questions=tuple(kept), notes=notes)

    def check_all_used(self) -> None:
        """Refuse corrections of questions that the dataset does not have."""
        for key, row in self._by_key.items():
            if key not in self._used:
                raise row.error("this correction names no question of the dataset: check sample_id and index")

    def summary(self) -> str:
        """Say how many labels are corrected, and what a perfect system would reach without the corrections."""
        wrong = self.changed + self.excluded
        ceiling = 1 - wrong / self.questions if self.questions else 0.0
        return (
            f"Label corrections of {self.path.name}: {self.changed:,} answers corrected and {self.excluded:,} questions"
            f" excluded of {self.questions:,}. With the original labels a perfect system scores at most"
            f" {ceiling:.3f}."
        )


def _with_index(question: Question, index: int) -> Question:
    """The question under another index, with its place in the file as its source."""
    if question.index == index:
        return question
    return msgspec.structs.replace(
        question, index=index, source_id=question.source_id or f"index {question.index}"
    )


def _key(row: Located) -> tuple[str, int]:
    audit = row.get("question_id")
    if audit is not None and not row.has("sample_id"):
        found = _AUDIT.fullmatch(audit.written())
        if found is None:
            raise audit.error("expected locomo_<sample>_qa<index>; otherwise give sample_id and index")
        return f"#{int(found[1])}", int(found[2])
    index = row["index"]
    if not isinstance(index.value, int) or isinstance(index.value, bool) or index.value < 0:
        raise index.error("expected the number of the question in its sample, from 0")
    return row["sample_id"].identifier(), index.value


def _correct_question(
    question: Question, row: Located, turns: dict[str, Turn], turn_id: Callable[[str], str]
) -> Question:
    given = row.get("question")
    if given is not None and " ".join(given.text().split()) != " ".join(question.question.split()):
        raise given.error(
            f"question {question.index} of the dataset is {clip(question.question, 80)}: correct the index"
        )
    # In the audit of LoCoMo an answer with wrong evidence is right, and only its wording changes.
    keys = ("answer",) if row.text_at("error_type") == "WRONG_CITATION" else ("answer", "correct_answer")
    answer, evidence = row.get(*keys), row.get("evidence", "correct_evidence")
    answerable = (
        row["answerable"].flag() if row.has("answerable") else question.answerable or answer is not None
    )
    found = question.evidence
    if evidence is not None:
        named = EvidenceSet()
        for one in evidence.texts():
            turn = turns.get(turn_id(one))
            if turn is None:
                raise evidence.error(f"{clip(one, 40)} is not a turn of the sample")
            named.add(one, msgspec.structs.replace(turn_evidence(turn), evidence_id=one))
        found = tuple(named.found.values())
    text = answer.written() if answer is not None else question.answer
    return msgspec.structs.replace(
        question,
        answer=text if answerable else (answer.written() if answer is not None else REFUSAL),
        answers=tuple(one.written() for one in row.list_at("answers")),
        answerable=answerable,
        evidence=found if answerable else (),
    )


def open_corrections(path: str | Path) -> Corrections:
    """Read a file of corrections."""
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{file} does not exist: give a JSON Lines file of label corrections")
    return Corrections(file)
