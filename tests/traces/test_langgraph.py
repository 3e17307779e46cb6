"""States of a LangGraph thread repeat messages; each message is read once."""

from __future__ import annotations

from typing import Any

from karat.traces import normalize

ASK = {"type": "human", "content": "Weather?", "id": "1"}
CALL = {
    "type": "ai",
    "content": "",
    "id": "2",
    "tool_calls": [{"id": "c1", "name": "look", "args": {"x": 1}}],
}
GOT = {"type": "tool", "content": "sunny", "tool_call_id": "c1", "id": "3"}
SAY = {"type": "ai", "content": "Sunny.", "id": "4"}
WHOLE = normalize([ASK, CALL, GOT, SAY]).steps


def snapshot(messages: list[Any], at: int, thread: str = "t") -> dict[str, Any]:
    return {
        "values": {"messages": messages},
        "next": [],
        "config": {"configurable": {"thread_id": thread}},
        "created_at": f"2026-01-0{at}",
    }


def test_a_snapshot_is_its_state() -> None:
    assert normalize(snapshot([ASK, CALL, GOT, SAY], 1)).steps == WHOLE


def test_the_newest_state_of_a_history_is_read_at_any_position() -> None:
    states = [snapshot([ASK, CALL], 1), snapshot([ASK, CALL, GOT, SAY], 3), snapshot([ASK, CALL, GOT], 2)]
    read = normalize(states)
    assert read.steps == WHOLE
    assert [part.harmless for part in read.unused] == [True, True, True]


def test_messages_that_the_newest_state_no_longer_has_are_read_all_the_same() -> None:
    read = normalize([snapshot([ASK, SAY], 2), snapshot([ASK, CALL, GOT], 1)])
    assert read.steps == WHOLE
    assert all(part.harmless for part in read.unused)


def test_states_of_different_threads_are_different_conversations() -> None:
    assert len(normalize([snapshot([ASK, SAY], 1, "a"), snapshot([ASK, SAY], 2, "b")]).steps) == 4


def test_a_stream_of_states() -> None:
    states = [{"messages": [ASK]}, {"messages": [ASK, CALL]}, {"messages": [ASK, CALL, GOT, SAY]}]
    assert normalize(states).steps == WHOLE


def test_two_attempts_are_not_a_stream_of_states() -> None:
    other = {**SAY, "content": "Rainy.", "id": "5"}
    assert len(normalize([{"messages": [ASK, SAY]}, {"messages": [ASK, CALL, other]}]).steps) == 5


def test_a_stream_of_updates() -> None:
    updates = [
        {"ask": {"messages": [ASK]}},
        {"guard": None},
        {"model": {"messages": [CALL], "cost": 3}},
        {"tools": {"messages": [GOT]}, "audit": {"seen": True}},
        {"model": {"messages": [SAY]}},
    ]
    read = normalize(updates)
    assert read.steps == WHOLE
    assert [part.value for part in read.unused] == [{"cost": 3}, {"seen": True}]
    assert normalize({"model": {"messages": [SAY]}}).steps == WHOLE[-1:]


def test_an_update_that_tells_messages_again_puts_them_in_their_order() -> None:
    late = {"type": "tool", "content": "no JSON", "tool_call_id": "c2", "id": "9"}
    remove = {"type": "remove", "content": "", "id": "__remove_all__"}
    updates = [
        {"model": {"messages": [CALL]}},
        {"tools": {"messages": [GOT]}},
        {"model": {"messages": [remove, ASK, CALL, late, GOT, SAY]}},
    ]
    assert normalize(updates).steps == normalize([ASK, CALL, late, GOT, SAY]).steps


def test_a_changed_message_is_reported_once_and_a_removed_one_is_kept() -> None:
    updates = [
        {"model": {"messages": [CALL, SAY]}},
        {"trim": {"messages": [{"type": "remove", "content": "", "id": "2"}]}},
        {"edit": {"messages": [{**SAY, "content": "Rainy."}]}},
    ]
    read = normalize(updates)
    assert read.steps == normalize([CALL, {**SAY, "content": "Rainy."}]).steps
    assert SAY in [part.value for part in read.unused]
