"""Reads anything as a trajectory: finds the format of a document, or of each item of a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from karat.traces.formats import formats
from karat.traces.plain import plain
from karat.traces.steps import Step, TraceError, Trajectory, Unused, plain_text, rest, system_steps

DEPTH = 16
"""How deep lists and envelopes may be nested around the messages."""

ENVELOPES = (
    "messages",
    "trajectory",
    "tool_calls",
    "calls",
    "steps",
    "trace",
    "history",
    "transcript",
    "output",
    "outputs",
    "response",
    "input",
)
"""Keys under which frameworks hand out messages, in the order in which they are looked for."""

SYSTEM = ("system", "instructions")
"""Keys under which a request holds its system prompt, beside the messages."""


def normalize(value: Any) -> Trajectory:
    """The steps of a trajectory in any format karat knows, and whatever could not be used.

    Nothing is changed in what was given, and normalising twice changes nothing. A value of which nothing
    at all can be read is a `TraceError`.
    """
    if type(value) is Trajectory:
        return value
    steps: list[Step] = []
    unused: list[Unused] = []
    try:
        for part in read(value):
            (steps if isinstance(part, Step) else unused).append(part)  # type: ignore[arg-type]  # sorted here
    except TraceError:
        raise
    except RecursionError as error:
        raise TraceError("the trace is nested too deeply to be read, or contains itself") from error
    except Exception as error:  # objects of other packages may raise anything when they are looked at
        raise TraceError(f"the trace cannot be read: {type(error).__name__}: {error}") from error
    if not steps and any(not part.harmless for part in unused):
        first = next(part for part in unused if not part.harmless)
        place = f" at {first.where}" if first.where else ""
        raise TraceError(f"no trajectory{place}: {first.reason}")
    return Trajectory(steps, unused)


def read(value: Any, depth: int = 0) -> Iterator[Step | Unused]:
    """The parts of a document: by its format, from inside its envelope, or item by item."""
    if isinstance(value, (str, bytes)):
        yield from _read_text(value, depth)
        return
    value = plain(value)
    if isinstance(value, Trajectory):
        yield from value.steps
        yield from value.unused
        return
    for format in formats():
        if format.detect(value):
            yield from format.read(value)
            return
    if depth >= DEPTH:
        yield Unused("", "it is nested too deeply", value)
    elif isinstance(value, list):
        yield from read_items(value, depth)
    elif isinstance(value, dict):
        yield from _read_envelope(value, depth)
    else:
        yield Unused("", f"{type(value).__name__} is no trajectory: give messages, spans or an export", value)


def read_items(items: Iterable[Any], depth: int = 0) -> Iterator[Step | Unused]:
    """The parts of every item of a list, each in whatever format it has."""
    for position, item in enumerate(items):
        if isinstance(item, Step):
            yield item
        else:
            yield from placed(read(item, depth + 1), f"[{position}]")


def placed(parts: Iterable[Step | Unused], place: str) -> Iterator[Step | Unused]:
    """The same parts, with the place they come from put before what is unused."""
    for part in parts:
        if isinstance(part, Unused):
            where = part.where if part.where.startswith("[") or not part.where else f".{part.where}"
            yield msgspec.structs.replace(part, where=f"{place}{where}")
        else:
            yield part


def _read_text(value: str | bytes, depth: int) -> Iterator[Step | Unused]:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not text.strip():
        yield Unused("", "the text is empty", text)
        return
    document = _decode(text)
    if document is None:
        yield plain_text(text)
    elif depth >= DEPTH:
        yield Unused("", "it is nested too deeply", text)
    else:
        yield from read(document, depth + 1)


def _decode(text: str) -> Any:
    """The JSON document, or the list of JSON lines, that a text holds; None where it is only text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        pass
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        return None
    try:
        return [msgspec.json.decode(line) for line in lines]
    except (ValueError, RecursionError):
        return None


def _read_envelope(value: dict[str, Any], depth: int) -> Iterator[Step | Unused]:
    for key in ENVELOPES:
        inside = value.get(key)
        if isinstance(inside, (list, tuple, dict)) or (
            isinstance(inside, str) and _decode(inside) is not None
        ):
            system = next((word for word in SYSTEM if system_steps(value.get(word))), None)
            if system is not None:
                yield from system_steps(value[system])
            yield from placed(read(inside, depth + 1), key)
            others = rest(value, key, *((system,) if system else ()))
            if others:
                yield Unused("", f"it stands beside {key!r}, where the messages are", others, harmless=True)
            return
    keys = ", ".join(str(key)[:40] for key in list(value)[:8])
    yield Unused("", f"a dict with the keys {keys or '(none)'} is in no known format", value)
