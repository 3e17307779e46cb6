"""Requests to a model and its replies: messages, media in messages, tool calls."""

from __future__ import annotations

import base64
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec

from karat.errors import RequestError, clip, did_you_mean
from karat.models._failures import Attempt
from karat.records import Usage

# Images, audio and files as parts of a message: a local path becomes data inside of the request, checked first.
#
# A part with a `path` is read here: `{type: image, path: cat.png}`, `{type: audio, path: …}`, `{type: file, path: …}`.
# What is sent is decided by the file's first bytes and not by its name: a path that comes from a dataset can lead
# nowhere but to a picture, a sound or a document of these kinds. A part may also be a field of a record, which a prompt
# then holds in place of `{field}`; its file has to be below the current folder.

LARGEST_FILE = 20 << 20
"""Bytes. Providers take between 5 and 20 MB for an image, and 32 MB for a whole request."""

KINDS: dict[str, dict[bytes, str]] = {
    "image": {
        b"\x89PNG\r\n\x1a\n": "image/png",
        b"\xff\xd8\xff": "image/jpeg",
        b"GIF87a": "image/gif",
        b"GIF89a": "image/gif",
        b"RIFF": "image/webp",
    },
    "audio": {
        b"RIFF": "audio/wav",
        b"ID3": "audio/mpeg",
        b"\xff\xfb": "audio/mpeg",
        b"\xff\xf3": "audio/mpeg",
    },
    "file": {b"%PDF-": "application/pdf"},
}
_RIFF = {"image": b"WEBP", "audio": b"WAVE"}


def with_media(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its files read and the size of its media checked."""
    content = message.get("content")
    if not isinstance(content, (list, tuple)):
        return dict(message)
    return {**message, "content": [_read(part) for part in content]}


def message_content(pieces: Sequence[str | tuple[Any]]) -> str | list[Any]:
    """The content of a message from literal texts and the values of fields, each in a tuple.

    It is a text, with values that are not text as JSON, unless a value is a part such as `{type: image, path: …}`, or a
    list of parts: then it is a list of parts, in the same order.
    """
    out: list[str | list[Any]] = []
    for piece in pieces:
        if isinstance(piece, str):
            out.append(piece)
        elif isinstance(piece[0], str):
            out.append(piece[0])
        else:
            parts = _media_parts(piece[0])
            out.append(msgspec.json.encode(piece[0]).decode() if parts is None else parts)
    texts = [piece for piece in out if isinstance(piece, str)]
    return "".join(texts) if len(texts) == len(out) else _parts(out)


def _parts(pieces: Sequence[str | list[Any]]) -> list[Any]:
    out: list[Any] = []
    text = ""
    for piece in (*pieces, []):
        if isinstance(piece, str):
            text += piece
            continue
        if text.strip():
            out.append({"type": "text", "text": text})
        text = ""
        out += piece
    return out


def _media_parts(value: Any) -> list[Any] | None:
    """The parts in a field of a record: one part, or a list of parts that has an image, a sound or a file."""
    if isinstance(value, Mapping):
        return [_own_file(value)] if _is_media(value) else None
    if not isinstance(value, (list, tuple)) or not any(map(_is_media, value)):
        return None
    if not all(_is_media(part) or _is_text(part) for part in value):
        return None
    return [_own_file(part) for part in value]


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _is_media(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    if kind in KINDS and isinstance(part.get("path"), str):
        return True
    return kind in ("image_url", "input_audio", "file") and isinstance(part.get(kind), (str, Mapping))


def _own_file(part: Any) -> Any:
    """A part of a record; its file has to be below the current folder, because records may come from others."""
    path = part.get("path")
    if isinstance(path, str):
        try:
            inside = Path(path).resolve().is_relative_to(Path.cwd().resolve())
        except (OSError, ValueError):
            inside = False
        if not inside:
            raise RequestError(
                f"{path[:200]!r}: a file that a record names must be below the current folder: move it,"
                " or name its field as the path of a part in the prompt"
            )
    return part


def _check_size(part: Mapping[str, Any]) -> None:
    """Refuse data inside of a part that is larger than a file may be."""
    inside = part.get(str(part.get("type")))
    values = [*inside.values()] if isinstance(inside, Mapping) else [inside]
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    if longest > LARGEST_FILE * 4 / 3 + 200:  # in base64, with the head of a data URL
        raise RequestError(
            f"a part of the type {part.get('type')!r} has {longest * 3 // 4 >> 20} MB:"
            f" at most {LARGEST_FILE >> 20} MB can be sent"
        )


def _read(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    if "path" not in part:
        if part.get("type") != "text":
            _check_size(part)
        return part
    kind, path = part.get("type"), part["path"]
    if kind not in KINDS:
        raise RequestError(f"a part with a path has the type {kind!r}: known: {', '.join(KINDS)}")
    content = _content(path)
    media = _media_type(kind, content)
    if media is None:
        raise RequestError(
            f"{path} is not of a supported {kind} type: use {', '.join(sorted(set(KINDS[kind].values())))}"
        )
    data = base64.b64encode(content).decode()
    if kind == "image":
        image = {"url": f"data:{media};base64,{data}"}
        if part.get("detail"):
            image["detail"] = str(part["detail"])
        return {"type": "image_url", "image_url": image}
    if kind == "audio":
        sound = {"data": data, "format": "wav" if media == "audio/wav" else "mp3"}
        return {"type": "input_audio", "input_audio": sound}
    return {"type": "file", "file": {"filename": Path(path).name, "file_data": f"data:{media};base64,{data}"}}


def _content(path: Any) -> bytes:
    if not isinstance(path, str) or not path:
        raise RequestError(f"the path of a part is {path!r}: give the name of a file")
    file = Path(path).expanduser()
    try:
        if not file.is_file():
            raise RequestError(f"{path}: no such file: give its path relative to the current folder")
        size = file.stat().st_size
        if size > LARGEST_FILE:
            raise RequestError(f"{path} has {size >> 20} MB: at most {LARGEST_FILE >> 20} MB can be sent")
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read: {type(error).__name__}") from None


def _media_type(kind: str, content: bytes) -> str | None:
    for begins, media in KINDS[kind].items():
        if content.startswith(begins) and (begins != b"RIFF" or content[8:12] == _RIFF[kind]):
            return media
    return None


Messages = str | Sequence[Mapping[str, Any]]
"""One user message, or a conversation in the shape of OpenAI's chat completions."""

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS = typing.get_args(Effort)

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
    """A model's reply. `seconds` is the provider's own time, also for a cache hit."""

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
    service_tier: str = ""
    """The service tier that the provider says it served, where it is not the usual one."""
    web_searches: int = 0
    """Searches of the provider's own tool that the provider counts."""

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
    "model": "the spec names the model",
    "stream": "pass stream as a parameter of its own",
}
"""Fields of the body that `extra` cannot change, and why."""


def read_messages(messages: Messages, *, files: bool = True) -> list[dict[str, Any]]:
    """Copy a conversation to a new list, so that later changes by the caller have no effect.

    Parts with a path are read, unless `files` is false: the path of a template is not filled in yet.
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or isinstance(messages, (bytes, bytearray)) or not messages:
        raise RequestError("messages must be a text, or a list of at least one {role, content}")
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
            why = _OWN_FIELDS.get(name, f"pass {name} as a parameter of its own")
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


class Parameters(TypedDict, total=False):
    """The parameters of a model, and options of a call. None means the model's own value, if there is one."""

    temperature: float | None
    max_tokens: int | None
    effort: Effort | None
    """How much the model thinks first: none, minimal, low, medium, high, xhigh or max."""
    seed: int | None
    stop: str | Sequence[str] | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: Any
    n: int | None
    logprobs: bool | int | None
    """Whether the probability of each token is wanted; a number also asks for so many alternatives."""
    stream: bool | None
    """Whether the answer is streamed, to measure the time to its first token."""
    deterministic: bool | None
    """Whether examples may share an answer: by default only at temperature 0."""
    extra: Mapping[str, Any] | None
    """Fields that are added to the request body unchanged."""


class CallOptions(Parameters, total=False):
    """The options of a call."""

    schema: Any
    """A JSON Schema or a pydantic model that the answer has to fit."""


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
    """The advice on an unknown parameter: the nearest one, or how to send it anyway."""
    shown = repr(value) if isinstance(value, (int, float)) and not is_secret(name) else "…"
    return (
        f"no parameter {name!r}: {did_you_mean(name, PARAMETERS)}; "
        f"other fields of the body are written extra: {{{name}: {shown}}}"
    )


def number(name: str, value: object) -> float:
    """Check a temperature."""
    if type(value) is not float:  # the usual kind is not looked at twice: this is done for every call
        if not isinstance(value, Real) or isinstance(value, bool):
            raise RequestError(f"{name} is {clip(value)}: it must be a number, 0 or more")
        value = float(value)
    if not 0.0 <= value < math.inf:
        raise RequestError(f"{name} is {value}: it must be a number, 0 or more")
    return float(value)


def integer(name: str, value: object) -> int:
    """Check a seed."""
    if type(value) is int:
        return value
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise RequestError(f"{name} is {clip(value)}: it must be a whole number")
    return int(value)


def count(name: str, value: object) -> int:
    """A number of tokens or answers."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise RequestError(f"{name} is {clip(value)}: it must be a whole number, 1 or more")
    return int(value)


def effort_level(name: str, value: object) -> str:
    """Check a level of effort."""
    if value is False:  # what YAML makes of `off`
        return "none"
    if value not in EFFORTS:
        raise RequestError(f"{name} is {clip(value)}: it must be one of {', '.join(EFFORTS)}")
    return str(value)


def flag(name: str, value: object) -> bool:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {clip(value)}: it must be true or false")
    return value


def alternatives(name: str, value: object) -> int | None:
    """For how many alternatives to each token a probability is wanted; None where none is."""
    if isinstance(value, bool):
        return 0 if value else None
    if not isinstance(value, Integral) or not 0 <= int(value) <= 20:
        raise RequestError(f"{name} is {clip(value)}: it must be true, or a number of alternatives up to 20")
    return int(value)


def stops(name: str, value: object) -> list[str]:
    """Texts at which an answer ends."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise RequestError(f"{name} is {clip(value)}: it must be a text or a list of texts")
    return list(value)


def tool_list(name: str, value: object) -> list[dict[str, Any]]:
    """Tools that the model may call."""
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise RequestError(f"{name} is {clip(value)}: it must be {_TOOLS}")
    for tool in value:
        if "function" in tool and not (
            isinstance(tool["function"], Mapping) and isinstance(tool["function"].get("name"), str)
        ):
            raise RequestError(f"{name} has a function without a name: it must be {_TOOLS}")
    return [dict(tool) for tool in value]


def choice_of_tool(name: str, value: object) -> Any:
    """Whether a tool is to be called, and which."""
    if not isinstance(value, (str, Mapping)):
        raise RequestError(f"{name} is {clip(value)}: it must be auto, none, required or {{type, function}}")
    return value


def body_fields(name: str, value: object) -> dict[str, Any]:
    """Fields that are added to the request body unchanged."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} is {clip(value)}: it must be fields of the body, {{name: value}}")
    return check_extra(value)


_TOOLS = "a list of {type: function, function: {name, parameters}}"

_READ: dict[str, Callable[[str, Any], Any]] = {
    "temperature": number,
    "max_tokens": count,
    "seed": integer,
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
