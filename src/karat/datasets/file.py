"""Examples of a file: checked in a first pass, read again in every later one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from karat.datasets.fields import Parts, RowProblem, Selection
from karat.datasets.identity import Identities, Occurrences, content_of, hash_of, numbered
from karat.datasets.rows import BadRow, RowSource, describe
from karat.errors import DataError
from karat.records import Example

SKIPPED_KEPT = 1000

_encode = msgspec.json.Encoder().encode


class FileExamples:
    """The examples of a file. Of a row only a hash or two of 64 bits is kept, and only in the first pass."""

    def __init__(self, source: RowSource, selection: Selection, *, skip_bad_rows: bool = False) -> None:
        self._source = source
        self._selection = selection
        self._skip_bad_rows = skip_bad_rows
        self.skipped: list[BadRow] = []
        self.skipped_count = 0
        identities = Identities(str(source.path), source.unit, self._look_back)
        for line, parts in self._parts():
            if isinstance(parts, BadRow):
                self.skipped_count += 1
                if self.skipped_count <= SKIPPED_KEPT:
                    self.skipped.append(parts)
            else:
                id, input, expected, metadata = parts
                identities.add(id, content_of(input, expected, metadata), line)
        self.count = identities.total
        self.dataset_id = identities.dataset_id
        self._repeated = frozenset(identities.counts)
        if not self.count:
            self._refuse_empty()

    def read(self, start: int) -> Iterator[tuple[str, bytes]]:
        """The id and the JSON of each example from a position on."""
        return itertools.islice(self._records(), start, None)

    def _records(self) -> Iterator[tuple[str, bytes]]:
        occurrences = Occurrences(self._repeated)
        for _, parts in self._parts():
            if isinstance(parts, BadRow):
                continue
            id, input, expected, metadata = parts
            if id is None:
                id = occurrences.id(hash_of(content_of(input, expected, metadata)))
            yield id, _encode(Example(id, input, expected, metadata))

    def _parts(self) -> Iterator[tuple[int, Parts | BadRow]]:
        """What each row is; a bad one ends the reading unless it is to be skipped."""
        parts_of = self._selection.parts
        for line, row in self._source.read():
            parts = row
            if not isinstance(row, BadRow):
                try:
                    parts = parts_of(row)
                except RowProblem as problem:
                    parts = BadRow(line, None, str(problem))
            if isinstance(parts, BadRow) and not self._skip_bad_rows:
                raise DataError(describe(str(self._source.path), self._source.unit, parts))
            yield line, parts

    def _look_back(self, wanted: str, count: int) -> int | None:
        """The line of the example that has this very id: asked only when one seems to be taken."""
        hashed = wanted.partition("#")[0]
        occurrence = 0
        good = ((line, parts) for line, parts in self._parts() if not isinstance(parts, BadRow))
        for line, parts in itertools.islice(good, count):
            id, input, expected, metadata = parts
            if id is None and hash_of(content_of(input, expected, metadata)) == hashed:
                occurrence += 1
                id = numbered(hashed, occurrence)
            if id == wanted:
                return line
        return None

    def _refuse_empty(self) -> None:
        path = self._source.path
        if self.skipped_count:
            first = describe(str(path), self._source.unit, self.skipped[0])
            raise DataError(f"{path}: all {self.skipped_count} rows are bad, the first one being {first}")
        if self._source.format in ("csv", "tsv", "parquet"):
            raise DataError(f"{path} has a header and no rows")
        raise DataError(f"{path} is empty: it holds no rows")
