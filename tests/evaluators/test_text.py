"""Evaluators of plain text and of final answers, by their uses."""

from __future__ import annotations

import math
import re
import unicodedata
from decimal import Decimal
from random import Random
from typing import ClassVar

import pytest

import karat
from karat.errors import RequestError
from karat.evaluators import (
    CannotJudge,
    ChoiceMatch,
    Contains,
    EditDistance,
    ExactMatch,
    NumericMatch,
    RegexMatch,
    SetMatch,
    TokenF1,
    build_evaluator,
)
from karat.evaluators._text import difference
from karat.evaluators._values import nfkc


def score(evaluator, outputs, reference=None, **more):
    return evaluator.evaluate(outputs=outputs, reference_outputs=reference, **more).score


class TestExactMatch:
    def test_the_seed_example(self, says):
        result = ExactMatch(case_sensitive=False).evaluate(outputs="HI", reference_outputs="hi")
        assert (result.key, result.score, result.value) == ("exact_match", 1.0, True)
        says(result.comment)

    @pytest.mark.parametrize(
        ("params", "output", "reference", "expected"),
        [
            ({}, "hi", "hi", 1.0),
            ({}, "HI", "hi", 0.0),
            ({}, " hi\n", "hi", 1.0),
            ({"strip": False}, " hi", "hi", 0.0),
            ({}, "a  b", "a b", 0.0),
            ({"normalize_whitespace": True}, " a \t b ", "a b", 1.0),
            ({}, "cafe\u0301", "caf\u00e9", 0.0),
            ({"nfkc": True}, "cafe\u0301", "caf\u00e9", 1.0),
            ({"nfkc": True}, "\ufb01ne", "fine", 1.0),
            ({"case_sensitive": False}, "STRASSE", "straße", 1.0),
            ({"case_sensitive": False, "nfkc": True}, "\u03d2", "υ", 1.0),
            ({}, "", "", 1.0),
            ({}, "", "x", 0.0),
        ],
    )
    def test_texts(self, params, output, reference, expected):
        assert score(ExactMatch(**params), output, reference) == expected

    @pytest.mark.parametrize(
        ("output", "reference", "expected"),
        [
            ({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1}, 1.0),
            ("1." + "0" * 500, 1, 1.0),
            ("1" * 5_000, 1, 0.0),
            ({"a": [1, 2]}, {"a": [2, 1]}, 0.0),
            ('{"a": 1}', {"a": 1}, 1.0),
            ({"a": 1}, '{"a":1}', 1.0),
            ([1, "x"], '[1, "x"]', 1.0),
            ("not json", {"a": 1}, 0.0),
            (42, "42", 1.0),
            ("42", 42, 1.0),
            ("42.0", 42, 1.0),
            (1, 1.0, 1.0),
            (True, 1, 0.0),
            ({"a": True}, {"a": 1}, 0.0),
            (True, "true", 1.0),
            ({"text": "Paris"}, "Paris", 1.0),
            ({"other": "Paris"}, "Paris", 0.0),
            ({"a": None}, {"a": None}, 1.0),
            ({"a": None}, {"a": "None"}, 0.0),
            ((1, 2), [1, 2], 1.0),
            (b"hi", "hi", 1.0),
        ],
    )
    def test_parsed_json_is_accepted_where_text_is(self, output, reference, expected):
        assert score(ExactMatch(), output, reference) == expected

    @pytest.mark.parametrize("text", ["None", "null", ""])
    def test_none_is_never_equal_to_a_text(self, text):
        result = ExactMatch().evaluate(outputs=None, reference_outputs=text)
        assert result.score == 0.0
        assert "no output" in result.comment

    def test_no_reference_cannot_be_judged(self, refuses):
        with refuses(CannotJudge):
            ExactMatch().evaluate(outputs=None)

    def test_a_path_leads_to_the_value_on_both_sides_or_on_one(self):
        evaluator = ExactMatch(path="answer.text")
        whole = {"answer": {"text": "Paris"}}
        assert score(evaluator, whole, whole) == 1.0
        assert score(evaluator, whole, "Paris") == 1.0
        assert score(ExactMatch(path="0.name"), [{"name": "x"}], "x") == 1.0
        assert score(ExactMatch(path="a.b"), {"a.b": "x"}, "x") == 1.0

    def test_a_null_at_the_path_is_a_value(self):
        assert score(ExactMatch(path="a"), {"a": None}, {"a": None}) == 1.0
        assert score(ExactMatch(path="a"), {"a": "None"}, {"a": None}) == 0.0

    def test_a_missing_key_is_an_error_not_a_match(self, refuses):
        with refuses(CannotJudge):
            ExactMatch(path="answr").evaluate(outputs={"answer": 1}, reference_outputs={"answr": None})
        with refuses(CannotJudge):
            ExactMatch(path="a").evaluate(outputs={"a": None}, reference_outputs={})

    def test_short_texts_are_kept_as_labels(self):
        item = {"outputs": "cat", "reference_outputs": "dog"}
        for result in (ExactMatch().evaluate(**item), ExactMatch().evaluate_many([item])[0]):
            assert result.metadata == {"golden": "dog", "predicted": "cat"}
        long = {"outputs": "x" * 81, "reference_outputs": "dog"}
        assert ExactMatch().evaluate(**long).metadata == ExactMatch().evaluate_many([long])[0].metadata == {}
        assert ExactMatch().evaluate(outputs=None, reference_outputs=True).metadata == {
            "golden": True,
            "predicted": None,
        }

    def test_results_of_equal_texts_share_no_labels(self):
        items = [
            {"outputs": text, "reference_outputs": text}
            for text in ("a", "a", "a" * 79, "é", "a" * 81, "\ud800")
        ]
        results = ExactMatch().evaluate_many(items)
        assert results == [ExactMatch().evaluate(**item) for item in items]
        assert len({id(result.metadata) for result in results}) == len(items)
        assert [len(result.metadata) for result in results] == [2, 2, 2, 2, 0, 0]

    def test_a_classification_counts_them(self):
        dataset = karat.Dataset.from_examples([("a", "cat"), ("b", "dog"), ("c", "dog")])
        run = karat.run(lambda text: {"a": "cat", "b": "cat", "c": "dog"}[text], dataset, store="memory://")
        made = karat.aggregate(karat.evaluate(run, ["exact_match"]), ["classification"])
        assert made.status == "success"
        assert not made.header.failures

    def test_an_output_among_very_many_references(self):
        references = [f"answer {i}" for i in range(20_000)]
        found = ExactMatch(any_of=True).evaluate(outputs="answer 19999", reference_outputs=references)
        assert (found.score, found.metadata["reference"]) == (1.0, 19_999)
        assert ExactMatch(any_of=True).evaluate(outputs="answer", reference_outputs=references).score == 0.0
        with pytest.raises(CannotJudge, match="at most 1,000"):
            EditDistance(any_of=True).evaluate(outputs="answer", reference_outputs=references)

    def test_several_acceptable_references(self, refuses):
        result = ExactMatch(any_of=True).evaluate(outputs="b", reference_outputs=["a", "b"])
        assert (result.score, result.metadata) == (1.0, {"golden": "b", "predicted": "b", "reference": 1})
        with refuses(CannotJudge):
            ExactMatch(any_of=True).evaluate(outputs="b", reference_outputs=[])

    @pytest.mark.parametrize(
        ("output", "reference"),
        [
            ("Paris", "paris"),
            ("a  b", "a b"),
            ("cafe\u0301", "caf\u00e9"),
            ("a" * 5_000, "b"),
        ],
    )
    def test_the_comment_says_why_and_is_short(self, output, reference, says):
        comment = ExactMatch().evaluate(outputs=output, reference_outputs=reference).comment
        says(comment)
        assert len(comment) < 300

    def test_control_characters_do_not_reach_the_comment(self):
        comment = ExactMatch().evaluate(outputs="a\x1b[31m\n\ud800", reference_outputs="b").comment
        assert comment.isprintable()

    def test_many_at_once_give_the_same_as_one_by_one(self):
        evaluator = ExactMatch()
        pairs = [("a", "a"), ("a", "b"), (1, "1"), (None, "a"), ({"x": 1}, '{"x": 1}'), (" a", "a ")]
        items = [{"outputs": o, "reference_outputs": r} for o, r in pairs]
        assert evaluator.evaluate_many(items) == [evaluator.evaluate(**item) for item in items]

    @pytest.mark.parametrize("value", [math.nan, -math.inf, [math.nan], {"a": math.inf}])
    def test_nan_and_infinities_cannot_be_stored_and_cannot_be_judged(self, value):
        for evaluator in (ExactMatch(), NumericMatch()):
            with pytest.raises(CannotJudge, match="NaN"):
                evaluator.evaluate(outputs=value, reference_outputs=1)
            with pytest.raises(CannotJudge, match="NaN"):
                evaluator.evaluate(outputs=1, reference_outputs=value)

    def test_values_too_deep_or_unknown_cannot_be_judged(self, refuses):
        deep: list = []
        for _ in range(100_000):
            deep = [deep]
        with refuses(CannotJudge):
            ExactMatch().evaluate(outputs=deep, reference_outputs=deep)
        with refuses(CannotJudge):
            ExactMatch().evaluate(outputs=object(), reference_outputs="x")
        with refuses(CannotJudge):
            ExactMatch().evaluate(outputs={"text": "a", "answer": "b"}, reference_outputs="a")


class TestContains:
    def test_the_seed_example(self):
        assert score(Contains(substring="error"), "An Error occurred") == 1.0

    def test_any_and_all_of_several(self, says):
        wanted = ["alpha", "beta"]
        assert score(Contains(wanted), "alpha and beta") == 1.0
        assert score(Contains(wanted), "only alpha") == 0.0
        assert score(Contains(wanted, mode="any"), "only alpha") == 1.0
        result = Contains(wanted, graded=True).evaluate(outputs="only alpha")
        assert (result.score, result.value) == (0.5, False)
        assert result.metadata == {"found": ["alpha"], "missing": ["beta"]}
        says(result.comment)

    def test_without_a_substring_the_reference_is_looked_for(self):
        assert score(Contains(), "It is Paris.", "paris") == 1.0
        assert score(Contains(mode="any"), "It is Paris.", ["Lyon", "Paris"]) == 1.0
        for reference in (None, "", [], ["a", ""]):
            with pytest.raises(CannotJudge):
                Contains().evaluate(outputs="x", reference_outputs=reference)

    def test_case_forms_and_json(self):
        assert score(Contains("Error", case_sensitive=True), "error") == 0.0
        assert score(Contains("fi", nfkc=True), "\ufb01ne") == 1.0
        assert score(Contains('"a": 1'), {"a": 1, "b": 2}) == 1.0
        assert score(Contains("x"), None) == 0.0
        assert score(Contains("x", path="a"), {"a": "xyz", "b": ""}) == 1.0

    @pytest.mark.parametrize("wrong", ["", [], [""], 3, [1]])
    def test_wrong_substrings_are_refused(self, wrong):
        with pytest.raises(RequestError, match="contains: substring"):
            Contains(wrong)


class TestRegexMatch:
    def test_modes_and_flags(self):
        assert score(RegexMatch(r"\d+"), "abc 42") == 1.0
        assert score(RegexMatch(r"\d+", mode="match"), "abc 42") == 0.0
        assert score(RegexMatch(r"\d+", mode="fullmatch"), "42") == 1.0
        for flags in ("IGNORECASE", "i", ["re.I"], ["ignorecase"], re.IGNORECASE, int(re.IGNORECASE)):
            evaluator = RegexMatch("HELLO", flags)
            assert score(evaluator, "hello") == 1.0
            assert evaluator.params["flags"] == ["IGNORECASE"]
        assert RegexMatch("x", "i|m, s").params["flags"] == ["DOTALL", "IGNORECASE", "MULTILINE"]

    def test_the_match_is_reported(self):
        result = RegexMatch(r"#(\d+)").evaluate(outputs="order #1234")
        assert result.comment == "'#(\\\\d+)' matches '#1234'"
        assert result.metadata == {"start": 6, "end": 11}

    def test_a_catastrophic_pattern_is_an_error_not_a_stuck_run(self, refuses):
        with refuses(CannotJudge):
            RegexMatch(r"^(a|aa)+$", timeout=0.05).evaluate(outputs="a" * 80 + "b")

    def test_mistakes_are_named_at_construction(self, refuses):
        with pytest.raises(RequestError, match=r"pattern '\('"):
            RegexMatch("(")
        with refuses(RequestError):
            RegexMatch("x", ["IGNORCASE"])
        with refuses(RequestError):
            RegexMatch("x", mode="serch")
        with pytest.raises(RequestError, match="timeout"):
            RegexMatch("x", timeout=0)
        with pytest.raises(RequestError, match="bits"):
            RegexMatch("x", 1 << 30)

    def test_no_output_does_not_match(self):
        assert score(RegexMatch(".*"), None) == 0.0
        assert score(RegexMatch("^$"), "") == 1.0


class TestEditDistance:
    def test_one_minus_edits_over_the_longer(self):
        result = EditDistance().evaluate(outputs="kitten", reference_outputs="sitting")
        assert (result.score, result.value) == (pytest.approx(1 - 3 / 7), 3)
        assert result.comment == "3 edits over 7 characters"

    @pytest.mark.parametrize(
        ("params", "output", "reference", "expected"),
        [
            ({}, "", "", 1.0),
            ({}, "", "abc", 0.0),
            ({}, "abc", "ABC", 0.0),
            ({"case_sensitive": False}, "abc", "ABC", 1.0),
            ({}, " a", "a", 0.5),
            ({"strip": True}, " a", "a", 1.0),
            ({"normalize_whitespace": True}, "a  b", "a b", 1.0),
            ({"nfkc": True}, "\ufb01", "fi", 1.0),
            ({}, None, "a", 0.0),
            ({}, 12, 13, 0.5),
        ],
    )
    def test_options(self, params, output, reference, expected):
        assert score(EditDistance(**params), output, reference) == expected

    def test_texts_that_would_take_too_long_are_an_error(self):
        with pytest.raises(CannotJudge, match=r"over max_length \(10\)"):
            EditDistance(max_length=10).evaluate(outputs="a" * 11, reference_outputs="b")
        assert score(EditDistance(), "a" * 20_000, "a" * 20_000) == 1.0


class TestNumericMatch:
    @pytest.mark.parametrize(
        ("params", "output", "reference", "expected"),
        [
            ({}, "42", 42, 1.0),
            ({}, "42.", 42, 1.0),
            ({}, "1,234.50", "1234.5", 1.0),
            ({}, "-5", "\u22125", 1.0),
            ({}, "10000000001", 10000000002, 0.0),
            ({}, 0.1 + 0.2, 0.3, 0.0),
            ({"tolerance": 1e-9}, 0.1 + 0.2, 0.3, 1.0),
            ({"tolerance": 0.5}, "10.5", 10, 1.0),
            ({"tolerance": 0.5}, "10.51", 10, 0.0),
            ({"relative_tolerance": 0.01}, 101, 100, 1.0),
            ({"relative_tolerance": 0.01}, 102, 100, 0.0),
            ({}, "about 42", 42, 0.0),
            ({"extract": "last"}, "first 3, then 42 in all", 42, 1.0),
            ({"extract": "first"}, "first 3, then 42 in all", 3, 1.0),
            ({"extract": "last"}, "so 3 - 5", 5, 1.0),
            ({"extract": "last"}, "x = -3.5e2", -350, 1.0),
            ({"extract": "last"}, "$1,200 in all", 1200, 1.0),
            ({"extract": "last"}, "no number", 1, 0.0),
            ({"thousands": ". ", "decimal": ","}, "1.234,5", 1234.5, 1.0),
            ({"thousands": ""}, "1,234", 1234, 0.0),
            ({"units": {"km": 1000, "m": 1}}, "5 km", "5000 m", 1.0),
            ({"units": {"km": 1000, "m": 1}}, "5", "5 km", 0.0),
            ({"units": {"%": 0.01}}, "50%", 0.5, 1.0),
            ({"units": ["$"]}, "-$5", -5, 1.0),
            ({"units": ["kg", "lb"]}, "5 kg", "5 lb", 0.0),
            ({"units": ["kg"]}, "5", "5 kg", 1.0),
            ({"units": ["kg"], "require_unit": True}, "5", "5 kg", 0.0),
            ({}, True, 1, 0.0),
            ({}, None, 1, 0.0),
            ({}, "", 1, 0.0),
            ({}, "9" * 5_000, 1, 0.0),
            ({}, 10**400, 1, 0.0),
            ({}, "1" * 5_000, "1" * 5_000, 1.0),
            ({}, "1" * 5_000, "1" * 4_999 + "2", 0.0),
            ({}, Decimal("1e5000"), "1" + "0" * 5_000, 1.0),
            ({}, "1" + "0" * 70 + "1", "1" + "0" * 70 + "2", 0.0),
            ({"relative_tolerance": 1e-9}, "1" * 5_000, "1" * 4_999 + "2", 1.0),
            ({"extract": "first"}, "1" * 500 + " or 5", 5, 0.0),
            ({"extract": "last"}, "1" * 300_000 + " or 5", 5, 1.0),
            ({}, "1e00003", 1000, 1.0),
        ],
    )
    def test_numbers(self, params, output, reference, expected):
        assert score(NumericMatch(**params), output, reference) == expected

    @pytest.mark.parametrize("kind", [float, Decimal])
    @pytest.mark.parametrize("number", ["nan", "inf"])
    def test_a_value_that_is_no_finite_number_cannot_be_judged(self, kind, number):
        for output, reference in ((kind(number), 1), (1, kind(number))):
            with pytest.raises(CannotJudge):
                NumericMatch().evaluate(outputs=output, reference_outputs=reference)

    @pytest.mark.parametrize("extract", ["whole", "first", "last"])
    def test_a_number_too_long_to_read_cannot_be_judged(self, extract, refuses):
        long = "1" * 200_001
        for output in (long, "1e12345", "1e-99999", 10**250_000, Decimal("1e999999"), Decimal(long)):
            with refuses(CannotJudge):
                NumericMatch(extract=extract).evaluate(outputs=output, reference_outputs=1)

    def test_a_reference_without_a_number_cannot_be_judged(self, refuses):
        for reference in ("none", True, ""):
            with refuses(CannotJudge):
                NumericMatch().evaluate(outputs="1", reference_outputs=reference)

    def test_the_comment_names_both_and_what_is_allowed(self, says):
        result = NumericMatch(tolerance=1).evaluate(outputs="12", reference_outputs=10)
        says(result.comment)
        assert result.metadata["difference"] == 2.0

    @pytest.mark.parametrize(
        "wrong",
        [
            {"tolerance": -1},
            {"tolerance": "1"},
            {"extract": "middle"},
            {"units": {}},
            {"units": {"m": 0}},
            {"thousands": "5"},
            {"decimal": ","},
            {"decimal": ""},
            {"require_unit": 1},
        ],
    )
    def test_wrong_parameters_are_refused(self, wrong):
        with pytest.raises(RequestError, match="numeric_match"):
            NumericMatch(**wrong)


class TestChoiceMatch:
    @pytest.mark.parametrize(
        ("output", "chosen"),
        [
            ("B", "B"),
            ("(b)", "B"),
            ("**B**", "B"),
            ("B.", "B"),
            ("B) Paris", "B"),
            ("B - Paris, not C", "B"),
            ("Answer: B", "B"),
            ("the answer is (B).", "B"),
            ("The answer is A. No wait, the answer is B.", "B"),
            ("so \\boxed{B}", "B"),
            ("\\boxed{\\text{B}}", "B"),
            ("A dog would choose B", "B"),
            ("The answer is a mix, so B", "B"),
            ("The answer is A because it is", "A"),
            ("A or B", None),
            ("I think a is good", None),
            ("Both are fine", None),
            ("", None),
        ],
    )
    def test_the_letter_is_found(self, output, chosen):
        result = ChoiceMatch("ABCD").evaluate(outputs=output, reference_outputs="B")
        assert result.value == chosen
        assert result.score == float(chosen == "B")

    def test_references_are_letters_or_positions(self, refuses):
        assert score(ChoiceMatch(), "C", 2) == 1.0
        assert score(ChoiceMatch(["1", "2", "3"]), "2", 2) == 1.0
        assert score(ChoiceMatch(["yes", "no"]), "My answer: no", "no") == 1.0
        for reference in ("Z", 9, -1, "A or B"):
            with refuses(CannotJudge):
                ChoiceMatch().evaluate(outputs="A", reference_outputs=reference)

    def test_the_text_of_an_option_is_recognised(self, refuses):
        evaluator = ChoiceMatch(options_path="choices")
        inputs = {"choices": ["Rome", "Paris"]}
        assert score(evaluator, "Paris.", 1, inputs=inputs) == 1.0
        assert score(evaluator, "rome", "Paris", inputs=inputs) == 0.0
        with refuses(CannotJudge):
            evaluator.evaluate(outputs="A", reference_outputs="A", inputs={"choices": "no"})
        assert (
            evaluator.evaluate_many([{"outputs": "B", "reference_outputs": 1, "inputs": inputs}])[0].score
            == 1
        )

    def test_long_runs_do_not_hang(self):
        evaluator = ChoiceMatch()
        for text in ("answer is" + " " * 100_000, "B" + "*" * 100_000 + "x", "a b " * 50_000):
            assert evaluator.evaluate(outputs=text, reference_outputs="C").score == 0.0


class TestUnitsInText:
    @pytest.mark.parametrize("extract", ["first", "last"])
    @pytest.mark.parametrize(
        ("output", "expected"),
        [
            ("3 miles", 0.0),
            ("3kg", 0.0),
            ("$3", 0.0),
            ("so it is 0.003 km", 1.0),
            ("it is 3 because of that", 1.0),
            ("$9 for 3 m", 1.0),
            ("3 m.", 1.0),
        ],
    )
    def test_a_number_with_another_unit_is_not_read(self, extract, output, expected):
        evaluator = NumericMatch(units={"km": 1000, "m": 1}, extract=extract)
        assert score(evaluator, output, "3 m") == expected

    def test_a_number_with_another_unit_is_not_read_from_the_reference(self, refuses):
        with refuses(CannotJudge):
            NumericMatch(units=["km"], extract="last").evaluate(outputs="3 km", reference_outputs="3 miles")


class TestPaths:
    OUTPUT: ClassVar = {"id": 7, "predicted": {"text": "Paris"}}

    @pytest.mark.parametrize("name", ["exact_match", "contains", "edit_distance", "token_f1", "set_match"])
    def test_each_side_may_have_its_own(self, name):
        path = {"output": "predicted.text", "reference": "answers.0"}
        evaluator = build_evaluator(
            name, {"path": path, **({"separator": ","} if name == "set_match" else {})}
        )
        sides = {"outputs": self.OUTPUT, "reference_outputs": {"answers": ["Paris"]}}
        assert evaluator.evaluate(**sides).score == 1.0
        assert [result.score for result in evaluator.evaluate_many([sides])] == [1.0]

    def test_one_side_alone_may_have_one(self):
        evaluator = ExactMatch(path={"output": "predicted.text"})
        assert evaluator.evaluate(outputs=self.OUTPUT, reference_outputs="Paris").score == 1.0
        evaluator = ExactMatch(path={"reference": "text"})
        assert evaluator.evaluate(outputs="Paris", reference_outputs={"text": "Paris"}).score == 1.0

    def test_a_choice_with_options(self):
        evaluator = ChoiceMatch(options_path="options", path={"output": "said", "reference": "letter"})
        found = evaluator.evaluate(
            outputs={"said": "Rome"}, reference_outputs={"letter": "B"}, inputs={"options": ["Oslo", "Rome"]}
        )
        assert found.score == 1.0

    @pytest.mark.parametrize(
        "path",
        [{"outptu": "x"}, {"output": 3}, [1]],
    )
    def test_mistakes(self, path, refuses):
        with refuses(RequestError):
            ExactMatch(path=path)


class TestSetMatch:
    @pytest.mark.parametrize("item", ["1e400", "9" * 5_000])
    def test_a_number_too_long_to_read_cannot_be_judged(self, item, refuses):
        with refuses(CannotJudge):
            SetMatch().evaluate(outputs=f"[{item}]", reference_outputs="[1e500]")

    def test_precision_recall_f1(self):
        result = SetMatch().evaluate(outputs=["a", "b", "c"], reference_outputs=["c", "d"])
        assert result.score == pytest.approx(0.4)
        assert result.metadata["precision"] == pytest.approx(1 / 3)
        assert result.metadata["recall"] == 0.5
        assert (result.metadata["missing"], result.metadata["extra"]) == (["d"], ["a", "b"])

    @pytest.mark.parametrize(
        ("params", "output", "reference", "expected"),
        [
            ({}, ["b", "a"], ["a", "b"], 1.0),
            ({}, [{"x": [1, 2.0]}], [{"x": [1.0, 2]}], 1.0),
            ({}, [{"x": True}], [{"x": 1}], 0.0),
            ({}, [], [], 1.0),
            ({}, [], ["a"], 0.0),
            ({}, ["a", "a"], ["a"], 1.0),
            ({"duplicates": True}, ["a", "a"], ["a"], pytest.approx(2 / 3)),
            ({"measure": "precision"}, ["a", "b"], ["a"], 0.5),
            ({"measure": "recall"}, ["a", "b"], ["a"], 1.0),
            ({"measure": "exact"}, ["a", "b"], ["a"], 0.0),
            ({"separator": ","}, "b, a,", "a,b", 1.0),
            ({}, '["a", "b"]', ["b", "a"], 1.0),
            ({}, [1, True, "1"], [1], 0.5),
            ({}, [1.0], [1], 1.0),
            ({}, [{"x": 1, "y": 2}], [{"y": 2, "x": 1}], 1.0),
            ({}, [None], ["None"], 0.0),
            ({"case_sensitive": False}, ["A"], ["a"], 1.0),
            ({}, [" a"], ["a"], 1.0),
            ({}, "just text", ["a"], 0.0),
            ({}, None, ["a"], 0.0),
        ],
    )
    def test_lists(self, params, output, reference, expected):
        assert score(SetMatch(**params), output, reference) == expected

    def test_a_reference_that_is_not_a_list_cannot_be_judged(self, refuses):
        with refuses(CannotJudge):
            SetMatch().evaluate(outputs=["a"], reference_outputs="a and b")


class TestTokenF1:
    @pytest.mark.parametrize(
        ("params", "output", "reference", "expected"),
        [
            ({}, "It is the Eiffel Tower", "Eiffel Tower", pytest.approx(2 / 3)),
            ({}, "The Cat!", "a cat", 1.0),
            ({"remove_articles": False}, "the cat", "a cat", 0.5),
            ({"remove_punctuation": False}, "cat!", "cat", 0.0),
            ({"case_sensitive": True}, "Cat", "cat", 0.0),
            ({}, "«chat» — noir…", "chat noir", 1.0),
            ({"nfkc": True}, "\uff43\uff41\uff54", "cat", 1.0),
            ({"tokens": "characters"}, "東京都", "東京", pytest.approx(0.8)),
            ({}, "", "", 1.0),
            ({}, "the", "a", 1.0),
            ({}, "", "cat", 0.0),
            ({}, "cat cat", "cat", pytest.approx(2 / 3)),
            ({"any_of": True}, "red", ["blue", "red"], 1.0),
        ],
    )
    def test_words(self, params, output, reference, expected):
        assert score(TokenF1(**params), output, reference) == expected


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("1.0", 1, 1.0),
        ("1", 1.0, 1.0),
        ("1.50", 1.5, 1.0),
        ("1e0", 1, 1.0),
        (" -2.0\n", -2, 1.0),
        ("12345678901234567891", 12345678901234567890, 0.0),
        ("01", 1, 0.0),
        ("+1", 1, 0.0),
        ("one", 1, 0.0),
        ("1", True, 0.0),
        ("1.0", True, 0.0),
        ("0", False, 0.0),
        ("1" * 5_000, 1, 0.0),
    ],
)
def test_a_text_that_is_a_number_equals_the_number_it_says(text, value, expected):
    assert score(ExactMatch(), text, value) == expected
    assert score(ExactMatch(), value, text) == expected


def test_whitespace_around_a_number_counts_if_requested():
    assert score(ExactMatch(strip=False), " 1.0", 1) == 0.0
    assert score(ExactMatch(), None, "None") == 0.0


def test_a_number_in_the_one_field_of_an_answer(refuses):
    assert score(NumericMatch(), {"answer": 42}, 42) == 1.0
    assert score(NumericMatch(), {"answer": "42"}, {"answer": 42.0}) == 1.0
    assert score(NumericMatch(), {"answer": True}, 1) == 0.0
    with refuses(CannotJudge):
        score(NumericMatch(), {"text": "so", "answer": 42}, 42)


@pytest.mark.parametrize("space", [" ", "\u00a0", "\u202f"])
def test_a_thousands_separator_may_be_a_no_break_space(space):
    assert score(NumericMatch(thousands=" "), f"1{space}234{space}567", 1234567) == 1.0


def test_options_by_label(refuses):
    evaluator = ChoiceMatch(options_path="options")
    inputs = {"options": {"B": "Lyon", "A": "Paris", "c": "Nice"}}
    assert score(evaluator, "Lyon", "B", inputs=inputs) == 1.0
    assert score(evaluator, "Nice", "C", inputs=inputs) == 1.0
    assert score(evaluator, "Nice", "A", inputs=inputs) == 0.0
    with refuses(CannotJudge):
        score(evaluator, "Lyon", "B", inputs={"options": {"Z": "Lyon"}})


def test_flags_as_letters_together_or_none(refuses):
    assert score(RegexMatch("A.B", flags="is"), "a\nb") == 1.0
    assert RegexMatch("a", flags=None).params["flags"] == []
    with refuses(RequestError):
        RegexMatch("a", flags="iq")


def test_long_texts_are_normalised_as_short_ones_are() -> None:
    letters = "aé1 \u0301\u0316\u0344\u0f71\u0f73\u0f81\u1100\u1161\u11a8\uac00\ufdfa\u03a9\u2126\u0345\u0f72"
    random = Random(1)
    for _ in range(40):
        text = "".join(random.choices(letters, k=random.choice((3, 600, 3_000))))
        assert nfkc(text) == unicodedata.normalize("NFKC", text)


def test_whitespace_that_differs_in_texts_of_one_length_is_the_reason():
    for output, reference in ((" a", "\na"), ("a b ", " a b")):
        assert "normalize_whitespace" in difference(output, reference)
    assert "normalize_whitespace" not in difference("a bc", "ab c")
