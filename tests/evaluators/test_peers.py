"""Verdicts of trajectory match beside those of agentevals: equal, but for two differences that the docs state."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from agentevals.trajectory.match import create_trajectory_match_evaluator

from karat.evaluators import TrajectoryMatchEvaluator

Calls = list[tuple[str, dict[str, Any]]]
VALUES = (0, 1, "x", [1], [2], {"k": 1}, {"k": 1, "l": 2}, None, 1.5)


def arguments(random: Random) -> dict[str, Any]:
    return {key: random.choice(VALUES) for key in random.sample(["p", "q"], random.randrange(3))}


def calls(random: Random, count: int) -> Calls:
    return [(random.choice("ab"), arguments(random)) for _ in range(count)]


def changed(random: Random, reference: Calls) -> Calls:
    agent = list(reference)
    for _ in range(random.randrange(3)):
        change = random.randrange(4)
        if change == 0:
            random.shuffle(agent)
        elif change == 1:
            agent.insert(random.randrange(len(agent) + 1), *calls(random, 1))
        elif agent and change == 2:
            del agent[random.randrange(len(agent))]
        elif agent:
            agent[random.randrange(len(agent))] = calls(random, 1)[0]
    return agent


def messages(made: Calls) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    for at, (name, given) in enumerate(made):
        function = {"name": name, "arguments": json.dumps(given)}
        call = {"id": f"c{at}", "type": "function", "function": function}
        out.append({"role": "assistant", "content": "", "tool_calls": [call]})
        out.append({"role": "tool", "tool_call_id": f"c{at}", "content": "done"})
    return [*out, {"role": "assistant", "content": "Done."}]


@pytest.mark.parametrize("mode", ["strict", "unordered", "subset", "superset"])
@pytest.mark.parametrize("given", ["exact", "ignore", "subset", "superset"])
def test_verdicts_are_those_of_agentevals(mode: Any, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    own = TrajectoryMatchEvaluator(mode=mode, tool_args_match_mode=given)
    other = create_trajectory_match_evaluator(trajectory_match_mode=mode, tool_args_match_mode=given)
    random, passed = Random(f"{mode} {given}"), 0
    for _ in range(120):
        reference = calls(random, random.randrange(5))
        sides = messages(changed(random, reference)), messages(reference)
        verdict = bool(own.evaluate(outputs=sides[0], reference_outputs=sides[1]).value)
        theirs = bool(other(outputs=sides[0], reference_outputs=sides[1])["score"])
        passed += verdict
        if given in ("exact", "ignore") or mode == "strict":
            assert verdict == theirs, sides
        elif mode != "subset":
            # It pairs each call with the first that matches, and so may miss a pairing of all.
            assert verdict or not theirs, sides
    assert 10 < passed < 120
