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
    ("output", "reference", "reason"),
    [
        ("\ufb01ne", "fine", ": only the Unicode form differs (nfkc)"),
        ("\u00c4", "\u00e4", ": only the case differs (case_sensitive)"),
        ("YES", "yes", ": only the case differs (case_sensitive)"),
        ("a  b", "a b", ": only whitespace differs (strip, normalize_whitespace)"),
        ("a b " + "c" * 80, "a  b " + "c" * 80, ": only whitespace differs (strip, normalize_whitespace)"),
        ("\u00e4  b", "\u00e4 b", ": only whitespace differs (strip, normalize_whitespace)"),
        ("ab", "a b c", ""),
        ("ab", "a b", ""),
        ("\u00e4", "\u00f6 u", ""),
    ],
)
def test_the_one_thing_in_which_texts_differ(output: str, reference: str, reason: str) -> None:
    assert difference(output, reference).partition("reference ")[2].partition("'")[2].endswith(reason or "'")
    assert comment("exact_match", output, reference) == difference(output, reference)
    many = build_evaluator("exact_match").evaluate_many([{"outputs": output, "reference_outputs": reference}])
    assert many[0].comment == difference(output, reference)


def test_what_is_not_contained() -> None:
    assert comment("contains", "fine", substring="error") == "the output does not contain 'error'"
    assert (
        comment("contains", "xa", substring=["a", "b"]) == "the output contains 'a'; it does not contain 'b'"
    )


def test_one_item_is_counted_in_the_singular(refuses) -> None:
    assert comment("token_f1", "cat", "cat").startswith("1 word is shared")
    assert comment("token_f1", "big cat", "big cat").startswith("2 words are shared")
    assert comment("token_f1", "ab", "ab", tokens="characters").startswith("2 characters are shared")
    assert comment("chrf", "cat", "cat") == "chrF 1.000 against 1 reference"
    assert comment("bleu", "cat", "cat").startswith("BLEU 1.000: 1 word against 1")
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


def test_unit_metrics_say_what_they_measured() -> None:
    box = {"bbox": {"x": 0, "y": 0, "width": 10, "height": 10}}
    said = comment("unit:action_within_bbox", {"x": 5, "y": 50}, box)
    assert said.endswith("; the distance is 40, allowed is 0")
    assert comment("unit:fuzzy_match", "abc", "xyz").endswith("; the similarity is 0, needed is 0.8")
    said = comment("unit:typed_value_match", {"text": "ab"}, {"text": "xy"})
    assert said.endswith("; the similarity is 0, needed is 0.8")
    said = comment("unit:scroll_amount", {"amount": 100}, {"amount": 10})
    assert said.endswith("; the difference in percent is 900, allowed is 20")
    said = comment("unit:scroll_amount", {"amount": 100}, {"amount": 0})
    assert said.endswith("; the difference is 100, allowed is 10")


@pytest.mark.parametrize("bbox", [[1, 2, 3, 4], {"x": 1}, 5])
def test_a_box_is_named_by_its_key(bbox: Any, refuses) -> None:
    with refuses(CannotJudge):
        comment("unit:action_within_bbox", {"x": 5, "y": 5}, {"bbox": bbox})


@pytest.mark.parametrize(
    ("given", "said"),
    [(0.5, "the function gave 0.5"), (True, "the function gave True"), ("good", "the function gave 'good'")],
)
def test_a_plain_function_says_what_it_gave(given: Any, said: str) -> None:
    assert FunctionEvaluator(lambda outputs: given).evaluate(outputs=1).comment == said
    assert "no verdict" in FunctionEvaluator(lambda outputs: None).evaluate(outputs=1).comment


def test_long_texts_are_distinguished_where_they_part(says) -> None:
    same = "the same words " * 10
    assert comment("exact_match", same + "red", same + "blue") == (
        "the output is not the reference: from character 151 on it is 'red' and not 'blue'"
    )
    says(comment("exact_match", same + "red", same, strip=False))


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        ("1.234,5", "; set the parameters thousands and decimal to its separators"),
        ("1 000", "; set the parameters thousands and decimal to its separators"),
        ("$5", ": unknown unit '$'; list the units that may follow a number in the parameter units"),
        ("#### 42", "; extract takes the first or last number of a text"),
        ("42-", "; extract takes the first or last number of a text"),
    ],
)
def test_the_option_that_would_read_a_number(output: str, hint: str) -> None:
    assert comment("numeric_match", output, 5) == f"no number can be read from the output {output!r}{hint}"


def test_numbers_that_differ_late_are_shown_in_full() -> None:
    assert comment("numeric_match", 0.1 + 0.2, 0.3).startswith(
        "0.30000000000000004 is not 0.3: they differ by 4e-17"
    )
