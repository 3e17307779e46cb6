"""Gates for continuous integration: whether a run may be worse than the baseline, and by how much.

A gate holds when the interval of the difference, allowing for missing items, stays above minus the margin. It fails
when the interval stays below. Otherwise it is undecided, which is neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from karat.errors import RequestError
from karat.formatting import interval
from karat.records import Estimate
from karat.stats._distributions import critical

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
        raise RequestError(
            f"{text!r} is not a limit: write {metric}:{_share(number)}, margins are shares of 1"
        )
    if not metric or not (math.isfinite(margin) and margin >= 0):
        raise RequestError(f"{text!r} is not a limit: write METRIC:MARGIN, such as accuracy:0.01")
    return Limit(metric, margin)


def _share(percent: str) -> str:
    """`5%` as a share: `0.05`."""
    try:
        return f"{float(percent.rstrip('% ')) / 100:g}"
    except ValueError:
        return "0.05"


def judge(limit: Limit, baseline: str, run: str, improvement: Estimate, examples: int) -> Gate:
    """The verdict on one difference: `improvement` is positive where the run is better, over so many examples."""
    verdict, reason, needed = _verdict(limit.margin, improvement, examples)
    return Gate(limit.metric, limit.margin, baseline, run, verdict, reason, needed)


def _verdict(margin: float, improvement: Estimate, examples: int) -> tuple[Verdict, str, int | None]:
    value, low, high = improvement.value, improvement.low, improvement.high
    missing = improvement.of - improvement.n
    pairs = f"{missing:,} {'pair is' if missing == 1 else 'pairs are'} missing"
    if value is None or (low is None and high is None):
        return "undecided", "too few pairs for an interval" + (f"; {pairs}" if missing else ""), None
    shown = interval(low, high, signed=True)
    if high is not None and high < -margin:
        return "fails", f"worse by more than {margin:g}: the interval of the change is {shown}", None
    if low is None or low < -margin:
        needed = _examples_needed(margin, improvement, examples)
        return "undecided", _undecided(margin, shown, needed, examples, pairs if missing else ""), needed
    if missing and (improvement.lowest is None or improvement.lowest < -margin):
        worst = "" if improvement.lowest is None else f", down to {improvement.lowest:+.3f}"
        return "undecided", f"{pairs} and could make it worse{worst}: complete them first", None
    return "holds", f"not worse by more than {margin:g}: the interval of the change is {shown}", None


def _examples_needed(margin: float, improvement: Estimate, examples: int) -> int | None:
    """How many examples bring the limit of the interval that matters to the margin.

    What the spread of the scores makes of the width shrinks with 1/√n; the rest, which allows for values that were
    not drawn, with 1/n.
    """
    value, low, high = improvement.value, improvement.low, improvement.high
    assert value is not None
    distance = value + margin
    limit = low if distance > 0 else high
    if limit is None or not examples or not distance:
        return None
    distance, width = abs(distance), abs(value - limit)
    error = improvement.metadata.get("standard_error")
    spread = width if error is None else min(width, critical(improvement.confidence) * error)
    rest = width - spread
    # With x = √(examples now / examples needed): rest·x² + spread·x = distance.
    root = math.sqrt(spread * spread + 4.0 * rest * distance)
    shrunk = 2.0 * distance / (spread + root) if spread + root else 0.0
    factor = 1.0 / (shrunk * shrunk) if shrunk else math.inf
    needed = examples * factor
    if not math.isfinite(needed) or needed > MOST_EXAMPLES:
        return None
    step: int = 10 ** max(
        0, math.floor(math.log10(max(1.0, needed))) - 1
    )  # two digits are all that it is worth
    return max(examples + 1, math.ceil(needed / step) * step)


def _undecided(margin: float, shown: str, needed: int | None, examples: int, missing: str) -> str:
    have = f"there {'is' if examples == 1 else 'are'} {examples:,}"
    decide = (
        f"about {needed:,} examples would decide it if the change stays the same ({have})"
        if needed is not None
        else f"the change is too close to {-margin:g} to be decided by more examples ({have})"
    )
    reason = f"the interval of the change, {shown}, includes values on both sides of {-margin:g}; {decide}"
    return f"{reason}; {missing}" if missing else reason


def worst(gates: Sequence[Gate]) -> Verdict | None:
    """The verdict on several gates; None without any."""
    verdicts = {gate.verdict for gate in gates}
    for verdict in ("fails", "undecided", "holds"):
        if verdict in verdicts:
            return verdict
    return None
