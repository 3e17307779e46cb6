"""Events and sessions of Google's Agent Development Kit: Gemini contents with an author."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._objects import plain
from karat.traces.detection import placed
from karat.traces.formats.gemini import read_content
from karat.traces.steps import Step, Unused, rest

name = "adk"

_MARKS = ("invocationId", "invocation_id", "author", "longRunningToolIds", "long_running_tool_ids")


def detect(value: object) -> bool:
    """An event, or a session with events."""
    if not isinstance(value, dict) or "role" in value:
        return False
    if _is_event(value):
        return True
    events = value.get("events")
    return isinstance(events, (list, tuple)) and bool(events) and all(map(_is_event, map(plain, events)))


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the steps of an event, or of all events of a session."""
    if _is_event(value):
        yield from _read_event(value)
        return
    for position, event in enumerate(value["events"]):
        yield from placed(_read_event(plain(event)), f"events[{position}]")
    yield Unused("", "the fields of the session beside its events", rest(value, "events"), harmless=True)


def _read_event(event: dict[str, Any]) -> Iterator[Step | Unused]:
    content = plain(event.get("content"))
    extra = rest(event, "content")
    parts = plain(content.get("parts")) if isinstance(content, dict) else None
    if not isinstance(parts, list):
        yield Unused("", "an event without content", event, harmless=not content)
    elif event.get("partial") is True:
        yield Unused("", "a piece of a message that a later event repeats", event, harmless=True)
    else:
        role = "user" if event.get("author") == "user" else content.get("role") or "model"
        yield from placed(read_content({**extra, **content, "role": role, "parts": parts}), "content")


def _is_event(value: Any) -> bool:
    if not isinstance(value, dict) or "author" not in value:
        return False
    return any(mark in value for mark in _MARKS if mark != "author") or isinstance(
        plain(value.get("content")), dict
    )
