"""Transformations of rows before they become examples: rename, add, leave out, combine, skip.

Each is a class with `transform(rows, params)`. karat's own take and give an iterator, so that data larger than memory
goes through them; one that is written for lists gets a list.
"""

from __future__ import annotations

import base64
import io
import re
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, cast

from karat.errors import FAILURES, DataError, RequestError, did_you_mean, with_article
from karat.records import Value

Row = dict[str, Any]
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "none": False}
_RANGE = re.compile(r"\s*\[\s*(-?\d*)\s*:\s*(-?\d*)\s*\]\s*")


class DataTransform(ABC):
    """Base class of data transformations."""

    streams: bool = False
    """Whether `transform` takes any iterable, and not only a list."""
    parameters: tuple[str, ...] | None = None
    """The parameters it knows; None for one that checks them itself."""

    @property
    def name(self) -> str:
        """The name in messages."""
        return type(self).__name__

    @abstractmethod
    def transform(self, data: list[Row], params: dict[str, Any]) -> Iterable[Row]:
        """The rows after the transformation."""


class RenameFieldsTransform(DataTransform):
    """Rename fields: `mapping: {old: new}`. An existing field stays, unless `overwrite` is set."""

    streams = True
    parameters = ("mapping", "overwrite")

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        mapping = _names(self.name, _mapping(self.name, params, "{old: new}"))
        overwrite = _flag(self.name, params, "overwrite")
        for row in data:
            out = dict(row)
            for old, new in mapping.items():
                if old in out and (overwrite or new not in out):
                    out[new] = out.pop(old)
            yield out


class AddNewFieldTransform(DataTransform):
    """Add fields with fixed values: `mapping: {field: value}`."""

    streams = True
    parameters = ("mapping",)

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        mapping = _mapping(self.name, params, "{field: value}")
        return ({**row, **mapping} for row in data)


class SkipFieldsTransform(DataTransform):
    """Leave fields out: `fields: [a, b]`."""

    streams = True
    parameters = ("fields",)

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        fields = params.get("fields")
        if not isinstance(fields, list) or not fields:
            raise RequestError(f"{self.name} needs fields: a list of the fields to leave out")
        return ({key: value for key, value in row.items() if key not in fields} for row in data)


class AddRetryFieldsTransform(DataTransform):
    """Add the fields with which a graph counts retries: `max_retries`, `curr_retries`, the original text."""

    streams = True
    parameters = ("max_retries", "initial_retry_count", "original_current_user_text")

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        added = {
            "max_retries": params.get("max_retries", 3),
            "curr_retries": params.get("initial_retry_count", 0),
            "original_current_user_text": params.get("original_current_user_text") or "",
        }
        return ({**row, **added} for row in data)


class SkipRecords(DataTransform):
    """Leave rows out: by `count` from the start and the end, or by `range` ("[:10],[-10:]")."""

    streams = True
    parameters = ("skip_type", "count", "range")

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        kind = params.get("skip_type", "range")
        if kind == "count":
            return _without_ends(data, *_ends(self.name, "count", params.get("count"), "from_start"))
        if kind != "range":
            raise RequestError(f"{self.name}: skip_type is {kind!r}: it must be count or range")
        ranges = _ranges(str(params.get("range", "")), self.name)
        if all(start >= 0 and (end is None or end >= 0) for start, end in ranges):
            return _outside(data, ranges)
        rows = list(data)  # counted from the end: their number has to be known
        size = len(rows)
        from_start = [
            (_from_start(start, size), size if end is None else _from_start(end, size))
            for start, end in ranges
        ]
        return _outside(rows, from_start)


class CombineRecords(DataTransform):
    """Join `combine` rows into one, and advance by `shift`; `join_column` says how: `page: "$1-$2"`."""

    streams = True
    parameters = ("skip", "combine", "shift", "join_column")

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        combine, shift = (_read_integer(self.name, params, key, 1) for key in ("combine", "shift"))
        columns = params.get("join_column") or {}
        if not isinstance(columns, Mapping):
            raise RequestError(f"{self.name}: join_column must be a mapping, such as page: $1-$2")
        if combine < 1 or shift < 1:
            raise RequestError(f"{self.name}: combine and shift must be at least 1")
        rows = _without_ends(data, *_ends(self.name, "skip", params.get("skip"), "from_beginning"))
        if combine == 1:  # nothing to combine
            yield from rows
            return
        window: deque[Row] = deque()
        for row in rows:
            window.append(row)
            if len(window) == combine:
                yield {column: _combine(str(how), window, column) for column, how in columns.items()}
                for _ in range(min(shift, combine)):
                    window.popleft()
                for _ in islice(rows, max(0, shift - combine)):
                    pass


def _combine(how: str, rows: Iterable[Row], column: str) -> Any:
    """`$1` alone is the value itself; in a text, each `$n` is the nth value as text."""
    values = {f"${number}": row.get(column) for number, row in enumerate(rows, 1)}
    if how in values:
        return values[how]
    return re.sub(r"\$\d+", lambda match: str(values.get(match[0], match[0])), how)


def _ends(who: str, key: str, given: object, first: str) -> tuple[int, int]:
    """Return how many rows to drop at the start and at the end."""
    given = given or {}
    if not isinstance(given, Mapping):
        raise RequestError(f"{who}: {key} must be a mapping with {first} and from_end")
    for each in given:
        if each not in (first, "from_end"):
            raise RequestError(
                f"{who}: {key} has no {each!r}: {did_you_mean(str(each), (first, 'from_end'))}"
            )
    return _read_integer(who, given, first, 0), _read_integer(who, given, "from_end", 0)


def _read_integer(who: str, given: Mapping[str, Any], key: str, default: int) -> int:
    value = given.get(key, default)
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise RequestError(f"{who}: {key} must be a whole number, not {value!r:.60}") from None


def _without_ends(data: Iterable[Row], first: int, last: int) -> Iterator[Row]:
    kept: deque[Row] = deque()
    for row in islice(data, first, None):
        kept.append(row)
        if len(kept) > last:
            yield kept.popleft()


def _ranges(text: str, who: str) -> list[tuple[int, int | None]]:
    out = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise RequestError(f"{who}: range {part!r} is written [start:end], [:10] or [-10:]")
        out.append((int(match[1] or 0), int(match[2]) if match[2] else None))
    return out


def _from_start(place: int, size: int) -> int:
    return max(0, size + place) if place < 0 else place


def _outside(data: Iterable[Row], ranges: list[tuple[int, Any]]) -> Iterator[Row]:
    for at, row in enumerate(data):
        if not any(start <= at and (end is None or at < end) for start, end in ranges):
            yield row


def _flag(name: str, params: dict[str, Any], key: str) -> bool:
    """True or false, also as the words yes and no."""
    given = params.get(key, False)
    found = _FLAGS.get(str(given).lower())
    if found is None:
        raise RequestError(f"{name}: {key} is {given!r}: it must be true or false")
    return found


def _mapping(who: str, params: Mapping[str, Any], form: str) -> dict[str, Any]:
    mapping = params.get("mapping")
    if not isinstance(mapping, Mapping) or not mapping:
        raise RequestError(f"{who} needs mapping: {form}")
    return dict(mapping)


def _names(who: str, mapping: Mapping[str, Any]) -> dict[str, str]:
    for new in mapping.values():
        if not isinstance(new, str):
            raise RequestError(f"{who}: the new name of a field must be text, not {new!r:.60}")
    return dict(mapping)


OWN: dict[str, type[DataTransform]] = {
    "rename": RenameFieldsTransform,
    "add": AddNewFieldTransform,
    "skip_fields": SkipFieldsTransform,
    "skip_records": SkipRecords,
    "combine": CombineRecords,
}
"""Short names; any other transformation is named by its dotted path."""


ELSEWHERE = {
    "image_url": "karat.datasets.transformations.CreateImageUrlTransform",
    "audio_url": "karat.datasets.transformations.CreateAudioUrlTransform",
}
"""Short names of those that are imported only where they are used."""
SHORT = (*OWN, *ELSEWHERE)


def find_transform(name: str, load: Callable[[str], Any]) -> Any:
    """A transformation by its short name or dotted path, ready to be called."""
    if name.isidentifier() and name not in SHORT:
        raise RequestError(
            f"unknown transformation {name!r}: {did_you_mean(name, SHORT)} (or give a dotted name)"
        )
    part = OWN[name] if name in OWN else load(ELSEWHERE.get(name, name))
    try:
        made = part() if isinstance(part, type) else part
    except FAILURES as error:
        raise RequestError(f"{name} cannot be created without parameters: {error}") from error
    if not callable(getattr(made, "transform", None)):
        raise RequestError(f"{name} is not a transformation: it has no method transform(data, params)")
    return made


def check_params(made: DataTransform, params: Mapping[str, Any]) -> list[str]:
    """Parameters that a transformation does not know or cannot use; those of other code are known to it alone."""
    known = getattr(made, "parameters", None)
    if known is None:
        return []
    unknown = [
        f"{made.name} has no parameter {p!r}: {did_you_mean(str(p), known)}" for p in params if p not in known
    ]
    if unknown:
        return unknown
    try:
        list(made.transform([], dict(params)))
    except RequestError as error:
        return [str(error)]
    return []


def transformed(rows: Iterable[Row], made: DataTransform, params: dict[str, Any]) -> Iterator[Row]:
    """The rows after a transformation; one that does not stream gets them all at once."""
    given: object = made.transform(
        cast("list[Row]", iter(rows)) if getattr(made, "streams", False) else list(rows), params
    )
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        raise RequestError(f"{type(made).__name__} returned {type(given).__name__}, not rows")
    return iter(given)


# Images and sounds in rows, made into `data:` addresses, so that prompts can hold them and stores can keep them.
#
# A value may be the path of a file, bytes, `{bytes, path}` as Parquet files have them, an image of Pillow, or sound as
# `{array, sampling_rate}`; a list of such values becomes a list. The type is detected from the first bytes. An
# address stays an address: nothing is fetched.

LARGEST = 50_000_000
"""Bytes of one file; larger ones are refused, as no model takes them."""
ADDRESSES = ("data:", "http://", "https://")


class _AddressTransform(DataTransform):
    """Base of both: it selects the values, and converts them to addresses."""

    streams = True
    parameters = ("fields", "output_fields")
    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        named, renamed = params.get("fields") or [], params.get("output_fields") or {}
        if not isinstance(named, list) or not isinstance(renamed, Mapping):
            raise RequestError(f"{self.name}: fields is a list of fields, and output_fields {{field: field}}")
        for number, row in enumerate(data, 1):
            out = dict(row)
            for field in named or row:
                if field in row and (named or self._is_media(row[field])):
                    where = f"record {number}: {self.kind} {field!r}"
                    out[renamed.get(field, field)] = self._address(row[field], where)
            yield out

    def _is_media(self, value: Any) -> bool:
        """Whether a value of an undeclared field is media: an existing file, or content of that kind."""
        if isinstance(value, (list, tuple)):
            return bool(value) and all(self._is_media(each) for each in value)
        if isinstance(value, str):
            return value.lower().endswith(self.suffixes) and len(value) < 4096 and _is_file(value)
        content = value.get("bytes") if isinstance(value, Mapping) else value
        if isinstance(content, (bytes, bytearray)):
            return self.recognised(bytes(content[:32])) is not None
        return self.encoded(value) is not None

    def _address(self, value: Any, where: str) -> Any:
        if value is None or (isinstance(value, str) and value.startswith(ADDRESSES)):
            return value
        if isinstance(value, (list, tuple)):
            return [self._address(each, where) for each in value]
        content = self._content(value, where)
        form = self.recognised(content[:32])
        if form is None:
            raise DataError(f"{where} is not {with_article(self.kind)} of a known format")
        return _written_address(self.kind, form, content)

    def _content(self, value: Any, where: str) -> bytes:
        if isinstance(value, Mapping) and not value.get("bytes") and isinstance(value.get("path"), str):
            value = self.encoded(value) or value["path"]
        if isinstance(value, str):
            if not _is_file(value):
                raise DataError(f"{where}: file not found: {value!r:.200}")
            if Path(value).expanduser().stat().st_size > LARGEST:
                raise DataError(f"{where}: {value!r:.200} is larger than {LARGEST:,} bytes")
            return Path(value).expanduser().read_bytes()
        content = value.get("bytes") if isinstance(value, Mapping) else value
        if isinstance(content, (bytes, bytearray)):
            return bytes(content)
        made = self.encoded(value)
        if made is None:
            raise DataError(
                f"{where} is {with_article(type(value).__name__)}: it must be a path, bytes or a URL"
            )
        return made

    @abstractmethod
    def recognised(self, start: bytes) -> str | None:
        """The format that content with these first bytes has, as addresses name it."""

    @abstractmethod
    def encoded(self, value: object) -> bytes | None:
        """A file of an object that holds the content otherwise; None of any other object."""


def _is_file(path: str) -> bool:
    try:
        return Path(path).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # no path at all
        return False


class CreateImageUrlTransform(_AddressTransform):
    """Convert images to `data:` URLs: those of `fields`, or all that are found; `output_fields: {old: new}`."""

    kind = "image"
    suffixes = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff")

    def recognised(self, start: bytes) -> str | None:
        if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
            return "webp"
        for begins, form in (
            (b"\x89PNG\r\n\x1a\n", "png"),
            (b"\xff\xd8\xff", "jpeg"),
            (b"GIF8", "gif"),
            (b"BM", "bmp"),
            (b"II*\0", "tiff"),
            (b"MM\0*", "tiff"),
        ):
            if start.startswith(begins):
                return form
        return None

    def encoded(self, value: object) -> bytes | None:
        save = getattr(value, "save", None)
        if not (callable(save) and hasattr(value, "mode") and hasattr(value, "size")):
            return None
        file = io.BytesIO()
        save(file, format="PNG")
        return file.getvalue()


class CreateAudioUrlTransform(_AddressTransform):
    """Convert audio to `data:` URLs: those of `fields`, or all that are found; `output_fields: {old: new}`."""

    kind = "audio"
    suffixes = (".wav", ".mp3", ".ogg", ".flac", ".aac", ".m4a", ".aiff", ".aif")

    def recognised(self, start: bytes) -> str | None:
        if start.startswith(b"RIFF") and start[8:12] == b"WAVE":
            return "wav"
        if start.startswith(b"FORM") and start[8:12] in (b"AIFF", b"AIFC"):
            return "aiff"
        if start[4:8] == b"ftyp":
            return "mp4"
        for begins, form in ((b"ID3", "mpeg"), (b"OggS", "ogg"), (b"fLaC", "flac")):
            if start.startswith(begins):
                return form
        if len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0:  # the sync word of a frame
            return "aac" if start[1] & 0xF6 == 0xF0 else "mpeg"
        return None

    def encoded(self, value: object) -> bytes | None:
        if not isinstance(value, Mapping) or "array" not in value or "sampling_rate" not in value:
            return None
        samples = value["array"].tolist() if hasattr(value["array"], "tolist") else value["array"]
        return _wav(samples, int(value["sampling_rate"]))


def _wav(samples: Sequence[float], rate: int) -> bytes:
    """Samples from -1 to 1 (one channel, or a list for each) as a WAV file of 16 bits."""
    import wave

    channels = [samples] if not samples or not isinstance(samples[0], (list, tuple)) else list(samples)
    mixed = [min(1.0, max(-1.0, float(each))) for frame in zip(*channels, strict=True) for each in frame]
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(len(channels))
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(struct.pack(f"<{len(mixed)}h", *(round(each * 32767) for each in mixed)))
    return file.getvalue()


def addressed_media(value: object) -> Value:
    """A value with each image or sound in it, a file as `{bytes, path}`, as a `data:` address."""
    if isinstance(value, list):
        return [addressed_media(each) for each in value]
    if not isinstance(value, dict):
        return value
    content = value.get("bytes")
    if set(value) != {"bytes", "path"} or not isinstance(content, bytes):
        return {key: addressed_media(each) for key, each in value.items()}
    for made in (CreateImageUrlTransform(), CreateAudioUrlTransform()):
        if (form := made.recognised(content[:32])) is not None:
            return _written_address(made.kind, form, content)
    return value


def _written_address(kind: str, form: str, content: bytes) -> str:
    return f"data:{kind}/{form};base64,{base64.b64encode(content).decode()}"
