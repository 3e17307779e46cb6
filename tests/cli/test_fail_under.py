"""`--fail-under`: a gate on one run, in one command or on what is stored."""

from __future__ import annotations

import json

import pytest

DATA = ("--data", "n.jsonl", "-e", "exact_match")


@pytest.fixture
def recorded(folder):
    """200 examples; outputs of which 190 are right, and some with 178 right and 20 missing."""
    rows = [{"id": i, "input": i, "expected": i} for i in range(200)]
    good = [{"id": i, "output": i if i < 190 else -1} for i in range(200)]
    holes = [{"id": i, "output": i if i < 178 else -1} for i in range(180)]
    for name, lines in (("n", rows), ("good", good), ("holes", holes)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


@pytest.mark.parametrize(("threshold", "code"), [("0.8", 0), ("0.99", 1), ("0.94", 4)])
def test_run_ends_with_the_code_of_the_gate(karat, recorded, threshold, code):
    command = ("run", "--recorded", "good.jsonl", *DATA, "--fail-under", f"accuracy:{threshold}")
    said = karat(*command)
    assert said.code == code
    document = karat(*command, "--json").json
    verdict = {0: "holds", 1: "fails", 4: "undecided"}[code]
    assert (document["verdict"], document["gates"][0]["verdict"]) == (verdict, verdict)
    assert (document["gates"][0]["examples_needed"] is not None) == (code == 4)
    assert f"gate: {verdict}" in said.out
    assert f"gate: {verdict}" in said.err


def test_a_gate_counts_failures_itself(karat, recorded):
    """20 outputs are missing: without a gate that is exit code 1, and a gate that holds in any case holds."""
    command = ("run", "--recorded", "holes.jsonl", *DATA)
    assert karat(*command).code == 1
    assert karat(*command, "--fail-under", "accuracy:0.85").code == 0
    assert karat(*command, "--fail-under", "accuracy:0.92").code == 4


def test_stored_results_are_gated(karat, recorded):
    karat("run", "--recorded", "good.jsonl", *DATA)
    assert karat("aggregate", "latest", "--fail-under", "exact_match:0.8").code == 0
    assert karat("aggregate", "latest", "-a", "mean", "--fail-under", "mean:0.99").code == 1
    assert karat("evaluate", "latest", "-e", "contains", "--fail-under", "contains:0.99").code == 1


def test_an_experiment_is_gated(karat, recorded):
    (recorded / "e.yaml").write_text(
        "dataset: n.jsonl\ntask: {recorded: good.jsonl}\nevaluators: [exact_match]\n"
    )
    assert karat("run", "e.yaml", "--fail-under", "exact_match accuracy:0.8").code == 0
    assert karat("run", "e.yaml", "--fail-under", "exact_match accuracy:0.99").code == 1


@pytest.mark.parametrize(
    "wrong",
    ["acuracy:0.8", "accuracy", "accuracy:80%", "exact_match:80", "exact_match accuracy:80", "mean:-1"],
)
def test_mistakes_are_found_before_the_run(karat, recorded, wrong):
    said = karat("run", "--recorded", "good.jsonl", *DATA, "--fail-under", wrong)
    assert (said.code, said.out) == (2, "")
    assert not (recorded / "karat.db").exists()


def test_a_threshold_beyond_the_bounds_of_the_scores_is_refused(karat, recorded, says):
    (recorded / "stars.py").write_text(
        "class Stars:\n    key = 'stars'\n    bounds = (1, 5)\n"
        "    def evaluate(self, *, outputs, **context):\n        return 4.0\n"
    )
    karat("run", "--recorded", "good.jsonl", *DATA)
    for command, fail_under in (
        (("evaluate", "latest", "-e", "contains"), "contains:80"),
        (("evaluate", "latest", "-e", "stars.py:Stars"), "stars:6"),
        (("aggregate", "latest", "-a", "mean"), "exact_match mean:80"),
    ):
        said = karat(*command, "--fail-under", fail_under)
        assert (said.code, said.out) == (2, "")
        says(said.err)
    assert karat("evaluate", "latest", "-e", "stars.py:Stars", "--fail-under", "stars:3").code == 0
    said = karat(
        "run", "--recorded", "good.jsonl", *DATA, "-a", '{"name": "accuracy", "params": {"threshold": 80}}'
    )
    assert said.code == 2
    says(said.err)


def test_a_gate_without_results_is_refused(karat, recorded):
    assert (
        karat("run", "--recorded", "good.jsonl", "--data", "n.jsonl", "--fail-under", "accuracy:0.8").code
        == 2
    )
    assert not (recorded / "karat.db").exists()
