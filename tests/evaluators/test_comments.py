"""Comments say why, in words a person can act on, and name the option that would help."""

from __future__ import annotations

from typing import Any

import pytest

from karat.evaluators import CannotJudge, build_evaluator
from karat.evaluators._base import FunctionEvaluator
from karat.evaluators._text import difference


def comment(name: str, outputs: Any, reference: Any = None, **params: Any) -> str:
    return build_evaluator(name, params).evaluate(outputs=outputs, reference_outputs=reference).comment


@pytest.mark.parametrize(
    ("output", "reference"),
    [
        ("\ufb01ne", "fine"),
        ("\u00c4", "\u00e4"),
        ("YES", "yes"),
        ("a  b", "a b"),
        ("a b " + "c" * 80, "a  b " + "c" * 80),
        ("\u00e4  b", "\u00e4 b"),
        ("ab", "a b c"),
        ("ab", "a b"),
        ("\u00e4", "\u00f6 u"),
    ],
)
def test_the_one_thing_in_which_texts_differ(output: str, reference: str, says) -> None:
    says(difference(output, reference))
    assert comment("exact_match", output, reference) == difference(output, reference)
    many = build_evaluator("exact_match").evaluate_many([{"outputs": output, "reference_outputs": reference}])
    assert many[0].comment == difference(output, reference)


def test_the_comment_of_contains_names_missing_texts(says) -> None:
    says(comment("contains", "fine", substring="error"))
    says(comment("contains", "xa", substring=["a", "b"]))


def test_one_item_is_counted_in_the_singular(refuses, says) -> None:
    says(comment("token_f1", "cat", "cat"))
    says(comment("token_f1", "big cat", "big cat"))
    says(comment("token_f1", "ab", "ab", tokens="characters"))
    says(comment("chrf", "cat", "cat"))
    says(comment("bleu", "cat", "cat"))
    with refuses(CannotJudge):
        comment("exact_match", object(), "x")


@pytest.mark.parametrize(("output", "unit"), [("$42", "$"), ("42%", "%"), ("42 EUR", "EUR")])
def test_a_number_with_a_unit_that_is_not_known_names_it_and_the_option(output: str, unit: str) -> None:
    said = comment("numeric_match", output, 42)
    assert f"unknown unit {unit!r}" in said
    assert comment("numeric_match", output, 42, units=[unit]) == f"42 {unit} is 42"
    with pytest.raises(CannotJudge, match="unknown unit"):
        comment("numeric_match", 42, output)


def test_a_number_in_a_sentence_names_extract(says) -> None:
    says(comment("numeric_match", "It is 42 or so", 42))
    assert "extract" not in comment("numeric_match", "no idea", 42)


def test_a_difference_is_a_number_also_where_a_float_ends(says) -> None:
    says(comment("numeric_match", "1e999", 1))


def test_unit_metrics_say_what_they_measured(says) -> None:
    box = {"bbox": {"x": 0, "y": 0, "width": 10, "height": 10}}
    says(comment("unit:action_within_bbox", {"x": 5, "y": 50}, box))
    says(comment("unit:fuzzy_match", "abc", "xyz"))
    says(comment("unit:typed_value_match", {"text": "ab"}, {"text": "xy"}))
    says(comment("unit:scroll_amount", {"amount": 100}, {"amount": 10}))
    says(comment("unit:scroll_amount", {"amount": 100}, {"amount": 0}))


@pytest.mark.parametrize("bbox", [[1, 2, 3, 4], {"x": 1}, 5])
def test_a_box_is_named_by_its_key(bbox: Any, refuses) -> None:
    with refuses(CannotJudge):
        comment("unit:action_within_bbox", {"x": 5, "y": 5}, {"bbox": bbox})


@pytest.mark.parametrize(
    "given",
    [0.5, True, "good"],
)
def test_a_plain_function_says_what_it_gave(given: Any, says) -> None:
    says(FunctionEvaluator(lambda outputs: given).evaluate(outputs=1).comment)
    says(FunctionEvaluator(lambda outputs: None).evaluate(outputs=1).comment)


def test_long_texts_are_distinguished_where_they_part(says) -> None:
    same = "the same words " * 10
    says(comment("exact_match", same + "red", same + "blue"))
    says(comment("exact_match", same + "red", same, strip=False))


@pytest.mark.parametrize(
    "output",
    [
        "1.234,5",
        "1 000",
        "$5",
        "#### 42",
        "42-",
    ],
)
def test_the_option_that_would_read_a_number(output: str, says) -> None:
    says(comment("numeric_match", output, 5))


def test_numbers_that_differ_late_are_shown_in_full(says) -> None:
    says(comment("numeric_match", 0.1 + 0.2, 0.3))
