"""Changed documents: no tool call disappears. It is among the calls, or the trace is refused.

Each mutant is a recorded document with one to three small changes that keep what was called: a key that is renamed or
removed, a value inside another container or written as text, a message divided in two, one more call in a known shape
under any key. The calls of a mutant are those of the original, and the one that was added, or `normalize` raises a
TraceError. What the fast path of the evaluators reads is what `normalize` reads.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from karat.evaluators.trajectory._calls import Calls, fast_calls
from karat.traces import TraceError, normalize
from tests.traces import test_frameworks, test_produced, test_trace_formats

Path = tuple[str | int, ...]
ADDED = "erase_disk"
DOCUMENTS: dict[str, Any] = {
    **test_produced.DOCUMENTS,
    **test_frameworks.DOCUMENTS,
    **{
        name: document
        for name, document in test_trace_formats.DOCUMENTS.items()
        if isinstance(document, (list, dict)) and "object" not in name and "karat" not in name
    },
}
KEYS = tuple(
    str.split("""
payload data item body foo call calls made action actions steps value wrapped inner kwargs node event delta chunk
message additional_kwargs model_extra function custom tool tool_calls toolCalls options output_items parts content
messages items requests extra_body request executed commands
""")
)
"""Keys that a changed document uses in place of its own."""
SHAPES: tuple[Any, ...] = (
    {"id": "z1", "type": "function", "function": {"name": ADDED, "arguments": '{"disk": "/dev/sda"}'}},
    {"type": "function", "function": {"name": ADDED, "arguments": {"disk": "/dev/sda"}}},
    {"name": ADDED, "arguments": {"disk": "/dev/sda"}},
    {"name": ADDED, "args": {"disk": "/dev/sda"}, "id": "z1", "type": "tool_call"},
    {"type": "tool_use", "id": "z1", "name": ADDED, "input": {"disk": "/dev/sda"}},
    {"functionCall": {"name": ADDED, "args": {"disk": "/dev/sda"}}},
    {"toolUse": {"toolUseId": "z1", "name": ADDED, "input": {"disk": "/dev/sda"}}},
    {"type": "tool-call", "toolCallId": "z1", "toolName": ADDED, "input": {"disk": "/dev/sda"}},
    {"type": "function_call", "call_id": "z1", "name": ADDED, "arguments": '{"disk": "/dev/sda"}'},
    {"part_kind": "tool-call", "tool_name": ADDED, "args": {"disk": "/dev/sda"}, "tool_call_id": "z1"},
    {"tool": ADDED, "tool_input": {"disk": "/dev/sda"}, "log": ""},
    {"tool_name": ADDED, "tool_args": {"disk": "/dev/sda"}},
    {"function": ADDED, "arguments": {"disk": "/dev/sda"}, "id": "z1"},
    {"tool_calls": [{"id": "z1", "function": {"name": ADDED, "arguments": "{}"}}]},
    {"function_call": {"name": ADDED, "arguments": "{}"}},
)
"""A call as the known formats write it."""
RESULT_KEYS = frozenset(
    str.split("""
toolUseResult tool_use_result result results output outputs output.value observation observations tool_result
toolResult functionResponse function_response toolResults artifact metadata response_metadata usage_metadata
generation_info response execution_result response_format
""")
)
ARGUMENT_KEYS = frozenset(
    str.split("""
arguments args input tool_input parameters rawInput input.value inputs
""")
)
DESCRIPTIONS = frozenset(
    str.split("""
tools functions tool_definitions config configuration settings usage tags labels annotations meta eval plan stats
results store error_retries candidates choices scores score model_usage role_usage models_usage parent_config
invocation_params gen_ai.tool.definitions llm.tools llm.invocation_parameters
""")
)
NOT_AGENTS = ("user", "human", "system", "developer", "tool", "function", "tool-response", "environment")


def places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every dict and list of a document, with its path."""
    if isinstance(value, dict):
        yield path, value
        for key, part in value.items():
            yield from places(part, (*path, key))
    elif isinstance(value, list):
        yield path, value
        for at, part in enumerate(value):
            yield from places(part, (*path, at))


def mentions(value: Any) -> bool:
    """Whether a value holds the name of a call."""
    return any(name in json.dumps(value) for name in NAMES)


NAMES = ("search_hotels", "get_weather", "convert", "final_answer", ADDED)


def is_of_agent(document: Any, path: Path) -> bool:
    """Whether a place is neither in a tool's result, in arguments, in a description, nor in a message of another."""
    value = document
    if path[:1] == ("intermediate_steps",) and path[2:3] == (1,):
        return False
    for key in (*path, None):
        if isinstance(value, dict):
            keys = [key for key in ("role", "type", "author", "source", "speaker") if key in value]
            role = value[keys[0]] if keys else ""
            role = role.get("value") if isinstance(role, dict) else role
            if str(role).lower() in NOT_AGENTS or value.get("tool_call_id") or "tool_use_id" in value:
                return False
            if str(value.get("type")).endswith(("result", "_output")) or "return" in str(
                value.get("part_kind")
            ):
                return False
            if "stringValue" in value or value.get("name") == "gen_ai.tool.message":
                return False
            if value.keys() >= {"content", "parent_tool_use_id"} and "model" not in value:
                return False
            if value.get("parts") and value.get("kind") == "request":
                return False
        if key is None:
            return True
        if key in RESULT_KEYS or key in ARGUMENT_KEYS or key in DESCRIPTIONS:
            return False
        value = value[key]
    return True


def rename(value: Any, chance: random.Random) -> bool:
    """Rename a key."""
    if not isinstance(value, dict) or not value:
        return False
    key = chance.choice(list(value))
    new = chance.choice(KEYS)
    if new in value:
        return False
    items = [(new if each == key else each, part) for each, part in value.items()]
    value.clear()
    value.update(items)
    return True


def remove(value: Any, chance: random.Random) -> bool:
    """Remove a key whose value names no call."""
    keys = [key for key, part in value.items() if not mentions(part)] if isinstance(value, dict) else []
    if not keys:
        return False
    del value[chance.choice(keys)]
    return True


def wrap(value: Any, chance: random.Random) -> bool:
    """Put a value inside another container."""
    key = _any_key(value, chance)
    if key is None:
        return False
    part = value[key]
    value[key] = chance.choice(
        ({chance.choice(KEYS): part}, [part], {chance.choice(KEYS): [part]}, {"type": "item", "item": part})
    )
    return True


def as_text(value: Any, chance: random.Random) -> bool:
    """Write a value as JSON, or as Python."""
    key = _any_key(value, chance)
    if key is None or not isinstance(value[key], (dict, list)):
        return False
    value[key] = chance.choice((json.dumps, repr))(value[key])
    return True


def unwrap(value: Any, chance: random.Random) -> bool:
    """Put the only item of a list, or the only value of a dict, in its place."""
    key = _any_key(value, chance)
    if key is None or not isinstance(value[key], (list, dict)) or len(value[key]) != 1:
        return False
    (value[key],) = value[key].values() if isinstance(value[key], dict) else value[key]
    return True


def duplicate(value: Any, chance: random.Random) -> bool:
    """Repeat an item, or a value under another key."""
    key = _any_key(value, chance)
    if key is None:
        return False
    if isinstance(value, list):
        value.insert(chance.randrange(len(value) + 1), copy.deepcopy(value[key]))
    else:
        value.setdefault(chance.choice(KEYS), copy.deepcopy(value[key]))
    return True


def divide(value: Any, chance: random.Random) -> bool:
    """Divide a dict of a list in two, each with some of its fields."""
    key = _any_key(value, chance)
    if not isinstance(value, list) or key is None or not isinstance(value[key], dict):
        return False
    fields = list(value[key].items())
    chance.shuffle(fields)
    half = chance.randrange(len(fields) + 1)
    value[key : key + 1] = [dict(fields[:half]), dict(fields[half:])]
    return True


def add(value: Any, chance: random.Random) -> bool:
    """Add a call in one of the known shapes."""
    call = copy.deepcopy(chance.choice(SHAPES))
    call = chance.choice((call, call, [call], {chance.choice(KEYS): call}, json.dumps(call)))
    if isinstance(value, list):
        value.insert(chance.randrange(len(value) + 1), call)
    else:
        key = chance.choice(KEYS)
        if key in value:
            return False
        value[key] = call
    return True


def _any_key(value: Any, chance: random.Random) -> Any:
    if not value:
        return None
    return chance.randrange(len(value)) if isinstance(value, list) else chance.choice(list(value))


CHANGES = (rename, remove, wrap, as_text, unwrap, duplicate, divide)


def mutant(document: Any, chance: random.Random) -> tuple[Any, list[str]]:
    """A changed copy of a document, and what was changed."""
    changed, done = copy.deepcopy(document), []
    wanted, adds = chance.choice((1, 1, 1, 2, 3)), chance.random() < 0.4
    for _ in range(40):
        path, value = chance.choice(list(places(changed)))
        if not is_of_agent(changed, path):
            continue
        # The call is added in the end, so that it stays one.
        change = add if adds and len(done) == wanted - 1 else chance.choice(CHANGES)
        if change(value, chance):
            done.append(f"{change.__name__} at {path}")
        if len(done) == wanted:
            break
    return changed, done


def lost(document: Any, before: Counter[str], done: list[str]) -> str:
    """Return what disappeared from a mutant; an empty text where nothing did, or it was refused."""
    try:
        # A call whose name is a text with the whole call is not lost.
        after = Counter(name for call in normalize(document).calls for name in NAMES if name in call.name)
    except TraceError:
        after = None
    for messages in (document, document.get("messages") if isinstance(document, dict) else None):
        fast = fast_calls(messages)
        if fast is None:
            continue
        try:
            slow = normalize(messages)
        except TraceError as error:
            return f"the fast path reads {fast.names} where normalize refuses: {error}"
        if fast.names != [call.name for call in slow.calls]:
            return f"the fast path reads {fast.names} and not {[call.name for call in slow.calls]}"
        if fast.values() != Calls.of(slow).values():
            return "the fast path reads other arguments"
    if after is None:
        return ""
    wanted = before + Counter({ADDED: 1} if any(each.startswith("add ") for each in done) else {})
    return ", ".join((wanted - after).elements())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_call_disappears_from_a_changed_document(name: str) -> None:
    document = DOCUMENTS[name]
    before = Counter(call.name for call in normalize(document).calls)
    chance = random.Random(name)
    for _ in range(25):
        changed, done = mutant(document, chance)
        assert lost(changed, before, done) == "", f"{done}: {json.dumps(changed)[:2000]}"
