"""Sentences of errors in golden files, so that a sentence can be improved without touching the test.

`refuses(RequestError)` is `pytest.raises(RequestError)` that also compares the whole message with the one in
`messages.json` beside the test; `says(text)` compares notices, or what a command prints. Each case of a parametrised
test has its own entries. UPDATE_GOLDEN=1 writes those of the tests that run, so run all cases (without xdist: `-n 0`).
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Refuses: TypeAlias = Callable[..., AbstractContextManager[pytest.ExceptionInfo[Any]]]
Says: TypeAlias = Callable[..., None]

_CHANGING = [
    (re.compile(r"\b(run|eval|agg|ds)-[0-9a-f]{10,}\b"), r"\1-ID"),
    (re.compile(r"\bprocess \d+ on [\w.-]+\b"), "process NUMBER on HOST"),
    (re.compile(r"\bsince \d[\d:. -]*\d"), "since TIME"),
    (re.compile(r"postgresql://(\w+(:\*+)?@)?/\w+\?host=[^\s:,]+"), "postgresql://SERVER"),
    (re.compile(r'socket "[^"]+"'), 'socket "PATH"'),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
]

_written: set[tuple[Path, str]] = set()
"""The tests whose entries this process has written: the first sentence replaces those of earlier sessions."""


def _stable(message: str, folder: Path) -> str:
    """A message without what changes from run to run: folders, ids, processes, times, ports."""
    message = re.sub(re.escape(str(folder)) + r"/[^/\s:;,']+", "FOLDER", message)
    for pattern, constant in _CHANGING:
        message = pattern.sub(constant, message)
    return message


class _Golden:
    """The sentences of one case of a test, numbered, compared with the golden file of its folder."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._file = request.node.path.with_name("messages.json")
        self._case = f"{request.node.path.name}::{request.node.nodeid.partition('::')[2]}"
        self._folder = folder
        self._numbers = itertools.count(1)

    def check(self, message: str, kind: str = "") -> None:
        key = f"{self._case} {kind}{next(self._numbers)}"
        message = _stable(message, self._folder)
        entry = message.split("\n") if "\n" in message[:-1] else message
        golden = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        if os.environ.get("UPDATE_GOLDEN"):
            self._write(golden, key, entry)
        assert golden.get(key) == entry, f"not in {self._file.name}: UPDATE_GOLDEN=1 pytest -n 0 writes it"

    def _write(self, golden: dict[str, str | list[str]], key: str, entry: str | list[str]) -> None:
        test = owner_of(key)
        if (self._file, test) not in _written:
            _written.add((self._file, test))
            for old in [each for each in golden if owner_of(each) == test]:
                del golden[old]
        golden[key] = entry
        text = json.dumps(golden, indent=1, sort_keys=True, ensure_ascii=False)
        self._file.write_text(text + "\n", encoding="utf-8")


def owner_of(key: str) -> str:
    """The test of an entry, without the case and the number: `test_help.py::test_mistakes`."""
    return re.split(r"[\[ ]", key, maxsplit=1)[0]


@pytest.fixture
def refuses(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Refuses:
    """`pytest.raises` that compares the message with the golden file of the folder."""
    golden = _Golden(request, tmp_path_factory.getbasetemp())

    @contextmanager
    def raises(*kinds: type[BaseException]) -> Iterator[pytest.ExceptionInfo[Any]]:
        with pytest.raises(kinds) as caught:
            yield caught
        golden.check(str(caught.value))

    return raises


@pytest.fixture
def says(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Says:
    """Compares notices, or what a command prints, with the golden file of the folder."""
    golden = _Golden(request, tmp_path_factory.getbasetemp())
    return lambda *texts: golden.check("\n".join(map(str, texts)), "says ")
