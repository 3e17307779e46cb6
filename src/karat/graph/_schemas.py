"""Schemas as a configuration writes them: fields with types, JSON Schema, or a pydantic model by its dotted name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from karat.errors import KaratError, RequestError, did_you_mean
from karat.graph._lookup import TaskPlace
from karat.graph._reading import Section
from karat.models import OutputSchema, output_schema

TYPES: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "string": {"type": "string"},
    "int": {"type": "integer"},
    "integer": {"type": "integer"},
    "float": {"type": "number"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "boolean": {"type": "boolean"},
    "list": {"type": "array"},
    "array": {"type": "array"},
    "dict": {"type": "object"},
    "object": {"type": "object"},
    "any": {},
    "none": {"type": "null"},
}
_GENERIC = re.compile(r"(list|dict|optional|union)\[(.*)\]", re.IGNORECASE | re.DOTALL)


def json_type(written: object) -> dict[str, Any]:
    """`list[dict[str, any]]` as JSON Schema."""
    name = str(written).strip()
    match = _GENERIC.fullmatch(name)
    if match:
        kind, inside = match[1].lower(), _split(match[2])
        if kind == "list":
            return {"type": "array", "items": json_type(inside[0])}
        if kind == "dict":
            return {"type": "object", "additionalProperties": json_type(inside[-1])}
        kinds = [json_type(each) for each in inside]
        return {"anyOf": [*kinds, {"type": "null"}] if kind == "optional" else kinds}
    if name.lower() not in TYPES:
        raise RequestError(f"unknown type {name!r}: {did_you_mean(name.lower(), TYPES)}")
    return dict(TYPES[name.lower()])


def _split(text: str) -> list[str]:
    """The parts between commas, not those inside brackets."""
    out, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and not depth:
            out.append("")
        else:
            out[-1] += character
    return out


FIELD_KEYS = (
    "type", "description", "default", "required", "optional", "enum", "const", "examples", "title", "pattern", "format",
    "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "items",
    "minItems", "maxItems", "uniqueItems", "properties", "additionalProperties", "anyOf", "oneOf", "allOf",
)  # fmt: skip
"""The keys of a field: karat's own, and those of JSON Schema that it passes on."""


def fields_schema(fields: Section) -> dict[str, Any] | None:
    """The JSON Schema of `fields: {name: {type, description}}`."""
    properties: dict[str, Any] = {}
    needed = []
    for name, entry in fields.given.items():
        entry = {"type": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, Mapping) or entry.get("type") is None:
            fields.problem("needs a type, such as type: str", name)
            continue
        Section(entry, (*fields.place, name), fields.problems).others(FIELD_KEYS)
        try:
            schema = json_type(entry["type"])
        except RequestError as error:
            fields.problem(str(error), name)
            continue
        schema.update(
            {k: v for k, v in entry.items() if k not in ("type", "default", "required", "optional")}
        )
        properties[str(name)] = schema
        if entry.get("required", True) and "default" not in entry:
            needed.append(str(name))
    if not properties:
        return None
    return {"type": "object", "properties": properties, "required": needed}


def _accepting(schema: dict[str, Any] | None) -> OutputSchema | None:
    """A schema that asks for its fields alone, and accepts an answer that has others beside them."""
    return None if schema is None else OutputSchema({**schema, "additionalProperties": False}, accepts=schema)


UNFIT = "a reply that does not fit the schema is requested once more, and then the record fails"


NO_SCHEMA = "needs a schema: fields, JSON Schema, or the dotted name of a pydantic model"


def read_structured_output(around: Section, place: TaskPlace) -> Any:
    """The schema of the `structured_output` of a section; None where there is none or it is switched off."""
    section = around.section("structured_output")
    if "structured_output" not in around or not section.flag("enabled", True):
        return None
    section.known(("enabled", "schema", "fallback_strategy", "retry_on_parse_error", "max_parse_retries"))
    section.without_effect("fallback_strategy", "retry_on_parse_error", "max_parse_retries", instead=UNFIT)
    written = section.given.get("schema")
    try:
        if isinstance(written, str):
            schema: Any = place.load(written)
        elif isinstance(written, Mapping) and written.get("fields"):
            return _accepting(fields_schema(section.section("schema").section("fields")))
        elif isinstance(written, Mapping) and written and "fields" not in written:
            schema = dict(written)
        else:
            section.problem(NO_SCHEMA)
            return None
        output_schema(schema)
        return schema
    except KaratError as error:
        section.problems.caught((*section.place, "schema"), error)
        return None


RULES: dict[str, Any] = {
    "is_greater_than": lambda value, bound: value > bound,
    "is_less_than": lambda value, bound: value < bound,
    "is_equal_to": lambda value, bound: value == bound,
}


def _is_bound(entry: Section, rule: str) -> bool:
    """Whether a field has this rule, with a bound that values can be compared with."""
    if rule not in entry:
        return False
    bound = entry.given[rule]
    if rule != "is_equal_to" and (
        isinstance(bound, bool) or not isinstance(bound, (int, float)) or bound != bound
    ):
        entry.problem("must be a number", rule)
        return False
    return True


class RecordSchema:
    """`schema_config`: the schema of every output record. A record that does not match it fails with the reason."""

    def __init__(self, form: Any, rules: list[tuple[str, str, Any]], part: Any = None) -> None:
        self._form = form
        self._rules = rules
        self.part = part

    def check(self, record: Mapping[str, Any]) -> None:
        """Raise ValueError that describes what does not fit."""
        import msgspec

        self._form.read(msgspec.json.encode(record).decode(), coerce=False)
        for name, rule, bound in self._rules:
            value = record.get(name)
            if value is not None and not RULES[rule](value, bound):
                raise ValueError(
                    f"{name} is {value!r:.60}: it must be {rule.replace('_', ' ')[3:]} {bound!r}"
                )


def read_schema_config(section: Section, place: TaskPlace) -> RecordSchema | None:
    """The schema of the output records, if the file has one."""
    if not section.given:
        return None
    section.known(("schema", "fields"))
    name = section.text("schema")
    if name is not None:
        try:
            part = place.load(name)
            return RecordSchema(output_schema(part), [], part)
        except KaratError as error:
            section.problems.caught((*section.place, "schema"), error)
            return None
    properties: dict[str, Any] = {}
    rules: list[tuple[str, str, Any]] = []
    for entry in section.sections("fields"):
        entry.known(("name", "type", "description", *RULES))
        field, kind = entry.text("name", needed=True), entry.text("type", needed=True)
        if field and kind:
            try:
                properties[field] = json_type(kind)
            except RequestError as error:
                entry.problem(str(error), "type")
            rules += [(field, rule, entry.given[rule]) for rule in RULES if _is_bound(entry, rule)]
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return RecordSchema(output_schema(schema), rules)
