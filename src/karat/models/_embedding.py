"""Texts to vectors: the call as the trace keeps it, and how an OpenAI-compatible server is asked."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from karat.errors import RequestError, Stopped
from karat.models._budget import worst_cost
from karat.models._endpoints import Endpoint, provider_of
from karat.models._failures import Attempt, BrokenBody
from karat.models._messages import Request
from karat.models._recording import recording
from karat.models._request_context import Timing, usage_of_failure
from karat.models._retry import gather_or_cancel
from karat.models._service import Reservation, Service
from karat.models.providers import Tokens, embedding_tokens
from karat.records import Call, Usage

if TYPE_CHECKING:
    import numpy

BATCH = 256
"""Texts in one request."""

_encode = msgspec.json.Encoder(order="deterministic").encode


class Embedded(msgspec.Struct, frozen=True):
    """Vectors and what they took."""

    vectors: list[Any]
    tokens: Tokens | None = None
    seconds: float = 0.0
    cached: bool = False
    body: bytes = b""


class Embedding:
    """One call of `embed`, on the caller's side: what is asked, and its place in the trace."""

    def __init__(self, endpoint: Endpoint, texts: Sequence[str], calls: recording | None) -> None:
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise RequestError("embed takes a list of texts")
        self.endpoint = endpoint
        self.texts = list(texts)
        self.calls = calls
        self.budget = calls.budget if calls is not None else None
        self.replicate = calls.replicate if calls is not None else 1
        self.cache = calls.cache if calls is not None else "use"
        self.permit = calls.permit if calls is not None else None
        self.timing = Timing()
        # The texts themselves are the task's own data and can be many; a trace needs how many there were.
        self.input = {"texts": len(self.texts), "characters": sum(map(len, self.texts))}
        if calls is not None:
            unanswered = usage_of_failure(endpoint, asyncio.CancelledError())
            self.place = calls.begin(
                Call(kind="model", name=endpoint.spec, input=self.input, error="unfinished", usage=unanswered)
            )

    def answered(self, embedded: Embedded) -> numpy.ndarray[Any, Any]:
        """Fills the call's place in the trace, and gives the vectors as an array."""
        import numpy

        if self.calls is not None:
            self.calls.finish(self.place, self._call(embedded))
        if not self.texts:
            return numpy.zeros((0, 0), dtype=numpy.float32)
        return numpy.asarray(embedded.vectors, dtype=numpy.float32)

    def _call(self, embedded: Embedded) -> Call:
        price, tokens = self.endpoint.price, embedded.tokens or Tokens()
        cost: float | None = None
        if embedded.cached or (price is not None and not price.input):
            cost = 0.0
        elif price is not None and embedded.tokens is not None:
            cost = price.cost(tokens)
        return Call(
            kind="model",
            name=self.endpoint.spec,
            input=self.input,
            output={"vectors": len(embedded.vectors)},
            seconds=embedded.seconds,
            service_seconds=embedded.seconds,
            queue_seconds=self.timing.queue,
            cached=embedded.cached,
            usage=Usage(input_tokens=tokens.input, calls=1, cached_calls=int(embedded.cached), cost=cost),
            metadata={"embedding": True},
        )

    def failed(self, error: BaseException) -> None:
        """Record in the trace why there are no vectors."""
        if self.calls is not None:
            if isinstance(error, Stopped):
                self.calls.stopped = error
            text = (
                "cancelled"
                if isinstance(error, asyncio.CancelledError)
                else f"{type(error).__name__}: {error}"
            )
            call = Call(
                kind="model",
                name=self.endpoint.spec,
                input=self.input,
                error=text,
                usage=usage_of_failure(self.endpoint, error),
                metadata=getattr(error, "metadata", {}),
            )
            self.calls.finish(self.place, call)


async def embed_over_http(service: Service, embedding: Embedding) -> Embedded:
    """Vectors from an OpenAI-compatible server, kept like answers at temperature 0."""
    provider = provider_of(embedding.endpoint)
    url = provider.embeddings_url(await provider.locate(embedding.endpoint))
    groups = [embedding.texts[start : start + BATCH] for start in range(0, len(embedding.texts), BATCH)]
    parts = await gather_or_cancel(_embed_group(service, embedding, url, group) for group in groups)
    counts = [part.tokens for part in parts if not part.cached]
    return Embedded(
        vectors=[vector for part in parts for vector in part.vectors],
        tokens=None
        if None in counts
        else Tokens(input=sum(count.input for count in counts if count is not None)),
        seconds=max((part.seconds for part in parts), default=0.0),
        cached=bool(parts) and all(part.cached for part in parts),
    )


async def _embed_group(service: Service, embedding: Embedding, url: str, texts: list[str]) -> Embedded:
    endpoint = embedding.endpoint
    where = ["embed", endpoint.identity(), embedding.replicate, texts]
    key = hashlib.blake2b(_encode(where), digest_size=20).digest()
    if embedding.cache == "use":
        entry = service.cache.get(key)
        if entry is not None:
            return msgspec.structs.replace(_read(endpoint, texts, entry.body, entry.seconds), cached=True)
    body = msgspec.json.encode({"model": endpoint.model, "input": texts})
    worst = 0.0
    if embedding.budget is not None:
        worst = worst_cost(endpoint.price, Request(messages=[], max_tokens=1), len(body), endpoint.spec)
    attempts: list[Attempt] = []
    embedded = await service.post(
        service.target(endpoint, url),
        body,
        lambda answer, seconds: _read(endpoint, texts, answer, seconds),
        attempts,
        Reservation(embedding.budget, worst, len(body) / 4, embedding.permit, embedding.timing),
    )
    if embedding.cache != "off":
        commit = service.cache.put(key, endpoint.spec, embedded.body, embedded.seconds)
        if commit is not None:
            service.cache.hurry()
            await commit
    return embedded


def _read(endpoint: Endpoint, texts: list[str], body: bytes, seconds: float) -> Embedded:
    try:
        raw = msgspec.json.decode(body)
        rows = sorted(raw["data"], key=lambda row: row["index"])
        vectors = [row["embedding"] for row in rows]
        tokens = embedding_tokens(raw.get("usage"))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise BrokenBody(f"{endpoint.spec}: not a list of embeddings ({type(error).__name__})") from None
    if len(vectors) != len(texts) or len({len(vector) for vector in vectors}) != 1:
        raise BrokenBody(
            f"{endpoint.spec}: {len(vectors)} vectors came for {len(texts)} texts, or of unequal length"
        )
    return Embedded(vectors, tokens, seconds, body=body)
