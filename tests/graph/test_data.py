"""Where the records of a graph come from: files, joins, transformations."""

from __future__ import annotations

import json
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.datasets.sources import Side, joined, rows_dataset, source_rows, stacked
from karat.datasets.transformations import CombineRecords, SkipRecords
from karat.errors import ConfigError, DataError

PEOPLE = [{"name": "Ada", "city": 1}, {"name": "Bo", "city": 2}, {"name": "Cy", "city": 9}]
CITIES = [{"key": 1, "town": "Lima"}, {"key": 2, "town": "Oslo"}]


def rows(source, folder, load=None):
    return list(
        source_rows(
            source,
            folder,
            load or (lambda name: __import__("karat.registry", fromlist=["x"]).load_object(name)),
        )
    )


def listed(kind: str, **more) -> list[dict]:
    return [
        {"alias": "p", "join_type": "primary", "examples": PEOPLE},
        {"alias": "c", "join_type": kind, "examples": CITIES, **more},
    ]


def test_joins(tmp_path):
    sequential = rows(listed("sequential"), tmp_path)
    assert [(r["p->name"], r["c->town"]) for r in sequential] == [
        ("Ada", "Lima"),
        ("Bo", "Oslo"),
        ("Cy", "Lima"),
    ]
    cross = rows(listed("cross"), tmp_path)
    assert len(cross) == 6
    assert [r["c->town"] for r in cross[:2]] == ["Lima", "Oslo"]
    column = rows(listed("column", primary_key="city", join_key="key"), tmp_path)
    assert [r["c->town"] for r in column] == ["Lima", "Oslo", None]
    random = rows(listed("random"), tmp_path)
    assert random == rows(listed("random"), tmp_path)
    assert [r["p->name"] for r in random] == ["Ada", "Bo", "Cy"]


def test_rows_one_after_the_other_keep_the_fields_that_all_have(tmp_path, refuses):
    sources = [
        {"alias": "a", "join_type": "vstack", "examples": [{"x": 1, "y": 2}]},
        {"alias": "b", "join_type": "vstack", "examples": [{"x": 3, "z": 4}]},
    ]
    assert rows(sources, tmp_path) == [{"x": 1}, {"x": 3}]
    with refuses(DataError):
        list(stacked([lambda: iter([{"a": 1}]), lambda: iter([{"b": 1}])]))


def test_joins_that_cannot_be_made_say_why(tmp_path, refuses):
    with refuses(ConfigError):
        rows(listed("column"), tmp_path)
    with refuses(ConfigError):
        rows(listed("colum"), tmp_path)
    with refuses(ConfigError):
        rows([{"alias": "a", "join_type": "cross", "examples": [{}]}], tmp_path)
    twice = {"alias": "a", "join_type": "primary", "examples": [{"x": 1}]}
    with refuses(ConfigError):
        rows([twice, twice], tmp_path)
    with refuses(ConfigError):
        rows([twice, {"alias": "b", "join_type": "cross", "examples": []}], tmp_path)
    with refuses(DataError):
        rows(listed("column", primary_key="city", join_key="town2"), tmp_path)


@given(st.integers(0, 20), st.integers(1, 5), st.sampled_from(["sequential", "random", "cross"]))
def test_a_join_keeps_every_primary_row_in_its_order(count, others, kind):
    primary = [{"n": n} for n in range(count)]
    side = Side("s", kind, lambda: iter([{"m": m} for m in range(others)]))
    out = list(joined(iter(primary), "p", [side]))
    times = others if kind == "cross" else 1
    assert [row["p->n"] for row in out] == [n for n in range(count) for _ in range(times)]


@pytest.mark.parametrize(
    ("transform", "params", "expected"),
    [
        ("rename", {"mapping": {"name": "who"}}, [{"who": "Ada", "city": 1}]),
        ("rename", {"mapping": {"name": "city"}}, [{"name": "Ada", "city": 1}]),
        ("rename", {"mapping": {"name": "city"}, "overwrite": True}, [{"city": "Ada"}]),
        ("rename", {"mapping": {"name": "city"}, "overwrite": "no"}, [{"name": "Ada", "city": 1}]),
        ("add", {"mapping": {"language": "en"}}, [{"name": "Ada", "city": 1, "language": "en"}]),
        ("skip_fields", {"fields": ["city"]}, [{"name": "Ada"}]),
        (
            "karat.datasets.transformations.RenameFieldsTransform",
            {"mapping": {"name": "who"}},
            [{"who": "Ada", "city": 1}],
        ),
    ],
)
def test_transformations_of_fields(tmp_path, transform, params, expected):
    source = {"examples": PEOPLE[:1], "transformations": [{"transform": transform, "params": params}]}
    assert rows(source, tmp_path) == expected


def test_names_of_sygra_transformations_mean_these(project):
    project.write("t/graph_config.yaml", """
data_config:
  source:
    type: disk
    file_path: people.csv
    transformations:
      - transform: sygra.processors.data_transform.RenameFieldsTransform
        params: {mapping: {task_id: id}, overwrite: false}
      - transform: own.Shout
        params: {field: name}
graph_config:
  nodes:
    a: {node_type: weighted_sampler, attributes: {n: {values: [1]}}}
""")  # fmt: skip
    project.write("t/own.py", """
from sygra.processors.data_transform import DataTransform

class Shout(DataTransform):
    @property
    def name(self):
        return "shout"

    def transform(self, data, params):
        return [{**row, params["field"]: row[params["field"]].upper()} for row in data]
""")  # fmt: skip
    project.write("people.csv", "task_id,name\n7,Ada\n")
    assert project.run("t").records == [{"id": "7", "name": "ADA", "n": 1}]


def test_skipping_and_combining_records():
    ten = [{"page": n, "text": chr(97 + n)} for n in range(10)]
    skip = SkipRecords()

    def pages(params):
        return [row["page"] for row in skip.transform(iter(ten), params)]

    assert pages({"skip_type": "count", "count": {"from_start": 2, "from_end": 3}}) == [2, 3, 4, 5, 6]
    assert pages({"range": "[:2],[-3:]"}) == [2, 3, 4, 5, 6]
    assert pages({"range": "[3:5]"}) == [0, 1, 2, 5, 6, 7, 8, 9]
    params = {"skip": {"from_beginning": 1, "from_end": 6}, "combine": 2, "shift": 1,
              "join_column": {"page": "$1-$2", "text": "$1"}}  # fmt: skip
    assert list(CombineRecords().transform(iter(ten), params)) == [
        {"page": "1-2", "text": "b"}, {"page": "2-3", "text": "c"},
    ]  # fmt: skip
    for nothing in ({}, {"combine": 1, "join_column": {"page": "$1"}}):
        assert list(CombineRecords().transform(iter(ten), nothing)) == ten


@pytest.mark.parametrize("format", ["json", "jsonl", "csv", "parquet"])
def test_files_of_every_format(tmp_path, format):
    file = tmp_path / f"people.{format}"
    if format == "parquet":
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(PEOPLE), file)
    elif format == "csv":
        file.write_text("name,city\nAda,1\nBo,2\nCy,9\n")
    else:
        file.write_text(
            json.dumps(PEOPLE) if format == "json" else "".join(json.dumps(p) + "\n" for p in PEOPLE)
        )
    found = rows({"type": "disk", "file_path": f"people.{format}"}, tmp_path)
    assert [row["name"] for row in found] == ["Ada", "Bo", "Cy"]


def test_a_bad_line_is_named(tmp_path, refuses):
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n[1, 2]\n')
    with refuses(DataError):
        rows({"type": "disk", "file_path": "bad.jsonl"}, tmp_path)


def test_rows_become_examples_with_ids_and_expected_outputs(refuses):
    data = rows_dataset(PEOPLE, name="people", id_column="name", golden=["city"], metadata={})
    assert [(e.id, e.expected) for e in data] == [("Ada", 1), ("Bo", 2), ("Cy", 9)]
    assert next(iter(data)).input == PEOPLE[0]
    with refuses(DataError):
        rows_dataset(PEOPLE, name="people", id_column="nmae", golden=[], metadata={})
    same = rows_dataset([{"a": 1}, {"a": 1}], name="twice", id_column=None, golden=[], metadata={})
    assert len({e.id for e in same}) == 2


def test_rows_of_the_hub_of_a_revision_that_is_kept(project, monkeypatch):
    """With stand-ins for the two packages: the hub itself cannot be asked in a test."""
    asked = []

    def load_dataset(repo, name, **options):
        asked.append((repo, name, options["split"], options["revision"]))
        return [{"id": f"{options['split']}-1", "text": "hello"}]

    class HfApi:
        def dataset_info(self, repo, revision=None):
            return types.SimpleNamespace(sha="abc123")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=HfApi))
    project.write("t/graph_config.yaml", """
data_config:
  source: {type: hf, repo_id: someone/data, config_name: small, split: [train, test]}
graph_config:
  nodes:
    a: {node_type: weighted_sampler, attributes: {n: {values: [1]}}}
""")  # fmt: skip
    outcome = project.run("t")
    assert [record["id"] for record in outcome.records] == ["train-1", "test-1"]
    assert asked == [("someone/data", "small", split, "abc123") for split in ("train", "test")]
    assert outcome.run.dataset.metadata["revisions"] == {"someone/data": "abc123"}


def test_two_revisions_of_one_repository_are_both_kept(project, monkeypatch):
    class HfApi:
        def dataset_info(self, repo, revision=None):
            return types.SimpleNamespace(sha=f"commit of {revision or 'main'}")

    def load_dataset(repo, name, revision, **options):
        return [{"id": revision}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=HfApi))
    project.write("t/graph_config.yaml", """
data_config:
  source:
    - {alias: new, join_type: vstack, type: hf, repo_id: someone/data}
    - {alias: old, join_type: vstack, type: hf, repo_id: someone/data, revision: v1}
graph_config:
  nodes:
    a: {node_type: weighted_sampler, attributes: {n: {values: [1]}}}
""")  # fmt: skip
    outcome = project.run("t")
    assert [record["id"] for record in outcome.records] == ["commit of main", "commit of v1"]
    assert outcome.run.dataset.metadata["revisions"] == {
        "someone/data": "commit of main",
        "someone/data@v1": "commit of v1",
    }


def test_a_cross_join_numbers_the_ids_of_its_primary_rows(project):
    project.write("t/graph_config.yaml", """
data_config:
  id_column: id
  source:
    - {alias: p, join_type: primary, examples: [{id: a}, {id: b}]}
    - {alias: q, join_type: cross, examples: [{y: 1}, {y: 2}]}
graph_config:
  nodes: {draw: {node_type: weighted_sampler, attributes: {v: {values: [1]}}}}
""")  # fmt: skip
    outcome = project.run("t")
    assert [record["id"] for record in outcome.records] == ["a", "a-2", "b", "b-2"]
    assert [record["q->y"] for record in outcome.records] == [1, 2, 1, 2]
