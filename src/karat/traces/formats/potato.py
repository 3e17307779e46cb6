"""Potato conversations: turns of `speaker` and `text`, where `(action)` turns and lines hold calls as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from karat.traces._literals import read_call, repeats_key
from karat.traces._objects import plain
from karat.traces._text_calls import is_prose
from karat.traces.steps import Step, ToolCall, ToolResult, UnreadCall, Unused, rest

name = "potato"

_ACTION = re.compile(r"\s*([^\W\d][\w.\-]*)\s*\((\{.*\})\)\s*", re.DOTALL)
_decode = msgspec.json.Decoder().decode
_TOOL = ("environment", "tool", "function", "observation")


def detect(value: object) -> bool:
    """A turn, or an object that contains a conversation of turns."""
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
            yield UnreadCall(where, "a turn without a speaker or a text", turn)
    others = rest(value, "conversation")
    if others:
        yield Unused("", "fields outside 'conversation'", others, harmless=True)


def fast_calls(turns: list[Any]) -> tuple[list[str], list[Any]] | None:
    """Return names and arguments where each action is one call with a JSON object; None where one is not."""
    names: list[str] = []
    arguments: list[Any] = []
    roles: dict[str, str] = {}
    for turn in turns:
        speaker, text = turn["speaker"], turn["text"]
        if len(turn) > 2:
            return None
        role = roles.get(speaker)
        if role is None:
            role = roles[speaker] = _fast_role(speaker)
        if role == "action":
            action = _ACTION.fullmatch(text)
            if action is None:
                return None
            given = _decode(action[2])
            if repeats_key(action[2], given):
                return None
            names.append(action[1])
            arguments.append(given)
        elif type(text) is not str:
            return None
        elif role == "assistant":
            # A text that holds a call has one of these marks.
            if (
                ("(" in text and "(action)" in text.lower())
                or ((":" in text or "<" in text or "[" in text or "`" in text) and not is_prose(text))
            ):  # fmt: skip
                return None
        elif role == "":
            return None
    return names, arguments


@lru_cache(maxsize=1024)
def _fast_role(speaker: str) -> str:
    """Return the role of a speaker, `action` for one that acts; "" if the name itself may hold a call."""
    if not is_prose(speaker):
        return ""
    return "action" if "(action)" in speaker.lower() else role_of(speaker.lower())


def _read_turn(turn: dict[str, Any], where: str) -> Iterator[Step | Unused]:
    speaker, text = turn["speaker"], turn["text"]
    role = role_of(speaker.lower())
    extra = rest(turn, "text")
    if "(action)" in speaker.lower() and isinstance(text, str) and text.strip():
        yield Step("assistant", text, _calls(text), extra=extra)
    elif "(action)" in speaker.lower():
        yield UnreadCall(where, "an action without a text", turn)
    elif role == "tool":
        yield Step(role, text, tool_result=ToolResult(content=text), extra=extra)
    else:
        calls = _marked_calls(text) if role == "assistant" and isinstance(text, str) else []
        yield Step(role, text, calls, extra=extra)


def _marked_calls(text: str) -> list[ToolCall]:
    """Return the calls of the lines that are marked as actions: `(action) search(q="oslo")`."""
    lines = (line.strip() for line in text.splitlines() if "(action)" in line.lower())
    marked = (line[len("(action)") :] for line in lines if line.lower().startswith("(action)"))
    return [_call(line) for line in marked if line.strip()]


def _calls(text: str) -> list[ToolCall]:
    """Return the one call that the text is, else one for each line where all lines are calls.

    Any other text is a call whose name is the text, as in Potato's own reader: `ls -la` is not `rm -rf /`.
    """
    whole = read_call(text)
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and (whole is None or whole[2] is not None):
        each = [read_call(line) for line in lines]
        if all(call is not None for call in each):
            return [ToolCall(None, *call) for call in each if call is not None]
    return [_call(text)] if lines else []


def _call(text: str) -> ToolCall:
    call = read_call(text)
    return ToolCall(None, text.strip()) if call is None else ToolCall(None, *call)


def role_of(speaker: str) -> str:
    """The role of a speaker, in small letters."""
    if speaker.startswith(("user", "human")):
        return "user"
    if speaker.startswith("system"):
        return "system"
    return "tool" if speaker.startswith(_TOOL) or "observation" in speaker else "assistant"
