"""Unit metrics that compare values: equal, or similar enough."""

from __future__ import annotations

from typing import Any, ClassVar

from karat.errors import CannotJudge
from karat.evaluators import ParameterCheck, TextRules, plain, same, text_of
from karat.graph.metrics._unit import (
    BaseUnitMetric,
    UnitMetricResult,
    check_lengths,
    golden_value,
    predicted_value,
    unit_metric,
)

MAX_LENGTH = 100_000
"""Longer texts are not compared for similarity: the time grows with the product of the lengths."""


def golden_text(value: object, at: int, who: str) -> str:
    """A golden value as text; null has none."""
    text = text_of(value, f"{who}: golden[{at}]")
    if text is None:
        raise CannotJudge(f"{who}: golden[{at}] is null, there is no text to compare with")
    return text


def similarity(golden: str, predicted: str, who: str) -> float:
    """2 · common / total characters, common being the longest common subsequence; 1 for two empty texts."""
    from rapidfuzz.distance import Indel

    longer = max(len(golden), len(predicted))
    if longer > MAX_LENGTH:
        raise CannotJudge(
            f"{who}: a text of {longer} characters is too long to be compared, {MAX_LENGTH} is the most"
        )
    return Indel.normalized_similarity(golden, predicted)


@unit_metric("exact_match")
class ExactMatchMetric(BaseUnitMetric):
    """Whether the predicted value is the golden one; case and runs of whitespace do not count by default."""

    name: ClassVar[str] = "exact_match"
    example: ClassVar[dict[str, Any]] = {
        "params": {"key": "text"},
        "golden": [{"text": "Paris"}],
        "predicted": [{"text": "paris"}],
        "correct": [True],
    }

    def __init__(
        self, key: str | None = None, case_sensitive: bool = False, normalize_whitespace: bool = True
    ) -> None:
        super().__init__(key=key, case_sensitive=case_sensitive, normalize_whitespace=normalize_whitespace)

    def validate_config(self) -> None:
        check = ParameterCheck(self.name)
        self.key = check.path("key", self.config["key"])
        self.case_sensitive = check.flag("case_sensitive", self.config["case_sensitive"])
        collapse = check.flag("normalize_whitespace", self.config["normalize_whitespace"])
        rules = TextRules(case_sensitive=self.case_sensitive, normalize_whitespace=collapse)
        self._normalise = rules.normaliser()

    def evaluate(self, golden: list[Any], predicted: list[Any]) -> list[UnitMetricResult]:
        check_lengths(golden, predicted, self.name)
        results = []
        for at, (expected, given) in enumerate(zip(golden, predicted, strict=True)):
            want = golden_value(expected, self.key, at, self.name)
            have = predicted_value(given, self.key, at, self.name)
            if type(want) is not str or type(have) is not str:
                want, have = plain(want, f"golden[{at}]"), plain(have, f"predicted[{at}]")
            metadata = {"validator": self.name, "case_sensitive": self.case_sensitive}
            results.append(UnitMetricResult(same(want, have, self._normalise), expected, given, metadata))
        return results


@unit_metric("fuzzy_match")
class FuzzyMatchMetric(BaseUnitMetric):
    """Whether the predicted text is similar enough to the golden one."""

    name: ClassVar[str] = "fuzzy_match"
    example: ClassVar[dict[str, Any]] = {
        "params": {"key": "text", "threshold": 0.8},
        "golden": [{"text": "Paris"}],
        "predicted": [{"text": "Pariss"}],
        "correct": [True],
    }

    def __init__(self, key: str | None = None, threshold: float = 0.8, case_sensitive: bool = False) -> None:
        super().__init__(key=key, threshold=threshold, case_sensitive=case_sensitive)

    def validate_config(self) -> None:
        check = ParameterCheck(self.name)
        self.key = check.path("key", self.config["key"])
        self.threshold = check.number("threshold", self.config["threshold"], 0.0, 1.0)
        sensitive = check.flag("case_sensitive", self.config["case_sensitive"])
        self._normalise = TextRules(case_sensitive=sensitive).normaliser()

    def evaluate(self, golden: list[Any], predicted: list[Any]) -> list[UnitMetricResult]:
        check_lengths(golden, predicted, self.name)
        results = []
        for at, (expected, given) in enumerate(zip(golden, predicted, strict=True)):
            want = golden_text(golden_value(expected, self.key, at, self.name), at, self.name)
            have = text_of(predicted_value(given, self.key, at, self.name), f"predicted[{at}]")
            close = (
                0.0 if have is None else similarity(self._normalise(want), self._normalise(have), self.name)
            )
            metadata = {"validator": self.name, "similarity": close, "threshold": self.threshold}
            if have is None:
                metadata["reason"] = "nothing was predicted"
            correct = have is not None and close >= self.threshold
            results.append(UnitMetricResult(correct, expected, given, metadata))
        return results
