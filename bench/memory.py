"""What karat itself adds to stage 1 of an evaluation of a memory system, per turn, and how its memory grows.

The memory system keeps every turn in a list and searches nothing, so nearly all of the time is karat's: reading the
dataset, deltas, snapshots, commits, and the files. The time that the system itself takes is measured and taken off.

    python bench/memory.py [--samples 100] [--sessions 10] [--turns 20]

With --compare it evaluates instead every built-in system and control, mem0 and langmem on a dataset, offline, and
writes one report. mem0 and langmem ask a model on loopback that extracts each turn as one memory by rule. The same
command continues an interrupted comparison.

    python bench/memory.py --compare --dataset demo --output-dir compared [--max-samples N]
"""

# ruff: noqa: E402 - this folder leaves the path before anything else is imported

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

# The folder of this script has a module `statistics`, which must not hide the standard library's.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

from karat import memory
from karat.memory import (
    Capabilities,
    MemorySystem,
    Question,
    Retrieval,
    RetrievedMemory,
    Sample,
    Session,
    StoredMemory,
    Turn,
)

TARGET_MS = 2.0
"""Milliseconds of karat's own time for one turn."""
TARGET_GROWTH = 1.2
"""The resident memory after all samples, as a multiple of that after a tenth of them."""

spent = 0.0
resident: list[int] = []


class Listed(MemorySystem):
    """Keeps turns in a list."""

    name = "listed"

    def capabilities(self) -> Capabilities:
        return Capabilities(save=False)

    def reset(self, directory: Path) -> None:
        self.turns: list[Turn] = []

    def ingest_turn(self, turn: Turn) -> None:
        global spent
        start = time.perf_counter()
        self.turns.append(turn)
        spent += time.perf_counter() - start

    def snapshot(self) -> list[StoredMemory]:
        global spent
        start = time.perf_counter()
        out = [StoredMemory(memory_id=turn.turn_id, text=turn.text) for turn in self.turns]
        spent += time.perf_counter() - start
        return out

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        found = [RetrievedMemory(memory_id=turn.turn_id, text=turn.text) for turn in self.turns[-top_k:]]
        return Retrieval(items=tuple(found))

    def close(self) -> None:
        with open("/proc/self/statm") as file:
            resident.append(int(file.read().split()[1]) * resource.getpagesize())


def samples(count: int, sessions: int, turns: int) -> Iterator[Sample]:
    """Dialogues of the given size, with one question after each session."""
    for number in range(count):
        yield Sample(
            sample_id=f"sample-{number}",
            uuid=f"uuid-{number}",
            sessions=tuple(
                Session(
                    session_id=f"S{s:02}",
                    turns=tuple(
                        Turn(
                            turn_id=f"{s}.{t}",
                            speaker="user",
                            text=f"In session {s} I said sentence {t} of dialogue {number}, which is of usual length.",
                            time="2024-01-01",
                            session_id=f"S{s:02}",
                        )
                        for t in range(turns)
                    ),
                )
                for s in range(sessions)
            ),
            questions=tuple(
                Question(
                    index=s,
                    checkpoint_id=f"c{s}",
                    after_session=f"S{s:02}",
                    question=f"What was said in session {s}?",
                    answer="a sentence",
                )
                for s in range(sessions)
            ),
        )


CONTROLS = ("no_memory", "always_refuse", "full_context", "oracle")
BUILT_IN = ("FUMemory", "STMemory", "LTMemory", "BM25Memory", "GAMemory", "MGMemory", "RFMemory")
WITH_MODEL = ("mem0", "langmem")


def compare(dataset: str, folder: Path, max_samples: int | None, port: int) -> int:
    """Evaluate every system and control on a dataset and write one report; return the exit code."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.memory.systems.scripted import extracting

    from karat.cli import main as karat
    from karat.testing import only_loopback

    absent = [name for name in WITH_MODEL if importlib.util.find_spec(name) is None]
    store = f"sqlite:///{folder / 'results.db'}"
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, memory.MemoryEvaluation] = {}
    with extracting(port) as provider, only_loopback() as attempts:
        for name in (*CONTROLS, *BUILT_IN, *(each for each in WITH_MODEL if each not in absent)):
            start = time.perf_counter()
            made[name] = memory.evaluate(
                dataset,
                name,
                output_dir=folder / name,
                judge="deterministic",
                model="extractive",
                store=store,
                params={"model": provider.spec("extracting")} if name in WITH_MODEL else None,
                max_samples=max_samples,
                snapshots="checkpoints",
                progress=False,
            )
            print(f"{name}: {time.perf_counter() - start:.1f} s, run {made[name].run.id}", flush=True)
    last = list(made.values())[-1]
    (folder / "report.txt").write_text(last.report() + "\n")
    runs = [each.run.id for each in made.values()]
    karat(["report", *runs, "--store", store, "-o", str(folder / "report.html")])
    problems = {name: each.problems for name, each in made.items() if each.problems}
    summary = {
        "dataset": dataset,
        "samples": len(last.run.dataset),
        "questions": last.metrics["question_answering"]["num_total"],
        "systems": list(made),
        "not_installed": absent,
        "connections_off_loopback": attempts,
        "problems": problems,
        "reports": [str(folder / "report.txt"), str(folder / "report.html")],
        "ok": not (problems or attempts or absent),
    }
    print(json.dumps(summary, indent=2))
    return 0 if summary["ok"] else 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--snapshots", choices=("all", "checkpoints"), default="all")
    parser.add_argument("--compare", action="store_true", help="compare all systems on a dataset instead")
    parser.add_argument("--dataset", default="demo")
    parser.add_argument("--output-dir", type=Path, default=Path("memory-compared"))
    parser.add_argument("--max-samples", type=int)
    parser.add_argument(
        "--port", type=int, default=18765, help="of the model on loopback; part of the identity of a run"
    )
    given = parser.parse_args()
    if given.compare:
        sys.exit(compare(given.dataset, given.output_dir, given.max_samples, given.port))
    from karat.memory import _evaluate as evaluating

    with tempfile.TemporaryDirectory() as folder:
        stage, processor = time.perf_counter(), time.process_time()
        first: list[float] = []
        before = evaluating._first_files

        def timed(*args: object) -> object:
            out = before(*args)  # type: ignore[arg-type]  # passed on as they are
            first.extend([time.perf_counter() - stage, time.process_time() - processor])
            return out

        evaluating._first_files = timed  # type: ignore[assignment]  # the end of stage 1
        memory.evaluate(
            samples(given.samples, given.sessions, given.turns),
            Listed,
            output_dir=Path(folder) / "out",
            store=Path(folder) / "karat.db",
            judge="deterministic",
            model="extractive",
            snapshots=given.snapshots,
        )
    turns = given.samples * given.sessions * given.turns
    milliseconds = (first[0] - spent) / turns * 1000
    tenth = resident[max(0, len(resident) // 10 - 1)]
    growth = max(resident) / tenth
    print(
        json.dumps(
            {
                "turns": turns,
                "stage_1_seconds": round(first[0], 2),
                "overhead_ms_per_turn": round(milliseconds, 3),
                "processor_ms_per_turn": round(first[1] / turns * 1000, 3),
                "target_ms": TARGET_MS,
                "resident_mib_after_a_tenth": tenth >> 20,
                "resident_mib_at_most": max(resident) >> 20,
                "growth": round(growth, 2),
                "target_growth": TARGET_GROWTH,
                "ok": milliseconds <= TARGET_MS and growth <= TARGET_GROWTH,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
