"""Trajectory match beside its peers: a sweep of small and large trajectories, and rates at 5, 50 and 500 calls.

The sweep compares karat with Potato, both through `evaluate` on raw trajectories, in one process: the two take turns
in short rounds, and the best round of each counts, because other work on the machine slows both and not evenly. It
covers all modes, all modes of the arguments, 1 to 500 calls, four forms of input, and these kinds of cases: both sides
equal, the first, the last or every call with another argument, one call more, one less, all tools renamed, the calls
shuffled. Rows in which karat is slower are counted and listed. Potato reads no arguments of calls in LangChain's form;
these rows are counted apart.

The rates compare with agentevals as well, each package in a process of its own. In the rows marked `respelt` the agent
writes the keys of its arguments in another order, so that no two texts are the same; in those marked `objects`
arguments are objects and not JSON text; in those marked `wrong` one call has another argument, so that the trajectories
do not match, and karat says where; in those marked `missing` the agent left one call out, in those marked `extra` it
made one more, in those marked `all wrong` every call has another argument; in those marked `included` the agent gives
one argument more and arguments are compared by inclusion (`tool_args_match_mode="superset"`).

    python bench/trajectories.py --peers FOLDER          # a virtual environment that has the peers: the sweep
    python bench/trajectories.py --install-peers         # makes one in a temporary folder
    python bench/trajectories.py --peers FOLDER --rates  # the rates
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROWS = (
    "5",
    "50",
    "500",
    "500 respelt",
    "5 objects",
    "500 objects",
    "5 wrong",
    "500 wrong",
    "5 objects wrong",
    "50 objects wrong",
    "500 objects wrong",
    "5 objects missing",
    "500 objects missing",
    "5 objects extra",
    "500 objects extra",
    "5 objects all wrong",
    "50 objects all wrong",
    "500 all wrong",
    "500 objects all wrong",
    "5 included",
    "500 included",
    "500 objects included",
    "500 included wrong",
    "500 objects included wrong",
    "500 objects included all wrong",
)
MODES = ("strict", "unordered", "subset", "superset")
PEERS = {"potato": "potato-annotation", "agentevals": "agentevals", "openevals": "openevals"}
SECONDS = 0.1
ROUNDS = 3
PASSES = 2
"""Each figure is the best of so many rounds of so many seconds, in as many passes as the packages take turns:
other work on the machine slows all of them, and not evenly."""

TARGETS = {
    f"{mode}/{size}": 560 if mode == "strict" else 520
    for mode in MODES
    for size in ("500", "500 respelt", "500 objects")
}
TARGETS |= {
    f"{mode}/{size}": 17_400 if mode == "strict" else 16_800 for mode in MODES for size in ("5", "5 objects")
}
"""Per second; from figures of Potato: ten times at 500 calls (strict four times), and not slower at 5."""


def trajectory(calls: list[tuple[str, dict[str, Any]]], objects: bool = False) -> list[dict[str, Any]]:
    """Messages with one assistant turn and one tool result for each call."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Please plan the journey."}]
    for number, (name, arguments) in enumerate(calls):
        written = json.dumps(arguments)
        function = {"name": name, "arguments": json.loads(written) if objects else written}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": "done"})
    messages.append({"role": "assistant", "content": "It is planned."})
    return messages


def case(mode: str, row: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The agent's trajectory and the reference's, which match in the mode unless the row says otherwise."""
    size = int(row.split()[0])
    chance = random.Random(size)
    reference = [
        (
            f"tool_{number % 10}",
            {"query": f"item {number}", "limit": number, "options": {"deep": True, "n": 3}},
        )
        for number in range(size)
    ]
    agent = list(reference)
    if "respelt" in row:
        agent = [(name, dict(reversed(arguments.items()))) for name, arguments in reference]
    if mode != "strict":
        chance.shuffle(agent)
    if mode == "subset":
        agent = agent[: max(1, size - size // 10)]
    if mode == "superset":
        agent += [(f"other_{number}", {"x": number}) for number in range(size // 10)]
    if "included" in row:
        agent = [(name, {**arguments, "verbose": True}) for name, arguments in agent]
    if "all wrong" in row:
        agent = [(name, {**arguments, "query": "something else"}) for name, arguments in agent]
    elif "missing" in row:
        del agent[size // 2]
    elif "extra" in row:
        agent.insert(size // 2, ("tool_0", {"query": "one more"}))
    elif "wrong" in row:
        name, arguments = agent[size // 2]
        agent[size // 2] = (name, {**arguments, "query": "something else"})
    objects = "objects" in row
    return trajectory(agent, objects), trajectory(reference, objects)


Build = Callable[[str, str], Callable[..., Any]]
"""Takes the mode and the mode of the arguments."""


def measure(build: Build) -> dict[str, float]:
    """Evaluations per second for every mode and row, as `mode/row`."""
    out = {}
    for mode in MODES:
        for row in ROWS:
            judge = build(mode, "superset" if "included" in row else "exact")
            agent, reference = case(mode, row)
            try:
                verdict = judge(outputs=agent, reference_outputs=reference)
            except TypeError:  # agentevals takes arguments as text alone
                out[f"{mode}/{row}"] = 0.0
                continue
            score = verdict["score"] if isinstance(verdict, dict) else verdict.score
            # Potato reads inclusion the other way round in its mode subset.
            if (mode == "subset" and "missing" in row) or (mode == "superset" and "extra" in row):
                fails = False
            else:
                fails = any(word in row for word in ("wrong", "missing", "extra"))
            if bool(score) == fails and not (mode == "subset" and "included" in row):
                raise SystemExit(f"{mode} at {row} calls: the verdict is not as expected")
            out[f"{mode}/{row}"] = max(_rate(judge, agent, reference) for _ in range(ROUNDS))
    return out


def _rate(judge: Callable[..., Any], agent: Any, reference: Any) -> float:
    # Time of this process alone: other work on the machine slows both sides, and not evenly.
    count, start = 0, time.process_time()
    while (spent := time.process_time() - start) < SECONDS:
        judge(outputs=agent, reference_outputs=reference)
        count += 1
    return count / spent


def build_karat(mode: str, arguments: str) -> Callable[..., Any]:
    """karat's evaluator."""
    from karat.evaluators import TrajectoryMatchEvaluator

    return TrajectoryMatchEvaluator(mode=mode, tool_args_match_mode=arguments).evaluate


def build_potato(mode: str, arguments: str) -> Callable[..., Any]:
    """Potato's evaluator."""
    from potato.evaluators import TrajectoryMatchEvaluator

    return TrajectoryMatchEvaluator(mode=mode, tool_args_match_mode=arguments).evaluate


def build_agentevals(mode: str, arguments: str) -> Callable[..., Any]:
    """The evaluator of agentevals."""
    from agentevals.trajectory.match import create_trajectory_match_evaluator

    return create_trajectory_match_evaluator(trajectory_match_mode=mode, tool_args_match_mode=arguments)


FORMS = ("text", "objects", "langchain", "turns")
ARGUMENTS = ("exact", "ignore", "subset", "superset")
CALLS = (1, 2, 5, 20, 100, 500)
KINDS = ("equal", "first", "last", "all", "extra", "missing", "renamed", "shuffled")
SHORTEST = 15
"""The rounds of a row, at least; rows in which karat looks slower are measured again in the end, with twice and four
times as many. The best of all rounds counts, for both."""


def sweep_case(size: int, kind: str, arguments: str) -> tuple[list[Any], list[Any]]:
    """The calls of the agent and of the reference."""
    reference = [
        (f"tool_{at % 10}", {"query": f"item {at}", "limit": at, "options": {"deep": True, "n": 3}})
        for at in range(size)
    ]
    agent = [(name, dict(given)) for name, given in reference]
    if arguments == "superset":
        agent = [(name, {**given, "verbose": True}) for name, given in agent]
    if arguments == "subset":
        agent = [(name, {key: given[key] for key in given if key != "limit"}) for name, given in agent]
    changed = {"first": [0], "last": [size - 1], "all": range(size)}.get(kind, ())
    for at in changed:
        agent[at] = (agent[at][0], {**agent[at][1], "query": "something else"})
    if kind == "extra":
        agent.insert(size // 2, ("tool_0", {"query": "one more"}))
    elif kind == "missing":
        del agent[size // 2]
    elif kind == "renamed":
        agent = [(f"other_{name}", given) for name, given in agent]
    elif kind == "shuffled":
        random.Random(3).shuffle(agent)
    return agent, reference


def written(calls: list[tuple[str, dict[str, Any]]], form: str) -> list[dict[str, Any]]:
    """The calls as messages (arguments as JSON text, as objects, or as LangChain writes them) or as Potato's turns."""
    if form == "turns":
        turns = [{"speaker": "User", "text": "Please plan the journey."}]
        for name, arguments in calls:
            turns.append({"speaker": "Agent (Action)", "text": f"{name}({json.dumps(arguments)})"})
            turns.append({"speaker": "Environment", "text": "done"})
        return turns
    messages = trajectory(calls, form != "text")
    if form == "langchain":
        for message in messages:
            if "tool_calls" in message:
                message["tool_calls"] = [
                    {
                        "id": call["id"],
                        "type": "tool_call",
                        "name": call["function"]["name"],
                        "args": call["function"]["arguments"],
                    }
                    for call in message["tool_calls"]
                ]
    return messages


def take_turns(
    judges: tuple[Callable[..., Any], Callable[..., Any]], agent: Any, reference: Any, rounds: int
) -> tuple[float, float]:
    """The best seconds of an evaluation of each of two, which are called in turns."""
    # The best of many short rounds: other work interrupts some of them and not all. This is wall time, because a shared
    # machine subtracts the time that its host took from processor time afterwards: some rounds seem to take none.
    clock, best = time.perf_counter, [float("inf")] * 2
    for judge in judges:
        judge(outputs=agent, reference_outputs=reference)
    start = clock()
    for judge in judges:
        judge(outputs=agent, reference_outputs=reference)
    count = max(1, int(0.0004 / (clock() - start)))
    end = clock() + rounds * 0.001
    done = 0
    while done < rounds or (clock() < end and done < 400):
        done += 1
        for which, judge in enumerate(judges):
            start = clock()
            for _ in range(count):
                judge(outputs=agent, reference_outputs=reference)
            best[which] = min(best[which], (clock() - start) / count)
    return best[0], best[1]


def sweep(sizes: Sequence[int]) -> dict[str, tuple[float, float]]:
    """Microseconds of karat and of Potato for every row, as `form/mode/arguments/calls/kind`."""
    rows: dict[str, tuple[float, float]] = {}
    gc.collect()
    gc.freeze()

    def measure(form: str, mode: str, arguments: str, size: int, kind: str, rounds: int) -> None:
        judges = build_karat(mode, arguments), build_potato(mode, arguments)
        agent, reference = (written(calls, form) for calls in sweep_case(size, kind, arguments))
        row = f"{form}/{mode}/{arguments}/{size}/{kind}"
        found = (1e6 * each for each in take_turns(judges, agent, reference, rounds))
        best = map(min, rows.get(row, (math.inf, math.inf)), found)
        rows[row] = next(best), next(best)

    for form, mode, arguments, size, kind in itertools.product(FORMS, MODES, ARGUMENTS, sizes, KINDS):
        if size > 1 or kind not in ("last", "shuffled"):
            measure(form, mode, arguments, size, kind, SHORTEST)
    for rounds in (2 * SHORTEST, 4 * SHORTEST):
        for row in [row for row, (own, other) in rows.items() if own > other]:
            form, mode, arguments, calls, kind = row.split("/")
            measure(form, mode, arguments, int(calls), kind, rounds)
    return rows


def sweep_table(rows: dict[str, tuple[float, float]]) -> str:
    """How often and how much karat is faster, by form and number of calls; then the rows in which it is slower."""
    lines = ["| form | calls | rows | slower | lowest | median | most slower |", "|---" * 7 + "|"]
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row, pair in rows.items():
        form, _, _, size, _ = row.split("/")
        groups.setdefault((form, size), []).append(pair)
    for (form, size), pairs in groups.items():
        ratios = [other / own for own, other in pairs]
        slower = [own - other for own, other in pairs if own > other]
        most = f"{max(slower):.1f} µs" if slower else "—"
        lines.append(
            f"| {form} | {size} | {len(pairs)} | {len(slower)} | {min(ratios):.2f}× | "
            f"{statistics.median(ratios):.2f}× | {most} |"
        )
    slow = {row: pair for row, pair in rows.items() if pair[0] > pair[1]}
    unread = sum(row.startswith("langchain/") for row in slow)
    lines.append(
        f"\nkarat is slower in {len(slow)} of {len(rows)} rows, "
        f"{unread} of them in LangChain's form, of which Potato reads no arguments.\n"
    )
    for row, (own, other) in sorted(slow.items(), key=lambda each: each[1][1] / each[1][0]):
        lines.append(f"{other / own:.2f}×  karat {own:8.1f} µs  Potato {other:8.1f} µs  {row}")
    return "\n".join(lines)


def sweep_in(python: Path, sizes: Sequence[int]) -> int:
    """Run the sweep in the interpreter of the peers, which finds karat and what it needs behind its own packages."""
    source = Path(__file__).resolve().parents[1] / "src"
    paths = [str(source), sysconfig.get_path("purelib")]
    code = f"import sys; sys.path += {paths!r}; sys.argv[0] = {__file__!r}; import runpy; "
    code += f"runpy.run_path({str(Path(__file__).resolve())!r}, run_name='__main__')"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(python), "-c", code, "--here", "--calls", *map(str, sizes)], env=environment, check=False
    ).returncode


def measure_peer(python: Path, peer: str) -> dict[str, float] | str:
    """A peer's figures, measured in its own interpreter; or a word on why there are none."""
    environment = {**os.environ, "LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(python), str(Path(__file__).resolve()), "--measure", peer],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return f"skipped: {lines[-1] if lines else 'it ended with an error'}"
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def keep_best(figures: dict[str, dict[str, float] | str], name: str, found: dict[str, float] | str) -> None:
    """Adds a package's figures of one pass, row by row where they are better than those before."""
    earlier = figures.get(name)
    if isinstance(earlier, dict) and isinstance(found, dict):
        found = {row: max(rate, earlier[row]) for row, rate in found.items()}
    figures[name] = found


def find_peers(folder: str | None, install: bool) -> Path | None:
    """The interpreter of the peers' virtual environment; made anew where that was asked for."""
    if install and not folder:
        folder = tempfile.mkdtemp(prefix="karat-peers-")
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PEERS.values()], check=False, timeout=900)
        return python
    python = Path(folder, "bin", "python") if folder else None
    return python if python is not None and python.exists() else None


def table(figures: dict[str, dict[str, float] | str]) -> str:
    """Evaluations per second, a row for each mode and size, a column for each package."""
    shown = {name: each for name, each in figures.items() if not isinstance(each, str)}
    lines = ["| mode | calls | " + " | ".join(f"{name} /s" for name in shown) + " | target |"]
    lines.append("|---" * (len(shown) + 3) + "|")
    for mode in MODES:
        for row in ROWS:
            cells = [f"{rate:,.0f}" if (rate := each[f"{mode}/{row}"]) else "—" for each in shown.values()]
            wanted, own = TARGETS.get(f"{mode}/{row}"), shown["karat"][f"{mode}/{row}"]
            verdict = "" if wanted is None else f"≥ {wanted:,} {'met' if own >= wanted else 'MISSED'}"
            if "potato" in shown:
                verdict += f", {own / shown['potato'][f'{mode}/{row}']:.1f}× Potato"
            lines.append(f"| {mode} | {row} | " + " | ".join(cells) + f" | {verdict.removeprefix(', ')} |")
    lines += [f"{name}: {each}" for name, each in figures.items() if isinstance(each, str)]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the sweep, or the rates; 1 where karat is slower than Potato in a row, or a target is missed."""
    parser = argparse.ArgumentParser(description="Trajectory match beside peers.")
    parser.add_argument("--peers", help="folder of a virtual environment that has the peers")
    parser.add_argument("--install-peers", action="store_true", help="make one in a temporary folder")
    parser.add_argument("--calls", type=int, nargs="+", default=CALLS, help="numbers of calls in the sweep")
    parser.add_argument("--rates", action="store_true", help="print evaluations per second, and no sweep")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", choices=("karat", *PEERS), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    builders = {"karat": build_karat, "potato": build_potato, "agentevals": build_agentevals}
    if options.measure:
        print(json.dumps(measure(builders[options.measure])))
        return 0
    if options.here:
        rows = sweep(options.calls)
        print(sweep_table(rows))
        return int(any(own > other for own, other in rows.values()))
    python = find_peers(options.peers, options.install_peers)
    if not options.rates and python is not None:
        return sweep_in(python, options.calls)
    figures: dict[str, dict[str, float] | str] = {}
    for _ in range(PASSES):
        keep_best(figures, "karat", measure(build_karat))
        for peer in ("potato", "agentevals"):
            found = measure_peer(python, peer) if python else "skipped: give --peers or --install-peers"
            keep_best(figures, peer, found)
    # openevals has no trajectory match of its own: agentevals is built on it.
    print(table(figures))
    own = figures["karat"]
    assert not isinstance(own, str)
    return int(any(own[row] < wanted for row, wanted in TARGETS.items()))


if __name__ == "__main__":
    sys.exit(main())
