"""The base of adapters to memory libraries: sessions in batches, reproducible ids, karat's models."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from karat.errors import MissingDependency, RequestError
from karat.memory._system import MemorySystem, Turn
from karat.memory.systems._search import EMBEDDER, VectorIndex
from karat.memory.systems._turns import check_whole, model_of

if TYPE_CHECKING:
    from karat.models import Model

_NAMESPACE = uuid.UUID("6f1d8a52-9f0b-5d0e-8a83-0d6c4b8a1f77")


class Ids:
    """Ids in a fixed order in place of random ones, so that a repeated run asks and stores the same."""

    def __init__(self, given: int = 0) -> None:
        self.given = given
        self._positions: dict[str, int] = {}

    def next(self) -> uuid.UUID:
        """The next id."""
        self.given += 1
        return uuid.uuid5(_NAMESPACE, str(self.given))

    def position(self, text: str) -> tuple[int, str]:
        """A sort key: ids in the order they were given, then all others by their text."""
        while len(self._positions) < self.given:
            self._positions[str(uuid.uuid5(_NAMESPACE, str(len(self._positions) + 1)))] = len(self._positions)
        return self._positions.get(text, self.given), text


_ids: ContextVar[Ids | None] = ContextVar("karat_memory_ids", default=None)


class _ReproducibleUuid:
    """The module `uuid` as a library sees it: within `reproducible`, `uuid4` gives ids in a fixed order."""

    def __getattr__(self, name: str) -> Any:
        return getattr(uuid, name)

    def uuid4(self) -> uuid.UUID:
        ids = _ids.get()
        return uuid.uuid4() if ids is None else ids.next()


@contextmanager
def reproducible(ids: Ids, *modules: ModuleType) -> Iterator[None]:
    """Make the modules take new ids from `ids` within the block, in this thread and those it starts."""
    for module in modules:
        if not isinstance(vars(module)["uuid"], _ReproducibleUuid):
            vars(module)["uuid"] = _ReproducibleUuid()  # outside of the context, ids are random as before
    token = _ids.set(ids)
    try:
        yield
    finally:
        _ids.reset(token)


def require(package: str, module: str, extra: str, system: str) -> str:
    """The version of an installed package."""
    if importlib.util.find_spec(module) is None:
        raise MissingDependency(package, extra, f"the memory system {system}")
    return importlib.metadata.version(package)


def required_model(system: str, spec: object) -> Model:
    """The model that extracts memories: the one named, else the default of `karat.models`."""
    from karat import models

    named = model_of(system, spec)
    if named is not None:
        return named
    try:
        return models.get()
    except RequestError as error:
        raise RequestError(
            f"{system} needs a model that extracts memories: set its parameter model, or KARAT_MODEL ({error})"
        ) from error


class LibraryMemory(MemorySystem):
    """A memory that buffers a session and hands it to a library in batches of at most `batch_turns`."""

    def __init__(self, embedder: object, batch_turns: int) -> None:
        self.batch_turns = check_whole(self.name, "batch_turns", batch_turns)
        self._embedder = VectorIndex(EMBEDDER if embedder is None else embedder)
        self._buffer: list[Turn] = []
        self._directory: Path | None = None

    @property
    def directory(self) -> Path:
        """The directory given to `reset`."""
        if self._directory is None:
            raise RequestError(f"{self.name}: call reset before any other method")
        return self._directory

    def reset(self, directory: Path) -> None:
        self.close()
        self._directory = directory
        self._buffer = []

    def ingest_turn(self, turn: Turn) -> None:
        self._buffer.append(turn)

    def end_session(self, session_id: str) -> None:
        turns, self._buffer = self._buffer, []
        for start in range(0, len(turns), self.batch_turns):
            self._add(turns[start : start + self.batch_turns], session_id)

    def _add(self, turns: Sequence[Turn], session_id: str) -> None:
        """Store a batch of turns."""
        raise TypeError(f"memory system {self.name!r} has no _add")

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Embeddings as a library takes them; it may divide by their length, so none is zero."""
        vectors = self._embedder.vectors(list(texts)).tolist()
        return [vector if any(vector) else [1.0, *vector[1:]] for vector in vectors]
