"""OpenTelemetry spans from OTLP documents, lists of spans, log records or the columns of a dataframe.

Attributes are flat (`llm.output_messages.0.message.role`), nested, or a mixture; this module flattens them once.
Readers take the attributes they use out of a span, and `left` returns the remaining ones, so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from karat.traces._objects import decoded, plain
from karat.traces.steps import Unused, rest

DEPTH = 16
"""How deep attributes may be nested to be made flat; what is deeper stays as it is."""

_GROUPS = (
    ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs"),
    ("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "scopeLogs", "scope_logs"),
    ("spans", "logRecords", "log_records"),
)
_GROUPING = frozenset(key for keys in _GROUPS for key in keys)
_TELLING = _GROUPING | {
    "attributes", "context", "context.span_id", "span_id", "spanId", "span_kind", "event_name", "eventName",
}  # fmt: skip
"""Keys of which a span, a log record or a group of them has at least one."""
_WHOLE = frozenset(
    (
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.tool.message",
        "tool_arguments",
        "tool_response",
        "gcp.vertex.agent.tool_call_args",
        "gcp.vertex.agent.tool_response",
        "input.value",
        "output.value",
        "tool.parameters",
        "traceloop.entity.input",
        "traceloop.entity.output",
        "langfuse.observation.input",
        "langfuse.observation.output",
    )
)
"""Attributes whose value is a document of its own, which is not made flat."""
_WHOLE_ENDS = (".arguments", ".content")
_COLUMN = "attributes."
_SCALARS = ("stringValue", "boolValue", "doubleValue", "string_value", "bool_value", "double_value")


class Event(msgspec.Struct, frozen=True):
    """An event of a span, or a log record: its fields, and the metadata beside them."""

    name: str
    fields: dict[str, Any]
    beside: dict[str, Any]


class Span(msgspec.Struct):
    """One span with its attributes as a flat dict; readers take out what they use."""

    name: str
    attributes: dict[str, Any]
    events: list[Event]
    start: Any
    failed: bool
    failure: Any
    """The message of the status."""
    where: str
    value: dict[str, Any]

    def take(self, *keys: str) -> Any:
        """The first of these attributes that is there, taken out; None where none is."""
        for key in keys:
            if key in self.attributes:
                return self.attributes.pop(key)
        return None

    def answer(self, *keys: str) -> Any:
        """Take out a tool's result; for a failed call without a result, return the status message."""
        answer = self.take(*keys)
        return self.failure or None if answer is None and self.failed else answer

    def take_list(self, prefix: str) -> list[Any]:
        """The list that attributes like `prefix.0.role`, `prefix.0.calls.1.name` spell out, taken out."""
        head = prefix + "."
        found = {key: value for key, value in self.attributes.items() if key.startswith(head)}
        listed = _listed(_tree(found, len(head)))
        if not isinstance(listed, list):
            return []
        for key in found:
            del self.attributes[key]
        return listed

    def take_events(self, *names: str) -> list[Event]:
        """The events of these names, taken out."""
        found = [event for event in self.events if event.name in names]
        self.events = [event for event in self.events if event.name not in names]
        return found

    def left(self) -> dict[str, Any]:
        """Return the fields, attributes and events of the span that no reader took."""
        others = {
            key: part
            for key, part in rest(self.value, "attributes", "events").items()
            if not key.startswith(_COLUMN)
        }
        events = [{"name": event.name, **event.fields, **event.beside} for event in self.events]
        events += [part for part in _listed_events(self.value) if not _is_event(part)]
        return {
            **others,
            **({"attributes": self.attributes} if self.attributes else {}),
            **({"events": events} if events else {}),
        }


def spans_of(value: object) -> list[Span]:
    """The spans of a document, of a list or of one span; empty where there are none.

    Log records go to the span they name; records of an absent span form a new span.
    """
    if not _may_hold_spans(value):
        return []
    spans: list[Span] = []
    records: list[tuple[Event, Any, str]] = []
    for item, where in _documents(value, ""):
        record = _record(item)
        if record is not None:
            records.append((record, item, where))
        elif (span := _span(item, where)) is not None:
            spans.append(span)
    return spans + _placed_records(records, spans)


def _may_hold_spans(value: Any) -> bool:
    """Whether a value can contain spans: a cheap check of all its keys that rules out lists of messages."""
    if type(value) is dict:
        return not _TELLING.isdisjoint(value)
    if type(value) is list and set(map(type, value)) == {dict}:
        return not _TELLING.isdisjoint(set().union(*value))
    return True


def strays_of(value: object) -> list[Unused]:
    """Return the items among the spans that are not spans, and the fields around them."""
    reason = "not a span: it has no attributes"
    around: list[Unused] = []
    strays = [
        Unused(where, reason, item)
        for item, where in _documents(value, "", around=around)
        if _record(item) is None and _span(item, where) is None
    ]
    return strays + around


def _tree(attributes: dict[str, Any], skipped: int) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        place = tree
        *path, last = key[skipped:].split(".")
        for part in path:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                inner = place[part] = {"": inner}
            place = inner
        place[last] = value
    return tree


def _listed(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if tree and all(key.isdecimal() and len(key) < 10 for key in tree):
        return [_listed(tree[key]) for key in sorted(tree, key=int)]
    return {key: _listed(value) for key, value in tree.items()}


def _documents(
    value: Any, where: str, level: int = 0, around: list[Unused] | None = None
) -> Iterator[tuple[Any, str]]:
    """Every item inside the groups of a document; what the groups say themselves is added to `around`."""
    value = plain(value)
    if isinstance(value, list):
        for position, item in enumerate(value):
            item = decoded(item)
            if isinstance(item, dict):
                yield from _documents(item, f"{where}[{position}]", level, around)
            else:
                yield item, f"{where}[{position}]"
    elif isinstance(value, dict):
        for depth in range(level, len(_GROUPS)) if not _GROUPING.isdisjoint(value) else ():
            keys = [key for key in _GROUPS[depth] if isinstance(value.get(key), list)]
            for key in keys:
                place = f"{where}.{key}" if where else key
                yield from _documents(value[key], place, depth + 1, around)
            if keys:
                others = rest(value, *keys)
                if others and around is not None:
                    around.append(Unused(where, f"fields outside {keys[0]!r}", others, harmless=True))
                return
        yield value, where


def _span(value: Any, where: str) -> Span | None:
    if not isinstance(value, dict):
        return None
    attributes = _attributes(value.get("attributes"))
    if "context.span_id" in value or "span_kind" in value:
        attributes = {**(attributes or {}), **_columns(value)} or attributes
    if attributes is None:
        if "name" not in value or _identity(value) is None:
            return None
        attributes = {}  # protobuf's JSON leaves empty lists out
    status = plain(value.get("status"))
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else status
    start = next(
        (value[k] for k in ("startTimeUnixNano", "start_time_unix_nano", "start_time") if value.get(k)), None
    )
    name = value.get("name")
    return Span(
        name if isinstance(name, str) else "span",
        flat(attributes),
        [
            _event(event["name"], event, "name")
            for event in map(plain, _listed_events(value))
            if _is_event(event)
        ],
        _time(start),
        (code or value.get("status_code")) in (2, "ERROR", "STATUS_CODE_ERROR"),
        status.get("description", status.get("message")) if isinstance(status, dict) else None,
        where,
        value,
    )


def _listed_events(span: dict[str, Any]) -> list[Any]:
    events = plain(span.get("events"))
    return events if isinstance(events, list) else [] if events is None else [events]


def _is_event(event: Any) -> bool:
    event = plain(event)
    return isinstance(event, dict) and isinstance(event.get("name"), str)


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a row of a dataframe of spans, where a missing one is None or NaN."""
    return {key[len(_COLUMN) :]: part for key, part in row.items() if str(key).startswith(_COLUMN)}


def _time(start: Any) -> Any:
    if isinstance(start, str) and start.isdecimal() and len(start) < 40:
        return int(start)
    return start if isinstance(start, (int, float, str)) else None


def _event(name: str, event: dict[str, Any], *used: str) -> Event:
    body = _typed(plain(event.get("body")))
    fields = body if isinstance(body, dict) else {} if body is None else {"content": body}
    attributes = _attributes(event.get("attributes"))
    used = used if attributes is None else ("attributes", *used)
    return Event(name, {**(attributes or {}), **fields}, rest(event, "body", *used))


def _record(item: Any) -> Event | None:
    """Read a log record of a model message as an event; None for any other item."""
    if not isinstance(item, dict):
        return None
    for key in ("event_name", "eventName"):
        name = item.get(key)
        if isinstance(name, str) and name.startswith("gen_ai."):
            return _event(name, item, key)
    if "body" in item and "attributes" in item:
        name = (_attributes(item["attributes"]) or {}).get("event.name")
        if isinstance(name, str) and name.startswith("gen_ai."):
            return _event(name, item)
    return None


def _placed_records(records: list[tuple[Event, Any, str]], spans: list[Span]) -> list[Span]:
    """The spans that log records make up: by the span they name, else up to each model's choice."""
    known = {_identity(span.value): span for span in spans}
    known.pop(None, None)
    made: list[Span] = []
    unnamed: Span | None = None
    for event, item, where in records:
        identity = _identity(item)
        span = known.get(identity) if identity is not None else unnamed
        if span is None:
            moment = item.get("timestamp", item.get("timeUnixNano", item.get("time_unix_nano")))
            span = Span("log records", {}, [], _time(moment), False, None, where, {})
            made.append(span)
            if identity is not None:
                known[identity] = span
        span.events.append(event)
        if identity is None:
            unnamed = None if event.name == "gen_ai.choice" else span
    return made


def _identity(value: dict[str, Any]) -> str | None:
    context = plain(value.get("context"))
    inside = context.get("span_id") if isinstance(context, dict) else None
    identity = value.get("span_id", value.get("spanId", inside))
    return identity if isinstance(identity, str) and identity else None


def flat(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes with dotted keys, however deep they were nested; empty ones say nothing."""
    out: dict[str, Any] = {}
    _flatten(attributes.items(), "", out, 0)
    return out


def _flatten(items: Iterable[tuple[Any, Any]], prefix: str, out: dict[str, Any], depth: int) -> None:
    for key, value in items:
        path, value = f"{prefix}{key}", plain(value)
        whole = path in _WHOLE or path.endswith(_WHOLE_ENDS) or depth >= DEPTH
        if isinstance(value, dict) and value and not whole:
            _flatten(value.items(), f"{path}.", out, depth + 1)
        elif isinstance(value, list) and not whole and any(isinstance(plain(part), dict) for part in value):
            _flatten(enumerate(value), f"{path}.", out, depth + 1)
        elif value is not None and not (isinstance(value, float) and value != value):
            out[path] = value


def _attributes(value: Any) -> dict[str, Any] | None:
    """Attributes from a dict, or from OTLP's list of keys and typed values."""
    value = decoded(value)
    if isinstance(value, dict):
        return {str(key): part for key, part in value.items()}
    if not isinstance(value, list):
        return None
    out: dict[str, Any] = {}
    for at, item in enumerate(value):
        if isinstance(item, dict) and isinstance(item.get("key"), str):
            out[item["key"]] = _typed(item.get("value"))
            item = rest(item, "key", "value")
        if item:
            out[f"[{at}]"] = item
    return out


def _typed(value: Any) -> Any:
    """A value as OTLP types it: `{stringValue: …}`, `{arrayValue: {values: […]}}`."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inside),) = value.items()
    if kind in _SCALARS:
        return inside
    if kind in ("intValue", "int_value"):
        return (
            int(inside)
            if isinstance(inside, str) and inside.lstrip("-").isdecimal() and len(inside) < 40
            else inside
        )
    if kind in ("arrayValue", "array_value") and isinstance(inside, dict) and inside.keys() <= {"values"}:
        return [_typed(part) for part in inside.get("values") or []]
    if kind in ("kvlistValue", "kvlist_value") and isinstance(inside, dict) and inside.keys() <= {"values"}:
        return _attributes(inside.get("values") or [])
    return value
