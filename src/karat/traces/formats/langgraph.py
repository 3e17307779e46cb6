"""LangGraph's states: snapshots of a thread and their history, and the states or updates of a stream.

Every state repeats the messages of the ones before it, so that the newest is the trajectory; updates are put together
by the ids of their messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from karat.records import JSON
from karat.traces._objects import plain
from karat.traces.detection import ENVELOPES, placed
from karat.traces.detection import read as read_any
from karat.traces.steps import Step, Unused, rest

name = "langgraph"

_MARKS = ("next", "checkpoint", "thread_id")
_NOT_NODES = frozenset((*ENVELOPES, "inputs"))
_REMOVE_ALL = "__remove_all__"


def detect(value: JSON) -> bool:
    """A snapshot, the history of a thread, states that each extend the previous one, or updates by node."""
    if isinstance(value, dict):
        if "role" in value or "content" in value:
            return False  # a message, as most that is asked about
        return _is_snapshot(value) or (_is_update(value) and _are_updates([value]))
    first = plain(value[0]) if isinstance(value, list) and value else None
    if not (_is_snapshot(first) or _may_be_update(first) or _messages(first)):
        return False  # as nearly all lists, which then need not be looked at any further
    items = [plain(item) for item in value]
    return _are_updates(items) or (len(items) > 1 and (_are_of_one_thread(items) or _are_growing(items)))


def read(value: list[Any] | dict[str, Any]) -> Iterator[Step | Unused]:
    """The messages of the newest state, or of all updates."""
    items = [plain(item) for item in value] if isinstance(value, list) else [value]
    if _are_updates(items):
        yield from _read_updates(items)
    elif isinstance(value, list):
        yield from _read_states(items)
    else:
        yield from placed(read_any(value["values"]), "values")
        yield Unused(
            "", "fields outside 'values', which holds the state", rest(value, "values"), harmless=True
        )


def _read_states(states: list[Any]) -> Iterator[Step | Unused]:
    newest = _newest(states) if _is_snapshot(states[0]) else len(states) - 1
    contained = [_is_part(_messages(state) or [], _messages(states[newest]) or []) for state in states]
    if all(contained):
        yield from placed(read_any(states[newest]), f"[{newest}]")
    else:
        # Messages that the newest state no longer has are part of the trajectory.
        yield from read_any(_union(states))
    for position, state in enumerate(states):
        if position != newest or not all(contained):
            yield Unused(f"[{position}]", "an earlier state", state, harmless=True)


def _union(states: list[Any]) -> list[Any]:
    """Return the messages of all states in the order of their first appearance, identified by id."""
    ordered = states
    if _is_snapshot(states[0]):
        times = [state.get("created_at") for state in states]
        # A history begins with the newest.
        ordered = (
            sorted(states, key=lambda state: state["created_at"])
            if all(isinstance(time, str) for time in times)
            else states[::-1]
        )
    union: list[Any] = []
    for state in ordered:
        messages = [plain(message) for message in _messages(state) or ()]
        known = {_identity(message) for message in union} - {None}
        later = {_identity(message): message for message in messages}
        union = [
            later.get(_identity(message), message) if _identity(message) else message for message in union
        ]
        union += [
            message
            for message in messages
            if (_identity(message) not in known if _identity(message) else message not in union)
        ]
    return union


def _read_updates(updates: list[dict[str, Any]]) -> Iterator[Step | Unused]:
    collected: list[Any] = []
    for position, update in enumerate(updates):
        for node, state in update.items():
            collected, beside = _added(collected, plain(state))
            yield from (Unused(f"[{position}].{node}", *each, harmless=True) for each in beside)
    yield from read_any(collected)


def _added(collected: list[Any], state: Any) -> tuple[list[Any], list[tuple[str, Any]]]:
    """Apply an update to the messages; also return its unused parts, each with the reason.

    A message with a known id replaces the earlier one. A removed message is part of the trajectory and stays.
    """
    messages = [plain(message) for message in _messages(state) or ()]
    removing = [message for message in messages if _is_removal(message)]
    new = [message for message in messages if not _is_removal(message)]
    later = {_identity(message): message for message in new if _identity(message) is not None}
    again = [message for message in collected if _identity(message) in later]
    beside = [("it removes a message", message) for message in removing]
    beside += [("a repeated message", message) for message in again if message not in new]
    others = rest(state, "messages") if isinstance(state, dict) else state
    if others:
        beside.append(("fields outside 'messages'", others))
    if any(message["id"] == _REMOVE_ALL for message in removing):
        # The update lists all messages, perhaps in another order.
        return [message for message in collected if message not in again] + new, beside
    known = {_identity(message) for message in again}
    changed = [later.get(_identity(message), message) for message in collected]
    return changed + [message for message in new if _identity(message) not in known], beside


def _identity(message: Any) -> str | None:
    identity = message.get("id") if isinstance(message, dict) else None
    return identity if isinstance(identity, str) and identity else None


def _is_removal(message: Any) -> bool:
    return isinstance(message, dict) and message.get("type") == "remove" and "id" in message


def _is_snapshot(value: Any) -> bool:
    if not isinstance(value, dict) or not any(mark in value for mark in _MARKS):
        return False
    return isinstance(plain(value.get("values")), (dict, list))


def _is_update(value: Any) -> bool:
    """`{node: {messages: […]}}`, as a stream of updates has it."""
    return _may_be_update(value) and all(
        _messages(plain(update)) is not None for update in value.values() if update is not None
    )


def _may_be_update(value: Any) -> bool:
    """A node may change nothing (`{node: None}`), or something beside the messages."""
    if not isinstance(value, dict) or not value or not _NOT_NODES.isdisjoint(map(str, value)):
        return False
    return all(
        update is None or node == "__interrupt__" or isinstance(plain(update), dict)
        for node, update in value.items()
    )


def _are_updates(items: list[Any]) -> bool:
    return all(map(_may_be_update, items)) and any(
        _messages(plain(update)) for item in items for update in item.values()
    )


def _messages(state: Any) -> list[Any] | None:
    """The messages of a state, or of the state that a snapshot is of."""
    if not isinstance(state, dict):
        return None
    found = state.get("messages", plain(state.get("values")))
    found = found.get("messages") if isinstance(found, dict) else found
    return found if isinstance(found, list) else None


def _are_of_one_thread(items: list[Any]) -> bool:
    return all(map(_is_snapshot, items)) and len({_thread(item) for item in items}) == 1


def _thread(snapshot: dict[str, Any]) -> str | None:
    """Return the id of the thread from the snapshot, its checkpoint or its configuration."""
    config = plain(snapshot.get("config"))
    configurable = config.get("configurable") if isinstance(config, dict) else None
    places = map(plain, (snapshot, snapshot.get("checkpoint"), configurable))
    found = (place.get("thread_id") for place in places if isinstance(place, dict))
    return next((str(identity) for identity in found if identity is not None), None)


def _are_growing(items: list[Any]) -> bool:
    """Whether each state contains the messages of the previous one, and the last state has more than the first."""
    found = [messages for item in items if (messages := _messages(item)) is not None]
    if len(found) < len(items) or len(found[-1]) <= len(found[0]):
        return False
    return all(_is_part(earlier, later) for earlier, later in itertools.pairwise(found))


def _is_part(earlier: list[Any], later: list[Any]) -> bool:
    """Whether all of the earlier messages are among the later ones, in their order."""
    rest_of_later = iter(later)
    return all(any(message == other for other in rest_of_later) for message in earlier)


def _newest(snapshots: list[dict[str, Any]]) -> int:
    """By the time they were made; the first where they do not say it, for a history begins with the newest."""
    times = [snapshot.get("created_at") for snapshot in snapshots]
    if not all(isinstance(time, str) for time in times):
        return 0
    return max(range(len(times)), key=lambda position: str(times[position]))
