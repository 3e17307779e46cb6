"""Search for a text in records: the store compares their bytes, and only those that may match are decoded.

A filter ignores case by Unicode's case folding, looks into texts as they are and into other values as JSON. The store
knows none of that. So each text becomes patterns that no matching record escapes, and what the store finds with them
is tested as a joined row would be.
"""

from __future__ import annotations

import time
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from karat import paths
from karat.analysis import filters
from karat.errors import TookTooLong
from karat.records import Example, ItemResult, Output
from karat.serialization import encode
from karat.store.backend import Mark, RecordDecoder, StoredRow, TextPattern, latest
from karat.store.columns import ItemName, distinct, item_name
from karat.store.rows import Judged, error_text, judged_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from karat.analysis.tables import RunTable
    from karat.store.backend import Backend
    from karat.store.handles import Evaluation, Run, StoredDataset

    Mask = NDArray[np.bool_]

LONGEST = 64
"""Characters of a text that the store looks for; the time that LIKE takes grows with them."""
POSITIONS = 4096
"""Positions that are searched by one query …"""
APART = 16
"""… unless two that follow each other are further apart."""
READ_POSITIONS = 512
READ_BYTES = 4 << 20
"""Positions, or about so many bytes, whose records are read together."""

FOLDED_TO_ASCII = (
    "\u00df\u0130\u0149\u017f\u01f0\u1e96\u1e97\u1e98\u1e99\u1e9a\u1e9e\u212a"
    "\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"
)
"""Every character beyond ASCII whose case folding has an ASCII letter."""


# Patterns ------------------------------------------------------------------------


def patterns_of(text: str) -> list[TextPattern]:
    """Patterns one of which every record matches that contains a text."""
    folded = text.casefold()
    inside = encode(folded).decode()[1:-1]  # as it stands within a text of the record
    spellings = {inside: None}
    if folded != inside and min(folded) >= " ":  # JSON has no control characters
        spellings[folded] = None  # as a part of a value that is shown as JSON
    found = [pattern for spelling in spellings for pattern in _patterns([spelling])]
    # An error is shown as `type: message`, and stored as two texts.
    for place, letter in enumerate(folded):
        rest = folded[place + 1 :]
        if letter == ":" and (not rest or rest[0] == " "):
            found += _patterns([encode(part).decode()[1:-1] for part in (folded[:place], rest[1:])])
    if folded.startswith(" "):
        found += _patterns([encode(folded[1:]).decode()[1:-1]])
    return list(dict.fromkeys(found))


def _patterns(parts: Sequence[str]) -> Iterator[TextPattern]:
    """The patterns of folded texts that follow each other: without, and with, characters that fold to ASCII."""
    parts = [part[:LONGEST] for part in parts]
    beyond = not all(part.isascii() for part in parts)
    yield TextPattern(tuple(piece for part in parts for piece in _pieces(part, "")), beyond)
    letters = set("".join(parts))
    odd = "".join(each for each in FOLDED_TO_ASCII if letters.intersection(each.casefold()))
    if odd:
        anywhere = "".join(each.casefold() for each in odd)
        yield TextPattern(tuple(piece for part in parts for piece in _pieces(part, anywhere)), True, odd)


def _pieces(text: str, left_out: str) -> list[str]:
    """The parts of a folded text that stand in the record as they are, but for the case of ASCII letters."""
    pieces = "".join(letter if _is_kept(letter, left_out) else "\0" for letter in text).split("\0")
    return [piece for piece in pieces if piece]


def _is_kept(letter: str, left_out: str) -> bool:
    if letter in left_out:
        return False
    if letter.isascii():
        return True
    # No other character folds to one without case that is neither a mark nor a modifier.
    kind = unicodedata.category(letter)
    return letter.upper() == letter == letter.lower() and kind[0] != "M" and kind != "Lm"


# Records -------------------------------------------------------------------------


class _Part(NamedTuple):
    """A kind of record that has values of a field: the example, the output, or the results by one evaluator."""

    parent: int
    takes: Callable[[ItemName], bool] | None
    """Which items of the parent belong to it; None for examples, which have none."""
    kind: str
    values: Callable[[bytes], Sequence[Any]]
    """The values of the field in a record."""


Leaf = filters.Condition | filters.TextSearch


def search(table: RunTable, leaf: Leaf, within: Mask | None = None) -> Mask:
    """The rows that satisfy a condition on what records have; nothing is said of rows that are not `within`."""
    if isinstance(leaf, filters.Condition) and leaf.op == "!=":
        return ~search(table, filters.Condition(leaf.field, "=", leaf.value, leaf.quoted), within)
    parts, hit = _parts(table, leaf), _test(leaf)
    missing = hit((None,))
    found = np.full(len(table), missing and not parts)
    chosen = table.positions if within is None else table.positions[within]
    places = distinct(chosen).tolist()
    reader = _Reader(table, hit, None if missing else _patterns_of(leaf), parts)
    deadline = time.monotonic() + table.text_seconds
    done = 0
    for some in _ranges(places):
        reader.read(some)
        done += len(some)
        if time.monotonic() > deadline and done < len(places):
            raise TookTooLong(
                f"the search read {done:,} of {len(places):,} examples in {table.text_seconds:g} s: narrow it"
                " with other conditions"
            )
    for mask in reader.masks(missing):
        found |= mask
    return found


def candidate_positions(
    handles: Sequence[StoredDataset | Run | Evaluation], parsed: filters.Filter
) -> list[int] | None:
    """Positions outside of which no row satisfies a filter; None where its texts do not narrow them."""
    expression = parsed.expression
    parts = expression.parts if isinstance(expression, filters.All) else (expression,)
    leaves = [
        each
        for each in parts
        if isinstance(each, filters.TextSearch)
        or (isinstance(each, filters.Condition) and each.field in filters.TEXTS and _patterns_of(each))
    ]
    if not leaves:
        return None
    left: set[int] | None = None
    for leaf in leaves:
        patterns = _patterns_of(leaf) or ()
        found: set[int] = set()
        for handle in handles:
            backend, extent = handle.store.backend, handle.store.backend.extent(handle.number)
            for start in range(0, extent, POSITIONS):
                marks = backend.marks_matching(handle.number, start, start + POSITIONS, patterns)
                found.update(mark.position for mark in marks)
        left = found if left is None else left & found
    return sorted(left or ())


def _patterns_of(leaf: Leaf) -> list[TextPattern] | None:
    """The patterns of the records that satisfy a condition; None where any record may."""
    if isinstance(leaf, filters.TextSearch):
        return patterns_of(leaf.text)
    if leaf.op == "~" or (leaf.op in (":", "=") and leaf.number is None and not leaf.is_missing):
        return patterns_of(leaf.value)
    return None


def _test(leaf: Leaf) -> Callable[[Sequence[Any]], bool]:
    if isinstance(leaf, filters.Condition):
        return lambda values: filters.holds(leaf, values)
    condition = filters.Condition("", "~", leaf.text, True)
    return lambda values: filters.holds(condition, values)


def _parts(table: RunTable, leaf: Leaf) -> list[_Part]:
    """The kinds of records that have the field of a condition."""
    field = None if isinstance(leaf, filters.TextSearch) else leaf.field
    key, _, name = (field or "").rpartition(".")
    found = []
    if field is None or field in ("id", "input", "expected"):
        found.append(_search_examples(table, _example_values(field)))
    if field in (None, "output", "error"):
        found.append(_search_outputs(table, field))
    if field in (None, "comment", "error"):
        found += [_search_results(table, each, field) for each in table.results]
    elif key in table.results:
        found.append(_search_results(table, key, name))
    elif field is not None and field not in filters.FIELDS:
        found.append(_search_examples(table, _metadata_values(field.removeprefix("metadata."))))
    return found


def _example_values(field: str | None) -> Callable[[Example], Sequence[Any]]:
    if field is None:
        return lambda example: (example.id, example.input, example.expected)
    return lambda example: (getattr(example, field),)


def _metadata_values(field: str) -> Callable[[Example], Sequence[Any]]:
    def values(example: Example) -> Sequence[Any]:
        value = paths.get(example.metadata, field)
        return value if isinstance(value, (list, tuple)) else (value,)

    return values


def _search_examples(table: RunTable, values: Callable[[Example], Sequence[Any]]) -> _Part:
    decode = RecordDecoder(Example).decode
    return _Part(table.run.dataset.number, None, "dataset", lambda payload: values(decode(payload)))


def _search_outputs(table: RunTable, field: str | None) -> _Part:
    decode = RecordDecoder(Output).decode

    def values(payload: bytes) -> Sequence[Any]:
        output = decode(payload)
        if field == "output":
            return (output.value,)
        error = error_text(output.outcome)
        return (error,) if field == "error" else (output.value, error)

    return _Part(table.run.number, lambda item: True, "run", values)


def _search_results(table: RunTable, key: str, field: str | None) -> _Part:
    decode, evaluation = RecordDecoder(ItemResult).decode, table.sources[key]
    header = evaluation.header
    place = next(i for i, spec in enumerate(header.evaluators) if spec.key == key)
    runs = (header.runs.index(table.run.id),)

    def values(payload: bytes) -> Sequence[Any]:
        judged: Judged = judged_of(decode(payload))
        if field is None:
            return (judged.error, judged.comment or None)
        value = getattr(judged, field)
        return (value or None if field == "comment" else value,)

    return _Part(
        evaluation.number, lambda item: item.evaluator == place and item.runs == runs, "evaluation", values
    )


class _Reader:
    """Tests the records of one range of positions after another."""

    def __init__(
        self,
        table: RunTable,
        hit: Callable[[Sequence[Any]], bool],
        patterns: Sequence[TextPattern] | None,
        parts: Sequence[_Part],
    ) -> None:
        self.table = table
        self.backend: Backend = table.run.store.backend
        self.hit = hit
        self.patterns = patterns
        self.parts = parts
        self._codes: Mapping[tuple[int, str], int] = {name: code for code, name in enumerate(table.names)}
        # Of each part the records that were tested, or with patterns those that were found.
        self._positions = [array("q") for _ in parts]
        self._names = [array("q") for _ in parts]
        self._verdicts = [array("b") for _ in parts]
        self._items: list[dict[str, int]] = [{} for _ in parts]
        self._read_at_once = APART

    def read(self, positions: Sequence[int]) -> None:
        """Test the records at positions that are near each other."""
        left = set(positions)
        by_parent: dict[int, list[int]] = {}
        for place, part in enumerate(self.parts):
            by_parent.setdefault(part.parent, []).append(place)
        for parent, places in by_parent.items():
            if not left:
                return
            self._read_parent(parent, places, left)

    def _read_parent(self, parent: int, places: Sequence[int], left: set[int]) -> None:
        start, stop = min(left), max(left) + 1
        if self.patterns is None:
            marks: Sequence[Mark] = self.backend.marks(parent, start, stop)
        else:
            marks = self.backend.marks_matching(parent, start, stop, self.patterns)
        wanted = {(mark.position, mark.item) for mark in marks if mark.position in left}
        ordered = sorted({position for position, _ in wanted})
        at = 0
        while at < len(ordered):
            some = ordered[at : at + self._read_at_once]
            at += len(some)
            rows = self.backend.scan_at(parent, some)
            size = sum(len(row.payload) for row in rows) // len(some) + 1
            self._read_at_once = max(1, min(READ_POSITIONS, 4 * self._read_at_once, READ_BYTES // size))
            for row in latest(rows):
                if (row.position, row.item) in wanted:
                    self._test(row, places, left)

    def _test(self, row: StoredRow, places: Sequence[int], left: set[int]) -> None:
        for place in places:
            code = self._code(place, row.item)
            if code < 0:
                continue
            part = self.parts[place]
            verdict = self.hit(part.values(row.payload))
            if verdict or self.patterns is None:
                self._positions[place].append(row.position)
                self._names[place].append(code)
                self._verdicts[place].append(verdict)
            if verdict and part.takes is None:
                left.discard(row.position)  # every row of the example is found

    def _code(self, place: int, item: str) -> int:
        """The place of an item's row among the names of the table; −1 where it belongs to no row of this part."""
        part, known = self.parts[place], self._items[place]
        if part.takes is None:
            return 0
        found = known.get(item)
        if found is None:
            name = item_name(item, part.kind)
            code = self._codes.get((name.attempt, name.unit), -1) if part.takes(name) else -1
            found = known[item] = code
        return found

    def masks(self, missing: bool) -> Iterator[Mask]:
        """The rows that each part has found; `missing` is said of those without a record."""
        for place, part in enumerate(self.parts):
            positions = np.frombuffer(self._positions[place], np.int64)
            verdicts = np.frombuffer(self._verdicts[place], np.int8).astype(bool)
            if part.takes is None:
                extent = int(max(positions.max(initial=-1), self.table.positions.max(initial=-1))) + 1
                of_examples = np.full(extent, missing)
                of_examples[positions] = verdicts
                yield of_examples[self.table.positions]
                continue
            mask = np.full(len(self.table), missing)
            rows = self.table.rows_of(positions, np.frombuffer(self._names[place], np.int64))
            mask[rows[rows >= 0]] = verdicts[rows >= 0]
            yield mask


def _ranges(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Positions in groups that one query reads."""
    start = 0
    for place in range(1, len(positions) + 1):
        ends = place == len(positions) or positions[place] - positions[place - 1] > APART
        if ends or place - start >= POSITIONS:
            yield positions[start:place]
            start = place
