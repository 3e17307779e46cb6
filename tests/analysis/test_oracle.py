"""Small random stores against brute force: every n, of, value, bound, win and verdict, and the same number everywhere.

What the runs, the judge and the judge of pairs do is drawn first; the expected figures are computed from that alone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import karat
from karat.analysis.comparison import compare
from karat.analysis.ranking import rank
from karat.analysis.summary import summarise
from karat.errors import KaratError, NotApplicable, StoreError
from karat.records import Estimate, Example
from karat.tasks import Context, Task
from karat.view.data import Viewer

SEEDS = [*range(20), 287, 309]


class Item(NamedTuple):
    """A place for an output: the number of the example, the attempt, the unit."""

    example: int
    attempt: int
    unit: str = ""


class Answers(Task):
    """Outputs that were drawn; an item of `failing` fails, and the one of `stop` ends the stage."""

    def __init__(
        self, number: int, units: dict[int, list[str]], failing: set[Item], stop: int | None
    ) -> None:
        self.name = self.version = f"answers {number}"
        self.number = number
        self.of_example = units
        self.failing = failing
        self.stop = stop

    def configuration(self) -> Any:
        return {"number": self.number}

    def _answer(self, item: Item) -> Any:
        if self.stop is not None and item.example >= self.stop:
            raise StoreError("the store is lost")
        if item in self.failing:
            return ValueError("no answer")
        return {"run": self.number, "item": list(item)}

    def call(self, example: Example, context: Context) -> Any:
        found = self._answer(Item(example.input, context.attempt))
        if isinstance(found, ValueError):
            raise found
        return found


class Parts(Answers):
    """The same of examples with units."""

    units_declared = True

    def units(self, example: Example) -> list[str]:
        return self.of_example[example.input]

    def call_units(self, example: Example, context: Context) -> Iterator[tuple[str, Any]]:
        for unit in self.of_example[example.input]:
            yield unit, self._answer(Item(example.input, context.attempt, unit))


class Verdict(karat.Evaluator):
    """Scores that were drawn: None where it does not apply, NaN where it fails; it stops after so many."""

    version = "1"

    def __init__(self, world: World) -> None:
        self.world = world
        self.key = "verdict"
        self.bounds = world.bounds
        self.higher_is_better = world.higher
        self.pass_fail = world.pass_fail
        self.params = {"seed": world.seed}

    def evaluate(self, *, outputs: Any, **context: Any) -> karat.Result:
        world, found = self.world, (outputs["run"], Item(*outputs["item"]))
        if world.stop_judge is not None and len(world.judged) >= world.stop_judge:
            raise StoreError("the store is lost")
        world.judged.add(found)
        score = world.scores[found]
        if score is None:
            raise NotApplicable("not this one")
        if math.isnan(score):
            raise ValueError("no verdict")
        return karat.Result(self.key, score)


class Pairs(karat.Evaluator):
    """Comparisons that were drawn."""

    version, key = "1", "pairs"

    def __init__(self, world: World) -> None:
        self.world = world
        self.both_orders = world.both_orders
        self.params = {"seed": world.seed}

    def compare(self, example: Example, first: Any, second: Any) -> float:
        world = self.world
        shown = first.value["run"], second.value["run"], Item(*first.value["item"])
        if world.stop_pairs is not None and len(world.compared) >= world.stop_pairs:
            raise StoreError("the store is lost")
        world.compared.add(shown)
        outcome = world.outcomes[shown]
        if outcome is None:
            raise ValueError("no verdict")
        return outcome


class World:
    """Two or three runs, a judge of single outputs, a judge of pairs, and what is known of every item."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = random.Random(seed)
        self.count = chance.randint(3, 16)
        with_units = chance.random() < 0.3
        self.units = (
            {e: [f"u{n}" for n in range(chance.randint(1, 3))] for e in range(self.count)}
            if with_units
            else {}
        )
        self.document = [chance.randrange(4) for _ in range(self.count)]
        most = chance.choice([1, 1, 2, 3])
        self.attempts = [
            most if chance.random() < 0.8 else chance.choice([1, 2]) for _ in range(chance.choice([2, 3]))
        ]
        kind = chance.choice(["pass", "grades", "share", "open"])
        self.pass_fail, self.higher = kind == "pass", chance.random() < 0.7
        self.bounds = {"grades": (1.0, 5.0), "open": (0.0, None)}.get(kind)
        values = {
            "pass": [0.0, 1.0],
            "grades": [1.0, 2.0, 3.0, 5.0],
            "share": [0.0, 0.1, 0.3, 0.5, 1.0],
            "open": [0.0, 0.2, 3.0, 10.5],
        }[kind]
        trouble = chance.choice([0.0, 0.1, 0.3])
        self.items = [self._items(attempts) for attempts in self.attempts]
        self.failing = [{item for item in items if chance.random() < trouble} for items in self.items]
        self.stops = [self.count // 2 if chance.random() < 0.15 else None for _ in self.attempts]
        self.scores: dict[tuple[int, Item], float | None] = {}
        self.outcomes: dict[tuple[int, int, Item], float | None] = {}
        tie = chance.random()
        for place, items in enumerate(self.items):
            for item in items:
                draw = chance.random()
                plain = values[-1] if chance.random() < tie else chance.choice(values)
                score = None if draw < trouble / 3 else math.nan if draw < trouble else plain
                self.scores[place, item] = score
                for other in range(len(self.items)):
                    drawn = chance.choice([0.0, 0.5, 1.0, 1.0])
                    self.outcomes[place, other, item] = None if chance.random() < trouble / 2 else drawn
        self.both_orders = chance.random() < 0.4
        self.stop_judge = chance.randint(0, 30) if chance.random() < 0.25 else None
        self.stop_pairs = chance.randint(1, 30) if chance.random() < 0.25 else None
        self.judged: set[tuple[int, Item]] = set()
        self.compared: set[tuple[int, int, Item]] = set()
        self.store = karat.open_store("memory://")
        data = karat.Dataset.from_examples(
            [
                {"id": f"e{n}", "input": n, "metadata": {"document": f"d{self.document[n]}"}}
                for n in range(self.count)
            ],
            name="drawn",
        )
        self.runs = []
        for place, attempts in enumerate(self.attempts):
            task = (Parts if with_units else Answers)(
                place, self.units, self.failing[place], self.stops[place]
            )
            options: dict[str, Any] = {"attempts": attempts, "concurrency": 1, "progress": False}
            try:
                karat.run(task, data, store=self.store, **options)
            except StoreError:
                assert self.stops[place] is not None
            self.runs.append(self.store.runs.list()[-1])
        self.single = self._evaluated(Verdict(self))
        self.pairs = self._evaluated(Pairs(self))

    def _items(self, attempts: int) -> list[Item]:
        return [
            Item(example, attempt, unit)
            for example in range(self.count)
            for attempt in range(1, attempts + 1)
            for unit in self.units.get(example, [""])
        ]

    def _evaluated(self, evaluator: karat.Evaluator) -> karat.Evaluation:
        with contextlib.suppress(StoreError):
            karat.evaluate(self.runs, [evaluator], store=self.store, concurrency=1, progress=False)
        return self.store.evaluations.list()[-1]

    # What is known of an item -----------------------------------------------------------------------------

    def output(self, run: int, item: Item) -> str:
        if item.attempt > self.attempts[run]:
            return "none"
        stop = self.stops[run]
        if stop is not None and item.example >= stop:
            return "pending"
        return "failed" if item in self.failing[run] else "ok"

    def applies(self, run: int, item: Item) -> bool:
        judged = self.output(run, item) == "ok" and (run, item) in self.judged
        return not (judged and self.scores[run, item] is None)

    def score(self, run: int, item: Item) -> float | None:
        """The score that is stored; None where there is none."""
        if self.output(run, item) != "ok" or (run, item) not in self.judged:
            return None
        score = self.scores[run, item]
        return None if score is None or math.isnan(score) else score

    @property
    def sign(self) -> int:
        return 1 if self.higher else -1

    def passes(self, score: float) -> bool:
        return score >= 0.5 if self.higher else score <= 0.5

    def range(self) -> tuple[float, float] | None:
        low, high = self.bounds or (0.0, 1.0)
        return None if high is None else (low, high)


def close(one: float | None, other: float | None) -> bool:
    return one is None and other is None if one is None or other is None else abs(one - other) < 1e-9


def almost(one: float | None, other: float | None) -> bool:
    """The same but for the last bits: ratings are fitted in another order of the runs."""
    return close(one, other) or (one is not None and other is not None and abs(one / other - 1.0) < 1e-9)


def is_sound(estimate: Estimate) -> None:
    """An interval holds its value and has a width; the bounds lie around the value over all items."""
    value, low, high = estimate.value, estimate.low, estimate.high
    assert estimate.n <= estimate.of
    for number in (value, low, high, estimate.lowest, estimate.highest):
        assert number is None or math.isfinite(number)
    if value is None:
        assert low is None
        assert high is None
        return
    assert low is None or low <= value + 1e-12
    assert high is None or value <= high + 1e-12
    assert low is None or high is None or low < high
    if estimate.lowest is not None and estimate.highest is not None:
        assert estimate.lowest <= estimate.highest + 1e-12


def figures(estimate: Estimate) -> tuple[Any, ...]:
    return (
        estimate.value,
        estimate.low,
        estimate.high,
        estimate.n,
        estimate.of,
        *((estimate.lowest, estimate.highest) if estimate.n < estimate.of else ()),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_metric_has_one_value_with_one_interval_everywhere(seed: int) -> None:
    world = World(seed)
    aggregation = karat.aggregate(
        world.single,
        [
            "mean",
            "accuracy",
            {"name": "mean", "key": "by", "params": {"by": "document"}},
            {"name": "mean", "key": "clustered", "params": {"cluster": "document"}},
        ],
    )
    for place, run in enumerate(world.runs):
        items = [item for item in world.items[place] if world.applies(place, item)]
        scores = [score for item in items if (score := world.score(place, item)) is not None]
        mean = aggregation.estimates.get(aggregator="mean", run=run.id)
        accuracy = aggregation.estimates.get(aggregator="accuracy", run=run.id)
        clustered = aggregation.estimates.get(aggregator="clustered", run=run.id)
        for estimate in (mean, accuracy, clustered):
            is_sound(estimate)
            assert (estimate.n, estimate.of) == (len(scores), len(items))
        assert close(mean.value, sum(scores) / len(scores) if scores else None)
        assert close(accuracy.value, sum(map(world.passes, scores)) / len(scores) if scores else None)
        assert clustered.value == mean.value
        missing, bounds = len(items) - len(scores), world.range()
        if bounds is None:
            assert mean.lowest is None
            assert mean.highest is None
        elif items:
            assert close(mean.lowest, (sum(scores) + missing * bounds[0]) / len(items))
            assert close(mean.highest, (sum(scores) + missing * bounds[1]) / len(items))
        for document in sorted(set(world.document)):
            here = [item for item in items if world.document[item.example] == document]
            known = [score for item in here if (score := world.score(place, item)) is not None]
            group = {"document": f"d{document}"}
            if here:
                found = aggregation.estimates.get(aggregator="by", run=run.id, group=group)
                is_sound(found)
                assert (found.n, found.of) == (len(known), len(here))
                assert close(found.value, sum(known) / len(known) if known else None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_report_the_viewer_and_an_aggregation_agree(seed: int) -> None:
    world = World(seed)
    name = "accuracy" if world.pass_fail and world.higher else "mean"
    reported = {m.estimate.run: m.estimate for m in summarise(world.store, [world.single.id]).metrics}
    viewer = Viewer(world.store)
    seen = {run.id: viewer.run(run.id)["estimates"] for run in world.runs}
    slices = viewer.slices([run.id for run in world.runs[:2]], "document", "verdict")
    aggregation = karat.aggregate(world.single, [{"name": name, "params": {"by": "document"}}])
    default = karat.aggregate(world.single)
    for run in world.runs:
        wanted = aggregation.estimates.get(aggregator=name, run=run.id)
        for other in (default.estimates.get(aggregator=name, run=run.id), reported[run.id]):
            assert (other.evaluator, other.aggregator) == ("verdict", name)
            assert figures(other) == figures(wanted)
        [shown] = [each for each in seen[run.id] if each["evaluator"] == "verdict"]
        names = ("value", "low", "high", "n", "of")
        assert [shown[each] for each in names] == [getattr(wanted, each) for each in names]
    for group in slices["groups"]:
        for shown in group["runs"]:
            wanted = aggregation.estimates.get(run=shown["run"], group={"document": group["value"]})
            assert [shown[each] for each in names[:4]] == [getattr(wanted, each) for each in names[:4]]
    scores: dict[str, list[float]] = {}
    for row in world.single.rows():
        result = row.results.get("verdict")
        if result is not None and result.score is not None:
            scores.setdefault(row.run, []).append(result.score)
    for run in world.runs:
        wanted = aggregation.estimates.get(aggregator=name, run=run.id)
        passed = [float(s >= 0.5) if name == "accuracy" else s for s in scores.get(run.id, [])]
        assert len(passed) == wanted.n
        assert close(wanted.value, sum(passed) / len(passed) if passed else None)


def pairs_of(world: World, one: int, other: int) -> dict[tuple[int, Any], tuple[float | None, float | None]]:
    """The pairs of two runs: (example, item) → scores, None where one is missing."""

    def applies(item: Item) -> bool:
        return all(world.output(run, item) == "none" or world.applies(run, item) for run in (one, other))

    if world.attempts[one] == world.attempts[other]:
        return {
            (item.example, item): (world.score(one, item), world.score(other, item))
            for item in world.items[one]
            if applies(item)
        }
    found: dict[tuple[int, Any], tuple[float | None, float | None]] = {}
    for example in range(world.count):
        sides = []
        for run in (one, other):
            items = [item for item in world.items[run] if item.example == example and applies(item)]
            scores = [world.score(run, item) for item in items]
            known = [score for score in scores if score is not None]
            sides.append(
                (bool(items), sum(known) / len(known) if scores and len(known) == len(scores) else None)
            )
        if all(there for there, _ in sides):
            found[example, None] = sides[0][1], sides[1][1]
    return found


@pytest.mark.parametrize("cluster", [None, "document"])
@pytest.mark.parametrize("seed", SEEDS)
def test_compare_is_the_paired_difference(seed: int, cluster: str | None) -> None:
    world = World(seed)
    margin = 0.3
    try:
        made = compare(
            world.single, metrics=["verdict mean"], cluster=cluster, fail_if_worse=f"verdict mean:{margin}"
        )
    except KaratError:
        assert not any(pairs_of(world, 0, other) for other in range(1, len(world.runs)))
        return
    best: dict[str, float] = {}
    for other, difference in enumerate(made.differences, 1):
        pairs = pairs_of(world, 0, other)
        complete = {key: (a, b) for key, (a, b) in pairs.items() if a is not None and b is not None}
        gaps = {key: round(b - a, 9) for key, (a, b) in complete.items()}
        compared, found = difference.compared, difference.compared.difference
        is_sound(found)
        assert (found.n, found.of) == (len(complete), len(pairs))
        assert close(found.value, sum(gaps.values()) / len(gaps) if gaps else None)
        wins = sum(world.sign * gap > 0 for gap in gaps.values())
        losses = sum(world.sign * gap < 0 for gap in gaps.values())
        assert (compared.wins, compared.losses, compared.ties) == (wins, losses, len(gaps) - wins - losses)
        bounds = world.range()
        if bounds is not None and pairs:
            low, high = bounds
            worst = sum((low if b is None else b) - (high if a is None else a) for a, b in pairs.values())
            most = sum((high if b is None else b) - (low if a is None else a) for a, b in pairs.values())
            assert close(found.lowest, worst / len(pairs))
            assert close(found.highest, most / len(pairs))
        else:
            assert found.lowest is None
            assert found.highest is None
        # The p-value and the interval say the same, and so do the conclusion and the gate.
        p = compared.p_value
        if found.low is not None and found.high is not None and p is not None:
            outside = found.low > 0.0 or found.high < 0.0
            assert outside == (p < 0.05) or min(abs(found.low), abs(found.high)) < 1e-6
        by_example: dict[int, list[float]] = {}
        for (example, _), gap in gaps.items():
            by_example.setdefault(example, []).append(world.sign * gap)
        changes = [round(sum(each) / len(each), 9) for each in by_example.values()]
        counts = difference.changed
        examples = {example for example, _ in pairs}
        assert (counts.better, counts.worse) == (sum(c > 0 for c in changes), sum(c < 0 for c in changes))
        assert counts.missing == len(examples) - len(by_example)
        assert difference.examples == len(by_example)
        gate = made.gates[other - 1]
        better = difference.improvement
        assert close(better.value, None if found.value is None else world.sign * found.value)
        if gate.verdict == "holds":
            assert better.low is not None
            assert better.low >= -margin
            assert better.of == better.n or (better.lowest is not None and better.lowest >= -margin)
        elif gate.verdict == "fails":
            assert better.high is not None
            assert better.high < -margin
            assert better.of == better.n or (better.highest is not None and better.highest < -margin)
        elif better.of == better.n and better.low is not None and better.high is not None:
            assert better.low < -margin <= better.high
        first = compared.first.value
        if first is not None:
            best[difference.baseline] = world.sign * first
            best[difference.run] = world.sign * (compared.second.value or 0.0)
    if made.leaders and len(made.runs) == 2 and len(set(best.values())) == 2:
        assert made.leaders[0].run == max(best, key=lambda run: best[run])


Outcome = tuple[int, int, float]


def ranked_by_scores(
    world: World, failures: str
) -> tuple[dict[int, list[Outcome]], Counter[tuple[int, int]]]:
    """By example, the outcomes of pairs of runs; and how many are missing."""
    found: dict[int, list[Outcome]] = {}
    missing: Counter[tuple[int, int]] = Counter()
    for one, other in itertools.combinations(range(len(world.runs)), 2):
        attempts = min(world.attempts[one], world.attempts[other])
        for item in world.items[one]:
            if item.attempt > attempts or not (world.applies(one, item) and world.applies(other, item)):
                continue
            states = world.output(one, item), world.output(other, item)
            scores = world.score(one, item), world.score(other, item)
            if "failed" in states and "pending" not in states and failures == "lose":
                outcome = 0.5 if states[0] == states[1] else float(states[1] == "failed")
            elif None in scores:
                missing[one, other] += 1
                continue
            else:
                gap = world.sign * (scores[0] - scores[1])
                outcome = 0.5 if abs(gap) < 1e-12 else float(gap > 0)
            found.setdefault(item.example, []).append((one, other, outcome))
    return found, missing


def ranked_by_pairs(world: World, failures: str) -> tuple[dict[int, list[Outcome]], Counter[tuple[int, int]]]:
    found: dict[int, list[Outcome]] = {}
    missing: Counter[tuple[int, int]] = Counter()
    orders = itertools.permutations if world.both_orders else itertools.combinations
    for one, other in orders(range(len(world.runs)), 2):
        attempts = min(world.attempts[one], world.attempts[other])
        for item in world.items[one]:
            if item.attempt > attempts:
                continue
            states = world.output(one, item), world.output(other, item)
            outcome = world.outcomes[one, other, item] if (one, other, item) in world.compared else None
            if "failed" in states and "pending" not in states:
                outcome = None if failures == "leave_out" else 0.5
                if failures == "lose" and states[0] != states[1]:
                    outcome = float(states[1] == "failed")
                if world.stop_pairs is not None and len(world.compared) >= world.stop_pairs:
                    outcome = math.nan  # it may have been stored before the stage stopped, or not
            if outcome is None:
                missing[min(one, other), max(one, other)] += 1
            else:
                found.setdefault(item.example, []).append((one, other, outcome))
    return found, missing


def check_ranking(
    world: World,
    made: karat.Ranking,
    found: dict[int, list[Outcome]],
    missing: Counter[tuple[int, int]],
) -> None:
    outcomes = [each for every in found.values() for each in every]
    assert (made.n, made.of) == (len(outcomes), len(outcomes) + missing.total())
    for place in made.places:
        run = [each.id for each in world.runs].index(place.run)
        points = [o if one == run else 1.0 - o for one, other, o in outcomes if run in (one, other)]
        lost = sum(count for pair, count in missing.items() if run in pair)
        rate = place.win_rate
        is_sound(rate)
        assert (rate.n, rate.of) == (len(points), len(points) + lost)
        assert (place.rating.n, place.rating.of) == (rate.n, rate.of)
        assert close(rate.value, sum(points) / len(points) if points else None)
        if points:
            assert close(rate.lowest, sum(points) / rate.of)
            assert close(rate.highest, (sum(points) + lost) / rate.of)
        tally = Counter(points)
        assert (place.wins, place.losses, place.ties) == (tally[1.0], tally[0.0], tally[0.5])
        is_sound(place.rating)
    for above, below in itertools.pairwise(made.places):
        if above.component == below.component:
            a, b = above.rating.value, below.rating.value
            assert a is not None
            assert b is not None
            assert a >= b - 1e-6
            assert (above.rank == below.rank) == (abs(a - b) < 1e-6)


@pytest.mark.parametrize("failures", ["lose", "leave_out"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_ranking_by_scores_counts_every_pair(seed: int, failures: Any) -> None:
    world = World(seed)
    found, missing = ranked_by_scores(world, failures)
    if not found:
        with pytest.raises(KaratError):
            rank(world.single, metric="verdict", failures=failures)
        return
    check_ranking(world, rank(world.single, metric="verdict", failures=failures), found, missing)


@pytest.mark.parametrize("failures", ["lose", "leave_out"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_ranking_by_comparisons_counts_every_pair(seed: int, failures: Any) -> None:
    world = World(seed)
    found, missing = ranked_by_pairs(world, failures)
    if any(math.isnan(o) for every in found.values() for *_, o in every):
        pytest.skip("the stage stopped among comparisons that need no judge")
    if not found:
        with pytest.raises(KaratError):
            rank(world.pairs, evaluator="pairs", failures=failures)
        return
    made = rank(world.pairs, failures=failures)
    check_ranking(world, made, found, missing)
    aggregation = karat.aggregate(
        world.pairs,
        [
            {"name": "win_rate", "params": {"failures": failures}},
            {"name": "ranking", "params": {"failures": failures}},
        ],
    )
    for place in made.places:
        assert figures(aggregation.estimates.get(aggregator="win_rate", run=place.run)) == figures(
            place.win_rate
        )
        rating = aggregation.estimates.get(aggregator="ranking", name="", run=place.run)
        assert all(map(almost, figures(rating), figures(place.rating)))
    table = next(each.value for each in aggregation.tables if each.name == "ranking")
    assert (table["n"], table["of"]) == (made.n, made.of)
    assert json.dumps(made.to_dict(), allow_nan=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_threshold_holds_or_fails_for_every_way_in_which_missing_items_end(seed: int) -> None:
    world = World(seed)
    aggregation = karat.aggregate(world.single, ["mean"])
    low, high = world.range() or (0.0, 10.0)
    threshold = low + 0.6 * (high - low)
    gates = {gate.run: gate for gate in karat.gate(aggregation, f"verdict mean:{threshold}")}
    for run in world.runs:
        estimate, gate = aggregation.estimates.get(run=run.id), gates[run.id]
        sides = (estimate.low, estimate.high, estimate.lowest, estimate.highest)
        least, most, lowest, highest = (
            None if each is None else world.sign * (each - threshold) for each in sides
        )
        if world.sign < 0:
            least, most, lowest, highest = most, least, highest, lowest
        whole = estimate.n == estimate.of
        if gate.verdict == "holds":
            assert least is not None
            assert least >= -1e-12
            assert whole or (lowest is not None and lowest >= 0.0)
        elif gate.verdict == "fails":
            assert most is not None
            assert most < 0.0
            assert whole or (highest is not None and highest < 0.0)
        elif whole and least is not None and most is not None:
            assert least < 0.0 <= most
