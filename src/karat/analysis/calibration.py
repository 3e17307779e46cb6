"""Calibration of a judge: people's labels over the judge's scores of the same outputs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from karat.execution.labels import Item, labels_on, results_of
from karat.records import Estimate
from karat.store.handles import Evaluation

BINS = 5
"""Ranges of scores, where a judge gives more different scores than that."""
MOST_SCORES = 5
"""Different scores that each have a point of their own."""


class CalibrationBin(msgspec.Struct, frozen=True):
    """Items with the same or similar judge scores."""

    score: float
    """The mean of the judge's scores."""
    people: Estimate
    """The share of the items that people pass."""


class Calibration(msgspec.Struct, frozen=True):
    """One judge against people's labels on the same outputs."""

    evaluator: str
    evaluation: str
    bins: list[CalibrationBin]
    n: int
    annotators: list[str] = []


def calibrations(evaluation: Evaluation, confidence: float = 0.95) -> list[Calibration]:
    """Return the calibration of each evaluator of an evaluation with human labels; empty without labels."""
    labels = [label for label in labels_on([evaluation]) if label.score is not None]
    wanted = {spec.key for spec in evaluation.header.evaluators if spec.kind == "single"}
    keys = [key for key in dict.fromkeys(label.evaluator for label in labels) if key in wanted]
    if not keys:
        return []
    scores: dict[tuple[str, Item], float] = {}
    for _, record in results_of(evaluation):
        if record.key in keys and len(record.runs) == 1 and record.score is not None:
            item = Item(record.runs[0], record.example, record.attempt, record.unit)
            scores[record.key, item] = record.score
    out = []
    for key in keys:
        labels_by_item: dict[Item, list[float]] = {}
        for label in labels:
            if label.evaluator == key and label.score is not None:
                labels_by_item.setdefault(label.item, []).append(label.score)
        pairs = [
            (scores[key, item], sum(each) / len(each) >= 0.5, item.example)
            for item, each in labels_by_item.items()
            if (key, item) in scores and 0.0 <= scores[key, item] <= 1.0
        ]
        if pairs:
            people = sorted({label.annotator for label in labels if label.evaluator == key})
            out.append(Calibration(key, evaluation.id, _binned(pairs, confidence), len(pairs), people))
    return out


def _binned(pairs: Sequence[tuple[float, bool, str]], confidence: float) -> list[CalibrationBin]:
    from karat.stats import proportion

    distinct = sorted({score for score, _, _ in pairs})
    groups: dict[float, list[tuple[float, bool, str]]] = {}
    for pair in pairs:
        own = len(distinct) <= MOST_SCORES
        groups.setdefault(pair[0] if own else min(BINS - 1, int(pair[0] * BINS)), []).append(pair)
    return [
        CalibrationBin(
            sum(score for score, _, _ in group) / len(group),
            proportion([passed for _, passed, _ in group], [example for *_, example in group], confidence),
        )
        for _, group in sorted(groups.items())
    ]
