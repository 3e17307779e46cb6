"""Values as a person gives them, taken in as fresh JSON values; what has no JSON form is refused."""

from __future__ import annotations

import base64
import dataclasses
import math
from typing import Any

import msgspec

from karat.errors import UnsupportedType
from karat.serialization import REMEDY

_DEEPEST = 200


def plain(value: Any, path: str = "", depth: int = 0) -> Any:
    """A copy made of dicts, lists, text, numbers, booleans and None.

    Structs, dataclasses and pydantic models become objects, bytes become base64 text, as msgspec writes them.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise UnsupportedType(
                f"{path or 'the value'} is {value}: JSON has no NaN and no infinities, give None"
            )
        return value
    if depth > _DEEPEST:
        raise UnsupportedType(f"{path[:80]}… is nested deeper than {_DEEPEST} levels, or contains itself")
    if kind is dict:
        return _plain_object(value, path, depth)
    if kind is list or kind is tuple:
        return [plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    return _plain_other(value, path, depth)


def _plain_object(value: dict[Any, Any], path: str, depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise UnsupportedType(
                f"{path or 'the value'} has the key {key!r:.60}: give text keys, as JSON has them"
            )
        name = str.__str__(key)
        out[name] = plain(item, f"{path}.{name}" if path else name, depth + 1)
    return out


def _plain_other(value: Any, path: str, depth: int) -> Any:
    """Subclasses of JSON's types, bytes, and objects with fields."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return plain(float(value), path, depth)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return _plain_object(value, path, depth)
    if isinstance(value, (list, tuple)):
        return plain(list(value), path, depth)
    if not isinstance(value, type):
        try:
            if callable(getattr(value, "model_dump", None)):
                return plain(_dump(value), path, depth + 1)
            if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
                built = msgspec.to_builtins(value, enc_hook=_dump, order="deterministic")
                return plain(built, path, depth + 1)
        except (TypeError, ValueError, RecursionError) as error:
            raise UnsupportedType(f"{path or 'the value'} cannot be stored ({error}): {REMEDY}") from error
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise UnsupportedType(f"{path or 'the value'} is a {name}, which cannot be stored: {REMEDY}")


def _dump(value: Any) -> Any:
    """What msgspec does not know by itself: pydantic models, in their JSON form."""
    if callable(getattr(value, "model_dump", None)) and not isinstance(value, type):
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__qualname__} inside it has no JSON form")
