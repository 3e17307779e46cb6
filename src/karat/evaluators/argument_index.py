"""Which arguments of a reference are worth comparing with some of the agent's: those that share a plain value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol

from karat.evaluators.arguments import FieldsRule, ModeRule, Rule

_PLAIN = frozenset((str, int, float, bool, type(None)))
_NESTED = frozenset((dict, list, tuple))

Item = tuple[Any, bool, Any]


class Candidates(Protocol):
    """Finds what is worth comparing; hundreds of calls of one tool are then not compared each with each."""

    def for_(self, given: Any) -> Iterable[int]:
        """The positions of the reference's arguments that may match some of the agent's, in their order."""


def candidates(rule: Rule, wanted: Sequence[Any]) -> Candidates:
    """Candidates among a reference's arguments under a rule; all of them where nothing is known about it."""
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

    def for_(self, given: Any) -> Iterable[int]:
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

    def for_(self, given: Any) -> Iterable[int]:
        """The positions of those in the same group."""
        group = self._rule.group(given)
        return self._all if group is None else self._members.get(group, ())


class SharedValues:
    """Under a rule of inclusion: for a ⊆ b each plain value of a is one of b's, so a's rarest one tells."""

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

    def for_(self, given: Any) -> Iterable[int]:
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
