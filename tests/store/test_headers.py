"""Headers, the same for every kind of store: ids, names and versions, lineage, removal, who makes a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from karat.datasets import Dataset
from karat.errors import RequestError, StoreBusy, UnknownName
from karat.keys import Wanted
from karat.records import FORMAT, AggregationHeader, Counts, EvaluationHeader, RunHeader
from karat.serialization import encode
from karat.store import Store, open_store, store_file
from karat.store.backend import OK, HeaderRow, StoredRow
from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset
from tests.store.conftest import Child, add_header


def texts(inputs: Sequence[Any], name: str = "examples") -> Dataset:
    return Dataset.from_examples([{"input": each} for each in inputs], name=name)


def make_run(store: Store, dataset: StoredDataset, configuration: str = "c", *, new: bool = False) -> Run:
    header = RunHeader(
        format=FORMAT, id="", dataset=dataset.id, task="t", configuration=configuration, code="k"
    )
    run, _, held = store.runs.open(header, Wanted(configuration, "k", new), [dataset.id])
    assert held is not None
    held.release()
    return run


def make_evaluation(store: Store, runs: list[Run], amends: list[str] | None = None) -> Evaluation:
    ids = [run.id for run in runs]
    header = EvaluationHeader(
        format=FORMAT,
        id="",
        dataset=runs[0].header.dataset,
        runs=ids,
        evaluators=[],
        configuration=",".join([*ids, *(amends or [])]),
        amends=amends or [],
    )
    evaluation, _, held = store.evaluations.open(
        header, Wanted(header.configuration, "known", what="evaluation"), [*ids, *(amends or [])]
    )
    assert held is not None
    held.release()
    return evaluation


def make_aggregation(store: Store, evaluations: list[Evaluation]) -> Aggregation:
    ids = [evaluation.id for evaluation in evaluations]
    return store.aggregations.add(
        AggregationHeader(format=FORMAT, id="", evaluations=ids, aggregators=[], configuration="c")
    )


# ------------------------------------------------------------------ written first as running, finished last


def test_a_header_is_written_first_as_running_with_a_lease_and_finished_last(store: Store) -> None:
    dataset = store.datasets.put(texts(["a"]))
    header = RunHeader(format=FORMAT, id="", dataset=dataset.id, task="t", configuration="c", code="k")
    run, decision, held = store.runs.open(header, Wanted("c", "k"), [dataset.id])
    assert held is not None
    assert decision.action == "create"
    (written,) = store.backend.headers("run")
    assert written.finished is None
    assert store.runs.get(run.id).status == "running"
    lease = store.backend.lease(run.number)
    assert lease is not None
    assert lease.since == pytest.approx(store.backend.now(), abs=60)

    done = msgspec.structs.replace(run.header, status="success", finished=5.0, counts=Counts(1))
    store.runs.save(run.number, done)
    assert store.backend.lease(run.number) is None, "given back in the same moment"
    held.release()
    assert store.backend.lease(run.number) is None
    assert store.backend.headers("run")[0].finished == 5.0
    again, decision, held = store.runs.open(header, Wanted("c", "k"), [dataset.id])
    assert (again.id, decision.action, held) == (run.id, "return", None)
    assert again.counts.ok == 1


def test_the_final_status_is_written_only_while_the_lease_is_held(store: Store, refuses) -> None:
    dataset = store.datasets.put(texts(["a"]))
    header = RunHeader(format=FORMAT, id="", dataset=dataset.id, task="t", configuration="c", code="k")
    run, _, held = store.runs.open(header, Wanted("c", "k"), [dataset.id])
    assert held is not None
    done = msgspec.structs.replace(run.header, status="success", finished=5.0)
    mine = store.backend.lease(run.number)
    assert mine is not None
    theirs = mine._replace(owner="another-machine-owner", host="elsewhere", heartbeat=store.backend.now())
    assert store.backend.take_lease(run.number, theirs, mine.owner)
    with refuses(StoreBusy):
        store.runs.save(run.number, done, held)
    assert store.runs.get(run.id).header == run.header, "nothing was said"
    assert store.backend.lease(run.number) == theirs

    assert store.backend.take_lease(run.number, mine, theirs.owner)
    store.runs.save(run.number, done, held)
    assert store.runs.get(run.id).header == done
    assert store.backend.lease(run.number) is None


def test_new_gives_the_next_replicate(store: Store) -> None:
    dataset = store.datasets.put(texts(["a"]))
    runs = [make_run(store, dataset), make_run(store, dataset, new=True), make_run(store, dataset, new=True)]
    assert [run.header.replicate for run in runs] == [1, 2, 3]
    assert len({run.id for run in runs}) == 3
    assert [run.id for run in store.runs.list()] == [run.id for run in runs]


def test_of_three_processes_that_ask_for_the_same_run_one_makes_it(
    shared: Store, url: str, child: Callable[..., Child], says
) -> None:
    dataset = shared.datasets.put(texts(["a"]))
    askers = [child("open_run", url, dataset.id) for _ in range(3)]
    for asker in askers:
        asker.wait_for("ready")
    for asker in askers:
        asker.go_on()
    for asker in askers:
        asker.wait_for("asked")  # all still alive, so that none takes over from a dead one
    for asker in askers:
        asker.go_on()
    answers = [asker.result() for asker in askers]
    assert [answer for answer in answers if answer[0] == "create"] == [["create", 1]]
    busy = [answer[1] for answer in answers if answer[0] == "StoreBusy"]
    assert len(busy) == 2
    says(*busy)
    assert len(shared.runs.list()) == 1


def test_what_is_made_from_something_unknown_is_refused(store: Store, refuses) -> None:
    header = RunHeader(format=FORMAT, id="", dataset="ds-gone", task="t", configuration="c", code="k")
    with refuses(RequestError):
        store.runs.open(header, Wanted("c", "k"), ["ds-gone"])
    assert store.runs.list() == []


# ------------------------------------------------------------------ finding


def test_by_id_by_its_beginning_and_the_latest(store: Store) -> None:
    dataset = store.datasets.put(texts(["a"], name="letters"))
    first, second = make_run(store, dataset), make_run(store, dataset, new=True)
    assert store.get(first.id).id == first.id
    assert store.get(first.id[:9]).id == first.id
    assert store.runs.get(second.id[:-1]).id == second.id
    assert store.runs.get("latest").id == second.id
    assert store.get("latest").id == second.id
    assert store.get("letters").id == dataset.id
    assert store.get(dataset.id[:10]).id == dataset.id
    assert store.datasets.get("latest").id == dataset.id
    assert isinstance(store.get(first.id), Run)
    assert isinstance(store.get("letters"), StoredDataset)


def test_an_exact_id_wins_over_longer_ones(store: Store, refuses) -> None:
    payload = encode(RunHeader(format=FORMAT, id="run-abcd", dataset="d", task="t", configuration="c"))
    for id in ("run-abcdef", "run-abcd", "run-abcdxy"):
        store.backend.insert_header(HeaderRow(0, "run", id, "c", 1.0, None, payload), (), None)
    assert store.backend.header(store.get("run-abcd").number).id == "run-abcd"  # type: ignore[union-attr]  # it is there
    with refuses(RequestError):
        store.get("run-abc")
    with pytest.raises(RequestError, match="not unique"):
        store.runs.get("run-abc")


@pytest.mark.parametrize("id", ["run-", "r", ""])
def test_too_short_a_beginning_is_refused_even_where_it_is_unique(store: Store, id: str, refuses) -> None:
    make_run(store, store.datasets.put(texts(["a"])))
    with refuses(RequestError):
        store.get(id)
    with pytest.raises(RequestError, match="too short"):
        store.remove(id)


def test_an_unknown_id_names_the_nearest(store: Store, refuses) -> None:
    dataset = store.datasets.put(texts(["a"], name="letters"))
    run = make_run(store, dataset)
    with pytest.raises(UnknownName) as caught:
        store.get(run.id[:-1] + "~")
    assert f"'{run.id}'" in str(caught.value)
    with refuses(UnknownName):
        store.datasets.get("leters")
    for odd in ("a\0b", "\ud800", "\n", "é", "run-\0"):
        with pytest.raises(UnknownName):
            store.get(odd)
        with pytest.raises(UnknownName):
            store.datasets.get(odd)


def test_a_label_finds_one_thing_of_a_kind(store: Store, refuses) -> None:
    dataset = store.datasets.put(texts(["a"], name="letters"))
    runs = [make_run(store, dataset, configuration) for configuration in "abc"]
    evaluation = make_evaluation(store, runs)
    odd = 'nightly "é\\日本'
    store.tag(runs[0].id, ["baseline", odd])
    store.tag(evaluation.id, ["baseline"])
    store.tag(dataset.id, ["golden"])
    assert store.get("baseline").id == store.runs.get("baseline").id == runs[0].id
    assert store.get(odd).id == runs[0].id
    assert store.evaluations.get("baseline").id == evaluation.id
    assert store.get("golden").id == store.datasets.get("golden").id == dataset.id
    with refuses(UnknownName):
        store.get("basline")
    store.tag(runs[1].id, ["baseline"])
    with refuses(RequestError):
        store.get("baseline")
    assert store.tag(runs[2].id, ["baseline"], move=True).labels == ["baseline"]
    assert store.get("baseline").id == runs[2].id
    assert store.runs.get(runs[0].id).labels == [odd]
    assert store.evaluations.get("baseline").id == evaluation.id, "of another kind"
    store.tag(runs[2].id, remove=["baseline", "nothing"])
    assert store.get("baseline").id == evaluation.id
    with refuses(RequestError):
        store.tag(runs[0].id, [runs[1].id])
    assert store.get(runs[1].id).id == runs[1].id, "an id is never a label"


@pytest.mark.parametrize("id", ["latest", "run-0000000001"])
def test_in_an_empty_store_nothing_is_found(store: Store, id: str) -> None:
    with pytest.raises(UnknownName):
        store.get(id)
    with pytest.raises(UnknownName):
        store.runs.get(id)
    assert [*store.runs.list(), *store.evaluations.list()] == []
    assert [*store.aggregations.list(), *store.datasets.list()] == []


# ------------------------------------------------------------------ names and versions


def test_the_same_content_is_the_same_dataset(store: Store) -> None:
    first = store.datasets.put(texts(["a", "b"], name="letters"))
    again = store.datasets.put(texts(["a", "b"], name="letters"))
    elsewhere = store.datasets.put(texts(["a", "b"], name="alphabet"))
    assert first.id == again.id == elsewhere.id
    assert (again.label, elsewhere.label) == ("letters@1", "alphabet@1")
    assert len(store.datasets.list()) == 1
    assert store.datasets.put(first) is first


def test_changed_content_under_a_name_is_its_next_version(store: Store, refuses) -> None:
    one = store.datasets.put(texts(["a"], name="letters"))
    two = store.datasets.put(texts(["a", "b"], name="letters"))
    assert (one.version, two.version) == (1, 2)
    assert store.datasets.get("letters").id == two.id
    assert store.datasets.get("letters@1").id == store.get("letters@1").id == one.id
    assert [example.input for example in store.datasets.get("letters@2")] == ["a", "b"]
    back = store.datasets.put(texts(["a"], name="letters"))
    assert back.version == 1, "the old content is still the old version"
    assert store.datasets.get("letters").version == 2
    with refuses(UnknownName):
        store.datasets.get("letters@3")


def test_a_version_number_never_gets_a_second_meaning(store: Store) -> None:
    store.datasets.put(texts(["a"], name="letters"))
    two = store.datasets.put(texts(["b"], name="letters"))
    store.remove("letters@2")
    assert store.datasets.get("letters").version == 1
    with pytest.raises(UnknownName, match="no version 2"):
        store.datasets.get("letters@2")
    assert store.datasets.put(texts(["c"], name="letters")).version == 3
    assert store.datasets.put(texts(["b"], name="letters")).label == "letters@2"
    assert store.datasets.get("letters@2").id == two.id


NAMES = [
    "a/b",
    "../up",
    "a\0b",
    "naïve",
    "\U0001f600",
    "name with spaces",
    "x" * 20_000,
    "@",
    "a@b",
    "latest",
    "%s?",
]


def test_names_of_every_shape(store: Store) -> None:
    for number, name in enumerate(NAMES):
        store.datasets.put(texts([f"{number} first"], name=name))
        store.datasets.put(texts([number], name=name))
    for number, name in enumerate(NAMES):
        found = store.datasets.get(name)
        assert (found.name, found.version, [e.input for e in found]) == (name, 2, [number])
        assert [e.input for e in store.datasets.get(f"{name}@1")] == [f"{number} first"]
        assert store.get(name).id == found.id


def test_a_dataset_named_like_the_id_of_another_does_not_hide_it(store: Store) -> None:
    first = store.datasets.put(texts(["a"], name="letters"))
    store.datasets.put(texts(["other"], name=first.id))
    assert [example.input for example in store.datasets.get(first.id)] == ["a"]
    assert [example.input for example in store.get(first.id)] == ["a"]


def test_three_processes_name_at_once(shared: Store, url: str, child: Callable[..., Child]) -> None:
    contents = [f"content {n}" for n in range(6)]
    namers = [child("name", url, "contested", contents[n:] + contents[:n]) for n in range(3)]
    for namer in namers:
        namer.wait_for("ready")
    for namer in namers:
        namer.go_on()
    answers = [namer.result() for namer in namers]
    versions = [answer[-n:] + answer[:-n] if n else answer for n, answer in enumerate(answers)]
    assert versions[0] == versions[1] == versions[2], "all were told the same version of the same content"
    assert sorted(versions[0]) == [1, 2, 3, 4, 5, 6]
    assert shared.datasets.get("contested").version == 6
    assert shared.check() == []


def test_a_dataset_that_is_not_all_there_is_not_there(store: Store) -> None:
    dataset = texts([f"example {n}" for n in range(3000)], name="letters")
    number = add_header(
        store, dataset.id, kind="dataset", configuration=""
    )  # as a process leaves it that dies while writing
    payloads = list(dataset.encoded())
    store.backend.append(number, [StoredRow(n, "", 1, OK, None, payloads[n][1]) for n in range(10)])
    assert store.datasets.list() == []
    for find in (store.get, store.datasets.get):
        with pytest.raises(UnknownName):
            find(dataset.id)
    stored = store.datasets.put(dataset)
    assert (stored.number, len(stored), len(list(stored))) == (number, 3000, 3000)
    assert store.datasets.get("letters").id == dataset.id


def test_a_dataset_goes_from_one_store_to_another(store: Store) -> None:
    with open_store("memory://") as other:
        there = other.datasets.put(texts(["a", "b"], name="letters"))
        here = store.datasets.put(there)
        assert (here.id, here.label, list(here)) == (there.id, "letters@1", list(there))


# ------------------------------------------------------------------ lineage and removal


def test_lineage_both_ways(store: Store) -> None:
    dataset = store.datasets.put(texts(["a"]))
    runs = [make_run(store, dataset, f"c{n}") for n in range(2)]
    first = make_evaluation(store, runs[:1])
    amended = make_evaluation(store, runs, [first.id])
    aggregation = make_aggregation(store, [first, amended])
    assert store.parents(dataset.id) == []
    assert store.parents(runs[0].id) == [dataset.id]
    assert set(store.parents(amended.id)) == {runs[0].id, runs[1].id, first.id}
    assert set(store.children(dataset.id)) == {run.id for run in runs}
    assert set(store.children(runs[0].id)) == {first.id, amended.id}
    assert set(store.descendants(dataset.id)) == {*(r.id for r in runs), first.id, amended.id, aggregation.id}
    assert store.descendants(amended.id) == [aggregation.id]
    assert amended.runs[1].dataset.id == aggregation.evaluations[0].dataset.id == dataset.id


def test_removal_is_refused_with_the_list_unless_it_cascades(store: Store, refuses) -> None:
    dataset = store.datasets.put(texts(["a"], name="letters"))
    kept = store.datasets.put(texts(["b"], name="kept"))
    run, other = make_run(store, dataset), make_run(store, kept, "other")
    evaluation = make_evaluation(store, [run])
    store.backend.append(run.number, [StoredRow(0, "1", 1, OK, b"key", b"{}")])
    with refuses(RequestError) as refused:
        store.remove("letters")
    assert str(refused.value).startswith(f"{dataset.id} ")
    assert f" {run.id}, {evaluation.id} " in str(refused.value)
    assert "cascade=True" in str(refused.value)
    assert store.get(run.id).id == run.id

    assert store.remove("letters", cascade=True) == [evaluation.id, run.id, dataset.id]
    assert [r.id for r in store.runs.list()] == [other.id]
    assert [d.id for d in store.datasets.list()] == [kept.id]
    assert store.backend.reusable([b"key"]) == {}
    assert store.children(dataset.id) == store.parents(run.id) == []
    assert store.check() == []


def test_what_somebody_works_on_is_not_removed(store: Store, refuses) -> None:
    dataset = store.datasets.put(texts(["a"]))
    header = RunHeader(format=FORMAT, id="", dataset=dataset.id, task="t", configuration="c", code="k")
    run, _, held = store.runs.open(header, Wanted("c", "k"), [dataset.id])
    assert held is not None
    for target in (run.id, dataset.id):
        with refuses(StoreBusy) as caught:
            store.remove(target, cascade=True)
        assert run.id in str(caught.value)
    held.release()
    assert store.remove(run.id) == [run.id]


def test_a_child_created_during_the_removal_of_its_parent_is_seen(store: Store) -> None:
    dataset = store.datasets.put(texts(["a"]))
    run = make_run(store, dataset)
    assert store.backend.delete([dataset.id]) == [run.id], "somebody was quicker: nothing is deleted"
    assert store.get(dataset.id).id == dataset.id


def test_the_integrity_check_finds_what_is_missing(store: Store, says) -> None:
    store.datasets.put(texts(["a", "b"]))
    assert store.check() == []
    number = store.datasets.list()[0].number
    with store.backend._transaction() as cursor:  # type: ignore[attr-defined]  # damage that no method does
        cursor.execute(f"DELETE FROM karat_rows WHERE parent = {number} AND position = 1")
    (problem,) = store.check()
    assert problem.endswith("has 1 of its 2 examples")
    with store.backend._transaction() as cursor:  # type: ignore[attr-defined]  # as above
        cursor.execute("INSERT INTO karat_links VALUES ('run-a', 'run-b')")
        cursor.execute("UPDATE karat_rows SET parent = parent + 1")
    says(*store.check())


def test_the_list_of_datasets_has_their_versions(store: Store) -> None:
    for content in ("a", "b", "c"):
        store.datasets.put(Dataset.from_examples([{"input": content}], name="letters"))
    store.datasets.put(Dataset.from_examples([{"input": "b"}], name="also"))
    assert [each.label for each in store.datasets.list()] == ["letters@1", "letters@2", "letters@3"]
    by_id = [store.datasets.get(each.id).label for each in store.datasets.list()]
    assert by_id == ["letters@1", "letters@2", "letters@3"]
    assert store.datasets.get("also").label == "also@1"


def test_labels_of_a_dataset_are_added(store: Store) -> None:
    examples = [{"input": "a"}]
    first = store.datasets.put(Dataset.from_examples(examples, name="letters", labels=["golden"]))
    assert first.labels == ["golden"]
    again = store.datasets.put(Dataset.from_examples(examples, name="letters", labels=["reviewed", "golden"]))
    assert again.labels == store.datasets.get("letters").labels == ["golden", "reviewed"]
    assert store.datasets.put(again, labels=["more"]).labels == ["golden", "reviewed", "more"]
    assert store.tag("letters", ["last"]).labels == ["golden", "reviewed", "more", "last"]
    assert [len(each) for each in store.datasets.list()] == [1], "it is still finished"
    assert store.check() == []


def test_a_command_in_a_message_names_the_store_unless_it_is_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KARAT_STORE", raising=False)
    with open_store() as store:
        assert store.command("show", "run-1") == "karat show run-1"
    with open_store(tmp_path / "karat.db") as store:
        assert store.command("show", "run-1") == "karat show run-1"
    other = tmp_path / "a b's.db"
    with open_store(other) as store:
        words = shlex.split(store.command("show", "run-1"))
        assert words[:4] == ["karat", "show", "run-1", "--store"]
        assert store_file(words[4]) == other
    monkeypatch.setenv("KARAT_STORE", str(other))
    with open_store() as store:
        assert store.command("ls") == "karat ls"
    with open_store("karat.db") as store:
        assert store.command("ls") == "karat ls --store sqlite:///karat.db"
    with open_store("memory://") as store:
        assert store.command("ls") == "karat ls"


def test_a_command_in_a_message_has_no_password(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = postgres_url.replace("postgres:@", "postgres:hunter2@")
    with open_store(secret) as store:
        assert "hunter2" not in store.command("ls")
        assert store.url in store.command("ls")
        monkeypatch.setenv("KARAT_STORE", secret)
        assert store.command("ls") == "karat ls"
