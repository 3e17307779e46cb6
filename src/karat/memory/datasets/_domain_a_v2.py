"""`domain_a_v2`: dialogues with gold memory points and questions at checkpoints.

Either a folder with three files (`domain_a_v2.json`, `stage4_memory_points.jsonl`, `stage4b_qa_checkpoints.jsonl`), or
one JSON file per sample (`sessions`, `memory_points`, `qa_checkpoints`), alone or in a tree of folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from karat.errors import clip
from karat.memory._language import states_no_answer
from karat.memory._system import (
    Attachment,
    Evidence,
    MemoryPoint,
    Question,
    Sample,
    Session,
    Turn,
    abbreviation,
)
from karat.memory.datasets import memory_datasets
from karat.memory.datasets._reading import (
    REFUSAL,
    DatasetReader,
    EvidenceSet,
    LineIndex,
    Located,
    document,
    end_of,
    is_unanswerable_type,
    json_files,
    keys_of,
    rows,
    session_name,
    turn_name,
    with_captions,
)

MAIN, POINTS, QUESTIONS = "domain_a_v2.json", "stage4_memory_points.jsonl", "stage4b_qa_checkpoints.jsonl"
_NEUTRAL = re.compile(r"S\d{1,4}")
_SAMPLE_KEYS = {"sessions", "qa_checkpoints"}
_NOT_SAMPLES = {"small_ids.json"}


@memory_datasets.register("domain_a_v2", "worldmemarena")
class DomainAV2(DatasetReader):
    """Three files joined by `sample_id`, or one file per sample."""

    type = "domain_a_v2"
    title = "domain_a_v2 (WorldMemArena)"
    licence = "that of the data; karat ships its own set in this format"

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent if path.name == MAIN else path)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        if path.name == MAIN or (path / MAIN).is_file():
            return True
        if path.is_file():
            return keys_of(path) >= _SAMPLE_KEYS
        first = _sample_files(path)[:1]
        return bool(first) and keys_of(first[0]) >= _SAMPLE_KEYS

    def files(self) -> list[Path]:
        if (self.path / MAIN).is_file():
            return [self.path / name for name in (MAIN, POINTS, QUESTIONS)]
        return [self.path] if self.path.is_file() else _sample_files(self.path)

    def samples(self) -> Iterator[Sample]:
        if not (self.path / MAIN).is_file():
            for file in self.files():
                sample = document(file)
                yield _sample(sample, sample.get("memory_points"), sample["qa_checkpoints"], file.parent)
            return
        points, questions = LineIndex(self.path / POINTS), LineIndex(self.path / QUESTIONS)
        for row in rows(self.path / MAIN):
            sample_id = row["sample_id"].identifier()
            found = points.get(sample_id)["memory_sessions"], questions.get(sample_id)["checkpoints"]
            yield _sample(row, *found, self.path)


def _sample_files(folder: Path) -> list[Path]:
    return [path for path in json_files(folder) if path.name not in _NOT_SAMPLES]


def _sample(row: Located, points: Located | None, checkpoints: Located, folder: Path) -> Sample:
    sample_id = row["sample_id"].identifier()
    notes: list[str] = []
    ids = _session_ids(row)
    by_session = _points_by_session(row, points, ids, notes)
    sessions = []
    taken: dict[str, int] = {}
    for raw in row["sessions"].items():
        source_id = raw["_v2_session_id"].identifier()
        session_id = ids[source_id]
        turns = tuple(
            _turn(entry, session_id, number, folder, notes)
            for number, entry in enumerate(raw.list_at("dialogue"), start=1)
        )
        read = [_point(one, session_id, len(turns), taken, notes) for one in by_session.get(source_id, [])]
        sessions.append(
            Session(
                session_id=session_id,
                turns=turns,
                time=raw.time_at("timestamp", "date", "start_time")
                or next((t.time for t in turns if t.time), None),
                new=tuple(one for one in read if one.source != "interference" and not one.is_update),
                updates=tuple(one for one in read if one.source != "interference" and one.is_update),
                interference=tuple(one for one in read if one.source == "interference"),
                source_id=source_id,
            )
        )
    questions = _questions(checkpoints, sessions, ids, notes)
    captions = any(turn.attachments for session in sessions for turn in session.turns)
    return Sample(
        sample_id=sample_id,
        uuid=row.text_at("uuid", sample_id),
        sessions=tuple(sessions),
        questions=tuple(questions),
        modality="caption" if captions else "text",
        notes=tuple(notes),
    )


def _session_ids(row: Located) -> dict[str, str]:
    """The neutral id of each session: its own if all are of the form S01, otherwise its number."""
    sources: list[str] = []
    for raw in row["sessions"].items():
        source = raw["_v2_session_id"]
        if source.identifier() in sources:
            raise source.error(
                f"session {clip(source.identifier(), 80)} occurs twice in this sample: make the ids unique"
            )
        sources.append(source.identifier())
    if all(_NEUTRAL.fullmatch(source) for source in sources):
        return {source: source for source in sources}
    return {source: session_name(number) for number, source in enumerate(sources, start=1)}


def _points_by_session(
    row: Located, groups: Located | None, ids: dict[str, str], notes: list[str]
) -> dict[str, list[Located]]:
    """The gold points of each session. Those of S00 are in the main file; elsewhere they count only if it has none."""
    found: dict[str, list[Located]] = {}
    for group in groups.items() if groups is not None else ():
        source_id = group["session_id"].identifier()
        listed = list(group.list_at("memory_points"))
        if source_id not in ids:
            if listed:
                notes.append(
                    f"{len(listed)} memory points of {clip(source_id, 40)}, which is not a session, are excluded"
                )
            continue
        found.setdefault(source_id, []).extend(listed)
    for raw in row["sessions"].items():
        own = list(raw.list_at("memory_points"))
        if own:
            source_id = raw["_v2_session_id"].identifier()
            if source_id in found and source_id != "S00":
                raise raw.error(
                    f"memory points of {source_id} are given with the dialogue and apart from it: give them once"
                )
            found[source_id] = own
    return found


def _turn(entry: Located, session_id: str, number: int, folder: Path, notes: list[str]) -> Turn:
    attachments = tuple(
        _attachment(one, f"{session_id}_img_{number}_{count}", folder, notes)
        for count, one in enumerate(entry.list_at("attachments"), start=1)
    )
    return Turn(
        turn_id=turn_name(session_id, number),
        speaker=entry.text_at("role", "user"),
        text=with_captions(entry.text_at("content"), attachments),
        time=entry.time_at("timestamp"),
        attachments=attachments,
        session_id=session_id,
    )


def _attachment(one: Located, default: str, folder: Path, notes: list[str]) -> Attachment:
    image_id = one.text_at("image_id", default)
    file = one.get("file_path", "image_path")
    return Attachment(
        image_id=image_id,
        caption=one.text_at("caption"),
        type=one.text_at("type", "image"),
        file_path=_inside(folder, file.text(), image_id, notes) if file is not None else None,
    )


def _inside(folder: Path, name: str, image_id: str, notes: list[str]) -> str | None:
    """The path of a picture; None for one outside the dataset, which a hostile file could name."""
    try:
        path = (folder / name).resolve()
        if path.is_relative_to(folder.resolve()):
            return str(path)
    except (OSError, ValueError):
        pass
    notes.append(f"the file of image {clip(image_id, 40)} is outside the dataset's folder and is excluded")
    return None


def _point(raw: Located, session_id: str, turns: int, taken: dict[str, int], notes: list[str]) -> MemoryPoint:
    memory_id = raw["memory_id"].identifier()
    taken[memory_id] = taken.get(memory_id, 0) + 1
    if taken[memory_id] > 1:
        notes.append(
            f"memory_id {clip(memory_id, 40)} occurs {taken[memory_id]} times; the first one is the evidence"
        )
        memory_id = f"{memory_id}#{taken[memory_id]}"
    update, originals = raw.get("is_update"), raw.get("original_memories")
    importance = raw.get("importance")
    if importance is not None and (
        isinstance(importance.value, bool) or not isinstance(importance.value, int | float)
    ):
        importance = None
    numbers = [one.value for one in raw.list_at("source_turns")]
    if any(not isinstance(one, int) or isinstance(one, bool) or not 1 <= one <= turns for one in numbers):
        raise raw["source_turns"].error(f"expected numbers of turns of the session, from 1 to {turns}")
    return MemoryPoint(
        memory_id=memory_id,
        text=raw["memory_content"].written(),
        type=raw.text_at("memory_type"),
        source=raw.text_at("memory_source"),
        is_update=update.flag() if update is not None else False,
        original=tuple(originals.texts()) if originals is not None else (),
        importance=float(importance.value) if importance is not None else None,
        time=raw.time_at("timestamp"),
        turn_ids=tuple(turn_name(session_id, one) for one in numbers),
    )


def _questions(
    checkpoints: Located, sessions: list[Session], ids: dict[str, str], notes: list[str]
) -> Iterator[Question]:
    position = {session.session_id: number for number, session in enumerate(sessions)}
    known = _evidence(sessions)
    index = 0
    for checkpoint in checkpoints.items():
        name = checkpoint["checkpoint_id"].identifier()
        last = _last_covered(checkpoint, name, ids, position)
        for raw in checkpoint["questions"].items():
            question = _question(raw, index, name, sessions[last], last, known, notes)
            index += 1
            yield question


def _last_covered(checkpoint: Located, name: str, ids: dict[str, str], position: dict[str, int]) -> int:
    covered = checkpoint["covered_sessions"]
    named = [one.identifier() for one in covered.items()]
    if not named:
        raise covered.error(
            f"checkpoint {clip(name, 80)} covers no session: list the sessions after which it is asked"
        )
    for one in named:
        if one not in ids:
            raise covered.error(
                f"checkpoint {clip(name, 80)} covers {clip(one, 80)}, which is not a session of the sample"
            )
    return max(position[ids[one]] for one in named)


def _evidence(sessions: list[Session]) -> dict[str, tuple[int, Evidence]]:
    """Return the valid ids of evidence with their session number: gold points by memory_id, pictures by image_id."""
    found: dict[str, tuple[int, Evidence]] = {}
    for number, session in enumerate(sessions):
        for point in (*session.new, *session.updates, *session.interference):
            evidence = Evidence(evidence_id=point.memory_id, text=point.text, turn_ids=point.turn_ids)
            found.setdefault(f"memory {point.memory_id}", (number, evidence))
        for turn in session.turns:
            for one in turn.attachments:
                text = with_captions("", [one])
                evidence = Evidence(evidence_id=one.image_id, text=text, turn_ids=(turn.turn_id,))
                found.setdefault(f"image {one.image_id}", (number, evidence))
    return found


def _question(
    raw: Located,
    index: int,
    checkpoint_id: str,
    session: Session,
    last: int,
    known: dict[str, tuple[int, Evidence]],
    notes: list[str],
) -> Question:
    evidence = EvidenceSet()
    for one in raw.list_at("evidence"):
        kind = next((key for key in ("memory_id", "image_id") if one.has(key)), None)
        if kind is None:
            raise one.error("evidence needs a memory_id or an image_id")
        name = one[kind].identifier()
        number, found = known.get(f"{kind.removesuffix('_id')} {name}", (0, None))
        evidence.add(name, found if number <= last else None)
    note = evidence.note(index, "memory or image of the sessions before it")
    if note:
        notes.append(note)
    type, abbrev = raw.text_at("question_type"), raw.text_at("question_type_abbrev")
    answer = raw.get("answer")
    text = answer.written() if answer is not None else ""
    answerable = _answerable(raw, type, text, bool(evidence.found or evidence.unknown))
    if answerable and not text:
        raise raw.error('a question needs an answer, unless it is unanswerable ("answerable": false)')
    return Question(
        index=index,
        checkpoint_id=checkpoint_id,
        after_session=session.session_id,
        question=raw["question"].text(),
        answer=text or REFUSAL,
        answers=tuple(one.written() for one in raw.list_at("answers")),
        answerable=answerable,
        evidence=tuple(evidence.found.values()) if answerable else (),
        type=type,
        type_abbrev=abbrev or abbreviation(type),
        difficulty=raw.text_at("difficulty"),
        now=raw.time_at("question_date", "timestamp") or end_of(session),
        image_caption=raw.text_at("image_caption") or None,
    )


def _answerable(raw: Located, type: str, answer: str, evidence: bool) -> bool:
    """Whether there is an answer: as stated in the file, else by the question's type or a refusal without evidence."""
    given = raw.get("answerable")
    if given is not None:
        return given.flag()
    return not is_unanswerable_type(type) and (evidence or not states_no_answer(answer))
