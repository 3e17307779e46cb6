"""The user's cache of columns that a store does not have: those of older stores, and those of datasets.

Files are named by what they describe and its state, readable by their owner alone, checked when they are read, and
removed, oldest first, when they take more than a gibibyte together. Without a place to write to, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from karat.store.handles import Evaluation, Run

MOST_BYTES = 1 << 30
_HEAD = b"karat-columns-1\n"


def cache_folder() -> Path:
    """Beside the reply cache that `$KARAT_CACHE` names; else `$XDG_CACHE_HOME/karat` or the system's place."""
    chosen = os.environ.get("KARAT_CACHE")
    if chosen:  # the variable names a file: a folder of that name would take its place
        return Path(f"{chosen}-columns")
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        base = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(base).expanduser() / "karat" / "columns"


def cached_segments(
    handle: Run | Evaluation, make: Callable[[], Iterator[tuple[int, int, bytes]]]
) -> Iterator[tuple[int, int, bytes]]:
    """The segments of something finished, from the cache or made and put there; of anything else, made."""
    finished = handle.header.finished
    if finished is None:
        yield from make()
        return
    counts = sorted(handle.store.backend.counts(handle.number).items())
    name = f"{handle.store.url}\n{handle.id}\n{handle.header.created!r}\n{finished!r}\n{counts}"
    found = read_cached(name)
    if found is not None:
        for number, payload in enumerate(found, 1):
            yield number, 0, payload
        return
    payloads: list[bytes] = []
    for segment in make():
        payloads.append(segment[2])
        yield segment
    write_cached(name, payloads)


def _file(name: str) -> Path:
    return cache_folder() / hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def read_cached(name: str) -> list[bytes] | None:
    """The parts that were kept under a name; None where there are none, or the file is damaged or not ours."""
    path = _file(name)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            data = file.read()
    except OSError:
        return None
    head, body = data[: len(_HEAD)], memoryview(data)[len(_HEAD) + 4 :]
    if head != _HEAD or crc32(body) != int.from_bytes(data[len(_HEAD) : len(_HEAD) + 4], "little"):
        return None
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 8], "little")
        parts.append(bytes(body[at + 8 : at + 8 + size]))
        at += 8 + size
    with contextlib.suppress(OSError):
        os.utime(path)
    return parts


def write_cached(name: str, parts: list[bytes]) -> None:
    """Keep parts under a name, where that is possible."""
    path = _file(name)
    body = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_HEAD + crc32(body).to_bytes(4, "little") + body)
            Path(temporary).replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        _prune(path.parent)
    except OSError:
        return


def _prune(folder: Path) -> None:
    entries = sorted(((each.stat(), each) for each in folder.iterdir()), key=lambda pair: pair[0].st_mtime)
    total = sum(stat.st_size for stat, _ in entries)
    for stat, path in entries:
        if total <= MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= stat.st_size
