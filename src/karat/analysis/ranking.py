"""Runs from best to worst: from comparisons that evaluators made, or from scores of the same items.

Also the plan of a ranking: which comparisons are missing, and what they would cost.
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

import msgspec
import numpy as np

from karat.aggregators._comparisons import (
    Compared,
    Failures,
    Method,
    Outcomes,
    RankedRuns,
    Tally,
    checked_method,
    outcomes_of,
    probabilities,
    rank_tally,
)
from karat.analysis.comparison import arrow, unequal_settings
from karat.analysis.scores import (
    RunOrEvaluation,
    Scores,
    Shared,
    align,
    chosen_keys,
    handle_of,
    read_scores,
    runs_and_evaluations,
    sources_of,
    unlisted_pairs,
)
from karat.analysis.stored_analyses import Analysis, find_or_compute
from karat.errors import CannotJudge, RequestError, StoreError, did_you_mean, option, plural, wording
from karat.evaluators import evaluators
from karat.execution.arguments import (
    DEFAULT_CONCURRENCY,
    EvaluationLike,
    EvaluatorLike,
    StageOptions,
    StoreLike,
    as_list,
    read_options,
    store_of,
)
from karat.execution.engines import in_thread
from karat.execution.evaluate import evaluate_async
from karat.execution.expected_items import FailedOutputs, Together
from karat.execution.judgments import PreparedEvaluator
from karat.execution.progress import Listener
from karat.formatting import (
    Block,
    Heading,
    Paragraph,
    Table,
    as_text,
    bounds_text,
    interval,
    matrix_table,
    number,
    percent,
)
from karat.records import FORMAT, Estimate, Failed, ItemResult, Ok, Result, Skipped, groups_of
from karat.stats._paired import score_differences
from karat.store import Store
from karat.store.backend import NOT_APPLICABLE, OK, REUSED, RecordDecoder, latest, restore_from_copy
from karat.store.columns import (
    ORDERS,
    ItemColumns,
    ItemName,
    distinct,
    example_columns,
    item_name,
    load_columns,
)
from karat.store.handles import CHUNK, Evaluation, Run
from karat.store.run_labels import run_labels
from karat.sync import sync_twin

if TYPE_CHECKING:
    from numpy.typing import NDArray

Ties = Literal["half", "davidson"]


class Place(msgspec.Struct, frozen=True):
    """One run in a ranking."""

    run: str
    label: str
    rank: int
    """Equal ratings share a rank."""
    rating: Estimate
    win_rate: Estimate
    rank_low: int = 0
    rank_high: int = 0
    wins: int = 0
    losses: int = 0
    ties: int = 0
    component: int = 0
    """Runs of different components were never compared, not even by way of others."""


class Ranking(Analysis, msgspec.Struct, frozen=True):
    """Runs from best to worst, and what else their comparisons say."""

    places: list[Place]
    method: Method
    source: str
    """The evaluator that it comes from."""
    n: int
    of: int
    """The comparisons that there should be: `n`, and those that failed or are pending."""
    examples: int
    ties: int
    position_bias: Estimate
    win_probability: list[list[float | None]] = []
    """`[i][j]`: that the run at place i wins against that at place j; None where nothing connects them."""
    components: list[list[str]] = []
    notes: list[str] = []
    confidence: float = 0.95
    failures: Failures = "lose"
    failed: int = 0
    """The comparisons that a failed output decided."""
    higher_is_better: bool = True
    conclusions: list[str] = []
    id: str = ""
    """The id of the aggregation that stores it."""

    def estimates(self) -> list[Estimate]:
        """The rating and the win rate of each run, and the position bias."""
        found = []
        for place in self.places:
            for name, estimate in (("", place.rating), ("win_rate", place.win_rate)):
                found.append(
                    estimate.about(name=name, run=place.run, evaluator=self.source, aggregator="ranking")
                )
        bias = self.position_bias.about(evaluator=self.source, aggregator="ranking", name="position_bias")
        return [*found, bias]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"kind": "ranking", **msgspec.to_builtins(self)}

    def blocks(self) -> list[Block]:
        """The sentences and tables of the report."""
        return ranking_blocks(self)

    def __repr__(self) -> str:
        return f"<ranking {self.id}: {' '.join(self.conclusions)}>"


def tally_results(
    evaluations: Sequence[Evaluation], runs: Sequence[Run], key: str, failures: Failures
) -> Tally:
    """The comparisons of some runs that evaluations hold; those that several hold count once.

    A comparison that an unfinished evaluation has no result of is missing.
    """
    wanted = {run.id for run in runs}
    ordered = any(s.both_orders for each in evaluations for s in each.header.evaluators if s.key == key)
    found = _Comparisons(key, wanted, failures, evaluations)
    expected: dict[Any, tuple[tuple[str, ...], Together, Evaluation]] = {}
    for evaluation in reversed(evaluations):
        found.read(evaluation)
        expected |= _expected_comparisons(evaluation, key, wanted, ordered)
    found.choose(ordered)
    tally = found.tally()
    for shown, (group, items, evaluation) in expected.items():
        have = found.counts([_together(item[0], ordered) == shown for item in found.items])
        numbers = found.numbers(evaluation)
        pending = sum(
            max(0, items.at(position) - have[position if numbers is None else int(numbers[position])])
            for position in range(items.first, items.last)
        )
        for pair in combinations([run for run in group if run in wanted], 2):
            earlier, later = sorted(pair)
            tally.missing[earlier, later] += pending
    return tally


class _Verdict(NamedTuple):
    """The verdict of a result on its runs."""

    compared: tuple[Compared, ...]
    missing: tuple[tuple[str, str], ...]
    judged: bool
    error: str = ""


class _Record(msgspec.Struct, gc=False):
    """The fields of a result that a ranking needs; its model calls, most of its size, are not decoded."""

    runs: tuple[str, ...]
    outcome: Ok[Result] | Failed | Skipped


_decode_record = RecordDecoder(_Record).decode


class _Comparisons:
    """The comparisons of some runs by one evaluator, as arrays: those of the newest evaluation first.

    The score of a comparison of two runs, and a judge's verdicts in both orders, are in columns. Records are read of
    those that failed or were skipped, of evaluators that see all runs together, and of what an earlier karat stored.
    """

    def __init__(
        self, key: str, wanted: set[str], failures: Failures, evaluations: Sequence[Evaluation]
    ) -> None:
        self.key = key
        self.wanted = wanted
        self.failures = failures
        self.items: dict[tuple[tuple[str, ...], int, str], int] = {}
        """The number of each (runs in the order shown, attempt, unit)."""
        self._verdicts: dict[_Verdict, int] = {}
        self._known: dict[tuple[int, float, int], int] = {}
        """The verdict of each (item, score, orders)."""
        self._examples: NDArray[np.int64] = np.zeros(0, np.int64)
        self._codes: NDArray[np.int64] = np.zeros(0, np.int64)
        self._found: NDArray[np.int64] = np.zeros(0, np.int64)
        self._ids: dict[str, int] | None = None
        self._numbers: dict[str, NDArray[np.int64]] = {}
        if len({each.header.dataset for each in evaluations}) > 1:
            self._ids = {}

    def numbers(self, evaluation: Evaluation) -> NDArray[np.int64] | None:
        """The number of each example of a dataset; None if it is its position, as it is for one dataset."""
        if self._ids is None:
            return None
        dataset, ids = evaluation.dataset, self._ids
        if dataset.id not in self._numbers:
            names = example_columns(dataset).ids()
            self._numbers[dataset.id] = np.array([ids.setdefault(name, len(ids)) for name in names], np.int64)
        return self._numbers[dataset.id]

    def read(self, evaluation: Evaluation) -> None:
        """Add the comparisons of an evaluation."""
        header, wanted = evaluation.header, self.wanted
        evaluators = {place for place, spec in enumerate(header.evaluators) if spec.key == self.key}
        mine = {place for place, run in enumerate(header.runs) if run in wanted}
        columns = load_columns(
            evaluation, ("scores", "orders"), only=partial(_is_of_several, evaluators, mine)
        )
        if not len(columns):
            return
        shown = [
            (tuple(header.runs[place] for place in item.runs), item.attempt, item.unit)
            for item in columns.items
        ]
        table = np.array([self.items.setdefault(each, len(self.items)) for each in shown], np.int64)
        codes = table[columns.codes]
        pairs = np.array([len(item.runs) == 2 for item in columns.items])[columns.codes]
        scored = pairs & ~np.isnan(columns.scores) & (columns.orders < len(ORDERS))
        plain = np.flatnonzero(scored & np.isin(columns.statuses, (OK, REUSED)))
        out = columns.statuses == NOT_APPLICABLE
        names, known = list(self.items), self._known
        found = np.full(len(columns), -1, np.int64)
        judged = []
        parts = (codes[plain], columns.scores[plain], columns.orders[plain])
        for each in zip(*(part.tolist() for part in parts), strict=True):
            verdict = known.get(each)
            if verdict is None:
                code, score, order = each
                first, second = names[code][0]
                compared = Compared(first, second, score, positions=ORDERS[order])
                verdict = known[each] = self._number(_Verdict((compared,), (), True))
            judged.append(verdict)
        found[plain] = judged
        found[out] = self._number(_Verdict((), (), False))
        rest = np.flatnonzero(found < 0)
        if len(rest):
            found[rest] = self._read_records(evaluation, columns, rest)
        numbers = self.numbers(evaluation)
        examples = columns.positions.astype(np.int64) if numbers is None else numbers[columns.positions]
        self._examples = np.concatenate([self._examples, examples])
        self._codes = np.concatenate([self._codes, codes])
        self._found = np.concatenate([self._found, found])

    def _number(self, verdict: _Verdict) -> int:
        return self._verdicts.setdefault(verdict, len(self._verdicts))

    def _read_records(
        self, evaluation: Evaluation, columns: ItemColumns, rest: NDArray[np.int64]
    ) -> list[int]:
        """The verdicts of some comparisons, from their records."""
        positions, codes = columns.positions[rest].tolist(), columns.codes[rest].tolist()
        places = {item: code for code, item in enumerate(columns.items)}
        waiting = dict.fromkeys(zip(positions, codes, strict=True), -1)
        backend, wanted = evaluation.store.backend, distinct(columns.positions[rest]).tolist()
        outputs = FailedOutputs(evaluation.runs)
        for start in range(0, len(wanted), CHUNK):
            for row in latest(backend.scan_at(evaluation.number, wanted[start : start + CHUNK])):
                name = item_name(row.item, evaluation.kind)
                item = row.position, places.get(name, -1)
                if item in waiting:
                    record = _decode_record(row.payload)
                    if isinstance(record.outcome, Skipped) and record.outcome.failed_outputs:
                        record.outcome = outputs.current(
                            record.outcome, row.position, name.attempt, name.unit
                        )
                    waiting[item] = self._number(self._verdict(record))
        lost = next((position for (position, _), verdict in waiting.items() if verdict < 0), None)
        if lost is not None:
            raise StoreError(
                f"{evaluation.id} has no record of a comparison of example {lost + 1} that its columns have:"
                f" {restore_from_copy()}"
            )
        return list(waiting.values())

    def _verdict(self, record: _Record) -> _Verdict:
        outcome = record.outcome
        result = ItemResult(format=FORMAT, example="", key=self.key, runs=record.runs, outcome=outcome)
        compared, missing = outcomes_of(only_of(result, self.wanted), self.failures)
        error = f"{outcome.error.type}: {outcome.error.message}" if isinstance(outcome, Failed) else ""
        return _Verdict(tuple(compared), tuple(missing), isinstance(outcome, Ok), error)

    def choose(self, ordered: bool) -> None:
        """Keep one result of each comparison: the newest, unless it failed and another did not.

        Missing comparisons of pairs that were judged in the opposite order are dropped, unless both orders are due.
        """
        judged = np.array([each.judged for each in self._verdicts], bool)[self._found]
        keys = self._examples * len(self.items) + self._codes
        order = np.lexsort((np.arange(len(keys)), ~judged, keys))
        keys = keys[order]
        self._keep(order[np.append(True, keys[1:] != keys[:-1])] if len(keys) else order)
        if ordered:
            return
        judged = np.array([each.judged for each in self._verdicts], bool)[self._found]
        either: dict[Any, int] = {}
        for shown, attempt, unit in self.items:
            either.setdefault((frozenset(shown), attempt, unit), len(either))
        table = np.array([either[frozenset(s), attempt, unit] for s, attempt, unit in self.items], np.int64)
        keys = self._examples * len(either) + (table[self._codes] if len(table) else self._codes)
        self._keep(np.flatnonzero(judged | ~np.isin(keys, keys[judged])))

    def _keep(self, places: NDArray[np.int64]) -> None:
        self._examples, self._codes = self._examples[places], self._codes[places]
        self._found = self._found[places]

    def counts(self, items: Sequence[bool]) -> Counter[int]:
        """Count the comparisons of each example."""
        chosen = self._examples[np.array(items, bool)[self._codes]] if items else self._examples[:0]
        return Counter(chosen.tolist())

    def tally(self) -> Tally:
        """All comparisons; examples with the same verdicts are counted together."""
        tally, verdicts = Tally(), list(self._verdicts)
        order = np.lexsort((self._found, self._examples))
        examples, found = self._examples[order], self._found[order].tolist()
        starts = [0, *(np.flatnonzero(np.diff(examples)) + 1).tolist(), len(found)]
        groups = Counter(tuple(found[start:stop]) for start, stop in pairwise(starts) if stop > start)
        for group, times in groups.items():  # in the order in which they come first
            members = [verdicts[place] for place in group]
            tally.error = tally.error or next((each.error for each in members if each.error), "")
            tally.add_times([Outcomes(list(each.compared), list(each.missing)) for each in members], times)
        return tally


def _is_of_several(evaluators: set[int], runs: set[int], item: ItemName) -> bool:
    return item.evaluator in evaluators and len(runs.intersection(item.runs)) > 1


def _together(runs: tuple[str, ...], ordered: bool) -> tuple[str, ...] | frozenset[str]:
    return runs if ordered else frozenset(runs)


def _expected_comparisons(
    evaluation: Evaluation, key: str, wanted: set[str], ordered: bool
) -> dict[Any, tuple[tuple[str, ...], Together, Evaluation]]:
    """The comparisons that an evaluation has when it is complete, where it is not: interrupted, or its runs grew."""
    runs, finished = evaluation.runs, evaluation.header.finished
    current = finished is not None and all(
        run.header.finished is not None and run.header.finished <= finished for run in runs
    )
    if current and not evaluation.counts.pending:
        return {}
    count = len(evaluation.dataset)
    out = {}
    for spec in evaluation.header.evaluators:
        if spec.key == key:
            for group in groups_of(spec.kind, spec.both_orders, len(runs)):
                ids = tuple(runs[index].id for index in group)
                if len(wanted.intersection(ids)) > 1:
                    items = Together([runs[index] for index in group], count)
                    out[_together(ids, ordered)] = (ids, items, evaluation)
    return out


def only_of(result: ItemResult, wanted: set[str]) -> ItemResult:
    """A result of all runs together as one of the wanted runs."""
    if wanted.issuperset(result.runs):
        return result
    kept = [place for place, run in enumerate(result.runs) if run in wanted]
    outcome = result.outcome
    if isinstance(outcome, Ok) and isinstance(outcome.value.value, dict):
        value = {
            name: [each[place] for place in kept] if isinstance(each, list) else each
            for name, each in outcome.value.value.items()
        }
        outcome = Ok(msgspec.structs.replace(outcome.value, value=value))
    return msgspec.structs.replace(result, runs=tuple(result.runs[place] for place in kept), outcome=outcome)


def tally_scores(tables: Sequence[Scores], failures: Failures, margin: float = 0.0) -> Tally:
    """Scores turned into comparisons: the better one wins; within `margin` they tie.

    A failed output loses against one that succeeded, unless failures are left out. A failed or pending judgment is
    missing.
    """
    sign = 1.0 if tables[0].source.spec.higher_is_better else -1.0
    pairs = list(combinations(tables, 2))
    found = [_decide_items(one, other, sign, failures, margin) for one, other in pairs]
    tally = Tally()
    every = distinct(np.concatenate([examples for examples, _ in found]))
    if all(len(examples) == len(distinct(examples)) for examples, _ in found):
        # One item for each example and pair: examples with the same verdicts are counted together.
        verdicts = np.full((len(every), len(pairs)), _ABSENT, np.int8)
        for place, (examples, codes) in enumerate(found):
            verdicts[np.searchsorted(every, examples), place] = codes
        rows, times = np.unique(verdicts, axis=0, return_counts=True)
        for row, count in zip(rows.tolist(), times.tolist(), strict=True):
            tally.add_times([_outcome(*pair, code) for pair, code in zip(pairs, row, strict=True)], count)
    else:
        by_example: dict[int, list[Outcomes]] = {}
        for pair, (examples, codes) in zip(pairs, found, strict=True):
            for example, code in zip(examples.tolist(), codes.tolist(), strict=True):
                by_example.setdefault(example, []).append(_outcome(*pair, code))
        for outcomes in by_example.values():
            tally.add(outcomes)
    for one, other in pairs:
        earlier, later = sorted((one.run.id, other.run.id))
        tally.missing[earlier, later] += unlisted_pairs(one, other)
    return tally


_ABSENT, _MISSING = -2, -1
"""Verdicts: a comparison that is not due, and one that is missing. The others are the outcome in halves, plus 3 where a
failed output decided."""


def _decide_items(
    one: Scores, other: Scores, sign: float, failures: Failures, margin: float
) -> tuple[NDArray[np.integer[Any]], NDArray[np.int8]]:
    """The examples of the items that two runs should both have, and the verdict on each."""
    aligned = align(one, other, Shared())
    attempts = min(one.run.header.attempts, other.run.header.attempts)
    sides = []
    kept = np.ones(len(aligned.examples), bool)
    failing = failures == "lose" and bool(one.failed.any() or other.failed.any())
    for table, places in ((one, aligned.first), (other, aligned.second)):
        there, at = places >= 0, np.maximum(places, 0)
        lost = answered = np.zeros(len(at), bool)
        if len(table.scores):
            scores = np.where(there, table.scores[at], np.nan)
            if failing:
                lost, answered = there & table.failed[at], there & table.answered[at]
            attempt = np.array([attempt for attempt, _ in table.names])[table.codes[at]]
            kept &= ~there | (attempt <= attempts)
        else:
            scores = np.full(len(at), np.nan)
        sides.append((sign * scores, lost, answered))
    (a, a_lost, a_answered), (b, b_lost, b_answered) = sides
    ahead = score_differences(b, a)
    codes = np.where(np.abs(ahead) <= margin, 1, np.where(ahead > 0.0, 2, 0)).astype(np.int8)
    codes[np.isnan(a) | np.isnan(b)] = _MISSING
    if failing:
        # A pending output has not succeeded: it does not win.
        decided = (a_lost & b_answered) | (b_lost & a_answered)
        by_failure = np.where(a_lost == b_lost, 1, np.where(b_lost, 2, 0)) + 3
        codes = np.where(decided, by_failure, codes).astype(np.int8)
    return aligned.examples[kept], codes[kept]


def _outcome(one: Scores, other: Scores, code: int) -> Outcomes:
    pair = (one.run.id, other.run.id)
    if code == _ABSENT:
        return Outcomes([], [])
    if code == _MISSING:
        return Outcomes([], [pair])
    by: Literal["failed", "scored"] = "failed" if code >= 3 else "scored"
    return Outcomes([Compared(*pair, code % 3 / 2, by)], [])


def _ranking(
    runs: Sequence[Run],
    tally: Tally,
    source: str,
    *,
    method: Method,
    ties: Ties,
    prior: float,
    confidence: float,
    seed: int,
    failures: Failures,
    higher_is_better: bool,
) -> Ranking:
    """Compute the ranking from comparisons."""
    if not tally.signatures:
        if tally.error:
            raise CannotJudge(
                f"no comparison by {source!r} succeeded, {tally.absent:,} failed or are pending;"
                f" the first error: {tally.error}"
            )
        raise RequestError(f"there are no comparisons of these runs by {source!r}")
    headers = [run.header for run in runs]
    labels = run_labels(headers)
    unequal = unequal_settings(headers, labels)
    names = [run.id for run in runs]
    ranked = rank_tally(tally, names, method=method, ties=ties, prior=prior, confidence=confidence, seed=seed)
    places = [
        Place(
            run=each.name,
            label=labels[each.name],
            rank=each.rank,
            rating=each.rating,
            win_rate=each.win_rate,
            rank_low=each.rank_low,
            rank_high=each.rank_high,
            wins=each.wins,
            losses=each.losses,
            ties=each.ties,
            component=each.component,
        )
        for each in ranked.runs
    ]
    return Ranking(
        places=places,
        method=method,
        source=source,
        n=ranked.n,
        of=ranked.of,
        examples=ranked.examples,
        ties=ranked.fit.ties,
        position_bias=ranked.position_bias,
        win_probability=probabilities(ranked),
        components=[[str(name) for name in members] for members in ranked.fit.components],
        notes=[*(f"Unequal settings: {each}." for each in unequal), *_notes(ranked, tally, labels)],
        confidence=confidence,
        failures=failures,
        failed=ranked.failed,
        higher_is_better=higher_is_better,
        conclusions=[*_conclusions(ranked, places, labels, method), *_doubts(ranked.position_bias)],
    )


def _notes(ranked: RankedRuns, tally: Tally, labels: Mapping[str, str]) -> list[str]:
    notes = []
    components = ranked.fit.components
    if len(components) > 1:
        parts = "; ".join(", ".join(labels[str(name)] for name in members) for members in components)
        notes.append(f"No comparison connects these {len(components)} groups of runs: {parts}.")
    if tally.absent:
        are = "comparison failed or is" if tally.absent == 1 else "comparisons failed or are"
        first = f" The first error: {tally.error}" if tally.error else ""
        notes.append(f"{tally.absent:,} {are} missing.{first}")
    unanimous = [
        run
        for run in ranked.fit.runs
        if run.wins + run.losses and not run.ties and not (run.wins and run.losses)
    ]
    if unanimous:
        names = ", ".join(labels[str(run.name)] for run in unanimous[:3])
        notes.append(f"{names} won or lost every comparison: a weak prior keeps the rating finite.")
    return notes


def _conclusions(
    ranked: RankedRuns, places: Sequence[Place], labels: Mapping[str, str], method: Method
) -> list[str]:
    """Name the best run, and the runs that are not significantly different from it."""
    first = places[0]
    missing = ranked.of - ranked.n
    but = ""
    if missing:
        are = "is" if missing == 1 else "are"
        but = f" {missing:,} of {ranked.of:,} comparisons {are} missing and could change this."
    if len(ranked.fit.components) > 1:
        return [f"Not all runs can be ranked against each other: no comparison connects them.{but}"]
    if len(places) == 2:
        return [_sentence_of_two(ranked, places) + but]
    if method == "elo":
        top = [place.label for place in places if place.rank == 1]
        verb = "have the highest rating" if len(top) > 1 else "has the highest rating"
        return [
            f"{', '.join(top)} {verb}. Elo ratings have no interval for strength: use bradley_terry to tell"
            f" runs apart.{but}"
        ]
    if all(place.rank == 1 for place in places):
        return [f"No difference found between the {len(places)} runs: all have the same rating.{but}"]
    rivals = [place.label for place in places[1:] if place.rank_low <= 1]
    if not rivals:
        return [
            f"{first.label} is the best of {len(places)} runs: it is better than each of the others.{but}"
        ]
    if len(rivals) == len(places) - 1:
        return [
            f"No run is found to be the best: {first.label} ranks first, but none of the others is found to be"
            f" worse.{but}"
        ]
    worse = len(places) - 1 - len(rivals)
    others = "the other run is worse" if worse == 1 else f"the other {worse:,} runs are worse"
    return [
        f"{first.label} ranks first; {', '.join(rivals[:5])}{' and others' if len(rivals) > 5 else ''}"
        f" cannot be distinguished from it, {others}.{but}"
    ]


def _doubts(bias: Estimate) -> list[str]:
    """A warning where a judge mostly goes by the order in which it sees two outputs."""
    disagree = bias.metadata.get("orders_disagree", 0)
    if 2 * disagree <= bias.n:
        return []
    return [
        f"The judge's verdict depends on the order of the outputs in {disagree:,} of {bias.n:,} comparisons:"
        " this ranking says little about the runs."
    ]


def _sentence_of_two(ranked: RankedRuns, places: Sequence[Place]) -> str:
    one, other = places
    wins = ranked.fit.against(one.run, other.run)
    if wins.low is None:
        return f"{one.label} and {other.label} cannot be distinguished: comparisons of one example give no interval."
    chance = f"it wins with probability {number(wins.value, 2)} {interval(wins.low, wins.high, digits=2)}"
    if wins.low is not None and wins.low > 0.5:
        return f"{one.label} is better than {other.label}: {chance}."
    if wins.high is not None and wins.high < 0.5:  # Elo may order them otherwise
        return f"{other.label} is better than {one.label}: {one.label} wins with probability {number(wins.value, 2)}."
    return (
        f"No difference found between {one.label} and {other.label}: {one.label} wins with probability"
        f" {number(wins.value, 2)} {interval(wins.low, wins.high, digits=2)}."
    )


def rank_stored(
    store: Store,
    given: Sequence[RunOrEvaluation],
    *,
    evaluator: str | None = None,
    metric: str | None = None,
    margin: float = 0.0,
    method: str = "bradley_terry",
    ties: Ties = "half",
    prior: float = 1.0,
    confidence: float = 0.95,
    seed: int = 0,
    failures: Failures = "lose",
    **storing: Any,
) -> Ranking:
    """Rank runs, or the runs of evaluations, by what evaluations already hold."""
    try:
        how = checked_method(method)
    except ValueError as error:
        raise RequestError(str(error)) from error
    if failures not in ("lose", "leave_out"):
        hint = did_you_mean(str(failures), ("lose", "leave_out"))
        raise RequestError(f"failures is {failures!r}: {hint}")
    runs, evaluations = runs_and_evaluations(store, given)
    if len(runs) < 2:
        raise _too_few()
    options: dict[str, Any] = {
        "method": how,
        "ties": ties,
        "prior": prior,
        "confidence": confidence,
        "seed": seed,
        "failures": failures,
    }
    if evaluator is not None:
        used = _pairwise_source(evaluations, evaluator, {run.id for run in runs})
        source, higher = evaluator, True
    else:
        sources = sources_of(runs, evaluations)
        keys = chosen_keys(sources, runs, evaluations, [metric] if metric else None)
        if len(keys) > 1:
            raise RequestError(
                f"several evaluators have judged these runs: give one as {option('metric')}: {', '.join(keys)}"
            )
        source = keys[0]
        chosen = [(run, sources[source][run.id]) for run in runs]
        used = list({each.evaluation.id: each.evaluation for _, each in chosen}.values())
        higher = chosen[0][1].spec.higher_is_better
        options["margin"] = margin

    def compute() -> Ranking:
        if evaluator is not None:
            tally = tally_results(used, runs, evaluator, failures)
        else:
            tally = tally_scores(read_scores(chosen), failures, margin)
        fitting = {name: value for name, value in options.items() if name != "margin"}
        return _ranking(runs, tally, source, higher_is_better=higher, **fitting)

    settings = {"runs": [run.id for run in runs], "by": source, "compares": evaluator is not None, **options}
    return find_or_compute(
        "ranking", Ranking, compute, store=store, runs=runs, evaluations=used, settings=settings, **storing
    )


def _pairwise_source(evaluations: Sequence[Evaluation], key: str, runs: set[str]) -> list[Evaluation]:
    """The evaluations that compare some of these runs by an evaluator."""
    kinds = {spec.key: spec.kind for each in evaluations for spec in each.header.evaluators}
    if kinds.get(key) not in ("pair", "joint"):
        known = [each for each, kind in kinds.items() if kind != "single"]
        hint = did_you_mean(key, known) if known else "no evaluation of these runs compares them"
        raise RequestError(f"no comparisons by {key!r}: {hint}")
    used = [
        each
        for each in evaluations
        if any(spec.key == key for spec in each.header.evaluators)
        and len(runs.intersection(each.header.runs)) > 1
    ]
    specs = [spec for each in used for spec in each.header.evaluators if spec.key == key]
    if len({(spec.name, msgspec.json.encode(spec.params, order="sorted")) for spec in specs}) > 1:
        raise RequestError(
            f"{key!r} has different parameters in these evaluations: name the evaluation to rank by,"
            f" such as {used[-1].id}"
        )
    return used


def _too_few() -> RequestError:
    how = wording("karat rank RUN RUN", "karat.rank([run, other])")
    return RequestError(f"a ranking needs two runs or more: {how}")


async def rank_async(
    runs: RunOrEvaluation | Sequence[RunOrEvaluation] | None = None,
    *more: RunOrEvaluation,
    evaluator: EvaluatorLike | None = None,
    metric: str | None = None,
    amend: EvaluationLike | Sequence[EvaluationLike] | None = None,
    method: Method = "bradley_terry",
    ties: Ties = "half",
    prior: float = 1.0,
    margin: float = 0.0,
    failures: Failures = "lose",
    confidence: float = 0.95,
    seed: int = 0,
    store: StoreLike | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    progress: bool | Listener | None = None,
    **options: Unpack[StageOptions],
) -> Ranking:
    """Rank runs by an evaluator that compares them (a name, a spec, an object or a function), or by a metric's scores.

    With an evaluator, the missing comparisons are made first; `concurrency`, `progress` and the further options are
    those of `evaluate`. `amend` names evaluations whose runs and comparisons are used, so that a new run costs only
    its own comparisons. `method` is `bradley_terry` or `elo`. A failed output loses against one that succeeded, two
    failed outputs tie; `failures="leave_out"` leaves them out. Scores within `margin` tie.

    The ranking is stored as an aggregation (`ranking.id`). The same call returns it again until a run or an
    evaluation changes; `new=True` computes it again.
    """
    things, earlier = [*as_list(runs), *more], as_list(amend)
    the_store = store_of(store, things, earlier)
    how = read_options(rank_async, StageOptions, options, concurrency=concurrency, progress=progress)
    key: str | None = None
    if evaluator is not None and metric is not None:
        raise RequestError("rank either by an evaluator that compares or by a metric: remove one of them")
    if evaluator is None and not earlier:
        key = _comparing_key(the_store, things) if metric is None else None
        metric = None if metric is None else _scored_key(the_store, things, metric)
    else:
        compared, _ = runs_and_evaluations(the_store, things) if things else ([], [])
        compares = None if evaluator is None else as_pairwise_evaluator(evaluator)
        if compares is not None and (judge := PreparedEvaluator(0, compares)).kind == "single":
            raise RequestError(
                f"{judge.key!r} judges single outputs: rank by its scores ({option('metric', judge.key)})"
            )
        made = await evaluate_async(
            compared,
            None if compares is None else [compares],
            amend=earlier or None,
            store=the_store,
            concurrency=concurrency,
            progress=progress,
            **options,
        )
        key = next((spec.key for spec in made.header.evaluators if spec.kind != "single"), None)
        if key is None:
            single = made.header.evaluators[0].key
            raise RequestError(
                f"{single!r} judges single outputs: rank by its scores ({option('metric', single)})"
            )
        things = [made]
    return await in_thread(
        lambda: rank_stored(
            the_store,
            things,
            evaluator=key,
            metric=metric,
            margin=margin,
            method=method,
            ties=ties,
            prior=prior,
            confidence=confidence,
            seed=seed,
            failures=failures,
            new=how.new,
            labels=how.labels,
            metadata=how.metadata,
            description=how.description,
        )
    )


rank = sync_twin(rank_async)


def plan_rank(
    runs: RunOrEvaluation | Sequence[RunOrEvaluation] | None = None,
    *more: RunOrEvaluation,
    evaluator: EvaluatorLike,
    amend: EvaluationLike | Sequence[EvaluationLike] | None = None,
    store: StoreLike | None = None,
) -> RankingPlan:
    """Return the comparisons that `rank` would make, how many exist already, and the cost of the missing ones."""
    things, earlier = [*as_list(runs), *more], as_list(amend)
    the_store = store_of(store, things, earlier)
    compared, _ = runs_and_evaluations(the_store, [*earlier, *things])
    if len(compared) < 2:
        raise _too_few()
    judge = PreparedEvaluator(0, as_pairwise_evaluator(evaluator))
    if judge.kind != "pair":
        raise RequestError(f"{judge.key!r} does not compare two outputs, so it has no comparisons to plan")
    return plan_ranking(the_store, compared, judge.key, judge.spec.fingerprint, both_orders=judge.both_orders)


def as_pairwise_evaluator(evaluator: EvaluatorLike) -> Any:
    """An evaluator as it was given; a plain function, or the place of one, becomes an evaluator that compares."""
    module = importlib.import_module("karat.evaluators._pairwise")  # registers by_metric and by_function
    spec = {"name": evaluator} if isinstance(evaluator, str) else evaluator
    if isinstance(spec, Mapping) and isinstance(spec.get("name"), str) and not spec.get("params"):
        if inspect.isfunction(evaluators.get(spec["name"])) and not evaluators.has(spec["name"]):
            return {**spec, "name": "by_function", "params": {"function": spec["name"]}}
        return evaluator
    methods = ("compare", "evaluate_runs", "evaluate")
    has_method = any(callable(getattr(evaluator, each, None)) for each in methods)
    if callable(evaluator) and not isinstance(evaluator, type) and not has_method:
        return module.ByFunction(evaluator)
    return evaluator


def _scored_key(store: Store, things: Sequence[RunOrEvaluation], metric: str) -> str:
    """The evaluator key that a metric means, also as comparisons show it: `exact_match accuracy`."""
    _, evaluations = runs_and_evaluations(store, things)
    keys = {spec.key for each in evaluations for spec in each.header.evaluators if spec.kind == "single"}
    key, _, form = metric.rpartition(" ")
    return key if metric not in keys and form in ("accuracy", "mean") and key in keys else metric


def _comparing_key(store: Store, things: Sequence[RunOrEvaluation]) -> str | None:
    """The one evaluator that compares in the evaluations given."""
    handles = [handle_of(store, each) for each in things]
    if not handles or not all(isinstance(each, Evaluation) for each in handles):
        return None
    keys = dict.fromkeys(s.key for e in handles for s in e.header.evaluators if s.kind != "single")
    return next(iter(keys)) if len(keys) == 1 else None


MOST_IN_MATRIX = 12
"""Runs whose win probabilities are shown against each other."""


def ranking_blocks(ranking: Ranking) -> list[Block]:
    """The conclusion, the table of runs, what it rests on, and who would beat whom."""
    direction = "" if ranking.higher_is_better else f" {arrow(False)}"
    blocks: list[Block] = [
        Heading(f"{len(ranking.places)} runs ranked by {ranking.source}{direction}", 1),
        *(Paragraph(each) for each in ranking.conclusions),
        _places(ranking),
        Paragraph(_basis(ranking)),
        Paragraph(_failures(ranking)),
        # Scores of single outputs are compared without a judge that sees one first.
        *([Paragraph(_position(ranking))] if ranking.position_bias.metadata.get("shown") != 0 else []),
        *(Paragraph(note) for note in ranking.notes),
    ]
    shown = ranking.places[:MOST_IN_MATRIX]
    if len(shown) > 2 or (len(shown) == 2 and ranking.method == "bradley_terry"):
        names = [place.label for place in shown]
        rows = [(name, [_cell(ranking, i, j) for j in range(len(shown))]) for i, name in enumerate(names)]
        blocks += [
            Heading("probability that the run of the row wins against that of the column"),
            matrix_table(
                "",
                [f"{i + 1}" for i in range(len(shown))],
                [(f"{i + 1} {n}", c) for i, (n, c) in enumerate(rows)],
            ),
        ]
    return blocks


def _places(ranking: Ranking) -> Table:
    elo = ranking.method == "elo"
    spread = "over orders" if elo else f"{percent(ranking.confidence)} interval"
    bounds = [bounds_text(place.win_rate) for place in ranking.places]
    head = ["rank", *([] if elo else ["range"]), "run", "rating", spread, "win rate", "interval"]
    head += ["won/lost/tied", "n", *(["bounds of the win rate"] if any(bounds) else []), "id"]
    rows = [
        [
            str(place.rank),
            *([] if elo else [f"{place.rank_low}–{place.rank_high}"]),
            place.label,
            number(place.rating.value, 0),
            interval(place.rating.low, place.rating.high, digits=0),
            number(place.win_rate.value),
            interval(place.win_rate.low, place.win_rate.high),
            f"{place.wins:,}/{place.losses:,}/{place.ties:,}",
            f"{place.rating.n:,} of {place.rating.of:,}",
            *([bound] if any(bounds) else []),
            place.run,
        ]
        for place, bound in zip(ranking.places, bounds, strict=True)
    ]
    last = len(head) - 1
    less = [6 - elo, 8 - elo, 7 - elo, last, *([last - 1] if any(bounds) else []), 5 - elo]
    return Table(head, rows, [0, 3 - elo, 5 - elo], drop=less)


def _cell(ranking: Ranking, i: int, j: int) -> str:
    return "·" if i == j else number(ranking.win_probability[i][j], 2)


def _basis(ranking: Ranking) -> str:
    how = (
        "Bradley–Terry, clustered by example"
        if ranking.method == "bradley_terry"
        else "classic Elo, averaged over orders"
    )
    ranges = ""
    if ranking.method == "bradley_terry" and len(ranking.places) > 2:
        ranges = " The range of a rank allows for its comparisons with all other runs at once."
    examples, ties = plural(ranking.examples, "example"), plural(ranking.ties, "tie")
    return (
        f"{ranking.n:,} of {ranking.of:,} comparisons over {examples}, {ties}; {how},"
        f" on the Elo scale around 1500.{ranges}"
    )


def _failures(ranking: Ranking) -> str:
    if ranking.failures == "leave_out":
        return "Comparisons with a failed output are left out and count as missing."
    decided = "none" if not ranking.failed else plural(ranking.failed, "comparison")
    return (
        f"A failed output loses against one that succeeded, and two failed outputs tie; that decided {decided}."
        " A failed judgment is missing."
    )


def _position(ranking: Ranking) -> str:
    bias = ranking.position_bias
    if bias.value is None:
        return f"Position bias is not known: {bias.metadata.get('reason', 'no comparisons')}."
    low, high = bias.low, bias.high
    text = f"Of two equally good runs the one shown first wins with probability {bias.value:.3f} {interval(low, high)}"
    clear = low is not None and high is not None and (low > 0.5 or high < 0.5)
    text += ": there is a position bias." if clear else ": no position bias is found."
    disagree = bias.metadata.get("orders_disagree")
    if disagree is None:
        return text
    return f"{text} The verdict depends on the order in {disagree:,} of {bias.n:,} comparisons, which count as ties."


class MissingPair(msgspec.Struct, frozen=True):
    """The stored and missing comparisons of two runs."""

    first: str
    second: str
    done: int
    missing: int


class RankingPlan(msgspec.Struct, frozen=True):
    """The comparisons a ranking would make."""

    evaluator: str
    pairs: list[MissingPair]
    labels: dict[str, str]
    missing: int
    done: int
    cost: float | None = None
    """What the missing ones would cost, by what the others did; None where no price is known."""
    reason: str = ""
    """Why the cost is not known."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"kind": "ranking plan", **msgspec.to_builtins(self)}

    def report(self) -> str:
        """A table for a terminal."""
        return as_text(plan_blocks(self))


def plan_ranking(
    store: Store, runs: Sequence[Run], key: str, fingerprint: str, *, both_orders: bool = False
) -> RankingPlan:
    """The missing comparisons of runs, by an evaluator with a known fingerprint.

    Comparisons of the same outputs that are kept under other runs are copied and not paid again, so the plan is the
    most that can be asked for.
    """
    known: dict[frozenset[str], set[tuple[Any, ...]]] = {}
    cost, priced, unpriced = 0.0, 0, 0
    wanted = {run.id for run in runs}
    for evaluation in store.evaluations.list():
        names = evaluation.header.runs
        same = {
            place
            for place, spec in enumerate(evaluation.header.evaluators)
            if fingerprint and spec.fingerprint == fingerprint
        }
        if not same or len(wanted & set(names)) < 2:
            continue
        mine = {place for place, run in enumerate(names) if run in wanted}
        columns = load_columns(
            evaluation, ("costs",), only=partial(_is_among, same, mine), statuses=(OK, REUSED)
        )
        for code, item in enumerate(columns.items):
            shown = tuple(names[place] for place in item.runs)
            order = shown if both_orders else ()
            known.setdefault(frozenset(shown), set()).update(
                (position, item.attempt, item.unit, order)
                for position in columns.positions[columns.codes == code].tolist()
            )
        paid = ~np.isnan(columns.costs)
        cost += float(columns.costs[paid].sum())
        priced += int(paid.sum())
        unpriced += int((~paid & (columns.statuses != REUSED)).sum())
    pairs = []
    items = {run.id: _judgeable(run) for run in runs}
    for one, other in combinations(runs, 2):
        total = len(items[one.id] & items[other.id]) * (2 if both_orders else 1)
        done = min(total, len(known.get(frozenset((one.id, other.id)), ())))
        pairs.append(MissingPair(one.id, other.id, done, total - done))
    missing = sum(pair.missing for pair in pairs)
    estimate = cost / priced * missing if priced and not unpriced else None
    reason = "" if estimate is not None else "no comparison by this evaluator has a known cost"
    return RankingPlan(
        evaluator=key,
        pairs=pairs,
        labels=run_labels([run.header for run in runs]),
        missing=missing,
        done=sum(pair.done for pair in pairs),
        cost=0.0 if not missing else estimate,
        reason=reason if missing else "",
    )


def _is_among(evaluators: set[int], runs: set[int], item: ItemName) -> bool:
    return item.evaluator in evaluators and runs.issuperset(item.runs)


def _judgeable(run: Run) -> set[tuple[int, str]]:
    """The items of a run whose output is there: what failed cannot be compared, and costs nothing."""
    backend, found = run.store.backend, set()
    for start in range(0, backend.extent(run.number), CHUNK):
        status = {
            (mark.position, mark.item): mark.status
            for mark in backend.marks(run.number, start, start + CHUNK)
        }
        found |= {item for item, last in status.items() if last == OK}
    return found


def plan_blocks(plan: RankingPlan) -> list[Block]:
    """Stored and missing comparisons, and the cost of the missing ones."""
    rows = [
        [plan.labels[pair.first], plan.labels[pair.second], f"{pair.done:,}", f"{pair.missing:,}"]
        for pair in plan.pairs
    ]
    cost = f"about ${plan.cost:.4f}" if plan.cost is not None else f"unknown: {plan.reason}"
    return [
        Heading(f"comparisons by {plan.evaluator}: {plan.done:,} done, {plan.missing:,} missing", 1),
        Table(["run", "against", "done", "missing"], rows, [2, 3]),
        Paragraph(f"The missing ones would cost: {cost}."),
    ]
