"""Hand-made benchmark files for the tests of the readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from karat.memory import Sample
from karat.memory.datasets import read_memory_dataset


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_jsonl(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path, type: str | None = None) -> list[Sample]:
    return list(read_memory_dataset(path, type).samples())


def only(path: Path, type: str | None = None) -> Sample:
    [sample] = read(path, type)
    return sample


def seen_by_systems(sample: Sample) -> str:
    """Everything of a sample that a memory system or the answering model may see, as JSON text."""
    return msgspec.json.encode(list(_visible(sample))).decode()


def _visible(sample: Sample) -> Iterator[Any]:
    for session in sample.sessions:
        yield session.session_id
        yield from session.turns
    for question in sample.questions:
        yield [question.question, question.image_caption, question.choices, question.now]
