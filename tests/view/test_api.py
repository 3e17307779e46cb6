"""The replies of the endpoints equal the records, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import stat
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import karat
from karat.analysis.filters import parse
from karat.errors import TookTooLong
from karat.store import open_store
from karat.store.sql import time_limit
from karat.tasks import FunctionTask
from karat.view.data import MOST_RUNS_DRAWN, Viewer, _slices
from karat.view.server import AT_ONCE, SECONDS
from tests.view.conftest import COUNT, HOSTILE, Served, World, answering, examples, forget_columns


def test_the_runs_by_dataset(viewer, world):
    found = viewer.get("/api/runs")
    (data,) = found["datasets"]
    assert (data["label"], data["examples"]) == (world.data.label, COUNT)
    assert [run["id"] for run in data["runs"]] == [world.second.id, world.first.id]
    run = data["runs"][1]
    assert run["counts"] == {"total": COUNT, "ok": COUNT - 1, "failed": 1, "skipped": 0, "pending": 0}
    assert run["settings"] == {"variant": "0"}
    assert (run["status"], run["live"]) == ("partial", False)
    assert [each["key"] for each in run["evaluators"]] == ["exact_match", "edit_distance"]
    (estimate,) = [each for each in run["estimates"] if each["evaluator"] == "exact_match"]
    stored = world.store.aggregations.list()[0].estimates.get(evaluator="exact_match", run=world.first.id)
    assert (estimate["value"], estimate["low"], estimate["n"]) == (stored.value, stored.low, stored.n)
    changes = {"version": found["version"], "live": False, "building": [], "built": 0}
    assert viewer.get("/api/changes") == changes


def test_a_run_by_its_label_and_prefix(viewer, world):
    for name in (world.first.id, world.first.id[:9], "variant0"):
        assert viewer.get(f"/api/r/{name}")["run"]["id"] == world.first.id
    found = viewer.get(f"/api/r/{world.first.id}")
    assert found["fields"] == ["topic", "level", "tags"]
    assert found["rows"] == COUNT


def test_labels_may_have_what_divides_names(viewer, world):
    labels = ["a..b..", "c,d%2C"]
    for run, label in zip((world.first, world.second), labels, strict=True):
        world.store.tag(run.id, [label])
    pair = "..".join(labels)
    assert [run["id"] for run in viewer.get(f"/api/c/{pair}")["runs"]] == [world.first.id, world.second.id]
    assert viewer.get(f"/api/c/{pair}/rows")["total"] == COUNT
    for path in ("/api/s", "/api/p"):
        found = viewer.get(path, runs=",".join(quote(label, safe="") for label in labels))
        assert [run.get("id") or run["run"]["id"] for run in found["runs"]] == [
            world.first.id,
            world.second.id,
        ]
    assert all(label in viewer.get(f"/api/c/{pair}")["conclusion"] for label in labels)
    for run, label in zip((world.first, world.second), labels, strict=True):
        world.store.tag(run.id, [], remove=[label])
    found = viewer.get(f"/api/c/{world.first.id}..{world.second.id}")["conclusion"]
    assert not any(label in found for label in labels)


@pytest.mark.parametrize(
    "text",
    ["", "status:failed", "exact_match<0.5", "exact_match=1 topic:law", "level>=3 or topic=art", "not tags:t1",
     "edit_distance<0.5 level!=2", "score:none", "result:skipped", '"WORD2"', "error~answer", "id:q7", "seconds<0",
     'input~"<script>"', "exact_match.status:ok cost:none", "tokens>0", "attempt=1 try=1", "topic~a",
     'tokens<1 or "nowhere"', 'not (tokens<1 or "nowhere")', "id:Q7 or id=q8 or id~q1", "not id=q7",
     "edit_distance.comment~a or level=1", "edit_distance.error:none"],
)  # fmt: skip
def test_a_filter_selects_the_rows_that_it_should(viewer, world, text):
    parsed = parse(text)
    mine = [row for row in world.evaluation.rows() if row.run == world.first.id]
    expected = [row.id for row in mine if parsed.matches(row, {"tokens": 0})]
    found = viewer.get(f"/api/r/{world.first.id}/rows", filter=text, count=500)
    assert [row["id"] for row in found["rows"]] == expected
    assert (found["total"], found["matching"]) == (COUNT, len(expected))
    assert sum(found["counts"].values()) == len(expected)


def test_pages_sorting_and_jumping(viewer, world):
    path = f"/api/r/{world.first.id}/rows"
    every = viewer.get(path, count=500)["rows"]
    assert [row["index"] for row in every] == list(range(COUNT))
    paged = [
        row["id"] for start in range(0, COUNT, 7) for row in viewer.get(path, start=start, count=7)["rows"]
    ]
    assert paged == [row["id"] for row in every]
    for field, sign in (("seconds", 1), ("-seconds", -1)):
        found = [row["seconds"] for row in viewer.get(path, sort=field, count=500)["rows"]]
        assert found == sorted(found, key=lambda value: sign * value)
    scores = [
        row["results"]["exact_match"]["score"]
        for row in viewer.get(path, sort="-exact_match", count=500)["rows"]
    ]
    assert scores[-1] is None
    assert scores[:-1] == sorted(scores[:-1], reverse=True)
    assert [row["id"] for row in viewer.get(path, sort="-position", count=2)["rows"]] == ["q39", "q38"]
    jumped = viewer.get(path, id="q30", count=5)
    assert "q30" in [row["id"] for row in jumped["rows"]]
    around = viewer.get(path, around="12.1", count=4, filter="topic:law")
    assert "12.1" in [row["key"] for row in around["rows"]]
    assert viewer.get(path, start=10_000)["rows"] == []


def test_an_item_has_everything(viewer, world):
    found = viewer.get(f"/api/r/{world.second.id}/item", key="25.1")
    assert found["example"]["id"] == "q25"
    assert found["output"]["value"]["text"] == "oops"
    exact = next(each for each in found["results"] if each["key"] == "exact_match")
    assert (exact["status"], exact["score"], exact["evaluation"]) == ("ok", 0.0, world.evaluation.id)
    assert exact["comment"]
    assert [each["try"] for each in found["tries"]] == [1]
    assert '"oops"' in found["raw"]["text"]
    failed = viewer.get(f"/api/r/{world.first.id}/item", key="20.1")
    assert failed["output"]["status"] == "failed"
    assert failed["output"]["error"] == "ValueError: no answer to word20"
    assert {each["status"] for each in failed["results"]} == {"skipped"}


def test_a_comparison_counts_what_changed(viewer, world):
    pair = f"/api/c/{world.first.id}..{world.second.id}"
    found = viewer.get(pair, evaluator="exact_match")
    made = karat.compare([world.first, world.second], metrics=["exact_match"], store=world.store)
    difference = made.differences[0].compared
    assert found["difference"]["value"] == difference.difference.value
    assert (found["difference"]["low"], found["p_value"]) == (difference.difference.low, difference.p_value)
    assert found["conclusion"] == made.differences[0].conclusion
    assert found["counts"] == {"better": 0, "worse": 2, "same": COUNT - 4, "missing": 2, "not applicable": 0}
    assert found["differs"] == [{"name": "variant", "first": "0", "second": "1"}]
    for change, count in found["counts"].items():
        rows = viewer.get(f"{pair}/rows", evaluator="exact_match", filter=f'changed:"{change}"', count=500)
        assert rows["matching"] == count == len(rows["rows"])
        assert {row["changed"] for row in rows["rows"]} <= {change}
    worse = viewer.get(f"{pair}/rows", evaluator="exact_match", filter="changed:worse")["rows"]
    assert [(row["id"], row["first"]["output"], row["second"]["output"]) for row in worse] == [
        ("q25", "WORD25", "oops"),
        ("q26", "WORD26", "oops"),
    ]
    ordered = viewer.get(f"{pair}/rows", sort="difference", evaluator="edit_distance", count=500)["rows"]
    known = [row["difference"] for row in ordered if row["difference"] is not None]
    assert known == sorted(known)
    item = viewer.get(f"{pair}/item", key="25.1", evaluator="exact_match")
    assert (item["changed"], item["second"]["output"]["value"]["text"]) == ("worse", "oops")


def test_the_differences_by_every_metric_are_one_plot(viewer, world):
    pair = f"{world.first.id}..{world.second.id}"
    found = viewer.get(f"/api/c/{pair}/differences")
    made = karat.compare([world.first, world.second], store=world.store)
    texts = {mark["text"] for mark in found["plot"]["marks"] if mark["kind"] == "text"}
    assert found["metrics"] == len(viewer.get(f"/api/c/{pair}")["evaluators"]) == 2
    assert found["left_out"] == 0
    for each in made.differences:
        assert any(each.metric in text for text in texts)
        assert any(text.startswith(f"{each.improvement.value:+.3f}") for text in texts)
    opened = {mark["about"]["evaluator"] for mark in found["plot"]["marks"] if mark.get("about")}
    assert opened == {each.evaluator for each in made.differences}


def test_a_plot_of_many_runs_has_the_newest(tmp_path, serve):
    with open_store(tmp_path / "many.db") as store:
        data = karat.Dataset.from_examples([{"input": n, "expected": n} for n in range(3)], name="numbers")
        runs = []
        for _ in range(MOST_RUNS_DRAWN + 3):
            run = karat.run(lambda n: n, data, store=store, new=True, progress=False)
            karat.aggregate(karat.evaluate(run, ["exact_match"], progress=False), progress=False)
            runs.append(run)
        (found,) = serve(store.url).get("/api/runs")["datasets"]
    assert len(found["runs"]) == len(runs)
    drawn = [mark["about"]["run"] for mark in found["forest"]["marks"] if mark.get("about")]
    assert list(dict.fromkeys(drawn)) == [run.id for run in reversed(runs)][:MOST_RUNS_DRAWN]
    assert f"{MOST_RUNS_DRAWN} of {len(runs)}" in found["forest"]["title"]


def test_slices_add_up_to_the_difference(viewer, world):
    runs = f"{world.first.id},{world.second.id}"
    for field in ("topic", "level"):
        found = viewer.get("/api/s", runs=runs, by=field, evaluator="exact_match")
        total = math.fsum(group["contribution"] for group in found["groups"])
        assert total == pytest.approx(found["difference"])
        assert sum(group["of"] for group in found["groups"]) == COUNT
        for group in found["groups"]:
            rows = viewer.get(f"/api/r/{world.first.id}/rows", filter=group["filter"])
            assert rows["matching"] == group["of"]
    tags = viewer.get("/api/s", runs=runs, by="tags", evaluator="exact_match")
    assert {group["value"]: group["of"] for group in tags["groups"]}["x"] == COUNT


def test_failures_by_kind_open_their_rows(viewer, world):
    found = viewer.get(f"/api/f/{world.first.id}")
    kinds = {(kind["what"], kind["status"], kind["type"]): kind for kind in found["kinds"]}
    failed = kinds["output", "failed", "ValueError"]
    assert failed["count"] == 1
    assert failed["examples"][0]["key"] == "20.1"
    for kind in kinds.values():
        assert viewer.get(f"/api/r/{world.first.id}/rows", filter=kind["filter"])["matching"] == kind["count"]


def test_a_trajectory_is_shown_by_its_calls(tmp_path, serve):
    def messages(steps: int) -> list[dict[str, Any]]:
        call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}] * (steps - 1) + [
            {"role": "assistant", "content": "done"}
        ]

    examples = [{"input": 3, "expected": "all done"}, {"input": 400, "expected": []}]
    data = karat.Dataset.from_examples(examples, name="steps")
    with open_store(tmp_path / "steps.db") as store:
        run = karat.run(messages, data, store=store, progress=False)
        asked = serve(store.url)
        short, long = asked.get(f"/api/r/{run.id}/rows")["rows"]
        assert short["output"] == "3 steps: search → search"
        assert long["output"].startswith('[{"role":"assistant"')  # reading it for every row would take long
        item = asked.get(f"/api/r/{run.id}/item", key=long["key"])
        assert item["output"]["trajectory"].startswith("400 steps: search → ")
        assert item["diff"] is None
        item = asked.get(f"/api/r/{run.id}/item", key=short["key"])
        assert item["output"]["answer"]["text"] == "done"
        kept = "".join(piece["text"] for piece in item["diff"] if piece["kind"] == "same")
        assert kept.strip() == "done"


def test_tool_calls_are_aligned_at_their_first_divergence(tmp_path, serve):
    plans = {
        "one": ["open", "read", "close"],
        "two": ["open", "look", "read", "close"],
        "three": ["open", "read", "close"],
    }

    def agent(plan: str) -> list[dict[str, Any]]:
        calls = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
            for n, name in enumerate(plans[plan])
        ]
        return [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "assistant", "content": plan},
        ]

    data = karat.Dataset.from_examples([{"input": "go", "expected": "one"}], name="plans")
    with open_store(tmp_path / "plans.db") as store:
        runs = {}
        for plan in plans:

            def task(_: str, plan: str) -> list[dict[str, Any]]:
                return agent(plan)

            made = FunctionTask(task, name="agent", parameters={"plan": plan})
            runs[plan] = karat.run(made, data, store=store, progress=False).id
        karat.evaluate(list(runs.values()), ["exact_match"], store=store, progress=False)
        asked = serve(store.url)
        calls = asked.get(f"/api/c/{runs['one']}..{runs['two']}/item", key="0.1")["calls"]
        assert calls["first_divergence"] == 1
        assert [row["same"] for row in calls["rows"]] == [True, False, True, True]
        added = calls["rows"][1]
        assert added["first"] in (None, "")
        assert added["second"].startswith("look")
        same = asked.get(f"/api/c/{runs['one']}..{runs['three']}/item", key="0.1")["calls"]
        assert same["first_divergence"] is None
        assert all(row["same"] for row in same["rows"])


def test_an_item_has_the_reasoning_and_the_claims_of_a_judge(tmp_path, serve):
    claims = [{"claim": f"claim {n}", "verdict": "supported", "reason": f"reason {n}"} for n in range(3)]

    def judge(outputs: str) -> karat.Result:
        return karat.Result(
            "judge", 0.5, comment="half", metadata={"reasoning": "step by step", "claims": claims}
        )

    with open_store(tmp_path / "judged.db") as store:
        run = karat.run(lambda text: text, [{"id": "a", "input": "x"}], store=store, progress=False)
        karat.evaluate(run, [judge], progress=False)
        (result,) = serve(store.url).get(f"/api/r/{run.id}/item", key="0.1")["results"]
    assert (result["comment"], result["reasoning"]) == ("half", "step by step")
    assert [(each["text"], each["verdict"], each["reason"]) for each in result["claims"]] == [
        (each["claim"], each["verdict"], each["reason"]) for each in claims
    ]


def test_a_page_of_rows_has_a_limit(tmp_path, serve):
    rows = [{"id": f"e{n}", "input": n} for n in range(600)]
    with open_store(tmp_path / "many.db") as store:
        run = karat.run(lambda number: number, rows, store=store, progress=False)
        found = serve(store.url).get(f"/api/r/{run.id}/rows", count=100_000)
    assert (found["matching"], len(found["rows"])) == (600, 500)


def test_a_request_that_takes_too_long_is_stopped(viewer, world, monkeypatch):
    monkeypatch.setattr("karat.view.server.SECONDS", -1.0)
    answer = viewer.ask(f"/api/r/{world.first.id}/item?key=0.1")
    assert (answer.status, list(answer.json)) == (503, ["error"])
    monkeypatch.undo()
    assert viewer.ask(f"/api/r/{world.first.id}/item?key=0.1").status == 200


def test_a_computation_that_takes_too_long_is_stopped_without_a_read(world):
    viewer = Viewer(world.store.url)
    with viewer.pool.store() as store:
        runs = [store.runs.get(run.id) for run in (world.first, world.second)]
        tables = [viewer._table(store, run) for run in runs]
        pair = viewer._pair(*tables, "exact_match")
        assert _slices(tables, "exact_match", "topic")[0]
        with time_limit(-1.0):
            with pytest.raises(TookTooLong):
                _slices(tables, "exact_match", "topic")
            with pytest.raises(TookTooLong):
                viewer._found(store, pair, ["exact_match"])
        assert viewer._found(store, pair, ["exact_match"]).differences, "nothing of it was kept"
    viewer.close()


def test_slices_are_by_a_field_with_few_values_unless_one_is_chosen(tmp_path, serve):
    rows = [
        {"input": n, "expected": n, "metadata": {"uuid": f"u{n}", "only": 1, "topic": "ab"[n % 2]}}
        for n in range(30)
    ]
    with open_store(tmp_path / "few.db") as store:
        run = karat.run(
            lambda n: n, karat.Dataset.from_examples(rows, name="few"), store=store, progress=False
        )
        karat.evaluate(run, ["exact_match"], progress=False)
        asked = serve(store.url)
        assert asked.get("/api/s", runs=run.id)["by"] == "topic"
        assert asked.get("/api/s", runs=run.id, by="uuid")["by"] == "uuid"


def test_a_comparison_of_many_rows_says_that_it_is_by_one_metric(viewer, world, monkeypatch, says):
    monkeypatch.setattr("karat.view.data.MOST_TOGETHER", COUNT)
    found = viewer.get(f"/api/c/{world.second.id}..{world.first.id}", evaluator="edit_distance")
    made = karat.compare([world.second, world.first], metrics=["edit_distance"], store=world.store)
    assert (found["metrics"], found["conclusion"]) == (1, made.differences[0].conclusion)
    assert found["adjusted_p_value"] == found["p_value"]
    says(*found["notes"])


def test_cost_and_times(viewer, world):
    found = viewer.get("/api/p", runs=f"{world.first.id},{world.second.id}")
    assert [each["run"]["id"] for each in found["runs"]] == [world.first.id, world.second.id]
    seconds = sorted(output.service_seconds for output in world.first.outputs())
    assert found["runs"][0]["seconds"]["max"] == seconds[-1]
    assert {"median", "p95"} <= set(found["runs"][0]["seconds"])


def test_plots_come_as_marks(viewer, world):
    runs = f"{world.first.id},{world.second.id}"
    plots = [
        viewer.get("/api/runs")["datasets"][0]["forest"],
        viewer.get(f"/api/c/{world.first.id}..{world.second.id}")["plot"],
        viewer.get("/api/s", runs=runs, by="topic")["plot"],
        viewer.get("/api/p", runs=runs)["plot"],
    ]
    for plot in plots:
        assert {"title", "description", "width", "height", "marks"} == set(plot)
        assert {mark["kind"] for mark in plot["marks"]} <= {"line", "rect", "circle", "text"}
        abouts = [mark["about"] for mark in plot["marks"] if mark.get("about")]
        assert abouts


def test_hostile_strings_are_data(viewer, world):
    rows = viewer.get(f"/api/r/{world.first.id}/rows", count=len(HOSTILE))["rows"]
    assert [row["input"] for row in rows] == HOSTILE
    answer = viewer.ask(f"/api/r/{world.first.id}/rows")
    assert answer.headers["Content-Type"].startswith("application/json")
    for place, text in enumerate(HOSTILE):
        item = viewer.get(f"/api/r/{world.first.id}/item", key=f"{place}.1")
        assert item["example"]["input"]["text"] == text
        found = viewer.ask("/api/r/x/rows?filter=" + "".join(f"%{byte:02x}" for byte in text.encode()))
        assert found.status in (400, 404)


def test_large_fields_are_cut_and_can_be_downloaded(tmp_path, serve):
    steps = [{"role": "user", "content": "go"}]
    for number in range(5000):
        call = {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "look", "arguments": f'{{"n": {number}}}'},
        }
        steps.append({"role": "assistant", "content": "", "tool_calls": [call]})
        steps.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"seen {number}"})

    def answer(text: str) -> Any:
        return "x" * 5_000_000 + text if text == "long" else steps

    with open_store(tmp_path / "karat.db") as store:
        data = [{"id": "a", "input": "long"}, {"id": "b", "input": "steps"}]
        run = karat.run(answer, data, store=store)
    viewer = serve(f"sqlite:///{tmp_path}/karat.db")
    (row, _) = viewer.get(f"/api/r/{run.id}/rows")["rows"]
    assert len(row["output"]) <= 300
    field = viewer.get(f"/api/r/{run.id}/item", key="0.1")["output"]["value"]
    assert (field["cut"], field["size"], len(field["text"])) == (True, 5_000_004, 20_000)
    whole = viewer.ask(field["download"])
    assert whole.status == 200
    assert whole.body == b"x" * 5_000_000 + b"long"
    assert whole.headers["Content-Disposition"].startswith("attachment")
    item = viewer.get(f"/api/r/{run.id}/item", key="1.1")
    assert (item["steps_total"], len(item["steps"])) == (10_001, 200)
    more = viewer.get(f"/api/r/{run.id}/steps", key="1.1", start=9_999, count=200)
    assert [step["number"] for step in more["steps"]] == [9_999, 10_000]
    assert more["steps"][0]["calls"][0]["name"] == "look"
    assert more["steps"][1]["text"]["text"] == "seen 4999"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_run_that_is_going_on(tmp_path, serve, request, kind):
    url = f"sqlite:///{tmp_path}/karat.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    reached, go_on = threading.Event(), threading.Event()

    async def answer(text: str) -> str:
        if text == "word20":
            reached.set()
            await asyncio.to_thread(go_on.wait, 60)
        return text.upper()

    with open_store(url) as store:
        done: list[Any] = []
        worker = threading.Thread(
            target=lambda: done.append(karat.run(answer, examples(30), store=store, concurrency=1))
        )
        worker.start()
        assert reached.wait(60)
        viewer = serve(url)
        (run,) = viewer.get("/api/runs")["datasets"][0]["runs"]
        assert (run["live"], run["counts"]["ok"], run["counts"]["pending"]) == (True, 20, 10)
        before = viewer.get("/api/changes")
        assert before["live"]
        rows = viewer.get(f"/api/r/{run['id']}/rows", count=500)
        assert [row["status"] for row in rows["rows"]] == ["ok"] * 20 + ["pending"] * 10
        assert viewer.get(f"/api/r/{run['id']}/rows", filter="status:pending")["matching"] == 10
        assert viewer.get(f"/api/r/{run['id']}/item", key="29.1")["output"]["status"] == "pending"
        go_on.set()
        worker.join(60)
        assert viewer.get("/api/changes")["version"] != before["version"]
        assert not viewer.get("/api/changes")["live"]
        assert viewer.get(f"/api/r/{run['id']}/rows", filter="status:ok")["matching"] == 30


def test_columns_of_an_older_store_are_built_while_its_rows_are_shown(tmp_path, serve, gate):
    with open_store(tmp_path / "old.db") as store:
        made = World(store)
        url, first, second = store.url, made.first.id, made.second.id
    forget_columns(tmp_path / "old.db")
    viewer = serve(url)
    whole = viewer.get("/api/runs")
    assert {run["id"] for data in whole["datasets"] for run in data["runs"]} == {first, second}
    page = viewer.get(f"/api/r/{first}/rows", count=COUNT)
    assert page["building"] == [{"id": first, "kind": "run", "share": 0.0}]
    assert [row["id"] for row in page["rows"]] == [f"q{i}" for i in range(COUNT)]
    assert (page["total"], page["counts"]["failed"]) == (COUNT, 1)
    assert page["rows"][20]["status"] == "failed"
    assert page["rows"][21]["results"]["exact_match"]["score"] == 0.0
    assert viewer.get(f"/api/r/{first}/rows", around="30.1", count=4)["start"] == 28
    assert viewer.get(f"/api/r/{first}/item", key="20.1")["output"]["status"] == "failed"
    waiting = [f"/api/r/{first}/rows?{part}" for part in ("filter=status:failed", "sort=score", "id=q3")]
    pair = f"/api/c/{first}..{second}"
    waiting += [f"/api/f/{first}", f"/api/p?runs={first}", f"/api/s?runs={first}", pair, f"{pair}/rows"]
    for path in waiting:
        answer = viewer.ask(path)
        assert (answer.status, [each["id"] for each in answer.json["building"]][:1]) == (202, [first]), path
    changes = viewer.get("/api/changes")
    assert (changes["built"], changes["building"][0]["share"]) == (0, 0.0)
    gate.set()
    for path in waiting:
        for _ in range(20):  # one thing after the other: the runs, their evaluation, the dataset
            for job in list(viewer.server.viewer.builder._jobs.values()):
                assert job.finished.wait(60)
            answer = viewer.ask(path)
            if answer.status != 202:
                break
        assert answer.status == 200, path
    assert viewer.get("/api/changes")["building"] == []
    assert viewer.get("/api/changes")["built"] > 0
    assert viewer.get(f"/api/r/{first}/rows", filter="status:failed")["matching"] == 1
    assert viewer.get(f"/api/r/{first}/rows")["building"] == []


def test_a_store_whose_columns_cannot_be_built_says_why(tmp_path, serve, gate):
    gate.set()
    with open_store(tmp_path / "old.db") as store:
        run = karat.run(answering(0), examples(25), store=store)
        url = store.url
    forget_columns(tmp_path / "old.db")
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.execute(
            "UPDATE karat_rows SET status = 3 WHERE position = 7 AND parent = ?", (run.number,)
        )
    viewer = serve(url)
    for _ in range(2):  # it is tried again when it is asked for again
        answer = viewer.ask(f"/api/f/{run.id}")
        if answer.status == 202:
            (job,) = viewer.server.viewer.builder._jobs.values()
            assert job.finished.wait(60)
            answer = viewer.ask(f"/api/f/{run.id}")
        assert answer.status in (400, 503)
        assert "damaged" in answer.json["error"]


def test_a_viewer_that_is_closed_stops_building(tmp_path, gate, cache):
    with open_store(tmp_path / "old.db") as store:
        run = karat.run(answering(0), examples(25), store=store)
        url = store.url
    forget_columns(tmp_path / "old.db")
    viewer = Viewer(url)
    assert viewer.rows(run.id)["building"]
    closing = threading.Thread(target=viewer.close)
    closing.start()
    assert viewer.builder._closed.wait(60)
    gate.set()
    closing.join(60)
    assert not viewer.builder._thread.is_alive()
    assert list(cache.parent.rglob("replies.db-columns/*")) == [], "neither the columns nor a part of them"


def test_a_reply_that_does_not_arrive_times_out(viewer, world, monkeypatch):
    monkeypatch.setattr("karat.view.server.GRACE", 0.05 - SECONDS)  # reading alone would take long enough
    path = f"/api/r/{world.first.id}/rows"
    with viewer.server.viewer._comparing, viewer.server.viewer._lock:  # a computation that nothing interrupts
        answers = [viewer.ask(path) for _ in range(AT_ONCE + 2)]  # more than are computed at once
    assert {answer.status for answer in answers} == {503}
    monkeypatch.undo()
    assert viewer.ask(path).status == 200


def test_a_retried_run_and_an_older_store(tmp_path, serve, cache):
    import shutil

    fixture = Path(__file__).parents[1] / "store" / "fixtures" / "schema-1.sqlite"
    path = Path(shutil.copy(fixture, tmp_path / "old.db"))
    before = path.read_bytes()
    viewer = serve(f"sqlite:///{path}")
    for data in viewer.get("/api/runs")["datasets"]:
        for run in data["runs"]:
            rows = viewer.get(f"/api/r/{run['id']}/rows", count=500)
            assert len(rows["rows"]) == rows["total"] == run["counts"]["total"]
    assert path.read_bytes() == before
    kept = [file for file in cache.parent.rglob("replies.db-columns/*") if file.is_file()]
    assert kept
    assert {stat.S_IMODE(file.stat().st_mode) for file in kept} == {0o600}
    with open_store(tmp_path / "new.db") as store:
        karat.run(answering(0), examples(25), store=store)
        karat.run(answering(0), examples(25), store=store, retry_failed=True)
        run = store.runs.list()[0]
    viewer = serve(f"sqlite:///{tmp_path}/new.db")
    item = viewer.get(f"/api/r/{run.id}/item", key="20.1")
    assert [each["try"] for each in item["tries"]] == [1, 2]
    assert viewer.get(f"/api/r/{run.id}/rows", filter="try=2")["matching"] == 1


def test_the_command_prints_a_url_that_works(tmp_path):
    import json
    import subprocess
    import sys
    import urllib.error
    import urllib.request

    with open_store(tmp_path / "karat.db") as store:
        run = karat.run(answering(0), examples(5), store=store)
    command = [
        sys.executable,
        "-m",
        "karat",
        "view",
        run.id,
        "--no-browser",
        "--json",
        "--store",
        f"{tmp_path}/karat.db",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert process.stdout is not None
        text = ""
        while "}" not in text:
            text += process.stdout.readline()
        url = json.loads(text)["url"]
        assert url.startswith("http://127.0.0.1:")
        assert f"/r/{run.id}?token=" in url
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert "HttpOnly" in answer.headers["Set-Cookie"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url.partition("?")[0], timeout=60)
    finally:
        process.terminate()
        process.wait(60)


def chosen(viewer: Served, path: str, text: str) -> list[str]:
    return [row["id"] for row in viewer.get(path, filter=text, count=500)["rows"]]


def test_columns_and_records_answer_one_filter_together(viewer, world):
    """A condition on columns, such as the kind of a failure, works together with a text search in the records."""
    path = f"/api/r/{world.first.id}/rows"
    assert chosen(viewer, path, "failure:ValueError") == ["q20"]
    assert chosen(viewer, path, 'failure:ValueError or "word30"') == ["q20", "q30"]
    assert len(chosen(viewer, path, 'not (failure:ValueError or "word30")')) == COUNT - 2
    answer = viewer.ask(f"{path}?filter=nothing~x")
    assert (answer.status, list(answer.json)) == (400, ["error"])


def test_a_filter_of_a_comparison_names_the_side(viewer, world):
    path = f"/api/c/{world.first.id}..{world.second.id}/rows"
    for text in ("id:Q7", "id=q7"):
        assert chosen(viewer, path, text) == ["q7"]
    assert len(chosen(viewer, path, "id!=q7")) == COUNT - 1
    assert chosen(viewer, path, "error~answer") == chosen(viewer, path, "second.error~answer") == ["q21"]
    assert chosen(viewer, path, "first.error~answer") == ["q20"]
    assert chosen(viewer, path, "output~oops") == ["q25", "q26"]
    assert chosen(viewer, path, "first.output~oops") == []
    assert chosen(viewer, path, "first.output~word25") == ["q25"]
    assert chosen(viewer, path, "first.input~word25") == chosen(viewer, path, "input~word25") == ["q25"]
    assert viewer.ask(f"{path}?filter=first.nothing~x").status == 400


def test_every_slice_opens_exactly_its_rows(tmp_path, serve):
    values = [
        None,
        "(none)",
        "none",
        1,
        1.0,
        "1",
        True,
        "true",
        "x" * 3000,
        [],
        ["a", "(none)"],
        'a"b\\',
        "<b>",
    ]
    data = karat.Dataset.from_examples(
        [
            {"id": f"e{i}", "input": str(i), "metadata": {'odd "name"': value}}
            for i, value in enumerate(values)
        ]
    )
    with open_store(tmp_path / "karat.db") as store:
        run = karat.run(answering(0), data, store=store)
        karat.evaluate(run, ["exact_match"])
        viewer = serve(f"sqlite:///{tmp_path}/karat.db")
    groups = viewer.get("/api/s", runs=run.id, by='odd "name"')["groups"]
    assert len(groups) > 6
    for group in groups:
        found = viewer.get(f"/api/r/{run.id}/rows", filter=group["filter"])
        assert (group["value"], found["matching"]) == (group["value"], group["of"])


def test_an_item_has_its_comparisons_with_other_runs(tmp_path, serve):
    class Longer:
        version = "1"

        def compare(self, example: Any, first: Any, second: Any) -> str:
            return "win" if len(first.value) > len(second.value) else "loss"

    with open_store(tmp_path / "pairs.db") as store:
        tasks = [
            FunctionTask(lambda text, more: text + more, name="add", parameters={"more": "!" * n})
            for n in range(3)
        ]
        runs = [karat.run(task, examples(2), store=store, progress=False) for task in tasks]
        first, second, third = (run.id for run in runs)
        evaluation = karat.evaluate(runs, [Longer(), "exact_match"], progress=False)
        results = serve(store.url).get(f"/api/r/{second}/item", key="1.1")["results"]
    found = [(each["key"], each["evaluation"], each["runs"], each["value"]["text"]) for each in results[1:]]
    assert found == [
        ("Longer", evaluation.id, [first, second], "loss"),
        ("Longer", evaluation.id, [second, third], "loss"),
    ]
    assert [len(each["tries"]) for each in results] == [1, 1, 1], "another comparison is no other try"
    assert (results[0]["key"], results[0]["runs"]) == ("exact_match", [second])


def test_a_page_around_a_row_that_the_filter_leaves_out_begins_with_the_next(viewer, world):
    path = f"/api/r/{world.first.id}/rows"
    page = viewer.get(path, filter="topic:art", around="12.1", count=3)
    assert (page["start"], [row["key"] for row in page["rows"]]) == (6, ["13.1", "15.1", "17.1"])
    assert viewer.get(path, filter="topic:law", around="39.1", count=3)["start"] == 0, "none comes later"
    assert viewer.get(path, filter="id:nobody", around="39.1")["rows"] == []
