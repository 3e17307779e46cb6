"""Providers: the addresses, keys and wire formats of model APIs.

A wire format (`chat`, `responses`, `anthropic`) defines how a request is written and a reply is read. A provider
defines where it is sent, with which key, and in which format. Most providers are a row of data in `_presets`; a plug-in
registers a class.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from karat.errors import RequestError
from karat.models._failures import one_line
from karat.models._messages import Choice, Request, ToolCall
from karat.registry import Registry
from karat.serialization import decode_untrusted

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """Tokens as a provider counts them. Cached, reasoning, audio and image tokens are part of `input` and `output`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    audio_input: int = 0
    audio_output: int = 0
    image_input: int = 0
    image_output: int = 0
    cache_write_long: int = 0
    """The part of `cache_write` that Anthropic keeps for an hour, at a higher price."""
    tier: str = ""
    """The service tier that the provider says it served, such as `flex`; empty for the usual one."""
    web_searches: int = 0
    """Searches of the provider's own tool, each of which costs something."""
    other_fees: bool = False
    """Whether a tool of the provider was used whose fee the reply does not tell."""


MOST_TOKENS = 100_000_000
"""More than any request can use: a larger number is a mistake of the server, or meant to mislead."""


def token_count(value: object) -> int:
    """Read a token count from a server's reply. ValueError: it is not a count, so the cost is unknown."""
    if value is None:
        return 0
    if value.__class__ is int and 0 <= value <= MOST_TOKENS:  # nearly always
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_TOKENS:
        raise ValueError("not a number of tokens")
    if value != int(value):
        raise ValueError("not a whole number of tokens")
    return int(value)


def read_tokens(
    input: object,
    output: object,
    cache_read: object = None,
    cache_write: object = None,
    *,
    reasoning: object = None,
    audio_input: object = None,
    audio_output: object = None,
    image_input: object = None,
    image_output: object = None,
    cache_write_long: object = None,
    total: object = None,
    cached_apart: bool = False,
) -> Tokens | None:
    """Tokens as a server counts them, or None where it counts implausibly: an unknown cost, never a wrong one.

    `cached_apart`: the cached tokens are not part of `input`, as Anthropic counts. A `total` that is larger than input
    and output has what the model thought: xAI and Gemini do not count it as output of chat completions, and charge
    for it (github.com/vercel/ai/pull/12425, github.com/Clarifai/clarifai-python/pull/978, read 2026-11-17).
    """
    if input is None or output is None:
        return None  # not counted, which is not zero
    try:
        given, made = token_count(input), token_count(output)
        if not given and not made and not cache_read and not cache_write:
            return None  # there is no request without a token: the server does not count
        thought = 0
        if total is not None and (apart := token_count(total) - given - made) > 0 and not cached_apart:
            made, thought = made + apart, apart
        if (
            cache_read
            is cache_write
            is reasoning
            is audio_input
            is audio_output
            is image_input
            is image_output
            is None
        ):
            # Most servers give no details, and this is read for every reply.
            return Tokens(given, made, 0, 0, thought) if thought else Tokens(given, made)
        # Checked in one expression: a call for each count would take longer than the rest, for every reply.
        read, write, long, apart, heard, spoken, seen, drawn = [
            count if count.__class__ is int and 0 <= count <= MOST_TOKENS else token_count(count)
            for count in (
                *(cache_read, cache_write, cache_write_long, reasoning),
                *(audio_input, audio_output, image_input, image_output),
            )
        ]
        given += read + write if cached_apart else 0
        thought = max(thought, apart)
    except ValueError:
        return None
    if (
        read + write > given
        or long > write
        or heard + seen > given
        or thought > made
        or spoken + drawn > made
    ):
        return None
    return Tokens(given, made, read, write, thought, heard, spoken, seen, drawn, long)


_USUAL_TIERS = frozenset(
    ("default", "standard", "auto", "standard_only", "on_demand", "batch", "global", "not_available", "")
)
"""Names of the usual tier, and of those whose price is not higher: a batch has a price of its own (`Price.in_batch`).

developers.openai.com/api/docs/guides/fast-mode, platform.claude.com/docs/en/api/service-tiers and
manage-claude/data-residency, openrouter.ai/docs/guides/features/service-tiers, console.groq.com/docs/flex-processing;
read 2026-11-17.
"""


def served_tier(*values: object) -> str:
    """The tier in what a server says about one: its tier, speed or region, joined by `+`; empty for the usual one."""
    named = [value if isinstance(value, str) else "unknown" for value in values if value is not None]
    return "+".join(value[:40] for value in named if value not in _USUAL_TIERS)


def requested_tier(extra: Mapping[str, Any]) -> str:
    """The service tier that a request asks for, by the fields that `Tokens.tier` is read from."""
    return served_tier(*(extra.get(name) for name in ("service_tier", "speed", "inference_geo")))


def with_fees(
    tokens: Tokens | None, tier: str, web_searches: object = None, other_fees: bool = False
) -> Tokens | None:
    """Tokens with what else the provider charges for. A number of searches that cannot be true is another fee."""
    try:
        searches = token_count(web_searches)
    except ValueError:
        searches, other_fees = 0, True
    if tokens is None or not (tier or searches or other_fees):
        return tokens
    return msgspec.structs.replace(tokens, tier=tier, web_searches=searches, other_fees=other_fees)


def details(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A breakdown inside of a usage object; empty where the server gives none."""
    found = usage.get(name)
    return found if isinstance(found, dict) else {}


def openai_tokens(usage: object, read: str, written: str) -> Tokens | None:
    """Tokens as OpenAI counts them, or None where the server does not say; each wire format has its own names."""
    if not isinstance(usage, dict) or read not in usage:
        return None
    given, made = details(usage, f"{read}_details"), details(usage, f"{written}_details")
    if not given and not made:
        return read_tokens(usage[read], usage.get(written), total=usage.get("total_tokens"))
    return read_tokens(
        usage[read],
        usage.get(written),
        given.get("cached_tokens"),
        given.get("cache_write_tokens"),
        reasoning=made.get("reasoning_tokens"),
        audio_input=given.get("audio_tokens"),
        audio_output=made.get("audio_tokens"),
        image_input=given.get("image_tokens"),
        image_output=made.get("image_tokens"),
        total=usage.get("total_tokens"),
    )


def embedding_tokens(usage: object) -> Tokens | None:
    """Tokens of a list of embeddings, or None where the server does not say."""
    if not isinstance(usage, dict) or usage.get("prompt_tokens") is None:
        return None
    return read_tokens(usage["prompt_tokens"], 0)


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A provider's body, understood. `tokens` is None where the provider does not say."""

    choices: list[Choice]
    tokens: Tokens | None = None
    served_model: str = ""


class Quirks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Differences between a compatible server and the original API of its wire format."""

    max_tokens: str = ""
    """The name of the output limit; empty: `max_tokens`, or `max_completion_tokens` for OpenAI's newer models."""
    seed: str = "seed"
    required_tool: str = "required"
    """What `tool_choice: required` is called."""
    effort: str = "reasoning_effort"
    """How an effort is sent in chat completions: this field, or `reasoning` for `{effort: …}`."""
    thinking_switch: bool = False
    """Whether `thinking: {type: disabled}` stands for the effort none in chat completions."""
    ignored_while_thinking: tuple[str, ...] = ()
    """Parameters that have no effect, and are no error, unless the effort is none."""
    several: bool = True
    """Whether one request can ask for `n` answers; where not, n requests are made."""
    json_schema: bool = True
    """Whether `response_format` takes a JSON Schema."""
    schema_field: str = ""
    """A field of the server's own for a JSON Schema, where it ignores that of the Responses API."""
    ignores_parameters: bool = False
    """Whether parameters that a model does not support are dropped in silence.

    OpenRouter does so, unless a request asks for endpoints that take all of them (`provider.require_parameters`).
    """


class WireFormat:
    """How a request is written and a reply is read."""

    name: ClassVar[str] = ""
    several: ClassVar[bool] = False
    """Whether one request can ask for `n` answers."""
    unsupported: ClassVar[tuple[str, ...]] = ()
    """Fields of a request that the format has no place for."""

    def path(self, endpoint: Endpoint) -> str:
        """The path of requests below the base URL."""
        raise NotImplementedError

    def body(self, endpoint: Endpoint, request: Request, native_schema: bool) -> dict[str, Any]:
        """The request as the provider wants it; `native_schema` asks for its own way of fixing the form."""
        raise NotImplementedError

    def parse(self, raw: dict[str, Any]) -> Answer:
        """The answer in a body. KeyError, TypeError or ValueError mean that the body is broken."""
        raise NotImplementedError

    def assemble(self, events: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Assemble the events of a stream into the body of the equivalent non-streaming response."""
        raise NotImplementedError

    def is_complete(self, whole: dict[str, Any]) -> bool:
        """Whether a body that was put together from a stream without an end marker is all of the answer."""
        return True

    def continued(self, request: Request, paused: dict[str, Any]) -> Request | None:
        """The request that continues a paused turn; None where the format has no paused turns."""
        return None

    def joined(
        self, paused: list[dict[str, Any]], last: dict[str, Any], counted: bool = True
    ) -> dict[str, Any]:
        """Join the parts of a turn into one body, with the sum of their tokens if all are counted."""
        return last

    def begins(self, event: dict[str, Any]) -> bool:
        """Whether an event of a stream carries a piece of the answer, and is not only its frame."""
        return True

    def takes_schema(self, endpoint: Endpoint, request: Request) -> bool:
        """Whether the provider can be made to keep to the schema of this request."""
        return True

    def unwrap(self, choice: Choice, request: Request) -> Choice:
        """The choice with the JSON asked for by the schema as its text, wherever the provider put it.

        Called where the provider was held to the schema, not where the prompt asks for it.
        """
        return choice

    def headers(self) -> dict[str, str]:
        """Headers that the format itself needs."""
        return {}


def below(base_url: str, path: str) -> str:
    """A path below a base URL; a query of the base URL stays at the end."""
    base, mark, query = base_url.partition("?")
    return base.rstrip("/") + path + mark + query


class Provider:
    """Base of providers: where requests go, with which key, in which format. Registered under the spec's prefix.

    A subclass of a plug-in overrides what differs; `url` and `sign` see the model and the body of each request, so
    that request signatures and formats with the model in the URL can be added outside of karat.
    """

    name: str = ""
    base_url: str = ""
    """Where requests go unless the spec or `base_url_env` says otherwise. `{VARIABLE}` stands for its value."""
    base_url_env: str = ""
    base_url_suffix: str = ""
    """What is appended to the address that `base_url_env` holds, unless it is there already."""
    key_env: str = ""
    """The environment variable that holds the key."""
    token_env: str = ""
    """A variable with a bearer token that is used where `key_env` is not set (Entra ID)."""
    key_header: str = "Authorization"
    needs_key: bool = True
    apis: tuple[str, ...] = ("chat",)
    """The wire formats it speaks; the first one is used unless `api` says otherwise."""
    concurrency: int = 256
    """Calls in flight unless `limits` says otherwise."""
    derives_seed: bool = False
    """Whether sampling without a seed gets one made from (example, attempt, occurrence), to be repeatable."""
    repeatable: bool = False
    """Whether a request that fails with 500 always fails; it is then not retried."""
    free: bool = False
    """Whether calls cost nothing."""
    patience: float | None = None
    """Seconds to wait for an answer, unless `timeouts` says otherwise, where the usual time is too short."""
    grammar: bool = False
    """Whether every keyword of a schema binds the answer, also those that other providers refuse: `maxLength`,
    `minItems`, `maxItems`, `prefixItems`, `const`. Such an answer ends only where its schema does."""
    quirks: Quirks = Quirks()
    signs: bool = False
    """Whether each request is signed: `sign` is called with its body."""
    batches: str = ""
    """The batch API it has: `openai`, `anthropic` or none."""

    def choose_api(self, model: str, official: bool) -> str:
        """Return the default wire format of a model."""
        return self.apis[0]

    def context_tokens(self, endpoint: Endpoint) -> int | None:
        """Return how many tokens a prompt and its answer may have together; None if that is unknown."""
        return None

    def answer_tokens(self, endpoint: Endpoint, structured: bool) -> int | None:
        """Return the most tokens of an answer to a request without a limit; None if that is unknown."""
        return endpoint.price.max_output if endpoint.price is not None else None

    def format(self, endpoint: Endpoint) -> WireFormat:
        """The wire format of an endpoint."""
        return _formats.get(endpoint.api) or wire_format(endpoint.api)

    def several(self, endpoint: Endpoint) -> bool:
        """Whether one request can ask for `n` answers; where not, n requests are made."""
        return self.quirks.several and self.format(endpoint).several

    def url(self, base_url: str, endpoint: Endpoint, body: Mapping[str, Any]) -> str:
        """Return the URL of requests."""
        return below(base_url, self.format(endpoint).path(endpoint))

    def embeddings_url(self, base_url: str) -> str:
        """Return the URL of embedding requests."""
        if "chat" not in self.apis:
            raise RequestError(f"{self.name} does not embed: use local/wordllama or openai/NAME")
        return below(base_url, "/embeddings")

    def headers(self, key: str | None, endpoint: Endpoint) -> dict[str, str]:
        """Headers of every request, with the key where there is one."""
        out = self.format(endpoint).headers()
        if key:
            header = endpoint.key_header or self.key_header
            out[header] = f"Bearer {key}" if header == "Authorization" else key
        return out

    def sign(
        self, url: str, headers: Mapping[str, str], body: bytes, key: str | None, endpoint: Endpoint
    ) -> Mapping[str, str]:
        """More headers for one request, made from its body; called where `signs` is true."""
        return {}

    def body(self, endpoint: Endpoint, request: Request, native_schema: bool) -> dict[str, Any]:
        """The request as this provider wants it."""
        return self.format(endpoint).body(endpoint, request, native_schema)

    def parse(self, raw: dict[str, Any], endpoint: Endpoint) -> Answer:
        """Return the answer in a body."""
        return self.format(endpoint).parse(raw)

    def takes_schema(self, endpoint: Endpoint, request: Request) -> bool:
        """Whether the provider can be made to keep to the schema of this request."""
        return self.quirks.json_schema and self.format(endpoint).takes_schema(endpoint, request)

    def unwrap(self, choice: Choice, request: Request, endpoint: Endpoint) -> Choice:
        """The choice with the JSON asked for by the schema as its text."""
        return self.format(endpoint).unwrap(choice, request)

    def identity(self, endpoint: Endpoint) -> str:
        """Return the identity of an endpoint in the cache key: its address, unless that changes between runs."""
        return endpoint.base_url

    async def locate(self, endpoint: Endpoint) -> str:
        """The base URL to use now; a provider that has to start something first does it here."""
        return endpoint.base_url

    def missing_variables(self) -> list[str]:
        """The variables of `base_url` that are not set."""
        return [name for name in _VARIABLE.findall(self.base_url) if not os.environ.get(name)]

    def default_base_url(self) -> str:
        """Return `base_url` with its variables filled in. RequestError: a variable is not set."""
        missing = self.missing_variables()
        if missing:
            raise RequestError(f"{self.name} needs {', '.join(missing)}: set it, or base_url in models.yaml")
        return _VARIABLE.sub(lambda match: os.environ[match[1]], self.base_url)

    def error(self, raw: object) -> tuple[str, str]:
        """`(message, code)` of an error body, in the shapes providers use."""
        if isinstance(raw, list) and raw:  # Gemini wraps its errors in a list
            raw = raw[0]
        found = raw.get("error", raw) if isinstance(raw, dict) else raw
        if isinstance(found, dict) and isinstance(listed := found.get("errors"), list) and listed:
            found = found if found.get("message") else listed[0]
        if isinstance(found, dict):
            message = found.get("message") or found.get("detail") or found.get("msg") or ""
            code = found.get("code") or found.get("type") or ""
            if message or code:
                return one_line(str(message)), one_line(str(code), LONGEST_NAME)
        if isinstance(found, str):
            return one_line(found), ""
        return "", ""


_VARIABLE = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")

API_NAMES = ("chat", "responses", "anthropic")

_formats: dict[str, WireFormat] = {}


def wire_format(name: str) -> WireFormat:
    """The wire format of a name; one instance per process."""
    found = _formats.get(name)
    if found is None:
        if name == "responses":
            from karat.models.providers._responses import Responses as cls
        elif name == "anthropic":
            from karat.models.providers._anthropic import AnthropicMessages as cls  # type: ignore[assignment]
        else:
            from karat.models.providers._chat import ChatCompletions as cls  # type: ignore[assignment]
        found = _formats[name] = cls()
    return found


def read_arguments(text: object) -> Any:
    """A tool call's arguments: the JSON they are, or the text they are when it is not JSON."""
    if not isinstance(text, str):
        return text
    try:
        return decode_untrusted(text) if text else {}
    except msgspec.DecodeError:
        return text


MOST_CHOICES = 1024
"""Answers to one request; no provider gives more than 128."""

LONGEST_NAME = 200
"""Characters of the name of a model that a server says it used; the rest is cut off. It is stored with every call."""


def as_name(value: object, field: str) -> str:
    """A short text of a reply, such as a reason or an id; ValueError where it is something else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{field} is not text")
    return value


def served_model(raw: Mapping[str, Any]) -> str:
    """Return the model name that a server reports; empty if it is not text."""
    name = raw.get("model")
    return name[:LONGEST_NAME] if isinstance(name, str) else ""


def tool_name(value: object) -> str:
    """The name of a tool that is called; ValueError where there is none."""
    if not isinstance(value, str) or not value:
        raise ValueError("a tool call without a name")
    return value


def refuse_duplicates(calls: Iterable[ToolCall]) -> None:
    """Raise ValueError if two tool calls have the same id: their results could be confused."""
    ids = [call.id for call in calls if call.id]
    if len(set(ids)) != len(ids):
        raise ValueError("two tool calls with the same id")


def read_tool_calls(calls: Iterable[Mapping[str, Any]] | None) -> list[ToolCall]:
    """OpenAI-shaped tool calls. Ids that occur twice, as some servers give them, are numbered."""
    out: list[ToolCall] = []
    seen: dict[str, int] = {}
    for call in calls or ():
        id = as_name(call.get("id"), "id")
        seen[id] = seen.get(id, 0) + 1
        out.append(
            ToolCall(
                id=f"{id}#{seen[id]}" if id and seen[id] > 1 else id,
                name=tool_name(call["function"]["name"]),
                arguments=read_arguments(call["function"].get("arguments")),
            )
        )
    return out


def plain_text(content: str | Iterable[Mapping[str, Any]] | None) -> str:
    """The text of a message's content."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.get("text") or "" for part in content if part.get("type") == "text")


providers: Registry[type[Provider]] = Registry(
    "provider", builtin=["karat.models.providers._presets", "karat.models.providers._local"]
)

register_provider = providers.register
