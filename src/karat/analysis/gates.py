"""Gates for continuous integration: a run against a baseline with a margin, or against a threshold.

A gate holds when the interval of the difference (or of the metric), allowing for missing items, stays above minus the
margin (or the threshold). It fails when the interval stays below. Otherwise it is undecided, which is neither. Where
lower is better, a threshold is the most that the metric may be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from karat.errors import RequestError, UnknownName, did_you_mean, plural
from karat.evaluators._base import score_range, threshold_problem
from karat.formatting import Block, Heading, Table, interval, number
from karat.layout import Styled
from karat.records import MISSING_ATTEMPTS, WITH_MISSING, Estimate, EvaluatorSpec
from karat.stats._bounded_mean import BoundedMean
from karat.stats._distributions import critical
from karat.stats._proportions import share_limits
from karat.store.handles import Aggregation
from karat.store.run_labels import run_labels

Verdict = Literal["holds", "fails", "undecided"]

MOST_EXAMPLES = 10_000_000
"""Beyond this many examples a gate says that the difference is too close to the margin to be decided."""


class Limit(msgspec.Struct, frozen=True):
    """How much worse a metric may be."""

    metric: str
    margin: float


class Gate(msgspec.Struct, frozen=True):
    """The verdict on a limit for one run against the baseline."""

    metric: str
    margin: float
    baseline: str
    run: str
    verdict: Verdict
    reason: str
    examples_needed: int | None = None
    """About how many examples would decide it, if the difference stays as it is; None where it is unknown."""


class ThresholdGate(msgspec.Struct, frozen=True):
    """The verdict on a metric of one run against a threshold."""

    metric: str
    threshold: float
    better: Literal["higher", "lower"]
    """Where lower is better, the threshold is the most that the metric may be."""
    run: str | None
    value: float | None
    verdict: Verdict
    reason: str
    examples_needed: int | None = None
    """About how many examples would decide it, if the value stays as it is; None where it is unknown."""


EXIT_CODES: dict[Verdict | None, int] = {None: 0, "holds": 0, "fails": 1, "undecided": 4}
"""Of the command line, by the worst verdict."""


VERDICT_STYLES: dict[Verdict, str] = {"holds": "good", "fails": "bad", "undecided": "warning"}


SHARES = ("accuracy", "win_rate")
"""Metrics that always lie between 0 and 1."""


SCORE_METRICS = ("accuracy", "mean")
"""Aggregators whose estimates lie where the scores lie."""


def read_limit(text: str) -> Limit:
    """`accuracy:0.01`: the metric may be worse by at most 0.01; without a number, by nothing."""
    metric, colon, number = text.rpartition(":")
    if not colon:
        metric, number = text, "" if _NO_COLON.fullmatch(text) else "0"
    try:
        margin = float(number)
    except ValueError:
        margin = math.nan
    if metric and math.isnan(margin) and number.endswith("%"):
        raise RequestError(
            f"{text!r} is not a limit: write {metric}:{_share(number)}, margins are shares of 1"
        )
    if not metric or not (math.isfinite(margin) and margin >= 0):
        raise RequestError(f"{text!r} is not a limit: write METRIC:MARGIN, such as accuracy:0.01")
    return Limit(metric, margin)


_NO_COLON = re.compile(r"(.*?\s*[=<>]+\s*[\d.]+|(.*\s)?\d*\.\d+)\s*%?")
"""A margin that is written without the colon: `accuracy=0.01`, `accuracy 0.01`."""


def refuse_harmless(limit: Limit, evaluator: EvaluatorSpec) -> None:
    """Refuse a margin beyond the range of the metric, such as 5 for 5 %: the gate would always hold."""
    form = evaluator.usual_metric if limit.metric == evaluator.key else limit.metric.rpartition(" ")[2]
    low, high = (0.0, 1.0) if form == "accuracy" else score_range(evaluator)
    if low is None or high is None or limit.margin <= high - low:
        return
    fix = f"for {limit.margin:g} % write {limit.metric}:{limit.margin / 100:g}"
    raise RequestError(
        f"'{limit.metric}:{limit.margin:g}' is not a limit: {limit.metric} lies between {low:g} and {high:g}, so no"
        f" run can be that much worse; {fix if high - low == 1 and limit.margin < 100 else 'write a smaller margin'}"
    )


def _share(percent: str) -> str:
    """`5%` as a share: `0.05`."""
    try:
        return f"{float(percent.rstrip('% ')) / 100:g}"
    except ValueError:
        return "0.05"


def read_threshold(text: str) -> Limit:
    """`accuracy:0.8`: the metric has to be at least 0.8, or at most, where lower is better."""
    metric, _, written = text.rpartition(":")
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if metric and math.isnan(value) and written.endswith("%"):
        raise RequestError(f"{text!r} is not a threshold: write {metric}:{_share(written)}, a share of 1")
    if not metric or not math.isfinite(value):
        raise RequestError(f"{text!r} is not a threshold: write METRIC:VALUE, such as accuracy:0.8")
    if metric.rpartition(" ")[2] in SHARES and not 0 <= value <= 1:
        fix = f": write {metric}:{value / 100:g}" if 1 < value <= 100 else ""
        raise RequestError(f"{text!r} is not a threshold: {metric} lies between 0 and 1{fix}")
    return Limit(metric, value)


def judge(limit: Limit, baseline: str, run: str, improvement: Estimate, examples: int) -> Gate:
    """The verdict on one difference: `improvement` is positive where the run is better, over so many examples."""
    least = 0.0 - limit.margin
    verdict, cause, needed = _decide(least, improvement, examples)
    shown = interval(improvement.low, improvement.high, signed=True)
    missing = _missing(improvement, "pair")
    match cause:
        case "no interval":
            why = improvement.metadata.get("reason", "too few pairs")
            reason = f"no interval can be given ({why})" + (f"; {missing}" if missing else "")
        case "below":
            reason = f"worse by more than {limit.margin:g}: the interval of the change is {shown}"
        case "above":
            reason = f"not worse by more than {limit.margin:g}: the interval of the change is {shown}"
        case "missing":
            reason = f"{missing}, {_reach(least, improvement, form='+.3f')}"
        case "between":
            reason = (
                f"the interval of the change, {shown}, {_undecided_reason(least, 'change', needed, examples)}"
            )
            reason += f"; {missing}" if missing else ""
    return Gate(limit.metric, limit.margin, baseline, run, verdict, reason, needed)


def gate(aggregation: Aggregation, *fail_under: str) -> list[ThresholdGate]:
    """Whether metrics of an aggregation reach thresholds: `gate(aggregation, "exact_match accuracy:0.8")`.

    A metric is `EVALUATOR METRIC`, or one of the two where it is unique. There is a verdict for each run. Where lower
    is better, the threshold is the most that the metric may be.
    """
    if not isinstance(aggregation, Aggregation):
        raise RequestError(f"a gate needs an aggregation, not {type(aggregation).__name__}: karat.aggregate")
    specs = [spec for evaluation in aggregation.evaluations for spec in evaluation.header.evaluators]
    lower = {spec.key for spec in specs if not spec.higher_is_better}
    limits = [read_threshold(text) for text in fail_under]
    refuse_unreachable(limits, specs, aggregation.header.aggregators)
    return [
        _judge_threshold(limit, each, each.better(lower) or "higher")
        for limit in limits
        for each in _named_estimates(limit.metric, aggregation)
    ]


def refuse_unreachable(
    limits: Sequence[Limit], evaluators: Sequence[Any], aggregators: Sequence[Any]
) -> None:
    """Refuse a threshold on the mean of scores that the bounds of the evaluator exclude.

    Evaluators and aggregators are built ones or their specs; without aggregators the usual metric is meant.
    """
    means = [each.key for each in aggregators if each.name in SCORE_METRICS]
    only_means = len(means) == len(aggregators)
    for limit in limits:
        for each in evaluators:
            names = {f"{each.key} {mean}" for mean in means or SCORE_METRICS} | (
                {each.key} if only_means else set()
            )
            if len(evaluators) == 1:
                names.update(means or SCORE_METRICS)
            if limit.metric in names and (problem := threshold_problem(limit.margin, each)):
                raise RequestError(f"'{limit.metric}:{limit.margin:g}' is not a threshold: {problem}")


def _named_estimates(metric: str, aggregation: Aggregation) -> list[Estimate]:
    """The estimates that a metric names, one for each run; of the whole data, not of groups."""
    whole = [each for each in aggregation.header.estimates if each.group is None]
    found = [each for each in whole if metric in _names(each)]
    labels = dict.fromkeys(each.label for each in found)
    if len(labels) > 1:
        raise RequestError(f"{metric!r} names several metrics: give one of {', '.join(map(repr, labels))}")
    if not found:
        known = dict.fromkeys(text for each in whole for text in _names(each))
        hint = did_you_mean(metric, known) if known else "the aggregation has none"
        raise UnknownName(f"no metric {metric!r}: {hint}")
    return found


def _names(estimate: Estimate) -> tuple[str, ...]:
    """List the accepted spellings of a metric."""
    label = f"{estimate.evaluator} {estimate.aggregator}"
    main = () if estimate.name else (label, estimate.aggregator)
    return (estimate.label, estimate.evaluator, estimate.metric, *main)


def _judge_threshold(limit: Limit, estimate: Estimate, better: Literal["higher", "lower"]) -> ThresholdGate:
    sign = 1.0 if better == "higher" else -1.0
    oriented = estimate if better == "higher" else negated(estimate)
    examples = estimate.metadata.get("clusters") or estimate.n
    verdict, cause, needed = _decide(sign * limit.margin, oriented, examples)
    threshold = f"{limit.margin:g}"
    shown = interval(estimate.low, estimate.high)
    missing = _missing(estimate, "item")
    match cause:
        case "no interval":
            reason = "no interval can be given" + (f"; {missing}" if missing else "")
        case "below" | "above":
            side = "below" if (cause == "below") == (better == "higher") else "above"
            reason = f"the interval, {shown}, is {side} {threshold}"
        case "missing":
            reason = f"{missing}, {_reach(sign * limit.margin, oriented, sign)}"
        case "between":
            reason = f"the interval, {shown}, {_undecided_reason(limit.margin, 'value', needed, examples)}"
            reason += f"; {missing}" if missing else ""
    return ThresholdGate(
        estimate.label, limit.margin, better, estimate.run, estimate.value, verdict, reason, needed
    )


def negated(estimate: Estimate) -> Estimate:
    """The estimate of minus the metric."""

    def negative(value: float | None) -> float | None:
        return None if value is None else -value

    return msgspec.structs.replace(
        estimate,
        value=negative(estimate.value),
        low=negative(estimate.high),
        high=negative(estimate.low),
        lowest=negative(estimate.highest),
        highest=negative(estimate.lowest),
        metadata={
            name: [negative(each) for each in reversed(value)] if name == WITH_MISSING else value
            for name, value in estimate.metadata.items()
        },
    )


Cause = Literal["no interval", "below", "above", "missing", "between"]


def _decide(least: float, estimate: Estimate, examples: int) -> tuple[Verdict, Cause, int | None]:
    """Whether an estimate, of which more is better, is at least `least`; why, and how many examples would decide it."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if value is None or (low is None and high is None):
        return "undecided", "no interval", None
    worst, best = limits_with_missing(estimate)
    if high is not None and high < least:
        return ("undecided", "missing", None) if best is None or best >= least else ("fails", "below", None)
    if low is None or low < least:
        return "undecided", "between", _examples_needed(least, estimate, examples)
    return ("undecided", "missing", None) if worst is None or worst < least else ("holds", "above", None)


def limits_with_missing(estimate: Estimate) -> tuple[float | None, float | None]:
    """The interval of a value over all items, allowing for the missing ones; None where there is no limit.

    The bounds say where the value would be if the missing items were as bad, or as good, as can be. The items that are
    there leave their doubt beside it, by their share of all: for means, shares and differences this is exact. Quantiles
    state their own limits.
    """
    value, low, high = estimate.value, estimate.low, estimate.high
    if value is None or not estimate.missing:
        return low, high
    if WITH_MISSING in estimate.metadata:
        low, high = estimate.metadata[WITH_MISSING]
        return low, high
    share, lowest, highest = estimate.n / estimate.of, estimate.lowest, estimate.highest
    return (
        None if low is None or lowest is None else lowest - share * (value - low),
        None if high is None or highest is None else highest + share * (high - value),
    )


def _reach(least: float, estimate: Estimate, sign: float = 1.0, form: str = ".3f") -> str:
    """Return how far missing items could move the interval across `least`; `sign` is −1 for a negated estimate."""
    worst, best = limits_with_missing(estimate)
    better = estimate.high is not None and estimate.high < least
    reached = best if better else worst
    way = "up" if better == (sign > 0) else "down"
    to = "anywhere" if reached is None else f"{way} to {sign * reached:{form}}"
    them = "it" if estimate.missing == 1 else "them"
    return f"which could take the interval {to}: complete {them} first"


def _missing(estimate: Estimate, noun: str) -> str:
    missing, noun = estimate.missing, "attempt" if MISSING_ATTEMPTS in estimate.metadata else noun
    return f"{plural(missing, noun)} {'is' if missing == 1 else 'are'} missing" if missing else ""


def _examples_needed(least: float, estimate: Estimate, examples: int) -> int | None:
    """Return how many examples would move the decisive limit of the interval to `least`; see `_width_at`."""
    value, low, high = estimate.value, estimate.low, estimate.high
    assert value is not None
    distance = value - least
    limit = low if distance > 0 else high
    if limit is None or not examples or not distance:
        return None
    width_at = _width_at(estimate, value, limit, examples)
    few, many = examples, MOST_EXAMPLES
    if width_at(many) > abs(distance):
        return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if width_at(middle) <= abs(distance) else (middle, many)
    needed = many
    step: int = 10 ** max(0, math.floor(math.log10(needed)) - 1)  # two digits are all that it is worth
    return max(examples + 1, math.ceil(needed / step) * step)


def _width_at(estimate: Estimate, value: float, limit: float, examples: int) -> Callable[[int], float]:
    """Return the distance of a limit from the value as a function of the number of examples, for the same value.

    A share has its limits at every number. Of other intervals, what the spread of the scores makes of the width
    shrinks with 1/√n. The rest, which allows for values that were not drawn, shrinks as the width does where all scores
    are equal: first slower than 1/n, for it is at most the range, later like it.
    """
    import numpy as np

    share, above = abs(value), abs(limit) > abs(value)

    def share_width(n: float) -> float:
        return abs(share - share_limits(share * n, n, estimate.confidence)[above])

    width = abs(value - limit)
    if share <= 1.0 and math.isclose(share_width(examples), width, rel_tol=1e-9):
        return share_width
    error = estimate.metadata.get("standard_error")
    spread = width if error is None else min(width, critical(estimate.confidence) * error)
    rest = width - spread

    def equal_scores_width(n: int) -> float:
        """Return the distance for this many equal scores at one end of the range, as a fraction of the range."""
        one = np.ones(1)
        return 1.0 - BoundedMean(one, one, one * n, (0.0, 1.0)).interval(estimate.confidence)[0]

    now = equal_scores_width(examples) if rest else 1.0
    return lambda n: spread * math.sqrt(examples / n) + (rest and rest * equal_scores_width(n) / now)


def _undecided_reason(least: float, what: str, needed: int | None, examples: int) -> str:
    have = f"there {'is' if examples == 1 else 'are'} {examples:,}"
    decide = (
        f"about {needed:,} examples would decide it if the {what} stays the same ({have})"
        if needed is not None
        else f"the {what} is too close to {least:g} to be decided by more examples ({have})"
    )
    return f"includes values on both sides of {least:g}; {decide}"


def threshold_blocks(aggregation: Aggregation, gates: Sequence[ThresholdGate]) -> list[Block]:
    """The verdicts as a table."""
    runs = aggregation.runs
    labels = run_labels([run.header for run in runs]) if len(runs) > 1 else {}
    rows = [
        [
            each.metric,
            *([labels.get(each.run or "", each.run or "")] if labels else []),
            f"{'at least' if each.better == 'higher' else 'at most'} {each.threshold:g}",
            number(each.value),
            Styled(each.verdict, VERDICT_STYLES[each.verdict]),
            each.reason,
        ]
        for each in gates
    ]
    head = ["metric", *(["run"] if labels else []), "required", "value", "verdict", "why"]
    return [Heading(f"gate: {worst(gates)}"), Table(head, rows, [len(head) - 3])] if rows else []


def worst(gates: Sequence[Gate | ThresholdGate]) -> Verdict | None:
    """The verdict on several gates; None without any."""
    verdicts = {gate.verdict for gate in gates}
    for verdict in ("fails", "undecided", "holds"):
        if verdict in verdicts:
            return verdict
    return None
