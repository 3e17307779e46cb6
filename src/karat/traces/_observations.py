"""Combine the observations of an agent (model calls, tool executions) into one trajectory.

Tracers see each event by itself: every model call repeats the history it was sent, and a tool is seen twice,
when the model asks for it and when it is run. Here the history is read once and the two are joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from karat.traces._literals import read_loose_arguments
from karat.traces._objects import decoded, plain
from karat.traces.detection import read as read_any
from karat.traces.formats.langchain import tool_message
from karat.traces.steps import Step, ToolCall, ToolResult, TraceError, Unused, rest, text_of, text_or_none


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


def messages(value: object, role: str) -> list[Step | Unused]:
    """The messages of a model's input or output, however they were written; bare text gets the role."""
    value = plain(value)
    if value is None or value == "" or value == [] or value == {}:
        return []
    if isinstance(value, dict) and len(value) == 1:
        # `{"question": "…"}`: the text of the only field is the message, under any name.
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
    """The trajectory read so far: the messages already emitted and the calls that await execution."""

    def __init__(self) -> None:
        self.emitted_counts: Counter[Any] = Counter()
        self.forms: dict[Any, list[Step]] = {}
        """The emitted messages by `_key`, each as it was first written."""
        self.parts: Counter[Any] = Counter()
        """The calls with an id, and the texts, of emitted messages: tracers split messages differently."""
        self.answered: dict[str, Step] = {}
        self.ran: list[tuple[ToolCall, Step]] = []
        """Executed calls without an id, each with the step that holds its result."""
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
            if history[key] > self.emitted_counts[key] and not in_pieces and not self._is_answered(part):
                yield self._emit(part, key)
            elif not self._is_known(part, key):
                reason = "a repeated message, written differently"
                place = f"{observation.where}.input"
                yield Unused(place, reason, part.to_dict(), harmless=True, repeats=True)
        for part in observation.output:
            if isinstance(part, Unused):
                yield _at(part, observation, "output")
            else:
                yield self._emit(part, _key(part))

    def tool(self, observation: Observation) -> Iterator[Step | Unused]:
        call = observation.call
        if call is None:
            yield Unused(observation.where, "a tool execution without a name", observation.value)
            return
        asked = self._take(call)
        if asked is None:
            step = Step("assistant", tool_calls=[call])
            self.emitted_counts[_key(step)] += 1
            yield step
        elif call.arguments and not _same(asked, call):
            reason = "the call that was run differs from the one that was asked for"
            yield Unused(observation.where, reason, call.to_dict(), harmless=True, reviewed=True)
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
        """Assign ids from the history to executed calls: some tracers write the id of a call only there."""
        for call in step.tool_calls if self.ran and self.emitted_counts[key] else ():
            at = next((i for i, (ran, _) in enumerate(self.ran) if _same(ran, call)), None)
            if call.id is not None and call.id not in self.answered and at is not None:
                self.answered[call.id] = self.ran.pop(at)[1]

    def _emit(self, step: Step, key: Any) -> Step:
        self.emitted_counts[key] = self.emitted_counts[key] + 1
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
            self.emitted_counts[_key(step)] += 1
        if step.tool_result is not None and step.tool_result.call_id:
            self.answered[step.tool_result.call_id] = step

    def _is_answered(self, step: Step) -> bool:
        return step.tool_result is not None and step.tool_result.call_id in self.answered

    def _is_known(self, step: Step, key: Any) -> bool:
        """Whether an emitted message already has the content, ids and extra fields of this repeated message."""
        emitted = self.forms.get(key, [])
        if step.tool_result is not None and step.tool_result.call_id in self.answered:
            emitted = [*emitted, self.answered[step.tool_result.call_id]]
        return any(_adds_nothing(step, other) for other in emitted)

    def _take(self, call: ToolCall) -> ToolCall | None:
        by_id = [c for c in self.waiting if call.id is not None and c.id == call.id]
        found = by_id or [c for c in self.waiting if _same(c, call)]
        if not found:
            return None
        self.waiting = [c for c in self.waiting if c is not found[0]]
        return found[0]


def _same(a: ToolCall, b: ToolCall) -> bool:
    """Whether a requested call and an executed or repeated call are the same."""
    if a.raw is not None:
        # What could not be read is, to the tool, the one text it was given.
        return a.name == b.name and (a.raw == b.raw or b.arguments == {"input": a.raw})
    return a.name == b.name and bool(a.arguments == b.arguments)


def _key(step: Step) -> Any:
    """Identify a message by role, content and calls, without the ids that tracers often omit."""
    calls = tuple((call.name, repr(call.arguments), call.raw) for call in step.tool_calls)
    content = text_of(step.content) or (repr(step.content) if step.content else "")
    return step.role, content, calls


def _pieces(step: Step) -> list[Any]:
    """Return the identifiable parts of a message: its calls by id, then its text; empty if a call has no id."""
    if step.role != "assistant" or any(call.id is None for call in step.tool_calls):
        return []
    calls = [("call", call.id, call.name, repr(call.arguments), call.raw) for call in step.tool_calls]
    text = text_of(step.content)
    return [*calls, ("text", text)] if text else calls


def _adds_nothing(step: Step, emitted: Step) -> bool:
    if step.content != emitted.content or any(emitted.extra.get(k) != v for k, v in step.extra.items()):
        return False
    ids = {call.id for call in emitted.tool_calls} | {None}
    known = [known_call.extra for known_call in emitted.tool_calls]
    return all(call.id in ids and (not call.extra or call.extra in known) for call in step.tool_calls)


def _beside(observation: Observation) -> Iterator[Unused]:
    if observation.beside:
        reason = f"what {observation.name!r} holds besides its messages"
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


# Tool executions as tracers record them, unwrapped: the call and its result.


class ToolRun(msgspec.Struct, frozen=True):
    """A tool execution: the call, the result if there is one, and the other recorded fields."""

    call: ToolCall
    result: ToolResult | None
    beside: dict[str, Any]


def check_name(name: object, where: str) -> str:
    """Return the name of a recorded run of a tool; without one it is a TraceError: an invented one may match."""
    if not isinstance(name, str) or not name.strip():
        raise TraceError(f"{where or 'the trace'}: a run of a tool without a name ({name!r})"[:300])
    return name


def tool_run(
    name: str, given: object, answer: object, *, identity: object = None, failed: bool = False
) -> ToolRun:
    """Read a tool execution from its recorded input and result, in any of the known envelopes."""
    arguments, call_id, beside_given = _arguments(given)
    content, fields, beside_answer = _answer(answer)
    identity = next(
        (each for each in (identity, call_id, fields.get("tool_call_id")) if each is not None), None
    )
    beside = {"input": beside_given, "output": beside_answer}
    result = None
    if answer is not None or failed:
        result = ToolResult(None, name, content, failed or fields.get("status") == "error")
    call = ToolCall(text_or_none(identity), name, arguments)
    return ToolRun(call, result, {key: part for key, part in beside.items() if part})


def _arguments(given: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return the arguments, the id of the call if given, and the other fields.

    Text that is neither JSON nor a Python literal becomes the only argument, `input`.
    """
    given = plain(given)
    values, raw = read_loose_arguments(given)
    if raw is not None:
        return {"input": given}, None, {}
    if not isinstance(values, dict):
        return values, None, {}
    if values.keys() == {"input"}:
        inside, raw = read_loose_arguments(plain(values["input"]))
        return (inside if raw is None and isinstance(inside, dict) else values), None, {}
    if values.keys() == {"args", "kwargs"} and not values["args"] and isinstance(values["kwargs"], dict):
        return values["kwargs"], None, {}
    if "input_str" in values and isinstance(values.get("inputs"), dict):
        # As LangChain's callbacks get it.
        keywords = values.get("kwargs")
        identity = keywords.get("tool_call_id") if isinstance(keywords, dict) else None
        return values["inputs"], identity, rest(values, "inputs")
    return values, None, {}


def _answer(answer: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the content of a result, the fields of the message that contains it, and its unused fields."""
    document = decoded(answer)
    envelope: dict[str, Any] = {}
    if isinstance(document, dict) and document.keys() == {"output", "kwargs"}:
        # As LangChain's callbacks get it.
        envelope = rest(document, "output")
        answer = document = plain(document["output"])
    fields = message_of(document)
    if fields is None:
        return answer, {}, envelope
    beside = rest(fields, "content", "tool_call_id", "type")
    return (
        plain(fields["content"]),
        fields,
        {**envelope, **{k: v for k, v in beside.items() if v not in ({}, [])}},
    )


def message_of(document: object) -> dict[str, Any] | None:
    """The fields of the message that a framework made of a tool's answer; None where it is none."""
    if isinstance(document, dict) and "content" in document and "tool_call_id" in document:
        return document
    return tool_message(document)
