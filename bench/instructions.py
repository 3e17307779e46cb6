"""Count the instructions that two checkouts execute for the same work, under valgrind.

    python bench/instructions.py OLDER_CHECKOUT [MODE …]

Instructions hardly depend on other work on the machine, unlike times. A ratio above 1 means that this checkout executes
more. The modes:

- `call-uncached`, `call-cached`, `record`: a model call, and a record through run and evaluate (`--count`); the server
  is a loop in this process that does as little as possible; imports and the first 60 calls are not included;
- `spine`, `spine-sync`, `graph`: the stages of `spine.py` and `graphs.py` in an SQLite file, at two sizes (`--sizes`),
  whose difference tells the cost of each record from what a stage costs in any case;
- `startup`: whole commands, from the start of Python to the end of the process.

Threads and the garbage collector are included; the kernel, which writes the files, is not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from graphs import GRAPH, PREDICTING
from machine import CHECKOUT, machine, write_bytecode
from spine import shout, shout_sync

CALLS = ("call-uncached", "call-cached", "record")
STAGES = {
    "spine": ("dataset", "run", "evaluate", "aggregate"),
    "spine-sync": ("dataset", "run", "evaluate", "aggregate"),
    "graph": ("dataset", "run", "report"),
}
COMMANDS = {
    "import karat": ["-c", "import karat"],
    "--help": ["-m", "karat", "--help"],
    "run, new": ["-m", "karat", "run", "experiment.yaml"],
    "run, finished": ["-m", "karat", "run", "experiment.yaml"],
    "ls": ["-m", "karat", "ls"],
    "show latest": ["-m", "karat", "show", "latest"],
}
EXPERIMENT = """
dataset: {path: data.jsonl}
task: shouting.py:shout
evaluators: [exact_match]
aggregators: [accuracy]
"""
MODES = (*CALLS, *STAGES, "startup")

SLOWDOWN = 50
"""How many times as long Python takes under callgrind, about."""


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


def slow_clocks() -> None:
    """Let time pass as slowly as the work: chunks for threads and groups of commits are sized by the clock."""
    precise, monotonic = time.perf_counter, time.monotonic
    time.perf_counter = lambda: precise() / SLOWDOWN
    time.monotonic = lambda: monotonic() / SLOWDOWN


def spine(place: Path, count: int, sync: bool) -> Iterator[None]:
    """Yield when all is prepared, and after each stage."""
    import karat

    with (place / "data.jsonl").open("w") as file:
        for i in range(count):
            expected = f"QUESTION {i}" if i % 4 else "WRONG"
            file.write(json.dumps({"id": f"q{i}", "input": f"question {i}", "expected": expected}) + "\n")
    with karat.open_store(place / "karat.db") as store:
        yield
        dataset = store.datasets.put(karat.Dataset.from_file(place / "data.jsonl"))
        yield
        run = karat.run(shout_sync if sync else shout, dataset, store=store)
        yield
        evaluation = karat.evaluate(run, ["exact_match"])
        yield
        karat.aggregate(evaluation, ["accuracy"])
        yield


def graph(place: Path, count: int) -> Iterator[None]:
    """The same of the lambda graph."""
    import karat

    try:
        from karat.graph import load_task, write_files
    except ImportError:  # an older checkout
        from karat.tasks.graph import load_task, write_files

    with contextlib.chdir(place):
        Path("graph_config.yaml").write_text(GRAPH)
        Path("predicting.py").write_text(PREDICTING)
        topics = ["Music", "Politics", "Other", "Sports"]
        with open("data.jsonl", "w") as file:
            for i in range(count):
                file.write(json.dumps({"id": str(i), "topic": topics[i % 4], "text": f"question {i}"}) + "\n")
        yield
        task = load_task(str(place))
        with karat.open_store(place / "karat.db") as store:
            data = store.datasets.put(task.dataset())
            yield
            run = karat.run(task, data, store=store, progress=False)
            yield
            write_files(run, task, place / "out")
        yield


def control(option: str) -> None:
    subprocess.run(["callgrind_control", option, str(os.getpid())], capture_output=True, check=True)


def stages_child(mode: str, sizes: list[int]) -> None:
    """The stages of a mode, in a process under callgrind: a dump after each."""
    slow_clocks()
    for count, measured in [(20, False), *((size, True) for size in sizes)]:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            steps = graph(place, count) if mode == "graph" else spine(place, count, mode == "spine-sync")
            for number, _ in enumerate(steps):
                if measured:
                    control("--dump" if number else "--zero")
    os._exit(0)  # the end of the process is not measured


def calls_child(mode: str, spec: str, count: int) -> None:
    """The measured calls, in a process under callgrind."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KARAT_CACHE"] = str(Path(folder) / "replies.db")
        for numbers, option in ((range(60), "--zero"), (range(60, 60 + count), "--dump")):
            if mode == "record":
                asyncio.run(records(spec, numbers, Path(folder)))
            else:
                asyncio.run(calls(spec, numbers, "use" if mode == "call-cached" else "off"))
            control(option)
    os._exit(0)  # the end of the process is not measured


def callgrind(checkout: Path, arguments: list[str], folder: Path, cwd: Path | None = None) -> list[int]:
    """Run Python under callgrind with the source of a checkout; the instructions of each dump, or of the process."""
    out = folder / "callgrind"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", sys.executable, *arguments]
    settings = {"PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise SystemExit(f"{arguments} in {checkout} failed:\n{done.stderr[-2000:]}")
    dumps = sorted(folder.glob("callgrind.*"), key=lambda dump: int(dump.suffix[1:])) or [out]
    return [int(re.search(r"^summary: (\d+)", each.read_text(), re.MULTILINE)[1]) for each in dumps]


def compare(name: str, old: float, new: float, unit: str = "") -> str:
    return f"{name:20} {old:12,.0f} {new:12,.0f}{unit} {new / old:7.3f}"


def compare_calls(checkouts: list[Path], mode: str, count: int) -> None:
    """Print the instructions for each call or record."""
    ready, port = threading.Event(), []
    threading.Thread(target=serve, args=(ready, port), daemon=True).start()
    ready.wait()
    spec, found = f"fake@http://127.0.0.1:{port[0]}/v1", []
    for checkout in checkouts:
        with tempfile.TemporaryDirectory() as folder:
            arguments = [__file__, "-", "--child", mode, spec, "--count", str(count)]
            found.append(callgrind(checkout, arguments, Path(folder))[0] / count)
    print(compare(mode, *found), flush=True)


def compare_stages(checkouts: list[Path], mode: str, sizes: list[int]) -> None:
    """Print for each stage the instructions for each record, and those that do not depend on the number of records."""
    names, each, fixed = STAGES[mode], [], []
    for checkout in checkouts:
        with tempfile.TemporaryDirectory() as folder:
            arguments = [__file__, "-", "--child", mode, "", "--sizes", *map(str, sizes)]
            found = callgrind(checkout, arguments, Path(folder))
        small, large = found[: len(names)], found[len(names) : 2 * len(names)]
        each.append([(b - a) / (sizes[1] - sizes[0]) for a, b in zip(small, large, strict=True)])
        fixed.append([a - sizes[0] * one for a, one in zip(small, each[-1], strict=True)])
    for place, name in enumerate(names):
        also = f"   fixed {fixed[0][place] / 1e6:7.1f} {fixed[1][place] / 1e6:7.1f} million"
        print(compare(f"{mode} {name}", each[0][place], each[1][place]) + also, flush=True)
    also = f"   fixed {sum(fixed[0]) / 1e6:7.1f} {sum(fixed[1]) / 1e6:7.1f} million"
    print(compare(f"{mode}, all", sum(each[0]), sum(each[1])) + also, flush=True)


def compare_commands(checkouts: list[Path]) -> None:
    """Print the instructions of whole commands, in thousands."""
    found: list[list[int]] = []
    for checkout in checkouts:
        found.append([])
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "work"
            place.mkdir()
            (place / "experiment.yaml").write_text(EXPERIMENT)
            (place / "shouting.py").write_text("def shout(text):\n    return text.upper()\n")
            rows = ({"id": f"q{i}", "input": f"question {i}", "expected": f"QUESTION {i}"} for i in range(5))
            (place / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            for arguments in COMMANDS.values():
                found[-1] += callgrind(checkout, arguments, Path(folder), place)
    for name, old, new in zip(COMMANDS, *found, strict=True):
        print(compare(name, old / 1e3, new / 1e3, " thousand"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("older", type=Path)
    parser.add_argument("modes", nargs="*", default=MODES, help=", ".join(MODES))
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--sizes", type=int, nargs=2, default=[1000, 3000])
    parser.add_argument("--child", nargs=2)
    given = parser.parse_intermixed_args()
    if given.child:
        mode, spec = given.child
        if mode in STAGES:
            stages_child(mode, given.sizes)
        calls_child(mode, spec, given.count)
    checkouts = [given.older.resolve(), CHECKOUT]
    for checkout in checkouts:
        write_bytecode(checkout)
    print(machine())
    print(f"{'instructions':20} {'older':>12} {'this':>12}   ratio")
    for mode in given.modes:
        if mode in CALLS:
            compare_calls(checkouts, mode, given.count)
        elif mode in STAGES:
            compare_stages(checkouts, mode, given.sizes)
        elif mode == "startup":
            compare_commands(checkouts)
        else:
            parser.error(f"unknown mode {mode!r}: one of {', '.join(MODES)}")


if __name__ == "__main__":
    main()
