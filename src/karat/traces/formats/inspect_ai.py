"""Inspect samples and `.json` logs. Their messages are OpenAI's with the tool's name as `function`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._objects import plain
from karat.traces.detection import placed
from karat.traces.detection import read as read_any
from karat.traces.steps import Step, TraceError, UnreadCall, Unused, rest

name = "inspect_ai"

_FIELDS = frozenset(
    str.split("""
id epoch input choices target sandbox files setup output scores metadata store events timelines model_usage
role_usage started_at completed_at total_time working_time uuid invalidation error error_retries attachments
events_data limit
""")
)
"""The fields of a sample beside its messages: they repeat messages, or are no part of the conversation."""
_LOG_FIELDS = frozenset(
    str.split("""
version status eval plan results stats error invalidated reductions location etag log_updates
""")
)
"""The fields of a log beside its samples."""


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
        yield from _beside(value, "samples", _LOG_FIELDS, is_read=True)
        return
    ids: set[str | None] = set()
    is_read = False
    for part in placed(read_any(value["messages"]), "messages"):
        if isinstance(part, Step):
            is_read = True
            ids.update(call.id for call in part.tool_calls)
        yield part
    yield from _unlisted(value.get("events"), ids)
    yield from _beside(value, "messages", _FIELDS, is_read)


def _beside(value: dict[str, Any], key: str, known: frozenset[str], is_read: bool) -> Iterator[Unused]:
    unknown = rest(value, key, *known)
    reason = f"the fields beside {key!r}"
    yield Unused("", reason, rest(value, key, *unknown), harmless=True, reviewed=is_read)
    if unknown:
        yield Unused("", reason, unknown, harmless=True)


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
