"""Pair the agent's calls with the reference's: maximum matchings in any order, longest alignments in order.

The number of pairs is the greatest possible and does not depend on the order in which calls are tried. Required calls
of the reference are covered before optional ones, at no cost to that number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from karat.evaluators.trajectory._arguments import Difference, FieldsRule, ModeRule, Rule, comparing
from karat.evaluators.trajectory._calls import Calls, encoded
from karat.evaluators.trajectory._equality import contains, leaf_keys
from karat.traces import TraceError

RuleOf = Callable[[str], Rule]
Pairs = dict[int, int]
"""Position of the agent's call → position of the reference's."""
NO_PAIRS: Pairs = {}
"""Not to be changed; a new dict for each of several results of an evaluation takes time."""
Keys = tuple[dict[int, Any], dict[int, Any]]
"""Keys of calls of the agent and of the reference, by position."""
Paired = tuple[Pairs, Sequence[int], Sequence[int]]
"""The pairs, and the positions left on both sides."""

COMPARISONS = 250_000
"""The maximum number of comparisons of one tool's calls one by one, some 2 µs each."""
SMALL = 16
"""Up to so many calls are looked up by their tool before their arguments are written down to be compared."""
MANY = 40
"""From so many calls on arguments are written down and looked up, rather than compared tool by tool."""
FEW = 36
"""Up to so many pairs of calls are compared one by one where their tools are the same, without looking for equal ones
first: 6 calls on both sides."""


class ComparisonLimit:
    """Counts the comparisons of one tool's calls and raises a TraceError where there are too many."""

    def __init__(self) -> None:
        self._left = COMPARISONS

    def spend(self, count: int) -> None:
        """Count some comparisons."""
        self._left -= count
        if self._left < 0:
            raise TraceError(
                f"more than {COMPARISONS:,} comparisons of the calls of one tool: shorten the trajectories, "
                "or compare the arguments exactly"
            )


def pair_by_position(
    agent: Calls, reference: Calls, rules: Mapping[str, Rule], default: Rule, exact_first: bool
) -> tuple[Pairs, Pairs, dict[int, list[Difference]]]:
    """Return the calls that match, those that mismatch, each with the call at the same position, and known differences.

    Both sides call the same tools in the same order, and none twice: under any rule there are no other pairs.
    """
    pairs: Pairs = {}
    mismatched: Pairs = {}
    differences: dict[int, list[Difference]] = {}
    if exact_first and agent.as_text and reference.as_text and agent.given == reference.given:
        return {i: i for i in range(len(agent.names))}, mismatched, differences
    have, want = agent.read or agent.values(), reference.read or reference.values()
    for i, name in enumerate(agent.names):
        rule = rules.get(name, default)
        if type(rule) is ModeRule:
            # Arguments match in a mode exactly where they do not differ: one comparison gives both.
            if found := rule.differences(have[i], want[i]):
                mismatched[i], differences[i] = i, found
            else:
                pairs[i] = i
        elif rule.matches(have[i], want[i]):
            pairs[i] = i
        else:
            mismatched[i] = i
    return pairs, mismatched, differences


def pair_by_tool(
    agent: Calls,
    reference: Calls,
    rules: Mapping[str, Rule],
    default: Rule,
    in_order: bool,
    exact_first: bool,
) -> tuple[Pairs, Pairs, Pairs]:
    """Return the calls that match, those that mismatch, and those that match out of order.

    Neither side calls a tool twice, so that each call can only match the other side's call of the same tool.
    """
    asked = reference.names
    if exact_first and not in_order and agent.as_text and reference.as_text:
        given, wanted = agent.given, reference.given
        pairs = {i: asked.index(name) for i, name in enumerate(agent.names) if name in asked}
        for i, j in pairs.items():
            if given[i] != wanted[j]:
                break
        else:
            return pairs, NO_PAIRS, NO_PAIRS
    have, want = agent.read or agent.values(), reference.read or reference.values()
    pairs = {}
    mismatched: Pairs = {}
    last, is_sorted = -1, True
    for i, name in enumerate(agent.names):
        if name not in asked:
            continue
        j = asked.index(name)
        if rules.get(name, default).matches(have[i], want[j]):
            pairs[i] = j
            if j < last:
                is_sorted = False
            last = j
        else:
            mismatched[i] = j
    if is_sorted or not in_order:
        return pairs, mismatched, NO_PAIRS
    pairs, misplaced = split_by_order(pairs)
    return pairs, mismatched, misplaced


def pair_with_one(agent: Calls, reference: Calls, rule: Rule) -> Pairs:
    """Return the first call of the agent that matches the only call of the reference, in any order or in theirs."""
    (name,) = reference.names
    matches, have, wanted = rule.matches, agent.read or agent, (reference.read or reference)[0]
    for i, tool in enumerate(agent.names):
        if tool == name and matches(have[i], wanted):
            return {i: 0}
    return NO_PAIRS


def split_by_order(partners: Pairs) -> tuple[Pairs, Pairs]:
    """Return the longest part of some pairs that keeps the order of both sides, and the others without repetitions.

    Each call of the agent has one call of the reference that it may be paired with, and several may have the same. This
    is a longest increasing subsequence, found by patience sorting.
    """
    if len(partners) == 2:
        (i, j), (other, following) = partners.items()
        return (partners, {}) if j < following else ({i: j}, {} if j == following else {other: following})
    last: list[int] = []
    """The lowest position in the reference at which a part of each length ends."""
    ends: list[list[int]] = []
    """The calls of the agent at which a longest part of each length ends, in their order."""
    for i, j in partners.items():
        length = bisect_left(last, j)
        if length == len(last):
            last.append(j)
            ends.append([i])
        else:
            last[length] = j
            ends[length].append(i)
    chosen: list[int] = []
    bound = max(partners.values(), default=0) + 1
    for level in reversed(ends):
        for i in level:
            j = partners[i]
            if j < bound:
                break
        bound = j
        chosen.append(i)
    kept = {i: partners[i] for i in reversed(chosen)}
    taken = set(kept.values())
    others: Pairs = {}
    for i, j in partners.items():
        if j not in taken:
            taken.add(j)
            others[i] = j
    return kept, others


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
    exact = False
    if not optional and len(left) * len(open_) <= FEW:
        found = _pair_few(agent, left, reference, open_, rule_of)
        if found is not None:
            return found
    if exact_first and not optional and not _ignores(rule_of(agent.names[left[0]])):
        if not agent.as_text and len(left) <= MANY and len(open_) <= MANY:
            found = _pair_few_by_tool(agent, left, reference, open_, rule_of)
            if found is not None:
                return found
        pairs, left, open_, exact = _pair_equal(agent, left, reference, open_, rule_of)
    if not left or not open_:
        return pairs
    if (
        len(left) > SMALL
        and not optional
        and _is_inclusion(rule_of(agent.names[left[0]]))
        and (included := _common_keys(agent, left, reference, open_, rule_of))
    ):
        _pair_keyed(*included, pairs)
        return dict(sorted(pairs.items()))
    asked = by_name(reference, open_)
    for name, positions in by_name(agent, left).items():
        if name in asked:
            rule = rule_of(name)
            if exact and _is_exact(rule):
                continue  # equal ones are paired, and no others match
            _pair_one_tool(agent, positions, reference, asked[name], rule, optional, pairs)
    return pairs


def _pair_few(
    agent: Calls, left: Sequence[int], reference: Calls, open_: Sequence[int], rule_of: RuleOf
) -> Pairs | None:
    """Pair a few calls with the first that matches; None where that may not give the greatest number of pairs."""
    names, asked = agent.names, reference.names
    have, want = agent.read or agent, reference.read or reference
    free = list(open_)
    taken: list[int] = []
    pairs: Pairs = {}
    for i in left:
        name = names[i]
        if name not in asked:
            continue
        rule, given = rule_of(name), have[i]
        matches = rule.matches
        for j in free:
            if asked[j] == name and matches(given, want[j]):
                pairs[i] = j
                free.remove(j)
                taken.append(j)
                break
        else:
            # Another call may give up its partner for one that is left; not where all that match are equivalent.
            if taken and rule.relation != "equivalence":
                for j in taken:
                    if asked[j] == name and matches(given, want[j]):
                        return None
    return pairs


def _pair_few_by_tool(
    agent: Calls, left: Sequence[int], reference: Calls, open_: Sequence[int], rule_of: RuleOf
) -> Pairs | None:
    """Pair calls tool by tool where each tool has only a few; None where one has more, or a choice is left."""
    asked = by_name(reference, open_)
    pairs: Pairs = {}
    for name, positions in by_name(agent, left).items():
        wanted = asked.get(name)
        if wanted is None:
            continue
        if len(positions) * len(wanted) > FEW // 4:
            return None
        found = _pair_few(agent, positions, reference, wanted, rule_of)
        if found is None:
            return None
        pairs |= found
    return dict(sorted(pairs.items()))


def _pair_equal(
    agent: Calls, left: Sequence[int], reference: Calls, open_: Sequence[int], rule_of: RuleOf
) -> tuple[Pairs, Sequence[int], Sequence[int], bool]:
    """Pair calls with equal arguments, by text or else by value; also return whether no equal calls are left.

    This loses no pair: if arguments are compared by an equivalence or an inclusion, a call that matches one of
    two equal calls also matches the other.
    """
    pairs: Pairs = {}
    # One tool is enough to ask: inclusion is looked for tool by tool afterwards, and finds equal arguments as well.
    inclusion = _is_inclusion(rule_of(agent.names[left[0]]))
    if agent.as_text and reference.as_text:
        texts, wanted = agent.given, reference.given
        # Two samples: where the texts differ in their spelling, the values decide about all at once.
        if wanted[open_[0]] in texts or wanted[open_[-1]] in texts:
            pairs, left, open_ = _pair_same(
                agent, left, chosen(texts, left), reference, open_, chosen(wanted, open_)
            )
    elif not inclusion and _shares_values(agent, reference):
        pairs, left, open_ = _pair_marked(agent, left, reference, open_)
    if inclusion or not left or not open_ or max(len(left), len(open_)) <= SMALL:
        return pairs, left, open_, False
    have, want = agent.keys_of(left), reference.keys_of(open_)
    found, left, open_ = _pair_same(agent, left, have, reference, open_, want)
    pairs = dict(sorted((pairs | found).items())) if pairs and found else pairs or found
    return pairs, left, open_, None not in have and None not in want


def _shares_values(agent: Calls, reference: Calls) -> bool:
    """Whether the first or the last arguments of the reference are among the agent's, and keys are not known yet.

    Otherwise hardly any arguments are written alike: the keys decide about all at once.
    """
    if agent.has_keys and reference.has_keys:
        return False
    values, wanted = agent.values(), reference.values()
    try:
        return len(values) <= SMALL or wanted[0] in values or wanted[-1] in values
    except Exception:  # a foreign object's comparison may raise anything
        return True


def _ignores(rule: Rule) -> bool:
    return type(rule) is ModeRule and rule.mode == "ignore"


def _is_exact(rule: Rule) -> bool:
    return type(rule) is ModeRule and rule.mode == "exact"


def _is_inclusion(rule: Rule) -> bool:
    return type(rule) is ModeRule and rule.relation == "preorder"


def _pair_marked(agent: Calls, left: Sequence[int], reference: Calls, open_: Sequence[int]) -> Paired:
    """Pair calls whose arguments are written alike as JSON, where they then prove to be the same values."""
    named = _pair_named(agent, left, reference, open_)
    if named is not None:
        return named
    have, want = agent.marks(), reference.marks()
    if not have or not want:
        return {}, left, open_
    found = _pair_same(agent, left, chosen(have, left), reference, open_, chosen(want, open_))
    mine, theirs = agent.values(), reference.values()
    for i, j in found[0].items():
        # What is no JSON may be written like something that is: bytes and their base64, NaN and None.
        if mine[i] != theirs[j]:
            return {}, left, open_
    return found


def _pair_named(agent: Calls, left: Sequence[int], reference: Calls, open_: Sequence[int]) -> Paired | None:
    """Pair calls with equal values where the reference calls no tool twice; None where it does, or may have no JSON."""
    asked = reference.names
    if len(asked) > SMALL:
        return None
    waiting = {asked[j]: j for j in open_}
    if len(waiting) < len(open_):
        return None
    names, mine, theirs = agent.names, agent.values(), reference.values()
    pairs: Pairs = {}
    rest: list[int] = []
    try:
        for i in left:
            j = waiting.get(names[i])
            if j is not None and mine[i] == theirs[j]:
                pairs[i] = j
                del waiting[names[i]]
            else:
                rest.append(i)
    except Exception:  # a foreign object's comparison may raise anything
        return None
    if not _are_same([mine[i] for i in pairs], [theirs[j] for j in pairs.values()]):
        return None
    return pairs, rest, list(waiting.values())


def _are_same(have: list[Any], want: list[Any]) -> bool:
    """Return whether values that Python takes for equal are written alike too: True is not 1."""
    return (written := encoded(have)) is not None and written == encoded(want)


def same_arguments(agent: Calls, reference: Calls) -> bool:
    """Whether the arguments are equal call by call; a fast check that may return False for equal ones."""
    have, want = agent.values(), reference.values()
    try:
        return have == want and _are_same(have, want)
    except Exception:  # a foreign object's comparison may raise anything
        return False


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
    names, asked = agent.names, reference.names
    if len(waiting) == len(want) and None not in waiting:
        # Nearly always the arguments alone distinguish the calls, without their names.
        pairs: Pairs = {}
        rest: list[int] = []
        for i, key in zip(left, have, strict=True):
            j = waiting.pop(key, None)
            if j is None:
                rest.append(i)
            elif names[i] == asked[j]:
                pairs[i] = j
            else:
                break
        else:
            return pairs, rest, list(waiting.values())
    queues: dict[tuple[str, Any], deque[int]] = {}
    for position, key in zip(open_, want, strict=True):
        if key is not None:
            queues.setdefault((asked[position], key), deque()).append(position)
    pairs, rest = {}, []
    for i, key in zip(left, have, strict=True):
        queue = queues.get((names[i], key))
        if queue:
            pairs[i] = queue.popleft()
        else:
            rest.append(i)
    taken = set(pairs.values())
    return pairs, rest, [position for position in open_ if position not in taken]


def chosen(values: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
    """The values at some positions."""
    if len(positions) == len(values):
        return values  # positions are in order, without duplicates
    return [values[position] for position in positions]


def unpaired(positions: Sequence[int], paired: Collection[int]) -> Sequence[int]:
    """Return the positions that are in no pair; all that are paired are among the positions."""
    if not paired:
        return positions
    if len(paired) == len(positions):
        return ()
    if len(paired) > SMALL:
        paired = set(paired)
    left = []
    for position in positions:  # for a few, a comprehension takes longer
        if position not in paired:
            left.append(position)
    return left


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
    if len(agents) == 1 and len(references) == 1:
        if rule.matches(agent.arguments(agents[0]), reference.arguments(references[0])):
            pairs[agents[0]] = references[0]
        return
    if _ignores(rule):
        pairs.update(zip(agents, references, strict=False))
        return
    few = len(agents) * len(references) <= FEW
    if few and not optional:
        found = _pair_few(agent, agents, reference, references, lambda name: rule)
        if found is not None:
            pairs.update(found)
            return
    if not few and (included := _inclusion_keys(agent, agents, reference, references, rule)):
        _pair_keyed(*included, pairs)
        return
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


def _inclusion_keys(
    agent: Calls, agents: Sequence[int], reference: Calls, references: Sequence[int], rule: Rule
) -> Keys | None:
    """Return keys that are equal exactly where calls match under a rule of inclusion; None where there are none.

    Where all calls of the included side have the same names of arguments, at every depth, another call includes one of
    them when the values at those names are equal: comparing each with each is not needed. A key of None matches none.
    """
    if not _is_inclusion(rule):
        return None
    mine, theirs = agent.values(), reference.values()
    have, want = [mine[i] for i in agents], [theirs[j] for j in references]
    if type(rule) is ModeRule and rule.mode == "superset":
        dead = _odd_ones(reference, references, want, agent, agents, have)
        found = leaf_keys(have, want, dead)
        return None if found is None else _keyed(agents, found[0], references, found[1])
    dead = _odd_ones(agent, agents, have, reference, references, want)
    found = leaf_keys(want, have, dead)
    return None if found is None else _keyed(agents, found[1], references, found[0])


def _odd_ones(
    calls: Calls,
    positions: Sequence[int],
    parts: list[Any],
    others: Calls,
    open_: Sequence[int],
    wholes: list[Any],
) -> Collection[int]:
    """Return which of some arguments are included in none of the others, where only a few have names of their own."""
    shapes = Counter(map(frozenset, parts)) if all(type(part) is dict for part in parts) else {}
    if len(shapes) != 2:
        return ()
    odd = min(shapes, key=shapes.__getitem__)
    found = [at for at, part in enumerate(parts) if part.keys() == odd] if shapes[odd] <= 2 else []
    for at in found:
        name = calls.names[positions[at]]
        for j, whole in zip(open_, wholes, strict=True):
            if others.names[j] == name and contains(whole, parts[at]):
                return ()
    return found


def _common_keys(
    agent: Calls, agents: Sequence[int], reference: Calls, references: Sequence[int], rule_of: RuleOf
) -> Keys | None:
    """Return keys that are equal exactly where calls match, for all tools together; None where there are none.

    There are such keys where one rule, of equality or of inclusion, applies to all tools; not for a few calls, which
    are compared more quickly. A key of None matches none.
    """
    names, asked = agent.names, reference.names
    is_small = len(agents) <= MANY and not agent.as_text
    if len(agents) <= SMALL or (is_small and _is_exact(rule_of(names[agents[0]]))):
        return None
    rules = {id(rule): rule for rule in map(rule_of, {asked[j] for j in references})}
    if len(rules) != 1:
        return None
    (rule,) = rules.values()
    if _is_exact(rule):
        have, want = rule_keys(agent, agents, rule), rule_keys(reference, references, rule)
        found = None if None in have.values() or None in want.values() else (have, want)
    else:
        found = _inclusion_keys(agent, agents, reference, references, rule)
    if found is None:
        return None
    have, want = found
    return (
        {i: None if key is None else (names[i], key) for i, key in have.items()},
        {j: None if key is None else (asked[j], key) for j, key in want.items()},
    )


def _only_partners(have: dict[int, Any], want: dict[int, Any]) -> Pairs | None:
    """Return the call of the reference that has the same key, for each call that has one; None where two have it."""
    places = {key: j for j, key in want.items() if key is not None}
    if len(places) + sum(key is None for key in want.values()) < len(want):
        return None
    return {i: places[key] for i, key in have.items() if key in places}


def _keyed(agents: Sequence[int], have: list[Any], references: Sequence[int], want: list[Any]) -> Keys:
    return dict(zip(agents, have, strict=True)), dict(zip(references, want, strict=True))


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
    rows = _rows(candidates(rule, wanted), agent, agents)
    read, compare = comparing(rule)
    wanted = [read(each) for each in wanted]
    edges = []
    for position, row in zip(agents, rows, strict=True):
        given = read(agent.arguments(position))
        edges.append([j for j in row if compare(given, wanted[j])])
    if max(map(len, edges)) <= 1:
        chosen = [row[0] for row in edges if row]
        if len(set(chosen)) == len(chosen):
            # No two calls want the same one: there is nothing to choose.
            pairs.update((agents[i], references[row[0]]) for i, row in enumerate(edges) if row)
            return
    found = [-1] * len(agents)
    if optional:
        required = {j for j, position in enumerate(references) if position not in optional}
        found = maximum_matching([[j for j in row if j in required] for row in edges], len(wanted), found)
    for i, j in enumerate(maximum_matching(edges, len(wanted), found)):
        if j >= 0:
            pairs[agents[i]] = references[j]


def _rows(likely: Candidates, agent: Calls, positions: Sequence[int]) -> list[Sequence[int]]:
    """Return the candidates of each call, counted before any is compared: too many are refused at once."""
    budget = ComparisonLimit()
    rows = []
    for position in positions:
        rows.append(likely.for_(agent.arguments(position)))
        budget.spend(len(rows[-1]))
    return rows


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
    """Search depth first along the layers, iteratively: a path may exceed Python's recursion limit."""
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


CELLS = 1_500_000
"""Up to so many pairs of calls an alignment with optional calls is computed."""


def pair_in_order(
    agent: Calls,
    reference: Calls,
    rule_of: RuleOf,
    *,
    optional: Collection[int] = (),
    exact_first: bool = True,
) -> Pairs:
    """Return the longest alignment in which both sides keep their order, in this order."""
    return align(agent, reference, rule_of, optional, exact_first)[0]


def align(
    agent: Calls,
    reference: Calls,
    rule_of: RuleOf,
    optional: Collection[int] = (),
    exact_first: bool = True,
) -> tuple[Pairs, Pairs]:
    """Return the longest alignment, and the pairs of calls that match and that it leaves out of order."""
    names, asked = agent.names, reference.names
    count, wanted = len(names), len(asked)
    if optional:
        mine, theirs = range(count), range(wanted)
        masks = _masks(
            agent, mine, reference, theirs, rule_of, _common_keys(agent, mine, reference, theirs, rule_of)
        )
        pairs = _weighted_alignment(masks, wanted, optional)
        return pairs, _pair_out_of_order(masks, pairs)
    start = end = 0
    if exact_first and (agent.as_text or count * wanted > FEW):
        start, end = _same_ends(agent, reference)
    last, last_wanted = count - end, wanted - end
    # Calls that match at the beginning or at the end may be paired first under any rule: an alignment has at most
    # one of the two in a pair, which can be exchanged for this one.
    shortest = last if last < last_wanted else last_wanted
    have, want = agent.read or agent, reference.read or reference
    while (
        start < shortest
        and (name := names[start]) == asked[start]
        and rule_of(name).matches(have[start], want[start])
    ):
        start += 1
    pairs = {at: at for at in range(start)} if start else {}
    misplaced: Pairs = {}
    if start < shortest and last - start + last_wanted - start > 2:
        while (
            start < last
            and start < last_wanted
            and (name := names[last - 1]) == asked[last_wanted - 1]
            and rule_of(name).matches(have[last - 1], want[last_wanted - 1])
        ):
            last, last_wanted = last - 1, last_wanted - 1
        if start < last and start < last_wanted:
            # The first two do not match, nor do the last two.
            mine, theirs = range(start, last), range(start, last_wanted)
            # A few objects are compared more quickly tool by tool.
            is_small = len(mine) <= MANY and len(theirs) <= MANY and not agent.as_text
            keys = None if is_small else _common_keys(agent, mine, reference, theirs, rule_of)
            partners = None if keys is None else _only_partners(*keys)
            if partners is None:
                masks = _masks(agent, mine, reference, theirs, rule_of, keys, ends_differ=True)
                if not any(mask & (mask - 1) for mask in masks):
                    partners = {
                        i: start + mask.bit_length() - 1 for i, mask in zip(mine, masks, strict=True) if mask
                    }
            if partners is not None:
                kept, misplaced = split_by_order(partners)
                pairs |= kept
            else:
                longest = _longest_alignment(masks, last_wanted - start)
                pairs |= {start + i: start + j for i, j in reversed(longest.items())}
                misplaced = {start + i: start + j for i, j in _pair_out_of_order(masks, longest).items()}
    shift = last_wanted - last
    for i in range(last, count):
        pairs[i] = i + shift
    return pairs, misplaced


def _pair_out_of_order(masks: list[int], found: Pairs) -> Pairs:
    """Pair the calls that an alignment leaves out, by the bits of those they match.

    The number of pairs is the greatest possible, unless there are more possible pairs than may be compared.
    """
    pairs: Pairs = {}
    if len(found) == len(masks):
        return pairs
    open_ = ~0
    for j in found.values():
        open_ ^= 1 << j
    free, owners, may_exchange = open_, {}, False
    # Masks whose partners are all taken by calls with the same mask: no exchange frees one of them.
    alone: set[int] = set()
    for i, mask in enumerate(masks):
        mask &= open_
        if not mask or i in found or mask in alone:
            continue
        if bits := mask & free:
            bit = bits & -bits
            free ^= bit
            j = bit.bit_length() - 1
            pairs[i], owners[j] = j, mask
        elif not may_exchange and all(owners[j] == mask for j in _positions(mask)):
            alone.add(mask)
        else:
            may_exchange = True
    if not may_exchange:
        return pairs
    left = {i: mask & open_ for i, mask in enumerate(masks) if mask & open_ and i not in found}
    if sum(map(int.bit_count, left.values())) > COMPARISONS:
        return pairs
    partners = maximum_matching(
        [_positions(mask) for mask in left.values()],
        max(left.values()).bit_length(),
        [pairs.get(i, -1) for i in left],
    )
    return {i: j for i, j in zip(left, partners, strict=True) if j >= 0}


def _positions(mask: int) -> list[int]:
    """Return the positions of the bits that are set."""
    out = []
    while mask:
        bit = mask & -mask
        out.append(bit.bit_length() - 1)
        mask ^= bit
    return out


def _same_ends(agent: Calls, reference: Calls) -> tuple[int, int]:
    """Count the identical calls at the beginning and at the end, which may be paired first.

    This loses no pair: an alignment that pairs one of two such calls differently can pair it with the other instead.
    """
    texts = agent.as_text and reference.as_text
    have, want = (agent.given, reference.given) if texts else (agent.values(), reference.values())
    names, asked = agent.names, reference.names
    shortest = min(len(have), len(want))
    start = end = 0
    try:
        while start < shortest and have[start] == want[start] and names[start] == asked[start]:
            start += 1
        most = shortest - start
        while end < most and have[~end] == want[~end] and names[~end] == asked[~end]:
            end += 1
    except Exception:  # a foreign object's comparison may raise anything
        return 0, 0
    if texts or not (start or end):
        return start, end
    last, last_wanted = len(have) - end, len(want) - end
    if _are_same([*have[:start], *have[last:]], [*want[:start], *want[last_wanted:]]):
        return start, end
    return 0, 0


def _masks(
    agent: Calls,
    agents: range,
    reference: Calls,
    references: range,
    rule_of: RuleOf,
    keys: Keys | None,
    ends_differ: bool = False,
) -> list[int]:
    """For each of the agent's calls in a range, those of the reference's it matches, as bits.

    `keys` are equal where calls match, if there are such keys. `ends_differ`: neither the first calls nor the last
    calls of the ranges match.
    """
    masks = [0] * len(agents)
    if not agents or not references:
        return masks
    if keys is not None:
        return _masks_of(keys, agents, references, masks)
    if len(agents) * len(references) <= FEW:
        names, asked = agent.names, reference.names
        mine_at, theirs_at = agent.read or agent, reference.read or reference
        corners = ((agents[0], references[0]), (agents[-1], references[-1])) if ends_differ else ()
        for i in agents:
            name = names[i]
            for j in references:
                if (
                    asked[j] == name
                    and (i, j) not in corners
                    and rule_of(name).matches(mine_at[i], theirs_at[j])
                ):
                    masks[i - agents.start] |= 1 << j - references.start
        return masks
    asked_by_name = by_name(reference, references)
    have, want, first, first_wanted = agent.values(), reference.values(), agents.start, references.start
    marks: Sequence[Any] | None = None
    asked_marks: Sequence[Any] = ()
    for name, mine in by_name(agent, agents).items():
        if name not in asked_by_name:
            continue
        rule, theirs = rule_of(name), asked_by_name[name]
        if len(mine) * len(theirs) <= FEW:
            matches, is_exact = rule.matches, _is_exact(rule)
            if is_exact and marks is None:
                marks, asked_marks = _reliable_marks(agent, reference) or ((), ())
            if not is_exact or not marks:
                for i in mine:
                    given = have[i]
                    for j in theirs:
                        if matches(given, want[j]):
                            masks[i - first] |= 1 << j - first_wanted
                continue
            for i in mine:
                given = have[i]
                for j in theirs:
                    try:
                        # Where Python and JSON disagree, these are 1 and True, 1 and 1.0, or no JSON.
                        is_known = (given == want[j]) is (marks[i] == asked_marks[j])
                    except Exception:  # a foreign object's comparison may raise anything
                        is_known = False
                    if marks[i] == asked_marks[j] if is_known else matches(given, want[j]):
                        masks[i - first] |= 1 << j - first_wanted
            continue
        if included := _inclusion_keys(agent, mine, reference, theirs, rule):
            _masks_of(included, agents, references, masks)
            continue
        mine_keys = rule_keys(agent, mine, rule)
        known = _masks_by_key(rule, rule_keys(reference, theirs, rule), first_wanted)
        if known is not None and None not in mine_keys.values():
            for position, key in mine_keys.items():
                masks[position - first] = known.get(key, 0)
            continue
        wanted = [want[position] for position in theirs]
        rows = _rows(candidates(rule, wanted), agent, mine)
        read, compare = comparing(rule)
        wanted = [read(each) for each in wanted]
        for position, row in zip(mine, rows, strict=True):
            given = read(have[position])
            masks[position - first] = sum(
                1 << theirs[j] - first_wanted for j in row if compare(given, wanted[j])
            )
    return masks


def _reliable_marks(agent: Calls, reference: Calls) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Return the marks of both sides if calls are equal where their marks and their values are, and otherwise not.

    None where arguments may have NaN or tuples, which Python takes for unequal, or values of foreign types.
    """
    if agent.as_text or reference.as_text:
        return None
    marks, asked = agent.marks(), reference.marks()
    return None if marks is None or asked is None or agent.may_hide_equals() else (marks, asked)


def _masks_of(keys: Keys, agents: range, references: range, masks: list[int]) -> list[int]:
    """Set the bits of calls with equal keys; a key of None equals none."""
    classes: dict[Any, int] = {}
    for position, key in keys[1].items():
        classes[key] = classes.get(key, 0) | 1 << position - references.start
    classes[None] = 0
    for position, key in keys[0].items():
        masks[position - agents.start] = classes.get(key, 0)
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


_PLAIN = frozenset((str, int, float, bool, type(None)))
_NESTED = frozenset((dict, list, tuple))

Item = tuple[Any, bool, Any]


class Candidates(Protocol):
    """Finds what is worth comparing; hundreds of calls of one tool are then not compared each with each."""

    def for_(self, given: object) -> Sequence[int]:
        """The positions of the reference's arguments that may match some of the agent's, in their order."""


def candidates(rule: Rule, wanted: Sequence[Any]) -> Candidates:
    """Return an index of the reference arguments that may match under a rule; all of them for an unknown rule."""
    if isinstance(rule, ModeRule) and rule.mode in ("subset", "superset"):
        items = [_items(each) for each in wanted]
        if None not in items:
            return SharedValues(rule.mode == "superset", items)  # type: ignore[arg-type]  # there is no None
    if isinstance(rule, FieldsRule):
        groups = [rule.group(each) for each in wanted]
        if None not in groups:
            return SameGroup(rule, groups)
    return Everything(len(wanted))


class Everything:
    """All of the reference's arguments."""

    def __init__(self, size: int) -> None:
        self._all = range(size)

    def for_(self, given: object) -> Sequence[int]:
        """All positions."""
        return self._all


class SameGroup:
    """Where fields have rules of their own: those that are the same in all other fields."""

    def __init__(self, rule: FieldsRule, groups: Sequence[Hashable]) -> None:
        self._rule = rule
        self._all = range(len(groups))
        self._members: dict[Hashable, list[int]] = {}
        for j, group in enumerate(groups):
            self._members.setdefault(group, []).append(j)

    def for_(self, given: object) -> Sequence[int]:
        """The positions of those in the same group."""
        group = self._rule.group(given)
        return self._all if group is None else self._members.get(group, ())


class SharedValues:
    """Candidates under a rule of inclusion: if a ⊆ b, b has the rarest plain value of a."""

    def __init__(self, superset: bool, items: Sequence[list[Item]]) -> None:
        self._superset = superset
        self._all = range(len(items))
        self._having: dict[Item, list[int]] = {}
        self._always: list[int] = []
        """Where the reference is what has to be included: those without a plain value."""
        count = Counter(item for each in items for item in each)
        for j, each in enumerate(items):
            if superset and each:
                each = [min(each, key=count.__getitem__)]
            elif not each:
                self._always.append(j)
            for item in each:
                self._having.setdefault(item, []).append(j)

    def for_(self, given: object) -> Sequence[int]:
        """The positions of those that may include it, or be included in it."""
        items = _items(given)
        if items is None:
            return self._all
        if self._superset:
            found = [j for item in items for j in self._having.get(item, ())]
            return sorted(found + self._always)
        if not items:
            return self._all
        return min((self._having.get(item, []) for item in items), key=len)


def _items(arguments: Any) -> list[Item] | None:
    """The plain values of arguments with their names; None where a foreign object may equal what it does not look like.

    True is kept from 1; NaN, which is not found by looking it up, is left out.
    """
    if type(arguments) is not dict:
        return None
    items: list[Item] = []
    for name, value in arguments.items():
        kind = type(value)
        if kind in _PLAIN:
            if value == value:
                items.append((name, kind is bool, value))
        elif kind not in _NESTED:
            return None
    return items
