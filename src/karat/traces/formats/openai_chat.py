"""OpenAI chat messages: `tool_calls`, the legacy `function_call`, tool messages, and whole completions.

Nearly every framework can write these, so the reader also takes tool calls without the `function` envelope.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import read_bare_call
from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.formats.anthropic import fast_blocks
from karat.traces.steps import Step, ToolCall, ToolResult, Unused, rest, text_or_none

name = "openai_chat"

_FAST_KEYS = frozenset(("role", "content", "tool_calls", "tool_call_id", "name", "refusal", "annotations"))


def detect(value: Any) -> bool:
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


def fast_calls(messages: list[Any], keys: set[Any]) -> tuple[list[str], list[Any]] | None:
    """Return names and arguments of the calls of plain messages; None where one of them is not plain.

    Calls may be written as LangChain writes them, and content as Anthropic's blocks.
    """
    if not _FAST_KEYS.issuperset(keys):
        return None
    names: list[str] = []
    arguments: list[Any] = []
    for message in messages:
        try:
            content = message["content"]
        except KeyError:
            content = None
        if type(content) is not str and content is not None:
            if not fast_blocks(message, content, names, arguments):
                return None
        elif "tool_calls" not in message or (calls := message["tool_calls"]) is None:
            if type(message["role"]) is not str:
                return None
        elif message["role"] != "assistant" or type(calls) is not list:
            return None
        else:
            for call in calls:
                try:
                    function = call["function"]
                except KeyError:
                    if "raw" in call or "custom" in call:
                        return None
                    names.append(call["name"])
                    arguments.append(call["arguments" if "arguments" in call else "args"])
                else:
                    names.append(function["name"])
                    arguments.append(function["arguments"])
    return names, arguments


def read_message(message: dict[str, Any]) -> Iterator[Step | Unused]:
    """One message as one step."""
    role, content = message["role"], message.get("content")
    if isinstance(content, (list, tuple)):
        content = [plain(block) for block in content]
    if role in ("tool", "function"):
        yield _tool_step(message, content)
        return
    calls = message.get("tool_calls")
    given = calls_beside(message)
    if calls is not None and not isinstance(calls, (list, tuple)):
        yield Unused("tool_calls", "the tool calls are no list", calls)
    extra = rest(message, "role", "content", "tool_calls", "function_call")
    if isinstance(extra.get("invalid_tool_calls"), list):
        # LangChain's word for calls whose arguments it could not read.
        given = [*given, *map(plain, extra.pop("invalid_tool_calls"))]
    yield from _assembled(role, content, given or _older_calls(extra), extra)


def _older_calls(extra: dict[str, Any]) -> list[Any]:
    """The provider's own calls, which messages that went through LangChain may keep beside."""
    beside = plain(extra.get("additional_kwargs"))
    return calls_beside(beside) if isinstance(beside, dict) else []


def calls_beside(fields: dict[str, Any]) -> list[Any]:
    """`tool_calls`, and the legacy `function_call` as one of them, as they are written in a dict."""
    calls = fields.get("tool_calls")
    given = [plain(call) for call in calls] if isinstance(calls, (list, tuple)) else []
    legacy = plain(fields.get("function_call"))
    return given if legacy is None else [*given, {"function": legacy}]


def _tool_step(message: dict[str, Any], content: Any) -> Step:
    called = message.get("name")
    result = ToolResult(
        text_or_none(message.get("tool_call_id")),
        called if isinstance(called, str) else None,
        content,
        message.get("is_error") is True or message.get("status") == "error",
    )
    extra = rest(message, "role", "content", "tool_call_id", "name", "is_error")
    return Step("tool", content, tool_result=result, extra=extra)


def _assembled(role: str, content: Any, given: list[Any], extra: dict[str, Any]) -> Iterator[Step | Unused]:
    calls: list[ToolCall] = []
    for position, call in enumerate(given):
        read = _read_call(call)
        if read is None:
            yield Unused(f"tool_calls[{position}]", "a tool call without a name", call)
        else:
            calls.append(read)
    yield Step(role, content, calls, extra=extra)


def _read_call(call: Any) -> ToolCall | None:
    if isinstance(call, ToolCall):
        return call
    if not isinstance(call, dict):
        return None
    function = plain(call.get("function"))
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        arguments, raw = read_arguments(function.get("arguments"))
        others = {**rest(call, "id", "type", "function"), **rest(function, "name", "arguments")}
        return ToolCall(text_or_none(call.get("id")), function["name"], arguments, raw, others)
    custom = plain(call.get("custom"))
    if isinstance(custom, dict) and isinstance(custom.get("name"), str):
        # A custom tool takes free text, which is its argument as it stands.
        others = {**rest(call, "id", "custom"), **rest(custom, "name", "input")}
        return ToolCall(text_or_none(call.get("id")), custom["name"], custom.get("input"), extra=others)
    if any(isinstance(call.get(key), str) for key in ("name", "tool", "tool_name")):
        return read_bare_call(call)
    return None


def _is_enveloped(value: dict[str, Any]) -> bool:
    return value.get("type") == "function" and isinstance(plain(value.get("function")), dict)


def _read_completion(value: dict[str, Any]) -> Iterator[Step | Unused]:
    for position, choice in enumerate(value["choices"]):
        choice = plain(choice)
        message = plain(choice.get("message")) if isinstance(choice, dict) else None
        where = f"choices[{position}]"
        if position or not isinstance(message, dict):
            yield Unused(where, "only the message of the first choice is the trajectory", choice)
        else:
            # Why it ended and the like become the extras of the step.
            yield from read_message({**rest(choice, "message"), "role": "assistant", **message})
    others = rest(value, "choices")
    if others:
        yield Unused("", "it stands beside 'choices', where the messages are", others, harmless=True)
