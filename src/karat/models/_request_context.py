"""One call on its way through the service: what is asked for whom, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from karat.errors import CredentialsRefused, KaratError
from karat.models._endpoints import Endpoint, provider_of
from karat.models._failures import Attempt, SchemaMismatch
from karat.models._messages import Choice, Request, is_secret
from karat.models._prices import Budget
from karat.models._recording import CacheMode, Permission
from karat.models._structured import OutputSchema
from karat.models.providers import Tokens
from karat.records import Usage
from karat.redaction import SHORTEST, Redactor

_encode = msgspec.json.Encoder().encode

_ORDINARY = re.compile(
    r"[a-z]+/[\w.+*-]+(?:\s*[;,].*)?"  # a media type, a product with its version
    r"|https?://[^\s?@]*"
    r"|[\d.:/-]+"  # a number, a version, a date
    r"|[a-z]{1,20}"
    r"|(?=.{1,11}$)[a-z]+\d{0,3}(?:[-_. ](?:[a-z]+|\d{1,4}))*",
    re.IGNORECASE,
)

_SECRET_HEADER = re.compile(
    r"(?:access|account|auth|client|functions|gateway|master|private|service|session|shared|subscription)[_-]?key$"
    r"|(?:^|[_-])(?:auth|session|signature|token)$",
    re.IGNORECASE,
)
"""Names of headers that carry a key, beside those that no field of models.yaml may have."""


class Timing(msgspec.Struct, gc=False):
    """Seconds of one call on the wire, and seconds in which it waited for a slot, a rate limit or a retry."""

    service: float = 0.0
    queue: float = 0.0
    first_token: float | None = None
    """Seconds from sending to the first piece of the answer, if it was streamed."""
    tokens_per_second: float | None = None


class RequestContext(msgspec.Struct, frozen=True, gc=False):
    """One call as it crosses to the background loop: the request, and where its answer belongs."""

    endpoint: Endpoint
    request: Request
    digest: bytes
    """Hash of the endpoint and of every field of the request."""
    form: OutputSchema | None = None
    example: str | None = None
    attempt: int = 1
    replicate: int = 1
    scope: str = ""
    occurrence: int = 0
    """Which time this request is made within its item; 0 outside of a recording."""
    cache: CacheMode = "use"
    budget: Budget | None = None
    uncommitted: list[asyncio.Future[None]] | None = None
    """Answers handed out to the same item while their rows were being written; None: an answer waits for its row."""

    permit: Permission | None = None
    """Called before each request is sent; what it raises is raised instead."""
    timing: Timing = msgspec.field(default_factory=Timing)
    stream: bool = False
    batch: bool = False
    """Whether it is sent together with others, by the provider's batch API."""
    deterministic: bool = False
    """Whether examples share an answer: at temperature 0, or where the caller says so."""

    @property
    def cacheable(self) -> bool:
        """Whether the reply may be cached: a sample outside an item cannot be distinguished from the next one."""
        return self.cache != "off" and (self.deterministic or self.occurrence > 0)

    @property
    def native_schema(self) -> bool:
        """Whether the provider is held to the schema by its own means; else the prompt asks for the form."""
        return (
            self.request.schema is not None
            and self.endpoint.structured == "native"
            and provider_of(self.endpoint).takes_schema(self.endpoint, self.request)
        )

    def key(self) -> bytes:
        """The key of its answer. Samples belong to their item; where it is deterministic, examples share an answer."""
        where: list[Any] = [self.replicate, self.attempt]
        if not self.deterministic:
            where += [self.scope, self.example, self.occurrence]
        return hashlib.blake2b(self.digest + _encode(where), digest_size=20).digest()


class ProviderReply(msgspec.Struct, frozen=True, gc=False):
    """A provider's reply: the raw body and the values read from it."""

    body: bytes
    raw: Any
    choices: list[Choice]
    tokens: Tokens | None
    served_model: str
    seconds: float


_printed: dict[str, list[str]] = {}
"""What each `api_key_command` has printed, the newest last. Older ones may still be repeated by a server."""


def printed_keys(command: str) -> list[str]:
    """The keys that a command has printed in this process."""
    return _printed.get(command, []) if command else []


KEY_COMMAND_SECONDS = 60.0


def run_key_command(endpoint: Endpoint) -> str:
    """Run `api_key_command` and remember what it printed. It takes seconds: call it in a thread."""
    where = f"{endpoint.spec}: api_key_command"
    try:
        process = subprocess.Popen(  # noqa: S603 - the user's own command, from their models.yaml
            shlex.split(endpoint.key_command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise CredentialsRefused(
            f"{where} cannot be run ({type(error).__name__}): correct it in models.yaml"
        ) from None
    with process:
        try:
            printed, _ = process.communicate(timeout=KEY_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            raise CredentialsRefused(
                f"{where} did not end within {KEY_COMMAND_SECONDS:g} s: correct it in models.yaml"
            ) from None
    key = printed.strip().decode("utf-8", "replace")
    problem = ""
    if process.returncode:
        problem = f"ended with exit code {process.returncode}"
    elif not key:
        problem = "printed nothing"
    elif "\n" in key:
        problem = "printed more than one line"
    elif not (key.isascii() and key.isprintable()):
        problem = "printed characters that a key cannot have"
    if problem:
        raise CredentialsRefused(f"{where} {problem}: it must print the key and nothing else")
    _printed[endpoint.key_command] = [*_printed.get(endpoint.key_command, [])[-7:], key]
    return key


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with the processes it started, which would keep its output open."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


_keeping = threading.Lock()
_given: dict[str, str] = {}
"""Keys that a caller passed as text, by the name that an endpoint holds instead of the key."""


def keep_key(key: str) -> str:
    """Keep a key that was passed as text, in the memory of this process only; returns its name for `key_env`.

    The environment would hand it on to every process that is started from here.
    """
    with _keeping:  # two keys under one name would be sent to each other's servers
        for name, known in _given.items():
            if known == key:
                return name
        name = f"api_key #{len(_given) + 1}"
        _given[name] = key
        return name


def _value_of(variable: str) -> str:
    """A key by its name: one that was passed as text, or what the environment variable holds."""
    given = _given.get(variable)
    return (os.environ.get(variable, "") if given is None else given).strip()


def read_secret(variable: str) -> str | None:
    """A key by its name, if it can be sent in a header."""
    value = _value_of(variable)
    if value and not (value.isascii() and value.isprintable()):
        raise CredentialsRefused(f"{variable} holds characters that a key cannot have: set it again")
    return value or None


def secrets_of(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the secrets to remove from all output: keys, and header values that may be keys.

    A header in models.yaml may be the password of a gateway. An ordinary value (a media type, an address, a date, a
    word, a short name such as us-east-1) is not a secret unless the header's name is that of a credential: removing
    it from answers would change what is measured.
    """
    if not (endpoint.key_env or endpoint.key_command or endpoint.headers_env or endpoint.headers):
        return ()
    variables = (endpoint.key_env, endpoint.token_env, *endpoint.headers_env.values())
    values = [_value_of(variable) for variable in variables if variable]
    values += printed_keys(endpoint.key_command)
    for name, given in endpoint.headers.items():
        value = given.strip()
        if is_secret(name) or _SECRET_HEADER.search(name) or not _ORDINARY.fullmatch(value):
            values.append(value)
    return tuple(value for value in values if len(value) >= SHORTEST)


@lru_cache(maxsize=64)
def redactor_of(secrets: tuple[str, ...]) -> Redactor:
    """Return the redactor of these secrets; cached, because building one takes longer than using it."""
    return Redactor(secrets)


def with_repair(first: ProviderReply, second: ProviderReply) -> ProviderReply:
    """A repaired answer, with the tokens and seconds of both."""
    tokens = all_tokens(first.tokens, second.tokens)
    return msgspec.structs.replace(second, tokens=tokens, seconds=first.seconds + second.seconds)


def usage_of_failure(endpoint: Endpoint, error: BaseException) -> Usage:
    """Return the usage and cost of a call without an answer; the cost is None if it is unknown."""
    price, tokens = endpoint.price, getattr(error, "tokens", None)
    cost: float | None = None
    if price is not None and (price.free or not getattr(error, "lost", not isinstance(error, KaratError))):
        cost = price.cost(tokens or Tokens())
    # The repair of an answer counts as another call; a retry after a failure does not.
    attempts: list[Attempt] = getattr(error, "attempts", [])
    calls = 1 + any(attempt.error == SchemaMismatch.__name__ for attempt in attempts[:-1])
    if tokens is None:
        return Usage(calls=calls, cost=cost)
    return usage_of(tokens, calls=calls, cost=cost)


def usage_of(tokens: Tokens | None, *, calls: int, cached_calls: int = 0, cost: float | None) -> Usage:
    """Tokens as a record keeps them."""
    if tokens is None:
        return Usage(calls=calls, cached_calls=cached_calls, cost=cost)
    return Usage(
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        calls=calls,
        cached_calls=cached_calls,
        cost=cost,
        reasoning_tokens=tokens.reasoning,
        cached_input_tokens=tokens.cache_read,
        cache_write_tokens=tokens.cache_write,
        audio_tokens=tokens.audio_input + tokens.audio_output,
        image_tokens=tokens.image_input + tokens.image_output,
    )


def all_tokens(first: Tokens | None, second: Tokens | None) -> Tokens | None:
    """Add the tokens of two replies; None (unknown) if either is."""
    if first is None or second is None:
        return None
    added = {
        name: getattr(first, name) + getattr(second, name)
        for name in Tokens.__struct_fields__
        if name not in ("tier", "other_fees")
    }
    counted = [each for each in (first, second) if each.input or each.output]
    tiers = {each.tier for each in counted}
    return Tokens(
        **added,
        tier=tiers.pop() if len(tiers) == 1 else "several" if tiers else "",
        other_fees=first.other_fees or second.other_fees,
    )


def seed_of(context: RequestContext, loose: Iterator[int]) -> int:
    """A seed made from where the sample belongs: repeatable, and another for each sample."""
    if context.deterministic:
        return 0
    number = context.occurrence or next(loose)
    key = hashlib.blake2b(context.key() + _encode(number), digest_size=4).digest()
    return int.from_bytes(key, "big") >> 1
