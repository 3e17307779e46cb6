"""The contract of a memory system, the dialogues that it is driven through, and their samples as examples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from karat.errors import DataError
from karat.records import Example
from karat.serialization import prepared

STATUSES = ("active", "archived")
"""What the status of a stored memory may be."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities of a memory system."""

    event_time: Literal["native", "text", "none"] = "text"
    """How it stores the time of a turn: in a field, as part of the text, or not at all."""
    save: bool = False
    """Whether `save` and `load` continue a sample in another process."""
    parallel: bool = True
    """Whether two samples may be driven at the same time, each with its own instance."""
    provenance: bool = False
    """Whether stored and retrieved memories name the turns they come from."""


class StoredMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One memory in a snapshot."""

    memory_id: str
    text: str
    session_id: str | None = None
    status: str = "active"
    """`active`, or `archived` for one that no longer holds and is kept: it is not counted as stored."""
    raw_backend_id: str | None = None
    raw_backend_type: str = ""
    replaces: tuple[str, ...] = ()
    """Ids of the memories that this one replaces, where the system knows."""
    turn_ids: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}


class RetrievedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One memory that was found for a query, best first."""

    memory_id: str
    text: str
    score: float | None = None
    raw_backend_id: str | None = None
    turn_ids: tuple[str, ...] = ()


class Retrieval(msgspec.Struct, frozen=True, kw_only=True):
    """The memories that a system found for a query."""

    items: tuple[RetrievedMemory, ...]
    trace: Mapping[str, Any] = {}


class MemorySystem:
    """Override `reset`, `ingest_turn`, `snapshot` and `retrieve`. All methods are called from one thread at a time.

    A system sees turns, the end of a session and queries, and nothing else of the dataset: no sample id, no gold.
    The time in a turn and in `now` is the dialogue's; a system must not look at the machine's clock.
    """

    name: str = "memory"
    version: str = "1"

    def capabilities(self) -> Capabilities:
        """The capabilities of this system."""
        return Capabilities()

    def configuration(self) -> Any:
        """Everything configured that its memories depend on, JSON-able, without secrets."""
        return {}

    def reset(self, directory: Path) -> None:
        """Start with an empty memory. `directory` is empty, private to this sample, and removed when it is done."""
        raise TypeError(f"memory system {self.name!r} has no reset")

    def ingest_turn(self, turn: Turn) -> None:
        """Take in one message of the dialogue."""
        raise TypeError(f"memory system {self.name!r} has no ingest_turn")

    def end_session(self, session_id: str) -> None:
        """The session is over: write what is still buffered, so that the next snapshot shows it."""

    def snapshot(self) -> list[StoredMemory]:
        """Every memory that is stored, without a limit."""
        raise TypeError(f"memory system {self.name!r} has no snapshot")

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        """At most `top_k` memories for a query. It must not change what is stored."""
        raise TypeError(f"memory system {self.name!r} has no retrieve")

    def save(self, directory: Path) -> None:
        """Write everything that `load` needs into a directory. Only called with `Capabilities(save=True)`."""
        raise TypeError(f"memory system {self.name!r} cannot be saved")

    def load(self, directory: Path) -> None:
        """Continue from what `save` wrote, after `reset`."""
        raise TypeError(f"memory system {self.name!r} cannot be loaded")

    def usage(self) -> Mapping[str, float]:
        """Tokens and cost since `reset` of models that the system calls by itself (not through `karat.models`).

        Keys: `input_tokens`, `output_tokens`, `cost`.
        """
        return {}

    def close(self) -> None:
        """Free what is held; the sample is done."""


class ControlSystem(MemorySystem):
    """A control: a reference row for the rows of memory systems, and not a memory system itself.

    Controls receive more than a memory system may see, through members that a `MemorySystem` does not have. Only a
    subclass of this class is asked for them.
    """

    needs_gold: ClassVar[bool] = False
    """Whether `give_gold` is called before each `retrieve`."""
    every_item: ClassVar[bool] = False
    """Whether `retrieve` may return more than `top_k` items, as a control with the full context does."""
    fixed_answer: ClassVar[str | None] = None
    """The answer to every question, in place of a model's."""

    def give_gold(self, evidence: Sequence[Turn], texts: Sequence[str]) -> None:
        """Get the gold evidence of the next question: its turns and, where the dataset names none, its texts."""
        raise TypeError(f"control {self.name!r} has no give_gold")


# Dialogues: samples, their sessions and turns, and the questions about them.


class Attachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A picture or a file that was sent with a turn.

    Its caption is already part of the turn's text, so only a system that looks at pictures needs this.
    """

    image_id: str
    caption: str = ""
    type: str = "image"
    file_path: str | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a dialogue, as a memory system receives it."""

    turn_id: str
    """Unique within the sample, neutral."""
    speaker: str
    text: str
    """What was said, followed by `[image ID: caption]` for each attachment: a system need not add the captions."""
    time: str | None = None
    """When it was said, in the calendar of the dialogue: ISO 8601 where the file allows it, otherwise its own text."""
    attachments: tuple[Attachment, ...] = ()
    session_id: str = ""


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gold memory: what a good memory holds after a session, or (interference) must not hold."""

    memory_id: str
    text: str
    type: str = ""
    source: str = ""
    is_update: bool = False
    original: tuple[str, ...] = ()
    """The earlier statements that an update replaces, as text."""
    importance: float | None = None
    time: str | None = None
    turn_ids: tuple[str, ...] = ()


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dialogue at one time, with its gold points."""

    session_id: str
    turns: tuple[Turn, ...]
    time: str | None = None
    new: tuple[MemoryPoint, ...] = ()
    updates: tuple[MemoryPoint, ...] = ()
    interference: tuple[MemoryPoint, ...] = ()
    source_id: str = ""
    """The id in the original file. Never shown to a memory system or a model."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that a good answer rests on: a gold memory, a turn or a picture."""

    evidence_id: str
    text: str
    turn_ids: tuple[str, ...] = ()
    """The turns it was said in, for retrieval metrics; empty where the dataset does not say."""


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question that is asked after a session. Questions are keyed by `index`, since a text may occur twice."""

    index: int
    """Its number within the sample, from 0."""
    checkpoint_id: str
    after_session: str
    """The `session_id` after whose end it is asked."""
    question: str
    answer: str
    """The gold answer as text; for an unanswerable question, a refusal."""
    answers: tuple[str, ...] = ()
    """Other answers that are right as well."""
    rubric: tuple[str, ...] = ()
    """Points that an answer must meet, for datasets that grade by rubric."""
    answerable: bool = True
    evidence: tuple[Evidence, ...] = ()
    type: str = ""
    type_abbrev: str = ""
    difficulty: str = ""
    now: str | None = None
    """The date on which it is asked, in the calendar of the dialogue."""
    image_caption: str | None = None
    choices: tuple[str, ...] = ()
    """For multiple choice: the options, which are part of the prompt and not of the retrieval query."""
    instruction: str = ""
    """How to answer, such as the form of the answer: part of the prompt and not of the retrieval query."""
    caption_has_answer: bool = False
    source_id: str = ""


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One user's dialogue over several sessions, with the questions asked on the way."""

    sample_id: str
    uuid: str
    sessions: tuple[Session, ...]
    questions: tuple[Question, ...]
    modality: str = "text"
    """`caption` where pictures are only present as captions."""
    notes: tuple[str, ...] = ()
    """What the reader left out or changed, one sentence each, such as evidence ids that name no turn."""


# How dialogue becomes text: a turn with its time and speaker, the token count of a text, abbreviations.

_TOKEN = re.compile(r"[^\W\d_⺀-鿿가-힯]{1,8}|\d{1,3}|\S")


def turn_text(turn: Turn) -> str:
    """A turn as memory systems store it: `[2024-05-01 09:30] speaker: text`."""
    when = time_text(turn.time)
    return f"[{when}] {turn.speaker}: {turn.text}" if when else f"{turn.speaker}: {turn.text}"


def time_text(time: str | None) -> str:
    """A time of the dialogue, shortened to the minute where it is ISO 8601; otherwise as the dataset writes it."""
    if not time:
        return ""
    moment = parse_time(time)
    if moment is None:
        return " ".join(time.split())
    has_clock = len(time.strip()) > len("2024-05-01")
    return moment.strftime("%Y-%m-%d %H:%M") if has_clock else moment.strftime("%Y-%m-%d")


def parse_time(time: str | None) -> datetime | None:
    """An ISO 8601 time as a datetime without a time zone; None for any other text."""
    if not time:
        return None
    try:
        return datetime.fromisoformat(time.strip()).replace(tzinfo=None)
    except ValueError:
        return None


def count_tokens(text: str) -> int:
    """The number of tokens of a text by a fixed rule, the same for every system and every model.

    A token is up to 8 letters, up to 3 digits, one ideograph or one other character. English text gives about as
    many tokens as current providers count.
    """
    return sum(1 for _ in _TOKEN.finditer(text))


def cut_tokens(text: str, budget: int) -> str:
    """The beginning of a text, at most `budget` tokens long."""
    if budget <= 0:
        return ""
    if len(text) <= budget:
        return text
    for number, token in enumerate(_TOKEN.finditer(text), 1):
        if number > budget:
            return text[: token.start()].rstrip()
    return text


NO_TYPE = "NA"


def abbreviation(question_type: str) -> str:
    """The initials of a question type, for a dataset that has no abbreviations: `multi_hop` gives `MH`; always text."""
    return "".join(word[0] for word in re.findall(r"[^\W_]+", question_type)).upper() or NO_TYPE


# Samples as examples of a dataset, the order of their units, and units as short texts for tables.


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
        sessions=tuple(_join_by_id(Session, given["sessions"], gold["sessions"])),
        questions=tuple(_join_by_id(Question, given["questions"], gold["questions"])),
        modality=example.metadata.get("modality", "text"),
        notes=tuple(example.metadata.get("notes", ())),
    )


def _join_by_id(kind: Any, given: list[dict[str, Any]], gold: list[dict[str, Any]]) -> Iterator[Any]:
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
    """The summary of a session or a question in tables; of a failed one, only its input."""
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
