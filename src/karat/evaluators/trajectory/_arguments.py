"""When the arguments of two tool calls count as the same: modes, paths, per-field rules, functions.

`subset` is agent ⊆ reference, `superset` reference ⊆ agent, both into nested dicts; lists are values with an
order, compared item by item. True is not 1, and 1 is 1.0. Arguments that could not be read equal only the
same text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from karat.errors import ConfigError, RequestError, did_you_mean
from karat.evaluators._base import code_of, codes_in
from karat.evaluators.trajectory._equality import ATOMS, are_alike, canonical, contains, equal
from karat.paths import MISSING, find
from karat.registry import load_object
from karat.traces import TraceError

ArgumentMode = Literal["exact", "ignore", "subset", "superset"]
MODES: tuple[str, ...] = ("exact", "ignore", "subset", "superset")


class Malformed(msgspec.Struct, frozen=True):
    """Arguments that could not be read, as they were written."""

    raw: str


Difference = tuple[str, Any, Any]
"""One place where arguments differ: its path, and the agent's and the reference's value there."""


class Rule(Protocol):
    """When two calls' arguments match."""

    relation: Literal["equivalence", "preorder", "any"]
    """What may be taken for granted: equal keys say all; equal arguments may be paired first; nothing."""

    def matches(self, agent: object, reference: object) -> bool:
        """Whether the agent's arguments pass for the reference's."""

    def key(self, arguments: object) -> Hashable | None:
        """Equal keys match; for an equivalence, unequal keys do not. None: compare one by one."""

    def differences(self, agent: object, reference: object) -> list[Difference]:
        """List the differences under this rule."""


def _match_any(agent: object, reference: object) -> bool:
    return True


def _is_contained(agent: object, reference: object) -> bool:
    return contains(reference, agent)


_MATCHES: dict[str, Callable[[Any, Any], bool]] = {
    "exact": equal,
    "ignore": _match_any,
    "subset": _is_contained,
    "superset": contains,
}
"""Whether the agent's arguments pass for the reference's, in each of the modes."""


class ModeRule:
    """Arguments compared as a whole, in one of the four modes."""

    relation: Literal["equivalence", "preorder", "any"]
    matches: Callable[[Any, Any], bool]

    def __init__(self, mode: ArgumentMode) -> None:
        self.mode = mode
        self.relation = "equivalence" if mode in ("exact", "ignore") else "preorder"
        self.matches = _MATCHES[mode]

    def key(self, arguments: object) -> Hashable | None:
        """Return the same key for all arguments, which are ignored."""
        return b"" if self.mode == "ignore" else canonical(arguments)

    def differences(self, agent: object, reference: object) -> list[Difference]:
        """List the differences under this mode; the list is empty exactly if the arguments match."""
        found: list[Difference] = []
        if self.mode != "ignore" and not are_alike(agent, reference):
            _collect(agent, reference, self.mode, "", found)
        return found


class PathsRule:
    """Only the values at some dotted paths are compared; a value missing on one side only is a difference."""

    relation: Literal["equivalence", "preorder", "any"] = "equivalence"

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)

    def matches(self, agent: object, reference: object) -> bool:
        """Whether all paths lead to equal values."""
        if isinstance(agent, Malformed) or isinstance(reference, Malformed):
            return bool(agent == reference)
        return all(equal(find(agent, path), find(reference, path)) for path in self.paths)

    def key(self, arguments: object) -> Hashable | None:
        """Return the values at the paths as the key."""
        if isinstance(arguments, Malformed):
            return arguments
        keys = []
        for path in self.paths:
            value = find(arguments, path)
            key = MISSING if value is MISSING else canonical(value)
            if key is None:
                return None
            keys.append(key)
        return tuple(keys)

    def differences(self, agent: object, reference: object) -> list[Difference]:
        """The paths with unequal values."""
        found = ((path, find(agent, path), find(reference, path)) for path in self.paths)
        return [(path, a, b) for path, a, b in found if not equal(a, b)]


class SplitArguments(NamedTuple):
    """Arguments taken apart by a `FieldsRule`."""

    values: list[Any]
    others: Any


class FieldsRule:
    """A rule for each of some fields; all other arguments are compared in one mode."""

    relation: Literal["equivalence", "preorder", "any"] = "any"

    def __init__(self, fields: Mapping[str, FieldCheck], mode: ArgumentMode) -> None:
        self.fields = dict(fields)
        self.base = ModeRule(mode)

    def matches(self, agent: object, reference: object) -> bool:
        """Whether every field passes its rule and the rest matches."""
        return self.compare(self.split(agent), self.split(reference))

    def split(self, arguments: object) -> Malformed | SplitArguments:
        """The values of the fields as their checks read them, and the rest: taken apart once for many comparisons."""
        if isinstance(arguments, Malformed):
            return arguments
        found = [(find(arguments, path), check.read) for path, check in self.fields.items()]
        values = [value if value is MISSING or read is None else read(value) for value, read in found]
        return SplitArguments(values, self._others(arguments))

    def compare(self, agent: Malformed | SplitArguments, reference: Malformed | SplitArguments) -> bool:
        """Whether arguments that are taken apart match."""
        if isinstance(agent, Malformed) or isinstance(reference, Malformed):
            return bool(agent == reference)
        if not self.base.matches(agent.others, reference.others):
            return False
        fields = zip(self.fields.values(), agent.values, reference.values, strict=True)
        return not any(self._fails(check, a, b) for check, a, b in fields)

    def key(self, arguments: object) -> Hashable | None:
        """Return None: a tolerance does not divide values into classes."""
        return None

    def group(self, arguments: object) -> Hashable | None:
        """Arguments of different groups do not match; None: nothing is known. What no field's rule is about."""
        if isinstance(arguments, Malformed):
            return arguments
        return canonical(self._others(arguments)) if self.base.mode == "exact" else None

    def differences(self, agent: object, reference: object) -> list[Difference]:
        """The fields that fail, and what differs in the rest."""
        mine, theirs = self.split(agent), self.split(reference)
        if isinstance(mine, Malformed) or isinstance(theirs, Malformed):
            return self.base.differences(agent, reference)
        found = [
            (path, find(agent, path), find(reference, path))
            for (path, check), a, b in zip(self.fields.items(), mine.values, theirs.values, strict=True)
            if self._fails(check, a, b)
        ]
        return found + self.base.differences(self._others(agent), self._others(reference))

    def _others(self, arguments: Any) -> Any:
        for path in self.fields:
            arguments = without(arguments, path)
        return arguments

    def _fails(self, check: FieldCheck, a: Any, b: Any) -> bool:
        mode = self.base.mode
        if check.always or (a is MISSING and b is MISSING and not check.agent_only):
            return False
        if a is MISSING:
            return mode != "subset"
        if b is MISSING and not check.agent_only:
            return mode != "superset"
        return not check.test(a, b)


class CallableRule:
    """A function of the two arguments decides."""

    relation: Literal["equivalence", "preorder", "any"] = "any"

    def __init__(self, function: Callable[[Any, Any], Any], tool: str) -> None:
        self.function = function
        self.tool = tool

    def matches(self, agent: object, reference: object) -> bool:
        """Call the function; malformed arguments are not passed to it and must be equal."""
        if isinstance(agent, Malformed) or isinstance(reference, Malformed):
            return bool(agent == reference)
        try:
            found = self.function(agent, reference)
            matches = None if found is None else bool(found)
        except Exception as error:
            raise TraceError(
                f"the argument comparison of tool {self.tool!r} raised {type(error).__name__}: {error}"
            ) from error
        if matches is None:
            raise TraceError(
                f"the argument comparison of tool {self.tool!r} returned None: it must return a verdict"
            )
        return matches

    def key(self, arguments: object) -> Hashable | None:
        """Return None: nothing is known about the function."""
        return None

    def differences(self, agent: object, reference: object) -> list[Difference]:
        """The arguments as a whole: the function does not say which part it minds."""
        return [] if self.matches(agent, reference) else [("", agent, reference)]


def comparing(rule: Rule) -> tuple[Callable[[Any], Any], Callable[[Any, Any], bool]]:
    """Return two functions: one to prepare each of many arguments once, one to compare two prepared ones."""
    if isinstance(rule, FieldsRule):
        return rule.split, rule.compare
    return _unchanged, rule.matches


def _unchanged(arguments: object) -> object:
    return arguments


def without(arguments: object, path: str) -> Any:
    """The arguments without the value at a path, as a copy; a dict that is left empty goes with it.

    In a list the place stays, for the items after it keep theirs.
    """
    head, dot, tail = path.partition(".")
    if isinstance(arguments, (list, tuple)):
        if find(arguments, head) is MISSING:
            return arguments
        position = int(head)
        inner = without(arguments[position], tail) if dot else None
        return [*arguments[:position], inner, *arguments[position + 1 :]]
    if not isinstance(arguments, Mapping):
        return arguments
    if path in arguments:
        return {key: value for key, value in arguments.items() if key != path}
    if not dot or head not in arguments:
        return arguments
    inner = without(arguments[head], tail)
    if inner == {} and arguments[head]:
        return {key: value for key, value in arguments.items() if key != head}
    return {**arguments, head: inner}


def build_rule(tool: str, given: object, mode: ArgumentMode) -> Rule:
    """The rule an override asks for: a mode, a function (or its dotted path), a list of paths, fields."""
    if isinstance(given, str):
        if given in MODES:
            return ModeRule(given)  # type: ignore[arg-type]  # it is one of them
        if "." in given or ":" in given:
            found = load_object(given)
            if not callable(found):
                raise RequestError(f"the override of tool {tool!r}: {given} is not a function")
            return CallableRule(found, tool)
        raise RequestError(
            f"the override of tool {tool!r}: unknown mode {given!r}: {did_you_mean(given, MODES)}"
        )
    if callable(given):
        return CallableRule(given, tool)
    if isinstance(given, Mapping):
        return _build_fields(tool, given, mode)
    if isinstance(given, Sequence) and all(isinstance(path, str) for path in given):
        if not given:
            raise RequestError(
                f"the override of tool {tool!r} is an empty list: to compare nothing, use ignore"
            )
        return PathsRule(given)
    raise RequestError(
        f"the override of tool {tool!r} is {type(given).__name__}: "
        "give a mode, a function, a list of paths, or a rule for each field"
    )


def override_codes(overrides: Mapping[str, Any], rules: Mapping[str, Rule]) -> list[str]:
    """The code of all functions that overrides hand over or name by their path: what verdicts depend on."""
    by_path = [
        code_of(rule.function)
        for tool, rule in rules.items()
        if isinstance(rule, CallableRule) and isinstance(overrides[tool], str)
    ]
    return codes_in(overrides) + by_path


def _build_fields(tool: str, given: Mapping[str, Any], mode: ArgumentMode) -> Rule:
    problems: list[str] = []
    fields: dict[str, FieldCheck] = {}
    for path, rule in given.items():
        if path == "*":
            if rule not in MODES:
                problems.append(f"field '*' takes a mode, not {rule!r}: {did_you_mean(str(rule), MODES)}")
            else:
                mode = rule
            continue
        try:
            fields[path] = build_check(rule)
        except ValueError as error:
            problems.append(f"field {path!r}: {error}")
    if problems:
        raise ConfigError(problems, f"the override of tool {tool!r}")
    return FieldsRule(fields, mode)


def _collect(agent: Any, reference: Any, mode: str, path: str, found: list[Difference]) -> None:
    """Walk both values and add their differences; stop at a hundred."""
    if len(found) >= 100:
        return
    kind = type(agent)
    if kind in ATOMS:
        if not equal(agent, reference):
            found.append((path, agent, reference))
    elif (kind is dict and type(reference) is dict) or (
        isinstance(agent, Mapping) and isinstance(reference, Mapping)
    ):
        absent = 0
        for key, want in reference.items():
            if key not in agent:
                absent += 1
                if mode != "subset":
                    found.append((f"{path}.{key}" if path else str(key), MISSING, want))
                continue
            have = agent[key]
            if have is want:
                continue
            kind = type(have)
            # Most arguments are plain values, which need no further call.
            if kind is not type(want) or kind not in ATOMS:
                if not are_alike(have, want):
                    _collect(have, want, mode, f"{path}.{key}" if path else str(key), found)
            elif have != want:
                found.append((f"{path}.{key}" if path else str(key), have, want))
        if mode != "superset" and len(agent) > len(reference) - absent:
            for key, have in agent.items():
                if key not in reference:
                    found.append((f"{path}.{key}" if path else str(key), have, MISSING))
    elif (
        isinstance(agent, (list, tuple))
        and isinstance(reference, (list, tuple))
        and len(agent) == len(reference)
    ):
        for position, (a, b) in enumerate(zip(agent, reference, strict=True)):
            _collect(a, b, mode, f"{path}.{position}" if path else str(position), found)
    elif not equal(agent, reference):
        found.append((path, agent, reference))


REGEX_SECONDS = 1.0
"""How long all patterns may run in one evaluation before it is an error."""


class _Patterns(threading.local):
    """The time that the patterns of an evaluation took, and their cached verdicts, which depend on one side only."""

    def __init__(self) -> None:
        self.left = REGEX_SECONDS
        self.found: dict[tuple[Any, str], bool] = {}


_patterns = _Patterns()


def start_patterns() -> None:
    """Begin an evaluation: its patterns may take REGEX_SECONDS together."""
    _patterns.left = REGEX_SECONDS
    _patterns.found.clear()


class FieldCheck(msgspec.Struct, frozen=True):
    """The rule of one field."""

    test: Callable[[Any, Any], bool]
    read: Callable[[Any], Any] | None = None
    """What to make of each value before values are compared."""
    always: bool = False
    """Any value will do, also none."""
    agent_only: bool = False
    """The reference's value does not matter."""


_OPTIONS = ("tolerance", "relative_tolerance", "ignore_case", "regex")


def build_check(rule: object) -> FieldCheck:
    """The check a rule asks for; ValueError where it is none."""
    if rule == "any":
        return FieldCheck(lambda a, b: True, always=True)
    if rule == "exact":
        return FieldCheck(equal)
    if rule == "ignore_case":
        rule = {"ignore_case": True}
    if callable(rule):
        return FieldCheck(_by_function(rule))
    if not isinstance(rule, Mapping) or not rule:
        raise ValueError(
            f"{rule!r} is not a rule: give any, exact, ignore_case, or one of {', '.join(_OPTIONS)}"
        )
    unknown = [key for key in rule if key not in _OPTIONS]
    if unknown:
        raise ValueError(f"there is no rule {unknown[0]!r}: {did_you_mean(str(unknown[0]), _OPTIONS)}")
    if "regex" in rule:
        if len(rule) > 1 and set(rule) != {"regex", "ignore_case"}:
            raise ValueError("regex can be combined with ignore_case only")
        return FieldCheck(_pattern(rule["regex"], bool(rule.get("ignore_case"))), agent_only=True)
    if "ignore_case" in rule:
        if len(rule) > 1:
            raise ValueError("ignore_case is for texts, a tolerance for numbers: give one of them")
        return FieldCheck(_same_folded if rule["ignore_case"] else equal)
    return FieldCheck(_within(rule.get("tolerance", 0.0), rule.get("relative_tolerance", 0.0)), _number)


def _by_function(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    def test(a: object, b: object) -> bool:
        try:
            return bool(function(a, b))
        except Exception as error:
            raise TraceError(f"the comparison of a field raised {type(error).__name__}: {error}") from error

    return test


def _within(absolute: Any, relative: Any) -> Callable[[Any, Any], bool]:
    for bound in (absolute, relative):
        if not _is_number(bound) or not bound >= 0:
            raise ValueError(f"a tolerance must be a number, 0 or more, not {bound!r}")
    least, share = _decimal(absolute), _decimal(relative)

    def test(a: _Number | Any, b: _Number | Any) -> bool:
        if type(a) is not _Number or type(b) is not _Number:
            return equal(*(each.value if type(each) is _Number else each for each in (a, b)))
        return abs(a.exact - b.exact) <= max(least, share * max(a.size, b.size))

    return test


class _Number(NamedTuple):
    """A finite number, the same as a decimal, and its absolute value."""

    value: float
    exact: Decimal
    size: Decimal


def _number(value: Any) -> Any:
    """A finite number as it is compared with a tolerance; any other value as it is."""
    if not _is_number(value):
        return value
    exact = _decimal(value)
    return _Number(value, exact, abs(exact)) if exact.is_finite() else value


def _decimal(number: float) -> Decimal:
    """Return a number as an exact decimal: 20 and 19.99 differ by 0.01, which is not true in binary."""
    return Decimal(number if isinstance(number, int) else repr(number))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _same_folded(a: Any, b: Any) -> bool:
    return a.casefold() == b.casefold() if isinstance(a, str) and isinstance(b, str) else equal(a, b)


def _pattern(pattern: Any, ignore_case: bool) -> Callable[[Any, Any], bool]:
    import regex

    if not isinstance(pattern, str):
        raise ValueError(f"a regex must be text, not {pattern!r}")
    try:
        compiled = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except regex.error as error:
        raise ValueError(f"the regex {pattern!r} is wrong: {error}") from error

    def test(a: object, b: object) -> bool:
        try:
            text = a if isinstance(a, str) else str(a) if _is_number(a) else None
        except ValueError:  # an integer of more digits than Python writes
            return False
        if text is None:
            return False
        found = _patterns.found.get((compiled, text))
        if found is not None:
            return found
        start = time.perf_counter()
        try:
            found = compiled.fullmatch(text, timeout=max(_patterns.left, 0.001)) is not None
        except TimeoutError as error:
            raise TraceError(
                f"the regex {pattern!r} ran longer than {REGEX_SECONDS:g} s on the values of one trajectory: "
                "make it simpler"
            ) from error
        _patterns.left -= time.perf_counter() - start
        _patterns.found[compiled, text] = found
        return found

    return test
