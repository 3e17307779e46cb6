"""Python objects to JSON and back: the only place where this is done.

`to_json_value` turns an object into JSON values, `encode` and `canonical` into JSON text, and `converter` turns
stored JSON back into the type that a task or an evaluator annotates; `decode_untrusted` reads what a server sent.
Stages, datasets and evaluators all use it, so that an object gives the same result whether it is evaluated directly or
stored first. The rules:

| object | JSON |
|---|---|
| None, bool, int, float, str, and subclasses of them | itself; NaN and infinities are refused |
| dict and other mappings | object; keys that are numbers, booleans, None, enums, dates or UUIDs become text |
| list, tuple, named tuple, deque | array |
| set, frozenset | array, sorted |
| bytes, bytearray, memoryview | their UTF-8 text; bytes that are not UTF-8 become a data URI with base64 |
| enum member | its value |
| datetime, date, time, timedelta, Decimal, UUID | text: ISO 8601, the decimal number, the UUID |
| dataclass, attrs class, msgspec struct | object with its fields |
| pydantic model | what `model_dump(mode="json")` gives |
| NumPy scalar or array, and what else has `tolist` | number or nested arrays |

Anything else raises `UnsupportedType`, which names the place and the fix.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import inspect
import sys
import threading
import typing
from collections import Counter, deque
from collections.abc import Callable, Mapping, Set
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from karat.errors import UnsupportedType, clip, with_article
from karat.registry import qualified_name

if TYPE_CHECKING:
    from karat.records import Value

MAX_DEPTH = 400
"""Deeper values are refused: Python's recursion limit bounds what can be read back."""

REMEDY = "give JSON values, a dataclass, a msgspec struct, a pydantic model or bytes"

DATA_URI = "data:application/octet-stream;base64,"
"""How bytes that are not UTF-8 text are stored."""

_PLAIN = frozenset({str, int, bool, type(None)})


# ---------------------------------------------------------------- to JSON values


class _Unsupported(Exception):
    """Why a value has no JSON form; `steps` collects its place from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    def message(self, place: str) -> str:
        path = place
        for step in reversed(self.steps[-20:]):
            path = f"{path}{step}" if path or step.startswith("[") else step.removeprefix(".")
        return f"{path[:200] or 'the value'} {self.reason}"


def is_too_deep(value: object) -> bool:
    """Whether plain JSON has more than MAX_DEPTH levels: how many Python itself reads depends on its version."""
    level: list[Any] = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level = [
            each
            for part in level
            for each in (part.values() if isinstance(part, dict) else part)
            if isinstance(each, (dict, list))
        ]
        if not level:
            return False
    return bool(level)


def to_json_value(value: object, place: str = "") -> Any:
    """Convert an object to JSON values: dicts, lists, text, numbers, booleans and None, all new objects.

    `place` names the value in an error message.
    """
    if type(value) in _PLAIN:
        return value
    try:
        return _convert(value, 0)
    except _Unsupported as problem:
        raise UnsupportedType(problem.message(place)) from None
    except RecursionError:
        raise UnsupportedType(f"{place or 'the value'} is nested too deeply: make it flatter") from None


def _convert(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        if value - value != 0:
            raise _Unsupported(f"is {value}: JSON has no NaN and no infinities, give None")
        return value
    if depth >= MAX_DEPTH:
        raise _Unsupported(f"is nested too deeply (more than {MAX_DEPTH} levels), or contains itself")
    if kind is dict:
        return _object(value, depth)
    if kind is list or kind is tuple:
        return _array(value, depth)
    return _other(value, depth)


def _array(value: Any, depth: int) -> list[Any]:
    out = []
    for item in value:
        if type(item) in _PLAIN:
            out.append(item)
            continue
        try:
            out.append(_convert(item, depth + 1))
        except _Unsupported as problem:
            problem.steps.append(f"[{len(out)}]")
            raise
    return out


def _object(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            key = _key(key)
        if type(item) in _PLAIN:
            out[key] = item
            continue
        try:
            out[key] = _convert(item, depth + 1)
        except _Unsupported as problem:
            problem.steps.append(f".{key}")
            raise
    if len(out) != len(value):
        twice = Counter(key if type(key) is str else _key(key) for key in value).most_common(1)[0][0]
        raise _Unsupported(f"has two keys that are {twice[:60]!r} as text: give them different names")
    return out


def _key(key: Any) -> str:
    """The text of a key that is not a plain `str`, as JSON writes the value it stands for."""
    if isinstance(key, (tuple, list, Mapping, Set, msgspec.Struct)) or hasattr(key, "__dataclass_fields__"):
        found: Any = None
    else:
        try:
            found = _convert(key, 0)
            found = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        except (_Unsupported, ValueError):
            found = None
    if found is None:
        raise _Unsupported(f"has the key {clip(key)}: give text keys, as JSON has them")
    return str(found)


def _other(value: Any, depth: int) -> Any:
    """Convert what is not exactly one of JSON's own types."""
    if isinstance(value, type):
        raise _unknown(value)
    if isinstance(value, Enum):
        return _convert(value.value, depth + 1)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return _convert(float.__float__(value), depth)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _text_of_bytes(bytes(value))
    if isinstance(value, (list, tuple, deque)):
        return _array(value, depth)
    if isinstance(value, Set):
        return _sort_items(_array(value, depth))
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(_converted_struct(value, depth))
    try:
        if callable(dump := getattr(value, "model_dump", None)):
            return _convert(dump(mode="json"), depth + 1)
        if callable(to_list := getattr(value, "tolist", None)):
            return _convert(to_list(), depth + 1)
        if isinstance(value, Mapping):
            return _object(dict(value), depth)
        fields = getattr(value, "__dataclass_fields__", None)
        if fields is None and (attributes := getattr(value, "__attrs_attrs__", None)) is not None:
            fields = [attribute.name for attribute in attributes]
        if fields is not None:
            return _object({name: getattr(value, name) for name in fields}, depth)
        if callable(is_finite := getattr(value, "is_finite", None)) and not is_finite():
            raise _Unsupported(f"is {value}: JSON has no NaN and no infinities, give None")
        written = msgspec.to_builtins(value)  # dates, decimals, UUIDs
    except (_Unsupported, RecursionError):
        raise
    except TypeError as error:
        raise _unknown(value) from error
    except Exception as error:  # objects of other packages may raise anything when they are looked at
        raise _Unsupported(f"cannot be stored ({str(error)[:200]}): {REMEDY}") from error
    if type(written) not in _PLAIN:
        raise _unknown(value)
    return written


def _unknown(value: Any) -> _Unsupported:
    kind = type(value)
    name = qualified_name(kind).removeprefix("builtins.")
    return _Unsupported(f"is {with_article(name)}, which cannot be stored: {REMEDY}")


def _converted_struct(value: msgspec.Struct, depth: int) -> msgspec.Struct:
    """Copy a struct with every field converted; msgspec then applies its tags, names and omitted defaults."""
    import copy

    made = copy.copy(value)
    given = value.__struct_defaults__ if value.__struct_config__.omit_defaults else ()
    defaults = dict(
        zip(value.__struct_fields__[len(value.__struct_fields__) - len(given) :], given, strict=True)
    )
    for name in value.__struct_fields__:
        item = getattr(value, name)
        if type(item) in _PLAIN or item is msgspec.UNSET or item is defaults.get(name) or _is_empty_set(item):
            continue  # what msgspec writes, or leaves out, by itself
        try:
            converted = (
                _converted_struct(item, depth + 1)
                if isinstance(item, msgspec.Struct) and depth < MAX_DEPTH
                else _convert(item, depth + 1)
            )
        except _Unsupported as problem:
            problem.steps.append(f".{name}")
            raise
        msgspec.structs.force_setattr(made, name, converted)
    return made


def _is_empty_set(value: Any) -> bool:
    return isinstance(value, (set, frozenset)) and not value


def _sort_items(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:  # values of several types
        return sorted(items, key=msgspec.json.encode)


def _text_of_bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = DATA_URI
    # Text that looks like the encoding of other bytes is encoded too: what is read back is what was stored.
    return DATA_URI + base64.b64encode(value).decode() if text.startswith(DATA_URI) else text


def _bytes_of_text(text: str) -> bytes:
    if text.startswith("data:"):
        head, comma, data = text.partition(",")
        if comma and head.endswith(";base64"):
            return base64.b64decode(data, validate=True)
    return text.encode()


def storable(value: Value) -> Any:
    """Convert a value to JSON values and drop what JSON cannot hold, for metadata that must not fail a record.

    NaN, infinities and integers with more digits than Python writes become None, lone surrogates become `?`, and
    objects without a JSON form become the name of their type.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if kind is float:
        return value if value - value == 0 else None
    if kind is int:
        return value if value.bit_length() <= 14_000 else None
    if kind is bool or value is None:
        return value
    if kind is dict:
        return {
            # A call for each key and each text would be most of the time that is spent on a small result.
            key if type(key) is str and key.isascii() else _storable_key(key): (
                each if type(each) is str and each.isascii() else storable(each)
            )
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [storable(each) for each in value]
    if isinstance(value, float):
        return storable(float.__float__(value))
    if isinstance(value, Mapping):
        return storable(dict(value))
    try:
        return storable(to_json_value(value))
    except UnsupportedType:
        return f"<{qualified_name(type(value))}>"


def _storable_key(key: Any) -> str:
    key = storable(key)
    return key if isinstance(key, str) else msgspec.json.encode(key).decode()


# ---------------------------------------------------------------- to JSON text


_encoder = msgspec.json.Encoder()
_sorting_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder()


def encode(value: object) -> bytes:
    """Encode an object as JSON, keys in the order they have."""
    return _encode(_encoder, value)


def encode_record(record: object, *parts: Any) -> bytes:
    """Encode one of karat's records of which only `parts` may hold something else than plain JSON, as `encode` does.

    One is encoded for every item, and to look through the whole record would take longer than to encode it.
    """
    for part in parts:
        kind = type(part)
        # Most results have no metadata.
        if kind not in _PLAIN and (kind is not dict or part) and not _is_json(part, _DEPTH_OF_PARTS):
            return encode(record)
    try:
        return _encoder.encode(record)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return encode(record)  # which says what is wrong


_DEPTH_OF_PARTS = 8
"""More than the depth of any part in its record: a value that is nested nearly too deeply is left to `encode`."""


MOST_PARTS = 1 << 23
"""Values of JSON that are decoded at once, where an object or a list counts as eight: up to a second. Nothing else of
the process runs meanwhile, not even a heartbeat. 64 MB of `{}` would take 15 s, 64 MB of `[[[` 50 s."""

_UNCOUNTED = 1 << 18
"""Bytes. A shorter text cannot have so many parts."""


class TooManyParts(msgspec.DecodeError):
    """JSON that would hold up the process while it is decoded."""


def decode_untrusted(text: bytes | str, most: int = MOST_PARTS) -> Any:
    """The value of JSON text that a server or a model wrote; msgspec.DecodeError where it is none or too large.

    Signs within strings count too: text has far fewer of them.
    """
    if len(text) > _UNCOUNTED:
        signs: Any = (b"{", b"[", b",") if isinstance(text, bytes) else ("{", "[", ",")
        objects, lists, values = map(text.count, signs)
        if 8 * (objects + lists) + values > most:
            raise TooManyParts(f"JSON has more than {most:,} parts")
    return _decoder.decode(text)


def canonical(value: object) -> bytes:
    """Encode an object as JSON with sorted keys: the same content gives the same bytes."""
    return _encode(_sorting_encoder, value)


def _encode(encoder: msgspec.json.Encoder, value: Any) -> bytes:
    try:
        if not _is_json(value, 0):
            value = _converted_struct(value, 0) if isinstance(value, msgspec.Struct) else _convert(value, 0)
        return encoder.encode(value)
    except _Unsupported as problem:
        raise UnsupportedType(problem.message("")) from None
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise UnsupportedType(
            f"a text contains {half}, a lone surrogate, which UTF-8 cannot hold: replace it"
        ) from None
    except RecursionError:
        raise UnsupportedType("a value is nested too deeply to be read again: make it flatter") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise UnsupportedType(f"a value cannot be stored ({error}): {REMEDY}") from error


def _is_json(value: Any, depth: int) -> bool:
    """Whether msgspec encodes a value by the rules above as it is, which is nearly always so and much faster."""
    kind = type(value)
    if kind is dict:  # first, because most calls are for the dicts in an output
        if depth >= MAX_DEPTH:
            return False
        for key, item in value.items():
            if type(key) is not str or (type(item) not in _PLAIN and not _is_json(item, depth + 1)):
                return False
        return True
    if kind is list or kind is tuple:
        if depth >= MAX_DEPTH:
            return False
        for item in value:
            kind = type(item)
            if kind in _PLAIN or (kind is float and item - item == 0):  # embeddings are long
                continue
            if not _is_json(item, depth + 1):
                return False
        return True
    if kind in _PLAIN:
        return True
    if kind is float:
        return bool(value - value == 0)
    if depth >= MAX_DEPTH:
        return False
    fields = _record_fields(kind)  # type: ignore[arg-type]  # typeshed does not know that types are hashable
    if fields is None:
        return False
    for name in fields:
        item = getattr(value, name)
        kind = type(item)
        if kind in _PLAIN or ((kind is dict or kind is list) and not item):
            continue
        if kind is float and item - item == 0:  # without a call: most records have one or two
            continue
        if not _is_json(item, depth + 1):
            return False
    return True


_TYPED = frozenset(
    {"str", "int", "bool", "float", "str | None", "int | None", "Status", "tuple[str, ...]", "list[str]"}
)
"""Annotations of fields that karat itself fills and that need no check."""


@functools.cache
def _record_fields(kind: type) -> tuple[str, ...] | None:
    """Return the fields of one of karat's records that may hold any value; None for other types."""
    if not issubclass(kind, msgspec.Struct) or not kind.__module__.startswith("karat."):
        return None
    annotated: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        annotated.update(getattr(base, "__annotations__", {}))
    return tuple(name for name in kind.__struct_fields__ if annotated.get(name) not in _TYPED)


# ---------------------------------------------------------------- back to annotated types

_prepared: set[Any] = set()
_preparing = threading.RLock()

K = typing.TypeVar("K")


def prepared(kind: K) -> K:
    """Return a type that msgspec is to decode into, after making sure that any thread may do so.

    msgspec looks at the fields of a type when it is first used. A second thread that uses the type meanwhile finds it
    half known, and the process ends with a segmentation fault (msgspec 0.22 and before).
    """
    if kind not in _prepared:
        with _preparing:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)
    return kind


def converter(annotation: object) -> Callable[[Any], Any] | None:
    """Return a function that turns stored JSON into the annotated type; None where there is nothing to do."""
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
        annotation in (bytes, bytearray, set, frozenset)
        or (isinstance(annotation, type) and (_has_fields(annotation) or issubclass(annotation, Enum)))
        or origin in (set, frozenset)
        or (
            origin in (list, dict, tuple, typing.Union, types_union)
            and any(map(converter, typing.get_args(annotation)))
        )
        or typing.is_typeddict(annotation)
    )
    if not needs:
        return None
    with _preparing, contextlib.suppress(Exception):  # what msgspec does not know, it names when it is used
        msgspec.json.Decoder(annotation)
    convert = functools.partial(msgspec.convert, type=annotation, strict=False, dec_hook=_dec_hook)
    prepare = _base64_where_bytes(annotation)
    return convert if prepare is None else lambda value: convert(prepare(value))


types_union = type(int | str)


def _has_fields(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) or hasattr(kind, "__dataclass_fields__")


def _dec_hook(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise TypeError(f"cannot make a {kind.__qualname__} of a stored value")


def _base64_where_bytes(annotation: Any) -> Callable[[Any], Any] | None:
    """Return what rewrites the texts that stand for bytes as base64, which is how msgspec reads bytes.

    None where the type has no bytes in it, or where msgspec does not know it and will say so itself.
    """
    from msgspec import inspect as types

    try:
        info = types.type_info(annotation)
    except (TypeError, NameError, RecursionError):
        return None

    seen: dict[Any, bool] = {}

    def has_bytes(info: object) -> bool:
        if isinstance(info, (types.BytesType, types.ByteArrayType, types.MemoryViewType)):
            return True
        cls = getattr(info, "cls", None)
        if cls is not None:
            if cls in seen:
                return seen[cls]
            seen[cls] = False
        found = any(map(has_bytes, _inside(info)))
        if cls is not None:
            seen[cls] = found
        return found

    def rewrite(info: types.Type, value: Any) -> Any:
        if isinstance(info, (types.BytesType, types.ByteArrayType, types.MemoryViewType)):
            is_text = isinstance(value, str)
            return base64.b64encode(_bytes_of_text(value)).decode() if is_text else value
        if isinstance(info, types.UnionType):
            for each in info.types:
                value = rewrite(each, value) if _fits(each, value) else value
            return value
        if isinstance(value, dict) and hasattr(info, "fields"):
            fields = {field.encode_name: field.type for field in info.fields}
            return {k: rewrite(fields[k], v) if k in fields else v for k, v in value.items()}
        if isinstance(value, dict) and isinstance(info, types.DictType):
            return {k: rewrite(info.value_type, v) for k, v in value.items()}
        if isinstance(value, list) and isinstance(info, types.TupleType):
            return [rewrite(t, v) for t, v in zip(info.item_types, value, strict=False)] + value[
                len(info.item_types) :
            ]
        if isinstance(value, list) and hasattr(info, "item_type"):
            return [rewrite(info.item_type, each) for each in value]
        return value

    def _fits(info: Any, value: Any) -> bool:
        if isinstance(info, (types.BytesType, types.ByteArrayType, types.MemoryViewType)):
            return isinstance(value, str)
        return isinstance(value, (dict, list)) and has_bytes(info)

    return functools.partial(rewrite, info) if has_bytes(info) else None


def _inside(info: Any) -> list[Any]:
    found = [field.type for field in getattr(info, "fields", ())]
    for name in ("item_type", "value_type", "key_type"):
        found += [getattr(info, name)] if hasattr(info, name) else []
    for name in ("item_types", "types"):
        found += getattr(info, name, ())
    return found


def annotations_of(function: object) -> dict[str, Any]:
    """Return the resolved annotations of a callable; those that cannot be resolved are left out."""
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
