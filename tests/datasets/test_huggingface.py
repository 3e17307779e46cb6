"""Datasets of the package `datasets`: folders that it reads and writes, in the place of a repository."""

from __future__ import annotations

import sys

import pytest

from karat.datasets.readers.hub import hub_rows, resolved_revision
from karat.errors import DataError, MissingDependency

ROWS = {"id": ["a", "b"], "answer": ["Paris", "Tokyo"]}


def test_a_folder_has_no_revision(tmp_path):
    assert resolved_revision({"repo_id": str(tmp_path)}) is None


def test_without_the_package_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependency, match="hf"):
        next(hub_rows({"repo_id": str(tmp_path)}))


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return pytest.importorskip("datasets", reason="the extra `hf` is not installed")


def test_a_folder_of_data_files(tmp_path, datasets):
    (tmp_path / "data").mkdir()
    datasets.Dataset.from_dict(ROWS).to_parquet(tmp_path / "data" / "train.parquet")
    rows = list(hub_rows({"repo_id": str(tmp_path / "data"), "split": "train"}))
    assert rows == [{"id": "a", "answer": "Paris"}, {"id": "b", "answer": "Tokyo"}]
    with pytest.raises(DataError, match=r"\(split nope\)"):
        list(hub_rows({"repo_id": str(tmp_path / "data"), "split": "nope"}))


def test_a_folder_that_was_saved(tmp_path, datasets):
    made = datasets.Dataset.from_dict(ROWS)
    made.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": made, "eval": made.select([1])}).save_to_disk(tmp_path / "several")
    assert len(list(hub_rows({"repo_id": str(tmp_path / "one")}))) == 2
    assert [row["id"] for row in hub_rows({"repo_id": str(tmp_path / "several"), "split": "eval"})] == ["b"]
    assert len(list(hub_rows({"repo_id": str(tmp_path / "several"), "split": ["train", "eval"]}))) == 3
