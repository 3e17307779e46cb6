"""Images and sounds in rows, made into `data:` addresses, so that prompts can hold them and stores can keep them.

A value may be the path of a file, bytes, `{bytes, path}` as Parquet files have them, an image of Pillow, or sound as
`{array, sampling_rate}`; a list of such values becomes a list. The type is detected from the first bytes. An
address stays an address: nothing is fetched.
"""

from __future__ import annotations

import base64
import io
import struct
import wave
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from karat.datasets.transformations import DataTransform, Row
from karat.errors import DataError, RequestError, with_article

LARGEST = 50_000_000
"""Bytes of one file; larger ones are refused, as no model takes them."""
ADDRESSES = ("data:", "http://", "https://")


class _AddressTransform(DataTransform):
    """What both share: which values are meant, and how they become addresses."""

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
                if field in row and (named or self._is_meant(row[field])):
                    where = f"record {number}: {self.kind} {field!r}"
                    out[renamed.get(field, field)] = self._address(row[field], where)
            yield out

    def _is_meant(self, value: Any) -> bool:
        """Whether a value of an undeclared field is media: an existing file, or content of that kind."""
        if isinstance(value, (list, tuple)):
            return bool(value) and all(self._is_meant(each) for each in value)
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
        return f"data:{self.kind}/{form};base64,{base64.b64encode(content).decode()}"

    def _content(self, value: Any, where: str) -> bytes:
        if isinstance(value, Mapping) and not value.get("bytes") and isinstance(value.get("path"), str):
            value = self.encoded(value) or value["path"]
        if isinstance(value, str):
            if not _is_file(value):
                raise DataError(f"{where}: there is no file {value!r:.200}")
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
    """Makes images into `data:` addresses: those of `fields`, else all that are found; `output_fields: {old: new}`."""

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

    def encoded(self, value: Any) -> bytes | None:
        if not (callable(getattr(value, "save", None)) and hasattr(value, "mode") and hasattr(value, "size")):
            return None
        file = io.BytesIO()
        value.save(file, format="PNG")
        return file.getvalue()


class CreateAudioUrlTransform(_AddressTransform):
    """Makes sounds into `data:` addresses: those of `fields`, else all that are found; `output_fields: {old: new}`."""

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
    channels = [samples] if not samples or not isinstance(samples[0], (list, tuple)) else list(samples)
    mixed = [min(1.0, max(-1.0, float(each))) for frame in zip(*channels, strict=True) for each in frame]
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(len(channels))
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(struct.pack(f"<{len(mixed)}h", *(round(each * 32767) for each in mixed)))
    return file.getvalue()
