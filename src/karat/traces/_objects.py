"""Convert objects of other libraries to dicts and lists, one level at a time, without importing the libraries."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Any

import msgspec

from karat.records import Call, Output
from karat.traces.steps import Step, ToolCall, Trajectory

_KEPT = (str, bytes, int, float, type(None), Call, Output, Step, ToolCall, Trajectory)


def plain(value: object) -> Any:
    """A dict, a list, or the value itself; objects (pydantic models, dataclasses, messages) become dicts."""
    kind = type(value)
    if kind is dict or kind is list or isinstance(value, _KEPT):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, (tuple, Set)):
        return list(value)
    if isinstance(value, list):
        return list(value)
    return _fields(value)


def decoded(value: object) -> Any:
    """The same, and the document that a JSON text of a dict or list holds."""
    value = plain(value)
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return value


def _fields(value: Any) -> Any:
    if isinstance(value, type) or callable(value):
        return value
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if hasattr(value, "log_record") and isinstance(written := _written(value), dict):
        return written
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for method in ("model_dump", "to_dict"):
        dump = getattr(value, method, None)
        if callable(dump):
            dumped = dump()
            if isinstance(dumped, dict):
                return dumped
    if hasattr(value, "attributes") and hasattr(value, "start_time"):
        if isinstance(written := _written(value), dict):
            return written
        return {name: getattr(value, name, None) for name in ("name", "attributes", "events", "start_time")}
    if hasattr(value, "conversation"):
        return {"conversation": value.conversation}
    fields = getattr(value, "__dict__", None)
    return {k: v for k, v in fields.items() if not k.startswith("_")} if isinstance(fields, dict) else value


def _written(value: Any) -> Any:
    """What a span or log record of the OpenTelemetry SDK writes of itself: much of it has no public fields."""
    write = getattr(value, "to_json", None)
    return decoded(write()) if callable(write) else None
