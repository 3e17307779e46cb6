"""The interface of engines, which do the work of a stage, and their registry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from karat.registry import Registry

Item = TypeVar("Item")
Done = TypeVar("Done")
_Item = TypeVar("_Item", contravariant=True)
_Done = TypeVar("_Done", covariant=True)


class Work(Protocol[_Item, _Done]):
    """The work on an item. A failure is part of what it returns; an exception stops the stage."""

    is_async: bool

    async def call_async(self, item: _Item) -> _Done:
        """Do the work on the event loop."""

    def call(self, item: _Item) -> _Done:
        """Do the work in a thread."""

    def timed_out(self, item: _Item, seconds: float) -> _Done:
        """The outcome of an item that timed out."""


class Engine(Protocol[Item, Done]):
    """Maps work over items with bounded queues; a slot is free when the outcome of its item is delivered."""

    concurrency: int
    abandoned: int

    def stop(self) -> None:
        """Start no further item; those in progress are finished and delivered."""

    async def map(
        self,
        work: Work[Item, Done],
        items: Iterator[Item],
        deliver: Callable[[Sequence[tuple[Item, Done]]], Awaitable[None]],
    ) -> None:
        """Do the work of every item; `deliver` gets finished items and returns when they are stored."""


engines: Registry[Callable[[int, float | None], Engine[Any, Any]]] = Registry(
    "engine", builtin=["karat.execution.local"]
)
