"""Measure a function: run it over a dataset, evaluate the outputs, print accuracy with its interval."""

import karat

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Peru": "lima"}


def capital(country: str) -> str:
    return CAPITALS[country]


dataset = karat.Dataset.from_examples(
    [
        {"input": "France", "expected": "Paris"},
        {"input": "Japan", "expected": "Tokyo"},
        {"input": "Peru", "expected": "Lima"},
        {"input": "Kenya", "expected": "Nairobi"},  # the function fails here: it stays in the denominator
    ],
    name="capitals",
)

with karat.open_store("memory://") as store:
    run = karat.run(capital, dataset, store=store)
    evaluation = karat.evaluate(run, ["exact_match", {"name": "edit_distance", "key": "close"}])
    aggregation = karat.aggregate(evaluation)
    print(aggregation.report())

accuracy = aggregation.estimates.get(evaluator="exact_match")
assert (accuracy.n, accuracy.of) == (3, 4)
