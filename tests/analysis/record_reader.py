"""What comparisons, rankings and reports are computed from, read record by record: the oracle of the columns.

It is written for clearness: dictionaries by example, attempt and unit, and one decoded record after another.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

from karat.aggregators._comparisons import Tally
from karat.analysis.ranking import only_of
from karat.execution.expected_items import Together
from karat.records import Failed, ItemResult, Ok, Skipped
from karat.stats._means import MeanState
from karat.store.columns import kind_of
from karat.store.handles import Evaluation, Run
from karat.store.repositories import latest, result_decoder

Item = tuple[str, int, str]


class RecordScores:
    """The scores of one run by one evaluator, by item."""

    def __init__(self, run: Run, evaluation: Evaluation, key: str) -> None:
        self.run = run
        self.items: dict[Item, float | None] = {}
        self.failed: set[Item] = set()
        """The items whose output has failed."""
        self.answered: set[Item] = set()
        """The items whose output is not pending."""
        self.not_applicable: set[Item] = set()
        backend = evaluation.store.backend
        for row in latest(backend.scan(evaluation.number, 0, backend.extent(evaluation.number))):
            result = result_decoder.decode(row.payload)
            if result.key != key or result.runs != (run.id,):
                continue
            item = (result.example, result.attempt, result.unit)
            if isinstance(result.outcome, Skipped) and not result.outcome.applicable:
                self.not_applicable.add(item)
                continue
            self.items[item] = result.score
        for output in run.outputs():
            item = (output.example, output.attempt, output.unit)
            self.answered.add(item)
            if isinstance(output.outcome, Failed):
                self.failed.add(item)
        self._add_pending()

    def _add_pending(self) -> None:
        run = self.run
        expected = Together([run], len(run.dataset))
        units: dict[tuple[int, int], list[str]] = {}
        for mark in run.store.backend.marks(run.number, 0, 10**6):
            number, _, unit = mark.item.partition("/")
            known = units.setdefault((mark.position, int(number)), [])
            if unit not in known:
                known.append(unit)
        for position, example in enumerate(run.dataset):
            if expected.first <= position < expected.last:
                for attempt in range(1, expected.attempts + 1):
                    for unit in units.get((position, attempt), [""]):
                        item = (example.id, attempt, unit)
                        if item not in self.items and item not in self.not_applicable:
                            self.items[item] = None
        self.unlisted = max(0, expected.total() - len(self.items) - len(self.not_applicable))

    def by_example(
        self, out: set[Item], passed: float | None
    ) -> dict[str, dict[tuple[int, str], float | None]]:
        found: dict[str, dict[tuple[int, str], float | None]] = {}
        for item, score in self.items.items():
            if item not in out:
                if score is not None and passed is not None:
                    score = float(score >= passed)
                found.setdefault(item[0], {})[item[1:]] = score
        return found


def pairs_of(
    first: RecordScores, second: RecordScores, shared: set[str] | None = None, passed: float | None = None
) -> tuple[list[tuple[str, float | None, float | None]], bool]:
    """`(example, score, score)` of every pair, and whether examples have several."""
    out = first.not_applicable | second.not_applicable
    mine, theirs = first.by_example(out, passed), second.by_example(out, passed)
    both = [each for each in mine if each in theirs and (shared is None or each in shared)]
    if first.run.header.attempts != second.run.header.attempts:
        return [(each, _mean(mine[each]), _mean(theirs[each])) for each in both], False
    pairs = []
    for example in both:
        for item in aligned(mine[example], theirs[example], example, out):
            pairs.append((example, mine[example].get(item), theirs[example].get(item)))
    several = len(pairs) > len(both)
    pairs += [("", None, None)] * unlisted(first, second)
    return pairs, several


def unlisted(first: RecordScores, second: RecordScores) -> int:
    a, b = first.run.header, second.run.header
    same = (a.dataset, a.offset, a.limit) == (b.dataset, b.offset, b.limit)
    return min(first.unlisted, second.unlisted) if same else 0


def aligned(first: Any, second: Any, example: str, out: set[Item]) -> list[tuple[int, str]]:
    items = dict.fromkeys([*first, *second])
    with_units = {attempt for attempt, unit in items if unit}
    with_units |= {attempt for name, attempt, unit in out if name == example and unit}
    return [item for item in items if item[1] or item[0] not in with_units]


def _mean(scores: dict[tuple[int, str], float | None]) -> float | None:
    known = [score for score in scores.values() if score is not None]
    return sum(known) / len(known) if known and len(known) == len(scores) else None


def mean_state(scores: RecordScores) -> MeanState:
    """The state of the mean, one cluster after another."""
    by_example: dict[str, list[float]] = {}
    for (example, _, _), score in scores.items.items():
        if score is not None:
            by_example.setdefault(example, []).append(score)
    state = MeanState()
    for values in by_example.values():
        state.add(values)
    return state


def tallied(
    tables: list[RecordScores], sign: float, lose: bool, margin: float
) -> tuple[Counter[Any], Counter[Any]]:
    """How often each set of verdicts on an example occurs, and the missing comparisons of each pair of runs."""
    by_example: dict[str, list[Any]] = {}
    missing: Counter[Any] = Counter()
    for one, other in combinations(tables, 2):
        pair = (one.run.id, other.run.id)
        out = one.not_applicable | other.not_applicable
        mine, theirs = one.by_example(out, None), other.by_example(out, None)
        attempts = min(one.run.header.attempts, other.run.header.attempts)
        for example in mine:
            items = aligned(mine[example], theirs[example], example, out) if example in theirs else []
            for attempt, unit in items:
                if attempt > attempts:
                    continue
                item = (example, attempt, unit)
                a, b = one.items.get(item), other.items.get(item)
                lost = item in one.failed, item in other.failed
                there = item in one.answered, item in other.answered
                if lose and any(lost) and all(there):
                    verdict = 0.5 if lost[0] == lost[1] else float(lost[1])
                    by_example.setdefault(example, []).append((*pair, verdict, "failed"))
                elif a is None or b is None:
                    missing[tuple(sorted(pair))] += 1
                else:
                    verdict = 0.5 if abs(sign * a - sign * b) <= margin else float(sign * a > sign * b)
                    by_example.setdefault(example, []).append((*pair, verdict, "scored"))
        missing[tuple(sorted(pair))] += unlisted(one, other)
    return Counter(tuple(sorted(each)) for each in by_example.values()), +missing


def tallied_results(evaluations: list[Evaluation], runs: list[Run], key: str, failures: Any) -> Tally:
    """The comparisons of some runs, from one decoded record after another; for evaluations that are complete."""
    wanted = {run.id for run in runs}
    ordered = any(spec.both_orders for each in evaluations for spec in each.header.evaluators)
    found: dict[Any, ItemResult] = {}
    for evaluation in reversed(evaluations):
        for result in evaluation.results():
            if result.key == key and len(wanted.intersection(result.runs)) > 1:
                item = (result.example, result.runs, result.attempt, result.unit)
                if item not in found or (_is_ok(result) and not _is_ok(found[item])):
                    found[item] = result
    judged = {(item[0], frozenset(item[1]), *item[2:]) for item, result in found.items() if _is_ok(result)}
    by_example: dict[str, list[ItemResult]] = {}
    for item, result in found.items():
        if ordered or _is_ok(result) or (item[0], frozenset(item[1]), *item[2:]) not in judged:
            by_example.setdefault(item[0], []).append(only_of(result, wanted))
    tally = Tally()
    for example in [example.id for run in runs[:1] for example in run.dataset]:
        tally.add_results(by_example.pop(example, []), failures)
    for results in by_example.values():
        tally.add_results(results, failures)
    return tally


def _is_ok(result: ItemResult) -> bool:
    return isinstance(result.outcome, Ok)


def kinds_of(handle: Run | Evaluation) -> Counter[tuple[str, str, str]]:
    """How often each kind of failure or skip occurs."""
    found: Counter[tuple[str, str, str]] = Counter()
    records: Any = handle.outputs() if isinstance(handle, Run) else handle.results()
    for record in records:
        what = getattr(record, "key", "output")
        if isinstance(record.outcome, Failed):
            found[what, "failed", kind_of(record.outcome.error)[0]] += 1
        elif isinstance(record.outcome, Skipped):
            found[what, "skipped", record.outcome.reason] += 1
    return found
