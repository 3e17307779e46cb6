"""Images, audio and files as parts of a message: a local path becomes data inside of the request, checked first.

A part with a `path` is read here: `{type: image, path: cat.png}`, `{type: audio, path: …}`, `{type: file, path: …}`.
What is sent is decided by the file's first bytes and not by its name: a path that comes from a dataset can lead
nowhere but to a picture, a sound or a document of these kinds. A part may also be a field of a record, which a prompt
then holds in place of `{field}`; its file has to be below the current folder.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from karat.errors import RequestError

LARGEST_FILE = 20 << 20
"""Bytes. Providers take between 5 and 20 MB for an image, and 32 MB for a whole request."""

KINDS: dict[str, dict[bytes, str]] = {
    "image": {
        b"\x89PNG\r\n\x1a\n": "image/png",
        b"\xff\xd8\xff": "image/jpeg",
        b"GIF87a": "image/gif",
        b"GIF89a": "image/gif",
        b"RIFF": "image/webp",
    },
    "audio": {
        b"RIFF": "audio/wav",
        b"ID3": "audio/mpeg",
        b"\xff\xfb": "audio/mpeg",
        b"\xff\xf3": "audio/mpeg",
    },
    "file": {b"%PDF-": "application/pdf"},
}
_RIFF = {"image": b"WEBP", "audio": b"WAVE"}


def with_media(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its files read and the size of its media checked."""
    content = message.get("content")
    if not isinstance(content, (list, tuple)):
        return dict(message)
    return {**message, "content": [_read(part) for part in content]}


def message_content(pieces: Sequence[str | tuple[Any]]) -> str | list[Any]:
    """The content of a message from literal texts and the values of fields, each in a tuple.

    It is a text, with values that are not text as JSON, unless a value is a part such as `{type: image, path: …}`, or a
    list of parts: then it is a list of parts, in the same order.
    """
    out: list[str | list[Any]] = []
    for piece in pieces:
        if isinstance(piece, str):
            out.append(piece)
        elif isinstance(piece[0], str):
            out.append(piece[0])
        else:
            parts = _media_parts(piece[0])
            out.append(msgspec.json.encode(piece[0]).decode() if parts is None else parts)
    texts = [piece for piece in out if isinstance(piece, str)]
    return "".join(texts) if len(texts) == len(out) else _parts(out)


def _parts(pieces: Sequence[str | list[Any]]) -> list[Any]:
    out: list[Any] = []
    text = ""
    for piece in (*pieces, []):
        if isinstance(piece, str):
            text += piece
            continue
        if text.strip():
            out.append({"type": "text", "text": text})
        text = ""
        out += piece
    return out


def _media_parts(value: Any) -> list[Any] | None:
    """The parts in a field of a record: one part, or a list of parts that has an image, a sound or a file."""
    if isinstance(value, Mapping):
        return [_own_file(value)] if _is_media(value) else None
    if not isinstance(value, (list, tuple)) or not any(map(_is_media, value)):
        return None
    if not all(_is_media(part) or _is_text(part) for part in value):
        return None
    return [_own_file(part) for part in value]


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _is_media(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    if kind in KINDS and isinstance(part.get("path"), str):
        return True
    return kind in ("image_url", "input_audio", "file") and isinstance(part.get(kind), (str, Mapping))


def _own_file(part: Any) -> Any:
    """A part of a record; its file has to be below the current folder, because records may come from others."""
    path = part.get("path")
    if isinstance(path, str):
        try:
            inside = Path(path).resolve().is_relative_to(Path.cwd().resolve())
        except (OSError, ValueError):
            inside = False
        if not inside:
            raise RequestError(
                f"{path[:200]!r}: a file that a record names has to be below the current folder: move it,"
                " or name its field as the path of a part in the prompt"
            )
    return part


def _check_size(part: Mapping[str, Any]) -> None:
    """Refuse data inside of a part that is larger than a file may be."""
    inside = part.get(str(part.get("type")))
    values = [*inside.values()] if isinstance(inside, Mapping) else [inside]
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    if longest > LARGEST_FILE * 4 / 3 + 200:  # in base64, with the head of a data URL
        raise RequestError(
            f"a part of the type {part.get('type')!r} has {longest * 3 // 4 >> 20} MB:"
            f" at most {LARGEST_FILE >> 20} MB can be sent"
        )


def _read(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    if "path" not in part:
        if part.get("type") != "text":
            _check_size(part)
        return part
    kind, path = part.get("type"), part["path"]
    if kind not in KINDS:
        raise RequestError(f"a part with a path has the type {kind!r}: one of {', '.join(KINDS)} is expected")
    content = _content(path)
    media = _media_type(kind, content)
    if media is None:
        raise RequestError(
            f"{path} is no {kind} that models take: {', '.join(sorted(set(KINDS[kind].values())))}"
        )
    data = base64.b64encode(content).decode()
    if kind == "image":
        image = {"url": f"data:{media};base64,{data}"}
        if part.get("detail"):
            image["detail"] = str(part["detail"])
        return {"type": "image_url", "image_url": image}
    if kind == "audio":
        sound = {"data": data, "format": "wav" if media == "audio/wav" else "mp3"}
        return {"type": "input_audio", "input_audio": sound}
    return {"type": "file", "file": {"filename": Path(path).name, "file_data": f"data:{media};base64,{data}"}}


def _content(path: Any) -> bytes:
    if not isinstance(path, str) or not path:
        raise RequestError(f"the path of a part is {path!r}: the name of a file is expected")
    file = Path(path).expanduser()
    try:
        if not file.is_file():
            raise RequestError(f"{path}: there is no such file")
        size = file.stat().st_size
        if size > LARGEST_FILE:
            raise RequestError(f"{path} has {size >> 20} MB: at most {LARGEST_FILE >> 20} MB can be sent")
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read: {type(error).__name__}") from None


def _media_type(kind: str, content: bytes) -> str | None:
    for begins, media in KINDS[kind].items():
        if content.startswith(begins) and (begins != b"RIFF" or content[8:12] == _RIFF[kind]):
            return media
    return None
