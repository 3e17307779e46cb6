"""Which call of the agent answers which call of the reference, in any order: maximum matchings.

Whatever the order in which calls are tried, the number of pairs is the greatest possible. Required calls of
the reference are covered before optional ones, at no cost to that number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import repeat
from typing import Any

from karat.evaluators.argument_index import candidates
from karat.evaluators.arguments import ModeRule, Rule
from karat.evaluators.calls import Calls

RuleOf = Callable[[str], Rule]
Pairs = dict[int, int]
"""Position of the agent's call → position of the reference's."""
Paired = tuple[Pairs, Sequence[int], Sequence[int]]
"""The pairs, and the positions left on both sides."""

MANY = 8
"""From so many calls on it is worth to look for those that are written alike."""
FEW = 4
"""Up to so many pairs of calls are compared one by one at once, without looking for equal ones first."""


def pair_in_any_order(
    agent: Calls,
    reference: Calls,
    rule_of: RuleOf,
    *,
    optional: Collection[int] = (),
    exact_first: bool = True,
) -> Pairs:
    """A maximum matching. `exact_first`: all rules let calls with the same arguments be paired first."""
    left, open_ = range(len(agent)), range(len(reference))
    return pair_some(agent, left, reference, open_, rule_of, optional, exact_first)


def pair_some(
    agent: Calls,
    left: Sequence[int],
    reference: Calls,
    open_: Sequence[int],
    rule_of: RuleOf,
    optional: Collection[int] = (),
    exact_first: bool = True,
) -> Pairs:
    """A maximum matching of some calls of the agent with some of the reference, by their positions."""
    pairs: Pairs = {}
    if exact_first and not optional and len(left) * len(open_) > FEW:
        pairs, left, open_ = _pair_equal(agent, left, reference, open_)
    asked = by_name(reference, open_)
    for name, positions in by_name(agent, left).items():
        if name in asked:
            _pair_one_tool(agent, positions, reference, asked[name], rule_of(name), optional, pairs)
    return pairs


def _pair_equal(agent: Calls, left: Sequence[int], reference: Calls, open_: Sequence[int]) -> Paired:
    """Pairs calls with the same arguments, by their letters or else by their values.

    It loses no pair: where arguments are compared by an equivalence or an inclusion, whatever matches one of
    two equal calls matches the other.
    """
    pairs: Pairs = {}
    if agent.as_text and reference.as_text:
        texts, wanted = agent.given, reference.given
        # Two samples: where the texts differ in their spelling, the values decide about all at once.
        if wanted[open_[0]] in texts or wanted[open_[-1]] in texts:
            pairs, left, open_ = _pair_same(
                agent, left, _chosen(texts, left), reference, open_, _chosen(wanted, open_)
            )
    else:
        pairs, left, open_ = _pair_marked(agent, left, reference, open_)
    if not pairs or (left and open_):
        have, want = agent.keys_of(left), reference.keys_of(open_)
        found, left, open_ = _pair_same(agent, left, have, reference, open_, want)
        pairs = dict(sorted((pairs | found).items())) if pairs and found else pairs or found
    return pairs, left, open_


def _pair_marked(agent: Calls, left: Sequence[int], reference: Calls, open_: Sequence[int]) -> Paired:
    """Pairs calls whose arguments are written alike as JSON, where they then prove to be the same values."""
    if len(left) + len(open_) >= MANY and (have := agent.marks()) and (want := reference.marks()):
        marked = _pair_same(agent, left, _chosen(have, left), reference, open_, _chosen(want, open_))
        mine, theirs = agent.values(), reference.values()
        if [mine[i] for i in marked[0]] == [theirs[j] for j in marked[0].values()]:
            return marked
    return {}, left, open_


def same_arguments(agent: Calls, reference: Calls) -> bool:
    """Whether the arguments of calls are the same one by one, where that can be told at once."""
    if agent.values() != reference.values():
        return False
    have: Any
    want: Any
    if agent.as_text or reference.as_text:
        have, want = agent.marks(), reference.marks()
    else:
        have, want = agent.written(), reference.written()  # True is not 1
    return have is not None and have == want


def _pair_same(
    agent: Calls,
    left: Sequence[int],
    have: Sequence[Any],
    reference: Calls,
    open_: Sequence[int],
    want: Sequence[Any],
) -> Paired:
    """Pairs calls that have the same name and the same key, each used once; a key of None equals none."""
    waiting = dict(zip(want, open_, strict=True))
    if len(waiting) == len(want) and None not in waiting:
        # Nearly always the arguments alone tell the calls apart, whatever their names.
        found: list[int | None] = list(map(waiting.pop, have, repeat(None)))
        pairs, rest = _settled(left, found, len(want) - len(waiting))
        names = _chosen(agent.names, list(pairs) if rest else left)
        if names == [reference.names[j] for j in pairs.values()]:
            return pairs, rest, list(waiting.values())
    queues: dict[tuple[str, Any], deque[int]] = {}
    for position, key in zip(open_, want, strict=True):
        if key is not None:
            queues.setdefault((reference.names[position], key), deque()).append(position)
    rows = map(queues.get, zip(_chosen(agent.names, left), have, strict=True))
    found = [row.popleft() if row else None for row in rows]
    pairs, rest = _settled(left, found, len(found) - found.count(None))
    taken = set(found)
    return pairs, rest, [position for position in open_ if position not in taken]


def _settled(left: Sequence[int], found: list[int | None], paired: int) -> tuple[Pairs, list[int]]:
    """The pairs, and the agent's calls that are in none."""
    if paired == len(found):
        return dict(zip(left, found, strict=True)), []  # type: ignore[arg-type]  # there is no None among them
    pairs = {i: j for i, j in zip(left, found, strict=True) if j is not None}
    return pairs, [i for i in left if i not in pairs]


def _chosen(values: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
    """The values at some positions."""
    if positions == range(len(values)):
        return values
    return [values[position] for position in positions]


def by_name(calls: Calls, positions: Iterable[int]) -> dict[str, list[int]]:
    """Positions by the tool that is called there."""
    names = calls.names
    out: dict[str, list[int]] = {}
    for position in positions:
        out.setdefault(names[position], []).append(position)
    return out


def _pair_one_tool(
    agent: Calls,
    agents: list[int],
    reference: Calls,
    references: list[int],
    rule: Rule,
    optional: Collection[int],
    pairs: Pairs,
) -> None:
    """Adds a maximum matching of one tool's calls to the pairs."""
    if optional:
        # Of equal calls the required one is taken first.
        references = sorted(references, key=lambda position: (position in optional, position))
    few = len(agents) * len(references) <= FEW
    if not few and (rule.relation == "equivalence" or (rule.relation == "preorder" and not optional)):
        have = rule_keys(agent, agents, rule)
        want = rule_keys(reference, references, rule)
        keyed = None not in have.values() and None not in want.values()
        if keyed or not optional:
            agents, references = _pair_keyed(have, want, pairs)
        if rule.relation == "equivalence" and keyed:
            return
    if agents and references:
        _pair_compared(agent, agents, reference, references, rule, optional, pairs)


def rule_keys(calls: Calls, positions: Sequence[int], rule: Rule) -> dict[int, Any]:
    """The keys of some calls in the eyes of a rule."""
    if isinstance(rule, ModeRule) and rule.mode != "ignore":
        return dict(zip(positions, calls.keys_of(positions), strict=True))
    return {position: rule.key(calls.arguments(position)) for position in positions}


def _pair_keyed(have: dict[int, Any], want: dict[int, Any], pairs: Pairs) -> tuple[list[int], list[int]]:
    """Pairs equal keys; gives back what is left. Calls without a key have to be compared."""
    waiting: dict[Any, deque[int]] = {}
    for position, key in want.items():
        waiting.setdefault(key, deque()).append(position)
    left = []
    for position, key in have.items():
        queue = waiting.get(key) if key is not None else None
        if queue:
            pairs[position] = queue.popleft()
        else:
            left.append(position)
    return left, [position for queue in waiting.values() for position in queue]


def _pair_compared(
    agent: Calls,
    agents: list[int],
    reference: Calls,
    references: list[int],
    rule: Rule,
    optional: Collection[int],
    pairs: Pairs,
) -> None:
    wanted = [reference.arguments(position) for position in references]
    likely = candidates(rule, wanted)
    edges = []
    for position in agents:
        given = agent.arguments(position)
        edges.append([j for j in likely.for_(given) if rule.matches(given, wanted[j])])
    found = [-1] * len(agents)
    if optional:
        required = {j for j, position in enumerate(references) if position not in optional}
        found = maximum_matching([[j for j in row if j in required] for row in edges], len(wanted), found)
    for i, j in enumerate(maximum_matching(edges, len(wanted), found)):
        if j >= 0:
            pairs[agents[i]] = references[j]


def maximum_matching(edges: Sequence[Sequence[int]], right: int, found: Sequence[int]) -> list[int]:
    """Hopcroft–Karp: for each left node its partner or -1, starting from a matching that is grown.

    What was covered stays covered: an augmenting path only re-pairs.
    """
    partner = list(found)
    owner = [-1] * right
    for i, j in enumerate(partner):
        if j >= 0:
            owner[j] = i
    while True:
        depth = _layers(edges, partner, owner)
        if depth is None:
            return partner
        nexts = [0] * len(edges)
        for i, j in enumerate(partner):
            if j < 0:
                _augment(i, edges, partner, owner, depth, nexts)


def _layers(edges: Sequence[Sequence[int]], partner: list[int], owner: list[int]) -> list[int] | None:
    """Breadth first from all free left nodes; None where no augmenting path is left."""
    depth = [-1] * len(edges)
    queue: deque[int] = deque()
    for i, j in enumerate(partner):
        if j < 0:
            depth[i] = 0
            queue.append(i)
    reaches = False
    while queue:
        i = queue.popleft()
        for j in edges[i]:
            following = owner[j]
            if following < 0:
                reaches = True
            elif depth[following] < 0:
                depth[following] = depth[i] + 1
                queue.append(following)
    return depth if reaches else None


def _augment(
    root: int,
    edges: Sequence[Sequence[int]],
    partner: list[int],
    owner: list[int],
    depth: list[int],
    nexts: list[int],
) -> None:
    """Depth first along the layers, with a stack of its own: a path may be longer than Python recurses."""
    path: list[tuple[int, int]] = []
    node = root
    while True:
        row = edges[node]
        if nexts[node] >= len(row):
            if not path:
                return
            node = path.pop()[0]
            continue
        j = row[nexts[node]]
        nexts[node] += 1
        following = owner[j]
        if following < 0:
            path.append((node, j))
            for i, k in path:
                partner[i], owner[k] = k, i
            return
        if depth[following] == depth[node] + 1:
            path.append((node, j))
            node = following
