"""Laws of normalising: it is idempotent, leaves its input alone, and refuses with nothing but TraceError."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.evaluators.trajectory._calls import fast_calls
from karat.traces import TraceError, normalize
from karat.traces._literals import read_call, read_literal

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
WORDS = """
toolCalls functionCall function_call toolUse toolResult toolUseId toolInvocations toolInvocation toolName toolCallId
part_kind tool_name raw_item traj simulations samples messages eval epoch target jsonrpc method params tool tool_input
log intermediate_steps action observation step_number source author invocationId session_id message subtype
additional_kwargs tool_call_chunks state result ground_truth
role content tool_calls tool_result function name arguments args id type parts text functionCall kwargs data
speaker conversation run_type inputs outputs child_runs observations attributes events spans messages kind input
output error choices message candidates gen_ai.operation.name gen_ai.input.messages openinference.span.kind
llm.output_messages.0.message.role tool_use_id call_id steps unused
values next thread_id created_at post patch langfuse.observation.type invalid_tool_calls tool_call_id kwargs
"""
TELLING = """
tool-call tool-result tool-invocation dynamic-tool tool-x request response toolUse ToolCallRequestEvent TextMessage
tool_call_item tools/call 2.0 AgentAction AIMessageChunk simple_1 system result mcp_call server_tool_call
assistant user tool function ai human constructor tool_use tool_result function_call function_call_output
reasoning message LLM TOOL GENERATION SPAN llm chain chat execute_tool model Agent(Action) {} []
name({"a":1}) f(x=1) {"role":"user"}
generation remove __remove_all__ {"type":"tool","content":"x"}
"""
words = st.sampled_from(WORDS.split())
telling = st.sampled_from(TELLING.split())
odd = st.recursive(
    scalars | telling,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(words | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=25,
)
names = st.sampled_from(["search", "book", "pay"])
calls = st.builds(
    lambda name, arguments, as_text: {
        "id": "x",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments) if as_text else arguments},
    },
    names,
    st.dictionaries(st.text(max_size=4), values, max_size=3),
    st.booleans(),
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": st.text(max_size=10)}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | st.text(max_size=10)},
        optional={"tool_calls": st.none() | st.lists(calls, max_size=3)},
    ),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "tool_call_id": st.just("x"), "content": st.text(max_size=5)}
    ),
)


@settings(max_examples=300, deadline=None)
@given(odd)
def test_anything_is_read_or_refused_and_never_changed(value: Any) -> None:
    before = copy.deepcopy(value)
    try:
        once = normalize(value)
    except TraceError:
        pass
    else:
        assert normalize(once) == once
        assert normalize(once.to_dict()) == once
    assert value == before


@settings(max_examples=200, deadline=None)
@given(st.lists(odd, max_size=4))
def test_steps_read_back_as_themselves(value: Any) -> None:
    try:
        steps = normalize(value).steps
    except TraceError:
        return
    assert normalize(steps).steps == steps
    assert normalize([step.to_dict() for step in steps]).steps == steps


tools = st.text(min_size=1, max_size=5).filter(str.strip)
given_arguments = st.dictionaries(st.text(max_size=3), values, max_size=2)
blocks = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)}),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_use"),
            "id": st.just("x"),
            "name": tools,
            "input": given_arguments,
        }
    ),
)
results = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": st.just("x"), "content": st.text(max_size=5)}
)
block_messages = st.one_of(
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.lists(blocks, max_size=3)}),
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": st.text(max_size=5) | st.lists(results, max_size=2)}
    ),
)
flat_messages = st.fixed_dictionaries(
    {
        "role": st.just("assistant"),
        "content": st.just(""),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"name": tools, "args": given_arguments, "id": st.just("x")},
                optional={"type": st.just("tool_call")},
            ),
            max_size=2,
        ),
    }
)
turns = st.fixed_dictionaries(
    {
        "speaker": st.sampled_from(["User", "Agent (Action)", "Environment", "(ACTION) agent"]),
        "text": st.builds(
            "{}({})".format, st.sampled_from(["f", "book.seat"]), given_arguments.map(json.dumps)
        ),
    }
)
bare_calls = st.fixed_dictionaries(
    {"name": tools, "arguments": given_arguments | given_arguments.map(json.dumps)},
    optional={"id": st.text(max_size=3)},
)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        [
            st.lists(shape, max_size=6)
            for shape in (messages, messages | block_messages, messages | flat_messages, bare_calls, turns)
        ]
    )
)
def test_the_fast_path_gives_what_the_steps_give(conversation: list[Any]) -> None:
    fast = fast_calls(conversation)
    assert fast is not None
    found = normalize(conversation).calls
    read = [json.loads(each) if isinstance(each, str) else each for each in fast.given]
    assert fast.names == [call.name for call in found]
    assert read == [call.arguments for call in found]


@settings(max_examples=200, deadline=None)
@given(st.lists(odd, max_size=4))
def test_the_fast_path_gives_way_where_messages_are_odd(value: list[Any]) -> None:
    fast = fast_calls(value)
    if fast is not None:
        assert fast.names == [call.name for call in normalize(value).calls]


@settings(max_examples=200, deadline=None)
@given(values)
def test_python_and_json_literals_read_back(value: Any) -> None:
    assert read_literal(json.dumps(value)) == value
    assert read_literal(repr(value)) == value


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abf(){}[]'\",:=\\ 01.eTrue\n", max_size=40))
def test_action_text_is_a_call_or_none(text: str) -> None:
    found = read_call(text)
    assert found is None or isinstance(found[0], str)


def test_deep_nesting_is_refused_and_does_not_hang() -> None:
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    loop: list[Any] = []
    loop.append(loop)
    for value in (deep, loop):
        with pytest.raises(TraceError):
            normalize(value)
    for text in ("[" * 100_000, '{"messages":' * 100_000, "[" * 100_000 + "]" * 100_000):
        with pytest.raises(TraceError):  # whether it is JSON cannot be known
            normalize(text)
    # Taken apart level by level: freeing it in one go would recurse as deep.
    while deep:
        deep = deep.pop()


def test_hostile_objects_are_refused() -> None:
    class Hostile:
        @property
        def conversation(self) -> Any:
            raise OSError("no")

    with pytest.raises(TraceError, match="OSError"):
        normalize([Hostile()])
