"""Which letter an answer chooses: phrasings that people and models use, and those that choose nothing."""

from __future__ import annotations

import pytest

from karat.evaluators import ChoiceMatch


def chosen(text: str, **params) -> str | None:
    return ChoiceMatch("ABCD", **params).evaluate(outputs=text, reference_outputs="B").value


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B\n\nExplanation: A is wrong, C is wrong.", "B"),
        ("**C**\n\nA is too small.", "C"),
        ("A looks likely, yet C is larger.\n\nB", "B"),
        ("I think A is wrong, so B", "B"),
        ("Not B, but C", "C"),
        ("(A) is false; (B) is true", "B"),
        ("A is wrong. B is right.", "B"),
        ("Thus option C is correct, since A and B fail", "C"),
        ("B is the correct answer. A is the best distractor.", "B"),
        ("I choose option B because A is too small", "B"),
        ("I would go with (D), not A", "D"),
        ("the answer must be B, for A is odd", "B"),
        ("*Answer*: B rather than C", "B"),
        ("The answer is B and C is wrong", "B"),
        ("B) Paris\n\nWhy not the others:\nA) Rome is in Italy\nC) Oslo is in Norway", "B"),
        ("\u7b54\u6848\u662fB", "B"),
        ("\u9009B\u3002", "B"),
    ],
)
def test_what_is_chosen(text, letter):
    assert chosen(text) == letter


@pytest.mark.parametrize(
    "text",
    [
        "The answer is not B",
        "B is wrong.",
        "I would not choose B",
        "It can't be B",
        "Neither A nor B",
        "The answer is B or C",
        "The answer is B/C",
        "The answer is A. No: the answer is B or C",
        "A or B",
        "A\nB",
        "A: no\nB: yes",
        "None of A, B, C is right",
    ],
)
def test_an_output_without_a_choice_scores_0(text, says):
    result = ChoiceMatch("ABCD").evaluate(outputs=text, reference_outputs="B")
    assert (result.score, result.value) == (0.0, None)
    says(result.comment)


def test_full_width_letters_are_an_option():
    assert chosen("\uff22") is None
    assert chosen("\uff22", nfkc=True) == "B"


def test_labels_of_a_script_without_spaces_keep_its_words_apart():
    evaluator = ChoiceMatch(["\u7532", "\u4e59"])
    assert evaluator.evaluate(outputs="\u4e59", reference_outputs="\u4e59").score == 1.0
    assert evaluator.evaluate(outputs="\u7532\u677f", reference_outputs="\u7532").value is None
