"""Files with any value replaced by any other: a reader gives samples or a DataError, and nothing else."""

from __future__ import annotations

import copy
import csv
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from karat.errors import DataError
from karat.memory.datasets import read_memory_dataset
from tests.memory.datasets import (
    test_beam,
    test_domain_a_v2,
    test_halumem,
    test_locomo,
    test_longmemeval,
    test_mem_gallery,
    test_memoryagentbench,
    test_personamem,
)
from tests.memory.datasets.making import write_json, write_jsonl

JUNK: list[Any] = [
    None, True, -1, 10**30, 1.5, "", "x", "\0", "True", "D1:1", "\u202e" + "y" * 5000, [], [None], [[[]]], {},
    {"": 1}, {"a": {}},
]  # fmt: skip
ROUNDS = 150


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    steps: list[Any] = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    for step in steps:
        yield from places(value[step], (*path, step))


def changed(value: Any, path: tuple[Any, ...], new: Any, remove: bool) -> Any:
    if not path:
        return new
    out = copy.deepcopy(value)
    inside = out
    for step in path[:-1]:
        inside = inside[step]
    if remove:
        del inside[path[-1]]
    else:
        inside[path[-1]] = new
    return out


def refusal(path: Path, name: str | None) -> str | None:
    """Why a dataset is refused; None where it is read."""
    try:
        list(read_memory_dataset(path, name).samples())
    except DataError as error:
        return str(error)
    return None


def type_of(name: str) -> str:
    return name.partition(",")[0]


def lines(path: Path, rows: Any) -> Path:
    return write_jsonl(path, *(rows if isinstance(rows, list) else [rows]))


def beam(folder: Path, value: Any) -> Path:
    part = value if isinstance(value, dict) else {}
    write_json(folder / "1" / "chat.json", part.get("chat"))
    write_json(folder / "1" / "probing_questions" / "probing_questions.json", part.get("questions"))
    return folder


def domain_a_v2(folder: Path, value: Any) -> Path:
    part = value if isinstance(value, dict) else {}
    return test_domain_a_v2.three_files(folder, **part)


def personamem(folder: Path, value: Any) -> Path:
    part = value if isinstance(value, dict) else {}
    questions = part.get("questions")
    listed = [one for one in questions if isinstance(one, dict)] if isinstance(questions, list) else []
    write_json(folder / "shared_contexts_32k.jsonl", part.get("contexts"))
    with (folder / "questions_32k.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for one in listed for key in one)))
        writer.writeheader()
        writer.writerows(listed)
    return folder


DATA: dict[str, tuple[Any, Any]] = {
    "beam": ({"chat": test_beam.chat(), "questions": test_beam.asked()}, beam),
    "domain_a_v2": (
        {
            "sessions": test_domain_a_v2.sessions(),
            "points": test_domain_a_v2.points(),
            "checkpoints": test_domain_a_v2.checkpoints(),
        },
        domain_a_v2,
    ),
    "domain_a_v2, one file per sample": (
        {
            "sample_id": "one",
            "sessions": test_domain_a_v2.sessions(),
            "memory_points": test_domain_a_v2.points(),
            "qa_checkpoints": test_domain_a_v2.checkpoints(),
        },
        lambda folder, value: write_json(folder / "one.json", value),
    ),
    "personamem": (
        {"contexts": {"ctx": test_personamem.messages()}, "questions": [test_personamem.question()]},
        personamem,
    ),
    "halumem": ([test_halumem.user()], lambda folder, value: lines(folder / "h.jsonl", value)),
    "locomo": (
        [
            test_locomo.sample(
                test_locomo.ask("Where?", "Bern", evidence=["D1:1"]), test_locomo.ask("Who?", category=5)
            )
        ],
        lambda folder, value: write_json(folder / "l.json", value),
    ),
    "longmemeval": ([test_longmemeval.row()], lambda folder, value: write_json(folder / "s.json", value)),
    "mem_gallery": (
        test_mem_gallery.dialogue(test_mem_gallery.ask("FR", "Maltese", "D1:2", image_caption="a dog")),
        lambda folder, value: write_json(folder / "d.json", value),
    ),
    "memoryagentbench": (
        [{**test_memoryagentbench.row(), "context": "A. B. C."}],
        lambda folder, value: lines(folder / "m.jsonl", value),
    ),
}


@pytest.mark.parametrize("name", sorted(DATA))
def test_a_changed_file_gives_samples_or_a_data_error(tmp_path, name):
    value, write = DATA[name]
    where, chance = list(places(value)), random.Random(name)
    refused = 0
    for number in range(ROUNDS):
        broken = changed(value, chance.choice(where), chance.choice(JUNK), chance.random() < 0.2)
        path = write(tmp_path / str(number), broken)
        message = refusal(path, type_of(name))
        if message is not None:
            refused += 1
            assert str(tmp_path) in message
            assert len(message) < 2000
        refusal(path, None)
    assert refused > ROUNDS / 10


@pytest.mark.parametrize("name", sorted(DATA))
@pytest.mark.parametrize("number", ["1" * 5000, "1e999", "NaN", '"\\ud800"', '"' + "z" * 100_000 + '"'])
def test_numbers_and_texts_that_cannot_be_read_are_refused(tmp_path, name, number):
    """Every value of a file in turn is too long a number, no number, half a character, or a very long text."""
    value, write = DATA[name]
    where = [path for path in places(value) if path]
    for count, path in enumerate(random.Random(name).sample(where, 25)):
        folder = tmp_path / str(count)
        made = write(folder, changed(value, path, "@@@", False))
        files = [made] if made.is_file() else [file for file in folder.rglob("*") if file.is_file()]
        for file in files:
            file.write_text(file.read_text().replace('"@@@"', number))
        assert len(refusal(made, type_of(name)) or "") < 2000


def test_an_error_quotes_no_long_text(tmp_path):
    path = write_json(
        tmp_path / "s.json", [{"k" * 100_000: 1, "question_id": "q", "question": "?", "haystack_dates": []}]
    )
    with pytest.raises(DataError, match="haystack_sessions") as caught:
        list(read_memory_dataset(path, "longmemeval").samples())
    assert len(str(caught.value)) < 2000
    path = write_json(tmp_path / "t.json", [test_longmemeval.row(question_id="q" * 5000)])
    with pytest.raises(DataError, match="1,000 characters"):
        list(read_memory_dataset(path).samples())
