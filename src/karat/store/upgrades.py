"""Records of older formats, as they are written today.

Format 1 named the estimates of an aggregation by strings such as `exact_match-accuracy@run-1a.by.topic=Music`; since
format 2 an estimate has a field for each part. This is the only place that reads the old names.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

_OF_FAILURES = ("evaluator", "aggregator", "run")


def upgrade_aggregation(
    header: dict[str, Any], evaluators: Collection[str], runs: Collection[str]
) -> dict[str, Any]:
    """Return a format 1 header of an aggregation in format 2."""
    aggregators = [spec["key"] for spec in header.get("aggregators", [])]

    def about(name: str) -> dict[str, Any]:
        parts = _parts(name, evaluators, aggregators, runs)
        return {field: value for field, value in parts.items() if value not in ("", None)}

    estimates = [{**each, **about(name)} for name, each in header.get("estimates", {}).items()]
    tables = [{"value": value, **about(name)} for name, value in header.get("tables", {}).items()]
    failures = [
        {"error": error, **{field: value for field, value in about(name).items() if field in _OF_FAILURES}}
        for name, error in header.get("failures", {}).items()
    ]
    changed: dict[str, Any] = {"format": 2, "estimates": estimates, "tables": tables, "failures": failures}
    return {**header, **changed}


def _parts(
    name: str, evaluators: Collection[str], aggregators: Collection[str], runs: Collection[str]
) -> dict[str, Any]:
    """Split a format 1 name into evaluator, aggregator, run, estimate name and group."""
    evaluator, aggregator, rest = "", name, ""
    for key in sorted(aggregators, key=len, reverse=True):
        found = re.match(rf"(.+?)-{re.escape(key)}(?=$|[@.])", name)
        known = [
            each for each in evaluators if re.match(rf"{re.escape(each)}-{re.escape(key)}(?=$|[@.])", name)
        ]
        if known or (found and not evaluators):
            evaluator = max(known, key=len) if known else found.group(1) if found else ""
            aggregator, rest = key, name[len(evaluator) + len(key) + 1 :]
            break
    run = next(iter(runs)) if len(runs) == 1 else None
    if rest.startswith("@"):
        run, _, rest = rest[1:].partition(".")
    rest = rest.removeprefix(".")
    group: dict[str, str] = {}
    for pattern in (r"(?:(.*?)\.)?by\.([^=]*)=(.*)$", r"(?:(.*)\.)?(class|value)=(.*)$"):
        found = re.match(pattern, rest, re.DOTALL)
        if found:
            rest = found.group(1) or ""
            group = {found.group(2): found.group(3), **group}
    return {
        "evaluator": evaluator,
        "aggregator": aggregator,
        "name": rest,
        "run": run,
        "group": group or None,
    }
