"""Files of records, written one record at a time: JSON, JSONL, CSV and Parquet. A file appears whole or not at all."""

from __future__ import annotations

import csv
import errno
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

from karat.errors import DiskFull, KaratError, MissingDependency, RequestError
from karat.serialization import encode, encode_record

FORMATS = ("json", "jsonl", "csv", "parquet")
ANY, TEXT, NUMBER, WHOLE = "any", "text", "number", "whole"
"""Kinds of a column. What may be anything is JSON text in CSV and Parquet, except that CSV keeps a plain text."""

BATCH = 1000
_UNSEEN = (
    r"\x00-\x1f\x7f-\x9f\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    r"\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
)
"""Controls, spaces other than U+0020, and characters that nothing shows."""
_SIGNS = r"=+\-@\t\r\n\u2212\ufe62\ufe63\ufe66\ufe6b\uff0b\uff0d\uff1d\uff20"
"""`=`, `+`, `-` and `@`, also full-width and small, which East Asian input methods and locales treat alike; the minus
sign; and what begins another cell or line."""
_FORMULA = re.compile(rf"'*[{_UNSEEN}]*[{_SIGNS}]")
"""How a cell begins that a spreadsheet would execute, or would once an import has trimmed or normalised it. A leading
U+0020 makes it text in every spreadsheet, and lists are indented with it. An apostrophe makes a cell text; one that has
an apostrophe already gets another, so that each can be read back."""


class RecordWriter(Protocol):
    """A writer of records to an open file."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Write one record."""

    def end(self) -> None:
        """Write the end of the file."""


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces `path` when it is complete. After an error `path` is as it was.

    A symbolic link stays, and its target is replaced. Devices, FIFOs and open descriptors such as `/dev/stdout` are
    written to directly. A database is refused: it may be the store itself.

    What killed processes left of earlier ones is removed: a process holds a lock on its file, which ends with it.
    """
    path, descriptor = _target(path)
    if descriptor is not None or not _is_replaceable(path):
        with os.fdopen(
            os.open(path, os.O_WRONLY) if descriptor is None else os.dup(descriptor), "wb"
        ) as file:
            yield file
        return
    prefix = f".{path.name[:200]}."
    _remove_abandoned(path.parent, prefix)
    descriptor, temporary = tempfile.mkstemp(prefix=prefix, suffix=UNFINISHED, dir=path.parent)
    # the lock is held by another descriptor too, until the file has its name
    held = os.dup(descriptor) if _lock(descriptor) else None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        _refuse_database(path)  # it may have been created since the first check
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        if held is not None:
            os.close(held)


def write_whole(path: str | Path, content: str) -> None:
    """Write a text as a whole file; raises RequestError where that is not possible."""
    try:
        with whole_file(Path(path)) as file:
            file.write(content.encode())
    except OSError as error:
        raise unwritable(path, error) from error


_MOST_LINKS = 40
"""Symbolic links that are followed, as many as Linux follows."""
_DESCRIPTOR = re.compile(r"/(?:proc/(?:self|thread-self|\d+(?:/task/\d+)?)|dev)/fd/(\d+)")


def _target(path: Path) -> tuple[Path, int | None]:
    """The file behind symbolic links, and the open descriptor that the path names, as /dev/stdout does.

    A database is refused.
    """
    try:
        _refuse_database(path)
        place = os.path.abspath(path)
        for _ in range(_MOST_LINKS):
            place = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
            named = _DESCRIPTOR.fullmatch(place)
            if named and (place.startswith("/dev/") or f"/{os.getpid()}/" in place):
                return Path(place), int(named[1])
            if (
                not os.path.islink(place) or named
            ):  # links of other processes lead to places that have no name
                return Path(place), None
            place = os.path.join(os.path.dirname(place), os.readlink(place))
    except ValueError as error:
        raise OSError(errno.EINVAL, "a path cannot contain NUL") from error
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _is_replaceable(path: Path) -> bool:
    """Whether a path is free or a regular file; raises IsADirectoryError for a folder."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    return stat.S_ISREG(mode) and not _DESCRIPTOR.fullmatch(str(path))


_DATABASE = b"SQLite format 3\0"
_kept_open: list[int] = []
"""Descriptors of databases: closing one would drop the locks that this process has on its store (fcntl(2))."""
_LOGS = ("-wal", "-shm", "-journal")
"""What is appended to the name of a database to name its logs."""


def _refuse_database(path: Path) -> None:
    """Raise RequestError for a file that is a SQLite database, as stores and reply caches are, or a log of one."""
    place = os.path.realpath(path)
    logged = next((place.removesuffix(end) for end in _LOGS if place.endswith(end)), None)
    if _is_database(path):
        what = "a store or another SQLite database"
    elif logged is not None and _is_database(logged):
        what = f"a log of the database {logged}"
    else:
        return
    raise RequestError(f"{path} is {what}, which writing would destroy: choose another file")


def _is_database(path: str | Path) -> bool:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a FIFO would wait for its writer
            return False
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    found = os.read(descriptor, len(_DATABASE)) == _DATABASE
    if found:
        _kept_open.append(descriptor)
    else:
        os.close(descriptor)
    return found


UNFINISHED = ".unfinished"

EMPTY_SECONDS = 60.0
"""A younger file without content may be one that is about to be locked."""


def _lock(descriptor: int) -> bool:
    """Lock a file and return whether that worked; it does not where another holds it, or where there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _remove_abandoned(folder: Path, prefix: str) -> None:
    names: list[str] = []
    with suppress(OSError):  # a folder may be written to and not listed
        names = os.listdir(folder)
    for name in names:
        if name.startswith(prefix) and name.endswith(UNFINISHED):
            with suppress(OSError), open(folder / name, "rb") as file:
                found = os.fstat(file.fileno())
                settled = found.st_size or time.time() - found.st_mtime > EMPTY_SECONDS
                if settled and _lock(file.fileno()):
                    os.unlink(folder / name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_writable(path: Path) -> None:
    """Raise RequestError if a file cannot be written; create its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path, opened = _target(path)
        if opened is not None:
            return
        if not _is_replaceable(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:200]}.", dir=path.parent)
        os.close(descriptor)
        os.unlink(temporary)
    except OSError as error:
        raise unwritable(path, error) from error
    except ValueError as error:
        raise RequestError(f"{path} cannot be written: {error}") from error


@contextmanager
def record_file(path: Path, format: str, *, stored: bool = False) -> Iterator[RecordWriter]:
    """A file that holds records, whole or not at all; its folder is made. For `stored` see `record_writer`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        writer = record_writer(file, format, stored=stored)
        yield writer
        writer.end()


def record_writer(
    file: IO[bytes],
    format: str,
    *,
    columns: Mapping[str, str] | None = None,
    head: Mapping[str, Any] | None = None,
    stored: bool = False,
) -> RecordWriter:
    """Return the writer of a format.

    `columns` are the names and kinds of the columns of CSV, by default the fields of the first record; Parquet takes
    the types of the first thousand records. With `head`, JSON is that object with the records under `records`,
    otherwise a list. `stored` records were decoded from JSON, and JSON is made of them without looking at their values.
    """
    if format == "json":
        return _Json(file, head, encode_record if stored else encode)
    if format == "jsonl":
        return _JsonLines(file, encode_record if stored else encode)
    if format == "csv":
        return _Csv(file, columns, encode_record if stored else encode)
    return _Parquet(file)


class _Json:
    def __init__(
        self, file: IO[bytes], head: Mapping[str, Any] | None, encode_each: Callable[[object], bytes]
    ) -> None:
        self._file = file
        self._encode_each = encode_each
        self._before = b"[\n"
        self._after = b"\n]\n"
        self._empty = b"[]\n"
        if head is not None:
            start = encode(head)[:-1] + (b"," if head else b"")
            self._before, self._after, self._empty = (
                start + b'"records":[\n',
                b"\n]}\n",
                start + b'"records":[]}\n',
            )
        self._count = 0

    def add(self, record: Mapping[str, Any]) -> None:
        self._file.write((b",\n" if self._count else self._before) + self._encode_each(record))
        self._count += 1

    def end(self) -> None:
        self._file.write(self._after if self._count else self._empty)


class _JsonLines:
    def __init__(self, file: IO[bytes], encode_each: Callable[[object], bytes]) -> None:
        self._file = file
        self._encode_each = encode_each

    def add(self, record: Mapping[str, Any]) -> None:
        self._file.write(self._encode_each(record) + b"\n")

    def end(self) -> None:
        pass


class _Csv:
    def __init__(
        self,
        file: IO[bytes],
        columns: Mapping[str, str] | None,
        encode_each: Callable[[object], bytes] = encode,
    ) -> None:
        self._file = file
        self._encode_each = encode_each
        self._writer = csv.writer(self)
        self._columns: list[str] | None = None
        if columns is not None:
            self._begin(columns)

    def write(self, text: str) -> None:
        """Take what the csv module writes."""
        self._file.write(text.encode())

    def _begin(self, columns: Mapping[str, Any]) -> None:
        self._columns = list(columns)
        self._writer.writerow([_cell(name) for name in self._columns])

    def add(self, record: Mapping[str, Any]) -> None:
        if self._columns is None:
            self._begin(record)
        self._writer.writerow([_cell(record.get(name), self._encode_each) for name in self._columns or ()])

    def end(self) -> None:
        pass


def guarded(text: str) -> str:
    """The text of a cell, with an apostrophe before it if it begins as a formula does."""
    return f"'{text}" if _FORMULA.match(text) else text


def _cell(value: Any, encode_each: Callable[[object], bytes] = encode) -> Any:
    if isinstance(value, str):
        return guarded(value)
    plain = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    return value if plain else encode_each(value).decode()


def unguarded(text: str) -> str:
    """The text of a cell that was written with an apostrophe before it, because it begins as a formula does."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text, 1) else text


class _Parquet:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._rows: list[Mapping[str, Any]] = []
        self._writer: Any = None

    def add(self, record: Mapping[str, Any]) -> None:
        self._rows.append(record)
        if len(self._rows) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise MissingDependency("pyarrow", "parquet", "writing Parquet") from None
        schema = self._writer.schema if self._writer is not None else None
        table = pyarrow.Table.from_pylist(self._rows, schema=schema)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        self._rows = []

    def end(self) -> None:
        if self._rows or self._writer is None:
            self._flush()
        self._writer.close()


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What ends a write half-way; the rest is known before it begins."""


def unwritable(path: str | Path, error: OSError) -> KaratError:
    """The error to raise in place of one that the system raised: the request is wrong, unless the disk is full."""
    if error.errno in _FULL:
        return DiskFull(
            f"{path} cannot be written: {error.strerror}: free some space, or choose another file"
        )
    folder = Path(path).parent
    there = "\0" in str(path) or folder.is_dir()
    reason = error.strerror if there else f"there is no folder {folder}"
    return RequestError(f"{path} cannot be written: {reason}")
