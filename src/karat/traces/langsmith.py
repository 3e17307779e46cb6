"""LangSmith exports: runs with a `run_type`, nested in `child_runs` or as a flat list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces.observations import Observation, call_of, combine, messages
from karat.traces.plain import plain
from karat.traces.steps import Step, ToolResult, Unused, rest

name = "langsmith"

_MODELS = ("llm", "chat_model")
_HELD = ("child_runs", "inputs", "outputs")
_TOOLS = ("tool", "retriever")


def detect(value: Any) -> bool:
    """A run, or a list of runs."""
    if isinstance(value, list):
        return bool(value) and all(_is_run(plain(item)) for item in value)
    return _is_run(value)


def read(value: Any) -> Iterator[Step | Unused]:
    """The model and tool runs in the order in which they began."""
    given = value if isinstance(value, list) else [value]
    runs = [run for position, item in enumerate(given) for run in _flat(plain(item), f"[{position}]")]
    yield from (Unused(where, "it is no run", run) for run, where in runs if not _is_run(run))
    yield from combine(_observe(run, where) for run, where in runs if _is_run(run))


def _is_run(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("run_type"), str) and "name" in value


def _flat(run: Any, where: str) -> Iterator[tuple[Any, str]]:
    """A run and all runs below it; a loop over a list of its own, for the nesting may be deep."""
    stack = [(run, where)]
    while stack:
        run, where = stack.pop()
        yield run, where
        children = run.get("child_runs") if isinstance(run, dict) else None
        if isinstance(children, (list, tuple)):
            below = [(plain(child), f"{where}.child_runs[{i}]") for i, child in enumerate(children)]
            stack.extend(reversed(below))


def _observe(run: dict[str, Any], where: str) -> Observation:
    kind, called = run["run_type"], str(run["name"])
    inputs, outputs = plain(run.get("inputs")), plain(run.get("outputs"))
    order = run.get("dotted_order") or run.get("start_time")
    start = order if isinstance(order, (str, int, float)) or order is None else str(order)
    if kind in _TOOLS:
        result = _result(called, outputs, run.get("error"))
        identity = _tool_call_id(outputs)
        call = call_of(called, inputs, identity)
        return Observation(
            kind="tool",
            name=called,
            where=where,
            start=start,
            call=call,
            result=result,
            value=run,
            beside={**rest(run, *_HELD), **_beside_result(outputs, run.get("error"))},
        )
    generated, beside_generated = _generated(outputs)
    given, beside_given = _unwrapped(inputs, ("messages", "prompts", "input"))
    output, beside_output = _unwrapped(generated, ("messages", "message", "output"))
    beside = {"inputs": beside_given, "outputs": {**beside_generated, **beside_output}}
    return Observation(
        kind="model" if kind in _MODELS else "group",
        name=called,
        where=where,
        start=start,
        input=messages(given, "user"),
        output=messages(output, "assistant"),
        value=rest(run, "child_runs"),
        beside={**rest(run, *_HELD), **{key: part for key, part in beside.items() if part}},
    )


def _unwrapped(value: Any, keys: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """The messages inside `{messages: [[…]]}` and the like, and what stands beside them."""
    others: dict[str, Any] = {}
    if isinstance(value, dict) and "role" not in value:
        key = next((key for key in keys if value.get(key) is not None), None)
        if key is not None:
            value, others = value[key], rest(value, key)
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return value, others


def _generated(outputs: Any) -> tuple[Any, dict[str, Any]]:
    """The message of LangChain's `generations`, where there are any, and what stands beside it."""
    if not isinstance(outputs, dict) or not isinstance(outputs.get("generations"), list):
        return outputs, {}
    others = rest(outputs, "generations")
    generation: Any = outputs["generations"]
    more: list[Any] = []
    while isinstance(generation, list):
        if not generation:
            return None, others
        more.extend(generation[1:])
        generation = plain(generation[0])
    if more:
        others["generations"] = more
    if not isinstance(generation, dict):
        return generation, others
    key = "message" if generation.get("message") is not None else "text"
    return plain(generation.get(key)), {**others, **rest(generation, key)}


def _message_of(outputs: Any) -> dict[str, Any] | None:
    """The tool message inside a tool run's outputs, in either of its forms."""
    inside = plain(outputs.get("output")) if isinstance(outputs, dict) else None
    if isinstance(inside, dict) and isinstance(inside.get("kwargs"), dict):
        inside = inside["kwargs"]
    return inside if isinstance(inside, dict) and "content" in inside else None


def _beside_result(outputs: Any, error: Any) -> dict[str, Any]:
    """What a tool run's outputs say beside its result."""
    if error is not None:
        return {} if outputs is None else {"outputs": outputs}
    message = _message_of(outputs)
    if message is None:
        return {}
    beside = {**rest(outputs, "output"), **rest(message, "content", "tool_call_id")}
    return {"outputs": beside} if beside else {}


def _tool_call_id(outputs: Any) -> Any:
    message = _message_of(outputs)
    return message.get("tool_call_id") if message else None


def _result(called: str, outputs: Any, error: Any) -> ToolResult | None:
    if error is not None:
        return ToolResult(None, called, error, True)
    if outputs is None:
        return None
    message = _message_of(outputs)
    if message is not None:
        return ToolResult(None, called, message["content"], message.get("status") == "error")
    inside = outputs["output"] if isinstance(outputs, dict) and outputs.keys() == {"output"} else outputs
    return ToolResult(None, called, inside)
