"""Results of tau-bench (`traj`) and simulations of tau2-bench (`messages` with a `reward_info`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._objects import plain
from karat.traces.detection import placed
from karat.traces.detection import read as read_any
from karat.traces.steps import Step, TraceError, Unused, rest

name = "tau_bench"


def detect(value: object) -> bool:
    """A result, a simulation, a file of simulations, or a list of results."""
    if isinstance(value, list):
        first = plain(value[0]) if value else None
        return isinstance(first, dict) and (_is_result(first) or _is_simulation(first))
    if not isinstance(value, dict):
        return False
    return _is_result(value) or _is_simulation(value) or _is_file(value)


def read(value: list[Any] | dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the messages of one conversation; a file of several is refused."""
    if isinstance(value, list) or _is_file(value):
        several = value if isinstance(value, list) else value["simulations"]
        if len(several) != 1:
            raise TraceError(f"{len(several)} tau-bench results are not one trajectory: give one of them")
        yield from read(plain(several[0]))
        return
    key = "traj" if _is_result(value) else "messages"
    messages = _messages(plain(value[key]))
    of_user = [message for message in messages if _is_of_user(message)]
    yield from placed(
        read_any([_without_user_calls(message) for message in messages if not _is_result_of_user(message)]),
        key,
    )
    if of_user:
        reason = "tool calls of the simulated user, who has tools of their own, and their results"
        yield Unused(key, reason, of_user, harmless=True, reviewed=True)
    # The rest holds the expected actions and the reward, which are not the agent's.
    yield Unused("", f"fields outside {key!r}", rest(value, key), harmless=True, reviewed=True)


def _messages(given: list[Any]) -> list[Any]:
    """Return the messages, with the results of several calls (`tool_messages`) one by one."""
    out: list[Any] = []
    for message in map(plain, given):
        inside = plain(message.get("tool_messages")) if isinstance(message, dict) else None
        out.extend(inside if isinstance(inside, list) else [message])
    return out


def _is_of_user(message: Any) -> bool:
    """Return whether a message holds tool calls of the simulated user of tau2-bench, or the result of one."""
    if not isinstance(message, dict):
        return False
    return _is_result_of_user(message) or bool(message.get("role") == "user" and message.get("tool_calls"))


def _is_result_of_user(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "tool" and message.get("requestor") == "user"


def _without_user_calls(message: Any) -> Any:
    """Return a message without the calls that the simulated user made and without the raw reply that repeats them."""
    if not _is_of_user(message):
        return message
    return {key: value for key, value in message.items() if key not in ("tool_calls", "raw_data")}


def _is_result(value: dict[str, Any]) -> bool:
    return isinstance(value.get("traj"), list) and "role" not in value


def _is_simulation(value: dict[str, Any]) -> bool:
    return isinstance(value.get("messages"), list) and "task_id" in value and "reward_info" in value


def _is_file(value: dict[str, Any]) -> bool:
    return isinstance(value.get("simulations"), list) and "tasks" in value
