"""Tools: Python functions that a model may call, described to it by their signatures."""

from __future__ import annotations

import inspect
import time
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from karat.errors import FAILURES, KaratError, RequestError
from karat.graph._reading import Section
from karat.graph.nodes._base import Building
from karat.models import record_tool_call

_JSON = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
LONGEST_RESULT = 100_000

F = TypeVar("F", bound=Callable[..., Any])


class Tool:
    """A function with the description a model gets of it."""

    def __init__(self, function: Any) -> None:
        # what langchain's @tool makes of a function keeps the function inside
        self.function = getattr(function, "func", None) or getattr(function, "coroutine", None) or function
        self.name = str(getattr(function, "name", "") or self.function.__name__)
        self.described = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": (inspect.getdoc(self.function) or self.name)[:1000],
                "parameters": _parameters(self.function),
            },
        }

    async def call(self, arguments: object) -> str:
        """The tool message for the model: the result as text, or the error. Both go into the trace."""
        start = time.perf_counter()
        try:
            if not isinstance(arguments, dict):
                raise TypeError(f"the arguments are not a JSON object: {str(arguments)[:200]}")
            result = self.function(**arguments)
            if inspect.isawaitable(result):
                result = await result
        except FAILURES as error:
            record_tool_call(self.name, arguments, None, error, time.perf_counter() - start)
            return f"error: {type(error).__name__}: {error}"[:LONGEST_RESULT]
        text = result if isinstance(result, str) else _result_text(result)
        record_tool_call(self.name, arguments, text[:LONGEST_RESULT], None, time.perf_counter() - start)
        return text[:LONGEST_RESULT]


def _result_text(value: Any) -> str:
    from karat.serialization import encode

    try:
        return encode(value).decode()
    except KaratError:
        return str(value)


def _parameters(function: Any) -> dict[str, Any]:
    """The JSON Schema of a function's parameters."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:
        hints = {}
    properties: dict[str, Any] = {}
    needed = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in ("self", "cls"):
            continue
        properties[name] = _schema(hints.get(name))
        if parameter.default is parameter.empty:
            needed.append(name)
    return {"type": "object", "properties": properties, "required": needed}


def _schema(hint: Any) -> dict[str, Any]:
    if hint in _JSON:
        return {"type": _JSON[hint]}
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(inside)}
    if origin is list:
        return {"type": "array", "items": _schema(inside[0])}
    if origin is dict:
        return {"type": "object"}
    if origin in (typing.Union, types.UnionType):
        kinds = [_schema(each) for each in inside if each is not type(None)]
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return {}


def read_tools(section: Section, building: Building) -> list[Tool]:
    """The tools a node names: functions, or all public functions of a module or of a class."""
    found: dict[str, Tool] = {}
    for at, path in enumerate(section.texts("tools")):
        try:
            for function in _functions(building.place.load_module(path)):
                tool = Tool(function)
                if tool.name in found:
                    section.problem(f"there are two tools {tool.name!r}: give one another name", "tools", at)
                found[tool.name] = tool
        except KaratError as error:
            section.problems.caught((*section.place, "tools", at), error)
    return list(found.values())


def marked(function: F, name: str | None = None) -> F:
    """Mark a function as a tool; a module or class with marked functions offers only those."""
    inside: Any = getattr(function, "__func__", function)  # of a static or class method
    inside.is_tool = True
    if name:
        inside.name = name
    return function


def _is_wrapped(part: Any) -> bool:
    return hasattr(part, "func") or hasattr(part, "coroutine")


def _is_marked(part: Any) -> bool:
    """Whether it is decorated with `@tool`, karat's or LangChain's (which wraps the function)."""
    return _is_wrapped(part) or getattr(getattr(part, "__func__", part), "is_tool", False) is True


def _functions(part: Any) -> list[Any]:
    """The tools that a part is or has, as functions that take what the model gives."""
    if isinstance(part, type):
        return _methods(part)
    if not isinstance(part, types.ModuleType):
        return [part]
    public = [v for k, v in vars(part).items() if not k.startswith("_") and not isinstance(v, type)]
    own = [
        v
        for v in public
        if _is_wrapped(v) or (callable(v) and getattr(v, "__module__", None) == part.__name__)
    ]
    return [v for v in own if _is_marked(v)] or own


def _methods(part: type) -> list[Any]:
    """The tools of a class: its methods, those written without `self` too, or what its `get_tools` gives."""

    def made() -> Any:
        try:
            return part()
        except TypeError as error:
            raise RequestError(
                f"{part.__qualname__} cannot be constructed without arguments: {error}"
            ) from error

    if callable(getattr(part, "get_tools", None)):
        return list(made().get_tools())
    written = {k: v for base in reversed(part.__mro__[:-1]) for k, v in vars(base).items() if k[0] != "_"}
    kinds = (types.FunctionType, staticmethod, classmethod)
    found = {k: v for k, v in written.items() if isinstance(v, kinds) or _is_wrapped(v)}
    out = []
    for name, method in ({k: v for k, v in found.items() if _is_marked(v)} or found).items():
        if not isinstance(method, types.FunctionType):
            out.append(getattr(part, name))
        elif next(iter(inspect.signature(method).parameters), "") == "self":
            out.append(getattr(made(), name))
        else:
            out.append(method)  # as a static one, though nothing says so
    return out
