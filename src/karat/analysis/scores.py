"""The scores that evaluations hold of some runs, item by item: what runs are compared and ranked by.

An item that should have a score and has none (its output failed or is pending, its judgment failed or is pending) is in
the tables without one, so that comparisons, gates and rankings count it. Scores are read from columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from karat import paths
from karat.aggregators._base import FieldNames, higher_is_better
from karat.aggregators._means import mean_estimate
from karat.errors import RequestError, did_you_mean, plural, wording
from karat.execution.expected_items import Together
from karat.keys import content_hash
from karat.records import Estimate, EvaluatorSpec, Example, UsualMetric
from karat.stats._means import MeanState
from karat.store import Store
from karat.store.backend import FAILED, NOT_APPLICABLE, RecordDecoder
from karat.store.columns import ItemColumns, distinct, example_columns, load_columns
from karat.store.handles import Evaluation, Run, StoredDataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RunOrEvaluation: TypeAlias = Run | Evaluation | str
"""What can be compared and ranked: a run, an evaluation whose runs are meant, or the id of one."""


THRESHOLD = 0.5
"""The score from which on an item passes, for accuracy; where lower is better, up to which."""


def passing(spec: EvaluatorSpec, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which scores pass, as `accuracy` counts them."""
    return scores >= THRESHOLD if spec.higher_is_better else scores <= THRESHOLD


def usual_estimate(
    spec: EvaluatorSpec,
    positions: NDArray[np.integer[Any]],
    scores: NDArray[np.float64],
    of: int,
    confidence: float = 0.95,
    form: UsualMetric | None = None,
) -> Estimate:
    """The usual metric of an evaluator, or the one given, over some items: what `accuracy` and `mean` aggregate.

    NaN is a missing score. The items of an example are a cluster.
    """
    import numpy as np

    form = form or spec.usual_metric
    known, passes = ~np.isnan(scores), form == "accuracy"
    scores = scores[known]
    mean = MeanState()
    mean.add_values(passing(spec, scores).astype(float) if passes else scores, positions[known])
    if passes:
        estimate = mean.proportion(confidence, of=of)
        if not np.isin(scores, (0.0, 1.0)).all():
            estimate.metadata["threshold"] = THRESHOLD
        if not spec.higher_is_better:
            estimate = higher_is_better(estimate)
    else:
        estimate = mean_estimate(mean, spec.bounds or (0.0, 1.0), of, confidence)
    return estimate.about(evaluator=spec.key, aggregator=form)


class Source(NamedTuple):
    """Where the results of one run by one evaluator are stored."""

    evaluation: Evaluation
    spec: EvaluatorSpec


class Scores:
    """The scores of one run by one evaluator, as arrays: first the items that have a result, then pending ones."""

    def __init__(self, run: Run, source: Source, names: list[tuple[int, str]], arrays: ScoreArrays) -> None:
        self.run = run
        self.source = source
        self.names = names
        """The different `(attempt, unit)` …"""
        self.positions = arrays.positions
        """The position of the example of every item that should have a score."""
        self.codes = arrays.codes
        """… and the place of each item's name in them."""
        self.scores = arrays.scores
        """NaN where there is none."""
        self.not_applicable = arrays.not_applicable
        """`(position, code)` of the items that the evaluator does not apply to."""
        self.unlisted = 0
        """Pending items of which it is not known to which example they belong: units that no output names yet."""

    @cached_property
    def failed(self) -> NDArray[np.bool_]:
        """Whether the output of each item has failed, and was not computed since."""
        if self.run.header.finished is not None and not self.run.counts.failed:
            import numpy as np

            return np.zeros(len(self.positions), bool)
        return self._have(load_columns(self.run, (), statuses=[FAILED]))

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """Whether the run has an output of each item, or its failure: it is not pending."""
        return self._have(load_columns(self.run, ()))

    def _have(self, outputs: ItemColumns) -> NDArray[np.bool_]:
        """Return a mask of the items that some outputs have."""
        import numpy as np

        places, many = {name: place for place, name in enumerate(self.names)}, max(1, len(self.names))
        known = np.array([places.get((item.attempt, item.unit), -1) for item in outputs.items] or [-1], "<i8")
        there = known[outputs.codes] if len(outputs) else np.empty(0, np.int64)
        kept = there >= 0
        keys = _keys(outputs.positions[kept], there[kept], many)
        found: NDArray[np.bool_] = np.isin(_keys(self.positions, self.codes, many), keys)
        return found

    @property
    def has_units(self) -> bool:
        """Whether its examples have several outputs."""
        return any(unit for _, unit in self.names)

    def unit_of(self, place: int) -> str:
        """The unit of the item at a place; empty for a negative one."""
        return self.names[self.codes[place]][1] if place >= 0 else ""


class ScoreArrays(NamedTuple):
    """Items with their scores."""

    positions: NDArray[np.int32]
    codes: NDArray[np.int32]
    scores: NDArray[np.float64]
    not_applicable: tuple[NDArray[np.int32], NDArray[np.int32]]


def read_scores(sources: Sequence[tuple[Run, Source]]) -> list[Scores]:
    """The scores of several runs, from the columns of their evaluations."""
    return [_read(run, source) for run, source in sources]


def _read(run: Run, source: Source) -> Scores:
    import numpy as np

    header = source.evaluation.header
    evaluator = next(i for i, spec in enumerate(header.evaluators) if spec.key == source.spec.key)
    runs = (header.runs.index(run.id),)
    columns = load_columns(
        source.evaluation,
        ("scores",),
        only=lambda item: item.evaluator == evaluator and item.runs == runs,
    )
    names = [(item.attempt, item.unit) for item in columns.items]
    out = columns.statuses == NOT_APPLICABLE
    positions, codes, scores = columns.positions, columns.codes, columns.scores
    excluded = positions[out], codes[out]
    if out.any():
        kept = np.logical_not(out)
        positions, codes, scores = positions[kept], codes[kept], scores[kept]
    table = Scores(run, source, names, ScoreArrays(positions, codes, scores, excluded))
    _add_pending(table)
    return table


def _add_pending(table: Scores) -> None:
    """Add the items of the run that the evaluation has no result of."""
    import numpy as np

    run = table.run
    total = Together([run], len(run.dataset)).total()
    have = len(table.positions) + len(table.not_applicable[0])
    if have >= total:
        return
    listed = listed_items(run)
    places = {name: place for place, name in enumerate(table.names)}
    for name in listed.names:
        if name not in places:
            places[name] = len(table.names)
            table.names.append(name)
    moved = np.array([places[name] for name in listed.names] or [0], np.int32)
    codes = moved[listed.codes] if len(listed.codes) else listed.codes
    many = max(1, len(table.names))
    known = np.concatenate(
        [
            _keys(table.positions, table.codes, many),
            _keys(*table.not_applicable, many),
        ]
    )
    new = ~np.isin(_keys(listed.positions, codes, many), known)
    count = int(new.sum())
    table.positions = np.concatenate([table.positions, listed.positions[new]])
    table.codes = np.concatenate([table.codes, codes[new]])
    table.scores = np.concatenate([table.scores, np.full(count, np.nan)])
    table.unlisted = max(0, total - len(table.positions) - len(table.not_applicable[0]))


def _keys(positions: NDArray[Any], codes: NDArray[Any], names: int) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = positions.astype("<i8") * names + codes
    return keys


class ListedItems(NamedTuple):
    """The items of a run: those that are stored, and one without a unit for each attempt that has none."""

    positions: NDArray[np.int32]
    codes: NDArray[np.int32]
    """The place of each item's name in `names`."""
    names: list[tuple[int, str]]
    stored: NDArray[np.int64]
    """For each item its place in the run's columns, −1 where it is pending."""


def listed_items(run: Run, columns: ItemColumns | None = None) -> ListedItems:
    """The items of a run by position, attempt and unit."""
    import numpy as np

    if columns is None:
        columns = load_columns(run, ())
    expected = Together([run], len(run.dataset))
    many = expected.attempts
    names = [(item.attempt, item.unit) for item in columns.items]
    attempts = np.array([attempt for attempt, _ in names] or [1], "<i8")
    have = columns.positions.astype("<i8") * many + (attempts[columns.codes] if len(columns) else 1) - 1
    first, last = expected.first * many, max(expected.first, expected.last) * many
    stored = np.arange(len(columns))
    known = distinct(have)
    if len(known) == last - first:
        return ListedItems(columns.positions, columns.codes, names, stored)
    missing = np.setdiff1d(np.arange(first, last), known, assume_unique=True)
    places = {name: place for place, name in enumerate(names)}
    for attempt in range(1, many + 1):
        if (attempt, "") not in places:
            places[attempt, ""] = len(names)
            names.append((attempt, ""))
    plain = np.array([places[attempt, ""] for attempt in range(1, many + 1)], "<i4")
    positions = np.concatenate([columns.positions, (missing // many).astype("<i4")])
    codes = np.concatenate([columns.codes, plain[missing % many]])
    stored = np.concatenate([stored, np.full(len(missing), -1)])
    # Stable: the units of an attempt stay in their order.
    order = np.lexsort((np.array([attempt for attempt, _ in names])[codes], positions))
    return ListedItems(positions[order], codes[order], names, stored[order])


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
    """Return the object with an id; `latest` is the latest run."""
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
    """Explain why an evaluator's results cannot be compared: its settings differ, or it has not judged all runs."""
    lacking = [run.id for run in runs if run.id not in by_run]
    spec = next(iter(by_run.values())).spec
    others = _all_sources(runs, evaluations).get(key, {})
    for run in lacking:
        for other in others.get(run, ()):
            return not_the_same(key, next(iter(by_run.values())), other, run, runs)
    command = _evaluate([run for run in runs if run.id in lacking], spec.name)
    return f"{key!r} has not judged {', '.join(lacking)}: {command}"


def not_the_same(key: str, source: Source, other: Source, run: str, runs: Sequence[Run]) -> str:
    """Say that a run was judged by another evaluator of the same key, in what it differs, and what to do."""
    differing = _differing_params(source.spec, other.spec)
    which = f"{differing} differs" if differing else "its code differs"
    return (
        f"{key!r} is not the same evaluator for all runs: {which} between {other.evaluation.id} ({run}) and"
        f" {source.evaluation.id}; evaluate the runs together: {_evaluate(runs, source.spec.name)}"
    )


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
    return f"evaluate the runs first, with {_evaluate(runs[:5], 'exact_match')}"


def _evaluate(runs: Sequence[Run], evaluator: str) -> str:
    ids = [run.id for run in runs]
    return wording(
        runs[0].store.command("evaluate", *ids, "-e", evaluator),
        f"karat.evaluate({ids}, [{evaluator!r}], store=store)",
    )


class Paired(NamedTuple):
    """Two runs' scores side by side."""

    examples: NDArray[np.integer[Any]]
    """The position of the example of each pair in the first run's dataset; −1 if its example is unknown."""
    first: NDArray[np.float64]
    """NaN where there is no score."""
    second: NDArray[np.float64]
    several: bool
    """Whether examples have several pairs."""
    note: str
    """What could not be paired."""
    units: Callable[[int], str] | None = None
    """The unit of a pair by its place; None for examples without units, and for means of examples."""


class Aligned(NamedTuple):
    """The items that two runs should both have, in dataset order of the first."""

    examples: NDArray[np.integer[Any]]
    first: NDArray[np.integer[Any]]
    """For each item its place in the first run's scores, −1 where it has none …"""
    second: NDArray[np.integer[Any]]
    """… and in the second run's."""
    counts: tuple[int, int, int]
    """How many examples the first run has, the second, and both."""


def pair_scores(
    first: Scores, second: Scores, shared: Shared, *, passed: EvaluatorSpec | None = None
) -> Paired:
    """Pair the scores of the examples that both runs have; attempt with attempt where they made equally many.

    An item that one run lacks within an example both have is a missing score, not a smaller comparison. With `passed`,
    a score that passes by this evaluator is 1, and any other 0.
    """
    import numpy as np

    found = align(first, second, shared)
    a, b = _taken(first.scores, found.first, passed), _taken(second.scores, found.second, passed)
    notes = [_overlap(*found.counts)]
    if first.run.header.attempts != second.run.header.attempts:
        notes.append("the runs made different numbers of attempts, so means of examples are compared")
        return _means(first, second, found, passed, _join(notes))
    if ((found.first < 0) | (found.second < 0)).any():
        notes.append("a unit that only one run has counts as missing in the other")
    several = len(found.examples) > found.counts[2]
    units = (lambda pair: first.unit_of(int(found.first[pair]))) if first.has_units else None
    lacking = unlisted_pairs(first, second)
    if not lacking:
        return Paired(found.examples, a, b, several, _join(notes), units)
    nothing = np.full(lacking, np.nan)
    return Paired(
        np.concatenate([found.examples, np.full(lacking, -1)]),
        np.concatenate([a, nothing]),
        np.concatenate([b, nothing]),
        several,
        _join(notes),
        units,
    )


def _taken(
    scores: NDArray[np.float64], places: NDArray[np.integer[Any]], passed: EvaluatorSpec | None
) -> NDArray[np.float64]:
    import numpy as np

    found: NDArray[np.float64]
    if len(places) == len(scores) and bool((places == np.arange(len(places), dtype=np.int32)).all()):
        found = scores  # all of them in their order: a copy would take 8 MB of a million
    elif len(places) and int(places.min()) >= 0:
        found = scores[places]
    else:
        found = np.where(places >= 0, scores[np.maximum(places, 0)] if len(scores) else np.nan, np.nan)
    if passed is not None:
        found = np.where(np.isnan(found), np.nan, passing(passed, found).astype(np.float64))
    return found


def align(first: Scores, second: Scores, shared: Shared) -> Aligned:
    """Find the items of two runs that belong together.

    Where one run is pending, the other names the units. Items that an evaluator does not apply to in one run are left
    out of both.
    """
    import numpy as np

    if (
        _same_items(first, second) and shared.every
    ):  # by far the most frequent case, and the one with the most items
        places = np.arange(len(first.positions), dtype=np.int32)
        return Aligned(first.positions, places, places, (len(places),) * 3)
    mine, theirs, names = _sides(first, second)
    units = first.has_units or second.has_units
    one_each = first.run.header.attempts == second.run.header.attempts == 1 and not units
    same = (
        shared.every
        and len(mine.positions) == len(theirs.positions)
        and np.array_equal(mine.keys, theirs.keys)
    )
    if same and (one_each or (mine.is_contiguous() and not (units and mine.has_plain(names)))):
        count = mine.example_count()
        return Aligned(mine.positions, mine.places, theirs.places, (count, count, count))
    if one_each:
        return _aligned_ones(mine, theirs, shared)
    return _aligned_groups(mine, theirs, names, shared)


def _same_items(first: Scores, second: Scores) -> bool:
    """Whether two runs of a dataset have one item for each example, and the same ones, all of them applicable."""
    import numpy as np

    a, b = first.run.header, second.run.header
    return (
        a.dataset == b.dataset
        and a.attempts == b.attempts == 1
        and first.names == second.names
        and len(first.names) == 1
        and not first.has_units
        and not len(first.not_applicable[0])
        and not len(second.not_applicable[0])
        and np.array_equal(first.positions, second.positions)
    )


def _sides(first: Scores, second: Scores) -> tuple[_Side, _Side, list[tuple[int, str]]]:
    """Return the items of two runs by position and name, without items that are not applicable in either run."""
    import numpy as np

    mine, theirs = _Side(first), _Side(second)
    if first.run.header.dataset != second.run.header.dataset:
        theirs.translate(first.run.dataset, second.run.dataset)
    names = list(dict.fromkeys([*first.names, *second.names]))
    for side in (mine, theirs):
        side.rename(names)
    out = np.concatenate([mine.excluded(len(names)), theirs.excluded(len(names))])
    for side in (mine, theirs):
        side.leave_out(out)
    return mine, theirs, names


class _Side:
    """One run's items while they are aligned."""

    def __init__(self, table: Scores) -> None:
        import numpy as np

        self.table = table
        self.positions = table.positions.astype("<i8")
        self.codes = table.codes.astype("<i8")
        self.places = np.arange(len(table.positions))
        self.out = tuple(each.astype("<i8") for each in table.not_applicable)
        self.keys = self.positions

    def translate(self, target: StoredDataset, own: StoredDataset) -> None:
        """Give positions of another dataset as those that the same ids have in the target; others are negative."""
        import numpy as np

        there, here = example_columns(target), example_columns(own)
        wanted = distinct(np.concatenate([self.positions, self.out[0]]))
        moved = np.full(len(own) + 1, -2, "<i8")
        for position in wanted.tolist():
            found = there.position(here.id(position))
            moved[position] = -2 - position if found is None else found
        self.positions = moved[self.positions]
        self.out = moved[self.out[0]], self.out[1]

    def rename(self, names: Sequence[tuple[int, str]]) -> None:
        """Use the places of names in a common list."""
        import numpy as np

        places = {name: place for place, name in enumerate(names)}
        moved = np.array([places[name] for name in self.table.names] or [0], "<i8")
        self.codes = moved[self.codes] if len(self.codes) else self.codes
        self.out = self.out[0], moved[self.out[1]] if len(self.out[1]) else self.out[1]
        self.keys = self.positions * len(names) + self.codes

    def excluded(self, names: int) -> NDArray[np.int64]:
        keys: NDArray[np.int64] = self.out[0] * names + self.out[1]
        return keys

    def leave_out(self, keys: NDArray[np.int64]) -> None:
        import numpy as np

        if len(keys):
            kept = ~np.isin(self.keys, keys)
            self.positions, self.codes = self.positions[kept], self.codes[kept]
            self.places, self.keys = self.places[kept], self.keys[kept]

    def is_contiguous(self) -> bool:
        """Whether the items of each example follow each other."""
        import numpy as np

        blocks = int((np.diff(self.positions) != 0).sum()) + 1 if len(self.positions) else 0
        return blocks == self.example_count()

    def has_plain(self, names: Sequence[tuple[int, str]]) -> bool:
        """Whether an item has no unit."""
        import numpy as np

        plain = [place for place, (_, unit) in enumerate(names) if not unit]
        return bool(np.isin(self.codes, plain).any())

    def example_count(self) -> int:

        return len(distinct(self.positions))


def _aligned_ones(mine: _Side, theirs: _Side, shared: Shared) -> Aligned:
    """Align runs that have one item for each example."""
    import numpy as np

    order = np.argsort(theirs.positions, kind="stable")
    there = theirs.positions[order]
    at = np.minimum(np.searchsorted(there, mine.positions), max(0, len(there) - 1))
    both = there[at] == mine.positions if len(there) else np.zeros(len(mine.positions), bool)
    if not shared.every:
        both &= shared.mask(mine.positions)
    counts = (len(mine.positions), len(there), int(both.sum()))
    return Aligned(mine.positions[both], mine.places[both], theirs.places[order[at[both]]], counts)


def _aligned_groups(mine: _Side, theirs: _Side, names: Sequence[tuple[int, str]], shared: Shared) -> Aligned:
    """Align runs whose examples have several items, example by example."""
    import numpy as np

    sides = []
    for side in (mine, theirs):
        found: dict[int, dict[int, int]] = {}
        for position, code, place in zip(
            side.positions.tolist(), side.codes.tolist(), side.places.tolist(), strict=True
        ):
            found.setdefault(position, {})[code] = place
        sides.append(found)
    first, second = sides
    both = [example for example in first if example in second]
    if not shared.every:
        kept = shared.mask(np.array(both, "<i8"))
        both = [example for example, keep in zip(both, kept.tolist(), strict=True) if keep]
    left_out: dict[int, set[int]] = {}
    """Of examples, the attempts of which a unit is left out."""
    for side in (mine, theirs):
        for position, code in zip(*(each.tolist() for each in side.out), strict=True):
            if names[code][1]:
                left_out.setdefault(position, set()).add(names[code][0])
    rows: list[tuple[int, int, int]] = []
    for example in both:
        a, b = first[example], second[example]
        items = dict.fromkeys([*a, *b])
        with_units = {names[code][0] for code in items if names[code][1]} | left_out.get(example, set())
        for code in items:
            attempt, unit = names[code]
            if unit or attempt not in with_units:
                rows.append((example, a.get(code, -1), b.get(code, -1)))
    examples, ones, others = np.array(rows, "<i8").reshape(-1, 3).T
    return Aligned(examples, ones, others, (len(first), len(second), len(both)))


def _means(first: Scores, second: Scores, found: Aligned, passed: EvaluatorSpec | None, note: str) -> Paired:
    """Average the attempts of each example that both runs have; missing if an attempt is."""
    import numpy as np

    examples = list(dict.fromkeys(found.examples.tolist()))
    mine, theirs, _ = _sides(first, second)
    means = []
    for side in (mine, theirs):
        scores: dict[int, list[float]] = {}
        values = _taken(side.table.scores, side.places, passed).tolist()
        for position, score in zip(side.positions.tolist(), values, strict=True):
            scores.setdefault(position, []).append(score)
        means.append(np.array([_mean(scores.get(example, [])) for example in examples], np.float64))
    return Paired(np.array(examples, "<i8"), means[0], means[1], False, note)


def unlisted_pairs(first: Scores, second: Scores) -> int:
    """The pairs that are pending in both runs and belong to no known item."""
    return min(first.unlisted, second.unlisted) if _same_selection(first.run, second.run) else 0


def _same_selection(first: Run, second: Run) -> bool:
    a, b = first.header, second.header
    return (a.dataset, a.offset, a.limit) == (b.dataset, b.offset, b.limit)


def _mean(scores: Sequence[float]) -> float:
    """Average the scores of an example; NaN if a score is missing."""
    return sum(scores) / len(scores) if scores and not any(map(math.isnan, scores)) else math.nan


def _overlap(mine: int, theirs: int, both: int) -> str:
    if mine == theirs == both:
        return ""
    return f"compared over the {both:,} examples that both have, of {mine:,} and {theirs:,}"


def _join(notes: Sequence[str]) -> str:
    return "; ".join(note for note in notes if note)


class Shared:
    """The examples that are the same in all datasets of a comparison."""

    def __init__(self, dataset: StoredDataset | None = None, ids: Collection[str] = ()) -> None:
        self._dataset = dataset
        self._ids = ids
        self._known: NDArray[np.bool_] | None = None

    @property
    def every(self) -> bool:
        """Whether all runs share one dataset, and so all its examples."""
        return self._dataset is None

    def mask(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the examples at some positions of the first dataset are the same in the others."""
        import numpy as np

        assert self._dataset is not None
        if self._known is None:
            ids = self._ids
            known = [id in ids for id in example_columns(self._dataset).ids()]
            self._known = np.array([*known, False], bool)
        inside = positions >= 0
        return inside & self._known[np.where(inside, positions, len(self._known) - 1)]


def shared_examples(store: Store, datasets: Sequence[str]) -> tuple[Shared, str]:
    """The examples that are the same in all datasets, and a note where there are several datasets."""
    if len(datasets) == 1:
        return Shared(), ""
    handles = [store.datasets.get(each) for each in datasets]
    common: dict[str, str] = {}
    for place, data in enumerate(handles):
        here = {example.id: content_hash([example.input, example.expected]) for example in data}
        common = here if place == 0 else {k: v for k, v in common.items() if here.get(k) == v}
    names = " and ".join(f"{data.label} ({plural(len(data), 'example')})" for data in handles)
    if not common:
        raise RequestError(
            f"the runs have different datasets that share no example, {names}: run both over one"
        )
    note = f"the runs have different datasets, {names}: compared over the {plural(len(common), 'identical example')}"
    return Shared(handles[0], common), note


class _Described(msgspec.Struct):
    id: str
    metadata: dict[str, Any] = {}


def cluster_labels(store: Store, datasets: Sequence[str], field: str) -> dict[str, str]:
    """Return the cluster of each example by a metadata field; each example without it is a separate cluster."""
    decode = RecordDecoder(_Described).decode
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
    rows = store.datasets.get(dataset).scan(position, position + 1)
    return RecordDecoder(Example).decode(rows[0].payload) if rows else None
