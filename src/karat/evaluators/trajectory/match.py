"""Compares the tool calls of an agent with those of a reference: `trajectory_match`.

| mode | passes when |
|---|---|
| strict | the same calls, in the same order |
| unordered | the same calls, in any order |
| subset | the agent made no call that the reference lacks |
| superset | the agent made every call of the reference, and perhaps more |
| in_order | the same, with the reference's calls in their order |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal, get_args

import msgspec

from karat.errors import ConfigError, did_you_mean
from karat.evaluators._base import Evaluator, register_evaluator
from karat.evaluators._parameters import ParameterCheck, named
from karat.evaluators.trajectory._arguments import (
    MODES,
    ArgumentMode,
    ModeRule,
    Rule,
    build_rule,
    override_codes,
)
from karat.evaluators.trajectory._calls import Calls, read_calls, read_reference
from karat.evaluators.trajectory._pairing import (
    SMALL,
    Budget,
    Pairs,
    align,
    by_name,
    matches_at,
    pair_in_any_order,
    pair_some,
    same_arguments,
)
from karat.evaluators.trajectory._report import (
    DETAILED,
    LISTED,
    MENTIONED,
    describe_calls,
    describe_mismatch,
    listed,
    mention_unused,
    pair_mismatched,
    show,
    show_mismatch,
)
from karat.records import Result
from karat.traces import TraceError

Mode = Literal["strict", "unordered", "subset", "superset", "in_order"]
IN_ORDER = ("strict", "in_order")


class Alignment(msgspec.Struct, frozen=True):
    """Which calls were paired, and which were left; positions in the agent's and the reference's calls."""

    pairs: Pairs
    extra: list[int]
    missing: list[int]
    needed: list[int]
    """Those of the missing that are not optional."""
    repeats: list[int]
    """Calls of the agent that repeat one of the reference's, and are forgiven."""
    related: bool
    """Whether calls that are left may match one another in another order."""


class Faults(msgspec.Struct, frozen=True):
    """The unpaired calls by kind of fault, as positions; each call has one fault."""

    missing: list[int]
    extra: list[int]
    mismatched: Pairs
    """The same tool on both sides, with other arguments."""
    misplaced: Pairs
    """The same call on both sides, in the wrong order."""


@register_evaluator("trajectory_match")
class TrajectoryMatchEvaluator(Evaluator):
    """Whether the agent's tool calls match a reference's: strict, unordered, subset, superset or in_order.

    `tool_args_match_overrides` maps a tool to a mode, a function of (agent's, reference's) arguments, a list
    of dotted paths to compare, or rules for fields: `any`, `exact`, `ignore_case`, `{tolerance: 0.5}`,
    `{relative_tolerance: 0.01}`, `{regex: "…"}`; `"*"` gives the mode of all other fields.
    `optional` names tools, or positions in the reference, whose calls may be missing. `max_extra` bounds the
    extra calls where the mode allows any. `allow_repeats` forgives repeating a call of the reference.
    `graded` gives the F1 of the alignment as score; `value` is pass or fail all the same.
    """

    gives_labels = False

    name = "trajectory_match"
    reuse = False
    needs_reference = True
    example: ClassVar[dict[str, Any]] = {
        "params": {"mode": "unordered", "tool_args_match_overrides": {"search": {"q": "ignore_case"}}},
        "outputs": [
            {"name": "book", "arguments": {"id": 7}},
            {"name": "search", "arguments": {"q": "oslo"}},
        ],
        "reference_outputs": [
            {"name": "search", "arguments": {"q": "Oslo"}},
            {"name": "book", "arguments": {"id": 7}},
        ],
        "score": 1.0,
    }

    def __init__(
        self,
        mode: Mode = "strict",
        tool_args_match_mode: ArgumentMode = "exact",
        tool_args_match_overrides: Mapping[str, Any] | None = None,
        allow_repeats: bool = False,
        optional: Sequence[str | int] = (),
        max_extra: int | None = None,
        graded: bool = False,
    ) -> None:
        super().__init__()
        check = ParameterCheck(self.name)
        overrides = check.mapping("tool_args_match_overrides", tool_args_match_overrides)
        check.flag("allow_repeats", allow_repeats)
        check.flag("graded", graded)
        _check(mode, tool_args_match_mode, allow_repeats, optional, max_extra)
        self.mode = mode
        self.allow_repeats = allow_repeats
        self.max_extra = max_extra
        self.graded = graded
        self.optional = list(optional)
        self.default = ModeRule(tool_args_match_mode)
        self.rules = {
            tool: build_rule(tool, given, tool_args_match_mode) for tool, given in overrides.items()
        }
        self._exact_first = all(rule.relation != "any" for rule in self.rules.values())
        self.params = {
            "mode": mode,
            "tool_args_match_mode": tool_args_match_mode,
            "tool_args_match_overrides": named(overrides),
            "allow_repeats": allow_repeats,
            "optional": self.optional,
            "max_extra": max_extra,
            "graded": graded,
        }
        self._codes = override_codes(overrides, self.rules)

    def configuration(self) -> Any:
        """The parameters, and the code of the functions among them."""
        return {**self.params, "code": self._codes} if self._codes else self.params

    def evaluate(
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        """Pass or fail (or F1), with the calls that matched, are missing, extra or mismatched."""
        agent = read_calls(outputs, context)
        reference = read_reference(reference_outputs, self.key)
        try:
            return self._judge(agent, reference)
        except RecursionError as error:
            raise TraceError("the arguments of a call are nested too deeply to be compared") from error

    def _judge(self, agent: Calls, reference: Calls) -> Result:
        alignment = self._align(agent, reference)
        passed = self._passes(alignment)
        faults = self._explain(agent, reference, alignment)
        metadata = self._metadata(agent, reference, alignment, faults)
        missing = len(alignment.missing) - len(alignment.needed)
        metadata["precision"], metadata["recall"], metadata["f1"] = _, _, f1 = rates(
            len(alignment.pairs),
            len(agent.names) - len(alignment.repeats),
            len(reference.names) - missing,
        )
        comment = self._comment(passed, metadata, alignment, faults)
        if agent.trajectory is not None or reference.trajectory is not None:
            comment += mention_unused(metadata, agent, reference)
        return Result(self.key, f1 if self.graded else float(passed), passed, comment, metadata)

    def _align(self, agent: Calls, reference: Calls) -> Alignment:
        optional = self._optional_positions(reference) if self.optional else set()
        pairs, related = self._pair(agent, reference, optional)
        count, wanted = len(agent.names), len(reference.names)
        extra, missing = list(range(count)), list(range(wanted))
        if pairs:
            extra = [i for i in extra if i not in pairs] if len(pairs) < count else []
            found = set(pairs.values())
            missing = [j for j in missing if j not in found] if len(pairs) < wanted else []
        needed = [j for j in missing if j not in optional] if optional else missing
        if not (self.allow_repeats and extra):
            return Alignment(pairs, extra, missing, needed, [], related)
        repeats = self._repeats(agent, extra, reference)
        forgiven = set(repeats)
        return Alignment(pairs, [i for i in extra if i not in forgiven], missing, needed, repeats, related)

    def _rule_of(self, tool: str) -> Rule:
        return self.rules.get(tool, self.default)

    def _pair(self, agent: Calls, reference: Calls, optional: set[int]) -> tuple[Pairs, bool]:
        names, asked = agent.names, reference.names
        if len(names) == 1 == len(asked):
            texts = self._exact_first and agent.as_text and reference.as_text
            if texts and names == asked and agent.given == reference.given:
                return {0: 0}, False
            return {0: 0} if matches_at(agent, 0, reference, 0, self._rule_of) else {}, False
        if not names or not asked or set(names).isdisjoint(asked):
            return {}, False
        if self.mode not in IN_ORDER:
            pairs = pair_in_any_order(
                agent, reference, self._rule_of, optional=optional, exact_first=self._exact_first
            )
            return pairs, False
        if names == asked and self._is_same_sequence(agent, reference):
            return dict(zip(range(len(names)), range(len(names)), strict=True)), False
        return align(agent, reference, self._rule_of, optional=optional, exact_first=self._exact_first)

    def _is_same_sequence(self, agent: Calls, reference: Calls) -> bool:
        """Whether the arguments are the same call by call; a fast check that may return False for equal ones."""
        if self._exact_first:
            texts = agent.as_text and reference.as_text
            if texts and agent.given == reference.given:
                return True
            if texts and len(agent) and agent.given[0] == reference.given[0]:
                return False  # the same spelling and not the same: the alignment finds the pairs more quickly
            if not texts and len(agent) > SMALL and same_arguments(agent, reference):
                return True
            if texts and not self.rules and self.default.mode == "exact":
                have, want = agent.keys(), reference.keys()
                if None not in have and None not in want:
                    return have == want  # faster than to compare the arguments one by one
        return False  # the alignment compares what matches at both ends first

    def _passes(self, alignment: Alignment) -> bool:
        if self.mode == "subset":
            return not alignment.extra
        if self.mode in ("superset", "in_order"):
            bound = self.max_extra
            return not alignment.needed and (bound is None or len(alignment.extra) <= bound)
        return not alignment.needed and not alignment.extra

    def _optional_positions(self, reference: Calls) -> set[int]:
        return {j for j in range(len(reference)) if j in self.optional or reference.names[j] in self.optional}

    def _repeats(self, agent: Calls, extra: list[int], reference: Calls) -> list[int]:
        """Return the extra calls that match a call of the reference."""
        theirs = by_name(reference, range(len(reference)))
        keys: dict[str, set[Any]] = {}
        budget = Budget()
        out = []
        for i in extra:
            name = agent.names[i]
            if name not in theirs:
                continue
            rule, given = self._rule_of(name), agent.arguments(i)
            if rule.relation == "equivalence":
                if name not in keys:
                    keys[name] = {rule.key(reference.arguments(j)) for j in theirs[name]}
                key = rule.key(given)
                if key is not None and None not in keys[name]:
                    out += [i] if key in keys[name] else []
                    continue
            budget.spend(len(theirs[name]))
            if any(rule.matches(given, reference.arguments(j)) for j in theirs[name]):
                out.append(i)
        return out

    def _explain(self, agent: Calls, reference: Calls, alignment: Alignment) -> Faults:
        extra, missing = alignment.extra, alignment.missing
        misplaced: Pairs = {}
        mismatched: Pairs = {}
        if len(extra) == 1 and len(missing) == 1 and not alignment.related:
            if agent.names[extra[0]] == reference.names[missing[0]]:
                return Faults([], [], {extra[0]: missing[0]}, {})
        elif extra and missing:
            if alignment.related:
                misplaced = self._pair_misplaced(agent, extra, reference, missing)
            mismatched = pair_mismatched(agent, extra, reference, missing, misplaced)
            paired = {*misplaced.values(), *mismatched.values()}
            missing = [j for j in missing if j not in paired]
            extra = [i for i in extra if i not in misplaced and i not in mismatched]
        return Faults(missing, extra, mismatched, misplaced)

    def _metadata(
        self, agent: Calls, reference: Calls, alignment: Alignment, faults: Faults
    ) -> dict[str, Any]:
        tools, pairs = agent.labels(), alignment.pairs
        metadata: dict[str, Any] = {
            "mode": self.mode,
            "tool_args_match_mode": self.default.mode,
            "agent_tools": tools[:LISTED],
            "reference_tools": reference.labels()[:LISTED],
            "agent_count": len(tools),
            "reference_count": len(reference.names),
            "matched": _listed_pairs(tools, pairs) if pairs else [],
            "missing": describe_calls(reference, faults.missing, "reference") if faults.missing else [],
            "extra": describe_calls(agent, faults.extra, "agent") if faults.extra else [],
            "mismatched": self._mismatched(agent, reference, faults.mismatched) if faults.mismatched else [],
            "counts": {
                "matched": len(pairs),
                "missing": len(faults.missing),
                "extra": len(faults.extra),
                "mismatched": len(faults.mismatched),
                "misplaced": len(faults.misplaced),
            },
        }
        if faults.misplaced:
            metadata["misplaced"] = _listed_pairs(tools, faults.misplaced)
        if alignment.repeats:
            metadata["repeats"] = describe_calls(agent, alignment.repeats, "agent")
        if alignment.needed is not alignment.missing and len(alignment.needed) < len(alignment.missing):
            needed = set(alignment.needed)
            metadata["optional_missing"] = [j for j in alignment.missing if j not in needed][:LISTED]
        return metadata

    def _mismatched(self, agent: Calls, reference: Calls, pairs: Pairs) -> list[dict[str, Any]]:
        """Describe the first mismatched calls with the differences in their arguments, others by their place."""
        out = [
            describe_mismatch(agent, i, reference, j, self._rule_of(agent.names[i]))
            for i, j in islice(pairs.items(), DETAILED)
        ]
        if len(pairs) > DETAILED:
            tools = agent.labels()
            out += [
                {"name": tools[i], "agent": i, "reference": j}
                for i, j in islice(pairs.items(), DETAILED, LISTED)
            ]
        return out

    def _pair_misplaced(self, agent: Calls, extra: list[int], reference: Calls, missing: list[int]) -> Pairs:
        """Pair calls that match one another but are in the wrong order."""
        return pair_some(agent, extra, reference, missing, self._rule_of, exact_first=self._exact_first)

    def _comment(self, passed: bool, metadata: dict[str, Any], alignment: Alignment, faults: Faults) -> str:
        if passed:
            matched, of, extra = len(alignment.pairs), metadata["reference_count"], len(alignment.extra)
            beside = f", beside {extra} more" if extra else ""
            return f"passed ({self.mode}): {matched} of {of} reference calls matched{beside}"
        shown: list[str] = []
        total = len(faults.misplaced) + len(faults.mismatched)
        if faults.misplaced:
            shown += [_out_of_order(call) for call in metadata["misplaced"][:MENTIONED]]
        if faults.missing and self.mode != "subset":
            missing, count = metadata["missing"], len(faults.missing)
            if alignment.needed is not alignment.missing:
                needed = set(alignment.needed)
                missing = [call for call in missing if call["reference"] in needed]
                count = sum(j in needed for j in faults.missing)
            shown += [f"missing {show(call)}" for call in missing[:MENTIONED]]
            total += count
        if self.mode not in ("superset", "in_order"):
            if faults.extra and len(shown) < MENTIONED:
                shown += [f"unexpected {show(call)}" for call in metadata["extra"][:MENTIONED]]
            total += len(faults.extra)
        elif self.max_extra is not None and len(alignment.extra) > self.max_extra:
            shown.append(f"{len(alignment.extra)} extra calls, at most {self.max_extra} allowed")
            total += 1
        if faults.mismatched and len(shown) < MENTIONED:
            shown += map(show_mismatch, metadata["mismatched"][:MENTIONED])
        shown = shown[:MENTIONED]
        return f"failed ({self.mode}): {listed(shown, more=total - len(shown))}"


def _out_of_order(call: Mapping[str, Any]) -> str:
    here, there = call["agent"] + 1, call["reference"] + 1
    return f"{call['name']} is out of order: call {here}, in the reference {there}"


def _listed_pairs(tools: list[str], pairs: Pairs) -> list[dict[str, Any]]:
    """List the first pairs by the name of the tool, as it can be stored, and by their positions."""
    first = islice(pairs.items(), LISTED) if len(pairs) > LISTED else pairs.items()
    return [{"name": tools[i], "agent": i, "reference": j} for i, j in first]


def rates(matched: int, agent: int, reference: int) -> tuple[float, float, float]:
    """Precision, recall and F1, as `set_match` has them: all are 1 where there is nothing on both sides."""
    if not agent and not reference:
        return 1.0, 1.0, 1.0
    return matched / (agent or 1), matched / (reference or 1), 2 * matched / (agent + reference)


def _check(mode: str, arguments: str, allow_repeats: bool, optional: Any, max_extra: int | None) -> None:
    problems = []
    modes = get_args(Mode)
    if mode not in modes:
        problems.append(f"unknown mode {mode!r}: {did_you_mean(str(mode), modes)}")
    if arguments not in MODES:
        problems.append(f"unknown tool_args_match_mode {arguments!r}: {did_you_mean(str(arguments), MODES)}")
    if not isinstance(optional, (list, tuple)) or not all(_is_optional(each) for each in optional):
        problems.append("optional is a list of tool names or of positions in the reference, from 0 up")
    if allow_repeats and mode == "strict":
        problems.append("mode 'strict' takes no allow_repeats: a repeated call is another sequence")
    if max_extra is not None:
        if isinstance(max_extra, bool) or not isinstance(max_extra, int) or max_extra < 0:
            problems.append(f"max_extra is a number from 0 up, not {max_extra!r}")
        elif mode not in ("superset", "in_order"):
            problems.append(
                f"max_extra bounds the extra calls of superset and in_order; mode {mode!r} has none"
            )
    if problems:
        raise ConfigError(problems, "trajectory_match")


def _is_optional(each: Any) -> bool:
    return isinstance(each, str) or (isinstance(each, int) and not isinstance(each, bool) and each >= 0)
