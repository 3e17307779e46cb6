"""Model Context Protocol: the JSON-RPC messages between a client and a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import named_call, result_step, simple, unread_arguments
from karat.traces._objects import plain
from karat.traces.steps import Step, UnreadCall, Unused, rest, text_or_none

name = "mcp"


def detect(value: object) -> bool:
    """A JSON-RPC message of MCP."""
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return False
    return "method" in value or "result" in value or "error" in value


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the step of a tool call or of its result; other requests and notifications hold none."""
    identity = text_or_none(value.get("id"))
    if value.get("method") == "tools/call":
        given = plain(value.get("params"))
        params = given if isinstance(given, dict) else {}
        arguments = plain(params.get("arguments"))
        extra = rest(params, "name", "arguments")
        call = named_call(identity, params.get("name"), {} if arguments is None else arguments, None, extra)
        beside = rest(value, "jsonrpc", "id", "method", "params")
        if call is None:
            yield UnreadCall("params", "a tool call without a name", value)
        elif (other := unread_arguments(call, beside)) is not None:
            yield UnreadCall("", f"the arguments of {call.name[:60]!r} under {other!r}", value)
        else:
            yield Step("assistant", tool_calls=[call], extra=beside)
        return
    if not isinstance(value.get("method", ""), str):
        yield UnreadCall("method", "a request whose method is not text", value)
        return
    result = plain(value.get("result"))
    if isinstance(result, dict) and isinstance(plain(result.get("content")), list):
        extra = {**rest(result, "content", "isError"), **rest(value, "jsonrpc", "id", "result")}
        yield result_step(identity, None, simple(result["content"]), result.get("isError") is True, extra)
    elif value.get("error") is not None:
        yield result_step(identity, None, value["error"], True, rest(value, "jsonrpc", "id", "error"))
    else:
        label = value.get("method", "a result")
        yield Unused("", f"{label} is not a tool call", value, harmless=True)
