"""Gemini contents: parts with text, function calls and responses, as REST and Python spell them; its CLI's sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import Found, named_call, read_call, read_parts, result_step
from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.detection import placed
from karat.traces.steps import (
    Step,
    ToolCall,
    ToolResult,
    UnreadCall,
    Unused,
    rest,
    system_steps,
    text_or_none,
)

name = "gemini"

_CALL = ("functionCall", "function_call")
_TOOL_CALL = ("toolCall", "tool_call")
_RESPONSE = ("functionResponse", "function_response")
_CODE = ("executableCode", "executable_code")
_PIECES = ("partialArgs", "partial_args", "willContinue", "will_continue")
"""Fields of a call that is streamed in several parts."""
_CODE_RESULT = ("codeExecutionResult", "code_execution_result")
_SYSTEM = ("systemInstruction", "system_instruction")
_HISTORY = ("automaticFunctionCallingHistory", "automatic_function_calling_history")
"""What went before a response, where the SDK itself ran the tools."""
_RECORDS = {"user": "user", "gemini": "assistant", "info": "system", "warning": "system", "error": "system"}
"""The roles of the records of Gemini CLI."""
_ROLES = {"model": "assistant", "function": "tool"}


def detect(value: object) -> bool:
    """A content with parts, a request with contents, or a response with candidates."""
    if not isinstance(value, dict):
        return False
    if _is_record(value) or _is_session(value):
        return True
    if isinstance(value.get("candidates"), list) or isinstance(value.get("contents"), list):
        return True
    parts = value.get("parts")
    if not isinstance(parts, list):
        return False
    # Parts with a type are OpenTelemetry's or the Vercel AI SDK's, those with a part_kind Pydantic AI's.
    return not any(
        isinstance(part, dict) and ("type" in part or "part_kind" in part) for part in map(plain, parts)
    )


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """The steps of a content; of all contents of a request; of the first candidate of a response."""
    if _is_session(value):
        for position, record in enumerate(value["messages"]):
            record = plain(record)
            if isinstance(record, dict) and record.get("type") in _RECORDS:
                yield from placed(_read_record(record), f"messages[{position}]")
            else:
                yield UnreadCall(f"messages[{position}]", "a record of the session in no known form", record)
        yield Unused("", "fields outside 'messages'", rest(value, "messages"), harmless=True)
        return
    if _is_record(value):
        yield from _read_record(value)
        return
    if "parts" in value:
        yield from read_content(value)
        return
    key = "contents" if isinstance(value.get("contents"), list) else "candidates"
    beside = _SYSTEM if key == "contents" else _HISTORY
    preceding = next((value[word] for word in beside if value.get(word) is not None), None)
    if key == "contents":
        before: list[Step | Unused] = [*system_steps(preceding)]
    else:
        before = [*placed(read({"contents": preceding}), beside[0])] if isinstance(preceding, list) else []
    yield from before
    is_read = False
    for position, item in enumerate(value[key]):
        given = item = plain(item)
        if key == "candidates":
            item = _candidate(item) if position == 0 else None
        if isinstance(item, dict) and isinstance(item.get("parts"), list):
            is_read = bool(item["parts"])
            yield from read_content(item)
        else:
            another = key == "candidates" and position > 0 and is_read
            reason = "not the content of the first candidate, or without parts"
            yield Unused(f"{key}[{position}]", reason, given, reviewed=another)
    others = rest(value, key, *(beside if before else ()))
    if others:
        yield Unused("", f"fields outside {key!r}", others, harmless=True)


def _is_session(value: dict[str, Any]) -> bool:
    """Return whether a document is a session of Gemini CLI."""
    return "sessionId" in value and "projectHash" in value and isinstance(value.get("messages"), list)


def _is_record(value: dict[str, Any]) -> bool:
    return value.get("type") == "gemini" and "content" in value


def _read_record(record: dict[str, Any]) -> Iterator[Step | Unused]:
    """Read a message of Gemini CLI, with the calls that followed it and their results."""
    role, content = _RECORDS[record["type"]], plain(record.get("content"))
    given = plain(record.get("toolCalls"))
    calls: list[ToolCall] = []
    results: list[Step] = []
    for position, each in enumerate(given if isinstance(given, list) else [] if given is None else [given]):
        fields = plain(each)
        call = (
            read_call({k: v for k, v in fields.items() if k != "result"})
            if isinstance(fields, dict)
            else None
        )
        if call is None:
            yield UnreadCall(f"toolCalls[{position}]", "a tool call without a name", each)
        else:
            calls.append(call)
            if fields.get("result") is not None:
                failed = fields.get("status") in ("error", "cancelled")
                results.append(result_step(call.id, call.name, fields["result"], failed))
    parts = content if isinstance(content, list) else [{"text": content}] if content else []
    extra = rest(record, "type", "content", "toolCalls")
    yield from read_parts(role, [*parts, *calls], extra, _part_or_call)
    yield from results


def _part_or_call(part: Any) -> Found:
    return part if isinstance(part, ToolCall) else _part(part)


def _candidate(item: Any) -> Any:
    """Return the content of a candidate, merged with its other fields such as the finish reason."""
    content = plain(item.get("content")) if isinstance(item, dict) else None
    return {**rest(item, "content"), **content} if isinstance(content, dict) else None


def read_content(value: dict[str, Any]) -> Iterator[Step | Unused]:
    given = value.get("role")
    role = _ROLES.get(given, given) if isinstance(given, str) else "assistant"
    extra = rest(value, "role", "parts")
    yield from read_parts(role, value["parts"], extra, _part, "parts")


def _part(part: Any) -> Found:
    key = next(
        (key for key in (*_CALL, *_TOOL_CALL) if isinstance(part, dict) and part.get(key) is not None), None
    )
    if key is not None:
        reason = "a function call without a name, or a piece of one (merge the parts of a stream first)"
        return _call(part) or UnreadCall("", reason, part)
    if _first(part, _CODE) is not None:
        return ToolCall(None, "code_execution", _first(part, _CODE), extra=rest(part, *_CODE))
    result = _result(part)
    if result is not None:
        return Step("tool", result.content, tool_result=result, extra=_beside_result(part))
    if not isinstance(part, (dict, str)):
        return Unused("", "a part that is neither text nor an object", part)
    return None


def _first(part: Any, keys: tuple[str, ...]) -> Any:
    if not isinstance(part, dict):
        return None
    return next((plain(part[key]) for key in keys if part.get(key) is not None), None)


def _call(part: dict[str, Any]) -> ToolCall | None:
    call = _first(part, _CALL)
    if call is None:
        # A tool that the server runs itself has a type and no name.
        call = _first(part, _TOOL_CALL)
        kind = next(
            (key for key in ("toolType", "tool_type") if isinstance(call, dict) and key in call), None
        )
        call = (
            {**rest(call, kind), "name": call[kind]} if isinstance(call, dict) and kind is not None else call
        )
    if not isinstance(call, dict) or any(call.get(key) for key in _PIECES):
        return None
    arguments, raw = read_arguments(call.get("args"))
    extra = {**rest(call, "id", "name", "args"), **rest(part, *_CALL, *_TOOL_CALL)}
    return named_call(call.get("id"), call.get("name"), arguments, raw, extra)


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
