"""The position bias of a judge that sees each pair of outputs in both orders."""

from __future__ import annotations

import pytest

import karat
from karat.testing import FakeProvider


@pytest.fixture
def runs(store: karat.Store) -> list[karat.Run]:
    data = karat.Dataset.from_examples(
        [{"id": str(n), "input": f"question {n}"} for n in range(12)], name="q"
    )

    def short(text: str) -> str:
        return "yes"

    def long(text: str) -> str:
        return "yes, because of what the question says"

    def other(text: str) -> str:
        return "no"

    return [karat.run(task, data, store=store) for task in (short, long, other)]


def ranked(runs: list[karat.Run], reply: str) -> karat.Ranking:
    with FakeProvider(reply) as server:
        judge = {"name": "pairwise_judge", "params": {"judge": {"model": server.spec("some-judge")}}}
        return karat.rank(runs, evaluator=judge)


def test_a_judge_that_goes_by_the_order_is_found_out(runs, says):
    ranking = ranked(runs, '{"analysis": "it comes first", "choice": "first"}')
    bias = ranking.position_bias
    assert (bias.value, bias.n, bias.metadata["orders_disagree"]) == (1.0, 36, 36)
    assert bias.low is not None
    assert bias.low > 0.5
    assert [place.rank for place in ranking.places] == [1, 1, 1]
    assert "same rating" in ranking.conclusions[0]
    assert "36 of 36" in ranking.conclusions[1]
    says(*[line for line in ranking.report().splitlines() if "bias" in line])


def test_a_judge_that_finds_ties_in_both_orders_has_no_position_bias(runs):
    ranking = ranked(runs, '{"analysis": "alike", "choice": "tie"}')
    bias = ranking.position_bias
    assert (bias.value, bias.metadata["orders_disagree"]) == (0.5, 0)
    assert len(ranking.conclusions) == 1
