"""Mem-Gallery: dialogues with pictures, of which karat reads the captions.

One JSON file per dialogue. A round is a message of the user, with its pictures, and the assistant's reply. The persona
in `character_profile` is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from karat.memory._system import Attachment, Evidence, Question, Sample, Session, Turn
from karat.memory.datasets import memory_datasets
from karat.memory.datasets._reading import (
    DatasetReader,
    EvidenceSet,
    Located,
    document,
    end_of,
    json_files,
    keys_of,
    session_name,
    turn_name,
    with_captions,
)

QUESTIONS = "human-annotated QAs"
_TYPES = {
    "FR": "factual_retrieval",
    "VS": "visual_search",
    "TTL": "test_time_learning",
    "MR": "multi_entity_reasoning",
    "TR": "temporal_reasoning",
    "VR": "visual_reasoning",
    "KR": "knowledge_resolution",
    "CD": "conflict_detection",
    "AR": "answer_refusal",
}


@memory_datasets.register("mem_gallery", "mem-gallery")
class MemGallery(DatasetReader):
    """One sample per file; all questions are asked at the end."""

    type = "mem_gallery"
    title = "Mem-Gallery"
    tested = True
    licence = "MIT; not shipped"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        if path.is_dir():
            first = json_files(path)[:1]
            return bool(first) and cls.recognises(first[0])
        return {"multi_session_dialogues", QUESTIONS} <= keys_of(path)

    def samples(self) -> Iterator[Sample]:
        for file in self.files():
            yield _sample(document(file), file.stem)


def _sample(row: Located, name: str) -> Sample:
    sessions: list[Session] = []
    rounds: dict[str, Evidence] = {}
    captions: dict[str, str] = {}
    notes: list[str] = []
    for number, raw in enumerate(row["multi_session_dialogues"].items(), start=1):
        session_id, time = session_name(number), raw.time_at("date")
        turns: list[Turn] = []
        for one in raw["dialogues"].items():
            pictures = tuple(_pictures(one))
            pair = []
            for speaker in ("user", "assistant"):
                if not one.has(speaker):
                    continue
                own = pictures if speaker == "user" else ()
                turn = Turn(
                    turn_id=turn_name(session_id, len(turns) + 1),
                    speaker=speaker,
                    text=with_captions(one[speaker].text(), own),
                    time=time,
                    attachments=own,
                    session_id=session_id,
                )
                turns.append(turn)
                pair.append(turn)
            source = one["round"].identifier()
            text = "\n".join(f"{turn.speaker}: {turn.text}" for turn in pair)
            rounds.setdefault(
                source, Evidence(evidence_id=source, text=text, turn_ids=tuple(turn.turn_id for turn in pair))
            )
            captions[source] = "\n".join(picture.caption for picture in pictures)
        source_id = raw["session_id"].identifier()
        sessions.append(Session(session_id=session_id, turns=tuple(turns), time=time, source_id=source_id))
    if not sessions:
        raise row.error("the dialogue has no sessions")
    questions = tuple(
        _question(raw, index, sessions[-1], rounds, captions, notes)
        for index, raw in enumerate(row[QUESTIONS].items())
    )
    return Sample(
        sample_id=name,
        uuid=name,
        sessions=tuple(sessions),
        questions=questions,
        modality="caption",
        notes=tuple(notes),
    )


def _pictures(one: Located) -> Iterator[Attachment]:
    ids = [each.identifier() for each in one.list_at("image_id")]
    captions = [each.written() for each in one.list_at("image_caption")]
    for number, image_id in enumerate(ids):
        yield Attachment(image_id=image_id, caption=captions[number] if number < len(captions) else "")


def _question(
    raw: Located,
    index: int,
    last: Session,
    rounds: dict[str, Evidence],
    captions: dict[str, str],
    notes: list[str],
) -> Question:
    point = raw.text_at("point")
    answerable = point != "AR"
    evidence = EvidenceSet()
    for one in raw.list_at("clue"):
        evidence.add(one.identifier(), rounds.get(one.identifier()))
    note = evidence.note(index, "round")
    if note:
        notes.append(note)
    answer, caption = raw["answer"].written(), raw.text_at("image_caption")
    seen = [caption, *(captions.get(name, "") for name in evidence.found)]
    return Question(
        index=index,
        checkpoint_id="end",
        after_session=last.session_id,
        question=raw["question"].text(),
        answer=answer,
        answerable=answerable,
        evidence=tuple(evidence.found.values()) if answerable else (),
        type=_TYPES.get(point, point.lower()),
        type_abbrev=point,
        now=end_of(last),
        image_caption=caption or None,
        caption_has_answer=answerable and any(_contains(text, answer) for text in seen),
    )


def _contains(caption: str, answer: str) -> bool:
    """Whether the words of an answer occur in a caption, in order. Yes, no and single characters do not count."""
    words, caption_words = (re.findall(r"\w+", text.lower()) for text in (answer, caption))
    if not words or words in (["yes"], ["no"]) or len("".join(words)) < 2:
        return False
    return f" {' '.join(words)} " in f" {' '.join(caption_words)} "
