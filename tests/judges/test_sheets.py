"""Sheets that people label: random samples of judged outputs, blind to the judge, that the import reads unchanged."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import karat
from karat.analysis.judges.agreement import alignment
from karat.analysis.judges.labels import SAMPLE_COLUMNS, _equal_shares, sample_sheet
from karat.cli import main
from karat.errors import RequestError

from .conftest import echo, judged, says_good


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def fill_in(path: Path, label: Any) -> None:
    rows = rows_of(path)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([{**row, "label": label(row)} for row in rows])


@pytest.fixture
def evaluation(store, serve):
    """Two attempts at each of 30 examples in two topics, one of them rare; ids and answers that look like formulas."""
    data = [
        {
            "id": f"=e{n}",
            "input": {"question": "?", "answer": "=good" if n % 3 else "-bad"},
            "expected": "yes",
            "metadata": {"topic": "rare" if n < 3 else "usual"},
        }
        for n in range(30)
    ]
    run = karat.run(echo, data, store=store, attempts=2)
    return karat.evaluate(run, [{"name": "llm_judge", "params": {"judge": serve(says_good).spec()}}])


def test_a_sheet_is_filled_in_and_imported_unchanged(evaluation, folder, capsys):
    url = f"sqlite:///{folder}/karat.db"
    sheet = folder / "sheet.csv"
    command = ["judge", "sample", "latest", "-n", "20", "-o", str(sheet), "--store", url]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 20
    rows = rows_of(sheet)
    assert tuple(rows[0]) == SAMPLE_COLUMNS
    assert [row["label"] for row in rows] == [""] * 20
    assert {row["probability"] for row in rows} == {str(20 / 60)}
    text = sheet.read_text()
    assert "pass" not in text
    assert "fail" not in text
    assert not any(cell.startswith(("=", "-", "+", "@")) for row in rows for cell in row.values())
    assert main(command) == 2, "a sheet that may be filled in is not replaced"
    fill_in(sheet, lambda row: "pass" if "good" in row["output"] else "fail")
    assert main(["judge", "import", str(sheet), "latest", "--annotator", "ana", "--store", url]) == 0
    said = capsys.readouterr()
    assert "probabilities" in said.out
    assert "not read" not in said.err
    [found] = alignment(evaluation)
    assert (found.labels, found.n, found.agreement.value) == ("sampled", 20, 1.0)
    corrected = karat.aggregate(evaluation, ["mean"]).estimates.get(aggregator="corrected")
    assert (corrected.n, corrected.of) == (60, 60)


def test_the_seed_decides_what_is_drawn(evaluation):
    first, judged_ = sample_sheet(evaluation, n=15, seed=1)
    assert judged_ == 60
    assert sample_sheet(evaluation, n=15, seed=1)[0] == first
    assert sample_sheet(evaluation, n=15, seed=2)[0] != first
    every, _ = sample_sheet(evaluation, n=1000)
    assert len(every) == len({(row["example"], row["attempt"]) for row in every}) == 60
    assert {row["probability"] for row in every} == {1.0}


def test_every_output_is_drawn_as_often_as_its_probability_says(evaluation):
    """Over many seeds: a rare value has as many rows as the usual one, and each row states its own chance."""
    drawn: Counter[tuple[str, int]] = Counter()
    chances: dict[tuple[str, int], float] = {}
    seeds = 400
    for seed in range(seeds):
        rows, _ = sample_sheet(evaluation, n=10, by="topic", seed=seed)
        assert len(rows) == 10
        for row in rows:
            item = row["example"], row["attempt"]
            drawn[item] += 1
            chances[item] = row["probability"]
    assert set(chances.values()) == {5 / 6, 5 / 54}
    for item, chance in chances.items():
        error = (chance * (1 - chance) / seeds) ** 0.5
        assert abs(drawn[item] / seeds - chance) < 5 * error


def test_a_stratum_that_does_not_exist_is_named(evaluation, refuses):
    with refuses(RequestError):
        sample_sheet(evaluation, by="topc")


def test_outputs_without_a_verdict_are_not_in_the_sheet(store, serve, refuses):
    evaluation = judged(store, serve(lambda body: "no verdict"), {"a": "good"})
    with refuses(RequestError):
        sample_sheet(evaluation)


@given(st.integers(1, 200), st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 5))
def test_shares_are_equal_as_far_as_there_are_outputs(n, sizes, seed):
    import random

    named = {str(place): size for place, size in enumerate(sizes)}
    shares = _equal_shares(n, named, random.Random(seed))
    assert sum(shares.values()) == min(n, sum(sizes))
    full = max(shares.values())
    for name, share in shares.items():
        assert share <= named[name]
        assert share == named[name] or share >= full - 1
