"""The functions of a task: the bases they may inherit from, and how each written form is called.

A function, a class with `apply` (static, class or instance method) and an object with `__call__` all become one
callable. What they are called with follows from how many parameters they take.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from karat.errors import FAILURES, RequestError

if TYPE_CHECKING:
    from karat.graph._state import SygraMessage, SygraState


class LambdaFunction(ABC):
    """A lambda node as a class: `apply` gets the node's keys and the state, and returns what it adds to it."""

    @staticmethod
    @abstractmethod
    def apply(lambda_node_dict: dict[str, Any], state: SygraState) -> Any:
        """The state with what the node adds, or a mapping of it."""


class AsyncLambdaFunction(ABC):
    """A lambda function that is awaited."""

    @staticmethod
    @abstractmethod
    async def apply(lambda_node_dict: dict[str, Any], state: SygraState) -> Any:
        """The state with what the node adds, or a mapping of it."""


class NodePreProcessor(ABC):
    """Base of a function that prepares the state before the prompt of a node is filled."""

    @abstractmethod
    def apply(self, state: SygraState) -> Any:
        """The state, or a mapping of what changes."""


class NodePostProcessor(ABC):
    """Base of a function that reads a model's reply."""

    @abstractmethod
    def apply(self, resp: SygraMessage) -> Any:
        """A mapping of what goes into the state."""


class NodePostProcessorWithState(ABC):
    """Base of a function that reads a model's reply and the state."""

    @abstractmethod
    def apply(self, resp: SygraMessage, state: SygraState) -> Any:
        """The state, or a mapping of what goes into it."""


class EdgeCondition(ABC):
    """Base of a function that decides where a record goes next."""

    @staticmethod
    @abstractmethod
    def apply(state: SygraState) -> str:
        """A key of the edge's `path_map`."""


class Applied:
    """A task's function, wrapped so that it is called with as many arguments as it accepts."""

    def __init__(self, part: object, call: Callable[..., Any], most: int) -> None:
        self.part = part
        """What was named, for the fingerprint of the code."""
        self.call = call
        self.is_async = is_async(call)
        self.takes = positional(call, most)
        check_enough(call, self.takes)

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments[: self.takes])


def applied(part: object, most: int, what: str) -> Applied:
    """A function, a class with `apply`, or an object with `apply` or `__call__`, as a callable."""
    if isinstance(part, type):
        if not callable(getattr(part, "apply", None)):
            raise RequestError(f"{what}: {part.__qualname__} has no method apply")
        return Applied(part, _apply_of(part), most)
    method = getattr(part, "apply", None)
    if callable(method):
        return Applied(part, method, most)
    if callable(part):
        return Applied(part, part, most)
    raise RequestError(f"{what}: {part!r:.80} is neither a function nor a class with apply")


def _apply_of(part: type) -> Callable[..., Any]:
    """`apply` of a class: as it is where it needs no instance, else of an instance made without arguments.

    Tasks in the wild write `def apply(lambda_node_dict, state)` without @staticmethod: the first parameter's name
    tells it from a method.
    """
    written = inspect.getattr_static(part, "apply")
    if isinstance(written, (staticmethod, classmethod)):
        return getattr(part, "apply")  # type: ignore[no-any-return]  # noqa: B009 - of any class
    names = list(inspect.signature(written).parameters)
    if names and names[0] != "self":
        return written  # type: ignore[no-any-return]  # a plain function
    try:
        made = part()
    except FAILURES as error:
        raise RequestError(f"{part.__qualname__} cannot be constructed without arguments: {error}") from error
    return made.apply  # type: ignore[no-any-return]  # looked up by the caller


def is_async(function: object) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - its kind is asked for, not whether it is there
    )


def check_enough(function: Callable[..., Any], count: int) -> None:
    """Refuse a function that needs more than `count` positional arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise RequestError(
            f"{getattr(function, '__qualname__', function)!s:.80} needs more than the {count} it is given: {error}"
        ) from None


def positional(function: Callable[..., Any], most: int) -> int:
    """The number of positional arguments that a function takes, up to `most`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return most
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return most
    return min(most, sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters))
