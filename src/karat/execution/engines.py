"""Where a stage's work happens, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from karat.registry import Registry

Item = TypeVar("Item")
Done = TypeVar("Done")
_Item = TypeVar("_Item", contravariant=True)
_Done = TypeVar("_Done", covariant=True)


class Work(Protocol[_Item, _Done]):
    """What is done with an item. Failures are part of what it returns; what it raises stops the stage."""

    is_async: bool

    async def call_async(self, item: _Item) -> _Done:
        """Does it on the event loop."""

    def call(self, item: _Item) -> _Done:
        """Does it in a thread."""

    def timed_out(self, item: _Item, seconds: float) -> _Done:
        """What an item amounts to whose time is up."""


class Engine(Protocol[Item, Done]):
    """Maps work over items with bounded queues; a slot is free when what came of its item is delivered."""

    concurrency: int
    abandoned: int

    def stop(self) -> None:
        """No further item is started; those under way are finished and delivered."""

    async def map(
        self,
        work: Work[Item, Done],
        items: Iterator[Item],
        deliver: Callable[[Sequence[tuple[Item, Done]]], Awaitable[None]],
    ) -> None:
        """Does the work of every item; `deliver` gets what is done and returns when it is kept."""


engines: Registry[Callable[[int, float | None], Engine[Any, Any]]] = Registry(
    "engine", builtin=["karat.execution.local"]
)
