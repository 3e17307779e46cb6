"""JSON Schema validation of hostile values: bounded in time, and nothing is ever fetched.

`jsonschema` alone fetches remote references, matches patterns with `re`, which cannot be interrupted, compares every
pair of items for `uniqueItems`, and follows references that double at each level, two to the power of their depth.
Schemas come from files people share, and the values from models.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast
from urllib.parse import unquote, urldefrag, urljoin

from karat.errors import RequestError, clip, did_you_mean
from karat.records import JSON

if TYPE_CHECKING:
    from jsonschema import FormatChecker, ValidationError

PATTERN_SECONDS = 1.0
"""How long one pattern may take on one text."""

SECONDS = 1.5
"""How much processor time one value of up to `PARTS` parts may take; a larger one may take more in proportion."""
PARTS = 50_000
"""More than a text of 100 kB has."""

_DATA = ("const", "enum", "default", "examples")
"""Keywords whose values are data: a `$ref` inside of them is no reference."""

Schema: TypeAlias = bool | Mapping[str, Any]


class Draft(Protocol):
    """The part of a `jsonschema` validator that a rule uses."""

    VALIDATORS: Mapping[str, Rule]
    _resolver: Any

    def is_type(self, instance: JSON, type: str) -> bool: ...
    def is_valid(self, instance: JSON) -> bool: ...
    def evolve(self, **changes: Any) -> Draft: ...
    def descend(
        self, instance: JSON, schema: Schema, path: str | None = None, schema_path: str | None = None
    ) -> Iterable[ValidationError]: ...


Rule = Callable[[Draft, Any, Any, Any], "Iterator[ValidationError]"]
"""A keyword: the validator, the keyword's value, the value that is validated, and the schema."""


class Undecided(Exception):
    """A pattern or the schema did not decide about a value in its time, or cannot be used."""


class Validator:
    """A validator that finds the violations of a schema, within a limit of processor time for each value."""

    def __init__(
        self, base: Any, rules: Mapping[str, Rule], schema: Schema, pattern_seconds: float, **options: Any
    ) -> None:
        from jsonschema.validators import extend

        self._more = max(0.0, pattern_seconds - PATTERN_SECONDS)
        # A keyword that a draft does not define is an annotation there.
        known = base.VALIDATORS | {name: rule for name, rule in rules.items() if name in base.VALIDATORS}
        limited = {name: _with_limit(rule) for name, rule in known.items()}
        self._validator = extend(base, limited)(schema, **options)  # type: ignore[no-untyped-call]  # its stub

    def iter_errors(self, value: object) -> Iterator[ValidationError]:
        """Yield the violations; `Undecided` and `referencing.exceptions.Unresolvable` may be raised."""
        _watch.start(value, SECONDS + self._more)
        try:
            yield from self._validator.iter_errors(value)
        except (AttributeError, TypeError, KeyError) as error:  # a reference in a form of old drafts
            raise Undecided(f"the schema cannot be used: {clip(str(error), 120)}") from None


class _Watch(threading.local):
    """The value that is validated in a thread, and when its time ends."""

    value: Any = None
    steps = 0
    end = 0.0

    def start(self, value: object, seconds: float) -> None:
        self.value, self.steps, self.end = value, 0, time.thread_time() + seconds

    def step(self) -> None:
        """Count a keyword. The clock is a system call: most keywords take less time than it."""
        self.steps += 1
        if self.steps & 31 == 0:
            self.left()

    def left(self, wanted: float = 0.0) -> float:
        """The seconds left, at most those wanted; `Undecided` if there are none. A large value may take more."""
        left = self.end - time.thread_time()
        if left <= wanted and self.value is not None:
            extra = max(0.0, _count_parts(self.value) / PARTS - 1) * SECONDS
            self.value, self.end, left = None, self.end + extra, left + extra
        if left <= 0:
            raise _out_of_time()
        return min(left, wanted)


def _out_of_time() -> Undecided:
    return Undecided(
        f"the schema check did not finish within {SECONDS:g} s: the schema refers to the same parts again "
        "and again, has slow patterns, or compares with too many values"
    )


_watch = _Watch()


def _with_limit(rule: Rule) -> Rule:
    def run(validator: Draft, keyword: object, instance: JSON, schema: Schema) -> Iterator[ValidationError]:
        _watch.step()
        return rule(validator, keyword, instance, schema)

    return run


def _count_parts(value: Any) -> int:
    """Count the values inside of a value, and itself."""
    count, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        count += 1
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part
    return count


TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def validator(
    schema: bool | Mapping[str, Any],
    *,
    pattern_seconds: float = PATTERN_SECONDS,
    schema_formats: FormatChecker | None = None,
    formats: FormatChecker | None = None,
    where: str = "the schema",
) -> Validator:
    """The validator of a schema. RequestError: it is not one.

    `schema_formats` and `formats` are format checkers for the schema and for what is validated.
    """
    import jsonschema
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # it has no stubs

    base = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        base.check_schema(
            cast("dict[str, Any]", schema),
            **({} if schema_formats is None else {"format_checker": schema_formats}),
        )
    except jsonschema.SchemaError as error:
        what = error.message[:200]
        if error.path and error.path[-1] == "type" and isinstance(error.instance, str):
            what = f"unknown type {error.instance[:40]!r}: {did_you_mean(error.instance, TYPES)}"
        raise RequestError(f"{where} is wrong at {error.json_path}: {what}") from None
    except RecursionError:
        raise RequestError(f"{where} is nested too deeply: make it flatter") from None
    rules: dict[str, Rule] = {
        "pattern": _pattern(pattern_seconds),
        "patternProperties": _pattern_properties(pattern_seconds),
        "multipleOf": _multiple_of,
        "uniqueItems": _unique_items,
        "additionalProperties": _additional_properties(
            base.VALIDATORS.get("additionalProperties"), pattern_seconds
        ),
        "unevaluatedItems": _unevaluated_rule("array", pattern_seconds),
        "unevaluatedProperties": _unevaluated_rule("object", pattern_seconds),
    }
    return Validator(base, rules, schema, pattern_seconds, registry=REGISTRY, format_checker=formats)


def refuse_remote_references(schema: object, where: str = "the schema") -> None:
    """Raise RequestError for a `$ref` that leads out of the schema: to a URL, to a file, to another document."""
    known, references = {""}, []
    waiting: list[tuple[Any, str]] = [(schema, "")]
    while waiting:
        part, base = waiting.pop()
        if isinstance(part, list):
            waiting += [(each, base) for each in part]
            continue
        if not isinstance(part, Mapping):
            continue
        for name in ("$id", "id"):
            if isinstance(part.get(name), str):
                base = urljoin(base, part[name])
                known.add(urldefrag(base)[0])
        for name in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(part.get(name), str):
                references.append((part[name], urljoin(base, part[name])))
        waiting += [(value, base) for name, value in part.items() if name not in _DATA]
    for written, absolute in references:
        if written.startswith("#/") and known == {""} and not _inside(schema, written):
            raise RequestError(
                f"{where} refers to {written[:120]!r}, which it does not contain: put it under $defs"
            )
        if not written.startswith("#") and urldefrag(absolute)[0] not in known and not _standard(absolute):
            raise RequestError(
                f"{where} refers to {written[:120]!r}, which is outside of it: only references within the schema"
                " are followed (#/$defs/name); karat fetches no remote schema"
            )


def _inside(schema: Any, pointer: str) -> bool:
    """Whether a schema contains what a JSON pointer leads to."""
    for step in unquote(pointer)[2:].split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping) and step in schema:
            schema = schema[step]
        elif isinstance(schema, list) and step.isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        else:
            return False
    return True


def _standard(address: str) -> bool:
    """Whether it is a metaschema of JSON Schema itself, which comes with the package."""
    return urldefrag(address)[0].startswith(("http://json-schema.org/", "https://json-schema.org/"))


def _pattern(seconds: float) -> Rule:
    from jsonschema import ValidationError

    def rule(validator: Draft, pattern: str, instance: JSON, schema: Schema) -> Iterator[ValidationError]:
        if validator.is_type(instance, "string") and not _found(pattern, instance, seconds):
            yield ValidationError(f"{clip(instance)} does not match {clip(pattern)}")

    return rule


def _multiple_of(
    validator: Draft, divisor: float, instance: JSON, schema: Schema
) -> Iterator[ValidationError]:
    """The keyword `multipleOf`, in decimals as written: 19.99 is a multiple of 0.01, though not among floats."""
    from jsonschema import ValidationError

    if not validator.is_type(instance, "number"):
        return
    quotient = Fraction(Decimal(repr(instance))) / Fraction(Decimal(repr(divisor)))
    if quotient.denominator != 1:
        yield ValidationError(f"{instance!r} is not a multiple of {divisor!r}")


def _unique_items(
    validator: Draft, unique: bool, instance: JSON, schema: Schema
) -> Iterator[ValidationError]:
    """The keyword `uniqueItems`, in time that grows with the size of the list and not with its square."""
    from jsonschema import ValidationError

    if not unique or not validator.is_type(instance, "array"):
        return
    seen = set()
    for item in instance:
        key = _hashable(item)
        if key in seen:
            yield ValidationError(f"{clip(item)} occurs more than once")
            return
        seen.add(key)


def _hashable(value: Any) -> Any:
    """A key that two JSON values share when JSON Schema calls them equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool) or value is None:
        return ("constant", value)
    if isinstance(value, Mapping):
        return ("object", frozenset((name, _hashable(each)) for name, each in value.items()))
    if isinstance(value, (list, tuple)):
        return ("array", tuple(_hashable(each) for each in value))
    return value


def _pattern_properties(seconds: float) -> Rule:
    def rule(
        validator: Draft, patterns: Mapping[str, Schema], instance: JSON, schema: Schema
    ) -> Iterator[ValidationError]:
        if not validator.is_type(instance, "object"):
            return
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if _found(pattern, name, seconds):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)

    return rule


def _additional_properties(usual: Rule | None, seconds: float) -> Rule:
    """The usual rule, with the time limit of patterns where property names are matched by patterns."""
    from jsonschema import ValidationError

    def rule(
        validator: Draft, allowed: Schema, instance: JSON, schema: Mapping[str, Any]
    ) -> Iterator[ValidationError]:
        patterns = list(schema.get("patternProperties", ()))
        if usual is None or not patterns or not validator.is_type(instance, "object"):
            yield from usual(validator, allowed, instance, schema) or () if usual else ()
            return
        for name, value in instance.items():
            if name in schema.get("properties", {}) or any(_found(each, name, seconds) for each in patterns):
                continue
            if validator.is_type(allowed, "object"):
                yield from validator.descend(value, allowed, path=name)
            elif not allowed:
                yield ValidationError(f"{clip(name)} is neither a known property nor matched by a pattern")

    return rule


def _unevaluated_rule(kind: str, seconds: float) -> Rule:
    """The keywords `unevaluatedItems` and `unevaluatedProperties`, in linear time and without Python's `re`."""
    from jsonschema import ValidationError

    def rule(validator: Draft, allowed: Schema, instance: JSON, schema: Schema) -> Iterator[ValidationError]:
        if not validator.is_type(instance, kind):
            return
        evaluated = _Evaluated(instance, seconds).by(validator, schema)
        places = range(len(instance)) if kind == "array" else instance
        others = [place for place in places if place not in evaluated]
        if others:
            what, shown = ("items", instance) if kind == "array" else ("properties", {})
            named = ", ".join(clip(shown[each] if shown else each, 30) for each in others[:3])
            more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
            yield ValidationError(f"{what} that the schema does not describe: {named}{more}")

    return rule


class _Evaluated:
    """The items or properties of a value that a schema describes, as `unevaluated…` defines it."""

    def __init__(self, instance: JSON, seconds: float) -> None:
        self._instance = instance
        self._seconds = seconds
        self._is_array = not isinstance(instance, Mapping)

    def by(self, validator: Draft, schema: Schema | None) -> set[Any]:
        """The indexes or names that a schema, and the parts of it that accept the value, describe."""
        _watch.step()
        if not isinstance(schema, Mapping):
            return set()
        found = self._items(validator, schema) if self._is_array else self._properties(validator, schema)
        for name in ("$ref", "$dynamicRef", "$recursiveRef"):
            if name in schema:
                resolved = _resolve(validator, name, schema[name])
                there = validator.evolve(schema=resolved.contents, _resolver=resolved.resolver)
                found |= self.by(there, resolved.contents)
        if "if" in schema:
            if _accepts(validator, schema["if"], self._instance):
                found |= self.by(validator, schema["if"]) | self.by(validator, schema.get("then"))
            else:
                found |= self.by(validator, schema.get("else"))
        for name in ("allOf", "oneOf", "anyOf"):
            for part in schema.get(name, ()):
                if _accepts(validator, part, self._instance):
                    found |= self.by(validator, part)
        return found

    def _items(self, validator: Draft, schema: Mapping[str, Any]) -> set[Any]:
        items = schema.get("items")
        if items is not None and (not isinstance(items, list) or "additionalItems" in schema):
            return set(range(len(self._instance)))
        prefix = schema.get("prefixItems", ()) if "prefixItems" in validator.VALIDATORS else ()
        found = set(range(len(items or prefix)))
        for name in ("contains", "unevaluatedItems"):
            found |= self._accepted_places(validator, schema.get(name), enumerate(self._instance))
        return found

    def _properties(self, validator: Draft, schema: Mapping[str, Any]) -> set[Any]:
        found = {name for name in schema.get("properties", ()) if name in self._instance}
        for name in ("additionalProperties", "unevaluatedProperties"):
            found |= self._accepted_places(validator, schema.get(name), self._instance.items())
        for pattern in schema.get("patternProperties", ()):
            found |= {name for name in self._instance if _found(pattern, name, self._seconds)}
        for name, part in schema.get("dependentSchemas", {}).items():
            if name in self._instance:
                found |= self.by(validator, part)
        return found

    def _accepted_places(
        self, validator: Draft, schema: Schema | None, values: Iterable[tuple[Any, Any]]
    ) -> set[Any]:
        """The places of the values that a schema accepts; none where there is no schema."""
        if schema is None or schema is False:
            return set()
        return {place for place, value in values if schema is True or _accepts(validator, schema, value)}


def _accepts(validator: Draft, schema: Schema, instance: JSON) -> bool:
    return bool(validator.evolve(schema=schema).is_valid(instance))


def _resolve(validator: Draft, keyword: str, reference: str) -> Any:
    if keyword == "$recursiveRef":
        from referencing.jsonschema import lookup_recursive_ref

        return lookup_recursive_ref(validator._resolver)
    return validator._resolver.lookup(reference)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> Any:
    import regex

    return regex.compile(pattern)


def _found(pattern: str, text: str, seconds: float) -> bool:
    left = _watch.left(seconds)
    try:
        # Without the interpreter lock: other threads continue.
        return _compile(pattern).search(text, timeout=left, concurrent=True) is not None
    except TimeoutError:
        if left < seconds:
            raise _out_of_time() from None
        raise Undecided(f"the pattern {clip(pattern)} did not finish within {seconds:g} s") from None
    except Exception as error:  # what `regex` raises for a bad pattern is not exported as one type
        raise Undecided(f"the pattern {clip(pattern)} cannot be used: {error}") from None
