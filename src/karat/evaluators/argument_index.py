"""Which arguments of a reference are worth comparing with some of the agent's: those that share a plain value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from karat.evaluators.arguments import ModeRule, Rule

_PLAIN = frozenset((str, int, float, bool, type(None)))
_NESTED = frozenset((dict, list, tuple))

Item = tuple[Any, bool, Any]


class Likely:
    """Candidates among a reference's arguments under a rule of inclusion; under any other rule, all of them.

    For a ⊆ b each plain value of a is one of b's: it is enough to look at those that have a's rarest one. Hundreds
    of calls of one tool are then not compared each with each.
    """

    def __init__(self, rule: Rule, wanted: Sequence[Any]) -> None:
        self._all = range(len(wanted))
        self._mode = rule.mode if isinstance(rule, ModeRule) else ""
        items = [_items(each) for each in wanted] if self._mode in ("subset", "superset") else [None]
        if None in items:
            self._mode = ""
            return
        self._having: dict[Item, list[int]] = {}
        self._always: list[int] = []
        """Where the reference is what has to be included: those without a plain value."""
        count = Counter(item for each in items for item in each or ())
        for j, each in enumerate(items):
            if self._mode == "superset" and each:
                each = [min(each, key=count.__getitem__)]
            elif not each:
                self._always.append(j)
            for item in each or ():
                self._having.setdefault(item, []).append(j)

    def for_(self, given: Any) -> Iterable[int]:
        """The positions of those that may match, in their order."""
        items = _items(given) if self._mode else None
        if items is None:
            return self._all
        if self._mode == "superset":
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
