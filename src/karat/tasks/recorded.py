"""Recorded outputs as a task: a file of ids and outputs made elsewhere."""

from __future__ import annotations

import hashlib
import mmap
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from karat.datasets.readers.json import bad_line, may_repeat_keys, repeated_key
from karat.datasets.readers.rows import (
    BYTE_ORDER_MARK,
    FORMATS,
    BadRow,
    RowSource,
    bounded_lines,
    size_of_regular_file,
)
from karat.errors import DataError, RequestError, did_you_mean, option, wording
from karat.paths import MISSING, kind_of, parse
from karat.records import Example
from karat.serialization import prepared
from karat.tasks.function import Context, Task

FORM = 'recorded outputs are records of {"id": …, "output": …}'
SHOWN = 5
"""Ids of records that belong to no example."""


class _Line(msgspec.Struct):
    output: Any = msgspec.UNSET
    outputs: Any = msgspec.UNSET
    attempt: int = 1
    error: str | None = None


class RecordedOutputs(Task):
    """Outputs made elsewhere, from a file of `{"id": …, "output": …, "attempt": 1}`: JSONL, JSON, CSV or Parquet.

    `error` in place of the output is a recorded failure. `output` names the field that is the output, by a dotted path
    (`messages`, `result.text`); without it that is `output` or `outputs`. `id` names the field that is the id of the
    example. The file is indexed, not loaded: some 16 bytes are kept for each record. The task's name, and so the label
    of its runs, is the file's name.
    """

    names_models = True

    def __init__(
        self, path: str | Path, *, output: str | None = None, id: str | None = None, name: str | None = None
    ) -> None:
        for argument, field in (("output", output), ("id", id)):
            if field is not None and (not isinstance(field, str) or not field):
                raise RequestError(f"{argument}= takes the name of a field of the records, not {field!r:.60}")
        self.path = Path(path)
        self._id = parse("id" if id is None else id)
        self._output = None if output is None else parse(output)
        if not size_of_regular_file(self.path):
            raise DataError(f"{self.path} is empty: {FORM}")
        ending = self.path.suffix.lower()
        plain = ending != ".gz" and FORMATS.get(ending, "jsonl") == "jsonl"
        self._source = None if plain else RowSource(self.path)
        self._unit = "line" if self._source is None else self._source.unit
        self.name = name or (self.path.stem if self._source is None else self._source.stem)
        self._decoder = msgspec.json.Decoder(prepared(_Line))
        self._decode_row = msgspec.json.Decoder(dict[str, Any]).decode
        self._where: dict[tuple[str, int], int] = {}
        self._hash = hashlib.blake2b(digest_size=16)
        self._index()

    def _index(self) -> None:
        with self.path.open("rb") if self._source is None else tempfile.TemporaryFile() as file:
            lines = bounded_lines(file, str(self.path)) if self._source is None else self._convert(file)
            offset = 0
            for number, line in lines:
                self._hash.update(line)
                if line.strip():
                    self._add(line, number, offset)
                offset += len(line)
            if not self._where:
                raise DataError(f"{self.path} has no records: {FORM}")
            file.flush()
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _convert(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """Write the rows of a file in another format to `file`, as JSONL, and yield its lines."""
        assert self._source is not None
        text = self._source.format in ("csv", "tsv")
        for number, row in self._source.read():
            if isinstance(row, BadRow):
                raise DataError(row.sentence(str(self.path), self._unit))
            if text:  # where an empty cell is no value, and numbers are text
                row = {key: cell for key, cell in row.items() if cell or key not in ("attempt", "error")}
                if str(row.get("attempt", "")).isdecimal():
                    row["attempt"] = int(row["attempt"])
            line = msgspec.json.encode(row) + b"\n"
            file.write(line)
            yield number, line

    def _add(self, line: bytes, number: int, offset: int) -> None:
        place = f"{self.path} {self._unit} {number}"
        if not offset and line.startswith(BYTE_ORDER_MARK):
            offset = len(BYTE_ORDER_MARK)
            line = line[offset:]
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            bad = bad_line(number, line, offset)
            raise DataError(bad.sentence(str(self.path))) from None
        if not isinstance(row, dict):
            raise DataError(f"{place}: the record is {kind_of(row)}, not an object: {FORM}")
        if may_repeat_keys(line, row) and (found := repeated_key(line.decode())) is not None:
            raise DataError(f"{place}, column {found[0] + 1}: {found[1]}")
        id = self._id.find(row)
        if id is MISSING:
            raise DataError(
                f"{place}: there is {self._id.why_missing(row)}; {FORM}"
                f" (name the field of the id with {wording('--output-id FIELD', 'id=FIELD')}, or id: of the task in an"
                " experiment)"
            )
        try:
            id = msgspec.convert(id, str | int)
        except msgspec.ValidationError:
            raise DataError(f"{place}: the id is {kind_of(id)}, not text or an integer") from None
        try:
            record = msgspec.convert(row, prepared(_Line))
        except msgspec.ValidationError as error:
            raise DataError(f"{place}: {error}") from error
        value = self._value(record, line) if record.error is None else None
        if value is MISSING:
            wanted = f"neither 'output' nor 'error': {did_you_mean('output', row)}"
            if self._output is not None:
                wanted = self._output.why_missing(self._decode_row(line))
            raise DataError(
                f"{place}: has {wanted} (name the field of the output with {option('output', 'FIELD')}, or"
                " output: in an experiment)"
            )
        key = (str(id), record.attempt)
        if key in self._where:
            raise DataError(
                f"{place}: a second output for {key[0]!r}, attempt {key[1]}: number further attempts with the"
                " field attempt"
            )
        self._where[key] = offset

    def _value(self, record: _Line, line: bytes) -> Any:
        """Return the output of a record, or MISSING."""
        if self._output is not None:
            return self._output.find(self._decode_row(line))
        if record.output is not msgspec.UNSET:
            return record.output
        return MISSING if record.outputs is msgspec.UNSET else record.outputs

    def call(self, example: Example, context: Context) -> Any:
        offset = self._where.get((example.id, context.attempt))
        if offset is None:
            raise DataError(
                f"{self.path.name} has no output for example {example.id!r}, attempt {context.attempt}"
            )
        end = self._map.find(b"\n", offset)
        line = self._map[offset : end if end >= 0 else len(self._map)]
        record = self._decoder.decode(line)
        if record.error is not None:
            raise RecordedError(record.error)
        return self._value(record, line)

    @property
    def ids(self) -> set[str]:
        """The ids of the examples that have a record."""
        return {id for id, _ in self._where}

    def check_inputs(self, examples: Iterable[Example]) -> list[str]:
        recorded = self.ids
        first: str | None = None
        for example in examples:
            if example.id in recorded:
                return []
            first = first or example.id
        if first is None:
            return []
        return [
            f"no record of {self.path} belongs to an example: the records have ids such as {min(recorded)!r:.60}, the"
            f" examples such as {first!r:.60}; name the fields of the ids: {wording('--id', 'id=')} of the dataset and"
            f" {wording('--output-id', 'id=')} of the records, or id: in an experiment"
        ]

    def remark(self, ids: Iterable[str], attempts: int) -> str:
        """Say which records belong to no example, and whether there are more attempts than are asked for."""
        here = set(ids)
        strange = [id for id, _ in self._where if id not in here]
        later = sum(attempt > attempts for id, attempt in self._where if id in here)
        problems = []
        if strange:
            named = ", ".join(list(dict.fromkeys(strange))[:SHOWN])
            more = ", …" if len(set(strange)) > SHOWN else ""
            verb = "belongs" if len(strange) == 1 else "belong"
            problems.append(f"{self._share(len(strange))} {verb} to no example ({named}{more})")
        if later:
            verb = "is of a later attempt" if later == 1 else "are of later attempts"
            problems.append(f"{self._share(later)} {verb} than attempts={attempts} asks for")
        return f"{self.path.name}: {'; '.join(problems)}" if problems else ""

    def _share(self, count: int) -> str:
        return f"{count:,} of {len(self._where):,} records"

    def configuration(self) -> Any:
        output = {} if self._output is None else {"output": self._output.text}
        id = {} if self._id.text == "id" else {"id": self._id.text}
        return {"recorded": self._hash.hexdigest(), "name": self.name, **output, **id}

    def code(self) -> str | None:
        return "recorded"


class RecordedError(Exception):
    """A failure that was recorded elsewhere."""
