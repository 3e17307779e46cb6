"""Sentences of errors in golden files, so that a sentence can be improved without touching the test.

`refuses(RequestError)` is `pytest.raises(RequestError)` that also compares the whole message with the one in
`messages.json` beside the test; `says(text)` compares a notice, or what a command prints. UPDATE_GOLDEN=1 writes these
files (without xdist: `-n 0`).
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
Says: TypeAlias = Callable[[object], None]

_CHANGING = [
    (re.compile(r"\b(run|eval|agg|ds)-[0-9a-f]{10,}\b"), r"\1-ID"),
    (re.compile(r"\bprocess \d+ on [\w.-]+\b"), "process NUMBER on HOST"),
    (re.compile(r"\bsince \d[\d:. -]*\d"), "since TIME"),
    (re.compile(r"postgresql://(\w+(:\*+)?@)?/\w+\?host=[^\s:,]+"), "postgresql://SERVER"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
]

_written: set[tuple[Path, str]] = set()
"""The entries that this process has written: the first sentence replaces those of earlier sessions."""


def _stable(message: str, folder: Path) -> str:
    """A message without what changes from run to run: folders, ids, processes, times, ports."""
    message = re.sub(re.escape(str(folder)) + r"/[^/\s:;,']+", "FOLDER", message)
    for pattern, constant in _CHANGING:
        message = pattern.sub(constant, message)
    return message


def _write(file: Path, golden: dict[str, list[str]], key: str, message: str) -> None:
    before = golden.get(key, []) if (file, key) in _written else []
    _written.add((file, key))
    golden[key] = sorted({*before, message})
    text = json.dumps(golden, indent=1, sort_keys=True, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


class _Golden:
    """The sentences of one test, compared with the golden file of its folder.

    They are numbered; those of the test's parameters are alternatives of one number.
    """

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._file = request.node.path.with_name("messages.json")
        name = getattr(request.node, "originalname", request.node.name)
        self._test = f"{request.node.path.name}::{name}"
        self._folder = folder
        self._numbers = itertools.count(1)

    def check(self, message: str, kind: str = "") -> None:
        key = f"{self._test} {kind}{next(self._numbers)}"
        message = _stable(message, self._folder)
        golden = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        if os.environ.get("UPDATE_GOLDEN"):
            _write(self._file, golden, key, message)
        assert message in golden.get(key, []), (
            f"not in {self._file.name}: UPDATE_GOLDEN=1 pytest -n 0 writes it"
        )


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
    """Compares a notice, or what a command prints, with the golden file of the folder."""
    golden = _Golden(request, tmp_path_factory.getbasetemp())
    return lambda text: golden.check(str(text), "says ")
