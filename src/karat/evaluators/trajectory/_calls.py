"""The tool calls that evaluators compare, and where they come from: the output, its trace, the reference."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec

from karat.evaluators.trajectory._arguments import Malformed
from karat.evaluators.trajectory._equality import canonical
from karat.records import Output
from karat.traces import TraceError, Trajectory, normalize
from karat.traces._calls import is_bare_call
from karat.traces._literals import read_arguments
from karat.traces.detection import fast_readers, load_fast_readers

_UNREAD: Any = object()
_encode_lines = msgspec.json.Encoder(order="deterministic").encode_lines


def _number(text: str) -> int | float:
    """A JSON number with a fraction or an exponent; 1.0 becomes 1, for equal numbers need equal keys."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("out of range")
    return int(value) if value.is_integer() else value


_decoder = msgspec.json.Decoder(float_hook=_number)
_decode = _decoder.decode
_decode_plain = msgspec.json.Decoder().decode


SHOWN = 300
"""Characters of a value that comments and metadata show."""


def storable(text: str) -> str:
    """Return a text as it can be stored: shortened, lone surrogates replaced."""
    if len(text) > SHOWN:
        text = text[:SHOWN] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class Calls(msgspec.Struct, eq=False, gc=False):
    """Tool calls by position; arguments written as JSON text are read when they are needed."""

    names: list[str]
    given: list[Any]
    """The arguments as they are written: values, or JSON text."""
    as_text: bool = False
    """Whether all arguments are JSON text, so that equal texts are equal arguments."""
    read: list[Any] | None = None
    """The arguments of all calls as values, where they are known."""
    trajectory: Trajectory | None = None
    tools: set[str] | None = None
    """The names without repetitions, where they are known."""
    known_labels: list[str] | None = None
    """What `labels` returns, where it is known already."""
    _some: dict[int, Any] | None = None
    """The arguments that were read one by one."""
    _keys: Sequence[Hashable | None] | None = None
    _marks: list[bytes] | None = None
    _encoded: bytes | None = None

    @classmethod
    def of(cls, trajectory: Trajectory) -> Calls:
        """Return the calls of a normalized trajectory."""
        found = trajectory.calls
        values = [call.arguments if call.raw is None else Malformed(call.raw) for call in found]
        return cls([call.name for call in found], values, False, values, trajectory)

    def __len__(self) -> int:
        return len(self.names)

    def arguments(self, position: int) -> Any:
        """The arguments as values; `Malformed` where they could not be read."""
        if self.read is not None:
            return self.read[position]
        if self._some is None:
            self._some = {}
        value = self._some.get(position, _UNREAD)
        if value is _UNREAD:
            value, raw = read_arguments(self.given[position])
            if raw is not None:
                value = Malformed(raw)
            self._some[position] = value
        return value

    __getitem__ = arguments
    """So that `calls.read or calls` gives the arguments by position, which are read as far as they are needed."""

    def labels(self) -> list[str]:
        """Return the names as they can be stored: shortened, lone surrogates replaced."""
        if self.known_labels is None:
            whole, names = "".join(self.tools or self.names), self.names
            # Nearly always no name has to be shortened or escaped.
            short = len(whole) <= SHOWN or max(map(len, names)) <= SHOWN
            self.known_labels = names if short and whole.isascii() else [storable(name) for name in names]
        return self.known_labels

    def values(self) -> list[Any]:
        """The arguments of all calls."""
        if self.read is None:
            self.read = _objects(self.given) or [self.arguments(at) for at in range(len(self))]
        return self.read

    def values_at(self, positions: Sequence[int]) -> list[Any]:
        """Return the arguments of some calls; the others are not read."""
        if self.read is None:
            return [self.arguments(position) for position in positions]
        values = self.read
        return [values[position] for position in positions]

    def marks(self) -> Sequence[Hashable] | None:
        """Return an approximate key for each call, fast: equal arguments nearly always have equal marks.

        A value that is not JSON may have the same mark as one that is, so calls paired by mark must be compared.
        None if the arguments cannot be encoded.
        """
        if self._marks is None:
            if self.as_text:
                keys = self.keys()
                return None if None in keys else keys
            self._encoded = encoded(self.values())
            if self._encoded is None:
                return None
            self._marks = self._encoded.split(b"\n")
            self._marks.pop()
        return self._marks

    def may_hide_equals(self) -> bool:
        """Return whether arguments with other marks, which Python takes for unequal, may be equal all the same.

        They have NaN, which is written as null, or tuples, which are written as lists.
        """
        return self._encoded is None or b"null" in self._encoded or b"[" in self._encoded

    def keys(self) -> Sequence[Hashable | None]:
        """For each call bytes that are equal exactly when the arguments are; None for what is not JSON."""
        if self._keys is None:
            if self._encoded is not None:
                self._keys = _object_keys(self.values(), self._encoded)
            if self._keys is None:
                self._keys = self._read_keys(range(len(self)), self.given)
        return self._keys

    @property
    def has_keys(self) -> bool:
        """Whether the keys of all calls are computed already."""
        return self._keys is not None

    def keys_of(self, positions: Sequence[int]) -> Sequence[Hashable | None]:
        """Return the keys of some calls; all keys are computed if that costs about the same."""
        if self._keys is None and len(positions) * 4 < len(self):
            return self._read_keys(positions, [self.given[position] for position in positions])
        keys = self.keys()
        if positions == range(len(self)):
            return keys
        return [keys[position] for position in positions]

    def _read_keys(self, positions: Sequence[int], given: list[Any]) -> Sequence[Hashable | None]:
        if self.as_text:
            try:
                # This runs entirely in C, and no value outlives its key, which spares the garbage collector.
                # Unusual arguments take the slow path below. A line of JSON contains no line break.
                lines = _encode_lines(map(_decode, given)).split(b"\n")
            except (ValueError, RecursionError):
                pass
            else:
                lines.pop()
                if b"null" not in lines and _have_all_quotes(given, lines):
                    return lines
        elif set(map(type, given)) == {dict}:
            keys = _object_keys(given, encoded(given))
            if keys is not None:
                return keys
        return [canonical(self.arguments(position)) for position in positions]


def encoded(values: list[Any]) -> bytes | None:
    """Encode values as lines of JSON with sorted keys; None if a value cannot be encoded."""
    try:
        return _encode_lines(values)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _objects(given: list[Any]) -> list[Any] | None:
    """Return arguments that are all objects, or all JSON texts of objects; None for others, and for none."""
    values = given
    if given and type(given[0]) is str:
        try:
            values = list(map(_decode_plain, given))
            lines = _encode_lines(values).split(b"\n")
        except (TypeError, ValueError, RecursionError):
            return None
        lines.pop()
        if not _have_all_quotes(given, lines):
            return None
    for value in values:
        if type(value) is not dict:
            return None
    return values or None


def _have_all_quotes(texts: list[str], lines: list[bytes]) -> bool:
    """Return whether texts have as many quotes as their values written again; not so where a text repeats a key."""
    return [text.count('"') for text in texts] == [line.count(b'"') for line in lines]


def _object_keys(values: list[Any], written: bytes | None) -> list[bytes] | None:
    """Return the keys of objects from their JSON, computed entirely in C; None if an object is not JSON."""
    if written is None:
        return None
    floats: list[str] = []

    def number(text: str) -> int | float:
        floats.append(text)
        return _number(text)

    try:
        decoded = msgspec.json.Decoder(float_hook=number).decode_lines(written)
        # NaN, bytes, dates or keys that are not text do not survive the way to JSON and back.
        if decoded != values:
            return None
        if floats:  # 1.0 becomes 1
            written = _encode_lines(decoded)
    except Exception:  # a foreign object's comparison may raise anything
        return None
    lines = written.split(b"\n")
    lines.pop()
    return lines


_GIVEN = frozenset((str, dict))
_strip = str.strip
KNOWN = 4096
"""How many names of tools are kept in `_plain_names`, at most."""
_plain_names: set[str] = set()
"""Names that need no check any more: they are not blank, and can be stored as they are."""


def fast_calls(items: object) -> Calls | None:
    """Return the calls of a list in one of the most common shapes; None where it has to be normalized."""
    if type(items) is not list:
        return None
    try:
        for key, read in fast_readers or load_fast_readers():
            if not items or key in items[0]:
                names, given = read(items)  # type: ignore[misc]  # None is a TypeError
                break
        else:
            return None
        tools = {*names}
        labels = names if tools <= _plain_names else None
        if labels is None and not _are_names(tools):
            return None
        for arguments in given:
            if type(arguments) is not dict:
                break
        else:
            return Calls(names, given, not given, given, None, tools, labels)
        kinds = {*map(type, given)}
        if not kinds <= _GIVEN:
            return None
        return Calls(names, given, dict not in kinds, None, None, tools, labels)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError):
        return None


def _are_names(tools: set[str]) -> bool:
    """Return whether no name is blank, which is an error that `normalize` reports; remembers those that are plain."""
    whole = "".join(tools)  # a name that is not text is a TypeError
    if (not whole.isidentifier() or "" in tools) and "" in map(_strip, tools):
        return False
    if len(whole) <= SHOWN and whole.isascii() and {*map(type, tools)} == {str}:
        if len(_plain_names) > KNOWN:
            _plain_names.clear()
        _plain_names.update(tools)
    return True


def read_calls(outputs: object, context: Mapping[str, Any]) -> Calls:
    """Return the agent's calls from its output, or from the recorded trace if the output is not a trajectory."""
    trace: Sequence[Any] = ()
    if context and isinstance(output := context.get("output"), Output):
        trace = output.trace
    if not trace and (found := fast_calls(outputs)) is not None:
        return found
    return Calls.of(read_trajectory(outputs, trace))


def read_trajectory(outputs: object, trace: Sequence[Any] = ()) -> Trajectory:
    """The agent's trajectory: its output, or the recorded trace where the output is only an answer."""
    recorded = list(trace)
    if recorded and (
        outputs is None or outputs == [] or (isinstance(outputs, dict) and is_bare_call(outputs))
    ):
        return normalize(recorded)
    try:
        trajectory = normalize(outputs)
    except TraceError:
        if recorded:
            return normalize(recorded)
        raise
    if trajectory.is_plain_text:
        if recorded:
            return normalize(recorded)
        raise TraceError(
            "the output is plain text, not a trajectory, and no calls were traced: "
            "return the messages from the task, or make its calls through karat"
        )
    return trajectory


def read_reference(reference_outputs: object, key: str) -> Calls:
    """The calls of the reference, which has to be there."""
    if (found := fast_calls(reference_outputs)) is not None:
        return found
    if reference_outputs is None:
        raise TraceError(f"{key!r} compares with a reference, but there is none: give `reference_outputs`")
    trajectory = normalize(reference_outputs)
    if trajectory.is_plain_text:
        raise TraceError(
            f"the reference of {key!r} is plain text, not a trajectory: give messages or tool calls"
        )
    return Calls.of(trajectory)
