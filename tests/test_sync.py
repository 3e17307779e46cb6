"""The synchronous twins of async functions: errors about arguments, and code that ignores its cancellation."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import karat
from karat import sync
from karat.sync import abandon


def test_a_loop_ends_without_abandoned_tasks(monkeypatch):
    monkeypatch.setattr(sync, "_abandoned", set())  # other tests have nothing to do with it

    async def main() -> asyncio.Task[None]:
        async def for_ever() -> None:
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    continue

        task = asyncio.ensure_future(for_ever())
        await asyncio.sleep(0)
        abandon([task])
        return task

    task = asyncio.run(main())
    assert not task.done()
    assert sync._abandoned


async def test_an_abandoned_task_that_ends_is_dropped():
    task = asyncio.ensure_future(asyncio.sleep(0))
    abandon([task])
    assert task in sync._abandoned
    await task
    await asyncio.sleep(0)
    assert task not in sync._abandoned


SCRIPT = """
import asyncio
from karat.sync import abandon

async def for_ever():
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            pass

async def main():
    task = asyncio.ensure_future(for_ever())
    await asyncio.sleep(0)
    abandon([task])

asyncio.run(main())
print("over")
"""


def test_a_process_ends_whatever_is_left_in_it():
    """Closing that coroutine, as Python does with what it collects, would take for ever."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


def test_a_misspelt_argument_names_the_function_and_the_nearest_one() -> None:
    with pytest.raises(
        TypeError, match=r"^run\(\) got an unexpected .*'concurency': did you mean 'concurrency'\?$"
    ):
        karat.run(len, [], concurency=3)  # type: ignore[call-arg]  # wrong on purpose


def test_a_missing_argument_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"^run\(\) missing 1 required positional argument: 'dataset'$"):
        karat.run(len)  # type: ignore[call-arg]  # wrong on purpose
