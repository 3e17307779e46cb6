"""What is asked of a model and what it answers: requests, replies, tool calls."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypedDict

import msgspec

from karat.errors import RequestError, did_you_mean
from karat.models._failures import Attempt
from karat.models._media import with_media
from karat.records import Usage

Messages = str | Sequence[Mapping[str, Any]]
"""One user message, or a conversation in the shape of OpenAI's chat completions."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

ROLES = ("assistant", "developer", "system", "tool", "user")


# None of these can be part of a cycle, and there are several for every call: `gc=False` spares looking for one.


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call that the model requests. `arguments` is the parsed JSON, or the text if it is not JSON."""

    id: str
    name: str
    arguments: Any


class Choice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of the answers to a request."""

    text: str = ""
    tool_calls: list[ToolCall] = []
    finish_reason: str = ""
    parsed: Any = None
    thinking: str = ""
    """What the model thought before it answered, where the provider shows it."""
    logprobs: list[dict[str, Any]] | None = None
    """`[{token, logprob, top}]`, where they were asked for and are offered."""
    provider_items: list[dict[str, Any]] = []
    """The answer as the provider wants it back in the next turn: reasoning and thinking, with their signatures."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a model answered. `seconds` is the provider's own time, also for a cache hit."""

    text: str = ""
    tool_calls: list[ToolCall] = []
    parsed: Any = None
    """The answer as the schema asks for it: an instance of the pydantic model, or plain JSON values."""
    finish_reason: str = ""
    usage: Usage = Usage()
    seconds: float = 0.0
    cached: bool = False
    served_model: str = ""
    raw: Any = None
    choices: list[Choice] = []
    """All answers, where `n` asked for several; the fields above are those of the first."""
    attempts: list[Attempt] = []
    """The requests that failed before this one succeeded."""
    service_seconds: float = 0.0
    """Time on the wire, with the attempts that failed."""
    queue_seconds: float = 0.0
    """Time spent waiting for a place, a rate limit or the next attempt."""
    thinking: str = ""
    """What the model thought before it answered, where the provider shows it."""
    logprobs: list[dict[str, Any]] | None = None
    """`[{token, logprob, top}]`, where they were asked for and are offered."""
    first_token_seconds: float | None = None
    """Seconds until the first piece of the answer came, where it was streamed."""
    tokens_per_second: float | None = None
    """Output tokens per second after the first piece, where it was streamed."""

    @property
    def tool_call_messages(self) -> list[dict[str, Any]]:
        """The tool calls in OpenAI's form, as a conversation keeps them."""
        return [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments
                    if isinstance(call.arguments, str)
                    else msgspec.json.encode(call.arguments).decode(),
                },
            }
            for call in self.tool_calls
        ]

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's turn, to be appended to the conversation before the results of its tool calls."""
        out: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            out["tool_calls"] = self.tool_call_messages
        if self.choices and self.choices[0].provider_items:
            out["provider_items"] = self.choices[0].provider_items
        return out


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Everything that can change an answer, apart from who is asked. The cache key covers each field."""

    messages: list[dict[str, Any]]
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    schema: dict[str, Any] | None = None
    n: int = 1
    extra: dict[str, Any] = {}
    effort: str | None = None
    logprobs: int | None = None


_SECRET_NAME = re.compile(
    r"api[_-]?key|authori[sz]ation|password|passwd|secret|credential|cookie|bearer"
    r"|(?:access|auth|bearer|id|refresh|session)[_-]?token|^(?:x-)?(?:auth|key|token|headers)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\s*(?:bearer|basic)\s|\s*(?:sk|pk|rk|gsk|ghp|xox[abp]|hf)[-_][\w-]{8}", re.IGNORECASE
)

_OWN_FIELDS = {
    "model": "the spec says which model is asked",
    "stream": "stream is given beside it, not in it",
}
"""Fields of the body that `extra` cannot change, and why."""


def read_messages(messages: Messages, *, files: bool = True) -> list[dict[str, Any]]:
    """Copy a conversation to a new list, so that later changes by the caller have no effect.

    Parts with a path are read, unless `files` is false: the path of a template is not filled in yet.
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or isinstance(messages, (bytes, bytearray)) or not messages:
        raise RequestError("messages are a text, or a list of {role, content} with at least one of them")
    out = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"message {number} is {type(message).__name__}, not {{role, content}}")
        role = message.get("role")
        if role not in ROLES:
            raise RequestError(f"message {number} has the role {role!r}: {did_you_mean(str(role), ROLES)}")
        parts = files and message.get("content").__class__ is list
        out.append(with_media(message) if parts else dict(message))
    return out


def is_secret(name: str, value: object = None) -> bool:
    """Whether a field or header looks as if it held a key, by its name or by its value."""
    return bool(_SECRET_NAME.search(name)) or (isinstance(value, str) and bool(_SECRET_VALUE.match(value)))


def check_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """`extra` fields of the request body; a secret has no place there, since requests are recorded."""
    for name in extra:
        if name in _OWN_FIELDS or name in Request.__struct_fields__:
            why = _OWN_FIELDS.get(name, f"{name} is given beside it, not in it")
            raise RequestError(f"extra cannot have the field {name!r}: {why}")
    secret = _secret_in(extra)
    if secret is not None:
        raise RequestError(
            f"extra field {secret!r} looks like a secret and requests are recorded: "
            "name its environment variable as api_key_env or headers_env in models.yaml"
        )
    return dict(extra)


def _secret_in(value: Any) -> str | None:
    """The name of the first field, at any depth, that looks like a secret."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            found = str(name) if is_secret(str(name), item) else _secret_in(item)
            if found is not None:
                return found
    elif isinstance(value, (list, tuple)):
        return next((found for item in value if (found := _secret_in(item)) is not None), None)
    return None


class Options(TypedDict, total=False):
    """The options of a call. None means the value in the model's `parameters`, if there is one."""

    temperature: float | None
    max_tokens: int | None
    effort: str | None
    """How much the model thinks first: none, minimal, low, medium, high, xhigh or max."""
    seed: int | None
    stop: str | Sequence[str] | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: Any
    schema: Any
    """A JSON Schema or a pydantic model that the answer has to fit."""
    n: int | None
    logprobs: bool | int | None
    """Whether the probability of each token is wanted; a number also asks for so many alternatives."""
    stream: bool | None
    """Whether the answer is streamed, to measure the time to its first token."""
    deterministic: bool | None
    """Whether examples may share an answer: by default only at temperature 0."""
    extra: Mapping[str, Any] | None
    """Fields that are added to the request body unchanged."""


PARAMETERS = (
    *("temperature", "max_tokens", "effort", "seed", "stop", "tools", "tool_choice", "n", "logprobs"),
    *("stream", "deterministic", "extra"),
)


def check_parameters(given: Mapping[str, Any]) -> None:
    """Raise RequestError for invalid parameters, so that wrong defaults of a model fail before its first call."""
    for name, value in given.items():
        if name not in PARAMETERS:
            raise RequestError(unknown_parameter(name, value))
        if value is not None:
            _READ[name](name, value)


def read_options(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call, checked: those given, and the model's own for those that are not."""
    if defaults:
        merged = {**defaults, **{name: value for name, value in given.items() if value is not None}}
        if defaults.get("extra") and given.get("extra") is not None:
            merged["extra"] = {**defaults["extra"], **body_fields("extra", given["extra"])}
    else:
        merged = given  # type: ignore[assignment]  # it is only read
    out = {}
    for name, value in merged.items():
        if value is None or name == "schema":
            continue
        read = _READ.get(name)
        if read is None:
            raise RequestError(unknown_parameter(name, value))
        out[name] = read(name, value)
    return out


def unknown_parameter(name: str, value: object) -> str:
    """What to say about a parameter that karat does not have: the nearest one, or how to send it all the same."""
    shown = repr(value) if isinstance(value, (int, float)) and not is_secret(name) else "…"
    return (
        f"no parameter {name!r}: {did_you_mean(name, PARAMETERS)}; "
        f"other fields of the body are written extra: {{{name}: {shown}}}"
    )


def number(name: str, value: object) -> float:
    """A temperature."""
    if type(value) is not float:  # the usual kind is not looked at twice: this is done for every call
        if not isinstance(value, Real) or isinstance(value, bool):
            raise RequestError(f"{name} is {_shown(value)}: a number from 0 up is expected")
        value = float(value)
    if not 0.0 <= value < math.inf:
        raise RequestError(f"{name} is {value}: a number from 0 up is expected")
    return float(value)


def whole(name: str, value: object) -> int:
    """A seed."""
    if type(value) is int:
        return value
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise RequestError(f"{name} is {_shown(value)}: a whole number is expected")
    return int(value)


def count(name: str, value: object) -> int:
    """A number of tokens or answers."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise RequestError(f"{name} is {_shown(value)}: a whole number from 1 up is expected")
    return int(value)


def effort_level(name: str, value: object) -> str:
    """How much a model thinks before it answers."""
    if value is False:  # what YAML makes of `off`
        return "none"
    if value not in EFFORTS:
        raise RequestError(f"{name} is {_shown(value)}: one of {', '.join(EFFORTS)} is expected")
    return str(value)


def flag(name: str, value: object) -> bool:
    """Yes or no."""
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {_shown(value)}: true or false is expected")
    return value


def alternatives(name: str, value: object) -> int | None:
    """For how many alternatives to each token a probability is wanted; None where none is."""
    if isinstance(value, bool):
        return 0 if value else None
    if not isinstance(value, Integral) or not 0 <= int(value) <= 20:
        raise RequestError(
            f"{name} is {_shown(value)}: true, or a number of alternatives up to 20, is expected"
        )
    return int(value)


def stops(name: str, value: object) -> list[str]:
    """Texts at which an answer ends."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise RequestError(f"{name} is {_shown(value)}: a text or a list of texts is expected")
    return list(value)


def tool_list(name: str, value: object) -> list[dict[str, Any]]:
    """Tools that the model may call."""
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise RequestError(f"{name} is {_shown(value)}: {_TOOLS} is expected")
    for tool in value:
        if "function" in tool and not (
            isinstance(tool["function"], Mapping) and isinstance(tool["function"].get("name"), str)
        ):
            raise RequestError(f"{name} has a function without a name: {_TOOLS} is expected")
    return [dict(tool) for tool in value]


def choice_of_tool(name: str, value: object) -> Any:
    """Whether a tool is to be called, and which."""
    if not isinstance(value, (str, Mapping)):
        raise RequestError(
            f"{name} is {_shown(value)}: auto, none, required or {{type, function}} is expected"
        )
    return value


def body_fields(name: str, value: object) -> dict[str, Any]:
    """Fields that are added to the request body unchanged."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} is {_shown(value)}: fields of the body, {{name: value}}, are expected")
    return check_extra(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


_TOOLS = "a list of {type: function, function: {name, parameters}}"

_READ: dict[str, Callable[[str, Any], Any]] = {
    "temperature": number,
    "max_tokens": count,
    "seed": whole,
    "stop": stops,
    "tools": tool_list,
    "tool_choice": choice_of_tool,
    "n": count,
    "effort": effort_level,
    "logprobs": alternatives,
    "stream": flag,
    "deterministic": flag,
    "extra": body_fields,
}
