"""Results as a stage would hand them to an aggregator."""

from __future__ import annotations

import pytest

from karat.aggregators import Group
from karat.aggregators._base import resolve_aggregator
from karat.records import FORMAT, Failed, Failure, ItemResult, Ok, Result


def item(score=None, *, value=None, attempt=1, unit="", failed=False, **metadata):
    """One result: a score, a value and metadata, or a failure."""
    outcome = Ok(Result("key", score, value, metadata=metadata))
    if failed:
        outcome = Failed(Failure("ValueError", "broken"))
    return ItemResult(
        format=FORMAT, example="e", key="key", runs=("run-a",), outcome=outcome, unit=unit, attempt=attempt
    )


def folded(spec, groups, **params):
    """What an aggregator says of groups; each is a list of results, or (metadata, results)."""
    _, _, _, aggregator, _ = resolve_aggregator({"name": spec, "params": params})
    state = aggregator.start()
    for place, given in enumerate(groups):
        metadata, results = given if isinstance(given, tuple) else ({}, given)
        state = aggregator.add(state, Group(f"e{place}", metadata, results))
    return aggregator.finish(state)


def labelled(pairs, **metadata):
    """One example for each (golden, predicted)."""
    return [[item(float(g == p), golden=g, predicted=p, **metadata)] for g, p in pairs]


@pytest.fixture
def make():
    """The three of them, by name."""

    class Made:
        pass

    Made.item, Made.folded, Made.labelled = staticmethod(item), staticmethod(folded), staticmethod(labelled)
    return Made
