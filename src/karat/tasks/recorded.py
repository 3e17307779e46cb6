"""Recorded outputs as a task: a JSONL of ids and outputs made elsewhere."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from karat.errors import DataError
from karat.records import Example
from karat.tasks.base import Context, Task

SHOWN = 5
"""Ids of records that belong to no example."""


class _Line(msgspec.Struct):
    id: str | int
    output: Any = msgspec.UNSET
    outputs: Any = msgspec.UNSET
    attempt: int = 1
    error: str | None = None


class RecordedOutputs(Task):
    """`{"id": …, "output": …, "attempt": 1}` on each line; `error` in place of `output` is a recorded failure.

    The file is indexed, not loaded: 16 bytes or so are kept for each line.
    """

    names_models = True

    def __init__(self, path: str | Path, *, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or self.path.stem
        if not self.path.is_file():
            raise DataError(f"no file {path} of recorded outputs")
        self._decoder = msgspec.json.Decoder(_Line)
        self._where: dict[tuple[str, int], int] = {}
        self._hash = hashlib.blake2b(digest_size=16)
        self._index()

    def _index(self) -> None:
        if self.path.stat().st_size == 0:
            raise DataError(f'{self.path} is empty: recorded outputs are lines of {{"id": …, "output": …}}')
        with self.path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, 1):
                self._hash.update(line)
                if line.strip():
                    self._add(line, number, offset)
                offset += len(line)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _add(self, line: bytes, number: int, offset: int) -> None:
        try:
            record = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}, line {number}: {error}") from error
        if record.output is msgspec.UNSET and record.outputs is msgspec.UNSET and record.error is None:
            raise DataError(f"{self.path}, line {number}: has neither 'output' nor 'error'")
        key = (str(record.id), record.attempt)
        if key in self._where:
            raise DataError(f"{self.path}, line {number}: a second output for {key[0]!r}, attempt {key[1]}")
        self._where[key] = offset

    def call(self, example: Example, context: Context) -> Any:
        offset = self._where.get((example.id, context.attempt))
        if offset is None:
            raise DataError(
                f"{self.path.name} has no output for example {example.id!r}, attempt {context.attempt}"
            )
        end = self._map.find(b"\n", offset)
        record = self._decoder.decode(self._map[offset : end if end >= 0 else len(self._map)])
        if record.error is not None:
            raise RecordedError(record.error)
        return record.output if record.output is not msgspec.UNSET else record.outputs

    def remark(self, ids: Iterable[str], attempts: int) -> str:
        """Says which records are of no example, and that there are more attempts than are asked for."""
        here = set(ids)
        strange = [id for id, _ in self._where if id not in here]
        later = sum(attempt > attempts for id, attempt in self._where if id in here)
        said = []
        if strange:
            named = ", ".join(list(dict.fromkeys(strange))[:SHOWN])
            more = ", …" if len(set(strange)) > SHOWN else ""
            verb = "belongs" if len(strange) == 1 else "belong"
            said.append(f"{self._share(len(strange))} {verb} to no example ({named}{more})")
        if later:
            verb = "is of a later attempt" if later == 1 else "are of later attempts"
            said.append(f"{self._share(later)} {verb} than attempts={attempts} asks for")
        return f"{self.path.name}: {'; '.join(said)}" if said else ""

    def _share(self, count: int) -> str:
        return f"{count:,} of {len(self._where):,} records"

    def configuration(self) -> Any:
        return {"recorded": self._hash.hexdigest(), "name": self.name}

    def code(self) -> str | None:
        return "recorded"


class RecordedError(Exception):
    """A failure that was recorded elsewhere."""
