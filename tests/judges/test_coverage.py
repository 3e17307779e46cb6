"""Intervals of agreement with people cover the truth, whichever way the labels were drawn."""

from __future__ import annotations

import random
from collections import Counter

from karat.analysis.judges.agreement import _measure_part, _Pair

ROUNDS = 90
FIGURES = ("base_rate", "judge_rate", "agreement", "kappa", "sensitivity", "specificity", "bias")


def truth_of(base, hits, rejects):
    """The figures of a judge with this sensitivity and specificity."""
    a, b, c, d = base * hits, base * (1 - hits), (1 - base) * (1 - rejects), (1 - base) * rejects
    seen, chance = a + d, (a + b) * (a + c) + (c + d) * (b + d)
    kappa = (seen - chance) / (1 - chance)
    return dict(zip(FIGURES, (base, a + c, seen, kappa, hits, rejects, a + c - base), strict=True))


def outputs_of(draw, base, hits, rejects):
    """Outputs of examples of 1 to 4 attempts; attempts at one example are alike to some degree."""
    alike, pairs = draw.random(), []
    for example in range(draw.randint(80, 200)):
        right, luck = draw.random() < base, draw.random()
        for _ in range(draw.choice([1, 1, 2, 4])):
            person = right if draw.random() < alike else draw.random() < base
            x = luck if draw.random() < alike else draw.random()
            pairs.append((x < (hits if person else 1 - rejects), person, str(example)))
    return pairs


def sampled(draw, pairs, design):
    if design == "outputs":
        return [_Pair(*pair, None) for pair in draw.sample(pairs, min(60, len(pairs)))]
    if design == "examples":
        names = set(draw.sample(sorted({pair[2] for pair in pairs}), 30))
        return [_Pair(*pair, None) for pair in pairs if pair[2] in names]
    chances = [draw.uniform(0.4, 0.8) if pair[0] else draw.uniform(0.1, 0.3) for pair in pairs]
    return [
        _Pair(*pair, chance) for pair, chance in zip(pairs, chances, strict=True) if draw.random() < chance
    ]


def test_every_figure_covers_the_truth():
    draw, hits, rounds = random.Random(11), Counter(), Counter()
    for number in range(ROUNDS):
        settings = draw.uniform(0.15, 0.85), draw.uniform(0.65, 0.98), draw.uniform(0.65, 0.98)
        pairs = sampled(draw, outputs_of(draw, *settings), ("outputs", "examples", "drawn")[number % 3])
        found = _measure_part("judge", "", "sampled", pairs, 0.95, [], [])
        for name, truth in truth_of(*settings).items():
            estimate = getattr(found, name)
            if estimate is not None and estimate.low is not None:
                rounds[name] += 1
                hits[name] += estimate.low <= truth <= estimate.high
    assert all(rounds[name] > ROUNDS * 0.9 for name in FIGURES)
    assert {name: hits[name] / rounds[name] for name in FIGURES if hits[name] / rounds[name] < 0.93} == {}
