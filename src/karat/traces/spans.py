"""Spans as OpenTelemetry writes them: OTLP documents, lists of spans, typed attributes, flattened lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karat.traces.plain import plain
from karat.traces.steps import Unused

_GROUPS = (
    ("resourceSpans", "resource_spans"),
    ("scopeSpans", "scope_spans", "instrumentationLibrarySpans"),
    ("spans",),
)
_SCALARS = ("stringValue", "boolValue", "doubleValue", "string_value", "bool_value", "double_value")


class Span(msgspec.Struct, frozen=True):
    """One span with its attributes as a plain dict."""

    name: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    start: Any
    failed: bool
    where: str
    value: Any


def spans_of(value: Any) -> list[Span]:
    """The spans of a document, of a list or of one span; empty where there are none."""
    found = [_span(item, where) for item, where in _documents(value, "")]
    return [span for span in found if span is not None]


def strays_of(value: Any) -> list[Unused]:
    """What stands among the spans and is none."""
    reason = "it stands among spans and has no attributes"
    return [
        Unused(where, reason, item) for item, where in _documents(value, "") if _span(item, where) is None
    ]


def nested(attributes: dict[str, Any], prefix: str) -> list[Any]:
    """The list that attributes like `prefix.0.role`, `prefix.0.calls.1.name` spell out."""
    tree: dict[str, Any] = {}
    head = prefix + "."
    for key, value in attributes.items():
        if key.startswith(head):
            place = tree
            *path, last = key[len(head) :].split(".")
            for part in path:
                inner = place.setdefault(part, {})
                if not isinstance(inner, dict):
                    inner = place[part] = {"": inner}
                place = inner
            place[last] = value
    listed = _listed(tree)
    return listed if isinstance(listed, list) else []


def _listed(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if tree and all(key.isdecimal() and len(key) < 10 for key in tree):
        return [_listed(tree[key]) for key in sorted(tree, key=int)]
    return {key: _listed(value) for key, value in tree.items()}


def _documents(value: Any, where: str, level: int = 0) -> Iterator[tuple[Any, str]]:
    value = plain(value)
    if isinstance(value, list):
        for position, item in enumerate(value):
            item = plain(item)
            if isinstance(item, dict):
                yield from _documents(item, f"{where}[{position}]", level)
            else:
                yield item, f"{where}[{position}]"
    elif isinstance(value, dict):
        for depth in range(level, len(_GROUPS)):
            for key in _GROUPS[depth]:
                if isinstance(value.get(key), list):
                    yield from _documents(value[key], f"{where}.{key}" if where else key, depth + 1)
                    return
        yield value, where


def _span(value: Any, where: str) -> Span | None:
    if not isinstance(value, dict):
        return None
    attributes = _attributes(value.get("attributes"))
    if attributes is None:
        return None
    status = plain(value.get("status"))
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else None
    start = next(
        (value[k] for k in ("startTimeUnixNano", "start_time_unix_nano", "start_time") if value.get(k)), None
    )
    if isinstance(start, str) and start.isdecimal() and len(start) < 40:
        start = int(start)
    events = []
    for event in value.get("events") or []:
        event = plain(event)
        if isinstance(event, dict) and isinstance(event.get("name"), str):
            events.append((event["name"], _attributes(event.get("attributes", event.get("body"))) or {}))
    name = value.get("name")
    return Span(
        name if isinstance(name, str) else "span",
        attributes,
        events,
        start if isinstance(start, (int, float, str)) else None,
        code in (2, "ERROR", "STATUS_CODE_ERROR"),
        where,
        value,
    )


def _attributes(value: Any) -> dict[str, Any] | None:
    """Attributes from a dict, or from OTLP's list of keys and typed values."""
    value = plain(value)
    if isinstance(value, dict):
        return {key: part for key, part in value.items() if isinstance(key, str)}
    if not isinstance(value, list):
        return None
    out: dict[str, Any] = {}
    for item in value:
        if isinstance(item, dict) and isinstance(item.get("key"), str):
            out[item["key"]] = _typed(item.get("value"))
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
    if kind in ("arrayValue", "array_value") and isinstance(inside, dict):
        return [_typed(part) for part in inside.get("values") or []]
    if kind in ("kvlistValue", "kvlist_value") and isinstance(inside, dict):
        return _attributes(inside.get("values") or [])
    return value
