"""Whether an output is JSON, and whether it is the JSON that was asked for."""

from __future__ import annotations

import contextlib
import json
import math

import pydantic
import pytest

from karat import json_schema
from karat.errors import RequestError
from karat.evaluators import CannotJudge, ExactMatch, JSONSchemaMatch, JSONValid, SetMatch
from karat.evaluators._values import NotJSON, UnreadableJSON, parse_json

FENCED = 'Here it is:\n```json\n{"a": 1}\n```\nThat is all.'
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_3 = "http://json-schema.org/draft-03/schema#"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class TestJSONValid:
    @pytest.mark.parametrize("text", ['{"a": [1, 2.5, null, "x"]}', "[]", '"text"', "3", " true ", "null"])
    def test_valid(self, text):
        assert JSONValid().evaluate(outputs=text).score == 1.0

    @pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[1,]", "NaN", "[Infinity]", "hello", FENCED])
    def test_not_valid(self, text, says):
        result = JSONValid().evaluate(outputs=text)
        assert (result.score, result.value) == (0.0, False)
        says(result.comment.partition(":")[0])

    def test_the_comment_says_where(self, says):
        says(JSONValid().evaluate(outputs='{"a": 1,\n  b}').comment)

    def test_fenced_json_is_an_option_which_the_comment_names(self):
        assert JSONValid(fenced=True).evaluate(outputs=FENCED).score == 1.0
        assert "fenced accepts" in JSONValid().evaluate(outputs=FENCED).comment
        assert JSONValid(fenced=True).evaluate(outputs=FENCED + "\n" + FENCED).score == 0.0
        assert JSONValid(fenced=True).evaluate(outputs="```python\n1\n```").score == 0.0
        assert JSONValid(fenced=True).evaluate(outputs="~~~~\n[1]\n~~~~~").score == 1.0
        assert JSONValid(fenced=True).evaluate(outputs="```json\n{}").score == 0.0

    @pytest.mark.parametrize("value", [math.nan, -math.inf, {"a": [1, {"b": math.nan}]}])
    def test_parsed_values_that_json_has_no_word_for_cannot_be_judged(self, value):
        for evaluator in (JSONValid(), JSONSchemaMatch({})):
            with pytest.raises(CannotJudge, match="NaN"):
                evaluator.evaluate(outputs=value)

    def test_parsed_json_is_valid_and_nothing_is_not(self):
        assert JSONValid().evaluate(outputs={"a": 1}).score == 1.0
        assert JSONValid().evaluate(outputs=None).score == 0.0

    def test_types(self, refuses, says):
        assert JSONValid(types="object").evaluate(outputs="{}").score == 1.0
        result = JSONValid(types=["object", "array"]).evaluate(outputs="3")
        assert result.score == 0.0
        says(result.comment)
        with refuses(RequestError):
            JSONValid(types="objct")

    def test_long_texts_have_a_verdict(self):
        assert JSONValid().evaluate(outputs="[" * 200_000).score == 0.0
        assert JSONValid().evaluate(outputs="[" + "1," * 200_000 + "1]").score == 1.0

    @pytest.mark.parametrize(
        "text",
        [
            "[" * 100_000 + "]" * 100_000,
            '{"a":' * 50_000 + "1" + "}" * 50_000,
            '["]",' * 50_000 + "1" + "]" * 50_000,
            "9" * 10_000,
            f'{{"n": -{"9" * 10_000}}}',
        ],
        ids=["deep lists", "deep objects", "brackets in strings", "huge integer", "huge integer inside"],
    )
    def test_valid_json_that_cannot_be_read_is_an_error_and_not_a_zero(self, text, refuses):
        for evaluator in (
            JSONValid(),
            JSONValid(fenced=True),
            JSONSchemaMatch({}),
            JSONSchemaMatch({"type": "array"}),
        ):
            with refuses(CannotJudge):
                evaluator.evaluate(outputs=text)
        with refuses(CannotJudge):
            JSONValid(fenced=True).evaluate(outputs=f"```json\n{text}\n```")
        with refuses(CannotJudge):
            SetMatch().evaluate(outputs=text, reference_outputs=["a"])
        with refuses(CannotJudge):
            ExactMatch().evaluate(outputs=text, reference_outputs={"a": 1})

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("[" * 400 + "]" * 400, None),
            ("[" * 401 + "]" * 401, UnreadableJSON),
            ('{"a":' * 3_000 + "1" + "}" * 3_000, UnreadableJSON),
            ("[" * 20_000 + "]" * 20_000, UnreadableJSON),
            ("[" * 3_000 + "]" * 3_000 + " x", UnreadableJSON),
            ("[" * 20_000 + "]" * 20_000 + " x", UnreadableJSON),
            ("[" * 20 + "]" * 20 + " x" + "[]" * 500, NotJSON),
            ("[" * 5 + "x" + "[" * 500 + "]" * 505, NotJSON),
            ("[" * 3_000, NotJSON),
            ("[" * 20_000, NotJSON),
            ('["' + "[" * 3_000 + '"]', None),
        ],
        ids=range(11),
    )
    def test_the_depth_limit_does_not_depend_on_the_version_of_python(self, text, problem):
        with contextlib.nullcontext() if problem is None else pytest.raises(problem):
            parse_json(text)

    @pytest.mark.parametrize("depth", [100, 300, 399])
    def test_deep_values_are_compared(self, depth):
        deep, other = (json.loads("[" * depth + inside + "]" * depth) for inside in ("1", "2"))
        for given in (deep, json.dumps(deep)):
            assert ExactMatch().evaluate(outputs=given, reference_outputs=deep).score == 1.0
            assert ExactMatch().evaluate(outputs=given, reference_outputs=other).score == 0.0

    def test_a_path(self, refuses):
        assert JSONValid(path="body").evaluate(outputs={"body": "{}"}).score == 1.0
        with refuses(CannotJudge):
            JSONValid(path="body").evaluate(outputs={"boddy": "{}"})


class TestJSONSchemaMatch:
    def test_the_seed_example(self):
        assert JSONSchemaMatch(CITY).evaluate(outputs='{"city": "Paris"}').score == 1.0
        assert JSONSchemaMatch(CITY).evaluate(outputs={"city": "Paris"}).score == 1.0

    def test_violations_have_a_place(self, says):
        schema = {"type": "array", "items": CITY}
        result = JSONSchemaMatch(schema).evaluate(outputs=[{"city": 3}, {}])
        assert result.score == 0.0
        says(result.comment)
        assert [error["path"] for error in result.metadata["errors"]] == ["$[0].city", "$[1]"]

    def test_the_list_of_violations_is_bounded(self, says):
        result = JSONSchemaMatch({"items": {"type": "string"}}).evaluate(outputs=list(range(1_000)))
        assert len(result.metadata["errors"]) == 20
        says(result.comment)

    def test_violations_of_many_branches_are_bounded_together(self, says, monkeypatch):
        monkeypatch.setattr("karat.evaluators._structured.MAX_BRANCHES", 5_000)
        schema = {"items": {"oneOf": [{"const": -at} for at in range(1, 101)]}}
        result = JSONSchemaMatch(schema).evaluate(outputs=list(range(500)))
        assert (result.score, len(result.metadata["errors"])) == (0.0, 20)
        says(result.comment)
        nested = {"items": {"oneOf": [{"items": {"oneOf": schema["items"]["oneOf"]}}] * 10}}
        assert JSONSchemaMatch(nested).evaluate(outputs=[[0]]).score == 0.0

    def test_text_that_is_not_json_does_not_match(self):
        result = JSONSchemaMatch(CITY).evaluate(outputs="Paris")
        assert (result.score, result.metadata) == (0.0, {"errors": []})
        assert JSONSchemaMatch({}, fenced=True).evaluate(outputs=FENCED).score == 1.0
        assert JSONSchemaMatch({}).evaluate(outputs=None).score == 0.0

    def test_schemas_as_text_as_model_and_as_bool(self):
        class Place(pydantic.BaseModel):
            city: str

        for schema in ('{"required": ["city"]}', Place):
            assert JSONSchemaMatch(schema).evaluate(outputs={"city": "x"}).score == 1.0
            assert JSONSchemaMatch(schema).evaluate(outputs={}).score == 0.0
        assert JSONSchemaMatch(True).evaluate(outputs=math.pi).score == 1.0

    def test_the_schema_given_is_not_changed_nor_kept(self):
        schema = {"required": ["city"]}
        evaluator = JSONSchemaMatch(schema)
        schema["required"].append("country")
        assert evaluator.evaluate(outputs={"city": "x"}).score == 1.0

    def test_references_are_resolved_inside_and_never_fetched(self, refuses):
        inside = {"$ref": "#/$defs/city", "$defs": {"city": {"type": "string"}}}
        assert JSONSchemaMatch(inside).evaluate(outputs='"x"').score == 1.0
        with refuses(CannotJudge):
            JSONSchemaMatch({"$ref": "http://localhost:9/x.json"}).evaluate(outputs="1")

    def test_formats_are_an_option(self):
        schema = {"type": "string", "format": "date"}
        assert JSONSchemaMatch(schema).evaluate(outputs='"no date"').score == 1.0
        assert JSONSchemaMatch(schema, formats=True).evaluate(outputs='"no date"').score == 0.0
        assert JSONSchemaMatch(schema, formats=True).evaluate(outputs='"2026-01-01"').score == 1.0

    def test_patterns_have_a_time_limit(self, refuses):
        slow = "^(a|aa)+$"
        text = "a" * 80 + "b"
        for schema, value in (
            ({"pattern": slow}, text),
            ({"patternProperties": {slow: True}}, {text: 1}),
            ({"additionalProperties": False, "patternProperties": {slow: True}}, {text: 1}),
        ):
            outputs = [value] if isinstance(value, str) else value
            schema = {"items": schema} if isinstance(value, str) else schema
            with refuses(CannotJudge):
                JSONSchemaMatch(schema, timeout=0.05).evaluate(outputs=outputs)

    @pytest.mark.parametrize("extra", [False, {"type": "number"}])
    def test_additional_properties_beside_patterns(self, extra):
        schema = {"properties": {"a": True}, "patternProperties": {"^x": True}, "additionalProperties": extra}
        evaluator = JSONSchemaMatch(schema)
        assert evaluator.evaluate(outputs={"a": "s", "xy": "s"}).score == 1.0
        assert evaluator.evaluate(outputs={"b": "s"}).score == 0.0

    def test_a_wrong_schema_is_refused_at_once(self, refuses):
        with refuses(RequestError):
            JSONSchemaMatch({"type": "objct"})
        with refuses(RequestError):
            JSONSchemaMatch("{")
        with refuses(RequestError):
            JSONSchemaMatch(3)


class TestMultipleOf:
    @pytest.mark.parametrize(("value", "of"), [(19.99, 0.01), (0.3, 0.1), (1e308, 0.01), (6, 3), (4.0, 2)])
    def test_decimals_are_taken_as_written(self, value, of):
        assert JSONSchemaMatch({"multipleOf": of}).evaluate(outputs=value).score == 1.0

    def test_values_that_are_not_multiples(self, says):
        result = JSONSchemaMatch({"multipleOf": 0.1}).evaluate(outputs=0.35)
        assert result.score == 0.0
        says(result.comment)


class TestFormats:
    @pytest.mark.parametrize(
        ("form", "text", "score"),
        [
            ("date-time", "2020-02-29T10:00:00Z", 1.0),
            ("date-time", "2020-02-29t10:00:60.123456789+02:00", 1.0),
            ("date-time", "2021-02-29T10:00:00Z", 0.0),
            ("date-time", "2020-02-29T10:00:00", 0.0),
            ("date-time", "soon", 0.0),
            ("time", "10:00:00Z", 1.0),
            ("time", "25:00:00Z", 0.0),
            ("date", "2020-13-01", 0.0),
            ("my-own", "anything", 1.0),
        ],
    )
    def test_checked_when_asked(self, form, text, score):
        assert JSONSchemaMatch({"format": form}, formats=True).evaluate(outputs=f'"{text}"').score == score
        assert JSONSchemaMatch({"format": form}).evaluate(outputs=f'"{text}"').score == 1.0

    def test_one_that_nothing_checks_is_refused_and_not_passed(self, refuses):
        import jsonschema

        if "uri" in jsonschema.FormatChecker.checkers:
            assert JSONSchemaMatch({"format": "uri"}, formats=True).evaluate(outputs='"a b"').score == 0.0
            return
        schema = {"properties": {"link": {"anyOf": [{"format": "uri"}]}}}
        with refuses(RequestError):
            JSONSchemaMatch(schema, formats=True)
        assert (
            JSONSchemaMatch({"default": {"format": "uri"}}, formats=True).evaluate(outputs="{}").score == 1.0
        )


def test_patterns_are_those_of_the_regex_package(refuses):
    letters = JSONSchemaMatch({"pattern": r"^\p{L}+$"})
    assert [letters.evaluate(outputs=f'"{text}"').score for text in ("\u00e9t\u00e9", "a1")] == [1.0, 0.0]
    with refuses(RequestError):
        JSONSchemaMatch({"properties": {"a": {"pattern": "("}}})


def test_a_reference_that_leads_out_of_the_schema_is_named(refuses):
    evaluator = JSONSchemaMatch({"$ref": "https://example.com/other.json"})
    with refuses(CannotJudge):
        evaluator.evaluate(outputs="{}")


@pytest.mark.parametrize(
    "text",
    [
        "  ",
        '{"a":"\n"}',
    ],
)
def test_mistakes_are_described(text, says):
    says(JSONValid().evaluate(outputs=text).comment)


@pytest.mark.parametrize(
    ("schema", "value", "score"),
    [
        ({"prefixItems": [{}], "unevaluatedItems": False}, [1], 1),
        ({"prefixItems": [{}], "unevaluatedItems": False}, [1, 2], 0),
        ({"prefixItems": [{}], "unevaluatedItems": {"type": "string"}}, [1, "a"], 1),
        ({"contains": {"type": "string"}, "unevaluatedItems": False}, ["a", 1], 0),
        ({"allOf": [{"prefixItems": [{}, {}]}], "unevaluatedItems": False}, [1, 2], 1),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {}}}, "unevaluatedItems": False}, [1, 2], 1),
        ({"if": {"maxItems": 1}, "then": {"items": {}}, "unevaluatedItems": False}, [1], 1),
        ({"if": {"maxItems": 1}, "else": {"prefixItems": [{}]}, "unevaluatedItems": False}, [1, 2], 0),
        ({"items": [{}], "unevaluatedItems": False, "$schema": DRAFT_2019}, [1, 2], 0),
        (
            {"items": [{}], "additionalItems": {}, "unevaluatedItems": False, "$schema": DRAFT_2019},
            [1, 2],
            1,
        ),
        ({"items": True, "unevaluatedItems": False, "$schema": DRAFT_2019}, [1, 2], 1),
        ({"prefixItems": [{}], "unevaluatedItems": False, "$schema": DRAFT_2019}, [1], 0),
        ({"unevaluatedItems": False, "$schema": DRAFT_7}, [1], 1),
        ({"unevaluatedProperties": False, "$schema": DRAFT_7}, {"a": 1}, 1),
        ({"multipleOf": 2, "$schema": DRAFT_3}, 3, 1),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1}, 1),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"b": 1}, 0),
        ({"properties": {"a": {}}, "unevaluatedProperties": {"type": "integer"}}, {"b": 1}, 1),
        ({"anyOf": [{"properties": {"a": {"const": 1}}}], "unevaluatedProperties": False}, {"a": 1}, 1),
        ({"not": {"properties": {"a": {}}}, "unevaluatedProperties": False}, {}, 0),
        (
            {"dependentSchemas": {"a": {"properties": {"b": {}}}}, "unevaluatedProperties": False},
            {"b": 1},
            0,
        ),
        ({"unevaluatedProperties": False, "patternProperties": {r"^\p{L}+$": {}}}, {"é": 1}, 1),
        ({"unevaluatedProperties": False, "patternProperties": {r"^\p{L}+$": {}}}, {"1": 1}, 0),
    ],
    ids=str,
)
def test_fields_outside_the_schema(schema, value, score):
    """As the JSON Schema test suite has it; patterns are those of `regex`, which end in time."""
    assert JSONSchemaMatch(schema).evaluate(outputs=value).score == score


def test_names_that_are_matched_by_slow_patterns_have_a_time_limit():
    schema = {"unevaluatedProperties": False, "patternProperties": {"^(a|aa)+$": {}}}
    with pytest.raises(CannotJudge):
        JSONSchemaMatch(schema, timeout=0.001).evaluate(outputs={"a" * 28 + "!": 1})


def test_many_slow_patterns_have_one_time_limit(monkeypatch):
    """The limits of single patterns do not add to that of the whole value."""
    monkeypatch.setattr(json_schema, "SECONDS", 0.2)
    times = []
    search = json_schema._found

    def found(pattern, text, seconds):
        times.append(json_schema._watch.left(seconds))
        return search(pattern, text, seconds)

    monkeypatch.setattr(json_schema, "_found", found)
    schema = {"items": {"pattern": "^(a|aa)+$"}}
    with pytest.raises(CannotJudge):
        JSONSchemaMatch(schema).evaluate(outputs=["a" * 60 + "!"])
    assert max(times) <= 0.2


@pytest.mark.parametrize("keyword", ["extends", "items"])
def test_a_reference_of_an_old_draft_does_not_crash(keyword):
    schema = {"$schema": "http://json-schema.org/draft-03/schema#", keyword: {"$ref": "http://127.0.0.1:1/a"}}
    with pytest.raises(CannotJudge):
        JSONSchemaMatch(schema).evaluate(outputs='["x"]' if keyword == "items" else '{"a": 1}')
