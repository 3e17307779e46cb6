"""Which call of the agent answers which call of the reference, where both sides keep their order: alignments.

The longest there is; required calls of the reference are covered before optional ones.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from karat.evaluators.argument_index import candidates
from karat.evaluators.arguments import Rule
from karat.evaluators.calls import Calls
from karat.evaluators.matching import Pairs, RuleOf, by_name, rule_keys
from karat.traces import TraceError

CELLS = 4_000_000
"""Up to so many pairs of calls an alignment with optional calls is computed."""


def pair_in_order(
    agent: Calls,
    reference: Calls,
    rule_of: RuleOf,
    *,
    optional: Collection[int] = (),
    exact_first: bool = True,
) -> Pairs:
    """The longest alignment in which both sides keep their order, in this order."""
    if optional:
        masks = _masks(agent, range(len(agent)), reference, range(len(reference)), rule_of)
        return _weighted_alignment(masks, len(reference), optional)
    start, end = _same_ends(agent, reference) if exact_first else (0, 0)
    last, last_wanted = len(agent) - end, len(reference) - end
    pairs = dict(zip(range(start), range(start), strict=True))
    if start < last and start < last_wanted:
        masks = _masks(agent, range(start, last), reference, range(start, last_wanted), rule_of)
        found = _longest_alignment(masks, last_wanted - start)
        pairs |= {start + i: start + j for i, j in reversed(found.items())}
    pairs |= zip(range(last, len(agent)), range(last_wanted, len(reference)), strict=True)
    return pairs


def _same_ends(agent: Calls, reference: Calls) -> tuple[int, int]:
    """How many calls at the beginning and at the end are the same to the letter: these may be paired beforehand.

    It loses no pair: where an alignment has one of two such calls paired otherwise, it can be paired with the other.
    """
    if not (agent.as_text and reference.as_text):
        return 0, 0
    shortest = min(len(agent), len(reference))
    start = end = 0
    have, want = agent.given, reference.given
    while start < shortest and have[start] == want[start] and agent.names[start] == reference.names[start]:
        start += 1
    have, names, want, asked = have[::-1], agent.names[::-1], want[::-1], reference.names[::-1]
    while end < shortest - start and have[end] == want[end] and names[end] == asked[end]:
        end += 1
    return start, end


def _masks(agent: Calls, agents: range, reference: Calls, references: range, rule_of: RuleOf) -> list[int]:
    """For each of the agent's calls in a range, those of the reference's it matches, as bits."""
    masks = [0] * len(agents)
    asked = by_name(reference, references)
    for name, mine in by_name(agent, agents).items():
        if name not in asked:
            continue
        rule, theirs = rule_of(name), asked[name]
        have = rule_keys(agent, mine, rule)
        known = _masks_by_key(rule, rule_keys(reference, theirs, rule), references.start)
        if known is not None and None not in have.values():
            for position, key in have.items():
                masks[position - agents.start] = known.get(key, 0)
            continue
        wanted = [reference.arguments(position) for position in theirs]
        likely = candidates(rule, wanted)
        for position in mine:
            given = agent.arguments(position)
            masks[position - agents.start] = sum(
                1 << theirs[j] - references.start
                for j in likely.for_(given)
                if rule.matches(given, wanted[j])
            )
    return masks


def _masks_by_key(rule: Rule, wanted: dict[int, Any], start: int) -> dict[Any, int] | None:
    """The reference calls of each class, where the rule has classes and knows that of every call."""
    if rule.relation != "equivalence" or None in wanted.values():
        return None
    masks: dict[Any, int] = {}
    for position, key in wanted.items():
        masks[key] = masks.get(key, 0) | 1 << position - start
    return masks


def _longest_alignment(masks: list[int], width: int) -> Pairs:
    """Longest common subsequence, a row of bits at a time (Hyyrö 2004), and the way back through the rows."""
    full = (1 << width) - 1
    row = full
    rows = [row]
    for mask in masks:
        both = row & mask
        row = ((row + both) | (row - both)) & full
        rows.append(row)
    pairs: Pairs = {}
    j = width
    for i in range(len(masks), 0, -1):
        cells = (1 << j) - 1
        length = j - (rows[i] & cells).bit_count()
        if not length:
            break
        if length == j - (rows[i - 1] & cells).bit_count():
            continue
        # A clear bit is where the length grows: the last one within reach is where this call was paired.
        j = (~rows[i] & cells).bit_length() - 1
        pairs[i - 1] = j
    return pairs


def _weighted_alignment(masks: list[int], width: int, optional: Collection[int]) -> Pairs:
    """The alignment that covers most required calls, and among those most calls."""
    if len(masks) * width > CELLS:
        raise TraceError(
            f"{len(masks)} calls against {width} are too many to be aligned in order with optional calls: "
            "leave `optional` out, or use the mode 'superset'"
        )
    weights = [1 if j in optional else width + 1 for j in range(width)]
    table = [[0] * (width + 1)]
    for mask in masks:
        above, row = table[-1], [0]
        for j in range(width):
            best = max(above[j + 1], row[j])
            if mask >> j & 1:
                best = max(best, above[j] + weights[j])
            row.append(best)
        table.append(row)
    pairs: Pairs = {}
    j = width
    for i in range(len(masks), 0, -1):
        while j and table[i][j] == table[i][j - 1]:
            j -= 1
        if j and table[i][j] != table[i - 1][j]:
            j -= 1
            pairs[i - 1] = j
    return pairs
