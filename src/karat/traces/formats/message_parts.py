"""Messages with parts in the words of Haystack, LlamaIndex, Semantic Kernel and the Microsoft Agent Framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import Found, named_call, read_parts, result_step, simple
from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.steps import Step, UnreadCall, Unused, rest, text_or_none

name = "message_parts"

_LISTS = {"blocks": "block_type", "items": "content_type", "contents": "type"}
"""Where LlamaIndex, Semantic Kernel and the Agent Framework keep the parts, and the key that tells their kind."""
_CALLS = ("tool_call", "function_call")
_RESULTS = ("tool_call_result", "function_result")
_NAMES = ("tool_name", "name")
_GIVEN = ("tool_kwargs", "arguments")
_IDS = ("tool_call_id", "call_id", "id")


def detect(value: object) -> bool:
    """A message with a list of typed parts, or with Haystack's parts, which have a key in place of a type."""
    if not isinstance(value, dict) or _role(value) is None:
        return False
    return _parts(value) is not None


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the steps of a message; a result of LlamaIndex is the text of a message with the id of its call."""
    key, parts = _parts(value) or ("content", [])
    role, extra = _role(value) or "assistant", _nonempty(rest(value, "role", key))
    given = plain(value["role"])
    if isinstance(given, dict) and (others := rest(given, "type", "value")):
        extra["role"] = others
    beside = plain(extra.get("additional_kwargs"))
    if role == "tool" and key == "blocks" and isinstance(beside, dict):
        called, identity = beside.get("name"), text_or_none(beside.get("tool_call_id"))
        texts = [
            {"type": "text", "text": part["text"]}
            if isinstance(part, dict) and part.keys() == {"block_type", "text"}
            else part
            for part in map(plain, parts)
        ]
        yield result_step(identity, called, simple(texts), False, extra)
        return
    yield from read_parts(role, parts, extra, _part, key)


def _role(value: dict[str, Any]) -> str | None:
    role = plain(value.get("role"))
    if isinstance(role, dict):  # the Agent Framework writes `{"type": "role", "value": "assistant"}`
        role = role.get("value")
    return role if isinstance(role, str) else None


def _parts(value: dict[str, Any]) -> tuple[str, list[Any]] | None:
    for key, kind in _LISTS.items():
        parts = plain(value.get(key))
        if isinstance(parts, list) and any(isinstance(p, dict) and kind in p for p in map(plain, parts)):
            return key, parts
    parts = plain(value.get("content"))
    if isinstance(parts, list) and any(_keyed(part) is not None for part in map(plain, parts)):
        return "content", parts
    return None


def _keyed(part: Any) -> str | None:
    """Return the key of Haystack's part that is a call or a result."""
    if not isinstance(part, dict) or "type" in part:
        return None
    return next((key for key in ("tool_call", "tool_call_result") if isinstance(part.get(key), dict)), None)


def _part(part: Any) -> Found:
    if not isinstance(part, dict):
        return None
    key = _keyed(part)
    fields = part if key is None else {**rest(part, key), **part[key]}
    kind = key or next((part[each] for each in _LISTS.values() if isinstance(part.get(each), str)), None)
    if kind in _CALLS:
        arguments_key, identity = _first(fields, _GIVEN), _first(fields, _IDS)
        arguments, raw = read_arguments(fields.get(arguments_key))
        called = fields.get(_first(fields, _NAMES))
        others = _nonempty(rest(fields, *_LISTS.values(), _first(fields, _NAMES), arguments_key, identity))
        call = named_call(fields.get(identity), called, arguments, raw, others)
        return call or UnreadCall("", "a tool call without a name", part)
    if kind in _RESULTS:
        origin = plain(fields.get("origin"))
        asked = origin if isinstance(origin, dict) else fields
        others = _nonempty(rest(fields, *_LISTS.values(), "result", "error"))
        failed = fields.get("error") is True or fields.get("exception") is not None
        call_id = text_or_none(asked.get(_first(asked, _IDS)))
        return result_step(call_id, asked.get(_first(asked, _NAMES)), fields.get("result"), failed, others)
    return None


def _nonempty(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in fields.items() if part not in ({}, [])}


def _first(fields: dict[str, Any], keys: tuple[str, ...]) -> str:
    """Return the first of the keys that has a value."""
    return next((key for key in keys if fields.get(key) is not None), keys[-1])
