"""Fences around untrusted text: a marker that the text cannot know, made from a secret key and the text itself.

The marker is a keyed hash of the judge's fingerprint and all parts of the material. The key lies beside the reply
cache, so repeating a judgment sends the same request and finds the kept reply; and no two texts share a marker.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path

_log = logging.getLogger("karat.judges")

KEY_BYTES = 32
_keys: dict[Path, bytes] = {}
_lock = threading.Lock()


def key_path() -> Path:
    """The file with the key: `judge.key` beside the reply cache."""
    from karat import models

    return models.cache_path().with_name("judge.key")


def fence_key() -> bytes:
    """The key of this user's fences; made on first use, readable by the owner alone."""
    path = key_path()
    with _lock:
        if path not in _keys:
            _keys[path] = _read(path) or _make(path)
        return _keys[path]


def _read(path: Path) -> bytes | None:
    try:
        text = path.read_text(encoding="ascii").strip()
        key = bytes.fromhex(text)
    except (OSError, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None


def _make(path: Path) -> bytes:
    """Write a new key; concurrent processes all use the key that was linked first."""
    key = secrets.token_bytes(KEY_BYTES)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(key.hex() + "\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            found = _read(path)
            if found is None:  # damaged: it protects nothing
                os.replace(draft, path)
                return key
            return found
        return key
    except OSError as error:
        _log.warning("%s cannot be written (%s): judgments of this process are not found again", path, error)
        return key
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def fence(fingerprint: str, parts: Mapping[str, str]) -> tuple[str, str]:
    """The material between its markers, and the marker."""
    digest = hashlib.blake2b(digest_size=8, key=fence_key())
    for text in (fingerprint, *(each for pair in parts.items() for each in pair)):
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    marker = digest.hexdigest()
    blocks = [
        f"[{marker} begin {name}]\n{_without(marker, text)}\n[{marker} end {name}]"
        for name, text in parts.items()
    ]
    return "\n\n".join(blocks), marker


def _without(marker: str, text: str) -> str:
    """A text in which the marker, in any case, is replaced; the regex is ten times as slow as the look before it."""
    if marker not in text.lower():
        return text
    return re.sub(re.escape(marker), "(marker removed)", text, flags=re.IGNORECASE)
