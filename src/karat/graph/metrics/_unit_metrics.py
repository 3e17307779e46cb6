"""karat's own unit metrics: values that are equal or similar, and actions in a graphical interface."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any, ClassVar

from karat.errors import CannotJudge, clip
from karat.evaluators import ParameterCheck, TextRules, plain, same, text_of, value_at
from karat.graph.metrics._unit import (
    BaseUnitMetric,
    UnitMetricResult,
    check_lengths,
    golden_value,
    predicted_value,
    unit_metric,
)

MAX_DIFFERENCES = 50
MAX_COMPARED = 5_000
"""Texts longer than this have their similarity, but no list of differences, in the metadata."""

EXACT = Context(prec=60, Emax=999_999, Emin=-999_999, traps=[])
"""Percentages of numbers as they are written: 0.1 + 0.2 is 0.3."""


def number(value: object) -> float | None:
    """A finite number, also one written as text; None for anything else (true is not 1)."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    if isinstance(value, str) and "_" in value:
        return None  # Python reads 1_0 as ten
    return read if math.isfinite(read) else None


class _ActionMetric(BaseUnitMetric):
    """Base of metrics of actions: if both sides name their `tool`, another tool is wrong whatever its arguments."""

    def evaluate(self, golden: list[Any], predicted: list[Any]) -> list[UnitMetricResult]:
        check_lengths(golden, predicted, self.name)
        results = []
        for at, (expected, given) in enumerate(zip(golden, predicted, strict=True)):
            want, have = _tool(expected), _tool(given)
            if None in (want, have) or want == have:
                correct, detail = self._judge(expected, given, at)
            else:
                correct, detail = False, {"reason": f"the tool is {clip(have)}, not {clip(want)}"}
            results.append(UnitMetricResult(correct, expected, given, {"validator": self.name, **detail}))
        return results

    @abstractmethod
    def _judge(self, expected: Any, given: Any, at: int) -> tuple[bool, dict[str, Any]]:
        """Whether element `at` is right, and what led to it."""


def _tool(action: Any) -> str | None:
    """The tool that an action names, if it does."""
    named = action.get("tool") if isinstance(action, Mapping) else None
    return named.strip().lower() if isinstance(named, str) else None


@unit_metric("action_within_bbox")
class ActionWithinBboxMetric(_ActionMetric):
    """Whether the predicted point lies within the golden box, its edges included.

    A box is an object with x, y, width and height, unless `format` is given: `xywh` (also as a list
    of four) or `xyxy` (`[x1, y1, x2, y2]`, or an object with these). `tolerance` widens it by that many
    pixels on every side. A plain prediction is a pair `[x, y]`.
    """

    name: ClassVar[str] = "action_within_bbox"
    example: ClassVar[dict[str, Any]] = {
        "params": {"tolerance": 5},
        "golden": [{"bbox": {"x": 10, "y": 10, "width": 100, "height": 20}}],
        "predicted": [{"x": 113, "y": 20}],
        "correct": [True],
    }

    def __init__(
        self,
        tolerance: float = 0.0,
        format: str | None = None,
        predicted_x_key: str = "x",
        predicted_y_key: str = "y",
        golden_bbox_key: str | None = "bbox",
    ) -> None:
        super().__init__(
            tolerance=tolerance,
            format=format,
            predicted_x_key=predicted_x_key,
            predicted_y_key=predicted_y_key,
            golden_bbox_key=golden_bbox_key,
        )

    def validate_config(self) -> None:
        check = ParameterCheck(self.name)
        self.tolerance = check.number("tolerance", self.config["tolerance"], low=0.0)
        self.format = self.config["format"]
        if self.format is not None:
            check.choice("format", self.format, ["xywh", "xyxy"])
        self.x_key = check.text("predicted_x_key", self.config["predicted_x_key"])
        self.y_key = check.text("predicted_y_key", self.config["predicted_y_key"])
        self.bbox_key = check.path("golden_bbox_key", self.config["golden_bbox_key"])

    def _judge(self, expected: Any, given: Any, at: int) -> tuple[bool, dict[str, Any]]:
        left, top, right, bottom = self._box(expected, at)
        x, y = self._point(given, at)
        detail: dict[str, Any] = {
            "predicted_x_key": self.x_key,
            "predicted_y_key": self.y_key,
            "golden_bbox_key": self.bbox_key,
            "tolerance": self.tolerance,
        }
        if x is None or y is None:
            return False, {**detail, "reason": "the predicted point is not two numbers"}
        # along the axis where it is farthest, for that is what the tolerance allows on every side
        detail["distance"] = max(0.0, left - x, x - right, top - y, y - bottom)
        slack = self.tolerance
        return left - slack <= x <= right + slack and top - slack <= y <= bottom + slack, detail

    def _point(self, given: Any, at: int) -> tuple[float | None, float | None]:
        given = plain(given, f"{self.name}: predicted[{at}]")
        if isinstance(given, list) and len(given) == 2:
            return number(given[0]), number(given[1])
        x = predicted_value(given, self.x_key, at, self.name)
        y = predicted_value(given, self.y_key, at, self.name)
        return number(x), number(y)

    def _box(self, expected: Any, at: int) -> tuple[float, float, float, float]:
        what = f"{self.name}: golden[{at}]"
        expected = plain(expected, what)
        key = None if isinstance(expected, list) else self.bbox_key
        box = golden_value(expected, key, at, self.name)
        if key is not None:
            what += f": its {key!r}"
        names = ("x1", "y1", "x2", "y2") if self.format == "xyxy" else ("x", "y", "width", "height")
        if isinstance(box, list):
            if self.format is None:
                raise CannotJudge(f"{what} is a list: set format to xywh or xyxy")
            parts = box
        elif isinstance(box, dict):
            parts = [value_at(box, name, what) for name in names]
        else:
            raise CannotJudge(f"{what} is not a box: {clip(box)}")
        read = [number(part) for part in parts]
        if len(read) != 4 or None in read:
            raise CannotJudge(f"{what} is not a box of four numbers ({', '.join(names)}): {clip(box)}")
        left, top, third, fourth = (part or 0.0 for part in read)
        right, bottom = (third, fourth) if self.format == "xyxy" else (left + third, top + fourth)
        if right < left or bottom < top:
            raise CannotJudge(f"{what} is a box that ends before it begins ({', '.join(names)}): {clip(box)}")
        return left, top, right, bottom


@unit_metric("typed_value_match")
class TypedValueMatchMetric(_ActionMetric):
    """Whether the typed text is the golden one, or similar enough to it.

    `fuzzy_match_threshold` is the least similarity accepted; None accepts the exact text alone.
    """

    name: ClassVar[str] = "typed_value_match"
    example: ClassVar[dict[str, Any]] = {
        "params": {},
        "golden": [{"text": "hello world"}],
        "predicted": [{"text": "Hello  world"}],
        "correct": [True],
    }

    def __init__(
        self,
        case_sensitive: bool = False,
        normalize_whitespace: bool = True,
        fuzzy_match_threshold: float | None = 0.8,
        key: str | None = None,
        golden_text_key: str = "text",
        predicted_text_key: str = "text",
    ) -> None:
        super().__init__(
            case_sensitive=case_sensitive,
            normalize_whitespace=normalize_whitespace,
            fuzzy_match_threshold=fuzzy_match_threshold,
            key=key,
            golden_text_key=golden_text_key,
            predicted_text_key=predicted_text_key,
        )

    def validate_config(self) -> None:
        check = ParameterCheck(self.name)
        rules = TextRules(
            case_sensitive=check.flag("case_sensitive", self.config["case_sensitive"]),
            normalize_whitespace=check.flag("normalize_whitespace", self.config["normalize_whitespace"]),
        )
        self._normalise = rules.normaliser()
        threshold = self.config["fuzzy_match_threshold"]
        self.threshold = (
            None if threshold is None else check.number("fuzzy_match_threshold", threshold, 0.0, 1.0)
        )
        self.golden_key, self.predicted_key = _keys(self.config, "text", check)

    def _judge(self, expected: Any, given: Any, at: int) -> tuple[bool, dict[str, Any]]:
        want = golden_text(golden_value(expected, self.golden_key, at, self.name), at, self.name)
        have = text_of(predicted_value(given, self.predicted_key, at, self.name), f"predicted[{at}]")
        detail: dict[str, Any] = {
            "golden_text": want,
            "predicted_text": have,
            "exact_match": False,
            "fuzzy_match": False,
            "similarity": 0.0,
            "threshold": self.threshold,
            "differences": [],
        }
        if have is None:
            detail["reason"] = "nothing was typed"
        else:
            detail.update(self._compare(self._normalise(want), self._normalise(have)))
        detail["similarity_score"] = detail["similarity"]
        return detail["exact_match"] or detail["fuzzy_match"], detail

    def _compare(self, want: str, have: str) -> dict[str, Any]:
        exact = want == have
        close = 1.0 if exact else similarity(want, have, self.name)
        return {
            "exact_match": exact,
            "fuzzy_match": self.threshold is not None and close >= self.threshold,
            "similarity": close,
            "differences": [] if exact else differences(want, have),
        }


def differences(golden: str, predicted: str) -> list[dict[str, str]]:
    """List insertions, deletions and replacements in order: at most `MAX_DIFFERENCES`, none for long texts."""
    from rapidfuzz.distance import Levenshtein

    if max(len(golden), len(predicted)) > MAX_COMPARED:
        return []
    out: list[dict[str, str]] = []
    for step in Levenshtein.opcodes(golden, predicted):
        if step.tag == "equal":
            continue
        if len(out) == MAX_DIFFERENCES:
            break
        was, became = golden[step.src_start : step.src_end], predicted[step.dest_start : step.dest_end]
        out.append({"operation": step.tag, "golden": was[:200], "predicted": became[:200]})
    return out


def _keys(config: dict[str, Any], word: str, check: ParameterCheck) -> tuple[str, str]:
    """The keys of both sides: `key` for both, or each its own."""
    key = check.path("key", config["key"])
    if key is not None:
        return key, key
    golden, predicted = f"golden_{word}_key", f"predicted_{word}_key"
    return check.text(golden, config[golden]), check.text(predicted, config[predicted])


class _ScrollMetric(_ActionMetric):
    """Base of both scroll metrics: one value on each side, compared by the subclass."""

    golden_key: str
    predicted_key: str

    def _judge(self, expected: Any, given: Any, at: int) -> tuple[bool, dict[str, Any]]:
        want = golden_value(expected, self.golden_key, at, self.name)
        have = predicted_value(given, self.predicted_key, at, self.name)
        return self._compare(want, have, f"{self.name}: golden[{at}]")

    @abstractmethod
    def _compare(self, want: Any, have: Any, what: str) -> tuple[bool, dict[str, Any]]:
        """Whether the values agree, and by how much; `what` is the golden one in messages."""


@unit_metric("scroll_direction")
class ScrollDirectionMetric(_ScrollMetric):
    """Whether the predicted scroll goes in the golden direction: up, down, left or right."""

    name: ClassVar[str] = "scroll_direction"
    example: ClassVar[dict[str, Any]] = {
        "params": {},
        "golden": [{"direction": "down"}],
        "predicted": [{"direction": "up"}],
        "correct": [False],
    }

    def __init__(
        self,
        key: str | None = None,
        golden_direction_key: str = "direction",
        predicted_direction_key: str = "direction",
    ) -> None:
        super().__init__(
            key=key,
            golden_direction_key=golden_direction_key,
            predicted_direction_key=predicted_direction_key,
        )

    def validate_config(self) -> None:
        self.golden_key, self.predicted_key = _keys(self.config, "direction", ParameterCheck(self.name))

    def _compare(self, want: Any, have: Any, what: str) -> tuple[bool, dict[str, Any]]:
        known = ("up", "down", "left", "right")
        expected = want.strip().lower() if isinstance(want, str) else None
        if expected not in known:
            raise CannotJudge(f"{what} is {clip(want)}, not a direction: {', '.join(known)}")
        given = have.strip().lower() if isinstance(have, str) else None
        detail: dict[str, Any] = {"golden_direction": expected, "predicted_direction": have}
        if given in known:
            detail["predicted_direction"] = given
        else:
            detail["reason"] = f"the prediction is not a direction: {clip(have)}"
            detail["predicted_direction"] = None
        return given == expected, detail


@unit_metric("scroll_amount")
class ScrollAmountMetric(_ScrollMetric):
    """Whether the predicted scroll amount is within a percentage of the golden one.

    Where the golden amount is 0, up to `scroll_threshold` is accepted.
    """

    name: ClassVar[str] = "scroll_amount"
    example: ClassVar[dict[str, Any]] = {
        "params": {"tolerance_percent": 20},
        "golden": [{"amount": 100}],
        "predicted": [{"amount": "115"}],
        "correct": [True],
    }

    def __init__(
        self,
        tolerance_percent: float = 20.0,
        scroll_threshold: float = 10.0,
        key: str | None = None,
        golden_amount_key: str = "amount",
        predicted_amount_key: str = "amount",
    ) -> None:
        super().__init__(
            tolerance_percent=tolerance_percent,
            scroll_threshold=scroll_threshold,
            key=key,
            golden_amount_key=golden_amount_key,
            predicted_amount_key=predicted_amount_key,
        )

    def validate_config(self) -> None:
        check = ParameterCheck(self.name)
        self.tolerance = check.number("tolerance_percent", self.config["tolerance_percent"], low=0.0)
        self.threshold = check.number("scroll_threshold", self.config["scroll_threshold"], low=0.0)
        self.golden_key, self.predicted_key = _keys(self.config, "amount", check)

    def _compare(self, want: Any, have: Any, what: str) -> tuple[bool, dict[str, Any]]:
        expected, given = number(want), number(have)
        if expected is None:
            raise CannotJudge(f"{what} is {clip(want)}, not a finite amount")
        detail: dict[str, Any] = {
            "golden_amount": expected,
            "predicted_amount": given,
            "difference": None,
            "difference_percent": None,
            "tolerance_percent": self.tolerance,
            "scroll_threshold": self.threshold,
        }
        correct = self._amount_matches(expected, given, detail)
        if given is None:
            detail["reason"] = f"the prediction is not a finite amount: {clip(have)}"
        # the names that SyGra's reports have for the same
        detail |= {"is_valid": correct, "tolerance_used": self.tolerance}
        detail |= {"golden_scroll_amount": expected, "predicted_scroll_amount": given}
        return correct, detail

    def _amount_matches(self, expected: float, given: float | None, detail: dict[str, Any]) -> bool:
        """Whether the amount is near enough; how far off it is goes into `detail`."""
        if given is None:
            return False
        difference = abs(expected - given)
        detail["difference"] = difference
        if expected == 0:
            return difference <= self.threshold
        # in decimals, as the numbers were written: 0.36 is 20 percent off 0.3, and nothing overflows
        off = EXACT.subtract(_decimal(expected), _decimal(given)).copy_abs()
        base = _decimal(expected).copy_abs()
        detail["difference_percent"] = float(EXACT.divide(EXACT.multiply(off, _decimal(100.0)), base))
        allowed = EXACT.multiply(base, _decimal(self.tolerance))
        return EXACT.multiply(off, _decimal(100.0)) <= allowed


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))


# Unit metrics that compare values: equal, or similar enough.

MAX_LENGTH = 100_000
"""Longer texts are not compared for similarity: the time grows with the product of the lengths."""


def golden_text(value: object, at: int, who: str) -> str:
    """A golden value as text; null has none."""
    text = text_of(value, f"{who}: golden[{at}]")
    if text is None:
        raise CannotJudge(f"{who}: golden[{at}] is null: there is no text to compare with")
    return text


def similarity(golden: str, predicted: str, who: str) -> float:
    """2 · common / total characters, common being the longest common subsequence; 1 for two empty texts."""
    from rapidfuzz.distance import Indel

    longer = max(len(golden), len(predicted))
    if longer > MAX_LENGTH:
        raise CannotJudge(
            f"{who}: a text of {longer} characters is too long to compare: at most {MAX_LENGTH}"
        )
    return Indel.normalized_similarity(golden, predicted)


def _compared_text(value: Any) -> str | None:
    """Return the compared value as text or JSON; None for null and for numbers without a JSON form."""
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (ValueError, RecursionError):
        return None


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
        self.normalize_whitespace = check.flag("normalize_whitespace", self.config["normalize_whitespace"])
        rules = TextRules(case_sensitive=self.case_sensitive, normalize_whitespace=self.normalize_whitespace)
        self._normalise = rules.normaliser()

    def evaluate(self, golden: list[Any], predicted: list[Any]) -> list[UnitMetricResult]:
        check_lengths(golden, predicted, self.name)
        results = []
        for at, (expected, given) in enumerate(zip(golden, predicted, strict=True)):
            want = golden_value(expected, self.key, at, self.name)
            have = predicted_value(given, self.key, at, self.name)
            if type(want) is not str or type(have) is not str:
                want, have = plain(want, f"golden[{at}]"), plain(have, f"predicted[{at}]")
            metadata = {
                "validator": self.name,
                "golden_text": _compared_text(want),
                "predicted_text": _compared_text(have),
                "case_sensitive": self.case_sensitive,
                "normalize_whitespace": self.normalize_whitespace,
            }
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
