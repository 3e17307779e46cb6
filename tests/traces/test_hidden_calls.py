"""Calls at places that no reader knows are refused or read, and prose about calls is accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from karat.evaluators import TrajectoryMatchEvaluator
from karat.traces import TraceError, normalize

ASKED = {"role": "user", "content": "Clean up."}
BARE = {"name": "ls", "arguments": {}}
LISTED: dict[str, Any] = {"id": "c0", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
LOOKED = {"role": "assistant", "content": "", "tool_calls": [LISTED]}
HIDDEN = {"id": "c1", "type": "function", "function": {"name": "rm", "arguments": '{"path": "/"}'}}
ACTION = {"speaker": "Agent (Action)", "text": "ls({})"}
RECORDED = {"kind": "tool", "name": "ls", "input": {}, "output": "x"}
REACT = "Thought: a\nAction: rm\nAction Input: {}"


def said(content: Any, **fields: Any) -> list[Any]:
    """A call that is read, and a message of the agent after it."""
    return [ASKED, LOOKED, {"role": "assistant", "content": content, **fields}]


REFUSED: dict[str, Any] = {
    "a bare call whose name is a number": [BARE, {"name": 7, "arguments": {"path": "/"}}],
    "a bare call whose name is null": [BARE, {"name": None, "arguments": {"path": "/"}}],
    "a bare call without a name": [BARE, {"arguments": {"path": "/"}}],
    "a bare call with params": [BARE, {"name": "rm", "params": {"path": "/"}}],
    "a bare call with a function_name": [BARE, {"function_name": "rm", "arguments": {}}],
    "a bare call with a result": [BARE, {"name": "rm", "input": {"path": "/"}, "output": "gone"}],
    "a nameless call in tool_calls": {"tool_calls": [BARE, {"name": None, "arguments": {}}]},
    "a nameless call in calls": {"calls": [BARE, {"arguments": {"path": "/"}}]},
    "a step of ATIF": [
        *(ASKED, LOOKED),
        {"step_id": 2, "tool_calls": [{"tool_call_id": "c1", "function_name": "rm", "arguments": {}}]},
    ],
    "a turn without a speaker": [ACTION, {"speaker": None, "text": "rm({})"}],
    "an action with another key": [ACTION, {"speaker": "Agent (Action)", "content": "rm({})"}],
    "a recorded call without a name": [RECORDED, {**RECORDED, "name": None}],
    "a recorded call with a blank name": [RECORDED, {**RECORDED, "name": " "}],
    "a chunk of a completion": [
        *(ASKED, LOOKED),
        {"object": "chat.completion.chunk", "choices": [{"delta": {"tool_calls": [{"index": 0, **HIDDEN}]}}]},
    ],
    "a choice without a message": [ASKED, LOOKED, {"choices": [{"tool_calls": [HIDDEN]}]}],
    "a second choice after an empty one": {
        "choices": [{"message": None}, {"message": {"role": "assistant", "tool_calls": [HIDDEN]}}]
    },
    "a second candidate after an empty one": {
        "candidates": [{}, {"content": {"parts": [{"functionCall": {"name": "rm", "args": {}}}]}}]
    },
    "a sample of Inspect without messages": {
        "epoch": 1,
        "target": "x",
        "messages": [],
        "output": {"choices": [{"message": {"role": "assistant", "tool_calls": [HIDDEN]}}]},
    },
    "an event of a tool in a sample of Inspect": {
        "epoch": 1,
        "target": "x",
        "messages": [ASKED, LOOKED],
        "events": [{"event": "tool", "id": "c1", "function": "rm", "arguments": {"path": "/"}}],
    },
    "an action that cannot be read beside one that can": said(
        "Thought: a\nAction: ls\nAction Input: {}\nObservation: x\nThought: b\nAction: rm[/]\nObservation: y"
    ),
    "an action whose observation is the next message": said("Thought: it is full\nAction: rm[/]"),
    "an action in words, observed in the next message": [
        *said("Thought: it is full\nAction: remove all files"),
        {"role": "user", "content": "Observation: gone"},
    ],
    "ReAct text in a part of Gemini": {"contents": [{"role": "model", "parts": [{"text": REACT}]}]},
    "ReAct text beside another call of Anthropic": [
        ASKED,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": REACT},
                {"type": "tool_use", "id": "1", "name": "ls", "input": {}},
            ],
        },
    ],
    "ReAct text beside another call": [ASKED, {**LOOKED, "content": REACT}],
    "ReAct text before many blocks": said(
        [{"type": "text", "text": REACT}, *[{"type": "text", "text": "x"}] * 6_000]
    ),
    "a call in GLM's template": said(
        "<tool_call>rm\n<arg_key>path</arg_key>\n<arg_value>/</arg_value>\n</tool_call>"
    ),
    "a Python call in a tag": said('<tool_call>rm(path="/")</tool_call>'),
    "a call in Granite's template": said('<|tool_call|>[{"name": "rm", "arguments": {"path": "/"}}]'),
    "a call in Harmony": said('<|channel|>commentary to=functions.rm<|message|>{"path":"/"}<|call|>'),
    "a call in Command R's template": said('<|START_ACTION|>[{"tool_name": "rm"}]<|END_ACTION|>'),
    "a part of the AI SDK without an id": [
        ASKED,
        {
            "role": "assistant",
            "parts": [{"type": "step-start"}, {"type": "tool-rm", "input": {"path": "/"}}],
        },
    ],
    "a request of MCP without a version": [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ls"}},
        {"id": 2, "method": "tools/call", "params": {"name": "rm"}},
    ],
    "a second request of MCP for the same": [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rm", "arguments": {"p": 1}}},
        {"id": 2, "method": "tools/call", "params": {"name": "rm", "arguments": {"p": 1}}},
    ],
    "a method of MCP in capitals": [
        {"jsonrpc": "2.0", "id": 2, "method": "Tools/Call", "params": {"name": "rm"}}
    ],
    "a result of BFCL as JSON text": {"id": "multi_turn_base_1", "result": [["[ls()]"], ['{"rm": "{}"}']]},
    "an assignment in BFCL": {"id": "multi_turn_base_1", "result": [["[ls()]"], ["x = rm(path='/')"]]},
    "an awaited call in BFCL": {"id": "multi_turn_base_1", "result": [["[ls()]"], ["await rm(path='/')"]]},
    "a block of the type invoke": said([{"type": "invoke", "name": "rm", "input": {"path": "/"}}]),
    "a block of the type call": said([{"type": "call", "name": "rm", "input": {"path": "/"}}]),
    "a block with a text and a call": said([{"type": "text", "text": "x", "name": "rm", "input": {}}]),
    "an action of SWE-agent": said("I clean.", thought="I clean.", action="rm -rf /"),
    "actions of a message": said("I clean.", actions=["rm -rf /"]),
    "a command of a message": said("I clean.", command="rm -rf /"),
    "a tool and its arguments in a message": said("I do it.", tool="rm", tool_args={"path": "/"}),
    "executions of tools": said("x", tool_executions=[{"tool_name": "rm", "tool_args": {"path": "/"}}]),
    "a call with keywords": said("x", made=[{"name": "rm", "kwargs": {"path": "/"}}]),
    "a call inside a call": [ASKED, {**LOOKED, "tool_calls": [{**LISTED, "tool_calls": [HIDDEN]}]}],
    "two calls in one": [
        ASKED,
        {**LOOKED, "tool_calls": [{**LISTED, "custom": {"name": "rm", "input": "/"}}]},
    ],
    "a call inside the function of another": [
        ASKED,
        {**LOOKED, "tool_calls": [{**LISTED, "function": {**LISTED["function"], "function": HIDDEN}}]},
    ],
    "a call in place of an id": [ASKED, {**LOOKED, "tool_calls": [{**LISTED, "id": HIDDEN}]}],
    "a call in place of the id of a block": [
        ASKED,
        {"role": "assistant", "content": [{"type": "tool_use", "id": [HIDDEN], "name": "ls", "input": {}}]},
    ],
    "a call in place of the id of a bare call": [{**BARE, "id": HIDDEN}],
    "a call in a field of a message with calls": [ASKED, {**LOOKED, "event": json.dumps(HIDDEN)}],
    "a call in a field of another": [
        ASKED,
        {**LOOKED, "tool_calls": [{**LISTED, "event": json.dumps(HIDDEN)}]},
    ],
    "a content block that is a list": said([["tool_use", "c1", "rm", {"path": "/"}]]),
    "a content block without a name": said([{"id": "c1", "tool": None, "input": {"path": "/"}}]),
    "calls in the Python of Llama": said('[rm(path="/"), ls()]'),
    "a turn of Potato without a speaker": [ACTION, {"text": 'rm({"path": "/"})'}],
    "a turn of Potato in another object": [ACTION, {"turn": {"speaker": "Agent (Action)", "text": "rm"}}],
    "a call as a text among messages": [ASKED, LOOKED, 'rm({"path": "/"})'],
    "an unknown field of a sample of Inspect": {
        "epoch": 1,
        "target": "x",
        "messages": [ASKED, LOOKED],
        "made": [{"tool_name": "rm", "tool_args": {"path": "/"}}],
    },
    "a call in an attribute of a span": [
        {"name": "chat", "attributes": {"gen_ai.prompt": "hi", "made": {"name": "rm", "args": {"path": "/"}}}}
    ],
    "a call in an event of a span without a name": [
        {"name": "chat", "attributes": {"gen_ai.prompt": "hi"}, "events": [json.dumps(HIDDEN)]}
    ],
    "a call beside the value of an attribute": [
        {
            "name": "chat",
            "attributes": [
                {"key": "gen_ai.prompt", "value": {"stringValue": "hi"}, "made": json.dumps(HIDDEN)}
            ],
        }
    ],
    "a request of MCP whose method is no text": [
        {"jsonrpc": "2.0", "id": 1, "method": ["tools/call"], "params": {"name": "rm", "arguments": {}}}
    ],
    "a call in the class of an object of LangChain": [
        {"lc": 1, "type": "constructor", "id": [HIDDEN, "AIMessage"], "kwargs": {"content": "x"}}
    ],
    "text that repeats the key of the calls": json.dumps([ASKED, LOOKED])[:-2] + ', "tool_calls": []}]',
    "a line that repeats a key": '{"role": "user", "content": "x"}\n'
    + json.dumps(LOOKED)[:-1]
    + ', "tool_calls": []}',
    "turns of Potato in place of the parts of Gemini": {"id": "x", "parts": [ACTION]},
    "a text beside an object of LangChain with the same field": [
        {
            "lc": 1,
            "type": "constructor",
            "id": ["langchain", "schema", "messages", "AIMessage"],
            "kwargs": {"content": "x"},
            "content": json.dumps(HIDDEN),
        }
    ],
    "a chunk of AG-UI": [
        ASKED,
        LOOKED,
        {"type": "TOOL_CALL_CHUNK", "toolCallId": "c1", "toolCallName": "rm"},
    ],
    "a command of Codex that begins": [
        *(ASKED, LOOKED),
        {"type": "event_msg", "payload": {"type": "exec_command_begin", "command": ["rm", "/"]}},
    ],
    "an action of browser-use": [
        *(ASKED, LOOKED),
        {"model_output": {"action": [{"click_element_by_index": {"index": 1}}]}},
    ],
    "a run of LangSmith without a name": [{"id": "2", "run_type": "tool", "name": None, "inputs": {}}],
    "an observation of Langfuse without a name": {
        "observations": [{"id": "2", "type": "TOOL", "name": None, "input": {}, "startTime": "2"}]
    },
    "a span of OpenInference without a name": [
        {"name": None, "attributes": {"openinference.span.kind": "TOOL", "input.value": "{}"}}
    ],
    "a span of OpenTelemetry without a name": [
        {"name": "execute_tool", "attributes": {"gen_ai.operation.name": "execute_tool"}}
    ],
    "a call as JSON text in a turn of Potato": [
        {"speaker": "Agent", "text": '{"name": "rm", "arguments": {"path": "/"}}'},
        ACTION,
    ],
    "a chunk of LangChain that goes on": [
        {
            "type": "AIMessageChunk",
            "content": "",
            "tool_calls": [{"name": "rm", "args": {}, "id": "1"}],
            "tool_call_chunks": [{"name": "rm", "args": '{"pa', "id": "1", "index": 0}],
        }
    ],
    "a block of Anthropic that goes on": said(
        [{"type": "tool_use", "id": "c1", "name": "rm", "partial_json": '{"pa'}]
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hidden_call_is_refused(name: str) -> None:
    with pytest.raises(TraceError):
        normalize(REFUSED[name])
    for outputs, reference in ((REFUSED[name], [BARE]), ([BARE], REFUSED[name])):
        with pytest.raises(TraceError):
            TrajectoryMatchEvaluator(mode="strict").evaluate(outputs=outputs, reference_outputs=reference)


READ = {
    "a list in a tag": '<tool_call>[{"name": "rm", "arguments": {"path": "/"}}]</tool_call>',
    "a fence in a tag": '<tool_call>\n```json\n{"name": "rm", "arguments": {"path": "/"}}\n```\n</tool_call>',
    "structured chat": '```json\n{"action": "rm", "action_input": {"path": "/"}}\n```',
    "structured chat without a fence": '{"action": "rm", "action_input": {"path": "/"}}',
    "an action of smolagents": 'Thought: x\nAction:\n{"name": "rm", "arguments": {"path": "/"}}',
    "calls of smolagents after a text": f"I clean.\nCalling tools:\n[{HIDDEN!r}]",
    "lower case": 'thought: a\naction: rm\naction input: {"path": "/"}',
    "an underscore": 'Thought: a\nAction: rm\nAction_Input: {"path": "/"}',
    "bullets": '- Thought: a\n- Action: rm\n- Action Input: {"path": "/"}',
    "headings": '### Action: rm\n### ActionInput: {"path": "/"}',
}


@pytest.mark.parametrize("name", READ)
def test_calls_in_text_are_read(name: str) -> None:
    calls = normalize(said(READ[name])).calls
    assert [(call.name, call.arguments) for call in calls] == [("ls", {}), ("rm", {"path": "/"})]


ACCEPTED: dict[str, Any] = {
    "prose about an action": said("The next action: we call the plumber. Observation: he is late."),
    "a plan": said("Thought: it rains.\nAction: take an umbrella with you."),
    "no action": said("Thought: I know it.\nAction: None\nFinal Answer: Oslo"),
    "a final answer of structured chat": said('{"action": "Final Answer", "action_input": "Oslo"}'),
    "data with an action": said('{"action": "buy", "price": 3}'),
    "prose about tags": said(
        "Wrap a call in <tool_call> and </tool_call>, or write <tool_call>…</tool_call>."
    ),
    "prose about tools": said("About it. Calling tools: how to do it, and why the function section matters."),
    "prose about templates": said("The token to=functions. and the tag <tool> are described above."),
    "metadata with a name": said("x", metadata={"name": "run", "params": {"a": 1}, "command": "make"}),
    "a result that holds calls": [
        *(ASKED, LOOKED),
        {"role": "tool", "tool_call_id": "c0", "content": REACT, "command": "ls", "action": "none"},
    ],
    "a question that holds calls": [{"role": "user", "content": REACT}, LOOKED],
    "the text of the call that is read": [ASKED, {**LOOKED, "content": REACT.replace("rm", "ls")}],
    "a message with an action that its call repeats": [ASKED, {**LOOKED, "action": "ls"}],
    "an unknown event": [ASKED, LOOKED, {"type": "event_msg", "payload": {"type": "token_count", "n": 3}}],
    "a request of MCP for another thing": [
        *(ASKED, LOOKED),
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}},
    ],
    "an object of LangChain": said("x", model={"lc": 1, "type": "constructor", "name": "Chat", "kwargs": {}}),
    "a turn of Potato with brackets": [{"speaker": "Agent", "text": "It is done (see: [1] < 2)."}, ACTION],
    "a sample of Inspect with its events": {
        "epoch": 1,
        "target": "x",
        "messages": [ASKED, LOOKED],
        "events": [{"event": "tool", "id": "c0", "function": "ls", "arguments": {}}],
    },
    "numbers without end": said("x", logprobs={"values": [[0.5, 1]] * 20_000}),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_text_that_only_mentions_calls_is_accepted(name: str) -> None:
    assert [call.name for call in normalize(ACCEPTED[name]).calls] == ["ls"]
    assert TrajectoryMatchEvaluator().evaluate(outputs=ACCEPTED[name], reference_outputs=[BARE]).score == 1.0


@pytest.mark.parametrize(
    "value", ["1e400", "-9e999", "[" * 500 + "]" * 500, "1" * 4_301], ids=["inf", "-inf", "deep", "digits"]
)
def test_a_literal_that_is_too_much_is_an_error_as_in_json(value: str) -> None:
    turns = [{"speaker": "Agent (Action)", "text": f"f(a={value})"}]
    for document in (turns, f"Thought: x\nAction: f\nAction Input: {{'a': {value}}}"):
        with pytest.raises(TraceError):
            normalize(document)
    with pytest.raises(TraceError):
        normalize(json.loads(json.dumps({"id": "simple_1", "result": f"[f(a={value})]"})))


def test_a_duplicate_key_makes_arguments_unreadable() -> None:
    (call,) = normalize([{"speaker": "Agent (Action)", "text": "f({'path': '/tmp', 'path': '/'})"}]).calls
    assert call.malformed


@pytest.mark.parametrize(
    "text", ['{"path": "/tmp", "path": "/"}', '{"a": [{"b": 1, "c": 2, "b": 1}]}', '{"a": "\\u0022", "a": 1}']
)
def test_json_with_a_duplicate_key_is_unreadable(text: str) -> None:
    message = {**LOOKED, "tool_calls": [{**LISTED, "function": {"name": "ls", "arguments": text}}]}
    (call,) = normalize([ASKED, message]).calls
    assert call.raw == text
    last = [{"name": "ls", "arguments": json.loads(text)}]
    for modes in (
        ("strict", "exact"),
        ("unordered", "exact"),
        ("superset", "superset"),
        ("subset", "subset"),
    ):
        evaluator = TrajectoryMatchEvaluator(mode=modes[0], tool_args_match_mode=modes[1])  # type: ignore[arg-type]
        assert evaluator.evaluate(outputs=[ASKED, message], reference_outputs=last).score == 0.0
        assert evaluator.evaluate(outputs=[ASKED, message], reference_outputs=[ASKED, message]).score == 1.0
    turns = [{"speaker": "Agent (Action)", "text": f"ls({text})"}]
    assert TrajectoryMatchEvaluator().evaluate(outputs=turns, reference_outputs=last).score == 0.0


def test_escaped_quotes_repeat_no_key() -> None:
    text = '{"a": "\\u0022\\u0022"}'
    message = {**LOOKED, "tool_calls": [{**LISTED, "function": {"name": "ls", "arguments": text}}]}
    reference = [{"name": "ls", "arguments": {"a": '""'}}]
    assert TrajectoryMatchEvaluator().evaluate(outputs=[message], reference_outputs=reference).score == 1.0


def test_runs_below_another_may_be_json_text() -> None:
    run = {"name": "ls", "run_type": "tool", "inputs": {}, "outputs": {"output": "x"}}
    parent = {"name": "agent", "run_type": "chain", "inputs": {}, "child_runs": json.dumps([run])}
    assert [call.name for call in normalize(parent).calls] == ["ls"]


@pytest.mark.parametrize("write", [json.dumps, repr])
def test_a_document_may_be_text(write: Any) -> None:
    assert normalize(write([ASKED, LOOKED])) == normalize([ASKED, LOOKED])
