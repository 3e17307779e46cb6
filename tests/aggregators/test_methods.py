"""Numbers change only together with `METHODS`, so that stored ones of earlier methods are not returned."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import karat
from karat.aggregators import Group, aggregators
from karat.aggregators._base import METHODS, resolve_aggregator
from karat.execution import aggregate as aggregation_stage
from karat.records import FORMAT, Failed, Failure, ItemResult, Ok, Result
from karat.stats import paired, ppi
from tests.aggregators.test_laws import NAMES, PARAMS

FILE = Path(__file__).with_name("methods.json")


def groups():
    """Examples of two attempts with passes, grades, labels and failures, some in one document."""
    rng = random.Random(0)
    for place in range(40):
        rows = []
        for attempt in (1, 2):
            golden, score = rng.choice("abc"), rng.choice([0.0, 0.25, 1.0, 1.0])
            labels = {
                "golden": golden,
                "predicted": golden if score > 0.5 else "d",
                "steps": 3,
                "optimal_steps": 2,
            }
            outcome = Ok(Result("key", score, score > 0.5, metadata=labels))
            failed = Failed(Failure("ValueError", "broken"))
            kept = failed if rng.random() < 0.1 else outcome
            rows.append(
                ItemResult(format=FORMAT, example="e", key="key", runs=("a",), outcome=kept, attempt=attempt)
            )
        yield Group(f"e{place}", {"document": place // 4}, rows)


def pairs():
    """Comparisons of three runs with ties."""
    rng = random.Random(1)
    for place in range(30):
        rows = [
            ItemResult(
                format=FORMAT,
                example="e",
                key="key",
                runs=two,
                outcome=Ok(Result("key", rng.choice([0.0, 0.5, 1.0]))),
            )
            for two in (("a", "b"), ("b", "c"), ("c", "a"))
        ]
        yield Group(f"e{place}", {}, rows)


def numbers():
    """The figures of every aggregator over these, and of a comparison of two runs."""
    found = {}
    for name in NAMES:
        for params in ({}, {"cluster": "document"}):
            if params and "cluster" not in aggregators.describe(name)["params"]:
                continue
            part = resolve_aggregator({"name": name, "params": {**PARAMS.get(name, {}), **params}}).aggregator
            state = part.start()
            for group in pairs() if "pair" in part.over else groups():
                state = part.add(state, group)
            found[f"{name} {params}"] = [figures(each) for each in part.finish(state).estimates]
    rng = random.Random(2)
    one, other = ([rng.choice([0.0, 0.5, 1.0]) for _ in range(40)] for _ in range(2))
    owner = [place // 3 for place in range(40)]
    for name, a, b, clusters in (
        ("graded", one, other, None),
        ("clustered", one, other, owner),
        ("binary", [x > 0 for x in one], [x > 0 for x in other], None),
    ):
        made = paired([float(x) for x in a], [float(x) for x in b], clusters)
        found[f"paired {name}"] = [[*figures(made.difference), made.p_value, made.smallest_effect]]
    found["ppi"] = [figures(ppi(one[:20], other[:20], other[20:]))]
    return found


def figures(estimate):
    limits = [estimate.value, estimate.low, estimate.high, estimate.lowest, estimate.highest]
    return [*(None if each is None else round(each, 7) for each in limits), estimate.n, estimate.of]


def close(one, other):
    return one == other or (None not in (one, other) and abs(one - other) <= 1e-6 * max(1.0, abs(other)))


def test_other_numbers_have_another_version_of_the_methods():
    """Raise METHODS where this fails, then write the file with UPDATE_GOLDEN=1."""
    stored = json.loads(FILE.read_text()) if FILE.exists() else {"methods": None}
    if os.environ.get("UPDATE_GOLDEN") and stored["methods"] != METHODS:
        text = json.dumps({"methods": METHODS, "numbers": numbers()}, separators=(",", ":"))
        FILE.write_text(text.replace('],"', '],\n"') + "\n")
        stored = json.loads(FILE.read_text())
    assert stored["methods"] == METHODS, "UPDATE_GOLDEN=1 writes the numbers of the new methods"
    made = json.loads(json.dumps(numbers()))
    assert made.keys() == stored["numbers"].keys()
    for name, rows in made.items():
        for row, known in zip(rows, stored["numbers"][name], strict=True):
            assert all(map(close, row, known)), f"{name}: raise METHODS"


def same(number):
    return number


def test_an_aggregation_by_earlier_methods_is_computed_again(monkeypatch):
    store = karat.open_store("memory://")
    data = karat.Dataset.from_examples([{"id": "a", "input": 1, "expected": 1}])
    run = karat.run(same, data, store=store)
    evaluation = karat.evaluate(run, ["numeric_match"])
    first = karat.aggregate(evaluation, ["mean"])
    assert karat.aggregate(evaluation, ["mean"]).id == first.id
    monkeypatch.setattr(aggregation_stage, "METHODS", METHODS + 1)
    second = karat.aggregate(evaluation, ["mean"])
    assert second.id != first.id
    assert second.estimates == first.estimates
