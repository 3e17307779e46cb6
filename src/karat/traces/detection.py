"""Find the format of a trace and read it: `normalize`, and the registry of formats.

A format has a `name`, a `detect` and a `read`. Both get a whole document or one item of a list: `detect` returns
whether the format recognises it, `read` yields its steps and the parts it could not use. Registered formats are tried
before karat's own, so that a plug-in can refine one of them.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import msgspec

from karat.errors import RequestError
from karat.records import JSON
from karat.registry import load_plugins
from karat.traces._literals import read_literal, repeats_key, unreadable
from karat.traces._objects import plain
from karat.traces._text_calls import LAST, PROSE, Texts, is_written_call, text_steps, texts_read
from karat.traces._unread_calls import check_calls, nearest_format
from karat.traces.steps import (
    Step,
    TraceError,
    Trajectory,
    UnreadCall,
    Unused,
    plain_text,
    rest,
    system_steps,
)

DEPTH = 16
"""The maximum nesting of lists and envelopes around the messages."""

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
"""Keys under which frameworks store messages, in the order in which they are tried."""

ANSWERS = ("output", "outputs", "response", "completion")
"""Keys under which frameworks repeat the last message, beside the messages."""

SYSTEM = ("system", "instructions")
"""Keys under which a request stores its system prompt, beside the messages."""

BUILTIN = (
    "native",
    "vercel",
    "openinference",
    "opentelemetry",
    "langsmith",
    "langfuse",
    "inspect_ai",
    "tau_bench",
    "langchain_agents",
    "langgraph",
    "potato",
    "message_parts",
    "autogen",
    "openai_agents",
    "langchain",
    "pydantic_ai",
    "adk",
    "gemini",
    "bedrock",
    "openai_responses",
    "claude",
    "mcp",
    "smolagents",
    "bfcl",
    "anthropic",
    "openai_chat",
)
"""Modules of `karat.traces.formats`, the most specific first: most formats have messages with a role."""

FAST = {"role": "openai_chat", "speaker": "potato", "name": "native"}
"""Formats with a `fast_calls`, which reads the calls of the most common shapes in one pass, by a key that the first
item has."""
FastReader = Callable[[list[Any]], tuple[list[Any], list[Any]] | None]
"""Reads only the names and arguments of the calls of a list of items.

They are those of `normalize`, which takes 40 times as long, if all names are texts that are not blank and all arguments
are texts or dicts. None, or an error of a lookup or a type, means that the list has to be normalized."""


class Format(Protocol):
    """One trace format; a module with these three members is one."""

    @property
    def name(self) -> str:
        """The format's name."""

    def detect(self, value: JSON) -> bool:
        """Return whether this is a document, or an item, of the format. It is cheap and raises nothing."""

    def read(self, value: JSON) -> Iterable[Step | Unused]:
        """Yield the steps of a value that was detected."""


_registered: dict[str, Format] = {}
_order: list[Format] | None = None
fast_readers: list[tuple[str, FastReader]] = []
"""The keys of FAST with the `fast_calls` of their formats; empty until `load_fast_readers`, and while formats are
registered."""


def register_format(format: Format) -> Format:
    """Add a format, which is tried before karat's own. A name can be registered once."""
    global _order
    missing = [member for member in ("name", "detect", "read") if not hasattr(format, member)]
    if missing:
        raise RequestError(
            f"trace format {format!r} has no {missing[0]!r}: define a name, a detect and a read"
        )
    builtin = [each.name for each in _builtin_formats()]
    if format.name in builtin or _registered.get(format.name, format) is not format:
        raise RequestError(f"trace format {format.name!r} is already registered: choose another name")
    _registered[format.name] = format
    _order = None
    fast_readers.clear()
    return format


def unregister_format(name: str) -> None:
    """Remove a registered format."""
    global _order
    _registered.pop(name, None)
    _order = None


def list_formats() -> list[str]:
    """Return the names of all formats, in the order in which they are tried."""
    return [format.name for format in formats()]


def formats() -> list[Format]:
    """Return all formats, in the order in which they are tried."""
    global _order
    if _order is None:
        load_plugins()
        _order = [*_registered.values(), *_builtin_formats()]
    return _order


def _builtin_formats() -> list[Format]:
    return [importlib.import_module(f"karat.traces.formats.{name}") for name in BUILTIN]


def normalize(value: object) -> Trajectory:
    """Read a trajectory in any known format as steps, with a list of the parts that could not be used.

    The value is not changed, and normalizing twice changes nothing. A value that cannot be read is a `TraceError`.
    """
    if type(value) is Trajectory:
        return value
    texts = Texts()
    known = texts_read.set(texts)
    try:
        steps, unused = _parts(value)
        texts.know(steps, unused)
        if texts.is_doubtful:
            texts.begin(PROSE)
            texts.know(*_parts(value))
            texts.begin(LAST)
            steps, unused = _parts(value)
        # A registered format decides what is a call.
        check_calls(steps, unused, None if _registered else value)
    except TraceError:
        raise
    except RecursionError as error:
        raise TraceError("the trace is nested too deeply to be read, or contains itself") from error
    except Exception as error:  # attributes of foreign objects may raise anything
        raise TraceError(f"the trace cannot be read: {type(error).__name__}: {error}") from error
    finally:
        texts_read.reset(known)
    if not steps and any(not part.harmless for part in unused):
        first = next(part for part in unused if not part.harmless)
        place = f" at {first.where}" if first.where else ""
        raise TraceError(f"no trajectory{place}: {first.reason}")
    return Trajectory(steps, unused)


def _parts(value: object) -> tuple[list[Step], list[Unused]]:
    steps: list[Step] = []
    unused: list[Unused] = []
    for part in read(value):
        if isinstance(part, Step):
            steps.append(part)
        elif isinstance(part, UnreadCall):
            place = f"{part.where}: " if part.where else ""
            raise TraceError(f"step {len(steps) + 1} cannot be read: {place}{part.reason}")
        else:
            unused.append(part)
    return steps, unused


def load_fast_readers() -> list[tuple[str, FastReader]]:
    """Return `fast_readers`, loaded where no format is registered, which might read their shapes in another way."""
    formats()
    if not _registered:
        fast_readers[:] = [
            (key, importlib.import_module(f"karat.traces.formats.{name}").fast_calls)
            for key, name in FAST.items()
        ]
    return fast_readers


def read(value: object, depth: int = 0) -> Iterator[Step | Unused]:
    """Yield the parts of a document: by its format, from inside its envelope, or item by item."""
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
        yield Unused(
            "", f"{type(value).__name__} is not a trajectory: give messages, spans or an export", value
        )


def read_items(items: Iterable[Any], depth: int = 0) -> Iterator[Step | Unused]:
    """Yield the parts of each item of a list; the items may have different formats."""
    for position, item in enumerate(items):
        if isinstance(item, Step):
            yield item
        elif is_written_call(item):
            yield UnreadCall(f"[{position}]", "a call that is written as text", item)
        else:
            yield from placed(read(item, depth + 1), f"[{position}]")


def normalize_trajectory(value: object) -> Trajectory:
    """Do the same as `normalize`, under the name that Potato uses; iterating the result gives the steps."""
    return normalize(value)


def placed(parts: Iterable[Step | Unused], place: str) -> Iterator[Step | Unused]:
    """Yield the same parts, with their place prepended to the path of each unused one."""
    for part in parts:
        if isinstance(part, Unused):
            where = part.where if part.where.startswith("[") or not part.where else f".{part.where}"
            yield msgspec.structs.replace(part, where=f"{place}{where}")
        else:
            yield part


def _read_text(value: str | bytes, depth: int) -> Iterator[Step | Unused]:
    text = value.decode(json.detect_encoding(value), "replace") if isinstance(value, bytes) else value
    text = text.removeprefix("\ufeff")
    if not text.strip():
        yield Unused("", "the text is empty", text)
        return
    document = _decode(text)
    if document is None:
        found = text_steps("assistant", text, {})
        yield from [plain_text(text)] if found is None else found
    elif depth >= DEPTH:
        yield Unused("", "it is nested too deeply", text)
    else:
        yield from read(document, depth + 1)


def _decode(text: str) -> Any:
    """Return the JSON or Python document, or the list of JSON lines, in a text; None where it is only text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return _unique(text)
    except (RecursionError, msgspec.ValidationError) as error:
        raise unreadable(text, error) from error
    except ValueError:
        pass
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        # Where they are no lines of JSON, they may be what Python prints.
        return [_unique(line) for line in lines] if len(lines) > 1 else _literal(text)
    except (RecursionError, msgspec.ValidationError) as error:
        raise unreadable(text, error) from error
    except ValueError:
        return _literal(text)


def _unique(text: str) -> Any:
    value = msgspec.json.decode(text)
    if repeats_key(text, value):
        raise TraceError(f"the JSON text of the trace repeats a key: {text[:60]!r}…")
    return value


def _literal(text: str) -> Any:
    """Return the dict, or the list with dicts, that a text is as Python; None where it is neither."""
    try:
        value = read_literal(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) or any(isinstance(each, dict) for each in value) else None


def _read_envelope(value: dict[str, Any], depth: int) -> Iterator[Step | Unused]:
    for key in ENVELOPES:
        inside = value.get(key)
        if key == "input" and "name" in value and isinstance(inside, dict) and not _is_envelope(inside):
            break  # a call with its input, and no messages
        if isinstance(inside, (list, tuple, dict)) or (
            isinstance(inside, str) and _decode(inside) is not None
        ):
            system = next((word for word in SYSTEM if system_steps(value.get(word))), None)
            if system is not None:
                yield from system_steps(value[system])
            yield from placed(read(inside, depth + 1), key)
            others = rest(value, key, *((system,) if system else ()))
            answers = {key: others.pop(key) for key in ANSWERS if isinstance(others.get(key), (str, list))}
            if answers:
                yield Unused("", f"answers beside {key!r}", answers, harmless=True, repeats=True)
            if others:
                yield Unused("", f"fields outside {key!r}", others, harmless=True)
            return
    keys = ", ".join(str(key)[:40] for key in list(value)[:8])
    reason = f"a dict with the keys {keys or '(none)'} is in no known format; {nearest_format(value)}"
    yield Unused("", reason, value)


def _is_envelope(value: dict[str, Any]) -> bool:
    """Return whether a dict is a document or a message of a format, or contains one."""
    return any(key in value for key in ENVELOPES) or any(format.detect(value) for format in formats())
