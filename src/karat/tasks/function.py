"""The contract of a task, and a Python function, or an object with `__call__`, as a task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from karat.errors import RequestError, field_name, wording
from karat.keys import json_or_types, may_ask_models, source_file, task_code
from karat.records import Example, Output, Value
from karat.serialization import annotations_of, converter


class Context(msgspec.Struct, frozen=True):
    """The details of a call, for tasks with a parameter `context`."""

    run: str
    example: Example
    attempt: int
    replicate: int
    parameters: dict[str, Any]
    done: Mapping[str, Output] = {}
    """Units of this example that are stored and are not computed again, for a task that yields units."""


class Task:
    """Base class of tasks: override `call` or, with `is_async = True`, `call_async`.

    A task whose examples have several outputs sets `units_declared = True`, names them with `units`, and either returns
    a mapping of unit to output from `call`, or overrides `call_units` to have each unit stored as soon as it is
    complete.
    """

    name: str = "task"
    is_async: bool = False
    units_declared: bool = False
    names_models: bool = False
    """Whether `configuration` names every model it asks; then its fingerprint leaves out variables like KARAT_MODEL."""

    def call(self, example: Example, context: Context) -> Any:
        """Return the output for an example. Runs in a thread."""
        raise TypeError(f"task {self.name!r} has no call")

    async def call_async(self, example: Example, context: Context) -> Any:
        """Return the output for an example. Runs on the event loop."""
        raise TypeError(f"task {self.name!r} has no call_async")

    def call_units(self, example: Example, context: Context) -> Any:
        """Yield `(unit, output)` pairs; with `is_async = True`, this is an async generator.

        Each unit is committed before the generator goes on. An exception in place of an output is the failure of
        that unit alone. If the generator raises, the units that it has not yielded fail, and the others are kept. When
        the run is continued, `context.done` has the units that are stored: skip them. A unit that is yielded although
        it is stored already is ignored, so a task that cannot continue in the middle may start again from its first.
        """
        raise TypeError(f"task {self.name!r} has no call_units")

    def units(self, example: Example) -> list[str]:
        """Return the names of the units of an example; most tasks have one unnamed unit."""
        return [""]

    def check_inputs(self, examples: Iterable[Example]) -> list[str]:
        """Return why an output can be made of none of these examples; an empty list where one may succeed.

        The stage asks before the first record, and refuses the run: the same mistake would fail every record.
        """
        return []

    def summarize(self, example: Example, unit: str, output: Value) -> Mapping[str, str]:
        """Return texts that tables show for a unit in place of `input`, `expected` and `output`.

        For a task whose values are too long to read in a table. `output` is None for a unit that failed.
        """
        return {}

    def timeout_error(self, example: Example, attempt: int, seconds: float) -> BaseException | None:
        """Return a more precise error for an example that timed out, or None."""
        return None

    def storage_error(self, output: object, error: RequestError) -> BaseException:
        """Return what is recorded for an output that cannot be stored: this error, or a more precise one."""
        return error

    def configuration(self) -> Any:
        """Return the configuration that the outputs depend on, as JSON-able values."""
        return {"task": self.name}

    def code(self) -> str | None:
        """Return a fingerprint of the code that the outputs depend on; None if it cannot be known."""
        return task_code(self)

    def source(self) -> str:
        """Return the path of the file with the task's code; empty where there is none.

        Tasks of the same name in two files are two tasks (docs/keys.md).
        """
        return source_file(self)

    def remark(self, ids: Iterable[str], attempts: int) -> str:
        """Return a notice for the user about this task and these examples, such as unused recorded outputs."""
        return ""

    def close(self) -> None:
        """Release resources. The stage calls it when the run ends."""


ASKED = ("example", "attempt", "context")
PLAIN: dict[Any, type | tuple[type, ...]] = {
    str: str, int: int, float: (int, float), bool: bool, list: list, dict: dict
}  # fmt: skip
"""Annotations that need no conversion, and the values that fit them."""


class FunctionTask(Task):
    """A function as a task: it gets the example's input and, by parameter name, `example`, `attempt`, `context`.

    The input is decoded to the type its first parameter annotates. `parameters` are passed by keyword and
    are part of the configuration. A parameter `model` that is not given gets the name of the default model.
    `default_model` is what `karat.models.get()` without a spec means inside of the function.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        parameters: dict[str, Any] | None = None,
        default_model: str | None = None,
    ) -> None:
        self.function = function
        self.default_model = default_model
        self.parameters = parameters or {}
        self.name = name or _name(function)
        self.is_async = _is_async(function)
        if _yields(function):
            raise RequestError(f"task {self.name!r} is a generator: return the output instead of yielding it")
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            signature = None
        self._first: str | None = None
        """The parameter that gets the input; None where the function asks for the example instead."""
        self._by_keyword = False
        """Whether the input is passed by keyword: other parameters stand before its own."""
        self._wants_model = False
        self._asked: list[str] = []
        if signature is not None:
            self._read_signature(signature)
        self._convert = converter(annotations_of(function).get(self._first or ""))

    def _read_signature(self, signature: inspect.Signature) -> None:
        for place, parameter in enumerate(signature.parameters.values()):
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            has_default = parameter.default is not parameter.empty
            if parameter.name in ASKED:
                self._asked.append(parameter.name)
            elif parameter.name in self.parameters:
                continue
            elif self._first is None and not (
                has_default and (self._asked or parameter.kind is parameter.KEYWORD_ONLY)
            ):
                self._first = parameter.name
                self._by_keyword = place > 0 or parameter.kind is parameter.KEYWORD_ONLY
            elif has_default:
                continue
            elif parameter.name == "model":
                self._wants_model = True
            elif self._first == "self" and not self._by_keyword:
                raise RequestError(
                    f"task {self.name!r} is a method, called without an object: give the method of an object"
                    " (object.method), or a class with __call__"
                )
            else:
                raise RequestError(
                    f"task {self.name!r} asks for {parameter.name!r}: a task gets the example's input and,"
                    f" by name, {', '.join(ASKED)}; anything else needs a default or parameters={{…}}"
                )
        takes_any = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
        if self._first is None and not self._asked and not takes_any:
            raise RequestError(f"task {self.name!r} takes no parameter: it must take the example's input")
        known = set(signature.parameters)
        takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        for name in self.parameters:
            if name not in known and not takes_all:
                raise RequestError(f"task {self.name!r} has no parameter {name!r}")

    def check_inputs(self, examples: Iterable[Example]) -> list[str]:
        first: Example | None = None
        for example in examples:
            if self._misfit(example) is None:
                return []
            first = first or example
        if first is None:
            return []
        rows = isinstance(first.input, dict)
        where = f"with {wording('--input', 'input=')}, or input: in an experiment"
        fix = f"name {'the' if rows else 'another'} field {where}"
        fix += f" (one of {', '.join(map(field_name, list(first.input)[:10]))})" if rows else ""
        fix += f", or annotate {self._first} with the type of the input"
        return [f"example {first.id!r}: {self._misfit(first)}; {fix}"]

    def _misfit(self, example: Example) -> str | None:
        """Why the example's input does not fit the first parameter; None where it fits.

        A whole row does not fit a parameter without annotation that is named like one of the row's fields.
        """
        wanted = annotations_of(self.function).get(self._first or "")
        row = example.input
        if wanted is None and isinstance(row, dict) and len(row) > 1 and self._first in row:
            return f"{self.name}() takes {self._first!r}, but the input is the whole row"
        try:
            if self._convert is not None:
                self._convert(example.input)
            elif wanted in PLAIN and not isinstance(example.input, PLAIN[wanted]):
                found, fits = type(example.input).__name__, getattr(wanted, "__name__", wanted)
                return f"{self.name}() takes {self._first}: {fits}, but the input is {found}"
        except Exception as error:
            return f"the input does not fit the parameter {self._first!r} of {self.name}(): {error}"
        return None

    def call(self, example: Example, context: Context) -> Any:
        if self.default_model is None:
            return self._call(example, context)
        from karat.models._recording import default_model

        with default_model(self.default_model):
            return self._call(example, context)

    def _call(self, example: Example, context: Context) -> Any:
        value = example.input if self._convert is None else self._convert(example.input)
        if not self._asked and not self.parameters and not self._by_keyword:
            return self.function(value)
        keywords = self._keywords(example, context)
        if self._first is None and self._asked:
            return self.function(**keywords)
        if self._by_keyword and self._first is not None:
            return self.function(**keywords, **{self._first: value})
        return self.function(value, **keywords)

    async def call_async(self, example: Example, context: Context) -> Any:
        if self.default_model is None:
            return await self._call(example, context)
        from karat.models._recording import default_model

        with default_model(self.default_model):
            return await self._call(example, context)

    def _keywords(self, example: Example, context: Context) -> dict[str, Any]:
        have = {"example": example, "attempt": context.attempt, "context": context}
        return {**self.parameters, **{name: have[name] for name in self._asked}}

    def configuration(self) -> Any:
        if self._wants_model:
            from karat.models._endpoints import default_spec

            self.parameters = {**self.parameters, "model": default_spec()}
            self._wants_model = False
        function = self.function
        extra: dict[str, Any] = {}
        if self.default_model is not None:
            extra["default_model"] = self.default_model
        if isinstance(function, functools.partial):
            extra |= {"args": json_or_types(function.args), "keywords": json_or_types(function.keywords)}
        elif not inspect.isroutine(function):
            extra |= {"attributes": json_or_types(getattr(function, "__dict__", {}))}
        return {"task": self.name, "parameters": json_or_types(self.parameters), **extra}

    def code(self) -> str | None:
        return task_code(self.function)

    def source(self) -> str:
        return source_file(self.function)

    @property
    def names_models(self) -> bool:  # type: ignore[override]  # a class attribute of the base, decided here per function
        return not may_ask_models(self.function)


def _name(function: Any) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    target = function if hasattr(function, "__qualname__") else type(function)
    return str(target.__qualname__).replace("<locals>.", "")


def _is_async(function: Any) -> bool:
    return any(map(inspect.iscoroutinefunction, _function_behind(function)))


def _yields(function: Any) -> bool:
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in _function_behind(function)
    )


def _function_behind(function: Any) -> tuple[Any, ...]:
    """The code behind a callable: a function, that of a partial, the `__call__` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return (function, type(function).__call__) if callable(function) else (function,)
