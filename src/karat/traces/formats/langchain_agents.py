"""LangChain agents: actions (`tool`, `tool_input`, `log`) and the `intermediate_steps` of an executor's result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import unread_arguments
from karat.traces._objects import plain
from karat.traces._observations import tool_run
from karat.traces.detection import placed
from karat.traces.formats.langchain import is_path
from karat.traces.steps import Step, ToolResult, UnreadCall, Unused, rest

name = "langchain_agents"

_CLASSES = ("AgentAction", "AgentActionMessageLog", "ToolAgentAction", "OpenAIToolAgentAction")
_KINDS = ("constructor", "not_implemented")


def detect(value: object) -> bool:
    """An executor's result, an action, or a pair of an action and its observation."""
    if isinstance(value, list):
        return len(value) == 2 and _action(value[0]) is not None
    if not isinstance(value, dict):
        return False
    if "intermediate_steps" in value:
        return isinstance(plain(value["intermediate_steps"]), list)
    return _action(value) is not None or _is_step(value)


def read(value: object) -> Iterator[Step | Unused]:
    """Yield a step for each action and for each observation; the input and output of a result are steps too."""
    if isinstance(value, dict) and "intermediate_steps" in value:
        if isinstance(value.get("input"), str):
            yield Step("user", value["input"])
        for position, pair in enumerate(plain(value["intermediate_steps"])):
            yield from placed(_read_pair(plain(pair)), f"intermediate_steps[{position}]")
        if isinstance(value.get("output"), str):
            yield Step("assistant", value["output"])
        texts = [key for key in ("input", "output") if isinstance(value.get(key), str)]
        others = rest(value, "intermediate_steps", *texts)
        if others:
            yield Unused("", "fields outside 'intermediate_steps'", others, harmless=True)
    else:
        yield from _read_pair(value)


def _read_pair(pair: Any) -> Iterator[Step | Unused]:
    if isinstance(pair, list) and len(pair) == 2:
        given, observed = pair
    elif isinstance(pair, dict) and _is_step(pair):
        given, observed = pair["action"], pair.get("observation")
    else:
        given, observed = pair, None
    action = _action(given)
    if action is None or not isinstance(action.get("tool"), str) or not action["tool"].strip():
        yield UnreadCall("", "an intermediate step without an action that names a tool", pair)
        return
    run = tool_run(action["tool"], action.get("tool_input"), observed, identity=action.get("tool_call_id"))
    extra = rest(action, "tool", "tool_input", "tool_call_id", "log", "type")
    log = action.get("log")
    if (other := unread_arguments(run.call, extra)) is not None:
        yield UnreadCall("", f"the arguments of {run.call.name[:60]!r} under {other!r}", pair)
    yield Step("assistant", log if isinstance(log, str) else None, [run.call], extra=extra)
    if run.result is not None:
        result = ToolResult(run.call.id, run.call.name, run.result.content, run.result.error)
        yield Step("tool", result.content, tool_result=result, extra=run.beside)


def _is_step(value: dict[str, Any]) -> bool:
    return value.keys() >= {"action", "observation"} and _action(value["action"]) is not None


def _action(value: Any) -> dict[str, Any] | None:
    """Return the fields of an action, whichever form it is written in; None where it is none."""
    value = plain(value)
    if not isinstance(value, dict):
        return None
    if value.get("type") in _KINDS:
        path, fields = value.get("id"), plain(value.get("kwargs"))
        if not is_path(path) or path[-1] not in _CLASSES or not isinstance(fields, dict):
            return None
        return {**rest(value, "kwargs", "type", "id", "lc", "name"), **fields}
    if value.get("type") in _CLASSES or value.keys() >= {"tool", "tool_input", "log"}:
        return value
    return None
