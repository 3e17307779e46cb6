"""The flow of seed 003, step by step: absolute, relative, and relative with runs added to earlier comparisons."""

from __future__ import annotations

import pytest

import karat
from karat.tasks import FunctionTask

QUESTIONS = [
    {"id": "sky", "input": "What colour is the sky?", "expected": "blue"},
    {"id": "grass", "input": "What colour is grass?", "expected": "green"},
    {"id": "snow", "input": "What colour is snow?", "expected": "white"},
]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request, tmp_path):
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/karat.db"}.get(request.param)
    with karat.open_store(url or request.getfixturevalue("postgres_url")) as opened:
        yield opened


def answering(name, answers):
    return FunctionTask(lambda question, example: answers[example.id], name=name)


class Shorter:
    """Prefers the shorter answer; counts what it is asked."""

    key = "shorter"
    version = "1"

    def __init__(self):
        self.asked = []

    def compare(self, example, first, second):
        self.asked.append((example.id, first.value, second.value))
        a, b = len(first.value), len(second.value)
        return "win" if a < b else "loss" if a > b else "tie"


def test_absolute_evaluation_of_one_run(store):
    dataset = store.datasets.put(karat.Dataset.from_examples(QUESTIONS, name="colours"))
    run = karat.run(
        answering("one", {"sky": "blue", "grass": "green", "snow": "black"}), dataset, store=store
    )
    evaluation = karat.evaluate(run, ["exact_match"])
    aggregation = karat.aggregate(evaluation, ["accuracy"])
    # Every step is kept and can be found again from the next.
    assert store.datasets.get("colours").id == dataset.id
    assert [o.value for o in store.runs.get(run.id).outputs()] == ["blue", "green", "black"]
    assert [r.score for r in store.evaluations.get(evaluation.id).results()] == [1.0, 1.0, 0.0]
    estimate = store.aggregations.get(aggregation.id).estimates.get(
        evaluator="exact_match", aggregator="accuracy"
    )
    assert (estimate.value, estimate.n, estimate.of) == (2 / 3, 3, 3)
    assert aggregation.evaluations[0].runs[0].dataset.id == dataset.id


def test_relative_evaluation_of_several_runs_and_a_run_added_to_two_earlier_comparisons(store):
    dataset = karat.Dataset.from_examples(QUESTIONS, name="colours")
    answers = {
        "short": {"sky": "blue", "grass": "green", "snow": "white"},
        "long": {"sky": "It is blue.", "grass": "It is green.", "snow": "It is white."},
        "longer": {"sky": "The sky is blue.", "grass": "The grass is green.", "snow": "The snow is white."},
        "letter": {"sky": "b", "grass": "g", "snow": "w"},
    }
    runs = {name: karat.run(answering(name, given), dataset, store=store) for name, given in answers.items()}
    judge = Shorter()
    first = karat.evaluate([runs["short"], runs["long"]], [judge])
    second = karat.evaluate([runs["longer"], runs["short"]], [judge])
    assert (first.counts.ok, second.counts.ok) == (3, 3)

    amended = karat.evaluate(runs["letter"], [judge], amend=[first, second])
    assert set(amended.header.runs) == {run.id for run in runs.values()}
    assert (amended.counts.total, amended.counts.reused, amended.counts.failed) == (18, 6, 0)
    assert len(judge.asked) == len(set(judge.asked)) == 18

    rates = karat.aggregate(amended, ["win_rate"]).estimates
    order = sorted(runs, key=lambda name: -rates.get(aggregator="win_rate", run=runs[name].id).value)
    assert order == ["letter", "short", "long", "longer"]
    # Aggregating over the earlier comparisons as well counts nothing twice.
    assert karat.aggregate([first, second, amended], ["win_rate"]).estimates == rates
