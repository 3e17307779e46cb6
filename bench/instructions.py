"""Count the instructions of a model call and of a record in two checkouts, under valgrind.

    python bench/instructions.py OLDER_CHECKOUT [--count 500] [call-uncached call-cached record]

Instructions hardly depend on other work on the machine, unlike times. A ratio above 1 means that this checkout executes
more. The server is a loop in this process that does as little as possible; the work of threads and of the garbage
collector is included, that of imports and of the first 60 calls is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from machine import CHECKOUT, machine

MODES = ("call-uncached", "call-cached", "record")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo the last message of each request, as chat completions do."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)[1])
            asked = json.loads(await reader.readexactly(length))["messages"][-1]["content"]
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": asked},
                "finish_reason": "stop",
                "logprobs": None,
            }
            usage = {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21}
            body = json.dumps({"id": "1", "model": "fake", "choices": [choice], "usage": usage}).encode()
            status = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            writer.write(status % len(body) + body)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def serve(ready: threading.Event, port: list[int]) -> None:
    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port.append(server.sockets[0].getsockname()[1])
        ready.set()
        await server.serve_forever()

    asyncio.run(main())


async def calls(spec: str, numbers: range, cache: str) -> None:
    from karat import models

    model, waiting = models.get(spec), iter(numbers)

    async def worker() -> None:
        for number in waiting:
            with models.recording(example=str(number), cache=cache):
                await model.generate(f"question {number}: what is it?")

    await asyncio.gather(*(worker() for _ in range(20)))


async def records(spec: str, numbers: range, place: Path) -> None:
    import karat
    from karat.tasks.prompt import PromptTask

    texts = [f"question {number}: what is it?" for number in numbers]
    dataset = karat.Dataset.from_examples(
        [{"id": text, "input": text, "expected": text} for text in texts], name="questions"
    )
    store = karat.open_store(place / f"{numbers.start}.db")
    run = await karat.run_async(PromptTask("{input}", model=spec), dataset, store=store, concurrency=20)
    await karat.evaluate_async(run, ["exact_match"])
    store.close()


def control(option: str) -> None:
    subprocess.run(["callgrind_control", option, str(os.getpid())], capture_output=True, check=True)


def child(mode: str, spec: str, count: int) -> None:
    """The measured work, in a process under callgrind."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KARAT_CACHE"] = str(Path(folder) / "replies.db")
        for numbers, option in ((range(60), "--zero"), (range(60, 60 + count), "--dump")):
            if mode == "record":
                asyncio.run(records(spec, numbers, Path(folder)))
            else:
                asyncio.run(calls(spec, numbers, "use" if mode == "call-cached" else "off"))
            control(option)
    os._exit(0)  # the end of the process is not measured


def instructions(checkout: Path, mode: str, spec: str, count: int) -> float:
    """Instructions for each call or record."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", sys.executable, __file__]
        subprocess.run(
            [*command, "-", "--child", mode, spec, "--count", str(count)],
            env={**os.environ, "PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0"},
            capture_output=True,
            check=True,
        )
        return int(re.search(r"^summary: (\d+)", Path(f"{out}.1").read_text(), re.MULTILINE)[1]) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("older", type=Path)
    parser.add_argument("modes", nargs="*", default=MODES)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--child", nargs=2)
    given = parser.parse_intermixed_args()
    if given.child:
        child(*given.child, given.count)
    ready, port = threading.Event(), []
    threading.Thread(target=serve, args=(ready, port), daemon=True).start()
    ready.wait()
    print(machine())
    for mode in given.modes:
        spec = f"fake@http://127.0.0.1:{port[0]}/v1"
        old, new = (instructions(each.resolve(), mode, spec, given.count) for each in (given.older, CHECKOUT))
        print(f"{mode:14} {old:12,.0f} {new:12,.0f} instructions   {new / old:.3f}", flush=True)


if __name__ == "__main__":
    main()
