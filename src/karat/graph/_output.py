"""Output records: `output_map`, with or without a custom generator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from karat import paths
from karat.errors import FAILURES, KaratError, did_you_mean
from karat.graph._functions import applied
from karat.graph._lookup import TaskPlace
from karat.graph._reading import Section
from karat.graph._schemas import RecordSchema
from karat.graph._state import SygraState, own

FIELD_KEYS = ("from", "value", "transform")


class BaseOutputGenerator:
    """The builder of an output record from `output_map`; override `generate`, or add methods that `transform` names."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.output_map: dict[str, Any] = dict(config.get("output_map") or {})

    def generate(self, state: SygraState) -> dict[str, Any] | None:
        """The output record of a state; None leaves the record out."""
        return {name: self._field(name, entry, state) for name, entry in self.output_map.items()}

    def _field(self, name: str, entry: Mapping[str, Any], state: Any) -> Any:
        value = own(entry["value"]) if "value" in entry else from_state(state, entry.get("from", name))
        if "transform" in entry:
            value = getattr(self, entry["transform"])(value, state)
        return value


def from_state(state: Mapping[str, Any], name: str) -> Any:
    """A variable of the state, or a path into one; None where it was never set."""
    return paths.get(state, name)


class OutputMap:
    """The conversion of a record's state to its output."""

    def __init__(
        self,
        generate: Callable[[SygraState], Any],
        fields: dict[str, str] | None,
        schema: RecordSchema | None,
        parts: list[Any],
    ) -> None:
        self._generate = generate
        self.fields = fields
        """Output field → what it is taken from (empty for a value); None where only code knows."""
        self._schema = schema
        self.parts = parts
        self.is_whole_state = generate is whole_state
        self.owed: list[str] = []
        """Fields that the whole state has as null where a record's way through the graph led past what sets them."""

    def record(self, state: SygraState) -> Any:
        """The output of a record; None where the generator leaves it out."""
        record = self._generate(state)
        for name in self.owed:
            record.setdefault(name, None)
        if record is not None and self._schema is not None:
            self._schema.check(record)
        return record


def whole_state(state: SygraState) -> dict[str, Any]:
    """Without an output_config: everything the state holds."""
    return {key: value for key, value in state.items() if not key.startswith("__")}


def read_output(
    section: Section, document: object, place: TaskPlace, schema: RecordSchema | None
) -> OutputMap:
    """The output of a section `output_config`."""
    section.known(("output_map", "generator", "oasst_mapper", "data_quality"))
    for feature in ("oasst_mapper", "data_quality"):
        if feature in section and section.section(feature).flag("required", True):
            section.problem("not supported: leave it out, or set required: no", feature)
    generator = _generator(section, place)
    parts = [] if generator is None else [generator]
    if schema is not None and schema.part is not None:
        parts.append(schema.part)
    fields_section = section.section("output_map")
    if not fields_section.given and generator is None:
        return OutputMap(whole_state, None, schema, parts)
    resolved: dict[str, dict[str, Any]] = {}
    readers: dict[str, Callable[[SygraState], Any]] = {}
    made = _made(generator, {**section.given, "output_map": resolved}, section)
    for name in fields_section.given:
        reader = _reader(name, fields_section.section(name), document, place, made, resolved, parts)
        if reader is not None:
            readers[name] = reader
    sources = {name: str(resolved.get(name, {}).get("from", "")) for name in fields_section.given}
    if made is not None:
        with suppress(AttributeError):  # a plain class may have slots, and needs none
            made.output_map = resolved
        if getattr(generator, "generate", None) not in (None, BaseOutputGenerator.generate):
            return OutputMap(made.generate, None, schema, parts)
    pairs = list(readers.items())
    return OutputMap(lambda state: {name: reader(state) for name, reader in pairs}, sources, schema, parts)


def _generator(section: Section, place: TaskPlace) -> Any:
    name = section.text("generator")
    if name is None:
        return None
    try:
        part = place.load(name)
    except KaratError as error:
        section.problems.caught((*section.place, "generator"), error)
        return None
    if not isinstance(part, type):
        section.problem(f"{name} is not a class", "generator")
        return None
    if not callable(getattr(part, "generate", None)) and not section.mapping("output_map"):
        section.problem(
            f"{name} has no method generate, and there is no output_map whose transforms it could have",
            "generator",
        )
        return None
    return part


def _made(generator: Any, config: dict[str, Any], section: Section) -> Any:
    if generator is None:
        return None
    try:
        return generator(config) if _takes_config(generator) else generator()
    except FAILURES as error:
        section.problem(
            f"{generator.__qualname__} cannot be constructed: {type(error).__name__}: {error}", "generator"
        )
        return None


def _takes_config(generator: Any) -> bool:
    """Whether a generator is made with its section of the file; a plain class is made without."""
    try:
        inspect.signature(generator).bind({})
    except TypeError:
        return False
    except ValueError:  # a class whose signature cannot be known
        return True
    return True


def _reader(
    name: str,
    entry: Section,
    document: Any,
    place: TaskPlace,
    made: Any,
    resolved: dict[str, dict[str, Any]],
    parts: list[Any],
) -> Callable[[SygraState], Any] | None:
    """A function from the state to the value of one output field."""
    entry.known(FIELD_KEYS)
    given = dict(entry.given)
    if ("from" in given) == ("value" in given):
        entry.problem(
            "has both 'from' and 'value': remove one of them"
            if given.get("from")
            else "needs 'from' or 'value'"
        )
        return None
    read: Callable[[SygraState], Any]
    if "value" in given:
        value = given["value"] = _static(given["value"], document, entry)

        def read(state: SygraState) -> Any:
            return own(value)
    else:
        source = entry.text("from")
        if source is None:
            if given["from"] is None:
                entry.problem("is null: name a variable, or give a value (value: null for null)", "from")
            return None
        if "." not in source and "[" not in source:

            def read(state: SygraState) -> Any:
                return state.get(source)
        else:

            def read(state: SygraState) -> Any:
                return from_state(state, source)

    resolved[name] = given
    if "transform" not in entry:
        return read
    transform = _transform(entry, place, made, parts)
    return None if transform is None else lambda state: transform(read(state), state)


def _transform(entry: Section, place: TaskPlace, made: Any, parts: list[Any]) -> Any:
    """A method of the generator, or a function by its dotted name."""
    name = entry.text("transform")
    if name is None:
        return None
    method = getattr(made, name, None) if name.isidentifier() else None
    if name.isidentifier() and not callable(method):
        known = [k for k in dir(made) if not k.startswith("_")] if made is not None else []
        instead = (
            did_you_mean(name, known) if known else "name a generator that has it, or give a dotted name"
        )
        entry.problem(f"there is no method {name!r}: {instead}", "transform")
        return None
    try:
        if callable(method):
            return applied(method, 2, f"transform {name}")
        part = place.load(name)
        parts.append(part)
        return applied(part, 2, f"transform {name}")
    except KaratError as error:
        entry.problems.caught((*entry.place, "transform"), error)
        return None


def _static(value: Any, document: Any, entry: Section) -> Any:
    """A value with `$dotted.path[0]` replaced by the value at that path in the file."""
    if isinstance(value, Mapping):
        return {key: _static(item, document, entry) for key, item in value.items()}
    if isinstance(value, list):
        return [_static(item, document, entry) for item in value]
    if not (isinstance(value, str) and value.startswith("$") and len(value) > 1 and not value[1].isdigit()):
        return value
    path = paths.parse(value[1:])
    found = path.find(document)
    if found is paths.MISSING:
        entry.problem(f"{value} is not in this file: {path.why_missing(document)}", "value")
        return None
    return found
