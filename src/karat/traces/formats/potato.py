"""Potato conversations: turns of `speaker` and `text`, where `(action)` turns and lines hold calls as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from karat.traces._literals import read_call
from karat.traces._objects import plain
from karat.traces.steps import Step, ToolCall, ToolResult, Unused, rest

name = "potato"

_FAST_KEYS = frozenset(("speaker", "text"))
_ACTION = re.compile(r"\s*([^\W\d][\w.\-]*)\s*\((\{.*\})\)\s*", re.DOTALL)
_decode = msgspec.json.Decoder().decode
_TOOL = ("environment", "tool", "function", "observation")


def detect(value: Any) -> bool:
    """A turn, or whatever carries a conversation of turns."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("speaker"), str) and "text" in value:
        return True
    turns = value.get("conversation")
    return isinstance(turns, (list, tuple)) and all(isinstance(plain(turn), dict) for turn in turns)


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """The step of a turn, or of every turn."""
    if "speaker" in value:
        yield from _read_turn(value, "")
        return
    for position, turn in enumerate(map(plain, value["conversation"])):
        where = f"conversation[{position}]"
        if isinstance(turn.get("speaker"), str) and "text" in turn:
            yield from _read_turn(turn, where)
        else:
            yield Unused(where, "a turn needs a speaker and a text", turn)
    others = rest(value, "conversation")
    if others:
        yield Unused("", "it stands beside 'conversation'", others, harmless=True)


def fast_calls(turns: list[Any], keys: set[Any]) -> tuple[list[str], list[Any]] | None:
    """Return names and arguments where each action is one call with a JSON object; None where one is not."""
    if not _FAST_KEYS.issuperset(keys):
        return None
    names: list[str] = []
    arguments: list[Any] = []
    roles: dict[str, str] = {}
    for turn in turns:
        speaker, text = turn["speaker"], turn["text"]
        role = roles.get(speaker)
        if role is None:
            role = roles[speaker] = "action" if "(action)" in speaker.lower() else role_of(speaker.lower())
        if role == "action":
            action = _ACTION.fullmatch(text)
            if action is None:
                return None
            names.append(action[1])
            arguments.append(_decode(action[2]))
        elif role == "assistant" and "(action)" in text.lower():
            return None
    return names, arguments


def _read_turn(turn: dict[str, Any], where: str) -> Iterator[Step | Unused]:
    speaker, text = turn["speaker"], turn["text"]
    role = role_of(speaker.lower())
    extra = rest(turn, "text")
    if "(action)" in speaker.lower() and isinstance(text, str):
        calls = _calls(text)
        if not calls and text.strip():
            reason = "an action that is not written name(arguments); it is kept as text"
            yield Unused(where, reason, text)
        yield Step("assistant", text, calls, extra=extra)
    elif role == "tool":
        yield Step(role, text, tool_result=ToolResult(content=text), extra=extra)
    else:
        calls = _marked_calls(text) if role == "assistant" and isinstance(text, str) else []
        yield Step(role, text, calls, extra=extra)


def _marked_calls(text: str) -> list[ToolCall]:
    """The calls of the lines that are marked as actions in a text of other things: `(action) search(q="oslo")`."""
    lines = (line.strip() for line in text.splitlines() if "(action)" in line.lower())
    marked = (line[len("(action)") :] for line in lines if line.lower().startswith("(action)"))
    return [ToolCall(None, *call) for line in marked if (call := read_call(line)) is not None]


def _calls(text: str) -> list[ToolCall]:
    """The one call that the text is, else one from each line; none where a line is no call."""
    whole = read_call(text)
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and (whole is None or whole[2] is not None):
        each = [read_call(line) for line in lines]
        if all(call is not None for call in each):
            return [ToolCall(None, *call) for call in each if call is not None]
    return [ToolCall(None, *whole)] if whole is not None else []


def role_of(speaker: str) -> str:
    """The role of a speaker, in small letters."""
    if speaker.startswith(("user", "human")):
        return "user"
    if speaker.startswith("system"):
        return "system"
    return "tool" if speaker.startswith(_TOOL) or "observation" in speaker else "assistant"
