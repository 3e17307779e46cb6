"""The `format` keyword of JSON Schema: what is checked, and a word about what cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, time
from typing import Any

import regex

from karat.errors import RequestError

STANDARD = {
    *(
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "idn-email",
        "hostname",
        "idn-hostname",
        "ipv4",
        "ipv6",
    ),
    *("uri", "uri-reference", "iri", "iri-reference", "uri-template", "uuid", "regex"),
    *("json-pointer", "relative-json-pointer"),
}
"""The formats that JSON Schema defines; any other is an annotation that nobody checks."""

_TIME = r"\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})"
_RFC_3339 = {"time": regex.compile(_TIME), "date-time": regex.compile(rf"\d{{4}}-\d{{2}}-\d{{2}}[T ]{_TIME}")}


def output_formats(schema: Any) -> Any:
    """A checker of every format that a schema names; one that would pass unchecked is refused."""
    import jsonschema

    checker = jsonschema.FormatChecker()
    for name, read in (("date-time", datetime.fromisoformat), ("time", time.fromisoformat)):
        checker.checks(name, raises=ValueError)(_time_check(_RFC_3339[name], read))
    for name in _named(schema):
        if name in STANDARD and name not in checker.checkers:
            raise RequestError(
                f"json_schema_match: nothing installed checks the format {name!r}: pip install"
                " 'jsonschema[format-nongpl]', or leave formats out"
            )
    return checker


def schema_formats() -> Any:
    """A checker of the schema itself: its patterns are those of the `regex` package, which run with a time limit."""
    import jsonschema

    checker = jsonschema.FormatChecker(formats=())
    checker.checks("regex", raises=(regex.error, ValueError, OverflowError))(_is_pattern)
    return checker


def _is_pattern(value: object) -> bool:
    return not isinstance(value, str) or regex.compile(value) is not None


def _time_check(form: Any, read: Any) -> Any:
    """RFC 3339, where a second may be the sixtieth; `fromisoformat` alone takes more forms than that."""

    def check(value: object) -> bool:
        if not isinstance(value, str):
            return True
        text = value.upper()
        return form.fullmatch(text, timeout=1) is not None and read(text.replace(":60", ":59", 1)) is not None

    return check


def _named(schema: Any) -> Iterator[str]:
    """Every format that a schema names, also in its parts; not those in the values it gives."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(part.get("format"), str):
                yield part["format"]
            waiting.extend(
                each for key, each in part.items() if key not in ("const", "default", "enum", "examples")
            )
        elif isinstance(part, list):
            waiting.extend(part)
