"""Equality and inclusion of JSON values: True is not 1, 1 is 1.0, the order of keys does not matter."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec

from karat.records import JSON

_encode = msgspec.json.Encoder(order="deterministic").encode
_encode_as_is = msgspec.json.Encoder().encode
ATOMS = frozenset((str, int, bool, type(None)))
_HASHED = frozenset((str, int, float, type(None), bytes, date, datetime, time, timedelta, UUID))
"""Types whose values are equal only to values of the same type, numbers aside, and have the same hash then."""


def equal(a: JSON, b: JSON) -> bool:
    """Equality of JSON values: True is not 1, 1 is 1.0, NaN is NaN, the order of keys does not matter."""
    if a is b:
        return True
    kind, other = type(a), type(b)
    if kind is other:
        if kind in ATOMS:
            return bool(a == b)
        if kind is dict:
            if len(a) != len(b):
                return False
            if are_alike(a, b):
                return True
            for key, value in a.items():
                if key not in b:
                    return False
                wanted = b[key]
                if value is wanted:
                    continue
                kind = type(value)
                # Most values are plain, which need no further call.
                if kind is not type(wanted) or kind not in ATOMS:
                    if not equal(value, wanted):
                        return False
                elif value != wanted:
                    return False
            return True
        if kind is list:
            return len(a) == len(b) and (are_alike(a, b) or all(map(equal, a, b)))
        if kind is float:
            return bool(a == b) or (math.isnan(a) and math.isnan(b))
    if kind is bool or other is bool:
        return False
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping) and (kind is not dict or other is not dict):
        return equal(dict(a), dict(b))
    try:
        return bool(a == b)
    except Exception:  # a foreign object's comparison may raise anything
        return False


def are_alike(a: object, b: object) -> bool:
    """Return whether values are equal and written alike, found in C; False where they may be equal all the same."""
    try:
        # Python takes 1 and True for equal, which are not written alike.
        return bool(a == b) and _encode_as_is(a) == _encode_as_is(b)
    except Exception:  # no JSON, or a foreign object's comparison, which may raise anything
        return False


def contains(whole: JSON, part: JSON) -> bool:
    """Return whether part ⊆ whole: each key of the part is in the whole, with a value that contains the part's."""
    kind = type(part)
    if kind in ATOMS:
        return equal(whole, part)
    if kind is dict and type(whole) is dict:
        for key, value in part.items():
            if key not in whole:
                return False
            other = whole[key]
            if value is other:
                continue
            kind = type(value)
            # Most values are plain, which need no further call.
            if kind is not type(other) or kind not in ATOMS:
                if not contains(other, value):
                    return False
            elif value != other:
                return False
        return True
    if isinstance(part, Mapping) and isinstance(whole, Mapping):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, (list, tuple)) and isinstance(whole, (list, tuple)):
        return len(part) == len(whole) and all(map(contains, whole, part))
    return equal(whole, part)


_LEAVES = frozenset((str, int, bool, float, type(None)))
_JSON = frozenset((*_LEAVES, dict, list))


def leaf_keys(
    wholes: list[Any], parts: list[Any], lost: Collection[int] = ()
) -> tuple[list[Any], list[Any]] | None:
    """Return keys of wholes and of parts that are equal exactly where a whole contains a part.

    There are such keys where all parts are dicts with the same keys at every depth and plain values in them; None
    otherwise. A whole that lacks a key has the key None and contains none of the parts. The columns of values are
    taken out in C: a thousand dicts take a millisecond. `lost` are positions of parts that no whole contains, which
    need not have the same keys and have the key None.
    """
    if lost:
        found = leaf_keys(wholes, [part for at, part in enumerate(parts) if at not in lost])
        if found is None:
            return None
        kept = iter(found[1])
        return found[0], [None if at in lost else next(kept) for at in range(len(parts))]
    dead: set[int] = set()
    columns: list[tuple[Sequence[Any], Sequence[Any]]] = []
    waiting: list[tuple[Sequence[Any], Sequence[Any]]] = [(wholes, parts)]
    while waiting:
        whole, part = waiting.pop()
        kinds, others = set(map(type, part)), set(map(type, whole))
        if not others <= _JSON:
            return None
        if kinds == {dict}:
            shapes = set(map(tuple, part))
            if len(shapes) > 1 and len(set(map(frozenset, shapes))) > 1:
                return None
            if others != {dict}:
                dead.update(at for at, value in enumerate(whole) if type(value) is not dict)
            if not (names := next(iter(shapes))):
                continue
            get = itemgetter(*names)
            try:
                taken: list[Any] = list(map(get, whole))
            except (KeyError, TypeError):
                lacking = None if len(names) == 1 else (None,) * len(names)
                taken = []
                for at, value in enumerate(whole):
                    try:
                        taken.append(get(value))
                    except (KeyError, TypeError):
                        dead.add(at)
                        taken.append(lacking)
            if len(names) == 1:
                waiting.append((taken, list(map(get, part))))
            else:
                rows = zip(*map(get, part), strict=True)
                waiting += zip(zip(*taken, strict=True), rows, strict=True)
        elif kinds <= _LEAVES:
            if float in kinds | others and any(value != value for each in (whole, part) for value in each):
                return None  # NaN equals nothing, not even itself
            if not others <= _LEAVES:
                dead.update(at for at, value in enumerate(whole) if type(value) in (dict, list))
                whole = [None if type(value) in (dict, list) else value for value in whole]
            if bool in kinds | others and len(kinds | others) > 1:
                # True is not 1.
                whole, part = ([(type(value) is bool, value) for value in each] for each in (whole, part))
            columns.append((whole, part))
        else:
            return None
    if not columns:
        return None
    have: list[Any] = list(zip(*(whole for whole, _ in columns), strict=True))
    for at in dead:
        have[at] = None
    return have, list(zip(*(part for _, part in columns), strict=True))


def canonical(value: object) -> Hashable | None:
    """Return a key that is equal exactly when the values are; None for objects of unknown types."""
    floats = _floats_in(value)
    if floats is None:
        try:
            return "python", _frozen(value)
        except TypeError:
            return None
    try:
        return _encode(with_integers(value) if floats else value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _frozen(value: Any) -> Hashable:
    """Return a hashable form of a value that is not JSON: NaN is NaN, True is not 1. Raises TypeError otherwise."""
    kind = type(value)
    if kind is dict:
        return frozenset((key, _frozen(part)) for key, part in value.items())
    if kind is list or kind is tuple:
        return "list", *map(_frozen, value)
    if kind is bool:
        return "bool", value
    if kind is float and value != value:
        return "float", "nan"
    if kind in _HASHED:
        return value  # type: ignore[no-any-return]  # it is hashable
    raise TypeError(kind.__name__)


def _floats_in(value: Any) -> bool | None:
    """Whether a JSON value contains floats; None if it is not JSON or contains a non-finite number."""
    kind = type(value)
    if kind in ATOMS:
        return False
    if kind is float:
        return True if math.isfinite(value) else None
    if kind is dict:
        if not all(type(key) is str for key in value):
            return None
        parts: Any = value.values()
    elif kind is list or kind is tuple:
        parts = value
    else:
        return None
    found = False
    for part in parts:
        if type(part) in ATOMS:
            continue
        floats = _floats_in(part)
        if floats is None:
            return None
        found = found or floats
    return found


def with_integers(value: object) -> Any:
    """The same JSON value, with 1 for 1.0: equal numbers are then written alike."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: with_integers(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_integers(part) for part in value]
    return value
