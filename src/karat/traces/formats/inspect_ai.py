"""Inspect samples and `.json` logs. Their messages are OpenAI's with the tool's name as `function`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._objects import plain
from karat.traces.detection import placed
from karat.traces.detection import read as read_any
from karat.traces.steps import Step, TraceError, UnreadCall, Unused, rest

name = "inspect_ai"


def detect(value: object) -> bool:
    """A sample, or a log of samples."""
    if not isinstance(value, dict):
        return False
    return _is_log(value) or _is_sample(value)


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the messages of a sample, or of the only sample of a log."""
    if _is_log(value):
        samples = value["samples"]
        if len(samples) != 1:
            raise TraceError(
                f"an Inspect log with {len(samples)} samples is not one trajectory: give one of log['samples']"
            )
        yield from placed(read_any(samples[0]), "samples[0]")
        yield Unused(
            "",
            "the fields of the log beside its sample",
            rest(value, "samples"),
            harmless=True,
            reviewed=True,
        )
        return
    ids: set[str | None] = set()
    is_read = False
    for part in placed(read_any(value["messages"]), "messages"):
        if isinstance(part, Step):
            is_read = True
            ids.update(call.id for call in part.tool_calls)
        yield part
    yield from _unlisted(value.get("events"), ids)
    # Input and output repeat messages; other events, scores and the store are no part of the conversation.
    yield Unused(
        "",
        "the fields of the sample beside its messages",
        rest(value, "messages"),
        harmless=True,
        reviewed=is_read,
    )


def _unlisted(events: Any, ids: set[str | None]) -> Iterator[Unused]:
    """Yield the runs of tools that no message asks for, as unread calls."""
    events = plain(events)
    for position, event in enumerate(events if isinstance(events, list) else ()):
        event = plain(event)
        if isinstance(event, dict) and event.get("event") == "tool" and event.get("id") not in ids:
            reason = f"a run of the tool {event.get('function')!r} that no message of the sample asks for"
            yield UnreadCall(f"events[{position}]", reason, event)


def _is_log(value: dict[str, Any]) -> bool:
    return isinstance(value.get("samples"), list) and "eval" in value


def _is_sample(value: dict[str, Any]) -> bool:
    if not isinstance(plain(value.get("messages")), list):
        return False
    return "epoch" in value and "target" in value
