"""The local engine: worker coroutines for async work, threads in chunks for sync work.

Memory depends on concurrency, not on the number of items: an item is taken when a slot is free, and a slot is
free again when what came of its item has been delivered, that is, committed.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Generic

from karat.engines import Done, Item, Work, engines
from karat.engines.threads import Threads
from karat.errors import Stopped

CHUNK_SECONDS = 0.005
"""Sync work is sent to threads in chunks of about this long: crossing to a thread costs some 100 µs."""

PATIENCE_SECONDS = 5.0
"""How long async code may take to clean up when it is cancelled."""


@engines.register("local")
class LocalEngine(Generic[Item, Done]):
    """Work on this machine, in this process."""

    def __init__(self, concurrency: int, timeout: float | None = None) -> None:
        self.concurrency = concurrency
        self.timeout = timeout
        self.abandoned = 0
        """Threads that could not be stopped when their time was up."""
        self._stop = False

    def stop(self) -> None:
        """No further item is started; those under way are finished and delivered."""
        self._stop = True

    async def map(
        self,
        work: Work[Item, Done],
        items: Iterator[Item],
        deliver: Callable[[Sequence[tuple[Item, Done]]], Awaitable[None]],
    ) -> None:
        """Does the work of every item; `deliver` gets what is done and returns when it is kept."""
        lane = self._async_lane if work.is_async else self._thread_lane
        if work.is_async:
            workers = [asyncio.ensure_future(lane(work, items, deliver)) for _ in range(self.concurrency)]
        else:
            workers = [asyncio.ensure_future(lane(work, items, deliver))]
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            if any(worker.exception() for worker in done):
                self._stop = True
                await asyncio.wait(workers)
        except asyncio.CancelledError:
            await self._cancel(workers)
            raise
        errors = [error for worker in workers if (error := worker.exception())]
        for error in errors:
            if isinstance(error, Stopped):
                raise error
        if errors:
            raise errors[0]

    async def _cancel(self, workers: Sequence[asyncio.Task[None]]) -> None:
        """Cancels, and waits a while. Code that swallows its cancellation is left behind, as a stuck thread is."""
        self.stop()
        for worker in workers:
            worker.cancel()
        done, stuck = await asyncio.wait(workers, timeout=PATIENCE_SECONDS)
        for worker in done:
            if not worker.cancelled():
                worker.exception()  # retrieved: the cancellation is what is told
        for worker in stuck:
            asyncio.tasks._unregister_task(worker)  # or `asyncio.run` would wait for it for ever

    async def _async_lane(
        self,
        work: Work[Item, Done],
        items: Iterator[Item],
        deliver: Callable[[Sequence[tuple[Item, Done]]], Awaitable[None]],
    ) -> None:
        timeout = self.timeout
        for item in items:
            if self._stop:
                return
            if timeout is None:
                done = await work.call_async(item)
            else:
                try:
                    async with asyncio.timeout(timeout) as deadline:
                        done = await work.call_async(item)
                except TimeoutError:
                    if not deadline.expired():
                        raise
                    done = work.timed_out(item, timeout)
            await deliver(((item, done),))
            if self._stop:
                return

    async def _thread_lane(
        self,
        work: Work[Item, Done],
        items: Iterator[Item],
        deliver: Callable[[Sequence[tuple[Item, Done]]], Awaitable[None]],
    ) -> None:
        """Chunks grow while calls are quick, so that a call of 1 µs does not cost 100 µs of crossing."""
        threads = Threads()
        under_way: dict[asyncio.Task[float], int] = {}
        size = 1
        try:
            while not self._stop:
                free = self.concurrency - sum(under_way.values())
                chunk = list(islice(items, min(size, free)))
                if not chunk:
                    break
                task = asyncio.ensure_future(self._chunk(work, chunk, threads, deliver))
                under_way[task] = len(chunk)
                if sum(under_way.values()) + size > self.concurrency:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(0)
                for task in [task for task in under_way if task.done()]:
                    seconds = task.result() / under_way.pop(task)
                    size = max(1, min(int(CHUNK_SECONDS / (seconds + 1e-9)), self.concurrency // 2, size * 2))
            for task in under_way:
                await task
        except asyncio.CancelledError:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            raise
        except BaseException:
            await asyncio.gather(*under_way, return_exceptions=True)
            raise
        finally:
            threads.close()

    async def _chunk(
        self,
        work: Work[Item, Done],
        chunk: list[Item],
        threads: Threads,
        deliver: Callable[[Sequence[tuple[Item, Done]]], Awaitable[None]],
    ) -> float:
        """Does a chunk, delivers it, and says how long the calls took."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        if self.timeout is None:
            done = await threads.submit(lambda: [(item, work.call(item)) for item in chunk])
            seconds = loop.time() - start
            await deliver(done)
            return seconds
        for item in chunk:
            future = threads.submit(functools.partial(work.call, item))
            finished, _ = await asyncio.wait([future], timeout=self.timeout)
            if finished:
                await deliver(((item, future.result()),))
            else:
                future.cancel()
                self.abandoned += 1
                await deliver(((item, work.timed_out(item, self.timeout)),))
        return max(loop.time() - start, CHUNK_SECONDS * len(chunk))
