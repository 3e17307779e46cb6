"""Tasks: what is measured. A function, a callable object, a prompt, or recorded outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.errors import RequestError
from karat.lazy import load
from karat.registry import Registry
from karat.tasks.function import Context, FunctionTask, Task

if TYPE_CHECKING:
    from karat.keys import code_fingerprint, may_ask_models
    from karat.tasks.prompt import PromptTask
    from karat.tasks.recorded import RecordedOutputs

_WHERE = {
    "PromptTask": "prompt",
    "RecordedOutputs": "recorded",
    "code_fingerprint": "karat.keys",
    "may_ask_models": "karat.keys",
}

__all__ = [
    "Context",
    "FunctionTask",
    "PromptTask",
    "RecordedOutputs",
    "Task",
    "as_task",
    "code_fingerprint",
    "may_ask_models",
    "tasks",
]


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


tasks: Registry[Any] = Registry("task")


def as_task(given: object) -> Task:
    """A task from a task, a function, a callable object, or `module.function` / `file.py:function`."""
    if isinstance(given, Task):
        return given
    if isinstance(given, str):
        return as_task(tasks.get(given))
    if isinstance(given, type):
        try:
            return as_task(given())
        except TypeError as error:
            raise RequestError(
                f"task {given.__qualname__} cannot be created without parameters: {error}"
            ) from error
    if callable(given):
        return FunctionTask(given)
    raise RequestError(
        f"{given!r} is not a task: give a function, an object with __call__, or file.py:function"
    )
