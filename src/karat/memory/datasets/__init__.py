"""Readers of memory benchmarks: each gives `Sample`s, one at a time."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karat.errors import DataError, RequestError, option
from karat.memory._system import Sample, check_sample
from karat.registry import Registry

if TYPE_CHECKING:
    from karat.memory.datasets._reading import Corrections, DatasetReader

DEMO = Path(__file__).parent.parent / "demo"
"""The dataset that karat ships, `--dataset demo`."""

_BUILTIN = (
    "domain_a_v2",
    "locomo",
    "longmemeval",
    "halumem",
    "beam",
    "mem_gallery",
    "personamem",
    "memoryagentbench",
)

memory_datasets: Registry[Any] = Registry(
    "memory dataset type", builtin=[f"karat.memory.datasets._{name}" for name in _BUILTIN]
)
"""Readers by dataset type: a subclass of `DatasetReader`, or a function of a path that yields `Sample`s."""


class MemoryDataset:
    """A memory benchmark on disk. `samples()` reads it one sample at a time, as often as needed."""

    def __init__(self, type: str, reader: DatasetReader, corrections: Corrections | None = None) -> None:
        self.path = reader.path
        self.type = type
        self.title = reader.title or type
        self.tested = reader.tested or reader.path == DEMO  # the demo set is its own original
        """Whether the reader was tested on original data."""
        self.licence = reader.licence
        self.corrections = corrections
        self._reader = reader
        self._hash = ""

    @property
    def hash(self) -> str:
        """A hash of the type and the content of its files, the same wherever they are."""
        if not self._hash:
            extra = [self.corrections.path] if self.corrections is not None else []
            self._hash = _hash_of(self.type, self.path, [*self._reader.files(), *extra])
        return self._hash

    @property
    def notes(self) -> list[str]:
        """Notes on results on this dataset, one sentence each."""
        untested = f"The reader of {self.title} was tested on files made by hand, not on original data."
        return [*([] if self.tested else [untested]), *self._reader.notes()]

    def samples(self, most: int | None = None) -> Iterator[Sample]:
        """The samples in the order of the files, at most `most`."""
        seen: set[str] = set()
        if self.corrections is not None:
            self.corrections.restart()
        for sample in self._reader.samples():
            if most is not None and len(seen) >= most:
                return
            if self.corrections is not None:
                sample = self.corrections.apply(sample, len(seen), self._reader.turn_id)
            _check(sample, seen, self.path)
            yield sample
        if self.corrections is not None:
            self.corrections.check_all_used()
        if not seen:
            raise DataError(
                f"{self.path} holds no samples of type {self.type!r}: check the path and"
                f" {option('dataset_type')}"
            )

    def ceiling(self) -> str | None:
        """The score of a perfect system with the original labels; None without corrections. Reads the dataset."""
        if self.corrections is None:
            return None
        for _ in self.samples():
            pass
        return self.corrections.summary()

    def __repr__(self) -> str:
        return f"MemoryDataset({str(self.path)!r}, type={self.type!r})"


def read_memory_dataset(
    path: str | Path, type: str | None = None, *, corrections: str | Path | None = None
) -> MemoryDataset:
    """Open a memory benchmark: a file, a folder, or `demo`. Its type is recognised unless it is given.

    `corrections` is a file of label corrections that lies over the dataset.
    """
    where = DEMO if str(path) == "demo" else Path(path)
    try:
        usable, exists = where.is_file() or where.is_dir(), where.exists()
    except (OSError, ValueError) as error:
        raise DataError(f"{str(path)[:200]!r} cannot be read: {error}") from None
    if not usable:
        problem = "is neither a file nor a folder" if exists else "does not exist"
        raise DataError(f"{where} {problem}: give a file, a folder, or 'demo' for the set that karat ships")
    if type is None:
        type = _recognise(where)
    reader = memory_datasets.get(type)
    overlay = None
    if corrections is not None:
        from karat.memory.datasets._reading import open_corrections

        overlay = open_corrections(corrections)
    return MemoryDataset(type, _reader_of(reader, type)(where), overlay)


def _reader_of(part: Any, type: str) -> Callable[[Path], DatasetReader]:
    from karat.memory.datasets._reading import DatasetReader

    if inspect.isclass(part) and issubclass(part, DatasetReader):
        return part
    if not callable(part):
        raise RequestError(f"memory dataset type {type!r} is not a DatasetReader nor a function of a path")

    class FunctionReader(DatasetReader):
        """A reader made of a function."""

        def samples(self) -> Iterator[Sample]:
            return iter(part(self.path))

    FunctionReader.type = type
    return FunctionReader


def _recognise(path: Path) -> str:
    from karat.memory.datasets._reading import DatasetReader

    empty = "give a file with samples, or 'demo' for the set that karat ships"
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path} is empty: {empty}")
    names = memory_datasets.list()
    found = []
    for name in names:
        part = memory_datasets.get(name)
        if inspect.isclass(part) and issubclass(part, DatasetReader) and part.recognises(path):
            found.append(name)
    if len(found) == 1:
        return found[0]
    if not found and path.is_file() and _has_no_rows(path):
        raise DataError(f"{path} has no rows: {empty}")
    problem = "its type is not recognised" if not found else f"it could be {' or '.join(found)}"
    raise DataError(f"{path}: {problem}; give {option('dataset_type')}, one of {', '.join(names)}")


def _has_no_rows(path: Path) -> bool:
    """Whether a data file has no rows; a DataError for one that cannot be read."""
    from karat.memory.datasets._reading import document, rows

    if path.suffix.lower() not in (".json", ".jsonl", ".csv", ".parquet"):
        return False
    try:
        return next(rows(path), None) is None
    except DataError:
        if path.suffix.lower() != ".json":
            raise
        document(path)  # JSON without rows may be of a type that is one object in a file
        return False


def _hash_of(type: str, root: Path, files: list[Path]) -> str:
    folder = root if root.is_dir() else root.parent
    digest = hashlib.blake2b(type.encode(), digest_size=16)
    for file in files:
        try:
            name = file.relative_to(folder).as_posix()
        except ValueError:
            name = file.name
        content = hashlib.blake2b(digest_size=32)
        try:
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    content.update(block)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error
        digest.update(f"\n{name if root.is_dir() else ''}\n".encode() + content.digest())
    return digest.hexdigest()


def _check(sample: Sample, seen: set[str], path: Path) -> None:
    """Refuse a sample that occurs twice, and one that the pipeline refuses, with the path of the dataset."""
    where = f"{path}: sample {sample.sample_id[:80]!r}"
    if sample.sample_id in seen:
        raise DataError(f"{where} occurs twice: give each sample its own sample_id")
    seen.add(sample.sample_id)
    try:
        check_sample(sample)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
