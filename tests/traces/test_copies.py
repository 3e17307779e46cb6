"""A call that is written twice counts once only where frameworks repeat calls; anywhere else it may be another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from karat.traces import TraceError, normalize

ASKED = {"role": "user", "content": "Clean up."}
BARE = {"name": "rm", "arguments": {"path": "/"}}
OTHER = {"name": "ls", "arguments": {}}
MADE = {"role": "assistant", "content": "", "tool_calls": [BARE]}
LOOKED = {"role": "assistant", "content": "", "tool_calls": [OTHER]}
DONE = {"role": "assistant", "content": "Done."}

SECOND: dict[str, Any] = {
    "in another message": [ASKED, MADE, {**DONE, "functionCalls": [BARE]}],
    "in the content of another message": [ASKED, MADE, {**DONE, "content": [{"functionCall": BARE}]}],
    "twice in the same message": [ASKED, {**MADE, "functionCalls": [BARE, BARE]}],
    "in an item without a format": [ASKED, MADE, {"foo": {"calls": [BARE]}}],
    "in a result before the call": [ASKED, {"role": "tool", "content": "x", "origin": BARE}, MADE],
    "in two fields of a result": [
        ASKED,
        MADE,
        {"role": "tool", "content": "x", "origin": BARE, "next": BARE},
    ],
    "twice beside the messages": {"messages": [ASKED, MADE], "made": [BARE, BARE]},
    "beside messages with other calls": {"messages": [ASKED, MADE, LOOKED], "made": [BARE]},
    "with the id of another call": [
        ASKED,
        {**MADE, "tool_calls": [{**OTHER, "id": "c1"}]},
        {**DONE, "functionCalls": [{**BARE, "id": "c1"}]},
    ],
    "with an id that several calls have": [
        ASKED,
        *({**MADE, "tool_calls": [{"id": "0", "name": "rm", "arguments": {"path": path}}]} for path in "ab"),
        {**DONE, "functionCalls": [{"id": "0", "name": "rm", "arguments": {"path": "c"}}]},
    ],
    "as JSON text in another message": [
        ASKED,
        MADE,
        {**DONE, "content": '{"name": "rm", "arguments": {"path": "/"}}'},
    ],
}
COPIES: dict[str, Any] = {
    "in the same message": [ASKED, {**MADE, "functionCalls": [BARE]}],
    "in the result": [ASKED, MADE, {"role": "tool", "content": "x", "origin": BARE}],
    "in a result after another": [
        ASKED,
        {**MADE, "tool_calls": [BARE, OTHER]},
        {"role": "tool", "content": "x", "origin": BARE},
        {"role": "tool", "content": "y", "origin": OTHER},
    ],
    "all of them beside the messages": {"messages": [ASKED, MADE, LOOKED], "made": [BARE, OTHER]},
    "one of them beside the messages, by its id": {
        "messages": [ASKED, {**MADE, "tool_calls": [{**BARE, "id": "c1"}]}, LOOKED],
        "made": [{**BARE, "id": "c1"}],
    },
}


@pytest.mark.parametrize("name", SECOND)
def test_a_second_call_without_an_id_is_refused(name: str) -> None:
    with pytest.raises(TraceError):
        normalize(json.dumps(SECOND[name]))


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_counts_once(name: str) -> None:
    calls = [call.name for call in normalize(COPIES[name]).calls]
    assert len(calls) == len(set(calls))
    assert "rm" in calls


@pytest.mark.parametrize("given", [float("nan"), [float("nan")], {"a": float("nan")}], ids=repr)
def test_a_call_with_nan_is_a_copy_of_itself(given: Any) -> None:
    """NaN is not equal to NaN, so that a trace with such a call was refused."""
    for call in ({"function": {"name": "f", "arguments": given}}, {"name": "f", "arguments": given}):
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        assert [each.name for each in normalize([message]).calls] == ["f"]
    assert [each.name for each in normalize([{"name": "f", "arguments": given}]).calls] == ["f"]
