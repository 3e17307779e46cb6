"""The synchronous twins of async functions: errors about arguments, and code that ignores its cancellation."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import karat
from karat import sync
from karat.execution.engines import in_thread
from karat.graph.nodes._plain import LambdaNode
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


def test_a_process_ends_with_work_left_in_it():
    """Closing that coroutine, as Python does with what it collects, would take for ever."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


def test_a_misspelt_argument_names_the_function_and_the_nearest_one(refuses) -> None:
    with refuses(TypeError):
        karat.run(len, [], concurency=3)  # type: ignore[call-arg]  # wrong on purpose


def test_a_missing_argument_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"^run\(\) missing 1 required positional argument: 'dataset'$"):
        karat.run(len)  # type: ignore[call-arg]  # wrong on purpose


NOTHING: Any = None


def _of_the_user():
    return next(iter(()))


class _Judge(karat.Evaluator):
    name = "own"

    def evaluate(self, **_):
        return _of_the_user()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: in_thread(_of_the_user),
        lambda: _Judge().evaluate_async(outputs=1),
        lambda: LambdaNode("n", lambda state: _of_the_user(), None, [], blocking=True).run_async(
            NOTHING, NOTHING
        ),
    ],
    ids=["stage", "evaluator", "node"],
)
def test_code_in_a_thread_that_raises_stop_iteration_fails_and_is_not_waited_for(ask):
    async def main():
        await asyncio.wait_for(ask(), 10)

    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        asyncio.run(main())
    assert "_of_the_user" in [entry.name for entry in raised.traceback]
