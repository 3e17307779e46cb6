"""Whether the right tools were used: `tool_use`, `tool_call_accuracy`, `redundant_calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from karat.errors import ConfigError, NotApplicable, did_you_mean, plural
from karat.evaluators._base import Evaluator, ParameterCheck, named, register_evaluator
from karat.evaluators.trajectory._arguments import (
    MODES,
    ArgumentMode,
    Malformed,
    ModeRule,
    Rule,
    build_rule,
    override_codes,
    start_patterns,
)
from karat.evaluators.trajectory._calls import Calls, read_calls, read_reference, read_trajectory, storable
from karat.evaluators.trajectory._pairing import ComparisonLimit, pair_in_any_order
from karat.evaluators.trajectory._report import (
    LISTED,
    bounded,
    describe,
    describe_mismatch,
    listed,
    mention_unused,
    pair_mismatched,
    show,
)
from karat.evaluators.trajectory.match import rates
from karat.records import Output, Result
from karat.traces import ToolCall, TraceError, Trajectory


@register_evaluator("tool_use")
class ToolUseEvaluator(Evaluator):
    """Whether the agent called one tool, perhaps with expected arguments, anywhere in the trajectory.

    `args_match_mode` is `superset` by default: the expected arguments are among those given.
    """

    gives_labels = False

    name = "tool_use"
    pass_fail = True
    reuse = False
    example: ClassVar[dict[str, Any]] = {
        "params": {"expected_tool": "submit", "expected_args": {"id": 1}},
        "outputs": [{"name": "submit", "arguments": {"id": 1, "note": "done"}}],
        "score": 1.0,
    }

    def __init__(
        self,
        expected_tool: str,
        expected_args: Mapping[str, Any] | None = None,
        args_match_mode: ArgumentMode = "superset",
    ) -> None:
        super().__init__()
        _check_tool(expected_tool)
        _check_mode(args_match_mode, self.name)
        self.expected_tool = expected_tool
        check = ParameterCheck(self.name)
        self.expected_args = None if expected_args is None else check.mapping("expected_args", expected_args)
        self.rule = ModeRule(args_match_mode if expected_args is not None else "ignore")
        self.params = {
            "expected_tool": expected_tool,
            "expected_args": self.expected_args,
            "args_match_mode": args_match_mode,
        }

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        """1 where a call of the tool has the expected arguments, else 0."""
        calls = read_calls(outputs, context)
        try:
            return self._judge(calls)
        except RecursionError as error:
            raise TraceError("the arguments of a call are nested too deeply to be compared") from error

    def _judge(self, calls: Calls) -> Result:
        tool, expected = self.expected_tool, self.expected_args
        called = [i for i in range(len(calls)) if calls.names[i] == tool]
        found = [i for i in called if self.rule.matches(calls.arguments(i), expected)]
        names = sorted(set(calls.names))
        metadata: dict[str, Any] = {
            "called_tools": [storable(name) for name in calls.names[:LISTED]],
            "matched": found[:LISTED],
            "counts": {"calls": len(calls), "called": len(called), "matched": len(found)},
        }
        if found:
            with_args = " with the expected arguments" if expected is not None else ""
            comment = f"{tool} was called{with_args}, as call {found[0] + 1} of {len(calls)}"
        elif called:
            wanted, labels = Calls([tool], [expected]).arguments(0), calls.labels()
            near = [
                describe_mismatch(
                    labels[i], i, 0, self.rule.differences(have, wanted), type(have) is Malformed
                )
                for i, have in zip(called[:LISTED], calls.values_at(called[:LISTED]), strict=True)
            ]
            metadata["mismatched"] = [each for each, _ in near]
            comment = f"{tool} was called {plural(len(called), 'time')}, never as expected: " + listed(
                [words for _, words in near], len(called)
            )
        else:
            comment = f"{tool} was not called; " + (
                f"called: {', '.join(storable(name[:60]) for name in names[:10])}"
                if names
                else "no tool was called"
            )
        comment += mention_unused(metadata, calls)
        return Result(self.key, float(bool(found)), bool(found), comment, metadata)


@register_evaluator("tool_call_accuracy")
class ToolCallAccuracyEvaluator(Evaluator):
    """The fraction of the reference's tool calls that the agent made, in any order: partial credit.

    Precision, recall and F1 are in the metadata. Not applicable where the reference has no calls.
    """

    gives_labels = False

    name = "tool_call_accuracy"
    reuse = False
    needs_reference = True
    example: ClassVar[dict[str, Any]] = {
        "params": {"args_match_mode": "exact"},
        "outputs": [{"name": "search", "arguments": {"q": "oslo"}}],
        "reference_outputs": [
            {"name": "search", "arguments": {"q": "oslo"}},
            {"name": "book", "arguments": {"id": 7}},
        ],
        "score": 0.5,
    }

    def __init__(
        self,
        args_match_mode: ArgumentMode = "exact",
        args_match_overrides: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _check_mode(args_match_mode, self.name)
        overrides = ParameterCheck(self.name).mapping("args_match_overrides", args_match_overrides)
        self.default: Rule = ModeRule(args_match_mode)
        self.rules = {tool: build_rule(tool, given, args_match_mode) for tool, given in overrides.items()}
        self._exact_first = all(rule.relation != "any" for rule in self.rules.values())
        self.params = {"args_match_mode": args_match_mode, "args_match_overrides": named(overrides)}
        self._codes = override_codes(overrides, self.rules)

    def configuration(self) -> Any:
        """The parameters, and the code of the functions among them."""
        return {**self.params, "code": self._codes} if self._codes else self.params

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        """Return the share of the reference's calls that are matched."""
        agent = read_calls(outputs, context)
        reference = read_reference(reference_outputs, self.key)
        if not len(reference):
            raise NotApplicable("the reference has no tool calls to be reproduced")
        if self.rules:
            start_patterns()
        try:
            return self._judge(agent, reference)
        except RecursionError as error:
            raise TraceError("the arguments of a call are nested too deeply to be compared") from error

    def _rule_of(self, tool: str) -> Rule:
        return self.rules.get(tool, self.default)

    def _judge(self, agent: Calls, reference: Calls) -> Result:
        pairs = pair_in_any_order(agent, reference, self._rule_of, exact_first=self._exact_first)
        precision, recall, f1 = rates(len(pairs), len(agent), len(reference))
        found = set(pairs.values())
        extra = [i for i in range(len(agent)) if i not in pairs]
        missing = [j for j in range(len(reference)) if j not in found]
        mismatched = pair_mismatched(agent, extra, reference, missing, {})
        paired, labels = set(mismatched.values()), agent.labels()
        missing = [j for j in missing if j not in paired]
        extra = [i for i in extra if i not in mismatched]
        different = [
            describe_mismatch(
                labels[i],
                i,
                j,
                self._rule_of(agent.names[i]).differences(agent.arguments(i), reference.arguments(j)),
                type(agent.arguments(i)) is Malformed,
            )
            for i, j in islice(mismatched.items(), LISTED)
        ]
        metadata: dict[str, Any] = {
            "matched": len(pairs),
            "agent_calls": len(agent),
            "reference_calls": len(reference),
            "precision": precision,
            "recall": recall,
            "f1": f1,
            "missing": [describe(reference, j, "reference") for j in missing[:LISTED]],
            "extra": [describe(agent, i, "agent") for i in extra[:LISTED]],
            "mismatched": [each for each, _ in different],
            "counts": {
                "matched": len(pairs),
                "missing": len(missing),
                "extra": len(extra),
                "mismatched": len(mismatched),
            },
        }
        faults = [f"missing {show(call)}" for call in metadata["missing"]]
        faults += [words for _, words in different]
        comment = f"{len(pairs)} of {len(reference)} reference calls were made"
        comment += f": {listed(faults, len(missing) + len(mismatched))}" if faults else ""
        comment += mention_unused(metadata, agent, reference)
        return Result(self.key, recall, f"{len(pairs)}/{len(reference)}", comment, metadata)


@register_evaluator("redundant_calls")
class RedundantCallsEvaluator(Evaluator):
    """The share of tool calls that do not repeat an earlier one with the same arguments; 1 is none repeated.

    `ignore_tools` may be called as often as the agent likes. A call whose earlier try failed is no
    repetition unless `allow_retries` is off. `consecutive` counts only repetitions that follow at once.
    """

    gives_labels = False

    name = "redundant_calls"
    reuse = False
    example: ClassVar[dict[str, Any]] = {
        "params": {},
        "outputs": [{"name": "look", "arguments": {"at": 1}}, {"name": "look", "arguments": {"at": 1}}],
        "score": 0.5,
    }

    def __init__(
        self,
        ignore_tools: Sequence[str] = (),
        allow_retries: bool = True,
        consecutive: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(ignore_tools, (list, tuple)) or not all(isinstance(t, str) for t in ignore_tools):
            raise ConfigError(["ignore_tools must be a list of tool names"], self.name)
        check = ParameterCheck(self.name)
        self.ignore_tools = list(ignore_tools)
        self.allow_retries = check.flag("allow_retries", allow_retries)
        self.consecutive = check.flag("consecutive", consecutive)
        self.params = {
            "ignore_tools": self.ignore_tools,
            "allow_retries": allow_retries,
            "consecutive": consecutive,
        }

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        """Return 1 − redundant calls / all calls; without calls nothing is redundant."""
        output = context.get("output")
        trajectory = read_trajectory(outputs, output.trace if isinstance(output, Output) else ())
        calls = Calls.of(trajectory)
        try:
            repeats = self._repeats(calls, _failed_calls(trajectory) if self.allow_retries else set())
        except RecursionError as error:
            raise TraceError("the arguments of a call are nested too deeply to be compared") from error
        total = len(calls)
        score = 1 - len(repeats) / total if total else 1.0
        redundant = [
            {**describe(calls, i, "agent"), "repeats": first} for i, first in islice(repeats.items(), LISTED)
        ]
        metadata: dict[str, Any] = {
            "calls": total,
            "redundant": redundant,
            "counts": {"calls": total, "redundant": len(repeats)},
        }
        shown = [f"{show(each)} repeats call {each['repeats'] + 1}" for each in redundant]
        comment = f"{len(repeats)} of {total} calls are redundant"
        comment += f": {listed(shown, len(repeats))}" if shown else ""
        return Result(self.key, score, len(repeats), comment + mention_unused(metadata, calls), metadata)

    def _repeats(self, calls: Calls, failed: set[int]) -> dict[int, int]:
        """Position of each redundant call → position of the call it repeats."""
        rule = ModeRule("exact")
        earlier: dict[str, list[tuple[int, Any]]] = {}
        out: dict[int, int] = {}
        by_key: dict[Any, int] = {}
        budget = ComparisonLimit()
        for position in range(len(calls)):
            name, arguments = calls.names[position], calls.arguments(position)
            if name in self.ignore_tools:
                continue
            known = rule.key(arguments)
            key = (name, known)
            if known is not None:
                first = by_key.get(key)
            else:
                budget.spend(len(earlier.get(name, ())))
                same = (i for i, other in earlier.get(name, ()) if rule.matches(arguments, other))
                first = next(same, None)
                earlier.setdefault(name, []).append((position, arguments))
            by_key[key] = position if self.consecutive or first is None or first in failed else first
            if first is None or first in failed or (self.consecutive and first != position - 1):
                continue
            out[position] = first
        return out


def _failed_calls(trajectory: Trajectory) -> set[int]:
    """Return the positions of the calls with a failed result, matched by id or else by order."""
    failed: set[int] = set()
    waiting: list[tuple[int, ToolCall]] = []
    position = 0
    for step in trajectory.steps:
        for call in step.tool_calls:
            waiting.append((position, call))
            position += 1
        result = step.tool_result
        if result is None:
            continue
        found = [each for each in waiting if result.call_id is not None and each[1].id == result.call_id]
        answered = (found or waiting)[:1]
        for each in answered:
            waiting.remove(each)
            if result.error:
                failed.add(each[0])
    return failed


def _check_tool(tool: Any) -> None:
    if not isinstance(tool, str) or not tool:
        raise ConfigError([f"expected_tool must be the name of a tool, not {bounded(tool)!r}"], "tool_use")


def _check_mode(mode: Any, where: str) -> None:
    if mode not in MODES:
        raise ConfigError([f"unknown args_match_mode {mode!r}: {did_you_mean(str(mode), MODES)}"], where)
