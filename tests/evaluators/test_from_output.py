"""What a graph judged by itself, read from its output."""

from __future__ import annotations

import pytest

from karat.errors import CannotJudge, NotApplicable, RequestError
from karat.evaluators._base import resolve_evaluator
from karat.evaluators._structured import FromOutput

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


def test_with_pass_fail_a_number_is_no_verdict(refuses):
    spec = {"name": "from_output", "params": {"field": "judged", "metadata": {"at": "place"}}}
    evaluator = resolve_evaluator({**spec, "pass_fail": True}).evaluator
    result = evaluator.evaluate(outputs={"judged": False, "place": "x"})
    assert (result.score, result.value, result.metadata) == (0.0, False, {"at": "x"})
    for number in (1, 0.5):
        with refuses(CannotJudge):
            evaluator.evaluate(outputs={"judged": number, "place": "x"})


def test_unjudged_records_are_skips_that_count_and_dropped_records_do_not():
    with pytest.raises(NotApplicable) as owed:
        FromOutput("exact_match").evaluate(outputs={"exact_match": None})
    with pytest.raises(NotApplicable) as left_out:
        FromOutput("exact_match").evaluate(outputs=None)
    assert (owed.value.applicable, left_out.value.applicable) == (True, False)


def test_an_unreadable_output_has_no_score():
    for outputs in ({"exact_match": {"correct": "yes"}}, {"exakt": RIGHT}, "text"):
        with pytest.raises(CannotJudge):
            FromOutput("exact_match").evaluate(outputs=outputs)


def test_the_field_may_be_all_that_is_reported(refuses):
    name, params, evaluator = resolve_evaluator({"from_output": "exact_match", "key": "right"})
    assert (name, params, evaluator.key) == ("from_output", {"field": "exact_match"}, "right")
    with refuses(RequestError):
        resolve_evaluator({"from_output": "exact_match", "params": {}})
