"""OpenAI chat messages: `tool_calls`, the legacy `function_call`, tool messages, and whole completions.

Nearly every framework can write these, so the reader also accepts `toolCalls`, tool calls without the `function`
envelope, Inspect's messages, and calls that are written in the assistant's text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import read_call, simple
from karat.traces._objects import plain
from karat.traces._text_calls import NOT_AGENTS, is_prose, text_steps
from karat.traces.formats.anthropic import fast_blocks
from karat.traces.steps import Step, ToolCall, ToolResult, UnreadCall, Unused, rest, text_or_none

name = "openai_chat"

_LISTS = ("tool_calls", "toolCalls")
_CALL_KEYS = (*_LISTS, "function_call", "functionCall")
_PLAIN_KEYS = frozenset(("role", "content", "tool_call_id", "name", "refusal", "annotations"))
_FAST_KEYS = _PLAIN_KEYS | {"tool_calls"}
_TEXT_KEYS = ("name", "refusal", "tool_call_id")
_FAST_CALL = frozenset(("id", "type", "index", "function"))
_FAST_BARE = frozenset(("id", "type", "index", "name", "args", "arguments"))
_SCALARS = (str, int, type(None))


def detect(value: object) -> bool:
    """A message with a role, a completion with choices, or a bare tool call in its `function` envelope."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("role"), str):
        return True
    return isinstance(value.get("choices"), list) or _is_enveloped(value)


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """The step of a message; the steps of the first choice of a completion."""
    if isinstance(value.get("role"), str):
        yield from read_message(value)
    elif "choices" in value:
        yield from _read_completion(value)
    else:
        yield from _assembled("assistant", None, [value], {})


def fast_calls(messages: list[Any]) -> tuple[list[str], list[Any]] | None:
    """Return names and arguments of the calls of plain messages; None if a message is not plain.

    Calls may be written as LangChain writes them, and content as Anthropic's blocks.
    """
    names: list[str] = []
    arguments: list[Any] = []
    for message in messages:
        role, size = message["role"], len(message)
        try:
            content = message["content"]
        except KeyError:
            content, size = None, size + 1
        # The number of keys tells most messages without another key, which may hold a call.
        if type(content) is not str and content:
            if not _is_plain(message, _PLAIN_KEYS) or not fast_blocks(role, content, names, arguments):
                return None
        elif role == "assistant":
            if "tool_calls" not in message or (calls := message["tool_calls"]) is None:
                if (content and not is_prose(content)) or (size > 2 and not _is_searched(message)):
                    return None
                continue
            if type(calls) is not list or (size > 3 and not _is_plain(message, _FAST_KEYS)):
                return None
            # Beside calls, prose has to be told from texts that hold others, which have one of these characters.
            if (
                content
                and (":" in content or "<" in content or "[" in content or "`" in content or not calls)
                and not is_prose(content)
            ):
                return None
            for call in calls:
                # As above for the fields of a call, of which none but its function or arguments may hold an object.
                if "function" in call:
                    function = call["function"]
                    if len(function) != 2 or (
                        (len(call) != 3 or call["type"] != "function" or type(call["id"]) is not str)
                        and not _is_plain_call(call, _FAST_CALL)
                    ):
                        return None
                    names.append(function["name"])
                    arguments.append(function["arguments"])
                elif (
                    len(call) != 4 or call["type"] != "tool_call" or type(call["id"]) is not str
                ) and not _is_plain_call(call, _FAST_BARE):
                    return None
                else:
                    names.append(call["name"])
                    arguments.append(call["arguments" if "arguments" in call else "args"])
        elif role not in NOT_AGENTS or (
            size != 2
            and (size != 3 or "tool_call_id" not in message or type(message["tool_call_id"]) is not str)
            and not _is_plain(message, _PLAIN_KEYS)
        ):
            return None
    return names, arguments


def _is_plain(message: dict[str, Any], keys: frozenset[str]) -> bool:
    """Return whether a message has no other fields, and no field but its content and calls holds an object."""
    return message.keys() <= keys and all(
        part is None or type(part) is str or part == [] or key in ("content", "tool_calls")
        for key, part in message.items()
    )


def _is_plain_call(call: dict[str, Any], keys: frozenset[str]) -> bool:
    """Return whether a call has no other fields, and only its function or its arguments hold an object."""
    return call.keys() <= keys and all(
        type(part) in _SCALARS or key in ("function", "args", "arguments") for key, part in call.items()
    )


def _is_searched(message: dict[str, Any]) -> bool:
    """Return whether a message without calls is plain, and no text beside its content holds a call."""
    return _is_plain(message, _FAST_KEYS) and all(
        type(message.get(key)) is not str or is_prose(message[key]) for key in _TEXT_KEYS
    )


def read_message(message: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the step of one message; text that holds calls (ReAct) may give several."""
    role, content = message["role"], message.get("content")
    if isinstance(content, (list, tuple)):
        content = [plain(block) for block in content]
    if role in ("tool", "function"):
        yield _tool_step(message, content)
        return
    given, unread = _given_calls(message)
    yield from unread
    extra = rest(message, "role", "content", *_CALL_KEYS)
    if isinstance(extra.get("invalid_tool_calls"), list):
        # LangChain's name for calls whose arguments it could not read.
        given = [*given, *map(plain, extra.pop("invalid_tool_calls"))]
    given = given or _older_calls(extra)
    recipient = extra.get("recipient")
    if not given and isinstance(recipient, str) and recipient.startswith("functions."):
        # A Harmony message to a tool: its content is the arguments.
        given = [{"name": recipient.removeprefix("functions."), "arguments": simple(content)}]
    if not given and role not in NOT_AGENTS:
        only = content if isinstance(content, str) else simple(content)
        if isinstance(only, str) and (found := text_steps(role, only, extra)) is not None:
            yield from found
            return
    yield from _assembled(role, content, given, extra)


def _given_calls(message: dict[str, Any]) -> tuple[list[Any], list[Unused]]:
    """Return the calls under all keys that hold them, and the keys whose value is not what it should be."""
    given: list[Any] = []
    unread: list[Unused] = []
    for key in _CALL_KEYS:
        value = plain(message.get(key))
        if value is None or value in ("", [], {}):
            continue
        if key in _LISTS:
            if isinstance(value, list):
                given += _others([plain(each) for each in value], given)
            else:
                unread.append(UnreadCall(key, f"{key} is not a list", value))
        elif isinstance(value, dict):
            given += _others([{"function": value}], given)
        else:
            unread.append(UnreadCall(key, f"{key} is not an object", value))
    return given, unread


def _others(calls: list[Any], given: list[Any]) -> list[Any]:
    """Return the calls under one key without the copies of those under another: the old key beside the new one."""
    left = [read_call(call) for call in given]
    others = []
    for call in calls:
        read = read_call(call)
        at = next((i for i, each in enumerate(left) if read is not None and _is_copy(read, each)), None)
        if at is None:
            others.append(call)
        else:
            del left[at]
    return others


def _is_copy(call: ToolCall, other: ToolCall | None) -> bool:
    if other is None or (call.name, call.arguments, call.raw) != (other.name, other.arguments, other.raw):
        return False
    return call.id is None or other.id is None or call.id == other.id


def _older_calls(extra: dict[str, Any]) -> list[Any]:
    """Return the provider's own calls, which messages that went through LangChain may keep."""
    beside = plain(extra.get("additional_kwargs"))
    return _given_calls(beside)[0] if isinstance(beside, dict) else []


def calls_beside(fields: dict[str, Any]) -> list[Any]:
    """Return the unparsed calls of a dict: `tool_calls`, and the legacy `function_call` in the same form."""
    return _given_calls(fields)[0]


def _tool_step(message: dict[str, Any], content: Any) -> Step:
    called = message.get("name", message.get("function"))
    error = message.get("error")
    result = ToolResult(
        text_or_none(message.get("tool_call_id", message.get("toolCallId"))),
        called if isinstance(called, str) else None,
        content,
        message.get("is_error") is True or message.get("status") == "error" or bool(error),
    )
    used = ["role", "content", "tool_call_id", "toolCallId", "name", "is_error"]
    if "name" not in message and isinstance(called, str):
        used.append("function")
    return Step("tool", content, tool_result=result, extra=rest(message, *used))


def _assembled(role: str, content: Any, given: list[Any], extra: dict[str, Any]) -> Iterator[Step | Unused]:
    calls: list[ToolCall] = []
    for position, call in enumerate(given):
        read = read_call(call)
        if read is None:
            yield UnreadCall(f"tool_calls[{position}]", "a tool call without a name", call)
        else:
            calls.append(read)
    yield Step(role, content, calls, extra=extra)


def _is_enveloped(value: dict[str, Any]) -> bool:
    return value.get("type") == "function" and isinstance(plain(value.get("function")), dict)


def _read_completion(value: dict[str, Any]) -> Iterator[Step | Unused]:
    is_read = False
    for position, choice in enumerate(value["choices"]):
        choice = plain(choice)
        message = plain(choice.get("message")) if isinstance(choice, dict) else None
        where = f"choices[{position}]"
        if position or not isinstance(message, dict):
            # Without a message in the first choice, a call in another one may be the agent's.
            reason = "only the message of the first choice is the trajectory"
            yield Unused(where, reason, choice, reviewed=is_read)
        else:
            is_read = True
            # Why it ended and the like become the extras of the step.
            yield from read_message({**rest(choice, "message"), "role": "assistant", **message})
    others = rest(value, "choices")
    if others:
        yield Unused("", "fields outside 'choices'", others, harmless=True)
