"""Write an aggregator: as a function of all results, and as a class that streams and can be merged."""

import karat
from karat.aggregators import Aggregate, Group, register_aggregator
from karat.stats import wilson


def worst(results: list[karat.Result]) -> float:
    """The lowest score there is."""
    return min(result.score or 0.0 for result in results)


@register_aggregator("always_right")
class AlwaysRight(karat.Aggregator[tuple[int, int, int]]):
    """The share of examples of which every attempt scores at least 0.5."""

    name = "always_right"

    def start(self) -> tuple[int, int, int]:
        return 0, 0, 0  # right, judged, all

    def add(self, state: tuple[int, int, int], group: Group) -> tuple[int, int, int]:
        right, judged, of = state
        if group.missing:
            return right, judged, of + 1
        return right + (min(group.scores()) >= 0.5), judged + 1, of + 1

    def merge(self, a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int]:
        return a[0] + b[0], a[1] + b[1], a[2] + b[2]

    def finish(self, state: tuple[int, int, int]) -> Aggregate:
        right, judged, of = state
        return Aggregate([wilson(right, judged, of=of)])


def half(number: int) -> int:
    return number // 2


data = karat.Dataset.from_examples([{"input": n, "expected": n / 2} for n in range(10)], name="halves")
with karat.open_store("memory://") as store:
    evaluation = karat.evaluate(karat.run(half, data, store=store, attempts=2), ["exact_match"])
    estimates = karat.aggregate(evaluation, [worst, "always_right"]).estimates
    print(estimates)

assert estimates["worst"].value == 0.0
assert estimates["always_right"].value == 0.5
