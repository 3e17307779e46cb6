"""No input makes an evaluator raise anything but its documented error, hang, or change what it was given."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.errors import KaratError, RequestError
from karat.evaluators import CannotJudge, RegexMatch, UnitMetricRegistry, build_evaluator

TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="ab \n\u00a0\u0301\ud800ﬁßİ", max_size=30),
    st.text(alphabet="0123456789.,-+eE% km$", max_size=25),
    st.text(alphabet="ABCD ()*.answeri:\\boxed{}", max_size=30),
    st.text(alphabet='{}[]":,truefalsn1 `~\n', max_size=40),
    st.sampled_from(
        ["None", "null", "NaN", "the answer is", "```json\n{}\n```", "9" * 5_000, "a" * 300, "[" * 5_000]
    ),
)
SCALARS = st.one_of(
    TEXTS,
    TEXTS,
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(4_400, 4_500).map(lambda digits: 10**digits),
    st.floats(),
    st.binary(max_size=5),
    st.builds(object),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["text", "answer", "x", "y", "bbox", "", "a.b"]) | TEXTS, inner, max_size=4
        ),
    ),
    max_leaves=8,
)
PAIRS = st.one_of(
    st.tuples(VALUES, VALUES), VALUES.map(lambda value: (value, value)), st.tuples(TEXTS, TEXTS)
)

SCHEMA = {
    "type": ["object", "array"],
    "items": {"pattern": "^(a|aa)+$"},
    "properties": {"x": {"format": "date"}},
}
CONFIGURATIONS = [
    ("exact_match", {}),
    ("exact_match", {"case_sensitive": False, "normalize_whitespace": True, "nfkc": True}),
    ("exact_match", {"path": "text", "any_of": True}),
    ("contains", {}),
    ("contains", {"substring": ["a", "b"], "mode": "any", "graded": True, "nfkc": True}),
    ("regex_match", {"pattern": "^(a|aa)+$", "timeout": 0.01}),
    ("edit_distance", {}),
    ("edit_distance", {"path": "answer"}),
    ("json_valid", {"fenced": True}),
    ("json_valid", {"path": "x.y"}),
    ("json_schema_match", {"schema": SCHEMA, "formats": True, "timeout": 0.01}),
    ("embedding_similarity", {}),
    ("numeric_match", {}),
    (
        "numeric_match",
        {"extract": "last", "units": {"km": 1000, "%": 0.01, "$": 1}, "relative_tolerance": 0.1},
    ),
    ("numeric_match", {"extract": "first", "thousands": " .", "decimal": ",", "units": ["k", "m"]}),
    ("set_match", {}),
    ("set_match", {"separator": ",", "duplicates": True, "case_sensitive": False}),
    ("token_f1", {"nfkc": True}),
    ("token_f1", {"tokens": "characters", "any_of": True}),
    ("bleu", {}),
    ("chrf", {"word_order": 2}),
    ("rouge", {}),
    ("choice_match", {}),
    ("choice_match", {"choices": ["1", "2", "none"], "path": "answer"}),
]
METRICS = [
    ("exact_match", {"key": "text"}),
    ("fuzzy_match", {}),
    ("action_within_bbox", {"tolerance": 1}),
    ("action_within_bbox", {"format": "xyxy", "golden_bbox_key": None}),
    ("typed_value_match", {}),
    ("scroll_direction", {"key": "a.b"}),
    ("scroll_amount", {"key": "x"}),
    ("evaluator:numeric_match", {}),
]
EXAMPLES, BATCH = 35, 10

patient = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
)


def test_there_are_ten_thousand_inputs():
    assert (len(CONFIGURATIONS) + len(METRICS)) * EXAMPLES * BATCH >= 10_000


@pytest.mark.parametrize(("name", "params"), CONFIGURATIONS)
def test_evaluators(name, params):
    evaluator = build_evaluator(name, params)

    @patient
    @given(st.lists(PAIRS, min_size=BATCH, max_size=BATCH))
    def holds(pairs):
        items = [{"outputs": output, "reference_outputs": reference} for output, reference in pairs]
        before = shown(items)
        judged = evaluator.evaluate_many(items)
        assert shown(items) == before
        assert len(judged) == len(items)
        for result in judged:
            if isinstance(result, Exception):
                assert isinstance(result, CannotJudge), repr(result)
                assert len(str(result)) < 600
                continue
            assert result.key == name
            assert result.score is not None
            assert 0 <= result.score <= 1
            assert 0 < len(result.comment) < 1_000
            json.dumps(msgspec.to_builtins(result), allow_nan=False).encode()
            msgspec.json.encode(result)

    holds()


@pytest.mark.parametrize(("name", "params"), METRICS)
def test_unit_metrics(name, params):
    metric = UnitMetricRegistry.get_metric(name, **params)

    @patient
    @given(st.lists(PAIRS, min_size=BATCH, max_size=BATCH))
    def holds(pairs):
        for golden, predicted in pairs:
            before = shown([golden, predicted])
            try:
                [result] = metric.evaluate([golden], [predicted])
            except CannotJudge:
                continue
            finally:
                assert shown([golden, predicted]) == before
            assert result.correct in (True, False)
            try:
                told = result.to_dict()
            except CannotJudge:
                continue  # golden or predicted holds a value that no JSON can stand for
            json.dumps(told, allow_nan=False, default=str)

    holds()


@patient
@given(st.text(alphabet="ab(|)*+?[]{}1,\\^$.", max_size=20), st.text(alphabet="ab", max_size=60))
def test_patterns(pattern, text):
    try:
        evaluator = RegexMatch(pattern, timeout=0.05)
    except RequestError:
        return
    try:
        result = evaluator.evaluate(outputs=text)
    except CannotJudge:
        return
    assert result.score in (0.0, 1.0)
    if "{" not in pattern:
        try:
            assert result.value == (re.search(pattern, text) is not None)
        except (re.error, FutureWarning):
            return


def test_every_error_is_of_karat():
    assert issubclass(CannotJudge, KaratError)


def shown(value) -> str:
    """A value in words, also where it holds numbers too long for `repr`."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(shown(each) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {shown(each)}' for key, each in value.items())}}}"
    return hex(value) if isinstance(value, int) else repr(value)
