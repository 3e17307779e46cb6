"""The calls of the plainest shapes, read in one pass: all that evaluators of calls need, many times as fast.

These are OpenAI chat messages (also with calls as LangChain writes them), messages with Anthropic content blocks, bare
calls, and Potato turns. What it gives equals the calls of the steps that `normalize` gives; whatever is out of the
ordinary is left to that.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from karat.traces.formats import has_added
from karat.traces.potato import role_of

_MESSAGE = frozenset(("role", "content", "tool_calls", "tool_call_id", "name", "refusal", "annotations"))
_BARE = frozenset(("name", "arguments", "id"))
_TURN = frozenset(("speaker", "text"))
_ACTION = re.compile(r"\s*([^\W\d][\w.\-]*)\s*\((\{.*\})\)\s*", re.DOTALL)
_NAME = frozenset((str,))
_GIVEN = frozenset((str, dict))
_decode = msgspec.json.Decoder().decode


def quick_calls(items: Any) -> tuple[list[str], list[Any], bool] | None:
    """Names and arguments, as written, and whether all arguments are text; None where steps have to be read."""
    if type(items) is not list or has_added():
        return None
    names: list[str] = []
    arguments: list[Any] = []
    try:
        # All keys of all items at once: a quarter of the cost of looking at each item's.
        keys = set().union(*items)
        if _MESSAGE.issuperset(keys):
            if not _read_messages(items, names, arguments):
                return None
        elif _BARE.issuperset(keys):
            names = [item["name"] for item in items]
            arguments = [item["arguments"] for item in items]
        elif not (_TURN.issuperset(keys) and _read_turns(items, names, arguments)):
            return None
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError):
        return None
    kinds = set(map(type, arguments))
    if not (set(map(type, names)) <= _NAME and kinds <= _GIVEN):
        return None
    return names, arguments, dict not in kinds


def _read_messages(messages: list[Any], names: list[str], arguments: list[Any]) -> bool:
    """Adds the calls of messages; False where one of them is not plain."""
    for message in messages:
        try:
            content = message["content"]
        except KeyError:
            content = None
        if type(content) is not str and content is not None:
            if not _read_blocks(message, content, names, arguments):
                return False
        elif "tool_calls" not in message or (calls := message["tool_calls"]) is None:
            if type(message["role"]) is not str:
                return False
        elif message["role"] != "assistant" or type(calls) is not list:
            return False
        else:
            for call in calls:
                try:
                    function = call["function"]
                except KeyError:
                    if "raw" in call or "custom" in call:
                        return False
                    names.append(call["name"])
                    arguments.append(call["arguments" if "arguments" in call else "args"])
                else:
                    names.append(function["name"])
                    arguments.append(function["arguments"])
    return True


def _read_turns(turns: list[Any], names: list[str], arguments: list[Any]) -> bool:
    """Adds the calls of Potato turns, where each action is one call with a JSON object; False where one is not."""
    roles: dict[str, str] = {}
    for turn in turns:
        speaker, text = turn["speaker"], turn["text"]
        role = roles.get(speaker)
        if role is None:
            role = roles[speaker] = "action" if "(action)" in speaker.lower() else role_of(speaker.lower())
        if role == "action":
            action = _ACTION.fullmatch(text)
            if action is None:
                return False
            names.append(action[1])
            arguments.append(_decode(action[2]))
        elif role == "assistant" and "(action)" in text.lower():
            return False
    return True


def _read_blocks(message: dict[str, Any], content: Any, names: list[str], arguments: list[Any]) -> bool:
    """Adds the calls of Anthropic's content blocks; False where one of them is not plain."""
    if type(content) is not list or "tool_calls" in message or type(message["role"]) is not str:
        return False
    for block in content:
        kind = block["type"]
        if kind == "tool_use" and message["role"] == "assistant" and "role" not in block:
            names.append(block["name"])
            arguments.append(block["input"])
        elif kind != "text" and kind != "tool_result":
            return False
    return True
