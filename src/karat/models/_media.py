"""Images, audio and files as parts of a message: a local path becomes data inside of the request, checked first.

A part with a `path` is read here: `{type: image, path: cat.png}`, `{type: audio, path: …}`, `{type: file, path: …}`.
What is sent is decided by the file's first bytes and not by its name: a path that comes from a dataset can lead
nowhere but to a picture, a sound or a document of these kinds.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    """The message with its files read; other parts stay as they are."""
    content = message.get("content")
    if not isinstance(content, (list, tuple)) or not any(
        isinstance(part, Mapping) and "path" in part for part in content
    ):
        return dict(message)
    return {**message, "content": [_read(part) for part in content]}


def _read(part: Any) -> Any:
    if not isinstance(part, Mapping) or "path" not in part:
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
