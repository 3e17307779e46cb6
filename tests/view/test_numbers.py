"""Every number of the viewer equals what the joined rows say, and its link opens exactly those rows, on random runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import karat
from karat.analysis.filters import parse
from karat.analysis.summary import summarise
from karat.store.columns import kind_of_outcome
from karat.store.rows import Row
from karat.tasks import FunctionTask
from karat.view import quoted
from karat.view.data import Viewer
from tests.analysis.test_filters_by_columns import World

SEEDS = range(12)


class Seen:
    """A random store in a viewer, and its rows as `evaluation.rows()` joins them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.world = World(seed, folder)
        self.viewer = Viewer(self.world.store.url)
        self.runs = self.world.runs

    def rows(self, run: karat.Run) -> dict[str, Row]:
        """The rows of a run by their key, with the results of every evaluation."""
        found: dict[str, Row] = {}
        positions = {example.id: place for place, example in enumerate(run.dataset)}
        for evaluation in self.world.store.evaluations.list():
            if run.id not in evaluation.header.runs:
                continue
            for row in evaluation.rows():
                key = f"{positions[row.id]}.{row.attempt}" + (f"/{row.unit}" if row.unit else "")
                if key in found:
                    found[key].results.update(row.results)
                else:
                    found[key] = row
        return found

    def opened(self, run: karat.Run, where: str) -> set[str]:
        """The keys of the rows that a link opens."""
        page = self.viewer.rows(run.id, where=where, count=500)
        assert page["matching"] == len(page["rows"])
        return {row["key"] for row in page["rows"]}


@pytest.fixture(params=SEEDS)
def seen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Seen]:
    """A viewer of a random store."""
    made = Seen(request.param, tmp_path)
    yield made
    made.viewer.close()
    made.world.store.close()


def applies(row: Row, key: str) -> bool:
    """Whether an evaluator judges a row; `odd` is the reason of the random evaluators for not doing so."""
    return row.results[key].error != "odd"


def test_the_list_and_the_rows_of_each_run(seen: Seen) -> None:
    listed = {run["id"]: run for data in seen.viewer.runs()["datasets"] for run in data["runs"]}
    for run in seen.runs:
        rows = seen.rows(run)
        statuses = Counter(row.status for row in rows.values())
        counts = listed[run.id]["counts"]
        assert counts == {"total": len(rows), **{name: statuses[name] for name in list(counts)[1:]}}
        page = seen.viewer.rows(run.id, count=500)
        assert {row["key"] for row in page["rows"]} == set(rows)
        for shown in page["rows"]:
            row = rows[shown["key"]]
            assert (shown["id"], shown["status"], shown["try"]) == (row.id, row.status, row.try_number)
            assert (shown["seconds"], shown["cost"]) == (row.service_seconds, row.cost)
            assert {key: (each["status"], each["score"]) for key, each in shown["results"].items()} == {
                key: (each.status, each.score) for key, each in row.results.items()
            }
        for name in ("ok", "failed", "skipped", "pending"):
            wanted = {key for key, row in rows.items() if row.status == name}
            assert seen.opened(run, f"status:{name}") == wanted


def test_an_estimate_opens_its_rows_and_the_missing_ones(seen: Seen) -> None:
    for run in seen.runs:
        rows = seen.rows(run)
        for estimate in seen.viewer.run(run.id)["estimates"]:
            key = estimate["evaluator"]
            counted = {name for name, row in rows.items() if applies(row, key)}
            scores = [rows[name].results[key].score for name in counted]
            known = [score for score in scores if score is not None]
            assert (estimate["n"], estimate["of"]) == (len(known), len(counted))
            if known:
                assert math.isclose(estimate["value"], math.fsum(known) / len(known), abs_tol=1e-12)
            only = f'not {quoted(f"{key}.status")}:"not applicable"' if estimate["of"] < len(rows) else ""
            assert seen.opened(run, only) == counted
            missing = {name for name in counted if rows[name].results[key].score is None}
            assert seen.opened(run, f"{quoted(key)}:none {only}") == missing
            assert len(missing) == estimate["of"] - estimate["n"]


def test_failures_open_as_many_rows_as_they_count(seen: Seen) -> None:
    for run in seen.runs:
        rows = seen.rows(run)
        kinds = seen.viewer.failures(run.id)["kinds"]
        for kind in kinds:
            opened = seen.opened(run, kind["filter"])
            assert len(opened) == kind["count"]
            assert {each["key"] for each in kind["examples"]} <= opened
            for key in opened:
                row = rows[key]
                status = row.status if kind["what"] == "output" else row.results[kind["what"]].status
                assert status == kind["status"]
        failed = sum(row.status == "failed" for row in rows.values())
        assert sum(kind["count"] for kind in kinds if kind["what"] == "output") == failed
        order = [(kind["status"] != "failed", -kind["count"]) for kind in kinds]
        assert order == sorted(order)


@pytest.mark.parametrize("field", ["topic", "a", "x.y", "size", "a.b"])
def test_slices_are_the_means_of_the_rows_that_they_open(seen: Seen, field: str) -> None:
    runs = seen.runs
    if not seen.viewer.slices([run.id for run in runs], None, None)["evaluators"]:
        runs = runs[:1]  # evaluators with different settings have judged them
    names = [run.id for run in runs]
    if field not in seen.viewer.slices(names, None, "first")["fields"]:
        return
    document = seen.viewer.slices(names, field, "first")
    total = 0.0
    for group in document["groups"]:
        for run, mean in zip(runs, group["runs"], strict=True):
            rows = seen.rows(run)
            inside = [rows[key] for key in seen.opened(run, group["filter"])]
            counted = [row for row in inside if applies(row, "first")]
            scores = [row.results["first"].score for row in counted]
            known = [score for score in scores if score is not None]
            assert (mean["n"], mean["of"]) == (len(known), len(counted)), group["filter"]
            if known:
                assert math.isclose(mean["value"], math.fsum(known) / len(known), abs_tol=1e-12)
        assert group["of"] == len(seen.opened(seen.runs[0], group["filter"]))
        total += group["contribution"] or 0.0
    lists = any(isinstance(example.metadata.get(field), list) for example in seen.world.data)
    if document["difference"] is not None and not lists and len(document["groups"]) < 200:
        assert math.isclose(total, document["difference"], abs_tol=1e-9)


def test_a_comparison_is_that_of_the_command_and_its_counts_open_their_rows(seen: Seen) -> None:
    first, second = seen.runs
    if not seen.viewer.comparison(first.id, second.id)["evaluators"]:
        return  # evaluators with different settings have judged them
    made = karat.compare([first, second], store=seen.world.store, progress=False)
    for each in made.differences:
        shown = seen.viewer.comparison(first.id, second.id, each.evaluator)
        assert shown["conclusion"] == each.conclusion
        assert (shown["p_value"], shown["adjusted_p_value"]) == (
            each.compared.p_value,
            each.adjusted_p_value,
        )
        tested = [other for other in made.differences if other.compared.p_value is not None]
        assert shown["metrics"] == len(tested)
        for name in ("value", "low", "high", "n", "of"):
            assert shown["difference"][name] == getattr(each.compared.difference, name), name
        for name, count in shown["counts"].items():
            page = seen.viewer.compared_rows(
                first.id, second.id, each.evaluator, where=f'changed:"{name}"', count=500
            )
            assert page["matching"] == count == len(page["rows"])
        sides = [seen.rows(run) for run in (first, second)]
        for row in seen.viewer.compared_rows(first.id, second.id, each.evaluator, count=500)["rows"]:
            for side, name in zip(sides, ("first", "second"), strict=True):
                judged = side[row["key"]].results[each.evaluator] if row["key"] in side else None
                assert row[name]["score"] == (judged.score if judged else None)
    found = seen.viewer.differences(first.id, second.id)
    assert found["metrics"] - found["left_out"] == sum(
        each.compared.difference.value is not None for each in made.differences
    )


def test_times_are_those_of_the_rows(seen: Seen) -> None:
    for run, shown in zip(
        seen.runs, seen.viewer.performance([run.id for run in seen.runs], None)["runs"], strict=True
    ):
        times = sorted(
            row.service_seconds for row in seen.rows(run).values() if row.service_seconds is not None
        )
        if times:
            assert math.isclose(shown["seconds"]["max"], times[-1])
            assert times[0] <= shown["seconds"]["median"] <= times[-1]
            limit = shown["seconds"]["p95"]
            assert len(seen.opened(run, f"seconds>={limit!r}")) == sum(time >= limit for time in times)
            assert sum(time > limit for time in times) <= 0.05 * len(times) + 1


def test_random_filters_select_what_a_row_by_row_test_does(seen: Seen) -> None:
    for run in seen.runs:
        rows = seen.rows(run)
        for _ in range(40):
            text = seen.world.filter()
            try:
                opened = seen.opened(run, text)
            except karat.KaratError:
                continue  # a field that no example has
            wanted = {key for key, row in rows.items() if parse(text).matches(row, _tokens())}
            assert opened == wanted, text


def _tokens() -> dict[str, Any]:
    return {"tokens": 0}


def test_failures_are_those_of_the_run_in_the_viewer_and_in_a_report(tmp_path, serve):
    """Of results that several runs share, of comparisons with other runs, and of the newest evaluation alone."""

    def answering(end: str, broken: set[int]) -> FunctionTask:
        def answer(number: int, end: str) -> str:
            if number in broken:
                raise TimeoutError("no answer")
            return f"{number}{end}"

        return FunctionTask(answer, name="answer", parameters={"end": end})

    def strict(outputs: str, inputs: int) -> float:
        if outputs == "3a" or inputs == 7:
            raise ValueError("cannot judge")
        return 1.0

    def odd(outputs: str, inputs: int) -> float:
        return 1 / (inputs % 5)

    class Better:
        version, key = "1", "better"

        def compare(self, example: Any, first: Any, second: Any) -> str:
            if example.input % 4 == 1:
                raise ValueError("cannot compare")
            return "tie"

    url = f"sqlite:///{tmp_path / 'karat.db'}"
    with karat.open_store(url) as store:
        data = karat.Dataset.from_examples([{"id": f"q{n}", "input": n} for n in range(10)])
        tasks = [answering("a", set()), answering("b", {2}), answering("c", {1, 2})]
        runs = [karat.run(task, data, store=store, attempts=2, progress=False) for task in tasks]
        karat.evaluate(runs, [strict, odd], store=store, progress=False)
        karat.evaluate(runs, [strict, Better()], store=store, progress=False)
        newest = {"strict": store.evaluations.list()[1], "better": store.evaluations.list()[1]}
        newest["odd"] = store.evaluations.list()[0]
        viewer = serve(url)
        for run in runs:
            expected: Counter[tuple[str, str, str]] = Counter()
            rows: dict[tuple[str, str, str], set[Any]] = {}
            for key, evaluation in newest.items():
                for result in evaluation.results():
                    if result.key == key and run.id in result.runs and kind_of_outcome(result.outcome):
                        kind = (key, result.outcome.status, kind_of_outcome(result.outcome))
                        expected[kind] += 1
                        rows.setdefault(kind, set()).add((result.example, result.attempt))
            found = [each for each in viewer.get(f"/api/f/{run.id}")["kinds"] if each["what"] != "output"]
            assert {(k["what"], k["status"], k["type"]): k["count"] for k in found} == expected
            for kind in found:
                shown = viewer.get(f"/api/r/{run.id}/rows", filter=kind["filter"], count=100)["rows"]
                opened = {(row["id"], row["attempt"]) for row in shown}
                assert opened == rows[kind["what"], kind["status"], kind["type"]]
            reported = [each for each in summarise(store, [run]).failures if each.what != "output"]
            counted = {(each.what, each.status, each.type): each.count for each in reported}
            assert counted == {kind: count for kind, count in expected.items() if kind[1] == "failed"}
            assert all(each.examples[0]["example"] not in each.further().split(", ") for each in reported)
