"""Unit metrics: the seed's shape, every parameter, what is wrong and what cannot be judged."""

from __future__ import annotations

import json
import math

import pytest

from karat.errors import RequestError, UnknownName
from karat.evaluators import (
    BaseUnitMetric,
    CannotJudge,
    UnitMetricRegistry,
    UnitMetricResult,
    build_evaluator,
    discover,
    unit_metric,
)


def judged(name, golden, predicted, **params):
    return UnitMetricRegistry.get_metric(name, **params).evaluate([golden], [predicted])[0]


class TestShape:
    def test_a_custom_metric_as_the_seed_writes_it(self):
        @unit_metric("my_custom_metric")
        class MyCustomMetric(BaseUnitMetric):
            def __init__(self, **config):
                super().__init__(**config)
                self.validate_config()
                self.metadata = self.get_metadata()

            def validate_config(self):
                pass

            def get_metadata(self):
                pass

            def evaluate(self, golden, predicted):
                results = []
                for g, p in zip(golden, predicted, strict=True):
                    is_correct = g == p
                    results.append(
                        UnitMetricResult(
                            correct=is_correct,
                            golden=g,
                            predicted=p,
                            metadata={"validator": "my_custom_metric"},
                        )
                    )
                return results

        metric = UnitMetricRegistry.get_metric("my_custom_metric", anything=1)
        assert metric.config == {"anything": 1}
        assert [result.correct for result in metric.evaluate([1, 2], [1, 3])] == [True, False]
        assert UnitMetricRegistry.has_metric("my_custom_metric")
        assert build_evaluator("unit:my_custom_metric").evaluate(outputs=1, reference_outputs=1).score == 1.0

    def test_the_registry(self, refuses):
        names = {"exact_match", "fuzzy_match", "action_within_bbox", "typed_value_match"}
        assert names | {"scroll_direction", "scroll_amount"} <= set(UnitMetricRegistry.list_metrics())
        assert not UnitMetricRegistry.has_metric("exact_mtch")
        with refuses(UnknownName):
            UnitMetricRegistry.get_metric("exact_mtch")
        with refuses(RequestError):
            UnitMetricRegistry.get_metric("exact_match", case_sensitiv=True)
        with refuses(RequestError):
            unit_metric("nothing")(int)
        with pytest.raises(RequestError, match="already registered"):
            UnitMetricRegistry.register("exact_match", UnitMetricRegistry.get_metric_class("fuzzy_match"))

    def test_names_metadata_and_description(self):
        metric = UnitMetricRegistry.get_metric("fuzzy_match")
        assert metric.get_metric_name() == metric.metadata.name == "fuzzy_match"
        assert metric.metadata.description
        assert {"name", "description", "params"} <= set(UnitMetricRegistry.describe()[0])

    def test_to_dict_and_back(self, refuses):
        result = UnitMetricResult(True, {"text": "Paris"}, "paris", {"validator": "x"})
        assert UnitMetricResult.from_dict(result.to_dict()) == result
        assert UnitMetricResult.from_dict({"correct": False}).metadata == {}
        assert UnitMetricResult.from_dict(True) == UnitMetricResult(True, None, None)
        for wrong in (
            {},
            {"correct": None},
            {"correct": 1},
            "text",
            1,
            0.5,
            {"correct": True, "metadata": "x"},
        ):
            with refuses(ValueError):
                UnitMetricResult.from_dict(wrong)

    def test_results_are_always_valid_json(self):
        result = UnitMetricResult(False, {"x": math.nan, "y": (1, {2})}, "\ud800", {"d": math.inf})
        text = json.dumps(result.to_dict(), allow_nan=False)
        text.encode()
        assert json.loads(text) == {
            "correct": False,
            "golden": {"x": None, "y": [1, [2]]},
            "predicted": "?",
            "metadata": {"d": None},
        }

    @pytest.mark.parametrize("name", ["exact_match", "fuzzy_match", "scroll_amount", "evaluator:exact_match"])
    def test_lists_that_cannot_be_paired_are_an_error(self, name, refuses):
        metric = UnitMetricRegistry.get_metric(name)
        with refuses(CannotJudge):
            metric.evaluate(["a", "b"], ["a"])
        with refuses(CannotJudge):
            metric.evaluate("a", "a")
        assert metric.evaluate([], []) == []


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("exact_match", {"key": "text"}),
        ("fuzzy_match", {"key": "text"}),
        ("typed_value_match", {"key": "text"}),
        ("scroll_direction", {"key": "text"}),
        ("scroll_amount", {"key": "text"}),
        ("action_within_bbox", {"golden_bbox_key": "text"}),
        ("evaluator:exact_match", {"path": "text"}),
        ("evaluator:exact_match", {"path": {"output": "text", "reference": "text"}}),
        ("evaluator:contains", {"path": "text"}),
    ],
)
@pytest.mark.parametrize("predicted", [None, "x"])
def test_a_golden_null_under_the_key_cannot_be_judged(name, params, predicted):
    metric = UnitMetricRegistry.get_metric(name, **params)
    with pytest.raises(CannotJudge, match=r"golden\[0\]"):
        metric.evaluate([{"text": None}], [{"text": predicted}])


class TestExactMatch:
    def test_the_seed_output(self):
        result = judged("exact_match", {"text": "Paris"}, {"text": "paris"}, key="text")
        assert result.to_dict() == {
            "correct": True,
            "golden": {"text": "Paris"},
            "predicted": {"text": "paris"},
            "metadata": {
                "validator": "exact_match",
                "case_sensitive": False,
                "golden_text": "Paris",
                "predicted_text": "paris",
                "normalize_whitespace": True,
            },
        }

    @pytest.mark.parametrize(
        ("golden", "predicted", "texts"),
        [
            (42, "42", ("42", "42")),
            ({"b": 1, "a": "é"}, None, ('{"a": "é", "b": 1}', None)),
            ({"answer": "x", "text": "y"}, True, ('{"answer": "x", "text": "y"}', "true")),
            pytest.param(10**5000, None, (None, None), id="a long number"),
        ],
    )
    def test_the_texts_that_were_compared(self, golden, predicted, texts):
        metadata = judged("exact_match", golden, predicted, normalize_whitespace=False).metadata
        assert (metadata["golden_text"], metadata["predicted_text"]) == texts
        assert metadata["normalize_whitespace"] is False

    @pytest.mark.parametrize(
        ("params", "golden", "predicted", "correct"),
        [
            ({"key": "text"}, "Paris", {"text": "paris"}, True),
            ({"key": "text"}, {"text": "Paris"}, "paris", True),
            ({"key": "a.b"}, {"a": {"b": "x"}}, {"a": {"b": "x"}}, True),
            ({"case_sensitive": True}, "Paris", "paris", False),
            ({}, "a b", " a \n b ", True),
            ({"normalize_whitespace": False}, "a b", "a  b", False),
            ({}, {"a": "X"}, {"a": "x"}, True),
            ({}, 42, "42", True),
            ({}, "None", None, False),
            ({"key": "t"}, {"t": "None"}, {"t": None}, False),
            ({}, True, 1, False),
        ],
    )
    def test_parameters(self, params, golden, predicted, correct):
        assert judged("exact_match", golden, predicted, **params).correct is correct

    def test_what_cannot_be_judged_names_the_element_and_the_key(self, refuses):
        metric = UnitMetricRegistry.get_metric("exact_match", key="text")
        with refuses(CannotJudge):
            metric.evaluate(["a", {"txt": "b"}], ["a", "b"])
        with refuses(CannotJudge):
            metric.evaluate(["a"], [{}])
        with pytest.raises(CannotJudge, match=r"golden\[0\] is None"):
            metric.evaluate([None], [None])


class TestFuzzyMatch:
    def test_the_seed_output(self):
        result = judged("fuzzy_match", {"text": "Paris"}, {"text": "paris"}, key="text", threshold=0.8)
        assert result.correct
        assert result.metadata == {"validator": "fuzzy_match", "similarity": 1.0, "threshold": 0.8}

    @pytest.mark.parametrize(
        ("params", "golden", "predicted", "correct"),
        [
            ({}, "colour", "color", True),
            ({"threshold": 0.95}, "colour", "color", False),
            ({"case_sensitive": True}, "PARIS", "paris", False),
            ({}, "", "", True),
            ({}, "abc", "xyz", False),
            ({}, "a", None, False),
            ({"threshold": 0.0}, "a", None, False),
        ],
    )
    def test_parameters(self, params, golden, predicted, correct):
        assert judged("fuzzy_match", golden, predicted, **params).correct is correct

    @pytest.mark.parametrize("wrong", [1.5, -0.1, "0.8", True, math.nan])
    def test_a_threshold_is_between_0_and_1(self, wrong):
        with pytest.raises(RequestError, match="threshold"):
            UnitMetricRegistry.get_metric("fuzzy_match", threshold=wrong)

    def test_texts_too_long_to_compare(self):
        with pytest.raises(CannotJudge, match="too long"):
            judged("fuzzy_match", "a" * 200_000, "b")


BOX = {"bbox": {"x": 10, "y": 20, "width": 100, "height": 50}}


class TestActionWithinBbox:
    @pytest.mark.parametrize(
        ("params", "golden", "predicted", "correct"),
        [
            ({}, BOX, {"x": 50, "y": 40}, True),
            ({}, BOX, {"x": 10, "y": 20}, True),
            ({}, BOX, {"x": 110, "y": 70}, True),
            ({}, BOX, {"x": 110.5, "y": 70}, False),
            ({"tolerance": 1}, BOX, {"x": 110.5, "y": 70}, True),
            ({}, BOX, {"x": "50", "y": " 40 "}, True),
            ({}, BOX, [50, 40], True),
            ({}, BOX, {"x": "left", "y": 40}, False),
            ({}, BOX, {"x": None, "y": 40}, False),
            ({}, BOX, None, False),
            ({"format": "xyxy"}, {"bbox": [10, 20, 110, 70]}, {"x": 110, "y": 70}, True),
            ({"format": "xywh"}, {"bbox": [10, 20, 100, 50]}, {"x": 110, "y": 70}, True),
            ({"format": "xyxy"}, {"bbox": {"x1": 0, "y1": 0, "x2": "9", "y2": 9}}, {"x": 9, "y": 9}, True),
            ({"format": "xyxy"}, [10, 20, 110, 70], {"x": 111, "y": 70}, False),
            (
                {"predicted_x_key": "at.px", "predicted_y_key": "at.py", "golden_bbox_key": "target.box"},
                {"target": {"box": BOX["bbox"]}},
                {"at": {"px": 50, "py": 40}},
                True,
            ),
            ({"golden_bbox_key": None}, BOX["bbox"], {"x": 50, "y": 40}, True),
        ],
    )
    def test_points_and_boxes(self, params, golden, predicted, correct):
        result = judged("action_within_bbox", golden, predicted, **params)
        assert result.correct is correct
        json.dumps(result.to_dict(), allow_nan=False)

    def test_metadata(self):
        metadata = judged("action_within_bbox", BOX, {"x": 113, "y": 74}, tolerance=4).metadata
        assert metadata["validator"] == "action_within_bbox"
        assert (metadata["predicted_x_key"], metadata["golden_bbox_key"]) == ("x", "bbox")
        assert (
            metadata["distance"] == metadata["tolerance"] == 4.0
        )  # a corner is as near as the farther of its axes

    @pytest.mark.parametrize(
        ("golden", "predicted"),
        [
            ({"box": [1]}, {"x": 1, "y": 1}),
            ({"bbox": [1, 2, 3, 4]}, {"x": 1, "y": 1}),
            ({"bbox": {"x": 1, "y": 1, "width": 5}}, {"x": 1, "y": 1}),
            ({"bbox": {"x": 1, "y": 1, "width": -5, "height": 2}}, {"x": 1, "y": 1}),
            ({"bbox": {"x": "a", "y": 1, "width": 5, "height": 2}}, {"x": 1, "y": 1}),
            ({"bbox": "text"}, {"x": 1, "y": 1}),
            (BOX, {"y": 1}),
        ],
    )
    def test_what_cannot_be_judged(self, golden, predicted, refuses):
        with refuses(CannotJudge):
            judged("action_within_bbox", golden, predicted)

    def test_parameters_are_checked(self):
        for wrong in ({"tolerance": -1}, {"format": "yxyx"}, {"predicted_x_key": ""}):
            with pytest.raises(RequestError, match="action_within_bbox"):
                UnitMetricRegistry.get_metric("action_within_bbox", **wrong)


class TestTypedValueMatch:
    def test_exact_and_fuzzy_with_differences(self):
        result = judged("typed_value_match", {"text": "hello world"}, {"text": "hello wurld!"})
        assert result.correct
        assert result.metadata["exact_match"] is False
        assert result.metadata["similarity"] == result.metadata["similarity_score"] == pytest.approx(20 / 23)
        assert result.metadata["golden_text"] == "hello world"
        assert result.metadata["predicted_text"] == "hello wurld!"
        assert result.metadata["differences"] == [
            {"operation": "replace", "golden": "o", "predicted": "u"},
            {"operation": "insert", "golden": "", "predicted": "!"},
        ]

    @pytest.mark.parametrize(
        ("params", "golden", "predicted", "correct"),
        [
            ({}, "Hello", "hello", True),
            ({"case_sensitive": True, "fuzzy_match_threshold": None}, "Hello", "hello", False),
            ({"normalize_whitespace": False, "fuzzy_match_threshold": 1.0}, "a b", "a  b", False),
            ({"fuzzy_match_threshold": 0.5}, "abcd", "abxx", True),
            ({"fuzzy_match_threshold": 0.51}, "abcd", "abxx", False),
            ({"key": "v"}, {"v": "x"}, {"v": "x"}, True),
            ({"golden_text_key": "g", "predicted_text_key": "p"}, {"g": "x"}, {"p": "x"}, True),
            ({}, {"text": "12"}, {"text": 12}, True),
            ({}, "x", None, False),
        ],
    )
    def test_parameters(self, params, golden, predicted, correct):
        assert judged("typed_value_match", golden, predicted, **params).correct is correct

    def test_long_texts_have_a_similarity_and_no_list(self):
        metadata = judged("typed_value_match", "a" * 6_000, "a" * 6_000 + "b").metadata
        assert metadata["similarity"] > 0.99
        assert metadata["differences"] == []


class TestScroll:
    @pytest.mark.parametrize(
        ("golden", "predicted", "correct"),
        [
            ({"direction": "up"}, {"direction": "up"}, True),
            ({"direction": "up"}, {"direction": " UP "}, True),
            ("down", "up", False),
            ("down", "sideways", False),
            ("down", None, False),
        ],
    )
    def test_direction(self, golden, predicted, correct):
        result = judged("scroll_direction", golden, predicted)
        assert result.correct is correct
        assert result.metadata["golden_direction"] in ("up", "down")

    def test_a_golden_direction_has_to_be_one(self):
        for golden in ("sideways", {"direction": 3}, {"dir": "up"}):
            with pytest.raises(CannotJudge, match=r"golden\[0\]"):
                judged("scroll_direction", golden, "up")

    @pytest.mark.parametrize(
        ("params", "golden", "predicted", "correct"),
        [
            ({}, 100, 120, True),
            ({}, 100, 80, True),
            ({}, 100, 121, False),
            ({}, 100, -100, False),
            ({}, -100, -110, True),
            ({}, {"amount": "100"}, {"amount": "115"}, True),
            ({"tolerance_percent": 7}, 100, 107, True),
            ({}, 0.3, 0.36, True),
            ({}, 0, 10, True),
            ({}, 0, 11, False),
            ({"scroll_threshold": 20}, 0, -11, True),
            ({"key": "by"}, {"by": 10}, {"by": 10}, True),
            ({}, 10, "much", False),
            ({}, 10, "1_0", False),
            ({}, 1e308, -1e308, False),
        ],
    )
    def test_amount(self, params, golden, predicted, correct):
        result = judged("scroll_amount", golden, predicted, **params)
        assert result.correct is correct
        json.dumps(result.to_dict(), allow_nan=False)

    def test_amount_metadata_and_errors(self, refuses):
        assert judged("scroll_amount", 100, 110).metadata == {
            "validator": "scroll_amount",
            "golden_amount": 100.0,
            "predicted_amount": 110.0,
            "difference": 10.0,
            "difference_percent": 10.0,
            "tolerance_percent": 20.0,
            "scroll_threshold": 10.0,
            "is_valid": True,
            "tolerance_used": 20.0,
            "golden_scroll_amount": 100.0,
            "predicted_scroll_amount": 110.0,
        }
        invalid = judged("scroll_amount", 100, "far").metadata
        assert (invalid["is_valid"], invalid["golden_scroll_amount"]) == (False, 100.0)
        assert invalid["predicted_scroll_amount"] is None
        with refuses(CannotJudge):
            judged("scroll_amount", "far", 1)
        with pytest.raises(RequestError, match="tolerance_percent"):
            UnitMetricRegistry.get_metric("scroll_amount", tolerance_percent=-1)


class TestAdapters:
    def test_a_unit_metric_among_evaluators(self):
        evaluator = build_evaluator("unit:exact_match", {"key": "text"})
        result = evaluator.evaluate(outputs={"text": "paris"}, reference_outputs={"text": "Paris"})
        assert (result.key, result.score, result.value) == ("unit:exact_match", 1.0, True)
        assert result.metadata == {
            "validator": "exact_match",
            "case_sensitive": False,
            "golden_text": "Paris",
            "predicted_text": "paris",
            "normalize_whitespace": True,
            "golden": {"text": "Paris"},
            "predicted": {"text": "paris"},
        }
        long = evaluator.evaluate(outputs={"text": "x" * 1001}, reference_outputs={"text": "x"})
        assert {name for name in long.metadata if name.startswith(("golden", "predicted"))} == {
            "golden",
            "golden_text",
        }
        assert result.comment.startswith("correct: ")
        assert evaluator.params == {"metric": "exact_match", "key": "text"}
        assert build_evaluator("unit:exact_match", key="mine").key == "mine"

    def test_the_two_registries_stay_apart(self):
        pair = {"outputs": "paris", "reference_outputs": "Paris"}
        assert build_evaluator("exact_match").evaluate(**pair).score == 0.0
        assert build_evaluator("unit:exact_match").evaluate(**pair).score == 1.0

    def test_its_parameters_are_checked_by_name(self, refuses):
        with refuses(RequestError):
            build_evaluator("unit:fuzzy_match", {"treshold": 0.5})
        with refuses(UnknownName):
            build_evaluator("unit:fuzy_match")

    def test_many_at_once_with_one_that_cannot_be_judged(self):
        evaluator = build_evaluator("unit:exact_match", {"key": "t"})
        items = [
            {"outputs": {"t": "a"}, "reference_outputs": {"t": "a"}},
            {"outputs": {}, "reference_outputs": "a"},
        ]
        good, bad = evaluator.evaluate_many(items)
        assert good.score == 1.0
        assert isinstance(bad, CannotJudge)

    def test_an_error_that_a_metric_only_mentions_is_still_an_error(self):
        @unit_metric("mentions_errors")
        class Mentions(BaseUnitMetric):
            def evaluate(self, golden, predicted):
                return [
                    UnitMetricResult(False, g, p, {"error": "it broke"})
                    for g, p in zip(golden, predicted, strict=True)
                ]

        with pytest.raises(CannotJudge, match="it broke"):
            build_evaluator("unit:mentions_errors").evaluate(outputs=1, reference_outputs=1)

    def test_an_evaluator_among_unit_metrics(self):
        metric = UnitMetricRegistry.get_metric("evaluator:edit_distance", threshold=0.5, case_sensitive=False)
        near, far = metric.evaluate(["KITTEN", "abc"], ["sitting", "xyz"])
        assert (near.correct, far.correct) == (True, False)
        assert near.metadata["validator"] == "evaluator:edit_distance"
        assert near.metadata["threshold"] == 0.5
        assert metric.get_metric_name() == "evaluator:edit_distance"

    def test_the_default_threshold_is_full_marks(self, refuses):
        assert judged("evaluator:exact_match", "a", "a").correct
        assert not judged("evaluator:edit_distance", "aaaa", "aaab").correct
        with refuses(RequestError):
            UnitMetricRegistry.get_metric("evaluator:exact_match", case_sensitiv=True)

    def test_an_output_that_cannot_be_judged_is_not_wrong(self, refuses):
        with refuses(CannotJudge):
            judged("evaluator:exact_match", None, "a")

    def test_an_evaluator_that_waits(self):
        assert judged("evaluator:embedding_similarity", "a dog", "a dog", threshold=0.99).correct


class TestDiscovery:
    METRIC = """
from karat.evaluators import BaseUnitMetric, UnitMetricResult, unit_metric

@unit_metric("{name}")
class Found(BaseUnitMetric):
    def evaluate(self, golden, predicted):
        return [UnitMetricResult(True, g, p) for g, p in zip(golden, predicted)]
"""

    def test_a_folder_named_by_the_user(self, tmp_path):
        (tmp_path / "mine.py").write_text(self.METRIC.format(name="found_in_folder"))
        (tmp_path / "other.py").write_text("raise SystemExit('a program beside the metrics')")
        (tmp_path / "_private.py").write_text(self.METRIC.format(name="not_found"))
        assert discover(tmp_path) == ["found_in_folder"]
        assert discover(tmp_path) == []
        assert judged("found_in_folder", 1, 2).correct

    def test_beside_a_task(self, tmp_path):
        task = tmp_path / "graph_config.yaml"
        task.write_text("graph_config: {}")
        (tmp_path / "beside.py").write_text(self.METRIC.format(name="found_beside"))
        (tmp_path / "unit_metrics").mkdir()
        (tmp_path / "unit_metrics" / "below.py").write_text(self.METRIC.format(name="found_below"))
        assert discover(task) == ["found_below", "found_beside"]

    def test_mistakes_name_the_file(self, tmp_path, refuses):
        with pytest.raises(RequestError, match="no folder"):
            discover(tmp_path / "nowhere")
        (tmp_path / "broken.py").write_text(self.METRIC.format(name="x") + "\n1 / 0\n")
        with refuses(RequestError):
            discover(tmp_path)


@pytest.mark.parametrize("threshold", [2, -0.1, math.nan, True])
def test_an_evaluators_threshold_is_a_score(threshold, refuses):
    with refuses(RequestError):
        UnitMetricRegistry.get_metric("evaluator:exact_match", threshold=threshold)


def test_a_file_that_imports_the_seeds_names_is_discovered(tmp_path):
    (tmp_path / "length.py").write_text(
        "from sygra.core.eval.metrics.unit_metrics.base_unit_metric import BaseUnitMetric\n"
        "from sygra.core.eval.metrics.unit_metrics.unit_metric_registry import unit_metric\n"
        "from sygra.core.eval.metrics.unit_metrics.unit_metric_result import UnitMetricResult\n"
        "@unit_metric('discovered_length')\n"
        "class Length(BaseUnitMetric):\n"
        "    def evaluate(self, golden, predicted):\n"
        "        return [UnitMetricResult(len(g) == len(p), g, p) for g, p in zip(golden, predicted)]\n"
    )
    assert discover(tmp_path) == ["discovered_length"]
    assert judged("discovered_length", "abc", "xyz").correct is True


def test_the_seeds_modules_with_only_the_package_name_changed():
    from karat.core.eval.metrics.base_metric_metadata import BaseMetricMetadata
    from karat.core.eval.metrics.unit_metrics.base_unit_metric import BaseUnitMetric as Base
    from karat.core.eval.metrics.unit_metrics.unit_metric_registry import UnitMetricRegistry as Metrics

    assert Base is BaseUnitMetric
    assert Metrics is UnitMetricRegistry
    assert BaseMetricMetadata.__module__.startswith("karat.")
    with pytest.raises(ModuleNotFoundError, match=r"karat\.core\.nothing"):
        __import__("karat.core.nothing")


@pytest.mark.parametrize(
    ("name", "predicted"),
    [
        ("action_within_bbox", {"tool": "click", "x": 1, "y": 1}),
        ("typed_value_match", {"tool": "type", "text": "a"}),
        ("scroll_direction", {"tool": "scroll", "direction": "up"}),
        ("scroll_amount", {"tool": "scroll", "amount": 10}),
    ],
)
def test_another_tool_is_wrong_with_any_arguments(name, predicted, says):
    metric = UnitMetricRegistry.get_metric(name)
    [result] = metric.evaluate([{"tool": "Wait", "seconds": 3}], [predicted])
    assert not result.correct
    assert (set(result.metadata), result.metadata["validator"]) == ({"validator", "reason"}, name)
    says(result.metadata["reason"])
    with pytest.raises(CannotJudge):  # the same tool, and nothing to compare with
        metric.evaluate([{"tool": predicted["tool"]}], [predicted])


def test_keys_that_are_not_text_are_written_as_json_writes_them():
    told = UnitMetricResult(True, {1: "a", None: "b", (1, 2): "c"}, {"\ud800": 1}).to_dict()
    assert told["golden"] == {"1": "a", "null": "b", "[1,2]": "c"}
    assert json.loads(json.dumps(told)) == told
