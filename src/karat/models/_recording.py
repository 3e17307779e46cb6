"""The record of a task's or judge's model and tool calls: a context variable, and a list of calls.

A stage enters `recording(…)` around the work of one item. Calls made inside, in the same task, in tasks it
starts or in threads that carry its context, are appended in the order in which they began.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, get_args

import msgspec

from karat.errors import RequestError, Stopped
from karat.records import Call, Usage, add_usage
from karat.redaction import of_environment

if TYPE_CHECKING:
    import asyncio

    from karat.models._prices import Budget

CacheMode = Literal["use", "refresh", "off"]
"""`use` kept answers; `refresh` them (ask again, keep the new ones); `off`: neither read nor keep."""


Permission = Callable[[], Awaitable[None] | None]
"""Asked before each request to a model is sent. It raises to forbid it, and may be a coroutine function."""


def cache_mode(given: str) -> CacheMode:
    """A way of using kept answers by its name."""
    if given not in (modes := get_args(CacheMode)):
        raise RequestError(f"cache is {given!r}: it must be one of {', '.join(map(repr, modes))}")
    return cast(CacheMode, given)


P = ParamSpec("P")
T = TypeVar("T")


_counting = threading.Lock()
"""Held while a call gets its place or its number: threads that carry the context of an item share its recording. One
for all of them, because a lock for each item would take longer to make than it is ever held."""


class recording(list[Call]):
    """A context manager and list that records the calls of one item.

    `example`, `attempt`, `replicate` and `scope` identify sampled replies in the cache: a stage sets `scope` to what
    else distinguishes two items (the unit, the evaluator's key). A call returns once its reply is in the journal of the
    cache. Where there is no journal (Windows), it returns once the reply is committed; if the item itself is `stored`,
    the next call of the item waits for that instead.
    `permit` is called before each request is sent, on karat's background loop, and may raise: a stage that has lost
    its lease makes no further call. With `batch`, calls are collected and sent by the provider's batch API.
    """

    # One is made for every record, so it is a plain list with slots: under a microsecond to enter and leave.
    __slots__ = (
        "_seen",
        "_spans",
        "_token",
        "attempt",
        "batch",
        "budget",
        "cache",
        "ended",
        "example",
        "permit",
        "plain_calls",
        "replicate",
        "scope",
        "stopped",
        "uncommitted",
    )

    def __init__(
        self,
        example: str | None = None,
        attempt: int = 1,
        replicate: int = 1,
        cache: CacheMode = "use",
        budget: Budget | None = None,
        scope: str = "",
        stored: bool = False,
        permit: Permission | None = None,
        batch: bool = False,
    ) -> None:
        self.example = example
        self.attempt = attempt
        self.replicate = replicate
        self.cache = cache
        self.budget = budget
        self.scope = scope
        self.permit = permit
        self.batch = batch
        self.uncommitted: list[asyncio.Future[None]] | None = [] if stored else None
        self.stopped: Stopped | None = None
        """What ended a call and has to end the stage too, also when the code that asked has caught it."""
        self.ended = False
        self.plain_calls = 0
        """Calls that hold texts and numbers only, so that storing them needs no check of their values."""
        self._seen: dict[bytes, int] | None = None
        self._spans: dict[int, tuple[float, float | None]] | None = None
        """When each model call began and ended, by its place."""
        self._token: Token[recording | None] | None = None

    def __enter__(self) -> recording:
        self._token = _current.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._token is not None
        outer = self._token.old_value
        _current.reset(self._token)
        self._token = None
        if self.stopped is not None:
            if isinstance(outer, recording):
                outer.stopped = self.stopped
            elif self.uncommitted is not None and exception[1] is not self.stopped:
                raise self.stopped

    def occurrence(self, request: bytes) -> int:
        """Return the occurrence number of this request in this item."""
        with _counting:
            if self._seen is None:
                self._seen = {}
            count = self._seen.get(request, 0) + 1
            self._seen[request] = count
            return count

    def begin(self, call: Call) -> int:
        """Reserve the place of a call that has begun, marked as unfinished until `finish` replaces it."""
        if self.ended and call.kind == "model":
            raise TimeoutError(f"{call.name} was not called: this item timed out")
        with _counting:
            place = len(self)
            self.append(call)
            if call.kind == "model":
                if self._spans is None:
                    self._spans = {}
                self._spans[place] = (time.perf_counter(), None)
        return place

    def finish(self, place: int, call: Call) -> None:
        """Fill the place of a call that has ended."""
        self[place] = call
        if self._spans is not None and place in self._spans:
            self._spans[place] = (self._spans[place][0], time.perf_counter())

    def queue_seconds(self, first: int = 0) -> float:
        """Seconds in which calls from the place `first` on were waiting and no other one was in service.

        Calls that wait at the same time count once, so this is never more than the time that has passed.
        """
        if self._spans is None:
            return 0.0
        if len(self._spans) == 1 and first == 0:  # as in most items
            ((place, (start, end)),) = self._spans.items()
            if end is not None:
                return round(max(0.0, min(end - start, self[place].queue_seconds)), 6)
        changes: list[tuple[float, int, int]] = []
        for place, (start, end) in self._spans.copy().items():  # threads of the item may still call
            if place >= first:
                over = time.perf_counter() if end is None else end
                served = min(over, start + self[place].queue_seconds)
                changes += ((start, 1, 0), (served, -1, 1), (over, 0, -1))
        changes.sort()
        waiting, serving, since, total = 0, 0, 0.0, 0.0
        for moment, waits, serves in changes:
            if waiting and not serving:
                total += moment - since
            waiting, serving, since = waiting + waits, serving + serves, moment
        return round(total, 6)

    def end(self) -> list[Call]:
        """The calls of an item whose time is up; code of it that cannot be stopped asks no model any more."""
        self.ended = True
        if self.stopped is not None:
            raise self.stopped
        return list(self)

    def usage(self) -> dict[str, Usage]:
        """Tokens and cost of the model calls so far, per model."""
        total: dict[str, Usage] = {}
        for call in self:
            if call.usage is not None:
                total = add_usage(total, {call.name: call.usage})
        return total


class RetryCounters:
    """Retries of this process so far, how many requests wait for one now, and which model is loaded: for progress."""

    retries = 0
    waiting = 0
    loading = ""
    """The local model that is being loaded now."""


counters = RetryCounters()


_default_model: ContextVar[str | None] = ContextVar("karat_default_model", default=None)


@contextmanager
def default_model(spec: str | None) -> Iterator[None]:
    """Make `get()` without a spec mean this model, in this task or thread, while it is entered."""
    token = _default_model.set(spec)
    try:
        yield
    finally:
        _default_model.reset(token)


sample: ContextVar[int] = ContextVar("karat_sample", default=0)
"""The number of an independent sample, part of the cache key: votes at temperature 0 are requests of their own."""

_current: ContextVar[recording | None] = ContextVar("karat_recording", default=None)


def current() -> recording | None:
    """The recording this code runs in, if any."""
    return _current.get()


def record_tool_call(
    name: str,
    arguments: object = None,
    result: object = None,
    error: str | BaseException | None = None,
    seconds: float = 0.0,
) -> None:
    """Add a tool call to the trace of the current item; does nothing outside of a stage."""
    calls = _current.get()
    if calls is not None:
        with _counting:
            calls.append(_tool_call(name, arguments, result, error, seconds))


def annotate(**metadata: Any) -> None:
    """Add metadata to the latest model call of the current item; does nothing outside of a stage."""
    calls = _current.get()
    for place in range(len(calls) - 1 if calls is not None else -1, -1, -1):
        assert calls is not None
        if calls[place].kind == "model":
            call = calls[place]
            calls.plain_calls = -1  # the metadata may be anything
            calls[place] = msgspec.structs.replace(call, metadata={**call.metadata, **metadata})
            return


def _tool_call(name: str, arguments: Any, result: Any, error: Any, seconds: float) -> Call:
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    if error:  # code of a tool may quote the key that it uses
        error = of_environment().in_text(str(error))
    if isinstance(arguments, Mapping):
        arguments = dict(arguments)
    return Call(kind="tool", name=name, input=arguments, output=result, error=error, seconds=seconds)


def tool(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator: each call of the function, plain or async, is recorded as a tool call."""
    name = getattr(function, "__name__", type(function).__name__)
    signature = inspect.signature(function)

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[recording, int, dict[str, Any]] | None:
        calls = _current.get()
        if calls is None:
            return None
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        return (
            calls,
            calls.begin(Call(kind="tool", name=name, input=arguments, error="unfinished")),
            arguments,
        )

    def finish(
        begun: tuple[recording, int, dict[str, Any]] | None, start: float, result: object, error: object
    ) -> None:
        if begun is not None:
            calls, place, arguments = begun
            calls.finish(place, _tool_call(name, arguments, result, error, time.perf_counter() - start))

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def recorded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            begun, start = begin(args, kwargs), time.perf_counter()
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                finish(begun, start, None, error)
                raise
            finish(begun, start, result, None)
            return result

        return cast("Callable[P, T]", recorded_async)

    @functools.wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> T:
        begun, start = begin(args, kwargs), time.perf_counter()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            finish(begun, start, None, error)
            raise
        finish(begun, start, result, None)
        return result

    return recorded
