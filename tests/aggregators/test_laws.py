"""Every registered aggregator: however results are split and merged, the value is the same to the last bit."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.aggregators import Group, aggregators
from karat.aggregators._base import resolve_aggregator
from karat.records import FORMAT, Failed, Failure, ItemResult, Ok, Result, Skipped

PARAMS = {
    "pass_at_k": {"k": [1, 2]},
    "pass_hat_k": {"k": [1, 2]},
    "majority_at_k": {"k": [1, 2]},
    "rate": {"values": ["yes"], "field": "metadata.predicted"},
    "count_by": {"field": "metadata.predicted"},
    "mean": {"low": -2.0, "high": 2.0},
}
NAMES = aggregators.list()
LABELS = ["yes", "Yes ", "no", "perhaps"]


def result(unit, attempt, score, golden, predicted, kind):
    if kind == "failed":
        outcome = Failed(Failure("ValueError", "broken"))
    elif kind == "skipped":
        outcome = Skipped("output failed")
    elif kind == "not applicable":
        outcome = Skipped("no reference", applicable=False)
    else:
        same = golden == predicted
        metadata = {"golden": golden, "predicted": predicted, "steps": attempt + 2, "optimal_steps": 2}
        outcome = Ok(Result("key", float(same) if score is None else score, same, metadata=metadata))
    return ItemResult(
        format=FORMAT, example="e", key="key", runs=("run-a",), outcome=outcome, unit=unit, attempt=attempt
    )


def pair(first, second, score):
    value = "win" if score > 0.5 else "loss" if score < 0.5 else "tie"
    outcome = Ok(Result("key", score, value))
    return ItemResult(format=FORMAT, example="e", key="key", runs=(first, second), outcome=outcome)


kinds = st.sampled_from(["ok"] * 8 + ["failed", "skipped", "not applicable"])
metadata = st.fixed_dictionaries(
    {"topic": st.sampled_from(["Music", "Art"]), "document": st.sampled_from("abc")}
)


@st.composite
def single_groups(draw, graded):
    score = st.floats(-1, 1, allow_subnormal=False) if graded else st.none()
    rows = draw(
        st.lists(
            st.builds(
                result,
                st.sampled_from(["", "u"]),
                st.integers(1, 4),
                score,
                st.sampled_from(LABELS),
                st.sampled_from(LABELS),
                kinds,
            ),
            min_size=0,
            max_size=4,
        )
    )
    return Group("e", draw(metadata), rows, draw(st.sampled_from([0, 0, 0, 1])))


@st.composite
def pair_groups(draw):
    names = st.sampled_from([("a", "b"), ("b", "a"), ("b", "c"), ("a", "c")])
    rows = draw(
        st.lists(st.builds(lambda two, s: pair(*two, s), names, st.sampled_from([0.0, 0.5, 1.0])), max_size=3)
    )
    return Group("e", draw(metadata), rows)


@st.composite
def split(draw, groups):
    """Groups in another order, in parts, and the order in which the parts are merged."""
    order = draw(st.permutations(groups))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=4)))
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    return parts, draw(st.lists(st.integers(0, 20), min_size=len(parts), max_size=len(parts)))


def folded(aggregator, groups):
    state = aggregator.start()
    for group in groups:
        state = aggregator.add(state, group)
    return state


def finished(aggregator, state):
    try:
        made = aggregator.finish(state)
    except ValueError as error:
        return str(error)
    return msgspec.json.encode([made.estimates, made.tables], order="sorted")


def check(data, name, params):
    _, _, _, aggregator, _ = resolve_aggregator({"name": name, "params": params})
    graded = name in ("mean", "quantiles", "histogram", "accuracy") and data.draw(st.booleans())
    one = pair_groups() if "pair" in aggregator.over else single_groups(graded)
    groups = data.draw(st.lists(one, min_size=1, max_size=8))
    parts, picks = data.draw(split(groups))
    states = [folded(aggregator, part) for part in parts]
    while len(states) > 1:
        at = picks.pop() % len(states)
        taken = states.pop(at)
        into = picks[-1] % len(states) if picks else 0
        states[into] = aggregator.merge(states[into], taken)
    whole = finished(aggregator, folded(aggregator, groups))
    assert finished(aggregator, states[0]) == whole
    assert finished(aggregator, states[0]) == whole, "finish changes nothing"


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_merging_in_any_grouping_and_order_gives_the_same_to_the_last_bit(name, data):
    check(data, name, PARAMS.get(name, {}))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_merging_groups_by_a_metadata_field_gives_the_same(name, data):
    check(data, name, {**PARAMS.get(name, {}), "by": "topic"})


@pytest.mark.parametrize("name", [n for n in NAMES if "cluster" in aggregators.describe(n)["params"]])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_merging_clusters_that_arrive_in_parts_gives_the_same(name, data):
    check(data, name, {**PARAMS.get(name, {}), "cluster": "document"})


@pytest.mark.parametrize(
    "name", ["accuracy", "precision", "recall", "f1_score", "pass_at_k", "step_efficiency"]
)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_merging_aggregator_metrics_of_graph_tasks_gives_the_same(name, data):
    check(data, f"metric:{name}", {})


def test_the_aggregators_that_are_promised_are_there():
    promised = """accuracy mean quantiles histogram rate count_by precision recall f1_score classification pass_at_k
        pass_hat_k majority_at_k step_efficiency win_rate ranking"""
    assert sorted(promised.split()) == NAMES
    assert aggregators.get("pass@k") is aggregators.get("pass_at_k")
    assert aggregators.get("pass^k") is aggregators.get("pass_hat_k")


def test_a_negative_zero_is_reported_as_zero_whichever_comes_first():
    *_, aggregator, _ = resolve_aggregator({"name": "quantiles", "params": {}})
    spreads = []
    for scores in ([0.0, -0.0], [-0.0, 0.0]):
        spread = aggregator.start()
        for score in scores:
            spread.add(score)
        spreads.append(str(list(spread.counts.items())))
    assert spreads == ["[(0.0, 2)]"] * 2
