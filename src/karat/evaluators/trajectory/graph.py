"""Compares the nodes and transitions that a graph agent took with those of a reference."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, get_args

import msgspec

from karat.errors import ConfigError, did_you_mean
from karat.evaluators._base import Evaluator, ParameterCheck, register_evaluator
from karat.evaluators.trajectory._arguments import ModeRule, Rule
from karat.evaluators.trajectory._calls import Calls, storable
from karat.evaluators.trajectory._pairing import pair_in_any_order, pair_in_order
from karat.evaluators.trajectory._report import LISTED, listed
from karat.evaluators.trajectory.match import IN_ORDER, Mode, rates
from karat.records import Result
from karat.traces import TraceError
from karat.traces._objects import plain

PARTS = ("nodes", "transitions")
_NODE_KEYS = ("node", "name", "langgraph_node")
_STEP_KEYS = ("steps", "nodes", "trajectory")

Turns = list[list[str]]
"""The nodes visited, turn by turn: one list for each time the graph was invoked."""


@register_evaluator("graph_trajectory_match")
class GraphTrajectoryMatchEvaluator(Evaluator):
    """Whether a graph agent visited the reference's nodes and took its transitions, in any of the five modes.

    A graph trajectory is `{"steps": [[node, …], …]}` with one list for each turn, the lists alone, a single
    list of nodes, or the updates that LangGraph streams. `compare` says what has to match: nodes,
    transitions, or both. `graded` gives the mean F1 of what is compared.
    """

    gives_labels = False

    name = "graph_trajectory_match"
    reuse = False
    needs_reference = True
    example: ClassVar[dict[str, Any]] = {
        "params": {"mode": "superset"},
        "outputs": {"steps": [["agent", "tools", "agent"]]},
        "reference_outputs": {"steps": [["agent", "tools"]]},
        "score": 1.0,
    }

    def __init__(
        self,
        mode: Mode = "strict",
        compare: Sequence[str] = PARTS,
        max_extra: int | None = None,
        graded: bool = False,
    ) -> None:
        super().__init__()
        check = ParameterCheck(self.name)
        compare = check.texts("compare", compare)
        check.flag("graded", graded)
        _check(mode, compare, max_extra)
        self.mode = mode
        self.compare = compare
        self.max_extra = max_extra
        self.graded = graded
        self.pass_fail = not graded
        self.params = {"mode": mode, "compare": compare, "max_extra": max_extra, "graded": graded}

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        """Pass or fail (or F1), with the nodes and transitions that are missing or extra."""
        if reference_outputs is None:
            raise TraceError(
                f"{self.key!r} compares with a reference, but there is none: give `reference_outputs`"
            )
        agent, reference = read_turns(outputs), read_turns(reference_outputs)
        passed, scores, faults = True, [], []
        metadata: dict[str, Any] = {"agent_turns": len(agent), "reference_turns": len(reference)}
        for part in self.compare:
            found, missing, extra = self._compare(_parts(agent, part), _parts(reference, part))
            metadata[part] = found
            passed = passed and found["passed"]
            scores.append(found["f1"])
            if not found["passed"]:
                faults += self._faults(part, missing, extra)
        if self.mode == "strict" and agent != reference and passed:
            passed = False
            faults.append("the same steps, divided into turns in another way")
        of = ", ".join(
            f"{metadata[part]['matched']} of {metadata[part]['reference']} {part}" for part in self.compare
        )
        comment = (
            f"passed ({self.mode}): {of} matched"
            if passed
            else f"failed ({self.mode}): {listed(faults, len(faults))}"
        )
        score = sum(scores) / len(scores) if self.graded else float(passed)
        return Result(self.key, score, passed, comment, metadata)

    def _compare(self, have: list[str], want: list[str]) -> tuple[dict[str, Any], list[str], list[str]]:
        """Return the metadata of one part, and all missing and extra names."""
        agent = Calls(have, [{} for _ in have])
        reference = Calls(want, [{} for _ in want])
        pair = pair_in_order if self.mode in IN_ORDER else pair_in_any_order
        pairs = pair(agent, reference, _by_name)
        answered = set(pairs.values())
        extra = [have[i] for i in range(len(have)) if i not in pairs]
        missing = [want[j] for j in range(len(want)) if j not in answered]
        if self.mode == "subset":
            passed = not extra
        elif self.mode in ("superset", "in_order"):
            passed = not missing and (self.max_extra is None or len(extra) <= self.max_extra)
        else:
            passed = not missing and not extra
        precision, recall, f1 = rates(len(pairs), len(have), len(want))
        found = {
            "passed": passed,
            "matched": len(pairs),
            "agent": len(have),
            "reference": len(want),
            "missing": [storable(each) for each in missing[:LISTED]],
            "extra": [storable(each) for each in extra[:LISTED]],
            "counts": {"missing": len(missing), "extra": len(extra)},
            "precision": precision,
            "recall": recall,
            "f1": f1,
        }
        return found, missing, extra

    def _faults(self, part: str, missing: list[str], extra: list[str]) -> list[str]:
        one = part.removesuffix("s")
        faults = [f"missing {one} {storable(each[:80])}" for each in missing] if self.mode != "subset" else []
        if self.mode in ("superset", "in_order"):
            if self.max_extra is not None and len(extra) > self.max_extra:
                faults.append(f"{len(extra)} extra {part}, at most {self.max_extra} allowed")
            return faults
        if self.mode == "strict" and sorted(missing) == sorted(extra):
            return [
                f"the same {part} in another order: {', '.join(storable(each[:80]) for each in missing[:5])}"
            ]
        return faults + [f"unexpected {one} {storable(each[:80])}" for each in extra]


def read_turns(value: object) -> Turns:
    """The nodes of a graph trajectory, turn by turn, from any of its shapes."""
    try:
        return _read_turns(value)
    except TraceError:
        raise
    except RecursionError as error:
        raise TraceError("the graph trajectory is nested too deeply to be read") from error
    except Exception as error:  # objects of other packages may raise anything when they are looked at
        raise TraceError(f"the graph trajectory cannot be read: {type(error).__name__}: {error}") from error


def _read_turns(value: Any) -> Turns:
    if isinstance(value, (str, bytes)):
        try:
            value = msgspec.json.decode(value)
        except (ValueError, RecursionError) as error:
            raise TraceError(
                "the graph trajectory is a string, but not JSON: give {'steps': [[node, …], …]}"
            ) from error
    value = plain(value)
    if isinstance(value, dict):
        inside = plain(value.get("outputs", value))
        source = inside if isinstance(inside, dict) else value
        value = next((plain(source[key]) for key in _STEP_KEYS if key in source), None)
    if not isinstance(value, list):
        raise TraceError("not a graph trajectory: give {'steps': [[node, …], …]}, or a list of node names")
    items = [plain(item) for item in value]
    if any(isinstance(item, list) for item in items):
        if not all(isinstance(item, list) for item in items):
            raise TraceError(
                "the graph trajectory mixes turns with single nodes: give one list for each turn"
            )
        return [[node for part in item for node in _nodes(plain(part))] for item in items]
    return [[node for item in items for node in _nodes(item)]] if items else []


def _nodes(item: Any) -> list[str]:
    """The node of an item: a name, something that has one, or an update `{node: changes}` of LangGraph."""
    if isinstance(item, str):
        return [item]
    if isinstance(item, dict):
        if isinstance(item.get("role"), str) or ("content" in item and isinstance(item.get("type"), str)):
            raise TraceError(
                "a message is not a node of a graph: trajectory_match compares the calls of messages"
            )
        named = next((item[key] for key in _NODE_KEYS if isinstance(item.get(key), str)), None)
        if named is not None:
            return [named]
        if item and all(isinstance(key, str) for key in item):
            return list(item)
    raise TraceError(f"{type(item).__name__} is not a node of a graph: give its name")


def _parts(turns: Turns, part: str) -> list[str]:
    if part == "nodes":
        return [node for turn in turns for node in turn]
    return [f"{here} → {there}" for turn in turns for here, there in pairwise(turn)]


_RULE = ModeRule("ignore")


def _by_name(name: str) -> Rule:
    return _RULE


def _check(mode: str, compare: list[str], max_extra: int | None) -> None:
    problems = []
    if mode not in get_args(Mode):
        problems.append(f"unknown mode {mode!r}: {did_you_mean(str(mode), get_args(Mode))}")
    unknown = [part for part in compare if part not in PARTS]
    if unknown or not compare:
        what = f"cannot compare {unknown[0]!r}" if unknown else "compares nothing"
        problems.append(f"{what}: compare takes nodes, transitions, or both")
    if max_extra is not None and (
        isinstance(max_extra, bool) or not isinstance(max_extra, int) or max_extra < 0
    ):
        problems.append(f"max_extra must be a whole number, 0 or more, not {max_extra!r}")
    elif max_extra is not None and mode not in ("superset", "in_order"):
        problems.append(f"max_extra applies to superset and in_order, not to mode {mode!r}")
    if problems:
        raise ConfigError(problems, "graph_trajectory_match")
