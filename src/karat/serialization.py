"""What can be stored: values to JSON and back to the type that a task or evaluator annotates.

JSON values, msgspec structs, dataclasses, pydantic models and bytes can be stored; anything else is refused
at once, with the remedy. NaN and infinities are refused: JSON has no word for them.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from karat.errors import UnsupportedType

DEEP = 400
REMEDY = "give JSON values, a dataclass, a msgspec struct, a pydantic model or bytes"


def _enc_hook(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    item = getattr(value, "item", None)
    if callable(item) and type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return item()
    raise UnsupportedType(f"{type(value).__module__}.{type(value).__qualname__} cannot be stored: {REMEDY}")


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)
_canonical = msgspec.json.Encoder(enc_hook=_enc_hook, order="sorted")


def encode(value: Any) -> bytes:
    """A value as JSON, in the order it has."""
    return _encode(_encoder, value)


def canonical(value: Any) -> bytes:
    """A value as JSON in which only the order of keys in an object has been taken away."""
    return _encode(_canonical, value)


def _encode(encoder: msgspec.json.Encoder, value: Any) -> bytes:
    try:
        data = encoder.encode(value)
    except UnsupportedType:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnsupportedType(f"a value cannot be stored ({error}): {REMEDY}") from error
    # msgspec writes NaN and infinities as null; only a value with a null in it needs the slow look.
    if b"null" in data:
        _refuse_not_finite(value, "", 0)
    # It also writes a little deeper than it reads; only a value with so many openings can be that deep.
    if len(data) > DEEP and data.count(b"[") + data.count(b"{") > DEEP:
        _refuse_unreadable(data)
    return data


def _refuse_unreadable(data: bytes) -> None:
    try:
        msgspec.json.decode(data)
    except RecursionError:
        raise UnsupportedType("a value is nested too deeply to be read again: make it flatter") from None


def _refuse_not_finite(value: Any, path: str, depth: int) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UnsupportedType(f"{path or 'the value'} is {value}: NaN and infinities are not stored")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_not_finite(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            _refuse_not_finite(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _refuse_not_finite(getattr(value, name), f"{path}.{name}" if path else name, depth + 1)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            _refuse_not_finite(getattr(value, name), f"{path}.{name}" if path else name, depth + 1)
    elif callable(getattr(value, "model_dump", None)):
        _refuse_not_finite(value.model_dump(), path, depth + 1)


def converter(annotation: Any) -> Callable[[Any], Any] | None:
    """A function that turns a stored JSON value into the annotated type; None where there is nothing to do."""
    if annotation is inspect.Parameter.empty or annotation is None or annotation is Any:
        return None
    if isinstance(annotation, (str, typing.TypeVar)) or annotation in (
        dict,
        list,
        str,
        int,
        float,
        bool,
        object,
    ):
        return None
    validate = getattr(annotation, "model_validate", None)
    if callable(validate):
        return typing.cast("Callable[[Any], Any]", validate)
    origin = typing.get_origin(annotation) or annotation
    needs = (
        annotation is bytes
        or (isinstance(annotation, type) and _has_fields(annotation))
        or (origin in (list, dict, tuple, typing.Union) and any(map(converter, typing.get_args(annotation))))
        or typing.is_typeddict(annotation)
    )
    if not needs:
        return None
    return functools.partial(msgspec.convert, type=annotation, strict=False, dec_hook=_dec_hook)


def _has_fields(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) or hasattr(kind, "__dataclass_fields__")


def _dec_hook(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise TypeError(f"cannot make a {kind.__qualname__} of a stored value")


def annotations_of(function: Any) -> dict[str, Any]:
    """Resolved annotations; those that cannot be resolved are left out."""
    target = function if inspect.isroutine(function) else type(function).__call__
    if isinstance(target, functools.partial):
        target = target.func
    try:
        return typing.get_type_hints(target)
    except Exception:
        module = sys.modules.get(getattr(target, "__module__", ""), None)
        out = {}
        for name, annotation in getattr(target, "__annotations__", {}).items():
            found = getattr(module, annotation, None) if isinstance(annotation, str) else annotation
            if found is not None:
                out[name] = found
        return out
