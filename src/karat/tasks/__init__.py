"""Tasks: what is measured. A function, a callable object, a prompt, or recorded outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.errors import RequestError, UnknownName, nearest
from karat.lazy import exports
from karat.registry import Registry
from karat.tasks.function import Context as Context
from karat.tasks.function import FunctionTask as FunctionTask
from karat.tasks.function import Task as Task

if TYPE_CHECKING:
    from karat.keys import code_fingerprint as code_fingerprint
    from karat.keys import may_ask_models as may_ask_models
    from karat.keys import source_file as source_file
    from karat.keys import task_code as task_code
    from karat.tasks.prompt import PromptTask as PromptTask
    from karat.tasks.recorded import RecordedOutputs as RecordedOutputs
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "prompt": "PromptTask",
            "recorded": "RecordedOutputs",
            "karat.keys": "code_fingerprint may_ask_models source_file task_code",
        },
        "Context",
        "FunctionTask",
        "Task",
        "as_task",
        "tasks",
    )


tasks: Registry[Any] = Registry("task")


def as_task(given: object) -> Task:
    """A task from a task, a function, a callable object, or `module.function` / `file.py:function`."""
    if isinstance(given, Task):
        return given
    if isinstance(given, str):
        if given.endswith((".yaml", ".yml")):
            raise RequestError(
                f"{given} is an experiment or a graph: call karat.experiment({given!r}), or load_task of karat.graph"
            )
        try:
            return as_task(tasks.get(given))
        except UnknownName:
            if ":" in given or "." in given or nearest(given, tasks.list()):
                raise
            raise UnknownName(
                f"unknown task {given!r}: give a function, file.py:function or package.module.function"
            ) from None
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
