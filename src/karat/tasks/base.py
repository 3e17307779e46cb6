"""The contract of a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from karat.records import Example, Output


class Context(msgspec.Struct, frozen=True):
    """What a task may know about the call beside its input, when it asks for `context`."""

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

    def summarize(self, example: Example, unit: str, output: Any) -> Mapping[str, str]:
        """Return texts that tables show for a unit in place of `input`, `expected` and `output`.

        For a task whose values are too long to read in a table. `output` is None for a unit that failed.
        """
        return {}

    def timeout_error(self, example: Example, attempt: int, seconds: float) -> BaseException | None:
        """Return a more precise error for an example that timed out, or None."""
        return None

    def configuration(self) -> Any:
        """Return the configuration that the outputs depend on, as JSON-able values."""
        return {"task": self.name}

    def code(self) -> str | None:
        """Return a fingerprint of the code that the outputs depend on; None if it cannot be known."""
        from karat.keys import code_fingerprint

        return code_fingerprint(self)

    def remark(self, ids: Iterable[str], attempts: int) -> str:
        """Return a notice for the user about this task and these examples, such as unused recorded outputs."""
        return ""

    def close(self) -> None:
        """Release resources. The stage calls it when the run ends."""
