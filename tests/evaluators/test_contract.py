"""What holds for every evaluator that needs no model: building, examples, params, batches, documentation."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import karat.evaluators
from karat.errors import RequestError, UnknownName
from karat.evaluators import (
    CannotJudge,
    Evaluator,
    ExactMatch,
    UnitMetricRegistry,
    build_evaluator,
    evaluators,
    list_evaluators,
    register_evaluator,
)
from karat.evaluators._base import FunctionEvaluator, resolve_evaluator
from karat.records import Result

NAMES = [
    "bleu",
    "choice_match",
    "chrf",
    "contains",
    "edit_distance",
    "embedding_similarity",
    "exact_match",
    "json_schema_match",
    "json_valid",
    "numeric_match",
    "regex_match",
    "rouge",
    "set_match",
    "token_f1",
]
TRAJECTORIES = [
    "graph_trajectory_match",
    "redundant_calls",
    "tool_call_accuracy",
    "tool_use",
    "trajectory_match",
]
EVERY = [*NAMES, *TRAJECTORIES]
METRICS = [
    "action_within_bbox",
    "exact_match",
    "fuzzy_match",
    "scroll_amount",
    "scroll_direction",
    "typed_value_match",
]
PAGE = Path(__file__).parents[2] / "docs" / "evaluators.md"
TRAJECTORY_PAGE = PAGE.with_name("trajectories.md")


def example_of(name):
    example = dict(evaluators.get(name).example)
    expected = example.pop("score")
    return build_evaluator(name, example.pop("params")), example, expected


def test_all_are_registered_with_description_and_parameters():
    listed = {entry["name"]: entry for entry in list_evaluators()}
    assert set(EVERY) <= set(listed)
    for name in EVERY:
        assert listed[name]["description"]
        assert "key" not in listed[name]["params"], "the key of results is said beside the parameters"
    assert listed["exact_match"]["params"]["case_sensitive"] == {"type": "bool", "default": True}


@pytest.mark.parametrize("name", EVERY)
def test_the_example_gives_its_score_and_changes_nothing(name):
    evaluator, example, expected = example_of(name)
    before = copy.deepcopy(example)
    result = evaluator.evaluate(**example)
    assert isinstance(result, Result)
    assert result.key == name
    assert result.score == pytest.approx(expected)
    assert result.comment
    assert result.error is None
    assert example == before


@pytest.mark.parametrize("name", EVERY)
def test_one_by_one_many_at_once_and_awaited_agree(name):
    evaluator, example, _ = example_of(name)
    item = {"outputs": None, "reference_outputs": None, **example}
    one = evaluator.evaluate(**item)
    assert evaluator.evaluate_many([item, item]) == [one, one]
    assert asyncio.run(evaluator.evaluate_async(**item)) == one
    assert evaluator.evaluate_many([]) == []


@pytest.mark.parametrize("name", EVERY)
def test_params_are_json_and_build_the_same_again(name):
    evaluator, example, _ = example_of(name)
    params = json.loads(json.dumps(evaluator.params))
    again = build_evaluator(name, params)
    assert again.params == evaluator.params
    assert again.configuration() == evaluator.params
    assert again.evaluate(**example) == evaluator.evaluate(**example)


@pytest.mark.parametrize("name", EVERY)
def test_a_mistyped_parameter_names_the_nearest(name):
    parameter = max(evaluators.describe(name)["params"], key=len)
    mistyped = parameter[:-2] + parameter[:-3:-1]
    with pytest.raises(RequestError, match=f"'{mistyped}': .*'{parameter}'"):
        build_evaluator(name, {mistyped: "x"})


@pytest.mark.parametrize(
    "name", sorted(set(NAMES) - {"contains", "regex_match", "json_valid", "json_schema_match"})
)
def test_without_a_reference_there_is_no_score(name):
    evaluator, example, _ = example_of(name)
    with pytest.raises(CannotJudge):
        evaluator.evaluate(outputs=example["outputs"])
    [error] = evaluator.evaluate_many([{"outputs": example["outputs"]}])
    assert isinstance(error, CannotJudge)


@pytest.mark.parametrize("name", EVERY)
def test_flags_are_true_or_false_and_nothing_like_it(name):
    part = evaluators.describe(name)["params"]
    flags = [each for each, about in part.items() if isinstance(about.get("default"), bool)]
    params = dict(evaluators.get(name).example["params"])
    for flag in flags:
        with pytest.raises(RequestError, match=f"{flag} .*'yes'"):
            build_evaluator(name, {**params, flag: "yes"})


def test_building_by_name_with_parameters_and_key(refuses):
    evaluator = build_evaluator("exact_match", {"case_sensitive": False}, key="close")
    assert evaluator.evaluate(outputs="A", reference_outputs="a").key == "close"
    assert evaluator.evaluate_many([{"outputs": "A", "reference_outputs": "a"}])[0].key == "close"
    with refuses(UnknownName):
        build_evaluator("exact_mach")
    with refuses(RequestError):
        build_evaluator("regex_match")


def test_registering_ones_own():
    @register_evaluator("shouts")
    class Shouts(Evaluator):
        """Whether the output is in capitals."""

        name = "shouts"

        def evaluate(self, *, outputs, **context):
            return Result(self.key, float(outputs.isupper()), comment="looked at the case")

    assert build_evaluator("shouts").evaluate(outputs="HEY").score == 1.0
    assert "shouts" in [entry["name"] for entry in list_evaluators()]
    with pytest.raises(RequestError, match="already registered"):
        register_evaluator("shouts")(ExactMatch)


def test_every_public_name_can_be_imported():
    for name in karat.evaluators.__all__:
        assert getattr(karat.evaluators, name) is not None


def test_importing_the_package_is_light():
    heavy = ["numpy", "sacrebleu", "rouge_score", "nltk", "wordllama", "jsonschema", "rapidfuzz", "aiohttp"]
    told = f"print([name for name in {heavy} if name in sys.modules])"
    for work in (
        "import karat.evaluators",
        "from karat.evaluators import list_evaluators; list_evaluators()",
    ):
        program = f"import sys; {work}; {told}"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", METRICS)
def test_the_example_of_a_unit_metric(name):
    example = UnitMetricRegistry.get_metric_class(name).example
    metric = UnitMetricRegistry.get_metric(name, **example["params"])
    results = metric.evaluate(example["golden"], example["predicted"])
    assert [result.correct for result in results] == example["correct"]
    assert all(result.metadata["validator"] == name for result in results)


def test_every_name_and_parameter_is_documented():
    page = PAGE.read_text(encoding="utf-8")
    trajectory_page = TRAJECTORY_PAGE.read_text(encoding="utf-8")
    for name in EVERY:
        where = trajectory_page if name in TRAJECTORIES else page
        assert f"`{name}`" in where
        for parameter in evaluators.describe(name)["params"]:
            assert f"`{parameter}`" in where, f"{parameter} of {name}"
    for entry in UnitMetricRegistry.describe():
        if entry["from"].startswith("karat."):
            assert f"`{entry['name']}`" in page
            for parameter in entry["params"]:
                assert f"`{parameter}`" in page, f"{parameter} of {entry['name']}"


def test_the_yaml_of_the_page_builds():
    blocks = TRAJECTORY_PAGE.read_text(encoding="utf-8").split("```yaml\n")[1:]
    assert blocks
    for block in blocks:
        for spec in yaml.safe_load(block.partition("```")[0])["evaluators"]:
            assert resolve_evaluator(spec)[2].key == spec["key"]


@pytest.mark.parametrize(
    "arguments",
    [
        (None,),
        (3,),
        ("exact_match", ["strip"]),
        ("exact_match", {1: 2}),
        ("exact_match", {}, 3),
    ],
)
def test_a_malformed_http_request_gets_a_sentence(arguments, refuses):
    with refuses(RequestError):
        build_evaluator(*arguments)


def test_the_yaml_form_is_checked_in_the_same_way(refuses):
    with refuses(RequestError):
        resolve_evaluator({"name": "exact_match", "params": ["strip"]})


def test_a_unit_metric_among_evaluators_is_refused_with_its_spelling(refuses):
    with refuses(RequestError):
        build_evaluator("karat.graph.metrics._unit_metrics.TypedValueMatchMetric")


def test_a_function_with_keyword_arguments_gets_its_named_parameters():
    seen = {}

    def judge(outputs, expected, **rest):
        seen.update(rest)
        return outputs == expected

    assert resolve_evaluator(judge)[2].evaluate(outputs=1, reference_outputs=1, inputs=2).score == 1.0
    assert seen == {"reference_outputs": 1, "inputs": 2}


def test_a_function_that_returns_several_scores_is_refused_with_the_fix(refuses) -> None:
    """Stored as a value without a score, they would be no number in any report."""

    def marks(outputs: str) -> dict[str, float]:
        return {"fluency": 1, "accuracy": 0.5}

    with refuses(TypeError):
        FunctionEvaluator(marks).evaluate(outputs="text")
