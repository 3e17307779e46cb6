"""LangSmith exports: runs with a `run_type`, nested in `child_runs`, as a flat list, or as they were posted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._objects import decoded, plain
from karat.traces._observations import Observation, check_name, combine, message_of, messages, tool_run
from karat.traces.detection import SYSTEM
from karat.traces.steps import Step, Unused, rest, system_steps

name = "langsmith"

_MODELS = ("llm", "chat_model")
_HELD = ("child_runs", "inputs", "outputs")
_TOOLS = ("tool", "retriever")
_BATCH = {"post", "patch"}


def detect(value: object) -> bool:
    """A run, a list of runs, or the batches in which they were posted."""
    if isinstance(value, list):
        items = [plain(item) for item in value]
        return bool(items) and (all(map(_is_run, items)) or all(map(_is_batch, items)))
    return _is_run(value) or _is_batch(value)


def read(value: object) -> Iterator[Step | Unused]:
    """The model and tool runs in the order in which they began."""
    given = value if isinstance(value, list) else [value]
    if given and all(_is_batch(plain(item)) for item in given):
        batches = [plain(item) for item in given]
        given, earlier = _posted(batches)
        yield from earlier
        for position, batch in enumerate(batches):
            others = rest(batch, *_BATCH)
            if others:
                yield Unused(f"[{position}]", "the fields of a batch beside its runs", others, harmless=True)
    runs = [run for position, item in enumerate(given) for run in _flat(plain(item), f"[{position}]")]
    yield from (Unused(where, "not a run", run) for run, where in runs if not _is_run(run))
    yield from combine(_observe(run, where) for run, where in runs if _is_run(run))


def _is_run(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("run_type"), str) and "name" in value


def _is_batch(value: Any) -> bool:
    """Whether it is what the SDK posts: runs when they begin, and patches to them when they end."""
    return (
        isinstance(value, dict)
        and ("post" in value or "patch" in value)
        and "role" not in value
        and all(
            isinstance(value[key], list)
            and all(isinstance(run, dict) and isinstance(run.get("id"), str) for run in value[key])
            for key in _BATCH
            if key in value
        )
    )


def _posted(batches: list[dict[str, Any]]) -> tuple[list[Any], list[Unused]]:
    """Return the runs of all batches with their patches applied, and the values that patches replaced."""
    runs: dict[str, dict[str, Any]] = {}
    earlier: list[Unused] = []
    for key in ("post", "patch"):
        for batch in batches:
            for posted in batch.get(key, ()):
                run = runs.setdefault(posted["id"], {})
                new = rest(posted)
                changed = {k: v for k, v in run.items() if k in new and v and new[k] != v}
                if changed:
                    reason = "the value before the run was patched"
                    earlier.append(Unused(f"{key}[{posted['id']}]", reason, changed, harmless=True))
                run.update(new)
    return list(runs.values()), earlier


def _flat(run: Any, where: str) -> Iterator[tuple[Any, str]]:
    """Yield a run and all its descendants; iterative, because the nesting may be deep."""
    stack = [(run, where)]
    while stack:
        run, where = stack.pop()
        yield run, where
        children = decoded(run.get("child_runs")) if isinstance(run, dict) else None
        if isinstance(children, list):
            below = [(plain(child), f"{where}.child_runs[{i}]") for i, child in enumerate(children)]
            stack.extend(reversed(below))


def _observe(run: dict[str, Any], where: str) -> Observation:
    kind, called = run["run_type"], str(run["name"])
    inputs, outputs = plain(run.get("inputs")), plain(run.get("outputs"))
    order = run.get("dotted_order") or run.get("start_time")
    start = order if isinstance(order, (str, int, float)) or order is None else str(order)
    if kind in _TOOLS:
        check_name(run["name"], where)
        answer, beside_answer = _answer(outputs, run.get("error"))
        ran = tool_run(called, inputs, answer, failed=run.get("error") is not None)
        return Observation(
            kind="tool",
            name=called,
            where=where,
            start=start,
            call=ran.call,
            result=ran.result,
            value=run,
            beside={**_beside(run), **beside_answer, **ran.beside},
        )
    generated, beside_generated = _generated(outputs)
    given, beside_given = _unwrapped(inputs, ("messages", "prompts", "input"))
    output, beside_output = _unwrapped(generated, ("messages", "message", "output"))
    system_key = next((word for word in SYSTEM if system_steps(beside_given.get(word))), None)
    system = [] if system_key is None else system_steps(beside_given.pop(system_key))
    beside = {"inputs": beside_given, "outputs": {**beside_generated, **beside_output}}
    return Observation(
        kind="model" if kind in _MODELS else "group",
        name=called,
        where=where,
        start=start,
        input=[*system, *messages(given, "user")],
        output=messages(output, "assistant"),
        value=rest(run, "child_runs"),
        beside={**_beside(run), **{key: part for key, part in beside.items() if part}},
    )


def _beside(run: dict[str, Any]) -> dict[str, Any]:
    held = _HELD if isinstance(decoded(run.get("child_runs")), list) else _HELD[1:]
    return rest(run, *held)


def _unwrapped(value: Any, keys: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """Return the messages inside wrappers such as `{messages: [[…]]}`, and the other fields of the wrapper."""
    others: dict[str, Any] = {}
    if isinstance(value, dict) and "role" not in value:
        key = next((key for key in keys if value.get(key) is not None), None)
        if key is not None:
            value, others = value[key], rest(value, key)
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return value, others


def _generated(outputs: Any) -> tuple[Any, dict[str, Any]]:
    """Return the message in LangChain's `generations`, if there are any, and the other fields."""
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


def _answer(outputs: Any, error: Any) -> tuple[Any, dict[str, Any]]:
    """The answer of a tool, and the other fields of its outputs."""
    if error is not None:
        return error, {} if outputs is None else {"outputs": outputs}
    if isinstance(outputs, dict) and "output" in outputs:
        inside, others = plain(outputs["output"]), rest(outputs, "output")
        if not others or message_of(inside) is not None:
            return inside, {"outputs": others} if others else {}
    return outputs, {}
