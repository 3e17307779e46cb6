"""One call on its way through the service: what is asked for whom, and what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import msgspec

from karat.errors import CredentialsRefused, KaratError
from karat.models.budget import Budget
from karat.models.calls import CacheMode
from karat.models.messages import Choice, Request
from karat.models.specs import Endpoint
from karat.models.structured import Form
from karat.models.wires import Tokens
from karat.records import Usage

_encode = msgspec.json.Encoder().encode

SHORTEST_SECRET = 8
"""Characters; a shorter value is a placeholder, and removing it would spoil ordinary text."""


class Order(msgspec.Struct, frozen=True, gc=False):
    """One call as it crosses to the background loop: the request, and where its answer belongs."""

    endpoint: Endpoint
    request: Request
    digest: bytes
    """Hash of the endpoint and of every field of the request."""
    form: Form | None = None
    example: str | None = None
    attempt: int = 1
    replicate: int = 1
    scope: str = ""
    occurrence: int = 0
    """Which time this request is made within its item; 0 outside of a recording."""
    cache: CacheMode = "use"
    budget: Budget | None = None
    unkept: list[asyncio.Future[None]] | None = None
    """Answers handed out to the same item while their rows were being written; None: an answer waits for its row."""

    @property
    def kept(self) -> bool:
        """Whether its answer may be kept: a sample that belongs to no item could never be told from the next."""
        return self.cache != "off" and (not self.request.sampled or self.occurrence > 0)

    def key(self) -> bytes:
        """The key of its answer. Samples belong to their item; at temperature 0 examples share an answer."""
        where: list[Any] = [self.replicate, self.attempt]
        if self.request.sampled:
            where += [self.scope, self.example, self.occurrence]
        return hashlib.blake2b(self.digest + _encode(where), digest_size=20).digest()


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a request brought: the body as it came, and what it says."""

    body: bytes
    raw: Any
    choices: list[Choice]
    tokens: Tokens | None
    served_model: str
    seconds: float


def read_secret(variable: str) -> str | None:
    """What an environment variable holds, if it can be sent in a header."""
    value = os.environ.get(variable, "").strip()
    if value and not (value.isascii() and value.isprintable()):
        raise CredentialsRefused(f"{variable} holds characters that no key has: set it again")
    return value or None


def secrets_of(endpoint: Endpoint) -> tuple[str, ...]:
    """What must not be written anywhere."""
    if not endpoint.key_env and not endpoint.headers_env:
        return ()
    variables = (endpoint.key_env, *endpoint.headers_env.values())
    values = (os.environ.get(variable, "").strip() for variable in variables if variable)
    return tuple(value for value in values if len(value) >= SHORTEST_SECRET)


def together(first: Asked, second: Asked) -> Asked:
    """A repaired answer, with the tokens and seconds of both."""
    tokens = all_tokens(first.tokens, second.tokens)
    return msgspec.structs.replace(second, tokens=tokens, seconds=first.seconds + second.seconds)


def spent(endpoint: Endpoint, error: BaseException) -> Usage:
    """What a call without an answer used and cost; the cost is None where nobody can say."""
    price, tokens = endpoint.price, getattr(error, "tokens", None)
    cost: float | None = None
    if price is not None and (price.free or not getattr(error, "lost", not isinstance(error, KaratError))):
        cost = price.cost(tokens or Tokens())
    if tokens is None:
        return Usage(calls=1, cost=cost)
    return Usage(input_tokens=tokens.input, output_tokens=tokens.output, calls=1, cost=cost)


def all_tokens(first: Tokens | None, second: Tokens | None) -> Tokens | None:
    """The tokens of two answers; unknown where one of them is."""
    if first is None or second is None:
        return None
    one, two = msgspec.structs.astuple(first), msgspec.structs.astuple(second)
    return Tokens(*(a + b for a, b in zip(one, two, strict=True)))


def seed_of(order: Order, loose: Iterator[int]) -> int:
    """A seed made from where the sample belongs: repeatable, and another for each sample."""
    if not order.request.sampled:
        return 0
    number = order.occurrence or next(loose)
    key = hashlib.blake2b(order.key() + _encode(number), digest_size=4).digest()
    return int.from_bytes(key, "big") >> 1
