"""Look at results of 1M examples: the viewer's answers, columns, compare, report, show, and the writer meanwhile.

    python bench/view.py [--examples 1000000] [--folder DIR] [--pairs 10]

The store has one dataset, two runs over it and two evaluations with four evaluators each, written through the same
appends, in groups of 100, as a stage makes. It stays in the folder, if one is given, for the next time. Each figure is
taken in a process of its own, so that its peak memory is its own. `--pairs` runs a writer so many times alone and so
many times while a viewer follows it, alternating, each first in turn. `rank` ranks three runs by their comparisons on a
fifteenth of the examples: 200,000 for a million.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from machine import machine, peak_megabytes, write_bytecode

EVALUATORS = ("exact", "close", "fast", "long")
BATCH = 100
TARGETS = {
    "listening": 0.7,
    "first rows": 1.0,
    "jump": 0.15,
    "filter": 0.2,
    "sort": 0.2,
    "changed": 0.2,
    "build": 25.0,
    "RSS": 250.0,
    "RSS peak": 250.0,
    "compare": 8.0,
    "compare MB": 300.0,
    "report": 5.0,
    "show --failed": 1.0,
}


def build(path: Path, count: int) -> None:
    """Write the store."""
    import karat
    from karat.records import (
        FORMAT,
        Counts,
        EvaluationHeader,
        EvaluatorSpec,
        Failed,
        Failure,
        ItemResult,
        Ok,
        Output,
        Result,
        RunHeader,
        Skipped,
    )
    from karat.serialization import encode
    from karat.store.backend import FAILED, OK, SKIPPED, StoredRow
    from karat.store.columns import cells_of_output, cells_of_result

    topics = ("law", "art", "music", "sport", "science")
    examples = (
        karat.Example(f"q{i}", f"question {i}", f"QUESTION {i}", {"topic": topics[i % 5], "level": i % 7})
        for i in range(count)
    )
    jsonl = path.with_suffix(".jsonl")
    with jsonl.open("wb") as file:
        for example in examples:
            file.write(encode(example) + b"\n")
    with karat.open_store(path) as store:
        data = store.datasets.put(karat.Dataset.from_file(jsonl, name="questions"))
        jsonl.unlink()
        specs = [EvaluatorSpec(key, key, {}, key, bounds=(0.0, 1.0)) for key in EVALUATORS]
        for number in range(2):
            bad = {i for i in range(count) if (i * 7919 + number) % 1000 == 0}
            header = RunHeader(
                format=FORMAT, id=f"run-000000000{number}", dataset=data.id, task="shout", configuration=f"c{number}",
                parameters={"variant": number}, created=time.time(), status="success",
                counts=Counts(ok=count - len(bad), failed=len(bad)),
            )  # fmt: skip
            inserted = store.runs._insert(header, [data.id], leased=False)
            assert inserted is not None
            run = inserted[0]
            for start in range(0, count, BATCH):
                rows = []
                for i in range(start, min(start + BATCH, count)):
                    outcome: Any = Ok(f"QUESTION {i}")
                    if i in bad:
                        outcome = Failed(Failure(("TimeoutError", "ValueError")[i % 2], "no answer"))
                    seconds = (i * 31 % 997) / 1000
                    payload = encode(Output(format=FORMAT, example=f"q{i}", outcome=outcome, seconds=seconds))
                    cells = cells_of_output(outcome, seconds, 0.0, None)
                    rows.append(StoredRow(i, "1", 1, FAILED if i in bad else OK, None, payload, cells))
                store.backend.append(run, rows)
            _finish(store.runs, run, header)
            made = EvaluationHeader(
                format=FORMAT, id=f"eval-000000000{number}", dataset=data.id, runs=[header.id], evaluators=specs,
                configuration=f"e{number}", created=time.time(), status="success",
                counts=Counts(ok=4 * (count - len(bad)), skipped=4 * len(bad)),
            )  # fmt: skip
            inserted = store.evaluations._insert(made, [header.id], leased=False)
            assert inserted is not None
            for start in range(0, count, BATCH):
                for place, key in enumerate(EVALUATORS):
                    rows = []
                    for i in range(start, min(start + BATCH, count)):
                        score = (
                            ((i * (7 + number) + place) % 101) / 100 if place else float((i + number) % 4 > 0)
                        )
                        judged: Any = (
                            Skipped("output failed")
                            if i in bad
                            else Ok(Result(key, score, comment="as expected"))
                        )
                        record = ItemResult(
                            format=FORMAT,
                            example=f"q{i}",
                            key=key,
                            runs=(header.id,),
                            outcome=judged,
                            seconds=1e-5,
                        )
                        cells = cells_of_result(judged, 1e-5, 0.0, None)
                        status = SKIPPED if i in bad else OK
                        rows.append(StoredRow(i, f"{place}.0.1", 1, status, None, encode(record), cells))
                    store.backend.append(inserted[0], rows)
            _finish(store.evaluations, inserted[0], made)


def _finish(repository: Any, number: int, header: Any) -> None:
    import msgspec

    from karat.store.columns import join_segments

    repository.save(number, msgspec.structs.replace(header, finished=time.time()))
    join_segments(repository.get(header.id))


def resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def median(values: list[float]) -> float:
    """The middle of some figures. The module of that name is one of this folder's."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def timed(times: int, work: Any) -> float:
    """The median of several calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return median(taken)


def measure_build(path: Path) -> dict[str, float]:
    """Make all columns as for a store of an earlier karat, which has none."""
    import karat
    from karat.store.columns import _assemble, _read_segments, example_columns

    with tempfile.TemporaryDirectory() as cache, karat.open_store(path, read_only=True) as store:
        os.environ["KARAT_CACHE"] = cache
        start = time.perf_counter()
        run, evaluation = store.runs.list()[0], store.evaluations.list()[0]
        example_columns(run.dataset)
        for handle in (run, evaluation):
            _assemble(
                handle.kind, _read_segments(handle), 0, ("scores", "seconds", "queue", "kind_codes"), 0, None
            )
        return {
            "build": time.perf_counter() - start,
            "build CPU s": time.process_time(),
            "build MB": peak_megabytes(),
        }


def measure_viewer(path: Path) -> dict[str, float]:
    """Start `karat view` as a user does, and ask as a browser does."""
    import urllib.error
    import urllib.request
    from http.cookiejar import CookieJar

    start = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "karat",
        "view",
        "--store",
        f"sqlite:///{path}",
        "--no-browser",
        "--json",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    found: dict[str, float] = {}
    try:
        text = ""
        while "}" not in text:
            text += server.stdout.readline()
        url = json.loads(text)["url"]
        found["listening"] = time.perf_counter() - start
        spent = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        found["listening CPU s"] = sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        opener.open(url, timeout=60).read()
        base = url.partition("/?")[0]

        def get(place: str) -> Any:
            while True:
                with opener.open(base + place, timeout=120) as answer:
                    if answer.status != 202:  # columns are being built
                        return json.loads(answer.read())
                time.sleep(0.1)

        start = time.perf_counter()
        get("/api/runs")
        found["runs"] = time.perf_counter() - start
        start = time.perf_counter()
        total = get("/api/r/run-0000000000/rows?count=60")["total"]
        found["first rows"] = time.perf_counter() - start
        places = iter(range(0, total, max(1, total // 50)))
        found["jump"] = timed(20, lambda: get(f"/api/r/run-0000000000/rows?count=60&start={next(places)}"))
        start = time.perf_counter()
        get("/api/r/run-0000000000/rows?count=60&filter=topic:law")
        found["first metadata filter"] = time.perf_counter() - start
        limits = iter(range(5, 95))
        found["filter"] = timed(
            9,
            lambda: get(f"/api/r/run-0000000000/rows?count=60&filter=close%3C0.{next(limits):02}+topic:law"),
        )
        fields = iter(("score", "-close", "seconds", "-seconds", "close", "fast", "-fast", "long", "-long"))
        found["sort"] = timed(9, lambda: get(f"/api/r/run-0000000000/rows?count=60&sort={next(fields)}"))
        pair = "/api/c/run-0000000000..run-0000000001"
        start = time.perf_counter()
        get(f"{pair}/rows?count=60&filter=changed:worse&evaluator=close")
        found["first changed"] = time.perf_counter() - start
        changes = iter(("better", "same", "missing", "worse", "better", "worse", "same"))
        keys = iter(("close",) * 7)
        found["changed"] = timed(
            7,
            lambda: get(
                f"{pair}/rows?count=60&filter=changed:{next(changes)}+difference%3E-0.{next(limits):02}"
                f"&evaluator={next(keys)}&sort=-difference"
            ),
        )
        ticks = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        found["viewer CPU s"] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        both = "runs=run-0000000000,run-0000000001"
        for name, place in {
            "comparison page": pair,
            "differences plot": f"{pair}/differences",
            "another evaluator": f"{pair}?evaluator=long",
            "slices page": f"/api/s?{both}&by=topic",
            "failures page": "/api/f/run-0000000000",
            "performance page": f"/api/p?{both}",
            "sort by id": "/api/r/run-0000000000/rows?count=60&sort=-id",
            "text search": "/api/r/run-0000000000/rows?count=60&filter=%22question+99999%22",
        }.items():
            start = time.perf_counter()
            try:
                get(place)
            except urllib.error.HTTPError as error:  # a search stops after ten seconds
                print(f"{name}: {error.read().decode()}", file=sys.stderr)
            found[name] = time.perf_counter() - start
        status = Path(f"/proc/{server.pid}/status").read_text()
        sizes = {
            line.split(":")[0]: line.split()[1]
            for line in status.splitlines()
            if line.startswith(("VmRSS", "VmHWM"))
        }
        found["RSS"] = int(sizes["VmRSS"]) / 1024
        found["RSS peak"] = int(sizes["VmHWM"]) / 1024
    finally:
        server.terminate()
        server.wait()
    return found


def measure_command(path: Path, *arguments: str) -> tuple[float, float, float]:
    """Seconds, peak megabytes and processor seconds of a command."""
    program = (
        "import sys, resource; from karat.cli import main; code = main(sys.argv[1:]);"
        "u = resource.getrusage(resource.RUSAGE_SELF);"
        "print(u.ru_maxrss / 1024, u.ru_utime + u.ru_stime, file=sys.stderr)"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--store", f"sqlite:///{path}", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    megabytes, processor = done.stderr.strip().splitlines()[-1].split()
    return seconds, float(megabytes), float(processor)


async def shout(text: str) -> str:
    return text.upper()


BY_DISTANCE = {"name": "by_metric", "params": {"metric": "edit_distance"}}


def write_comparisons(path: Path, count: int) -> list[str]:
    """Three runs and the comparisons of each pair of them by their scores; the ids of the runs."""
    import karat

    examples = [{"id": f"q{i}", "input": f"question {i}", "expected": f"QUESTION {i}"} for i in range(count)]
    with karat.open_store(path) as store:
        runs = [
            karat.run(partial(answer, every=every), examples, store=store, progress=False)
            for every in (2, 3, 5)
        ]
        karat.rank(runs, evaluator=BY_DISTANCE, progress=False)
        return [run.id for run in runs]


def answer(text: str, every: int) -> str:
    """Right, but for every second, third or fifth question."""
    return text.upper() if int(text.rpartition(" ")[2]) % every else text


def write_once(path: Path, count: int) -> tuple[float, float]:
    """Run and evaluate into a new store; seconds, and seconds of the processor."""
    import karat

    data = karat.Dataset.from_examples([{"input": f"question {i}", "expected": "?"} for i in range(count)])
    with karat.open_store(path) as store:
        stored = store.datasets.put(data)
        start, processor = time.perf_counter(), time.process_time()
        karat.evaluate(karat.run(shout, stored, store=store, progress=False), ["exact_match"], progress=False)
        return time.perf_counter() - start, time.process_time() - processor


async def _follow(path: Path) -> None:
    """Ask a viewer as an open page does: for changes every two seconds, and then for the rows."""
    from karat.view.data import Viewer

    print("ready", flush=True)
    while not path.exists():
        await asyncio.sleep(0.02)
    viewer = Viewer(str(path))
    seen = None
    while True:
        version = (await asyncio.to_thread(viewer.changes))["version"]
        runs = await asyncio.to_thread(viewer.runs)
        if version != seen and runs["datasets"]:
            seen = version
            await asyncio.to_thread(viewer.rows, runs["datasets"][0]["runs"][0]["id"])
        await asyncio.sleep(2.0)


def writer_pairs(pairs: int, count: int) -> dict[str, float]:
    """The writer alone and with a viewer beside it, alternating."""
    alone: list[list[float]] = []
    watched: list[list[float]] = []
    for pair in range(pairs):
        for look in (True, False) if pair % 2 else (False, True):  # what the machine does meanwhile hits both
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "karat.db"
                follower = None
                if look:
                    follower = subprocess.Popen(
                        [sys.executable, __file__, "--follow", str(path)],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                    )
                    assert follower.stdout is not None
                    follower.stdout.readline()  # it has loaded what it needs
                done = subprocess.run(
                    [sys.executable, __file__, "--write", str(path), str(count)],
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                if follower is not None:
                    follower.kill()
                    follower.wait()
                (watched if look else alone).append([float(each) for each in done.stdout.split()])
    found: dict[str, float] = {}
    for place, name in enumerate(("writer", "writer CPU s")):
        a, b = (median([each[place] for each in times]) for times in (alone, watched))
        found |= {f"{name} alone": a, f"{name} watched": b, f"{name} slower %": 100 * (b / a - 1)}
    return found


def child(what: str, path: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", what, str(path)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--measure", nargs=2)
    parser.add_argument("--write", nargs=2)
    parser.add_argument("--follow")
    given = parser.parse_args()
    if given.measure:
        measures = {"build": measure_build, "viewer": measure_viewer}
        print(json.dumps(measures[given.measure[0]](Path(given.measure[1]))))
        return
    if given.write:
        print(*write_once(Path(given.write[0]), int(given.write[1])))
        return
    if given.follow:
        asyncio.run(_follow(Path(given.follow)))
        return
    print(machine())
    write_bytecode()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        path = folder / f"view-{given.examples}.db"
        if not path.exists():
            start = time.perf_counter()
            build(path, given.examples)
            print(
                f"store written in {time.perf_counter() - start:.0f} s, {path.stat().st_size / 2**20:,.0f} MB"
            )
        found = child("viewer", path)
        found |= child("build", path)
        commands = {
            # Another confidence each time: the same comparison would be found stored.
            "compare": (
                "compare",
                "run-0000000000",
                "run-0000000001",
                "--confidence",
                f"0.95{time.time_ns() % 10**6:06}",
            ),
            "report": ("report", "run-0000000000"),
            "show --failed": ("show", "run-0000000000", "--failed"),
        }
        for name, arguments in commands.items():
            found[name], found[f"{name} MB"], found[f"{name} CPU s"] = measure_command(path, *arguments)
        compared = Path(temporary) / "comparisons.db"
        runs = write_comparisons(compared, given.examples // 15)
        rank = ("rank", *runs, "--evaluator", json.dumps(BY_DISTANCE), "--confidence", "0.951")
        found["rank"], found["rank MB"], found["rank CPU s"] = measure_command(compared, *rank)
    if given.pairs:
        found |= writer_pairs(given.pairs, 30_000)
    for name, value in found.items():
        target = TARGETS.get(name)
        verdict = "" if target is None else f"  (target {target:g}{'' if value <= target else ': missed'})"
        print(f"{name:>22} {value:>10.3f}{verdict}")


if __name__ == "__main__":
    main()
