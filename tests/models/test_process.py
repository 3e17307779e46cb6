"""The background loop: started when needed, shared, ended cleanly, no trouble after a fork, light to import."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
import textwrap
import threading

import pytest

from karat import models
from karat.errors import RequestError
from karat.models._runtime import Background


def python(script, *arguments):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stderr
    return run.stdout.split()


def test_importing_is_light():
    heavy = python("""
        import sys
        import karat.models
        from karat.models import get, recording, Budget
        get("m@http://127.0.0.1:1/v1")
        heavy = ("aiohttp", "numpy", "pydantic", "yaml", "jsonschema", "xllamacpp", "wordllama")
        print(*[name for name in heavy if name in sys.modules])
    """)
    assert heavy == []


def test_every_public_name_can_be_had():
    for name in models.__all__:
        assert getattr(models, name) is not None
    assert set(models.__all__) <= set(dir(models))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        models.nothing  # noqa: B018


def test_a_process_exits_after_calls(provider):
    assert python(
        """
        import sys
        from karat import models
        print(models.get(sys.argv[1]).generate_sync("bye").text)
        """,
        provider.spec(),
    ) == ["bye"]


def test_a_process_ends_although_a_call_hangs(provider):
    provider.latency = 600
    assert python(
        """
        import sys, threading, time
        from karat import models
        model = models.get(sys.argv[1])
        def ask():
            try:
                model.generate_sync("never")
            except BaseException:
                pass
        threading.Thread(target=ask, daemon=True).start()
        while not models._runtime.shared().background._tasks:
            time.sleep(0.01)
        print("ends")
        """,
        provider.spec(),
    ) == ["ends"]


def test_a_forked_child_makes_its_own_calls(provider):
    assert python(
        """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from karat import models
        model = models.get(sys.argv[1])
        model.generate_sync("parent")
        child = os.fork()
        if child == 0:
            ok = model.generate_sync("child").text == "child"
            models.close()
            os._exit(0 if ok else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(model.generate_sync("again").text)
        """,
        provider.spec(),
    ) == ["0", "again"]


async def test_close_and_go_on(provider):
    model = models.get(provider.spec())
    await model.generate("one")
    await models.aclose()
    assert (await model.generate("two")).text == "two"
    models.close()
    models.close()


def test_work_crosses_in_batches_and_none_is_lost():
    background = Background()

    async def square(number):
        await asyncio.sleep(0)
        return number * number

    async def many(start):
        return await asyncio.gather(*(background.call(square(n)) for n in range(start, start + 500)))

    found = {}
    threads = [
        threading.Thread(target=lambda s=s: found.update({s: asyncio.run(many(s))}))
        for s in range(0, 4000, 1000)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    background.stop()
    assert found == {s: [n * n for n in range(s, s + 500)] for s in range(0, 4000, 1000)}


class Waiting(threading.Thread):
    """A call in a thread that does not keep a failed test from ending."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call = call
        self.start()

    def run(self):
        try:
            self.found = self.call()
        except BaseException as error:
            self.found = type(error)

    def outcome(self):
        """What the call returned, or the type of what it raised."""
        self.join(10)
        return "still waiting" if self.is_alive() else self.found


def test_calls_that_come_while_the_loop_ends_are_cancelled():
    background, begun = Background(), threading.Event()

    async def forever():
        begun.set()
        await asyncio.Event().wait()

    background.cancel_all()  # what comes after this is not seen by it
    early = Waiting(lambda: background.call_sync(forever()))
    assert begun.wait(30)
    background.stop()
    assert early.outcome() is concurrent.futures.CancelledError
    assert Waiting(lambda: background.call_sync(forever())).outcome() is concurrent.futures.CancelledError
    assert Waiting(lambda: asyncio.run(background.call(forever()))).outcome() is asyncio.CancelledError


def test_an_interrupt_between_handing_work_over_and_waking_the_loop_costs_no_further_call():
    background = Background()
    background._awake = True  # Ctrl-C came before the loop was woken

    async def one():
        return 1

    background.cancel_all()
    assert Waiting(lambda: background.call_sync(one())).outcome() == 1
    background.stop()


def test_errors_cross_threads():
    background = Background()

    async def broken():
        raise KeyError("x")

    with pytest.raises(KeyError):
        background.call_sync(broken())
    with pytest.raises(KeyError):
        asyncio.run(background.call(broken()))

    async def nested():
        async def nothing():
            return 1

        assert await background.call(nothing()) == 1
        return background.call_sync(nothing())

    with pytest.raises(RequestError, match="await generate"):
        background.call_sync(nested())
    background.stop()
