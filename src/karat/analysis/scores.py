"""The scores that evaluations hold of some runs, item by item: what runs are compared and ranked by.

An item that should have a score and has none (its output failed or is pending, its judgment failed or is pending) is in
the tables with None, so that comparisons, gates and rankings count it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from karat import paths
from karat.aggregators._folding import FieldNames
from karat.errors import RequestError, did_you_mean
from karat.execution.expected import Together
from karat.keys import content_hash
from karat.records import OUTPUT_FAILED, EvaluatorSpec, Example, ItemResult, Skipped
from karat.store import Store
from karat.store.handles import CHUNK, Evaluation, Run
from karat.store.repositories import latest, result_decoder

RunOrEvaluation: TypeAlias = Run | Evaluation | str
"""What can be compared and ranked: a run, an evaluation whose runs are meant, or the id of one."""

Item = tuple[str, int, str]
"""An item of a run: the example's id, the attempt and the unit."""


class Source(NamedTuple):
    """Where the results of one run by one evaluator are."""

    evaluation: Evaluation
    spec: EvaluatorSpec


class Scores:
    """The scores of one run by one evaluator."""

    def __init__(self, run: Run, source: Source) -> None:
        self.run = run
        self.source = source
        self.items: dict[Item, float | None] = {}
        """One for every item that should have a score; None where it has none."""
        self.failed: set[Item] = set()
        """The items whose output failed."""
        self.not_applicable: set[Item] = set()
        self.positions: dict[str, int] = {}
        """The position of each example in the dataset."""
        self.unlisted = 0
        """Pending items of which it is not known to which example they belong: units that no output names yet."""


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
            item = (result.example, result.attempt, result.unit)
            found.positions[result.example] = position
            outcome = result.outcome
            if isinstance(outcome, Skipped):
                if not outcome.applicable:
                    found.not_applicable.add(item)
                    continue
                if outcome.reason == OUTPUT_FAILED:
                    found.failed.add(item)
            found.items[item] = result.score
    for table in tables:
        _add_pending(table)
    return tables


def _add_pending(table: Scores) -> None:
    """Add the items of the run that the evaluation has no result of."""
    run = table.run
    expected = Together([run], len(run.dataset))
    total = expected.total()
    if len(table.items) + len(table.not_applicable) >= total:
        return
    listed = _listed_items(run, expected)
    ids = {position: example for example, position in table.positions.items()}
    ids |= example_ids(run, sorted({position for position, _, _ in listed} - ids.keys()))
    for position, attempt, unit in listed:
        item = (ids[position], attempt, unit)
        if item not in table.items and item not in table.not_applicable:
            table.items[item] = None
            table.positions[ids[position]] = position
    table.unlisted = max(0, total - len(table.items) - len(table.not_applicable))


def _listed_items(run: Run, expected: Together) -> list[tuple[int, int, str]]:
    """`(position, attempt, unit)` of the items of a run; one without a unit where nothing is stored of an attempt."""
    units: dict[tuple[int, int], list[str]] = {}
    for start in range(expected.first, expected.last, CHUNK):
        marks = run.store.backend.marks(run.number, start, start + CHUNK)
        for position, item in dict.fromkeys((mark.position, mark.item) for mark in marks):
            attempt, _, unit = item.partition("/")
            units.setdefault((position, int(attempt)), []).append(unit)
    return [
        (position, attempt, unit)
        for position in range(expected.first, expected.last)
        for attempt in range(1, expected.attempts + 1)
        for unit in units.get((position, attempt), [""])
    ]


class _Identified(msgspec.Struct):
    id: str


def example_ids(run: Run, positions: Sequence[int]) -> dict[int, str]:
    """The ids of the examples at some positions, given in order."""
    wanted, data, found = set(positions), run.dataset, {}
    decode = msgspec.json.Decoder(_Identified).decode
    for start in range(positions[0], positions[-1] + 1, CHUNK) if positions else ():
        if not wanted.isdisjoint(range(start, start + CHUNK)):
            for row in run.store.backend.scan(data.number, start, start + CHUNK):
                if row.position in wanted:
                    found[row.position] = decode(row.payload).id
    return found


def current_results(evaluation: Evaluation) -> Iterator[tuple[int, ItemResult]]:
    """`(position, result)` of the current try of every item, in dataset order."""
    backend, decode = evaluation.store.backend, result_decoder.decode
    for start in range(0, backend.extent(evaluation.number), CHUNK):
        for row in latest(backend.scan(evaluation.number, start, start + CHUNK)):
            yield row.position, decode(row.payload)


def runs_and_evaluations(
    store: Store, given: Sequence[RunOrEvaluation]
) -> tuple[list[Run], list[Evaluation]]:
    """The runs that are meant, and the evaluations to look in: those that are given, else all of these runs."""
    runs: dict[str, Run] = {}
    evaluations: dict[str, Evaluation] = {}
    for each in given:
        handle = handle_of(store, each)
        if isinstance(handle, Run):
            runs[handle.id] = handle
        elif isinstance(handle, Evaluation):
            evaluations[handle.id] = handle
            runs.update({run.id: run for run in handle.runs})
        else:
            raise RequestError(
                f"{getattr(handle, 'id', handle)} is neither a run nor an evaluation: give runs or evaluations"
            )
    if not evaluations:
        wanted = set(runs)
        evaluations = {e.id: e for e in store.evaluations.list() if wanted & set(e.header.runs)}
    return list(runs.values()), list(evaluations.values())


def handle_of(store: Store, given: RunOrEvaluation) -> Any:
    """What an id names; `latest` is the latest run."""
    if given == "latest":
        return store.runs.get("latest")
    return store.get(given) if isinstance(given, str) else given


def sources_of(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> dict[str, dict[str, Source]]:
    """For each evaluator key, where the results of each run are: the newest of the evaluations that has them.

    Where two runs were judged by different evaluators of one key, the newest one that most runs share is taken.
    """
    return {key: _same_evaluator(by_run) for key, by_run in _all_sources(runs, evaluations).items()}


def _all_sources(
    runs: Sequence[Run], evaluations: Sequence[Evaluation]
) -> dict[str, dict[str, list[Source]]]:
    found: dict[str, dict[str, list[Source]]] = {}
    wanted = {run.id for run in runs}
    for evaluation in evaluations:
        for spec in evaluation.header.evaluators:
            if spec.kind == "single":
                for run in evaluation.header.runs:
                    if run in wanted:
                        found.setdefault(spec.key, {}).setdefault(run, []).append(Source(evaluation, spec))
    return found


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


def chosen_keys(
    sources: dict[str, dict[str, Source]],
    runs: Sequence[Run],
    evaluations: Sequence[Evaluation],
    wanted: Sequence[str] | None,
) -> list[str]:
    """The evaluator keys that all runs have results of, or those that were asked for."""
    shared = [key for key, by_run in sources.items() if all(run.id in by_run for run in runs)]
    for key in wanted or ():
        if key in sources and key not in shared:
            raise RequestError(_not_shared(key, sources[key], runs, evaluations))
        if key not in sources:
            raise RequestError(
                f"no results of {key!r}: {did_you_mean(key, sources) if sources else evaluate_first(runs)}"
            )
    if not wanted and not shared:
        if not sources:
            raise RequestError(f"no evaluation has results of these runs: {evaluate_first(runs)}")
        key, by_run = max(sources.items(), key=lambda each: len(each[1]))
        raise RequestError(
            f"no evaluator has judged all of these runs: {_not_shared(key, by_run, runs, evaluations)}"
        )
    return list(wanted or shared)


def _not_shared(
    key: str, by_run: dict[str, Source], runs: Sequence[Run], evaluations: Sequence[Evaluation]
) -> str:
    """Why an evaluator's results cannot be compared: it differs between the runs, or has not judged some of them."""
    lacking = [run.id for run in runs if run.id not in by_run]
    spec = next(iter(by_run.values())).spec
    others = _all_sources(runs, evaluations).get(key, {})
    for run in lacking:
        for other in others.get(run, ()):
            differing = _differing_params(spec, other.spec)
            which = f"{differing} differs" if differing else "its code differs"
            return (
                f"{key!r} is not the same evaluator for all runs: {which} between {other.evaluation.id}"
                f" ({run}) and {next(iter(by_run.values())).evaluation.id}; evaluate the runs together:"
                f" karat evaluate {' '.join(each.id for each in runs)} -e {spec.name}"
            )
    return f"{key!r} has not judged {', '.join(lacking)}: karat evaluate {' '.join(lacking)} -e {spec.name}"


def _differing_params(first: EvaluatorSpec, second: EvaluatorSpec) -> str:
    """The parameters in which two evaluators differ: `case_sensitive (false and true)`."""
    if first.name != second.name:
        return f"the name ({second.name} and {first.name})"
    names = [
        name
        for name in {**first.params, **second.params}
        if first.params.get(name) != second.params.get(name)
    ]

    def text(spec: EvaluatorSpec, name: str) -> str:
        return msgspec.json.encode(spec.params[name]).decode() if name in spec.params else "default"

    return ", ".join(f"parameter {name} ({text(second, name)} and {text(first, name)})" for name in names[:3])


def evaluate_first(runs: Sequence[Run]) -> str:
    """The command that evaluates some runs."""
    return (
        f"evaluate the runs first, with karat evaluate {' '.join(run.id for run in runs[:5])} -e exact_match"
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


ScoresByExample: TypeAlias = dict[str, dict[tuple[int, str], float | None]]


def pair_scores(
    first: Scores, second: Scores, shared: Callable[[str], bool], transform: Callable[[float], float]
) -> Paired:
    """Pair the scores of the examples that both runs have; attempt with attempt where they made equally many.

    An item that one run lacks within an example both have is a missing score, not a smaller comparison.
    """
    out = first.not_applicable | second.not_applicable
    mine, theirs = _by_example(first, out, transform), _by_example(second, out, transform)
    both = [example for example in mine if example in theirs and shared(example)]
    notes = [_overlap(len(mine), len(theirs), len(both))]
    if first.run.header.attempts != second.run.header.attempts:
        notes.append("the runs made different numbers of attempts, so means of examples are compared")
        means = [(_mean(mine[example]), _mean(theirs[example])) for example in both]
        return Paired(both, [a for a, _ in means], [b for _, b in means], False, _joined(notes))
    examples: list[str] = []
    a: list[float | None] = []
    b: list[float | None] = []
    for example in both:
        for item in _aligned(mine[example], theirs[example]):
            examples.append(example)
            a.append(mine[example].get(item))
            b.append(theirs[example].get(item))
            if (item not in mine[example] or item not in theirs[example]) and len(notes) == 1:
                notes.append("units that only one run has count as missing in the other")
    several = len(examples) > len(both)
    lacking = unlisted_pairs(first, second)
    return Paired(
        examples + [""] * lacking, a + [None] * lacking, b + [None] * lacking, several, _joined(notes)
    )


def _aligned(
    first: Iterable[tuple[int, str]], second: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, str]]:
    """`(attempt, unit)` of an example that both runs should have. Where one is pending, the other names the units."""
    items = dict.fromkeys([*first, *second])
    with_units = {attempt for attempt, unit in items if unit}
    return (item for item in items if item[1] or item[0] not in with_units)


def aligned_items(first: Scores, second: Scores) -> Iterator[Item]:
    """The items that two runs should both have, in dataset order of the first."""
    out = first.not_applicable | second.not_applicable
    mine, theirs = _by_example(first, out, float), _by_example(second, out, float)
    attempts = min(first.run.header.attempts, second.run.header.attempts)
    for example in mine:
        for attempt, unit in _aligned(mine[example], theirs[example]) if example in theirs else ():
            if attempt <= attempts:
                yield example, attempt, unit


def unlisted_pairs(first: Scores, second: Scores) -> int:
    """The pairs that are pending in both runs and belong to no known item."""
    return min(first.unlisted, second.unlisted) if _same_selection(first.run, second.run) else 0


def _same_selection(first: Run, second: Run) -> bool:
    a, b = first.header, second.header
    return (a.dataset, a.offset, a.limit) == (b.dataset, b.offset, b.limit)


def _by_example(scores: Scores, out: set[Item], transform: Callable[[float], float]) -> ScoresByExample:
    found: ScoresByExample = {}
    for item, score in scores.items.items():
        if item not in out:
            example, attempt, unit = item
            found.setdefault(example, {})[attempt, unit] = None if score is None else transform(score)
    return found


def _mean(scores: dict[tuple[int, str], float | None]) -> float | None:
    """The mean of an example's scores; None when one of them is missing."""
    known = [score for score in scores.values() if score is not None]
    return sum(known) / len(known) if known and len(known) == len(scores) else None


def _overlap(mine: int, theirs: int, both: int) -> str:
    if mine == theirs == both:
        return ""
    return f"compared over the {both:,} examples that both have, of {mine:,} and {theirs:,}"


def _joined(notes: Sequence[str]) -> str:
    return "; ".join(note for note in notes if note)


def shared_examples(store: Store, datasets: Sequence[str]) -> tuple[Callable[[str], bool], str]:
    """A test whether an example is the same in all datasets, and a note where there are several datasets."""
    if len(datasets) == 1:
        return (lambda _: True), ""
    handles = [store.datasets.get(each) for each in datasets]
    common: dict[str, str] = {}
    for place, data in enumerate(handles):
        here = {example.id: content_hash([example.input, example.expected]) for example in data}
        common = here if place == 0 else {k: v for k, v in common.items() if here.get(k) == v}
    names = " and ".join(f"{data.label} ({len(data):,} examples)" for data in handles)
    if not common:
        raise RequestError(f"the runs are of different datasets that share no example: {names}")
    note = f"the runs are of different datasets, {names}: compared over the {len(common):,} examples that are the same"
    return common.__contains__, note


class _Described(msgspec.Struct):
    id: str
    metadata: dict[str, Any] = {}


def cluster_labels(store: Store, datasets: Sequence[str], field: str) -> dict[str, str]:
    """The cluster of each example, by a field of its metadata; an example without it is a cluster of its own."""
    decode = msgspec.json.Decoder(_Described).decode
    fields = FieldNames()
    labels: dict[str, str] = {}
    for dataset in datasets:
        for _, payload in store.datasets.get(dataset).encoded():
            example = decode(payload)
            value = paths.get(example.metadata, field)
            fields.note(example.metadata, value)
            if value is not None:
                labels[example.id] = f"{field}={value}"
    try:
        fields.check(field, "cluster")
    except ValueError as error:
        raise RequestError(str(error)) from error
    return labels


def example_at(store: Store, dataset: str, position: int) -> Example | None:
    """The example at a position of a dataset."""
    rows = store.backend.scan(store.datasets.get(dataset).number, position, position + 1)
    return msgspec.json.decode(rows[0].payload, type=Example) if rows else None
