"""What a wire format has to say, and the registry of formats: a third party adds one here by a plug-in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from karat.models._failures import one_line
from karat.models._messages import Choice, Request, ToolCall
from karat.registry import Registry

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """Tokens as a provider counts them; the cached ones are part of `input`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


MOST_TOKENS = 100_000_000
"""More than any request can use: a larger number is a mistake of the server, or meant to mislead."""


def token_count(value: Any) -> int:
    """A number of tokens as a server says it. ValueError: it is none, and so the cost is unknown."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_TOKENS:
        raise ValueError("not a number of tokens")
    if value != int(value):
        raise ValueError("not a whole number of tokens")
    return int(value)


def read_tokens(
    input: Any, output: Any, cache_read: Any = None, cache_write: Any = None, *, cached_apart: bool = False
) -> Tokens | None:
    """Tokens as a server counts them, or None where it counts implausibly: an unknown cost, never a wrong one.

    `cached_apart`: the cached tokens are not part of `input`, as Anthropic counts.
    """
    try:
        read, write = token_count(cache_read), token_count(cache_write)
        total = token_count(input) + (read + write if cached_apart else 0)
        tokens = Tokens(input=total, output=token_count(output), cache_read=read, cache_write=write)
    except ValueError:
        return None
    return tokens if read + write <= total else None


def embedding_tokens(usage: Any) -> Tokens | None:
    """Tokens of a list of embeddings, or None where the server does not say."""
    if not isinstance(usage, dict) or usage.get("prompt_tokens") is None:
        return None
    return read_tokens(usage["prompt_tokens"], 0)


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A provider's body, understood. `tokens` is None where the provider does not say."""

    choices: list[Choice]
    tokens: Tokens | None = None
    served_model: str = ""


class Provider:
    """Base of wire formats: how a request is written and an answer read. Registered under the spec's prefix."""

    name: ClassVar[str] = ""
    base_url: ClassVar[str] = ""
    """Where requests go unless the spec or `base_url_env` says otherwise."""
    base_url_env: ClassVar[str] = ""
    key_env: ClassVar[str] = ""
    """The environment variable that holds the key."""
    needs_key: ClassVar[bool] = True
    concurrency: int = 256
    """Calls in flight unless `limits` says otherwise."""
    several: ClassVar[bool] = False
    """Whether one request can ask for `n` answers; where not, n requests are made."""
    derives_seed: ClassVar[bool] = False
    """Whether sampling without a seed gets one made from (example, attempt, occurrence), to be repeatable."""
    repeatable: ClassVar[bool] = False
    """Whether what fails with 500 fails so every time: the request is at fault, and is not sent again."""
    free: ClassVar[bool] = False
    """Whether calls cost nothing."""

    def url(self, base_url: str) -> str:
        """Where a chat request is posted."""
        raise NotImplementedError

    def headers(self, key: str | None, endpoint: Endpoint) -> dict[str, str]:
        """Headers of every request, with the key where there is one."""
        raise NotImplementedError

    def body(self, model: str, request: Request, native_schema: bool) -> dict[str, Any]:
        """The request as this provider wants it; `native_schema` asks for its own way of fixing the form."""
        raise NotImplementedError

    def parse(self, raw: dict[str, Any]) -> Answer:
        """The answer in a body. KeyError, TypeError or ValueError mean that the body is broken."""
        raise NotImplementedError

    def takes_schema(self, request: Request) -> bool:
        """Whether the provider can be made to keep to the schema of this request."""
        return True

    def unwrap(self, choice: Choice, request: Request) -> Choice:
        """The choice with the JSON asked for by the schema as its text, wherever the provider put it.

        Called where the provider was held to the schema, not where the prompt asks for it.
        """
        return choice

    def identity(self, endpoint: Endpoint) -> str:
        """What tells this endpoint from others in the cache key: its address, unless that is accidental."""
        return endpoint.base_url

    async def locate(self, endpoint: Endpoint) -> str:
        """The base URL to use now; a format that has to start something first does it here."""
        return endpoint.base_url

    def error(self, raw: Any) -> tuple[str, str]:
        """`(message, code)` of an error body, in the shapes providers use."""
        found = raw.get("error", raw) if isinstance(raw, dict) else raw
        if isinstance(found, dict):
            message = found.get("message") or found.get("detail") or found.get("msg") or ""
            code = found.get("code") or found.get("type") or ""
            if message or code:
                return one_line(str(message)), str(code)
        if isinstance(found, str):
            return one_line(found), ""
        return "", ""


def read_arguments(text: Any) -> Any:
    """A tool call's arguments: the JSON they are, or the text they are when it is not JSON."""
    if not isinstance(text, str):
        return text
    try:
        return msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError:
        return text


def read_tool_calls(calls: Any) -> list[ToolCall]:
    """OpenAI-shaped tool calls."""
    return [
        ToolCall(
            id=str(call.get("id") or ""),
            name=call["function"]["name"],
            arguments=read_arguments(call["function"].get("arguments")),
        )
        for call in calls or ()
    ]


providers: Registry[type[Provider]] = Registry(
    "provider",
    builtin=[
        "karat.models.providers._chat",
        "karat.models.providers._anthropic",
        "karat.models.providers._local",
    ],
)

register_provider = providers.register
