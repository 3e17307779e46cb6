"""Read one tool call from a dict, however its name and arguments are spelled, and the parts of a message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from karat.traces._literals import read_arguments
from karat.traces._objects import decoded, plain
from karat.traces.steps import Step, ToolCall, ToolResult, Unused, rest, text_or_none

NAMES = ("name", "tool", "tool_name", "toolName")
ARGUMENTS = (
    "arguments",
    "args",
    "input",
    "parameters",
    "tool_input",
    "toolInput",
    "kwargs",
    "tool_kwargs",
    "tool_args",
)
IDS = ("id", "call_id", "tool_call_id", "toolCallId", "toolUseId", "tool_use_id")
APPROVAL = "approval_request_id"
"""The id of the item that asked whether a call may be made, which repeats the call."""
_BESIDE = frozenset(
    str.split("""
additionalinformation additionalkwargs additionalproperties annotations approval artifact cachecontrol
callprovidermetadata caller display error extracontent extras labels logprobs messagelog meta metadata output outputs
providerdetails providermetadata provideroptions providerspecificfields rawrepresentation response responsemetadata
result resultdisplay resultprovidermetadata results structuredcontent tags task toolmetadata usage usagemetadata view
""")
)
"""The fields of a call, beside its name and arguments, in which some format has an object: letters in lower case."""
_BESIDE_TEXT = re.compile(
    r"(?:.*(?:id|ids|uuid|index|type|kind|status|state|phase|step|version|signature|hash|name|namespace|title|label|description"
    r"|summary|role|format|mode|model|provider|server|source|author|agent|error|message|reason|reasoning|thought|thoughts"
    r"|thinking|comment|comments|note|notes|explanation|rationale|intent|log|output|result|response|observation"
    r"|time|timestamp|date|at|start|end|started|ended|seconds|duration|latency|ms|success|confidence|score|icon))"
)
"""Fields whose text describes a call or is its result. Any other text beside a call may be its argument."""
_NOT_LETTERS = re.compile(r"[^a-z0-9]+")
_BARE_NAMES = ("name", "tool", "tool_name")
_BARE_ARGUMENTS = ("arguments", "args", "input", "parameters", "kwargs")
_BARE = {*_BARE_NAMES, "id", "type"}
_BARE_TYPES = ("tool_call", "function", "function_call")


class NoArguments(dict[str, Any]):
    """The other fields of a call that has no field for its arguments, so that one of them may be an argument."""


def read_call(call: object) -> ToolCall | None:
    """Read a call of a list of tool calls: OpenAI's, LangChain's, Inspect's or a bare one. None without a name."""
    if isinstance(call, ToolCall):
        return call
    if not isinstance(call, dict):
        return None
    function = plain(call.get("function"))
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        given = _arguments_key(function)
        arguments, raw = read_arguments(function.get(given))
        others = {**rest(call, "id", "type", "function"), **rest(function, "name", given)}
        if given not in function:
            others = NoArguments(others)
        return named_call(call.get("id"), function["name"], arguments, raw, others)
    custom = plain(call.get("custom"))
    if isinstance(custom, dict) and isinstance(custom.get("name"), str):
        # A custom tool takes free text as its only argument.
        others = {**rest(call, "id", "custom"), **rest(custom, "name", "input")}
        return named_call(call.get("id"), custom["name"], custom.get("input"), None, others)
    if isinstance(function, str) and "name" not in call:
        given = _arguments_key(call)  # AgentDojo writes args
        arguments, raw = read_arguments(call.get(given))
        if raw is None and isinstance(call.get("parse_error"), str):
            # Inspect could not parse the arguments, and keeps only the reason.
            arguments, raw = {}, str(call.get(given))
        others = rest(call, "id", "type", "function", given)
        return named_call(call.get("id"), function, arguments, raw, others)
    return read_bare_call(call) if any(isinstance(call.get(key), str) for key in NAMES) else None


def _arguments_key(call: dict[str, Any]) -> str:
    return next((key for key in ARGUMENTS if key in call), "arguments")


def read_bare_call(value: dict[str, Any]) -> ToolCall | None:
    """Read a call from a dict with a name and arguments under one of their usual keys."""
    named = next(key for key in NAMES if isinstance(value.get(key), str))
    given = _arguments_key(value)
    identity = next((key for key in IDS if value.get(key) is not None), "id")
    arguments, raw = read_arguments(value.get(given))
    if isinstance(value.get("raw"), str):
        raw = value["raw"]
    extra = value.get("extra")
    others = rest(value, named, given, identity, "type", "raw", "extra")
    if isinstance(extra, dict):
        others = {**extra, **others}
    elif given not in value:
        others = NoArguments(others)
    return named_call(value.get(identity), value[named], arguments, raw, others)


def named_call(
    identity: object,
    name: object,
    arguments: object,
    raw: str | None = None,
    extra: dict[str, Any] | None = None,
) -> ToolCall | None:
    """Return a call, or None where its name is not text or is blank."""
    if not isinstance(name, str) or not name.strip():
        return None
    return ToolCall(text_or_none(identity), name, arguments, raw, extra or {})


def is_bare_call(value: dict[str, Any]) -> bool:
    """Return whether a dict names a tool, with its arguments or nothing else, and is not a message."""
    if "role" in value or "kind" in value or "content" in value or "output" in value:
        return False
    if value.get("type", "tool_call") not in _BARE_TYPES:
        return False
    named = any(isinstance(value.get(key), str) for key in _BARE_NAMES)
    given = sum(key in value for key in _BARE_ARGUMENTS)
    if given == 0:
        return named and value.keys() <= _BARE
    return named and given == 1 and "run_type" not in value and "call_id" not in value


def unread_arguments(call: ToolCall, beside: dict[str, Any]) -> str | None:
    """Return the key beside a call without arguments that no format defines and that may hold its arguments.

    A text may be one where the call has no field for arguments; where it has one that is empty, only an object may.
    """
    if call.arguments or call.raw is not None:
        return None
    texts = call.arguments is None or isinstance(beside, NoArguments)
    for key, value in beside.items():
        letters = letters_of(key)
        if letters in _BESIDE:
            continue
        value = decoded(value)
        if isinstance(value, (dict, list)) and value:
            return key
        if texts and isinstance(value, str) and value.strip() and not _BESIDE_TEXT.fullmatch(letters):
            return key
    return None


@lru_cache(maxsize=4096)
def letters_of(key: object) -> str:
    """Return a key in lower case, without punctuation: formats spell the same words differently."""
    return _NOT_LETTERS.sub("", str(key)[:80].lower())


# Divide a message's parts into steps: content, tool calls, and tool results.

Found = ToolCall | Step | Unused | list[ToolCall | Step | Unused] | None
"""What a part is: a call, a tool result, something that cannot be read, several of them, or (None) content."""


def read_parts(
    role: str,
    parts: Iterable[Any],
    extra: dict[str, Any],
    read_part: Callable[[Any], Found],
    path: str = "content",
) -> Iterator[Step | Unused]:
    """Yield the steps of a message: a new one begins with each tool result, and with content after a call."""
    content: list[Any] = []
    calls: list[ToolCall] = []
    for position, given in enumerate(parts):
        part = plain(given)
        found = read_part(part)
        if found is None:
            if calls:
                yield Step(role, simple(content), calls, extra=extra)
                content, calls, extra = [], [], {}
            content.append(part)
            continue
        for each in found if isinstance(found, list) else [found]:
            if isinstance(each, ToolCall):
                calls.append(each)
            elif isinstance(each, Unused):
                yield msgspec.structs.replace(each, where=f"{path}[{position}]{each.where}")
            else:
                if content or calls:
                    yield Step(role, simple(content), calls, extra=extra)
                    content, calls, extra = [], [], {}
                elif extra and extra.keys().isdisjoint(each.extra):
                    # A message of results alone: its other fields go to the first of them.
                    each, extra = msgspec.structs.replace(each, extra={**extra, **each.extra}), {}
                yield each
    if content or calls or extra:
        yield Step(role, simple(content), calls, extra=extra)


def result_step(
    identity: str | None,
    name: object,
    content: object,
    failed: bool = False,
    extra: dict[str, Any] | None = None,
) -> Step:
    """Return the step of a tool's result."""
    result = ToolResult(identity, name if isinstance(name, str) else None, content, failed)
    return Step("tool", content, tool_result=result, extra=extra or {})


def simple(content: object) -> Any:
    """Return the text of a single text block, None for no block, and anything else unchanged."""
    if isinstance(content, (list, tuple)):
        content = [plain(block) for block in content]
        if not content:
            return None
        only = content[0]
        if len(content) == 1 and isinstance(only, dict):
            keys = rest(only).keys()
            if keys == {"type", "text"} or keys == {"text"}:
                return only["text"]
            if keys == {"type", "content"} and only["type"] == "text":
                return only["content"]
    return content
