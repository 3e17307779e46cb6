"""Examples made in memory: taken in once, checked, encoded at once, and kept as they were."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from karat.datasets.fields import Parts, RowProblem, checked_id
from karat.datasets.identity import Identities, content_of
from karat.datasets.spool import Spool
from karat.errors import DataError, UnsupportedType, did_you_mean
from karat.records import Example
from karat.serialization import to_json_value

_FIELDS = ("id", "input", "expected", "metadata")
_FORMS = "give an Example, a mapping with 'input', or a tuple (input, expected, metadata)"


class _OnlyId(msgspec.Struct):
    id: str


_decode_id = msgspec.json.Decoder(_OnlyId).decode
_encode = msgspec.json.Encoder().encode


class MemoryExamples:
    """The examples of an iterable, which is gone through once."""

    def __init__(self, examples: Iterable[Example | Mapping[str, Any] | tuple[Any, ...]]) -> None:
        self._spool = Spool()
        identities = Identities("examples", "example", self._look_back)
        for place, given in enumerate(_iterable(examples), 1):
            self._spool.append(_taken_in(given, place, identities))
        self.dataset_id = identities.dataset_id
        self.count = identities.total

    def read(self, start: int) -> Iterator[tuple[str, bytes]]:
        """The id and the JSON of each example from a position on."""
        for line in itertools.islice(self._spool, start, None):
            yield _decode_id(line).id, line

    def _look_back(self, id: str, count: int) -> int | None:
        for place, (earlier, _) in enumerate(itertools.islice(self.read(0), count), 1):
            if earlier == id:
                return place
        return None


def _iterable(examples: Any) -> Iterable[Any]:
    if isinstance(examples, (str, bytes, Mapping, Example)) or not isinstance(examples, Iterable):
        raise DataError(f"from_examples takes a list of examples, not a {type(examples).__qualname__}")
    return examples


def _taken_in(given: Any, place: int, identities: Identities) -> bytes:
    try:
        id, input, expected, metadata = _parts(given)
        content = content_of(input, expected, metadata)
        if id is not None:
            id.encode()
        id = identities.add(id, content, place)
        return _encode(Example(id, input, expected, metadata))
    except RowProblem as problem:
        raise DataError(f"example {place}: {problem}") from None
    except UnsupportedType as error:
        raise UnsupportedType(f"example {place}: {error}") from None
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise UnsupportedType(
            f"example {place}: a text or the id holds {half}, half of a character (a lone surrogate),"
            " which UTF-8 cannot hold: replace it"
        ) from None


def _parts(given: Any) -> Parts:
    id: Any
    expected: Any
    metadata: Any
    if isinstance(given, Example):
        id, input, expected, metadata = given.id, given.input, given.expected, given.metadata
    elif isinstance(given, Mapping):
        _refuse_unknown(given)
        id, input = given.get("id"), given["input"]
        expected, metadata = given.get("expected"), given.get("metadata")
    elif isinstance(given, tuple) and 1 <= len(given) <= 3:
        id, (input, expected, metadata) = None, (*given, None, None)[:3]
    else:
        size = f" of {len(given)}" if isinstance(given, tuple) else ""
        raise RowProblem(f"it is a {type(given).__qualname__}{size}: {_FORMS}")
    kept = to_json_value(metadata, "metadata") if metadata is not None else {}
    if not isinstance(kept, dict):
        raise RowProblem(f"metadata is a {type(metadata).__qualname__}, not a mapping")
    checked = None if id is None else checked_id(to_json_value(id, "id"))
    return checked, to_json_value(input, "input"), to_json_value(expected, "expected"), kept


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    unknown = [key for key in given if key not in _FIELDS]
    if unknown:
        raise RowProblem(
            f"an example has no field {unknown[0]!r:.60}: {did_you_mean(str(unknown[0]), _FIELDS)}"
        )
    if "input" not in given:
        raise RowProblem(f"it has no 'input': {_FORMS}")
