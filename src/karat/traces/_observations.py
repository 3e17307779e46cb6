"""Puts what was observed of an agent (model calls, tool executions) together into one trajectory.

Tracers see each event by itself: every model call repeats the history it was sent, and a tool is seen twice,
when the model asks for it and when it is run. Here the history is read once and the two are joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from karat.traces._objects import plain
from karat.traces.detection import read as read_any
from karat.traces.steps import Step, ToolCall, ToolResult, Unused, text_of


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One event: a model call with its messages, a tool execution, or a span that groups others."""

    kind: Literal["model", "tool", "group"]
    name: str
    where: str
    start: Any = None
    input: list[Step | Unused] = []
    """Model: the messages it was sent."""
    output: list[Step | Unused] = []
    """Model: the messages it gave."""
    call: ToolCall | None = None
    """Tool: the call it ran."""
    result: ToolResult | None = None
    """Tool: what came of it."""
    value: Any = None
    """What was observed, as it was given."""
    beside: dict[str, Any] = {}
    """What it says beside all that: its name, its times, the model; kept among what is unused."""


def combine(observations: Iterable[Observation]) -> Iterator[Step | Unused]:
    """The steps of all observations, in the order in which they began."""
    ordered = _in_order(list(observations))
    if not any(each.kind in ("model", "tool") for each in ordered):
        yield from _from_groups(ordered)
        return
    story = _Story()
    for each in ordered:
        if each.kind == "model":
            yield from story.model(each)
        elif each.kind == "tool" or story.asked_for(each):
            yield from story.tool(each)
        else:
            yield Unused(each.where, f"{each.name!r} only groups other spans", each.value, harmless=True)
            continue
        yield from _beside(each)


def messages(value: Any, role: str) -> list[Step | Unused]:
    """The messages of a model's input or output, however they were written; bare text gets the role."""
    value = plain(value)
    if value is None or value == "" or value == [] or value == {}:
        return []
    if isinstance(value, dict) and len(value) == 1:
        # `{"question": "…"}`: whatever the one field is called, its text is the message.
        (only,) = value.values()
        value = only if isinstance(only, str) else value
    if isinstance(value, str) and not value.lstrip().startswith(("{", "[")):
        return [Step(role, value)]
    parts = list(read_any(value))
    for position, part in enumerate(parts):
        if isinstance(part, Step) and part.extra.get("format") == "text":
            parts[position] = Step(role, part.content)
    return parts


class _Story:
    """What has been told so far: which messages are known, which calls wait for their execution."""

    def __init__(self) -> None:
        self.told: Counter[Any] = Counter()
        self.forms: dict[Any, list[Step]] = {}
        """The messages that were told, by what makes them the same, each as it was first written."""
        self.parts: Counter[Any] = Counter()
        """The calls with an id, and the texts, of the messages that were told: tracers cut messages differently."""
        self.answered: dict[str, Step] = {}
        self.ran: list[tuple[ToolCall, Step]] = []
        """Calls without an id that were run, and what came of them."""
        self.waiting: list[ToolCall] = []

    def model(self, observation: Observation) -> Iterator[Step | Unused]:
        history: Counter[Any] = Counter()
        for part in observation.input:
            if isinstance(part, Unused):
                yield _at(part, observation, "input")
                continue
            key, pieces = _key(part), _pieces(part)
            history.update((key, *pieces))
            self._learn_ids(part, key)
            telling = pieces[: len(part.tool_calls) or 1]
            in_pieces = bool(telling) and all(history[piece] <= self.parts[piece] for piece in telling)
            if history[key] > self.told[key] and not in_pieces and not self._is_answered(part):
                yield self._tell(part, key)
            elif not self._is_known(part, key):
                reason = "a message that was told already, written differently"
                yield Unused(f"{observation.where}.input", reason, part.to_dict(), harmless=True)
        for part in observation.output:
            if isinstance(part, Unused):
                yield _at(part, observation, "output")
            else:
                yield self._tell(part, _key(part))

    def tool(self, observation: Observation) -> Iterator[Step | Unused]:
        call = observation.call
        if call is None:
            yield Unused(observation.where, "a tool execution without a name", observation.value)
            return
        asked = self._take(call)
        if asked is None:
            step = Step("assistant", tool_calls=[call])
            self.told[_key(step)] += 1
            yield step
        elif call.arguments and not _same(asked, call):
            reason = "the call that was run differs from the one that was asked for"
            yield Unused(observation.where, reason, call.to_dict(), harmless=True)
        if observation.result is not None:
            identity = (asked or call).id or observation.result.call_id
            result = msgspec.structs.replace(observation.result, call_id=identity)
            step = Step("tool", result.content, tool_result=result)
            self._answer(step, None)
            if asked is not None and identity is None:
                self.ran.append((asked, step))
            yield step

    def asked_for(self, observation: Observation) -> bool:
        """Whether a plain span runs a call that a model asked for: older tracers have no tool spans."""
        return observation.call is not None and any(_same(call, observation.call) for call in self.waiting)

    def _learn_ids(self, step: Step, key: Any) -> None:
        """Some tracers write the id of a call only in the history: what it was answered is then known by it too."""
        for call in step.tool_calls if self.ran and self.told[key] else ():
            at = next((i for i, (ran, _) in enumerate(self.ran) if _same(ran, call)), None)
            if call.id is not None and call.id not in self.answered and at is not None:
                self.answered[call.id] = self.ran.pop(at)[1]

    def _tell(self, step: Step, key: Any) -> Step:
        self.told[key] = self.told[key] + 1
        self.parts.update(_pieces(step))
        self.forms.setdefault(key, []).append(step)
        if step.tool_result is not None:
            self._answer(step, key)
            waiting = [
                call for call in self.waiting if call.id != step.tool_result.call_id or call.id is None
            ]
            self.waiting = waiting
        self.waiting.extend(step.tool_calls)
        return step

    def _answer(self, step: Step, key: Any) -> None:
        if key is None:
            self.told[_key(step)] += 1
        if step.tool_result is not None and step.tool_result.call_id:
            self.answered[step.tool_result.call_id] = step

    def _is_answered(self, step: Step) -> bool:
        return step.tool_result is not None and step.tool_result.call_id in self.answered

    def _is_known(self, step: Step, key: Any) -> bool:
        """Whether all that a message says, seen again, has been told; ids and extras may be new."""
        told = self.forms.get(key, [])
        if step.tool_result is not None and step.tool_result.call_id in self.answered:
            told = [*told, self.answered[step.tool_result.call_id]]
        return any(_says_no_more(step, other) for other in told)

    def _take(self, call: ToolCall) -> ToolCall | None:
        by_id = [c for c in self.waiting if call.id is not None and c.id == call.id]
        found = by_id or [c for c in self.waiting if _same(c, call)]
        if not found:
            return None
        self.waiting = [c for c in self.waiting if c is not found[0]]
        return found[0]


def _same(a: ToolCall, b: ToolCall) -> bool:
    """Whether a call that was asked for is the one that was run, or is seen again."""
    if a.raw is not None:
        # What could not be read is, to the tool, the one text it was given.
        return a.name == b.name and (a.raw == b.raw or b.arguments == {"input": a.raw})
    return a.name == b.name and bool(a.arguments == b.arguments)


def _key(step: Step) -> Any:
    """What makes two messages the same one, seen again: not their ids, which tracers often leave out."""
    calls = tuple((call.name, repr(call.arguments), call.raw) for call in step.tool_calls)
    content = text_of(step.content) or (repr(step.content) if step.content else "")
    return step.role, content, calls


def _pieces(step: Step) -> list[Any]:
    """What a message is made of, where it can be told from all others: its calls by their ids, then its text."""
    if step.role != "assistant" or any(call.id is None for call in step.tool_calls):
        return []
    calls = [("call", call.id, call.name, repr(call.arguments), call.raw) for call in step.tool_calls]
    text = text_of(step.content)
    return [*calls, ("text", text)] if text else calls


def _says_no_more(step: Step, told: Step) -> bool:
    if step.content != told.content or any(told.extra.get(k) != v for k, v in step.extra.items()):
        return False
    ids = {call.id for call in told.tool_calls} | {None}
    known = [told_call.extra for told_call in told.tool_calls]
    return all(call.id in ids and (not call.extra or call.extra in known) for call in step.tool_calls)


def _beside(observation: Observation) -> Iterator[Unused]:
    if observation.beside:
        reason = f"what {observation.name!r} says beside its messages"
        yield Unused(observation.where, reason, observation.beside, harmless=True)


def _at(part: Unused, observation: Observation, side: str) -> Unused:
    return msgspec.structs.replace(part, where=f"{observation.where}.{side}{part.where}")


def _in_order(observations: list[Observation]) -> list[Observation]:
    """By their start where all have one of the same kind, else as they were given."""
    starts = [each.start for each in observations]
    for kind in (str, (int, float)):
        if all(isinstance(start, kind) for start in starts):
            return sorted(observations, key=lambda each: each.start)
    return observations


def _from_groups(observations: list[Observation]) -> Iterator[Step | Unused]:
    """Where only the outermost span was exported, what it was given and ends with are the trajectory."""
    chosen = None
    for each in observations:
        if chosen is None and any(isinstance(part, Step) for part in [*each.input, *each.output]):
            chosen = each
            # An agent's output often begins with what it was given.
            repeated = {_key(part) for part in each.output if isinstance(part, Step)}
            for part in each.input:
                if isinstance(part, Unused):
                    yield _at(part, each, "input")
                elif _key(part) not in repeated:
                    yield part
            for part in each.output:
                yield _at(part, each, "output") if isinstance(part, Unused) else part
            yield from _beside(each)
        else:
            yield Unused(each.where, f"{each.name!r} holds neither a model call nor a tool", each.value)
