"""What a graph judged by itself, read from its output."""

from __future__ import annotations

import pytest

from karat.errors import NotApplicable
from karat.evaluators.base import CannotJudge
from karat.evaluators.from_output import FromOutput

RIGHT = {"correct": True, "golden": "Paris", "predicted": "paris", "metadata": {"similarity": 1.0}}


def test_a_unit_metric_result_becomes_a_result_with_both_sides():
    result = FromOutput("exact_match").evaluate(outputs={"exact_match": RIGHT})
    assert (result.key, result.score, result.value) == ("exact_match", 1.0, True)
    assert result.metadata == {"similarity": 1.0, "golden": "Paris", "predicted": "paris"}


def test_other_fields_of_the_output_can_be_kept_with_the_result():
    evaluator = FromOutput("exact_match", metadata={"mission": "mission_id"})
    result = evaluator.evaluate(outputs={"exact_match": RIGHT, "mission_id": "m1"})
    assert result.metadata["mission"] == "m1"
    assert evaluator.params == {"field": "exact_match", "metadata": {"mission": "mission_id"}}


@pytest.mark.parametrize(("given", "score"), [(True, 1.0), (False, 0.0), (0.25, 0.25), (1, 1.0)])
def test_a_verdict_or_a_score_is_taken_as_it_is(given, score):
    assert FromOutput("judged.score").evaluate(outputs={"judged": {"score": given}}).score == score


def test_what_was_not_judged_is_not_applicable_and_what_cannot_be_read_is_no_score():
    with pytest.raises(NotApplicable):
        FromOutput("exact_match").evaluate(outputs={"exact_match": None})
    for outputs in ({"exact_match": {"correct": "yes"}}, {"exakt": RIGHT}, "text"):
        with pytest.raises(CannotJudge):
            FromOutput("exact_match").evaluate(outputs=outputs)
