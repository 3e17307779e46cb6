"""Search in the turns: by words (BM25Memory) and by embeddings (LTMemory)."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karat.errors import DataError, RequestError
from karat.memory import memory_systems
from karat.memory.systems._turns import Entry, TurnMemory, best_first, check_share

if TYPE_CHECKING:
    import numpy

EMBEDDER = "local/wordllama"
LONGEST = 20_000
"""Characters of a text that are embedded. The embedded embeddings need 3 seconds for 1 MB."""
VECTORS = "vectors.npy"

_WORD = re.compile(r"[^\W_⺀-鿿가-힯]+|[⺀-鿿가-힯]+")


def words(text: str) -> list[str]:
    """The words of a text in lower case; runs of ideographs give their characters and pairs of characters."""
    found: list[str] = []
    for word in _WORD.findall(text.lower()):
        if word[0] < "⺀":
            found.append(word)
        else:
            found += [*word, *(word[i : i + 2] for i in range(len(word) - 1))]
    return found


class WordIndex:
    """An inverted index with BM25 scores."""

    def __init__(self, k1: float = 1.2, b: float = 0.75) -> None:
        self.k1, self.b = k1, b
        self._postings: dict[str, list[tuple[int, int]]] = {}
        self._lengths: list[int] = []
        self._total = 0

    def add(self, text: str) -> None:
        """Add a text to the index."""
        counts = Counter(words(text))
        for word, count in counts.items():
            self._postings.setdefault(word, []).append((len(self._lengths), count))
        self._lengths.append(counts.total())
        self._total += counts.total()

    def search(self, query: str) -> list[tuple[int, float]]:
        """The positions of all texts that share a word with the query, best first, with their scores."""
        size = len(self._lengths)
        mean = self._total / size if size and self._total else 1.0
        scores: dict[int, float] = {}
        for word in dict.fromkeys(words(query)):
            postings = self._postings.get(word, ())
            weight = math.log(1 + (size - len(postings) + 0.5) / (len(postings) + 0.5))
            for position, count in postings:
                length = 1 - self.b + self.b * self._lengths[position] / mean
                scores[position] = scores.get(position, 0.0) + weight * count * (self.k1 + 1) / (
                    count + self.k1 * length
                )
        return best_first(scores.items())


class VectorIndex:
    """Embeddings of texts, computed in batches when they are first needed."""

    def __init__(self, embedder: Any = EMBEDDER) -> None:
        if not isinstance(embedder, str) and not callable(getattr(embedder, "embed_sync", None)):
            raise RequestError(
                f"embedder is {embedder!r}: it must be the name of a model, or an object with embed_sync"
            )
        self.embedder = embedder
        self._pending: list[str] = []
        self._matrix: numpy.ndarray[Any, Any] | None = None

    @property
    def spec(self) -> str:
        """The name of the embedder."""
        return (
            self.embedder
            if isinstance(self.embedder, str)
            else str(getattr(self.embedder, "spec", self.embedder))
        )

    def clear(self) -> None:
        """Forget all texts."""
        self._pending, self._matrix = [], None

    def add(self, text: str) -> None:
        """Add a text to the index."""
        self._pending.append(text)

    def flush(self) -> None:
        """Embed the texts that were added since the last search."""
        if self._pending:
            new = self.vectors(self._pending)
            import numpy

            self._matrix = new if self._matrix is None else numpy.concatenate([self._matrix, new])
            self._pending = []

    def search(self, query: str) -> list[tuple[int, float]]:
        """The positions of all texts with their cosine to the query, best first."""
        self.flush()
        if self._matrix is None:
            return []
        cosines = self._matrix @ self.vectors([query])[0]
        return best_first((position, float(cosine)) for position, cosine in enumerate(cosines))

    def vectors(self, texts: list[str]) -> numpy.ndarray[Any, Any]:
        """Unit vectors of texts; a text without an embedding has zeros, which are similar to nothing."""
        import numpy

        if isinstance(self.embedder, str):
            from karat import models

            self.embedder = models.get(self.embedder)
        blank = [not text.strip() for text in texts]
        given = self.embedder.embed_sync([text[:LONGEST] if text.strip() else "." for text in texts])
        found = numpy.asarray(given, dtype=numpy.float32)
        if found.ndim != 2 or len(found) != len(texts):
            raise DataError(f"{self.spec} returned {found.shape} for {len(texts)} texts: one vector each")
        lengths = numpy.linalg.norm(found, axis=1, keepdims=True)
        usable = numpy.isfinite(lengths) & (lengths > 0) & ~numpy.asarray(blank)[:, None]
        out: numpy.ndarray[Any, Any] = numpy.where(usable, found / numpy.where(usable, lengths, 1), 0)
        return out

    def save(self, directory: Path) -> None:
        """Write the vectors, so that loading does not embed again."""
        import numpy

        self.flush()
        if self._matrix is not None:
            numpy.save(directory / VECTORS, self._matrix, allow_pickle=False)

    def load(self, directory: Path, count: int) -> None:
        """Read the vectors of `count` texts."""
        import numpy

        self.clear()
        path = directory / VECTORS
        if not count:
            return
        try:
            self._matrix = numpy.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot load saved vectors: {error}") from error
        if self._matrix.ndim != 2 or len(self._matrix) != count:
            raise DataError(f"{path}: holds {self._matrix.shape} for {count} memories: one vector each")


@memory_systems.register("BM25Memory")
class BM25Memory(TurnMemory):
    """Return the turns that share the most telling words with the question (BM25)."""

    name = "BM25Memory"

    def __init__(self, k1: float = 1.2, b: float = 0.75) -> None:
        super().__init__()
        self.k1, self.b = check_share(self.name, "k1", k1), check_share(self.name, "b", b)
        self._index = WordIndex(self.k1, self.b)

    def configuration(self) -> Any:
        return {"k1": self.k1, "b": self.b}

    def reset(self, directory: Path) -> None:
        super().reset(directory)
        self._index = WordIndex(self.k1, self.b)

    def _store(self, entry: Entry) -> None:
        super()._store(entry)
        self._index.add(entry.text)

    def _restore(self, state: dict[str, Any]) -> None:
        self._index = WordIndex(self.k1, self.b)
        for entry in self.entries:
            self._index.add(entry.text)

    def _ranked(self, query: str, now: str | None) -> list[tuple[int, float]]:
        return self._index.search(query)


class EmbeddedMemory(TurnMemory):
    """A memory that stores turns with their embeddings."""

    def __init__(self, embedder: Any = EMBEDDER) -> None:
        super().__init__()
        self._vectors = VectorIndex(embedder)

    def configuration(self) -> Any:
        return {"embedder": self._vectors.spec}

    def reset(self, directory: Path) -> None:
        super().reset(directory)
        self._vectors.clear()

    def _store(self, entry: Entry) -> None:
        super()._store(entry)
        self._vectors.add(entry.text)

    def end_session(self, session_id: str) -> None:
        self._vectors.flush()

    def save(self, directory: Path) -> None:
        super().save(directory)
        self._vectors.save(directory)

    def load(self, directory: Path) -> None:
        super().load(directory)
        self._vectors.load(directory, len(self.entries))


@memory_systems.register("LTMemory")
class LTMemory(EmbeddedMemory):
    """Return the turns whose embeddings are closest to the question's."""

    name = "LTMemory"
    backend_type = "vector"

    def _ranked(self, query: str, now: str | None) -> list[tuple[int, float]]:
        return self._vectors.search(query)
