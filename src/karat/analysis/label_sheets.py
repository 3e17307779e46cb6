"""Sheets for people: a random sample of judged outputs, without the judge's verdicts, to label and import."""

from __future__ import annotations

import random
from typing import Any

from karat.analysis.judges import judged_key
from karat.errors import RequestError, did_you_mean
from karat.paths import MISSING, find
from karat.store.handles import Evaluation
from karat.store.rows import Row

COLUMNS = (
    "example",
    "run",
    "attempt",
    "unit",
    "evaluator",
    "input",
    "output",
    "expected",
    "label",
    "note",
    "probability",
)
"""What `import_labels` reads, and what a person has to see."""


def sample_sheet(
    evaluation: Evaluation,
    *,
    n: int = 50,
    evaluator: str | None = None,
    by: str | None = None,
    seed: int = 0,
) -> tuple[list[dict[str, Any]], int]:
    """Draw outputs that a judge has judged, in random order; return the rows of the sheet and how many were judged.

    Each row has its inclusion probability, which is the same for all. With `by` (a metadata field, or `run`) each value
    has the same number of rows, as far as it has so many outputs, and the probabilities differ. The judge's verdicts
    play no part: neither in the rows nor, through the probabilities, in the drawing.
    """
    key = judged_key(evaluation, evaluator).key
    strata: dict[str, list[tuple[str, str, int, str]]] = {}
    fields: set[str] = set()
    for row in evaluation.rows():
        if not row.others and row.results[key].status == "ok":
            fields.update(row.metadata)
            strata.setdefault(_stratum(row, by), []).append((row.run, row.id, row.attempt, row.unit))
    if not strata:
        raise RequestError(
            f"{evaluation.id} has no results of {key!r} to sample: see"
            f" {evaluation.store.command('show', evaluation.id, '--failed')}"
        )
    if by is not None and strata.keys() == {_NONE}:
        raise RequestError(f"no example has the metadata field {by!r}: {did_you_mean(by, {'run', *fields})}")
    draw = random.Random(seed)
    chosen: dict[tuple[str, str, int, str], float] = {}
    sizes = _equal_shares(n, {name: len(items) for name, items in strata.items()}, draw)
    for name, items in strata.items():
        probability = sizes[name] / len(items)
        chosen.update(dict.fromkeys(draw.sample(items, sizes[name]), probability))
    rows = []
    for row in evaluation.rows():
        item = row.run, row.id, row.attempt, row.unit
        if item in chosen and not row.others:
            rows.append(_sheet_row(row, key, chosen[item]))
    draw.shuffle(rows)
    return rows, sum(map(len, strata.values()))


_NONE = ""


def _stratum(row: Row, by: str | None) -> str:
    if by is None:
        return "all"
    value = row.run if by == "run" else find(row.metadata, by)
    return _NONE if value is MISSING else repr(value)


def _equal_shares(n: int, sizes: dict[str, int], draw: random.Random) -> dict[str, int]:
    """How many to draw of each stratum: the same number, and more of the large ones where small ones have too few."""
    shares = dict.fromkeys(sizes, 0)
    left = min(n, sum(sizes.values()))
    while left:
        open_ = [name for name in sizes if shares[name] < sizes[name]]
        each = left // len(open_)
        for name in open_ if each else draw.sample(open_, left):
            added = min(each or 1, sizes[name] - shares[name])
            shares[name] += added
            left -= added
    return shares


def _sheet_row(row: Row, key: str, probability: float) -> dict[str, Any]:
    return {
        "example": row.id,
        "run": row.run,
        "attempt": row.attempt,
        "unit": row.unit,
        "evaluator": key,
        "input": row.shown("input"),
        "output": row.shown("output"),
        "expected": row.shown("expected"),
        "label": None,
        "note": None,
        "probability": probability,
    }
