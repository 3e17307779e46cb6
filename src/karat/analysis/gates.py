"""Whether a run may be worse than another, and by how much: for continuous integration.

A gate holds when the interval of the difference, and whatever missing items could do to it, stays above the margin;
it fails when the interval stays below; otherwise it is undecided, which is neither.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from karat.errors import RequestError
from karat.records import Estimate

Verdict = Literal["holds", "fails", "undecided"]


class Limit(msgspec.Struct, frozen=True):
    """How much worse a metric may be."""

    metric: str
    margin: float


class Gate(msgspec.Struct, frozen=True):
    """What became of a limit for one run against the baseline."""

    metric: str
    margin: float
    baseline: str
    run: str
    verdict: Verdict
    reason: str


def read_limit(text: str) -> Limit:
    """`accuracy:0.01`: the metric may be worse by at most 0.01; without a number, by nothing."""
    metric, colon, number = text.rpartition(":")
    if not colon:
        metric, number = text, "0"
    try:
        margin = float(number)
    except ValueError:
        margin = math.nan
    if metric and math.isnan(margin) and number.endswith("%"):
        raise RequestError(f"{text!r} is no limit: write {metric}:{_share(number)}, margins are shares of 1")
    if not metric or not (math.isfinite(margin) and margin >= 0):
        raise RequestError(f"{text!r} is no limit: write METRIC:MARGIN, such as accuracy:0.01")
    return Limit(metric, margin)


def _share(percent: str) -> str:
    """`5%` as it is to be written: `0.05`."""
    try:
        return f"{float(percent.rstrip('% ')) / 100:g}"
    except ValueError:
        return "0.05"


def judge(limit: Limit, baseline: str, run: str, difference: Estimate) -> Gate:
    """The verdict on one difference (run minus baseline)."""
    verdict, reason = _verdict(limit.margin, difference)
    return Gate(limit.metric, limit.margin, baseline, run, verdict, reason)


def _verdict(margin: float, difference: Estimate) -> tuple[Verdict, str]:
    low, high = difference.low, difference.high
    if difference.value is None or low is None or high is None:
        return "undecided", "there are too few pairs for an interval"
    shown = f"[{low:+.3f}, {high:+.3f}]"
    if high < -margin:
        return "fails", f"worse by more than {margin:g}: the interval is {shown}"
    if low < -margin:
        return "undecided", f"the interval {shown} holds differences on both sides of {-margin:g}"
    missing = difference.of - difference.n
    if missing and (difference.lowest is None or difference.lowest < -margin):
        worst = "" if difference.lowest is None else f", down to {difference.lowest:+.3f}"
        return "undecided", f"{missing:,} pairs are missing and could make it worse{worst}"
    return "holds", f"not worse by more than {margin:g}: the interval is {shown}"


def worst(gates: list[Gate]) -> Verdict:
    """What several gates amount to."""
    verdicts = {gate.verdict for gate in gates}
    return "fails" if "fails" in verdicts else "undecided" if "undecided" in verdicts else "holds"
