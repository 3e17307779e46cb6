"""Gemini contents: parts with text, function calls and responses, in REST and in Python spelling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.detection import placed
from karat.traces.steps import Step, ToolCall, ToolResult, Unused, rest, system_steps, text_or_none

name = "gemini"

_CALL = ("functionCall", "function_call")
_RESPONSE = ("functionResponse", "function_response")
_CODE = ("executableCode", "executable_code")
_CODE_RESULT = ("codeExecutionResult", "code_execution_result")
_SYSTEM = ("systemInstruction", "system_instruction")
_HISTORY = ("automaticFunctionCallingHistory", "automatic_function_calling_history")
"""What went before a response, where the SDK itself ran the tools."""
_ROLES = {"model": "assistant", "function": "tool"}


def detect(value: Any) -> bool:
    """A content with parts, a request with contents, or a response with candidates."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("candidates"), list) or isinstance(value.get("contents"), list):
        return True
    parts = value.get("parts")
    # Typed parts are OpenTelemetry's messages, not Gemini's.
    return isinstance(parts, list) and not any(isinstance(p, dict) and "type" in p for p in map(plain, parts))


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """The steps of a content; of all contents of a request; of the first candidate of a response."""
    if "parts" in value:
        yield from _read_content(value)
        return
    key = "contents" if isinstance(value.get("contents"), list) else "candidates"
    beside = _SYSTEM if key == "contents" else _HISTORY
    told = next((value[word] for word in beside if value.get(word) is not None), None)
    if key == "contents":
        before: list[Step | Unused] = [*system_steps(told)]
    else:
        before = [*placed(read({"contents": told}), beside[0])] if isinstance(told, list) else []
    yield from before
    for position, item in enumerate(value[key]):
        given = item = plain(item)
        if key == "candidates":
            item = _candidate(item) if position == 0 else None
        if isinstance(item, dict) and isinstance(item.get("parts"), list):
            yield from _read_content(item)
        else:
            yield Unused(
                f"{key}[{position}]", "not the content of the first candidate, or without parts", given
            )
    others = rest(value, key, *(beside if before else ()))
    if others:
        yield Unused("", f"it stands beside {key!r}, where the parts are", others, harmless=True)


def _candidate(item: Any) -> Any:
    """The content of a candidate; why it ended and the like are said beside it."""
    content = plain(item.get("content")) if isinstance(item, dict) else None
    return {**rest(item, "content"), **content} if isinstance(content, dict) else None


def _read_content(value: dict[str, Any]) -> Iterator[Step | Unused]:
    given = value.get("role")
    role = _ROLES.get(given, given) if isinstance(given, str) else "assistant"
    extra = rest(value, "role", "parts")
    content: list[Any] = []
    calls: list[ToolCall] = []
    for position, part in enumerate(map(plain, value["parts"])):
        call, result = _call(part), _result(part)
        if call is not None:
            calls.append(call)
        elif result is not None:
            if content or calls:
                yield Step(role, _simple(content), calls, extra=extra)
                content, calls, extra = [], [], {}
            yield Step("tool", result.content, tool_result=result, extra=_beside_result(part))
        elif isinstance(part, (dict, str)) and not _first(part, _CALL):
            if calls:
                yield Step(role, _simple(content), calls, extra=extra)
                content, calls, extra = [], [], {}
            content.append(part)
        else:
            yield Unused(f"parts[{position}]", "a part that is neither text nor a call with a name", part)
    if content or calls or extra:
        yield Step(role, _simple(content), calls, extra=extra)


def _first(part: Any, keys: tuple[str, ...]) -> Any:
    if not isinstance(part, dict):
        return None
    return next((plain(part[key]) for key in keys if part.get(key) is not None), None)


def _call(part: Any) -> ToolCall | None:
    call = _first(part, _CALL)
    if isinstance(call, dict) and isinstance(call.get("name"), str):
        arguments, raw = read_arguments(call.get("args"))
        extra = {**rest(call, "id", "name", "args"), **rest(part, *_CALL)}
        return ToolCall(text_or_none(call.get("id")), call["name"], arguments, raw, extra)
    code = _first(part, _CODE)
    beside = rest(part, *_CODE) if isinstance(part, dict) else {}
    return ToolCall(None, "code_execution", code, extra=beside) if isinstance(code, dict) else None


def _result(part: Any) -> ToolResult | None:
    response = _first(part, _RESPONSE)
    if isinstance(response, dict):
        content, called = response.get("response"), response.get("name")
        failed = isinstance(content, dict) and set(content) == {"error"}
        named = called if isinstance(called, str) else None
        return ToolResult(text_or_none(response.get("id")), named, content, failed)
    code = _first(part, _CODE_RESULT)
    if isinstance(code, dict):
        return ToolResult(None, "code_execution", code, code.get("outcome") not in (None, "OUTCOME_OK"))
    return None


def _beside_result(part: dict[str, Any]) -> dict[str, Any]:
    response = _first(part, _RESPONSE)
    inside = rest(response, "id", "name", "response") if isinstance(response, dict) else {}
    return {**inside, **rest(part, *_RESPONSE, *_CODE_RESULT)}


def _simple(content: list[Any]) -> Any:
    if not content:
        return None
    only = content[0]
    if len(content) == 1 and isinstance(only, dict):
        filled = {key: value for key, value in only.items() if value is not None}
        if filled.keys() == {"text"}:
            return filled["text"]
    return content
