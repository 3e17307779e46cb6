"""Read tool calls that a model wrote as text: ReAct (`Action:`, `Action Input:`), `<tool_call>`, `Calling tools:`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from karat.traces._calls import read_call, result_step
from karat.traces._literals import read_literal, read_loose_arguments
from karat.traces.steps import Step, ToolCall, UnreadCall, Unused

_LABEL = re.compile(
    r"[ \t]*(?:\*\*)?(Thought|Action Input|Action|Observation|Final Answer)(?:\*\*)?[ \t]*\d{0,3}:(?:\*\*)?"
)
_TEMPLATE = (
    "the action to take",
    "the input to the action",
    "the result of the action",
    "you should always think",
)
"""How the instructions of LangChain and CrewAI describe the sections: CrewAI repeats them after a tool's result."""
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CALLING = "Calling tools:"
_MARKS = (_CALLING, "[", "{", " ", "\n", "\t", "\r")
_BRACKET = re.compile(r"\s*[\[{]")
_BLOCK = re.compile(r"""["'](?:tool|function)""")
"""The key or the type of a call."""
_UNTYPED = (
    re.compile(r"""["']name["']"""),
    re.compile(r"""["'](?:input|parameters|arguments|args)["']"""),
)
"""The keys of a block of the Claude Agent SDK, and of calls as models write them, which have no type."""
_TEMPLATES = re.compile(
    r"<(?:\w+:)?invoke name=|<function=[\w.-]+>|<\|python_tag\|>|\[TOOL_CALLS\]\s*[\[{\w]"
    r"|<[|｜]tool[_▁]calls?[_▁](?:section[_▁])?begin[|｜]>"
)
"""How models write calls by their own chat templates, which servers parse: Claude, Llama, Mistral, DeepSeek, Kimi."""
_FENCE = re.compile(r"```(?:json)?")


NOT_AGENTS = frozenset(("user", "human", "system", "developer", "tool", "function"))
"""Roles whose texts are not the agent's: what looks like a call there was not made by it."""


def may_hold_calls(text: str) -> bool:
    """Return whether a text is worth a closer look."""
    return "Action" in text or _OPEN in text or text.startswith(_CALLING) or _is_template(text)


def _is_template(text: str) -> bool:
    return ("<" in text or "[TOOL" in text) and _TEMPLATES.search(text) is not None


def may_be_blocks(text: str) -> bool:
    """Return whether a text may be a message's content blocks as JSON or Python, with a call among them."""
    if _BRACKET.match(text) is None:
        return False
    return _BLOCK.search(text) is not None or all(key.search(text) for key in _UNTYPED)


def is_prose(text: str) -> bool:
    """Return whether a text needs no closer look: it holds no calls and is no content blocks."""
    if "Action" in text or (("<" in text or "[TOOL" in text) and (_OPEN in text or _is_template(text))):
        return False
    return not text.startswith(_MARKS) or not (may_hold_calls(text) or may_be_blocks(text))


def read_text(role: str, text: str, extra: dict[str, Any]) -> list[Step | Unused] | None:
    """Return the steps of an assistant's text that holds calls; None where it holds none."""
    if text.startswith(_CALLING):
        return [_listed_calls(text, extra)]
    if _OPEN in text:
        return _tagged(role, text, extra)
    if _is_template(text):
        return [UnreadCall("", "a tool call in a model's own template: parse it into tool_calls first", text)]
    sections = list(_sections(text)) if "Action" in text else []
    labels = [label for label, _, _ in sections]
    if "Action" not in labels:
        return None
    for at, (label, _, inside) in enumerate(sections):
        if label == "Action" and (labels[at + 1 : at + 2] == ["Action Input"] or _blob(inside) is not None):
            return list(_transcript(role, sections, extra))
    if "Thought" in labels and ("Action", "Observation") in pairwise(labels):
        return [UnreadCall("", "an action without an 'Action Input:'", text)]
    return None


def _listed_calls(text: str, extra: dict[str, Any]) -> Step | Unused:
    """Read `Calling tools:` and a Python list of calls."""
    try:
        listed = read_literal(text[len(_CALLING) :].strip())
    except ValueError:
        return UnreadCall("", "tool calls that are not written as a Python list", text)
    calls = [read_call(each) for each in listed] if isinstance(listed, list) else [None]
    found = [call for call in calls if call is not None]
    if len(found) < len(calls):
        return UnreadCall("", "a tool call without a name", text)
    return Step("assistant", None, found, extra=extra)


def _tagged(role: str, text: str, extra: dict[str, Any]) -> list[Step | Unused] | None:
    """Read `<tool_call>{"name": …, "arguments": …}</tool_call>`."""
    calls: list[ToolCall] = []
    at = text.find(_OPEN)
    while at >= 0:
        start = at + len(_OPEN)
        end = text.find(_CLOSE, start)
        inside = (text[start:] if end < 0 else text[start:end]).strip()
        if inside.startswith(("{", "<")):
            fields, raw = read_loose_arguments(inside)
            call = read_call(fields) if raw is None else None
            if call is None:
                return [
                    UnreadCall("", "the text of a <tool_call> is not JSON with a name and arguments", text)
                ]
            calls.append(call)
        at = -1 if end < 0 else text.find(_OPEN, end)
    return [Step(role, text, calls, extra=extra)] if calls else None


def _sections(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield label, whole text and inner text of the labelled sections; text before the first has the label ""."""
    label, lines, inner = "", [], []
    for line in text.splitlines(keepends=True):
        match = _LABEL.match(line)
        if match is not None and line[match.end() :].strip().startswith(_TEMPLATE):
            match = None
        if match is None:
            lines.append(line)
            inner.append(line)
            continue
        if lines:
            yield label, "".join(lines), "".join(inner).strip()
        label, lines, inner = match[1], [line], [line[match.end() :]]
    if lines:
        yield label, "".join(lines), "".join(inner).strip()


def _transcript(
    role: str, sections: list[tuple[str, str, str]], extra: dict[str, Any]
) -> Iterator[Step | Unused]:
    """Yield a step for each thought with its action, and one for each observation."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    position = 0
    while position < len(sections):
        label, whole, inside = sections[position]
        position += 1
        if label == "Observation":
            if texts:
                yield Step(role, "".join(texts).strip(), calls, extra=extra)
                texts, calls, extra = [], [], {}
            yield result_step(None, None, inside)
            continue
        if label == "Thought" and calls:
            yield Step(role, "".join(texts).strip(), calls, extra=extra)
            texts, calls, extra = [], [], {}
        texts.append(whole)
        if label != "Action":
            continue
        if position < len(sections) and sections[position][0] == "Action Input":
            _, more, given = sections[position]
            position += 1
            texts.append(more)
            named = inside.strip().strip("*`\"'").strip()
            if not named:
                yield UnreadCall("", "an action without a tool", whole + more)
                return
            calls.append(ToolCall(None, named, _input(given)))
        elif (blob := _blob(inside)) is not None:
            calls.append(blob)
    if texts:
        yield Step(role, "".join(texts).strip(), calls, extra=extra)


def _input(given: str) -> Any:
    """Return the arguments of an action; text that is not an object becomes the tool's only argument, `input`."""
    text = _FENCE.sub("", given).strip() if "```" in given else given.strip()
    if not text:
        return {}
    arguments, raw = read_loose_arguments(text)
    return arguments if raw is None and isinstance(arguments, dict) else {"input": text}


def _blob(inside: str) -> ToolCall | None:
    """Read an action written as JSON: `{"action": "search", "action_input": {…}}`."""
    text = _FENCE.sub("", inside).strip() if "```" in inside else inside.strip()
    if not text.startswith("{"):
        return None
    fields, raw = read_loose_arguments(text)
    if raw is not None or not isinstance(fields, dict) or not isinstance(fields.get("action"), str):
        return None
    given = fields.get("action_input")
    arguments = given if isinstance(given, dict) else {} if given is None else {"input": given}
    return ToolCall(None, fields["action"], arguments) if fields["action"].strip() else None
