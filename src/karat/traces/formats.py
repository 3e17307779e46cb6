"""The formats karat can read, and how another is added.

A format has a `name`, a `detect` and a `read`. Both get a whole document or one item of a list: `detect`
says whether the format knows it, `read` gives its steps and whatever it could not use. Registered formats
are tried before karat's own, so that a plug-in may refine one of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Protocol

from karat.errors import RequestError
from karat.registry import load_plugins
from karat.traces.steps import Step, Unused


class Format(Protocol):
    """One format of traces; a module with these three members is one."""

    @property
    def name(self) -> str:
        """The format's name."""

    def detect(self, value: Any) -> bool:
        """Whether this is a document, or an item, of the format. Cheap; it raises nothing."""

    def read(self, value: Any) -> Iterable[Step | Unused]:
        """The steps of something that was detected."""


BUILTIN = (
    "own",
    "calls",
    "openinference",
    "opentelemetry",
    "langsmith",
    "langfuse",
    "langgraph",
    "potato",
    "langchain",
    "gemini",
    "openai_responses",
    "anthropic",
    "openai_chat",
)
"""karat's own, the more telling shapes first: nearly every format has messages with a role and a content."""

_added: dict[str, Format] = {}
_order: list[Format] | None = None


def register_format(format: Format) -> Format:
    """Adds a format, to be tried before karat's own; a name is given once."""
    global _order
    missing = [member for member in ("name", "detect", "read") if not hasattr(format, member)]
    if missing:
        raise RequestError(
            f"trace format {format!r} has no {missing[0]!r}: it needs a name, a detect and a read"
        )
    if format.name in BUILTIN or _added.get(format.name, format) is not format:
        raise RequestError(f"trace format {format.name!r} is registered already: give yours another name")
    _added[format.name] = format
    _order = None
    return format


def unregister_format(name: str) -> None:
    """Takes an added format away again."""
    global _order
    _added.pop(name, None)
    _order = None


def has_added() -> bool:
    """Whether formats beside karat's own are known, which may read differently what karat's own could."""
    if _order is None:
        formats()
    return bool(_added)


def list_formats() -> list[str]:
    """The names of all formats, in the order in which they are tried."""
    return [format.name for format in formats()]


def formats() -> list[Format]:
    """All formats, in the order in which they are tried."""
    global _order
    if _order is None:
        load_plugins()
        own: list[Format] = [importlib.import_module(f"karat.traces.{name}") for name in BUILTIN]
        _order = [*_added.values(), *own]
    return _order
