"""The scores that evaluations hold of some runs, item by item, so that runs can be compared over the same items."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from karat.errors import RequestError, did_you_mean
from karat.records import EvaluatorSpec, Skipped
from karat.store import Store
from karat.store.handles import CHUNK, Evaluation, Run
from karat.store.repositories import latest, result_decoder

Item = tuple[str, int, str]
"""An item of a run: the example's id, the attempt and the unit."""


class Source(NamedTuple):
    """Where the results of one run by one evaluator are."""

    evaluation: Evaluation
    spec: EvaluatorSpec


class Scores:
    """The scores of one run by one evaluator: one for every item that could have one, None where it has none."""

    def __init__(self, run: Run, source: Source) -> None:
        self.run = run
        self.source = source
        self.items: dict[Item, float | None] = {}
        self.not_applicable = 0
        self.positions: dict[str, int] = {}
        """Where each example stands in the dataset."""


def sources_of(
    store: Store, runs: Sequence[Run], evaluations: Sequence[Evaluation]
) -> dict[str, dict[str, Source]]:
    """For each evaluator key, where the results of each run are: the newest of the evaluations that has them.

    Where two runs were judged by evaluators of one key that are not the same, the newest one that most runs share
    is taken.
    """
    found: dict[str, dict[str, list[Source]]] = {}
    wanted = {run.id for run in runs}
    for evaluation in evaluations:
        for spec in evaluation.header.evaluators:
            if spec.kind == "single":
                for run in evaluation.header.runs:
                    if run in wanted:
                        found.setdefault(spec.key, {}).setdefault(run, []).append(Source(evaluation, spec))
    return {key: _same_evaluator(by_run) for key, by_run in found.items()}


def _same_evaluator(by_run: dict[str, list[Source]]) -> dict[str, Source]:
    prints: dict[str, int] = {}
    for sources in by_run.values():
        for print_ in {source.spec.fingerprint for source in sources}:
            prints[print_] = prints.get(print_, 0) + 1
    best = max(prints, key=lambda print_: (prints[print_], _newest(by_run, print_)))
    return {
        run: next(source for source in reversed(sources) if source.spec.fingerprint == best)
        for run, sources in by_run.items()
        if any(source.spec.fingerprint == best for source in sources)
    }


def _newest(by_run: dict[str, list[Source]], print_: str) -> float:
    return max(
        source.evaluation.header.created
        for sources in by_run.values()
        for source in sources
        if source.spec.fingerprint == print_
    )


def read_scores(sources: Sequence[tuple[Run, Source]]) -> list[Scores]:
    """The scores of several runs; an evaluation that several share is read once."""
    tables = [Scores(run, source) for run, source in sources]
    waiting: dict[int, list[Scores]] = {}
    for table in tables:
        waiting.setdefault(table.source.evaluation.number, []).append(table)
    for mine in waiting.values():
        wanted = {(table.run.id, table.source.spec.key): table for table in mine}
        for position, result in current_results(mine[0].source.evaluation):
            found = wanted.get((result.runs[0], result.key)) if len(result.runs) == 1 else None
            if found is None:
                continue
            if isinstance(result.outcome, Skipped) and not result.outcome.applicable:
                found.not_applicable += 1
                continue
            found.items[result.example, result.attempt, result.unit] = result.score
            found.positions[result.example] = position
    return tables


def current_results(evaluation: Evaluation) -> Iterator[tuple[int, Any]]:
    """`(position, result)` of the current try of every item, in dataset order."""
    backend, decode = evaluation.store.backend, result_decoder.decode
    for start in range(0, backend.extent(evaluation.number), CHUNK):
        for row in latest(backend.scan(evaluation.number, start, start + CHUNK)):
            yield row.position, decode(row.payload)


def things_of(store: Store, given: Sequence[Any]) -> tuple[list[Run], list[Evaluation]]:
    """The runs that are meant, and the evaluations to look in: those that are given, else all there are."""
    runs: dict[str, Run] = {}
    evaluations: dict[str, Evaluation] = {}
    for each in given:
        handle = store.get(each) if isinstance(each, str) and each != "latest" else each
        if handle == "latest":
            handle = store.runs.get("latest")
        if isinstance(handle, Run):
            runs[handle.id] = handle
        elif isinstance(handle, Evaluation):
            evaluations[handle.id] = handle
            runs.update({run.id: run for run in handle.runs})
        else:
            raise RequestError(
                f"{getattr(handle, 'id', handle)} is no run and no evaluation: those can be compared"
            )
    if not evaluations:
        wanted = set(runs)
        evaluations = {e.id: e for e in store.evaluations.list() if wanted & set(e.header.runs)}
    return list(runs.values()), list(evaluations.values())


def chosen_keys(
    sources: dict[str, dict[str, Source]], runs: Sequence[Run], wanted: Sequence[str] | None
) -> list[str]:
    """The evaluator keys that all runs have results of, or those that were asked for."""
    shared = [key for key, by_run in sources.items() if all(run.id in by_run for run in runs)]
    for key in wanted or ():
        if key in sources and key not in shared:
            lacking = next(run.id for run in runs if run.id not in sources[key])
            name = next(iter(sources[key].values())).spec.name
            raise RequestError(f"run {lacking} has no results of {key!r}: karat evaluate {lacking} -e {name}")
        if key not in sources:
            raise RequestError(
                f"no results of {key!r}: {did_you_mean(key, sources) if sources else nothing(runs)}"
            )
    if not wanted and not shared:
        raise RequestError(_nothing_shared(sources, runs))
    return list(wanted or shared)


def nothing(runs: Sequence[Run]) -> str:
    """The command that makes an evaluation of some runs."""
    return f"judge the runs first, with karat evaluate {' '.join(run.id for run in runs[:5])} -e exact_match"


def _nothing_shared(sources: dict[str, dict[str, Source]], runs: Sequence[Run]) -> str:
    if not sources:
        return f"no evaluation has results of these runs: {nothing(runs)}"
    key, by_run = max(sources.items(), key=lambda each: len(each[1]))
    lacking = [run.id for run in runs if run.id not in by_run]
    name = next(iter(by_run.values())).spec.name
    return (
        f"no evaluator has judged all of these runs; {key!r} has not judged {', '.join(lacking)}:"
        f" karat evaluate {' '.join(lacking)} -e {name}"
    )


class Paired(NamedTuple):
    """Two runs' scores side by side."""

    examples: list[str]
    """The example of each pair: its cluster, unless another is asked for."""
    first: list[float | None]
    second: list[float | None]
    several: bool
    """Whether examples have several pairs."""
    note: str
    """What could not be paired."""


def pair_scores(
    first: Scores, second: Scores, shared: Callable[[str], bool], transform: Callable[[float], float]
) -> Paired:
    """Pairs the scores of the examples that both runs have; attempt with attempt where they made equally many.

    An item that one run lacks within an example both have is a missing score, not a smaller comparison.
    """
    mine, theirs = _by_example(first, transform), _by_example(second, transform)
    both = [example for example in mine if example in theirs and shared(example)]
    note = _note(len(mine), len(theirs), len(both))
    if any(mine[example].keys() != theirs[example].keys() for example in both):
        if any(len(mine[example]) != len(theirs[example]) for example in both):
            note = _joined(
                note, "the runs made different numbers of attempts, so means of examples are compared"
            )
            means = [(_mean(mine[example]), _mean(theirs[example])) for example in both]
            return Paired(both, [a for a, _ in means], [b for _, b in means], False, note)
        note = _joined(note, "units that only one run has count as missing in the other")
    examples: list[str] = []
    a: list[float | None] = []
    b: list[float | None] = []
    for example in both:
        for item in dict.fromkeys([*mine[example], *theirs[example]]):
            examples.append(example)
            a.append(mine[example].get(item))
            b.append(theirs[example].get(item))
    return Paired(examples, a, b, len(examples) > len(both), note)


def _by_example(
    scores: Scores, transform: Callable[[float], float]
) -> dict[str, dict[Hashable, float | None]]:
    out: dict[str, dict[Hashable, float | None]] = {}
    for (example, attempt, unit), score in scores.items.items():
        out.setdefault(example, {})[attempt, unit] = None if score is None else transform(score)
    return out


def _mean(scores: dict[Hashable, float | None]) -> float | None:
    """The mean of an example's scores; None when one is missing, for which could be any."""
    known = [score for score in scores.values() if score is not None]
    return sum(known) / len(known) if known and len(known) == len(scores) else None


def _note(mine: int, theirs: int, both: int) -> str:
    if mine == theirs == both:
        return ""
    return f"compared over the {both:,} examples that both have, of {mine:,} and {theirs:,}"


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
