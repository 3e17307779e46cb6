"""Embedders that run in this process: `local/wordllama`, and those plug-ins add."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from karat.errors import MissingDependency, RequestError
from karat.models._client import Model
from karat.models._embedding import Embedded, Embedding
from karat.models._endpoints import Endpoint
from karat.models._messages import Messages, Reply
from karat.models._service import Service
from karat.models.providers import Tokens
from karat.registry import Registry


class Embedder(Model):
    """A model that only embeds. A subclass implements `vectors`, which runs in a thread."""

    def vectors(self, texts: Sequence[str]) -> Any:
        """One vector for each text."""
        raise NotImplementedError

    async def generate(self, messages: Messages, **parameters: Any) -> Reply:
        raise RequestError(f"{self.spec} is an embedding model and cannot generate text: use embed")

    def generate_sync(self, messages: Messages, **parameters: Any) -> Reply:
        raise RequestError(f"{self.spec} is an embedding model and cannot generate text: use embed_sync")

    async def _embed(self, service: Service, embedding: Embedding) -> Embedded:
        if not embedding.texts:
            return Embedded([], Tokens())
        start = time.perf_counter()
        vectors = await asyncio.get_running_loop().run_in_executor(None, self.vectors, embedding.texts)
        return Embedded(vectors, Tokens(), time.perf_counter() - start)


embedders: Registry[Callable[[Endpoint], Embedder]] = Registry("embedder", builtin=[])

register_embedder = embedders.register


def find_embedder(endpoint: Endpoint) -> Embedder | None:
    """The embedder that a `local/NAME` means, if it is one."""
    return embedders.get(endpoint.model)(endpoint) if embedders.has(endpoint.model) else None


@register_embedder("wordllama")
class WordLlamaEmbedder(Embedder):
    """WordLlama: 256 dimensions, weights inside its wheel, no network."""

    _loading = threading.Lock()
    _loaded: Any = None

    def vectors(self, texts: Sequence[str]) -> Any:
        return self._load().embed(list(texts))

    @classmethod
    def _load(cls) -> Any:
        with cls._loading:
            if cls._loaded is None:
                found = importlib.util.find_spec("wordllama")
                if found is None or found.origin is None:
                    raise MissingDependency("wordllama", "local", "local/wordllama")
                root = logging.getLogger()
                level, handlers = root.level, list(root.handlers)
                from wordllama import WordLlama

                # Its import configures the root logger to print INFO: that is the application's to decide.
                root.setLevel(level)
                for handler in [each for each in root.handlers if each not in handlers]:
                    root.removeHandler(handler)
                cls._loaded = WordLlama.load(cache_dir=Path(found.origin).parent, disable_download=True)
            return cls._loaded
