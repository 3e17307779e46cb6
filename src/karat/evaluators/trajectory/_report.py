"""Descriptions of calls and their differences, for metadata and comments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from karat.errors import plural
from karat.evaluators.trajectory._arguments import Difference, Malformed
from karat.evaluators.trajectory._calls import SHOWN, Calls, storable
from karat.evaluators.trajectory._pairing import Pairs, chosen
from karat.paths import MISSING

LISTED = 100
"""The most calls of one kind that metadata lists; `counts` counts all of them."""
DIFFERENCES = 20
"""Differences of one call that metadata lists."""
DETAILED = 3
"""Mismatched calls whose differences metadata lists; the others are listed by name and position."""
SHORT = 120
"""Characters of a value that a comment shows."""
MENTIONED = 3
"""Calls, or differences, that a comment mentions."""


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
_encode_lines, _decode_lines = msgspec.json.Encoder().encode_lines, msgspec.json.Decoder().decode_lines


def pair_mismatched(
    agent: Calls, extra: Sequence[int], reference: Calls, missing: Sequence[int], paired: Pairs
) -> Pairs:
    """Calls left on both sides that name the same tool, in their order: one call with other arguments."""
    if len(paired) == len(extra) or len(paired) == len(missing):
        return {}  # none is left on one of the sides
    names, asked = agent.names, reference.names
    if not paired and len(extra) == len(missing) and chosen(names, extra) == chosen(asked, missing):
        return dict(zip(extra, missing, strict=True))
    waiting: dict[str, list[int]] = {}
    taken = set(paired.values())
    for j in reversed(missing):
        if j not in taken:
            waiting.setdefault(asked[j], []).append(j)
    pairs: Pairs = {}
    for i in extra:
        open_ = waiting.get(names[i])
        if open_ and i not in paired:
            pairs[i] = open_.pop()
    return pairs


def describe_calls(
    calls: Calls, positions: Sequence[int], side: str, fault: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the first calls at some positions for metadata, each as `describe` does, and the first few in words.

    The words begin with the fault: `missing search({"q": "x"})`.
    """
    if len(positions) > MENTIONED:
        positions = positions[:LISTED]
        if (found := _describe_many(calls, positions, side, fault)) is not None:
            return found
    described: list[dict[str, Any]] = []
    words: list[str] = []
    values, labels = calls.read, calls.known_labels or calls.labels()
    for position in positions:
        name, arguments = labels[position], calls.arguments(position) if values is None else values[position]
        # Arguments parsed here from a short JSON text are already plain, and no other object refers to them.
        is_own = calls.as_text and len(calls.given[position]) <= 4 * SHOWN
        if type(arguments) is dict:
            try:
                encoded = _encode(arguments)
                if len(encoded) <= SHORT:
                    # Through JSON and back, as `bounded` does; the JSON is the text as well.
                    copy = arguments if is_own else _decode(encoded)
                    described.append({"name": name, side: position, "arguments": copy})
                    words.append(f"{fault} {name}({encoded.decode()})")
                    continue
            except (TypeError, ValueError, OverflowError, RecursionError):
                pass
        if type(arguments) is Malformed:
            call = {"name": name, side: position, "raw": storable(arguments.raw)}
        else:
            call = {"name": name, side: position, "arguments": arguments if is_own else bounded(arguments)}
        described.append(call)
        words.append(f"{fault} {show(call)}")
    return described, words


def _describe_many(
    calls: Calls, positions: Sequence[int], side: str, fault: str
) -> tuple[list[dict[str, Any]], list[str]] | None:
    """Do the same with one call of the encoder; None where arguments are not objects or have to be shortened."""
    labels, values = calls.known_labels or calls.labels(), calls.values_at(positions)
    for value in values:
        if type(value) is not dict:
            return None
    try:
        encoded = _encode_lines(values)
        lines = encoded.split(b"\n")
        if max(map(len, lines)) > 4 * SHOWN:
            return None
        # Through JSON and back, as `bounded` does. Arguments parsed from JSON texts are already plain, and no other
        # object refers to them.
        copies = values if calls.as_text else _decode_lines(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    described: list[dict[str, Any]] = []
    words: list[str] = []
    for position, given, line in zip(positions, copies, lines, strict=False):
        name = labels[position]
        described.append({"name": name, side: position, "arguments": given})
        if len(words) < MENTIONED:
            text = line.decode()
            words.append(f"{fault} {name}({text if len(text) <= SHORT else text[:SHORT] + '…'})")
    return described, words


def describe(calls: Calls, position: int, side: str) -> dict[str, Any]:
    """A call for metadata: its name, arguments and place."""
    return describe_calls(calls, (position,), side, "")[0][0]


def describe_mismatch(
    name: str, i: int, j: int, found: Sequence[Difference], malformed: bool
) -> tuple[dict[str, Any], str]:
    """Return a pair of calls of one tool for metadata, with the differences found in their arguments, and in words.

    `malformed`: the arguments of the agent's call could not be read.
    """
    total = len(found)
    shown: list[dict[str, Any]] = []
    parts: list[str] = []
    for path, ours, theirs in found if total <= DIFFERENCES else found[:DIFFERENCES]:
        if len(path) > SHOWN or not path.isascii():
            path = storable(path)
        each: dict[str, Any] = {"path": path}
        has, expected = "missing", ""
        if ours is not MISSING:
            each["agent"], has = _shown(ours)
            expected = ", expected to be absent"
        if theirs is not MISSING:
            each["reference"], text = _shown(theirs)
            expected = f", expected {text}"
        shown.append(each)
        parts.append(f"{path} is {has}{expected}" if path else f"the arguments are {has}{expected}")
    out = {"name": name, "agent": i, "reference": j, "malformed": malformed, "differences": shown}
    if total > DIFFERENCES:
        out["more_differences"] = total - DIFFERENCES
    if malformed:
        return out, f"{name}: the arguments could not be read"
    if total == 1:
        return out, f"{name}: {parts[0]}"
    return out, f"{name}: {listed(parts, total) if parts else 'other arguments'}"


def _shown(value: object) -> tuple[Any, str]:
    """Return a value as metadata shows it, and as a comment does."""
    if type(value) is not str:
        stored = bounded(value, SHOWN)
        return stored, _text(stored)
    if len(value) > SHOWN or not value.isascii():
        value = storable(value)
    text = repr(value)
    return value, text if len(text) <= SHORT else text[:SHORT] + "…"


def bounded(value: object, most: int = 4 * SHOWN) -> Any:
    """Return a value as short, valid JSON: longer ones become their first characters."""
    if type(value) is not dict:
        if isinstance(value, str):
            return storable(str.__str__(value))  # of a subclass, the plain text: msgspec encodes no other
        if value is None or type(value) is bool:
            return value
        if isinstance(value, int) and abs(value) < 2**63:
            return int(value)
        if type(value) is Malformed:
            return storable(value.raw)
    try:
        # Through JSON and back: what comes out is plain, and a copy.
        encoded = _encode(value)
        if len(encoded) <= most:
            return _decode(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    try:
        return repr(value)[:SHOWN]
    except Exception:  # a foreign object's repr may raise anything
        return f"<{type(value).__name__}>"


def show(call: Mapping[str, Any]) -> str:
    """A described call as text: `search({"q": "x"})`."""
    if "raw" in call:
        return f"{call['name']}({call['raw']}) (arguments could not be read)"
    given = call["arguments"]
    text = _encode(given).decode() if type(given) is dict else _text(given)
    return f"{call['name']}({text if len(text) <= SHORT else _text(given)})"


def listed(parts: Sequence[str], total: int) -> str:
    """Return the first few parts, and how many more there are of a total."""
    if total == 1:
        return parts[0]
    if len(parts) > MENTIONED:
        parts = parts[:MENTIONED]
    shown, more = "; ".join(parts), total - len(parts)
    return f"{shown}; and {more} more" if more else shown


def mention_unused(metadata: dict[str, Any], *sides: Calls) -> str:
    """Adds what the traces held and could not be used; a clause for the comment where it may matter."""
    found = [part for side in sides if side.trajectory is not None for part in side.trajectory.unused]
    if not found:
        return ""
    doubtful = [part for part in found if not part.harmless]
    if not doubtful:
        return ""
    metadata["unused"] = [
        {"where": storable(part.where), "reason": storable(part.reason)} for part in doubtful[:50]
    ]
    first = storable(doubtful[0].where) or "the top"
    return f" ({plural(len(doubtful), 'part')} of the traces could not be used, the first at {first})"


def _text(value: Any) -> str:
    text = repr(value) if type(value) is str else _encode(value).decode()
    return text if len(text) <= SHORT else text[:SHORT] + "…"
