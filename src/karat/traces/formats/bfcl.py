"""Results of the Berkeley Function-Calling Leaderboard: calls as Python text or as `{function: arguments}`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from karat.traces._calls import named_call
from karat.traces._literals import read_arguments, read_calls
from karat.traces._objects import plain
from karat.traces.steps import Step, ToolCall, TraceError, UnreadCall, Unused, rest

name = "bfcl"

_ID = re.compile(
    r"(?:simple|multiple|parallel|live|multi_turn|irrelevance|java|javascript|rest|exec|sql|chatable|memory|web_search)"
    r"(?:_\w+)?_\d[\w:.-]*"
)

_CODE = re.compile(
    r"^[ \t]*(?:[\w., ]+=[ \t]*)?(?:await[ \t]+)?[^\W\d][\w.]*\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\);?[ \t]*$",
    re.MULTILINE,
)
"""A line of code that makes a call: `x = await rm(path='/')`."""


def detect(value: object) -> bool:
    """A line of a result or ground-truth file, known by its id."""
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        return False
    return ("result" in value or "ground_truth" in value) and _ID.fullmatch(value["id"][:200]) is not None


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield a step for each turn's calls."""
    key = "result" if "result" in value else "ground_truth"
    given = plain(value[key])
    if (
        key == "ground_truth"
        and isinstance(given, list)
        and any(isinstance(plain(each), dict) for each in given)
    ):
        raise TraceError(
            "BFCL's possible answers list the accepted values of each argument and are not one trajectory: "
            "choose one value for each and give [{'name': …, 'arguments': {…}}, …]"
        )
    yield from _read(given, key, value)
    yield Unused("", f"fields outside {key!r}", rest(value, key), harmless=True, reviewed=True)


def _read(given: Any, where: str, value: dict[str, Any]) -> Iterator[Step | Unused]:
    if isinstance(given, str):
        calls = read_calls(given)
        if calls is not None:
            yield Step("assistant", None, [ToolCall(None, *call) for call in calls])
        elif given.strip().startswith("[") or not _is_prose(given):
            yield UnreadCall(where, "calls that are not written as a list of Python calls", given)
        else:
            yield Step("assistant", given)
    elif isinstance(given, dict):
        calls_made: list[ToolCall] = []
        for tool, arguments in given.items():
            read, raw = read_arguments(plain(arguments))
            call = named_call(None, tool, read, raw)
            if call is None:
                yield UnreadCall(where, "a tool call without a name", given)
            else:
                calls_made.append(call)
        yield Step("assistant", None, calls_made)
    elif isinstance(given, (list, tuple)):
        for position, each in enumerate(given):
            yield from _read(plain(each), f"{where}[{position}]", value)
    else:
        yield UnreadCall(where, f"{type(given).__name__} is not a call", given)


def _is_prose(text: str) -> bool:
    """Return whether a text is an answer and not a call that cannot be read."""
    text = text.strip()
    if _CODE.search(text) is not None or (text.startswith("{") and read_arguments(text)[1] is None):
        return False
    head, bracket, _ = text.partition("(")
    return not bracket or " " in head.strip()
