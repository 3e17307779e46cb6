"""Where the vectors of `embedding_similarity` come from: a function, a model, or the local embedder."""

from __future__ import annotations

import importlib.util
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from karat.errors import CannotJudge, RequestError
from karat.evaluators.functions import name_of

LOCAL = "local/wordllama"
"""The embedder used when none is named: its weights come with its package."""

Vectors = Callable[[list[str]], Sequence[Sequence[float]]]


class Embedder:
    """Texts → vectors, loaded on first use; vectors that are held are not asked for again."""

    def __init__(
        self, params: dict[str, Any], load: Callable[[], Vectors], *, local: bool = False, model: Any = None
    ) -> None:
        self.params = params
        self.is_local = local
        """Whether it computes here and waits for nothing."""
        self._model = model
        self._load = load
        self._vectors: Vectors | None = None
        self._lock = threading.Lock()
        self._held = threading.local()

    @property
    def is_remote(self) -> bool:
        """Whether it is a model of `karat.models` that is worth awaiting."""
        return self._model is not None and not self.is_local

    def embed(self, texts: list[str]) -> list[Sequence[float]]:
        """One vector for each text."""
        held: dict[str, Sequence[float]] = getattr(self._held, "vectors", {})
        missing = [text for text in dict.fromkeys(texts) if text not in held]
        found = dict(zip(missing, self._ask(missing), strict=True)) if missing else {}
        return [held[text] if text in held else found[text] for text in texts]

    async def embed_async(self, texts: list[str]) -> list[Sequence[float]]:
        """The same, from a remote model."""
        model = model_of(self._model)
        return _counted(await model.embed(texts), texts) if texts else []

    @contextmanager
    def holding(self, vectors: dict[str, Sequence[float]]) -> Iterator[None]:
        """Within it, in this thread, these vectors are known."""
        self._held.vectors = vectors
        try:
            yield
        finally:
            self._held.vectors = {}

    def _ask(self, texts: list[str]) -> list[Sequence[float]]:
        with self._lock:
            if self._vectors is None:
                self._vectors = self._load()
        return _counted(self._vectors(texts), texts)


def _counted(given: Any, texts: list[str]) -> list[Sequence[float]]:
    vectors = list(given)
    if len(vectors) != len(texts):
        raise CannotJudge(f"the embedder gave {len(vectors)} vectors for {len(texts)} texts")
    return vectors


def model_of(spec: Any) -> Any:
    """The model that a spec of `karat.models` names; any other object is taken as one."""
    if not isinstance(spec, str):
        return spec
    from karat import models

    return models.get(spec)


def embedder_of(embed_fn: Any, model_name: str | None, embedder: Any) -> Embedder:
    """The embedder that is asked for; at most one of the three may be said."""
    named = [name for name, given in _given(embed_fn, model_name, embedder) if given is not None]
    if len(named) > 1:
        raise RequestError(f"embedding_similarity: say {named[0]} or {named[1]}, not both")
    if embed_fn is not None:
        return _of_function(embed_fn)
    if model_name is not None:
        return _of_sentence_transformers(model_name)
    return _of_model(LOCAL if embedder is None else embedder)


def _given(embed_fn: Any, model_name: Any, embedder: Any) -> list[tuple[str, Any]]:
    return [("embed_fn", embed_fn), ("model_name", model_name), ("embedder", embedder)]


def _of_function(embed_fn: Any) -> Embedder:
    if not callable(embed_fn) or inspect.iscoroutinefunction(embed_fn):
        raise RequestError(
            "embedding_similarity: embed_fn has to be a plain function of one text that gives its vector"
        )
    return Embedder({"embed_fn": name_of(embed_fn)}, lambda: lambda texts: [embed_fn(text) for text in texts])


def _of_sentence_transformers(model_name: Any) -> Embedder:
    if not isinstance(model_name, str) or not model_name:
        raise RequestError("embedding_similarity: model_name is the name of a sentence-transformers model")
    if importlib.util.find_spec("sentence_transformers") is None:
        raise RequestError(
            f"embedding_similarity with model_name {model_name!r} needs the package sentence-transformers:"
            " pip install sentence-transformers"
        )

    def load() -> Vectors:
        from sentence_transformers import SentenceTransformer

        try:
            model = SentenceTransformer(model_name)
        except Exception as error:  # it asks the network, the disk and the model's own code
            raise RequestError(
                f"embedding_similarity: sentence-transformers cannot load {model_name!r}: {str(error)[:200]}"
            ) from error
        return lambda texts: model.encode(texts, show_progress_bar=False).tolist()

    return Embedder({"model_name": model_name}, load, local=True)


def _of_model(spec: Any) -> Embedder:
    """A model of `karat.models`, by name, or any object with `embed` and `embed_sync`."""
    if not isinstance(spec, str) and not callable(getattr(spec, "embed_sync", None)):
        raise RequestError(
            "embedding_similarity: embedder has to be the name of a model, or an object with embed_sync"
        )
    name = spec if isinstance(spec, str) else str(getattr(spec, "spec", type(spec).__qualname__))
    local = name.startswith("local/")
    return Embedder({"embedder": name}, lambda: model_of(spec).embed_sync, local=local, model=spec)


def cosine(first: Sequence[float], second: Sequence[float], who: str) -> float:
    """The cosine of the angle between two vectors; an error where there is none."""
    import numpy

    try:
        a, b = numpy.asarray(first, dtype=float), numpy.asarray(second, dtype=float)
    except (TypeError, ValueError):
        raise CannotJudge(f"{who}: the embedder gave something that is not a vector of numbers") from None
    if a.ndim != 1 or a.shape != b.shape:
        raise CannotJudge(f"{who}: the embedder gave vectors of the shapes {a.shape} and {b.shape}")
    with numpy.errstate(all="ignore"):
        value = float(a @ b / (numpy.linalg.norm(a) * numpy.linalg.norm(b)))
    if value - value != 0:
        raise CannotJudge(f"{who}: the embeddings have no angle between them (one is zero or not finite)")
    return min(1.0, max(-1.0, value))
