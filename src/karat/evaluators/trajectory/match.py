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

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal, get_args

import msgspec

from karat.errors import ConfigError, did_you_mean
from karat.evaluators._base import Evaluator, ParameterCheck, named, register_evaluator
from karat.evaluators.trajectory._arguments import (
    MODES,
    ArgumentMode,
    Difference,
    Malformed,
    ModeRule,
    Rule,
    build_rule,
    comparing,
    override_codes,
    start_patterns,
)
from karat.evaluators.trajectory._calls import Calls, fast_calls, read_calls, read_reference
from karat.evaluators.trajectory._pairing import (
    NO_PAIRS,
    SMALL,
    ComparisonLimit,
    Pairs,
    align,
    by_name,
    pair_by_position,
    pair_by_tool,
    pair_some,
    pair_with_one,
    same_arguments,
    unpaired,
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
)
from karat.records import Result
from karat.traces import TraceError

Mode = Literal["strict", "unordered", "subset", "superset", "in_order"]
IN_ORDER = ("strict", "in_order")
Words = tuple[Sequence[str], Sequence[str], Sequence[str]]
"""The first missing, unexpected and mismatched calls, in words."""
_NONE: tuple[tuple[()], tuple[()]] = ((), ())


class Alignment(msgspec.Struct, frozen=True, gc=False):
    """The paired calls and the unpaired ones with reasons, as positions in the agent's and the reference's calls."""

    pairs: Pairs
    extra: Sequence[int]
    missing: Sequence[int]
    needed: Sequence[int]
    """Those of the missing that are not optional."""
    repeats: Sequence[int]
    """Calls of the agent that repeat one of the reference's, and are forgiven."""
    mismatched: Pairs
    """Extra and missing calls that name the same tool, with other arguments."""
    misplaced: Pairs
    """Extra and missing calls that match, in the wrong order."""
    unexpected: Sequence[int]
    """Those of the extra that are neither mismatched nor misplaced."""
    absent: Sequence[int]
    """Those of the missing that are neither mismatched nor misplaced."""
    differences: Mapping[int, list[Difference]]
    """Differences in the arguments of mismatched calls, where they are known already."""


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
    pass_fail = True
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
        self._needs_all = mode != "subset"
        self._most_extra = max_extra if mode in ("superset", "in_order") else 0
        self.graded = graded
        self.pass_fail = not graded
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
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        """Pass or fail (or F1), with the calls that matched, are missing, extra or mismatched."""
        agent = None if context else fast_calls(outputs)
        if agent is None:
            agent = read_calls(outputs, context)
        reference = fast_calls(reference_outputs)
        if reference is None:
            reference = read_reference(reference_outputs, self.key)
        if self.rules:
            start_patterns()
        try:
            alignment = self._align(agent, reference)
            passed = not (alignment.needed and self._needs_all) and (
                self._most_extra is None or len(alignment.extra) <= self._most_extra
            )
            metadata, words = self._metadata(agent, reference, alignment)
            if passed:
                matched, extra = len(alignment.pairs), len(alignment.extra)
                beside = f", beside {extra} more" if extra else ""
                wanted = len(reference.names)
                comment = f"passed ({self.mode}): {matched} of {wanted} reference calls matched{beside}"
            else:
                comment = self._failure(metadata, alignment, words)
        except RecursionError as error:
            raise TraceError("the arguments of a call are nested too deeply to be compared") from error
        if agent.trajectory is not None or reference.trajectory is not None:
            comment += mention_unused(metadata, agent, reference)
        score = metadata["f1"] if self.graded else 1.0 if passed else 0.0
        return Result(self.key, score, passed, comment, metadata)

    def _align(self, agent: Calls, reference: Calls) -> Alignment:
        names, asked = agent.names, reference.names
        tools, count, wanted = agent.tools or set(names), len(names), len(asked)
        is_single = len(tools) == count <= SMALL
        if is_single and names == asked:
            pairs, different, differences = pair_by_position(
                agent, reference, self.rules, self.default, self._exact_first
            )
            differing = list(different) if different else ()
            needed = self._required_calls(differing, reference) if self.optional else differing
            return Alignment(
                pairs, differing, differing, needed, (), different, NO_PAIRS, (), (), differences
            )
        if tools.isdisjoint(asked):
            left, open_ = range(count), range(wanted)
            needed = self._required_calls(open_, reference) if self.optional else open_
            return Alignment(NO_PAIRS, left, open_, needed, (), NO_PAIRS, NO_PAIRS, left, open_, {})
        repeats: Sequence[int] = ()
        mismatched: Pairs | None = None
        in_order = self.mode in IN_ORDER
        if wanted == 1 < count <= SMALL and not self.optional:
            pairs, misplaced = pair_with_one(agent, reference, self._rule_of(asked[0])), NO_PAIRS
        elif (
            is_single
            and len(reference.tools or set(asked)) == wanted <= SMALL
            and not (in_order and (self.optional or self.allow_repeats))
        ):
            pairs, mismatched, misplaced = pair_by_tool(
                agent, reference, self.rules, self.default, in_order, self._exact_first
            )
        else:
            pairs, misplaced = self._pair(agent, reference, in_order)
        matched = len(pairs)
        extra = unpaired(range(count), pairs) if matched < count else ()
        missing = unpaired(range(wanted), pairs.values()) if matched < wanted else ()
        if mismatched is None:
            if extra and self.allow_repeats:
                repeats = self._repeats(agent, extra, reference)
                extra, misplaced = unpaired(extra, repeats), NO_PAIRS
            mismatched = NO_PAIRS
            if extra and missing:
                mismatched = pair_mismatched(agent, extra, reference, missing, misplaced)
        needed = self._required_calls(missing, reference) if self.optional else missing
        unexpected, absent = extra, missing
        if mismatched or misplaced:
            found = misplaced | mismatched if misplaced else mismatched
            unexpected, absent = unpaired(extra, found), unpaired(missing, found.values())
        return Alignment(
            pairs, extra, missing, needed, repeats, mismatched, misplaced, unexpected, absent, {}
        )

    def _required_calls(self, missing: Sequence[int], reference: Calls) -> Sequence[int]:
        """Return the missing calls that are not optional."""
        optional = self._optional_positions(reference)
        return [j for j in missing if j not in optional]

    def _rule_of(self, tool: str) -> Rule:
        return self.rules.get(tool, self.default)

    def _pair(self, agent: Calls, reference: Calls, in_order: bool) -> tuple[Pairs, Pairs]:
        """Return the pairs, and those of calls that match out of order."""
        names, asked = agent.names, reference.names
        optional = self._optional_positions(reference) if self.optional else ()
        if not in_order:
            left, open_ = range(len(names)), range(len(asked))
            pairs = pair_some(agent, left, reference, open_, self._rule_of, optional, self._exact_first)
            return pairs, NO_PAIRS
        if self._exact_first and names == asked and self._is_same_sequence(agent, reference):
            return dict(zip(range(len(names)), range(len(names)), strict=True)), {}
        return align(agent, reference, self._rule_of, optional, self._exact_first)

    def _is_same_sequence(self, agent: Calls, reference: Calls) -> bool:
        """Whether the arguments are the same call by call; a fast check that may return False for equal ones."""
        if not (agent.as_text and reference.as_text):
            # The alignment compares a few calls more quickly.
            return len(agent.names) > SMALL and same_arguments(agent, reference)
        if agent.given == reference.given:
            return True
        if agent.given[0] == reference.given[0]:
            return False  # the same spelling and not the same: the alignment finds the pairs more quickly
        if not self.rules and self.default.mode == "exact":
            have, want = agent.keys(), reference.keys()
            if None not in have and None not in want:
                return have == want  # faster than to compare the arguments one by one
        return False  # the alignment compares what matches at both ends first

    def _optional_positions(self, reference: Calls) -> Collection[int]:
        return {j for j in range(len(reference)) if j in self.optional or reference.names[j] in self.optional}

    def _repeats(self, agent: Calls, extra: Sequence[int], reference: Calls) -> list[int]:
        """Return the extra calls that match a call of the reference."""
        theirs = by_name(reference, range(len(reference)))
        keys: dict[str, set[Any]] = {}
        wanted: dict[str, list[Any]] = {}
        budget = ComparisonLimit()
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
            read, compare = comparing(rule)
            if name not in wanted:
                wanted[name] = [read(reference.arguments(j)) for j in theirs[name]]
            given = read(given)
            if any(compare(given, other) for other in wanted[name]):
                out.append(i)
        return out

    def _metadata(self, agent: Calls, reference: Calls, alignment: Alignment) -> tuple[dict[str, Any], Words]:
        """Return the metadata, and the first missing, extra and mismatched calls in words."""
        pairs, mismatched, misplaced = alignment.pairs, alignment.mismatched, alignment.misplaced
        absent, unexpected = alignment.absent, alignment.unexpected
        tools = agent.known_labels or agent.labels()
        asked = reference.known_labels or reference.labels()
        count, wanted, matched = len(tools), len(asked), len(pairs)
        made, due = count, wanted
        if self.allow_repeats:
            made -= len(alignment.repeats)
        if self.optional:
            due -= len(alignment.missing) - len(alignment.needed)
        precision = recall = f1 = 0.0
        if matched:
            precision, recall, f1 = matched / made, matched / due, 2 * matched / (made + due)
        elif not (made or due):
            precision = recall = f1 = 1.0
        missing = describe_calls(reference, absent, "reference", "missing") if absent else _NONE
        extra = describe_calls(agent, unexpected, "agent", "unexpected") if unexpected else _NONE
        different = self._describe_mismatches(agent, reference, tools, alignment) if mismatched else _NONE
        metadata: dict[str, Any] = {
            "mode": self.mode,
            "tool_args_match_mode": self.default.mode,
            "agent_tools": tools[:LISTED] if count > LISTED else tools,
            "reference_tools": asked[:LISTED] if wanted > LISTED else asked,
            "agent_count": count,
            "reference_count": wanted,
            "matched": _listed_pairs(tools, pairs) if pairs else [],
            "missing": missing[0] or [],
            "extra": extra[0] or [],
            "mismatched": different[0] or [],
            "counts": {
                "matched": matched,
                "missing": len(absent),
                "extra": len(unexpected),
                "mismatched": len(mismatched),
                "misplaced": len(misplaced),
            },
            "precision": precision,
            "recall": recall,
            "f1": f1,
        }
        if misplaced:
            metadata["misplaced"] = _listed_pairs(tools, misplaced)
        if alignment.repeats:
            metadata["repeats"] = describe_calls(agent, alignment.repeats, "agent", "repeated")[0]
        if due < wanted:
            needed = set(alignment.needed)
            metadata["optional_missing"] = [j for j in alignment.missing if j not in needed][:LISTED]
        return metadata, (missing[1], extra[1], different[1])

    def _describe_mismatches(
        self, agent: Calls, reference: Calls, labels: list[str], alignment: Alignment
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Describe the first mismatched calls with the differences in their arguments, others by their place."""
        described, words = [], []
        pairs, differences = alignment.mismatched, alignment.differences
        for i, j in pairs.items() if len(pairs) <= DETAILED else islice(pairs.items(), DETAILED):
            have = agent.arguments(i) if agent.read is None else agent.read[i]
            if (found := differences.get(i)) is None:
                found = self._rule_of(agent.names[i]).differences(have, reference.arguments(j))
            each, text = describe_mismatch(labels[i], i, j, found, type(have) is Malformed)
            described.append(each)
            words.append(text)
        if len(pairs) > DETAILED:
            described += _listed_pairs(labels, pairs)[DETAILED:]
        return described, words

    def _failure(self, metadata: dict[str, Any], alignment: Alignment, words: Words) -> str:
        """Return the comment on trajectories that do not match."""
        missing, unexpected, mismatches = words
        shown: list[str] = []
        mode, total = self.mode, len(alignment.mismatched)
        if alignment.misplaced:
            shown += map(_out_of_order, metadata["misplaced"][:MENTIONED])
            total += len(alignment.misplaced)
        if missing and mode != "subset":
            count = len(alignment.absent)
            if self.optional:
                needed = set(alignment.needed)
                required = [call for call in metadata["missing"] if call["reference"] in needed]
                missing = [f"missing {show(call)}" for call in required[:MENTIONED]]
                count = sum(j in needed for j in alignment.absent)
            shown += missing
            total += count
        if mode != "superset" and mode != "in_order":
            if unexpected:
                shown += unexpected
                total += len(alignment.unexpected)
        elif self.max_extra is not None and len(alignment.extra) > self.max_extra:
            shown.append(f"{len(alignment.extra)} extra calls, at most {self.max_extra} allowed")
            total += 1
        shown += mismatches
        return f"failed ({mode}): {shown[0] if total == 1 else listed(shown, total)}"


def _out_of_order(call: Mapping[str, Any]) -> str:
    here, there = call["agent"] + 1, call["reference"] + 1
    return f"{call['name']} is out of order: call {here}, in the reference {there}"


def _listed_pairs(tools: list[str], pairs: Pairs) -> list[dict[str, Any]]:
    """List the first pairs by the name of the tool, as it can be stored, and by their positions."""
    listed = []
    for i, j in islice(pairs.items(), LISTED) if len(pairs) > LISTED else pairs.items():
        listed.append({"name": tools[i], "agent": i, "reference": j})
    return listed


def rates(matched: int, agent: int, reference: int) -> tuple[float, float, float]:
    """Precision, recall and F1, as `set_match` has them: all are 1 where there is nothing on both sides."""
    if not matched:
        return (0.0, 0.0, 0.0) if agent or reference else (1.0, 1.0, 1.0)
    return matched / (agent or 1), matched / (reference or 1), 2 * matched / (agent + reference)


def _check(mode: str, arguments: str, allow_repeats: bool, optional: Any, max_extra: int | None) -> None:
    problems = []
    modes = get_args(Mode)
    if mode not in modes:
        problems.append(f"unknown mode {mode!r}: {did_you_mean(str(mode), modes)}")
    if arguments not in MODES:
        problems.append(f"unknown tool_args_match_mode {arguments!r}: {did_you_mean(str(arguments), MODES)}")
    if not isinstance(optional, (list, tuple)) or not all(_is_optional(each) for each in optional):
        problems.append("optional must be a list of tool names, or of positions in the reference, from 0 up")
    if allow_repeats and mode == "strict":
        problems.append("mode 'strict' takes no allow_repeats: a repeated call is another sequence")
    if max_extra is not None:
        if isinstance(max_extra, bool) or not isinstance(max_extra, int) or max_extra < 0:
            problems.append(f"max_extra must be a whole number, 0 or more, not {max_extra!r}")
        elif mode not in ("superset", "in_order"):
            problems.append(f"max_extra applies to superset and in_order, not to mode {mode!r}")
    if problems:
        raise ConfigError(problems, "trajectory_match")


def _is_optional(each: Any) -> bool:
    return isinstance(each, str) or (isinstance(each, int) and not isinstance(each, bool) and each >= 0)
