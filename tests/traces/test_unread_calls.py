"""A tool call that cannot be read is an error: it never counts as absent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.evaluators import (
    RedundantCallsEvaluator,
    ToolCallAccuracyEvaluator,
    ToolUseEvaluator,
    TrajectoryMatchEvaluator,
)
from karat.traces import TraceError, normalize, normalize_trajectory
from tests.traces.test_trace_laws import odd

ASKED = {"role": "user", "content": "Clean up."}
CALL = {"id": "c1", "name": "rm", "arguments": {"path": "/"}}
OPENAI_CALL = {"id": "c1", "type": "function", "function": {"name": "rm", "arguments": '{"path": "/"}'}}

UNREAD: dict[str, Any] = {
    "tool calls that are text": [ASKED, {"role": "assistant", "content": "", "tool_calls": "oops"}],
    "tool calls that are an object": [ASKED, {"role": "assistant", "tool_calls": {"rm": {"path": "/"}}}],
    "a call without a name": [ASKED, {"role": "assistant", "tool_calls": [{"id": "x", "args": {}}]}],
    "a call with a blank name": [ASKED, {"role": "assistant", "tool_calls": [{"name": " ", "args": {}}]}],
    "a call that is null": [ASKED, {"role": "assistant", "tool_calls": [None]}],
    "a function without a name": [
        ASKED,
        {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]},
    ],
    "a legacy call that is text": [ASKED, {"role": "assistant", "function_call": "rm"}],
    "a legacy call without a name": [ASKED, {"role": "assistant", "function_call": {"arguments": "{}"}}],
    "a bare call with an empty name": [{"name": "", "arguments": {}}],
    "an unmerged chunk": [
        {
            "type": "AIMessageChunk",
            "content": "",
            "tool_calls": [],
            "tool_call_chunks": [{"name": None, "args": '{"path"', "id": None, "index": 0}],
        }
    ],
    "chunks that LangChain could not read": [
        {
            "type": "AIMessageChunk",
            "content": "",
            "tool_calls": [],
            "invalid_tool_calls": [{"name": None, "args": '"/"}', "id": None, "error": None}],
        }
    ],
    "an Anthropic block without a name": [
        ASKED,
        {"role": "assistant", "content": [{"type": "tool_use", "input": {}}]},
    ],
    "a piece of a streamed call of Gemini": [
        {
            "role": "model",
            "parts": [{"functionCall": {"name": "rm", "partialArgs": [{"jsonPath": "$.path"}]}}],
        }
    ],
    "a call of Gemini that continues": [
        {"role": "model", "parts": [{"functionCall": {"name": "rm", "willContinue": True}}]}
    ],
    "chunks of a stream of the AI SDK": [
        {"type": "tool-input-start", "toolCallId": "c1", "toolName": "rm"},
        {"type": "tool-input-available", "toolCallId": "c1", "toolName": "rm", "input": {"path": "/"}},
    ],
    "a call of the AI SDK whose input is not complete": [
        {
            "role": "assistant",
            "parts": [{"type": "tool-rm", "toolCallId": "c1", "state": "input-streaming", "input": {}}],
        }
    ],
    "a call in an update of the Agent Client Protocol": [
        ASKED,
        {
            "jsonrpc": "2.0",
            "method": "session/update",
            "params": {"update": {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Remove"}},
        },
    ],
    "a tool part of OpenCode": [
        ASKED,
        {
            "role": "assistant",
            "parts": [
                {"type": "tool", "callID": "c1", "tool": "bash", "state": {"input": {"command": "rm /"}}},
                {"type": "text", "text": "Done."},
            ],
        },
    ],
    "a command of Codex": [
        ASKED,
        {"type": "item.completed", "item": {"type": "command_execution", "command": "rm /"}},
    ],
    "an event of a tool of LangChain": [
        ASKED,
        {"event": "on_tool_start", "name": "rm", "data": {"input": {"path": "/"}}},
    ],
    "a trajectory of DSPy beside a message": [
        ASKED,
        {"role": "assistant", "content": "x", "trajectory": {"tool_name_0": "rm", "tool_args_0": {}}},
    ],
    "a run of a tool": [ASKED, {"type": "tool", "name": "rm", "input": {"path": "/"}, "output": "gone"}],
    "tools that the provider ran": [
        ASKED,
        {"role": "assistant", "content": "x", "executed_tools": [{"type": "search", "arguments": "{}"}]},
    ],
    "an action in a content block": [
        ASKED,
        {"role": "assistant", "content": [{"type": "computer", "action": "click", "x": 1}]},
    ],
    "a call as JSON text with parameters": [
        ASKED,
        {"role": "assistant", "content": '{"name": "rm", "parameters": {"path": "/"}}'},
    ],
    "a call as JSON text with arguments": [
        ASKED,
        {"role": "assistant", "content": '{"name": "rm", "arguments": {"path": "/"}}'},
    ],
    "a call in Claude's template": [
        ASKED,
        {
            "role": "assistant",
            "content": '<function_calls><invoke name="rm"><parameter name="path">/</parameter></invoke>',
        },
    ],
    "a call in Llama's template": [
        ASKED,
        {"role": "assistant", "content": '<|python_tag|>{"name": "rm", "parameters": {}}'},
    ],
    "a function in Llama's template": [
        ASKED,
        {"role": "assistant", "content": 'I clean up. <function=rm>{"path": "/"}</function>'},
    ],
    "a call in Mistral's template": [
        ASKED,
        {"role": "assistant", "content": '[TOOL_CALLS] [{"name": "rm", "arguments": {}}]'},
    ],
    "a call in DeepSeek's template": [
        ASKED,
        {
            "role": "assistant",
            "content": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>rm",
        },
    ],
    "an action without an input": [
        ASKED,
        {"role": "assistant", "content": "Thought: it is full\nAction: rm[/]\nObservation: done"},
    ],
    "a block of LlamaIndex": [
        ASKED,
        {
            "role": "assistant",
            "blocks": [{"block_type": "tool_call", "tool_name": None, "tool_kwargs": {"path": "/"}}],
        },
    ],
    "a part of Haystack without a name": [
        ASKED,
        {"role": "assistant", "content": [{"tool_call": {"arguments": {"path": "/"}}}]},
    ],
    "a record of Gemini CLI that undoes others": {
        "sessionId": "s",
        "projectHash": "h",
        "messages": [{"type": "gemini", "content": "x"}, {"$rewindTo": "1"}],
    },
    "an action of mini-swe-agent": [
        ASKED,
        {"role": "assistant", "content": "THOUGHT: x", "extra": {"actions": [{"command": "rm /"}]}},
    ],
    "a command of mini-swe-agent in the text": [
        ASKED,
        {"role": "assistant", "content": "THOUGHT: x\n\n```bash\nrm -rf /\n```"},
        {"role": "user", "content": "<returncode>0</returncode>\n<output></output>"},
    ],
    "tools that agno ran": {
        "messages": [ASKED, {"role": "assistant", "content": "Done."}],
        "tools": [{"tool_call_id": "c1", "tool_name": "rm", "tool_args": {"path": "/"}, "result": "gone"}],
    },
    "ReAct on one line": [
        ASKED,
        {"role": "assistant", "content": 'Thought: clean up. Action: rm Action Input: {"path": "/"}'},
    ],
    "ReAct on one line without an input": [
        ASKED,
        {"role": "assistant", "content": "Thought: clean up. Action: rm[/]"},
        {"role": "user", "content": "Observation: gone"},
    ],
    "a web search of Codex": [
        ASKED,
        {"role": "assistant", "content": "Done."},
        {"type": "item.completed", "item": {"id": "i", "type": "web_search", "query": "rm"}},
    ],
    "an unknown block": [ASKED, {"role": "assistant", "content": [{"type": "toolRequest", "tool": "rm"}]}],
    "a block with a key of its own": [
        ASKED,
        {"role": "assistant", "content": [{"type": "text", "text": "x", "toolUse": {"name": "rm"}}]},
    ],
    "an unknown tool part": [
        ASKED,
        {
            "role": "assistant",
            "parts": [{"type": "text", "text": "x"}, {"type": "toolInvocation", "name": "rm"}],
        },
    ],
    "calls under an unknown key": [ASKED, {"role": "assistant", "content": "x", "functionCalls": [CALL]}],
    "calls beside the messages": {"messages": [ASKED], "toolCalls": [CALL]},
    "calls nested in an extra field": [
        ASKED,
        {"role": "assistant", "content": "x", "kwargs": {"deep": [{"tool_calls": [CALL]}]}},
    ],
    "calls of a tool message": [ASKED, {"role": "tool", "content": "x", "tool_calls": [CALL]}],
    "a Gemini call without a name": [{"role": "model", "parts": [{"functionCall": {"args": {}}}]}],
    "a Converse block without a name": [
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "1", "input": {}}}]}
    ],
    "a Responses call without a name": [{"type": "function_call", "call_id": "1", "arguments": "{}"}],
    "a Pydantic AI call without a name": [
        {"kind": "response", "parts": [{"part_kind": "tool-call", "args": {}}]}
    ],
    "an AutoGen event with text": [{"type": "ToolCallRequestEvent", "source": "a", "content": "rm"}],
    "an MCP call without a name": [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}],
    "an intermediate step without an action": {
        "input": "x",
        "output": "y",
        "intermediate_steps": [["rm", "done"]],
    },
    "smolagents' text that is no list": [ASKED, {"role": "tool-call", "content": "Calling tools:\nrm -rf /"}],
    "a tagged call that is no JSON": [ASKED, {"role": "assistant", "content": "<tool_call>{rm}</tool_call>"}],
    "an item with an action": [ASKED, {"action": "rm", "path": "/"}],
    "an item with a command": [ASKED, {"command": "rm -rf /"}],
    "an unknown span": [
        {
            "name": "chat",
            "attributes": {
                "gen_ai.operation.name": "chat",
                "gen_ai.prompt.0.content": "x",
                "ai.toolCall.name": "rm",
                "ai.toolCall.args": "{}",
            },
        }
    ],
    "a turn without text": {
        "conversation": [{"speaker": "User", "text": "x"}, {"speaker": "Agent (Action)"}]
    },
    "a BFCL result that is no list of calls": {"id": "simple_1", "result": "[rm(path=]"},
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_call_that_cannot_be_read_is_refused(name: str) -> None:
    with pytest.raises(TraceError):
        normalize(UNREAD[name])
    with pytest.raises(TraceError):
        normalize(json.dumps(UNREAD[name]))


@pytest.mark.parametrize("name", UNREAD)
def test_no_evaluator_scores_it(name: str) -> None:
    for evaluator in (
        TrajectoryMatchEvaluator(mode="subset"),
        ToolUseEvaluator(expected_tool="look"),
        ToolCallAccuracyEvaluator(),
        RedundantCallsEvaluator(),
    ):
        with pytest.raises(TraceError):
            evaluator.evaluate(outputs=UNREAD[name], reference_outputs=[{"name": "look", "arguments": {}}])


def test_the_error_names_the_step() -> None:
    with pytest.raises(TraceError, match=r"step 2.*\[1\]\.tool_calls\[0\]"):
        normalize(UNREAD["a call without a name"])
    with pytest.raises(TraceError, match=r"step 2"):
        normalize(UNREAD["calls under an unknown key"])


REPEATED: dict[str, Any] = {
    "in additional_kwargs": [
        {
            "type": "ai",
            "content": "",
            "tool_calls": [{"id": "c1", "name": "rm", "args": {"path": "/"}}],
            "additional_kwargs": {"tool_calls": [OPENAI_CALL]},
        }
    ],
    "as a content block": [
        {
            "type": "ai",
            "tool_calls": [{"id": "c1", "name": "rm", "args": {"path": "/"}}],
            "content": [{"type": "tool_use", "id": "c1", "name": "rm", "input": {"path": "/"}}],
        }
    ],
    "in merged chunks": [
        {
            "type": "AIMessageChunk",
            "content": "",
            "tool_calls": [{"id": "c1", "name": "rm", "args": {"path": "/"}}],
            "tool_call_chunks": [{"name": "rm", "args": '{"path": "/"}', "id": "c1", "index": 0}],
        }
    ],
    "with another choice": {
        "choices": [
            {"message": {"role": "assistant", "tool_calls": [OPENAI_CALL]}},
            {
                "message": {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}],
                }
            },
        ]
    },
    "with definitions and usage": {
        "tools": [{"type": "function", "function": {"name": "rm", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "rm"}},
        "function_call": "auto",
        "usage": {"server_tool_use": {"web_search_requests": 1}, "tool_calls": 3},
        "expected_tool_calls": [{"name": "ls", "arguments": {}}],
        "parallel_tool_calls": True,
        "messages": [{"role": "assistant", "tool_calls": [OPENAI_CALL]}],
    },
    "in a result": [
        {"role": "assistant", "tool_calls": [OPENAI_CALL]},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "x"}, {"tool_calls": [{"name": "ls"}]}],
        },
    ],
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_call_that_is_written_twice_is_read_once(name: str) -> None:
    assert [(call.name, call.arguments) for call in normalize(REPEATED[name]).calls] == [
        ("rm", {"path": "/"})
    ]


def test_raw_actions_differ() -> None:
    def turns(text: str) -> list[dict[str, str]]:
        return [{"speaker": "User", "text": "Go."}, {"speaker": "Agent (Action)", "text": text}]

    evaluator = TrajectoryMatchEvaluator(mode="strict")
    assert evaluator.evaluate(outputs=turns("ls -la"), reference_outputs=turns("rm -rf /")).score == 0.0
    assert evaluator.evaluate(outputs=turns("ls -la"), reference_outputs=turns(" ls -la ")).score == 1.0
    marked = [{"speaker": "Agent", "text": "I clean up.\n(action) rm -rf /"}]
    assert [call.name for call in normalize(marked).calls] == ["rm -rf /"]


def test_react_text_is_read_as_calls() -> None:
    text = (
        "Thought: I look.\nAction: search\nAction Input: {'q': 'oslo'}\nObservation: Action: none\nThought: again\n"
        'Action:\n```json\n{"action": "book", "action_input": {"id": 7}}\n```\nObservation: done\n'
        "Thought: I now know.\nFinal Answer: booked"
    )
    for document in (text, [{"role": "assistant", "content": text}], [{"type": "ai", "content": text}]):
        trajectory = normalize(document)
        assert [(call.name, call.arguments) for call in trajectory.calls] == [
            ("search", {"q": "oslo"}),
            ("book", {"id": 7}),
        ]
        assert [step.tool_result.content for step in trajectory.steps if step.tool_result is not None] == [
            "Action: none",
            "done",
        ]
    free = normalize("Thought: x\nAction: Search the internet\nAction Input: weather in Oslo")
    assert [(call.name, call.arguments) for call in free.calls] == [
        ("Search the internet", {"input": "weather in Oslo"})
    ]


@pytest.mark.parametrize(
    "text", ["Action: we should act now.", "The Action Input: is a field.", "Use Action and Action Input."]
)
def test_prose_about_actions_is_text(text: str) -> None:
    assert normalize([{"role": "assistant", "content": text}]).calls == []


def test_tagged_calls_in_text_are_read() -> None:
    text = 'I look.<tool_call>\n{"name": "search", "arguments": {"q": 1}}\n</tool_call>'
    text += '<tool_call>{"name": "b"}</tool_call>'
    assert [call.name for call in normalize([{"role": "assistant", "content": text}]).calls] == [
        "search",
        "b",
    ]
    assert normalize([{"role": "assistant", "content": "The <tool_call> tag opens a call."}]).calls == []


def test_tool_calls_in_camel_case_are_read() -> None:
    message = {"role": "assistant", "content": "", "toolCalls": [OPENAI_CALL]}
    assert [call.arguments for call in normalize([ASKED, message]).calls] == [{"path": "/"}]


def test_inspect_messages_name_the_tool_as_function() -> None:
    call = {"id": "c1", "function": "rm", "arguments": {"path": "/"}, "type": "function"}
    broken = {"id": "c2", "function": "rm", "arguments": {}, "parse_error": "no JSON"}
    calls = normalize([ASKED, {"role": "assistant", "content": "", "tool_calls": [call, broken]}]).calls
    assert [(call.name, call.arguments, call.malformed) for call in calls] == [
        ("rm", {"path": "/"}, False),
        ("rm", {}, True),
    ]


TAU = [
    ASKED,
    {"role": "assistant", "content": None, "tool_calls": [OPENAI_CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "rm", "content": "done"},
]
TAU2 = [
    {
        "role": "assistant",
        "content": None,
        "turn_idx": 1,
        "tool_calls": [{"id": "c1", "name": "rm", "arguments": {"path": "/"}, "requestor": "assistant"}],
    },
    {
        "role": "tool",
        "tool_messages": [{"role": "tool", "id": "c1", "content": "done", "requestor": "assistant"}],
    },
]
BENCHMARKS: dict[str, Any] = {
    "tau-bench": {
        "task_id": 1,
        "reward": 0.0,
        "trial": 0,
        "traj": TAU,
        "info": {"task": {"actions": [{"name": "ls", "kwargs": {}}]}},
    },
    "a list of one": [{"task_id": 1, "reward": 0.0, "trial": 0, "traj": TAU, "info": {}}],
    "tau2-bench": {
        "id": "s",
        "task_id": "1",
        "messages": TAU2,
        "termination_reason": "user_stop",
        "reward_info": {"action_checks": [{"action": {"name": "ls", "arguments": {}}}]},
    },
    "tau2-bench file": {
        "info": {},
        "tasks": [{"evaluation_criteria": {"actions": [{"name": "ls", "arguments": {}}]}}],
        "simulations": [{"id": "s", "task_id": "1", "messages": TAU2, "reward_info": None}],
    },
    "tau-bench actions": [{"name": "rm", "kwargs": {"path": "/"}}],
    "BFCL text": {"id": "simple_python_1", "result": "[rm(path='/')]", "latency": 1.0},
    "BFCL objects": {"id": "live_multiple_1-0-0", "result": [{"rm": '{"path": "/"}'}]},
    "BFCL turns": {"id": "multi_turn_base_1", "result": [[["rm(path='/')"]], [[]]]},
    "BFCL turns' truth": {"id": "multi_turn_base_1", "ground_truth": [["rm(path='/')"], []]},
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_results_of_benchmarks_are_read(name: str) -> None:
    """Written by hand from the described shape of these benchmarks, not recorded from them."""
    assert [(call.name, call.arguments) for call in normalize(BENCHMARKS[name]).calls] == [
        ("rm", {"path": "/"})
    ]


def test_bfcl_answers_without_a_call_are_text() -> None:
    trajectory = normalize({"id": "irrelevance_1", "result": "None of the functions (three) fits."})
    assert trajectory.calls == []
    assert trajectory.steps[0].text.startswith("None")
    several = normalize({"id": "parallel_1", "result": "[math.add(a=1, b=[2, 3]), f('x', y=True)]"})
    assert [(call.name, call.arguments) for call in several.calls] == [
        ("math.add", {"a": 1, "b": [2, 3]}),
        ("f", {"arg0": "x", "y": True}),
    ]


@pytest.mark.parametrize(
    "document",
    [
        [{"traj": TAU, "task_id": 1}, {"traj": TAU, "task_id": 2}],
        {"simulations": [{"messages": TAU2}, {"messages": TAU2}], "tasks": []},
        {"eval": {}, "samples": [{"messages": TAU}, {"messages": TAU}]},
        {"id": "simple_1", "ground_truth": [{"rm": {"path": ["/", "."]}}]},
    ],
    ids=["tau-bench", "tau2-bench", "inspect", "bfcl"],
)
def test_several_trajectories_are_not_one(document: Any) -> None:
    with pytest.raises(TraceError):
        normalize(document)


DEEP = "[" * 100_000 + "]" * 100_000  # deeper than the parser of any supported Python goes


@pytest.mark.parametrize("text", [f'{{"a": {DEEP}}}', '{"a": ' + "1" * 5_000 + "}", '{"a": 1e999}'])
def test_json_that_is_too_much_for_the_parser_is_an_error(text: str) -> None:
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": text}}],
    }
    reference = [{"name": "f", "arguments": {"a": 1}}]
    with pytest.raises(TraceError):
        normalize([message])
    with pytest.raises(TraceError):
        normalize(text)
    for evaluator in (
        TrajectoryMatchEvaluator(),
        TrajectoryMatchEvaluator(mode="superset"),
        ToolCallAccuracyEvaluator(),
    ):
        with pytest.raises(TraceError):
            evaluator.evaluate(outputs=[message], reference_outputs=reference)
        with pytest.raises(TraceError):
            evaluator.evaluate(outputs=reference, reference_outputs=[message])


def test_normalize_trajectory_gives_the_steps_in_order() -> None:
    steps = normalize_trajectory(TAU)
    assert [step.role for step in steps] == ["user", "assistant", "tool"]
    assert len(steps) == 3
    assert steps[1].tool_calls[0].args == {"path": "/"}
    assert normalize_trajectory(TAU) == normalize(TAU)


@settings(max_examples=300, deadline=None)
@given(
    odd,
    st.sampled_from(["tool_calls", "toolCalls", "functionCalls", "toolUse", "tool_use", "toolInvocations"]),
)
def test_a_call_added_anywhere_is_read_or_refused(value: Any, key: str) -> None:
    """Whatever is around it, a call with a marked name is among the calls, or the trace is refused."""
    called = {"id": "marked", "name": "marked", "args": {}}
    message = {"role": "assistant", "content": "x", key: [called], "around": value}
    for document in (
        [ASKED, message],
        {"messages": [ASKED, message]},
        [ASKED, {**message, "content": [{key: called}]}],
    ):
        try:
            found = normalize(document)
        except TraceError:
            continue
        assert "marked" in [call.name for call in found.calls]


@pytest.mark.parametrize(
    ("document", "nearest"),
    [
        ({"raw_item": 1, "last_agent": "a", "final_output": "x"}, "OpenAI Agents SDK"),
        ({"run_type": "tool", "inputs": {}}, "LangSmith"),
        ({"values": 1, "next": [], "config": {}}, "LangGraph"),
        ({"jsonrpc": "2.0", "params": {}}, "MCP"),
        (
            [{"type": "odd", "uuid": "1", "data": {"content": [{**CALL, "type": "tool_use"}]}}],
            "Claude Agent SDK",
        ),
        ([{"role": "assistant", "content": "x", "functionCalls": [CALL]}], "OpenAI messages"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_names_the_nearest_format(document: Any, nearest: str) -> None:
    with pytest.raises(TraceError, match=nearest):
        normalize(document)


DESCRIBED = {"name": "sandbox", "args": ["--network", "none"]}


@pytest.mark.parametrize("key", ["metadata", "response_metadata", "env"])
def test_metadata_may_describe_a_program(key: str) -> None:
    message = {"role": "assistant", "content": "done", key: {"container": DESCRIBED, "hooks": [DESCRIBED]}}
    assert normalize([message]).calls == []


@pytest.mark.parametrize(
    "hidden",
    [
        {"tool_calls": [{"name": "rm", "args": {"path": "/"}}]},
        {"kept": {"type": "tool_call", "name": "rm", "args": {"path": "/"}}},
    ],
)
def test_a_call_in_metadata_is_refused_where_its_key_or_kind_says_so(hidden: Any) -> None:
    with pytest.raises(TraceError):
        normalize([{"role": "assistant", "content": "done", "metadata": hidden}])


def test_calls_of_the_simulated_user_of_tau2_are_not_the_agents() -> None:
    asked = {"id": "u1", "name": "toggle_airplane_mode", "arguments": {}, "requestor": "user"}
    raw = {"id": "u1", "type": "function", "function": {"name": "toggle_airplane_mode", "arguments": "{}"}}
    document = {
        "id": "s",
        "task_id": "1",
        "reward_info": {"reward": 1.0},
        "messages": [
            {"role": "assistant", "content": "Please turn it off.", "tool_calls": None, "turn_idx": 0},
            {
                "role": "user",
                "content": None,
                "tool_calls": [asked],
                "raw_data": {"message": {"tool_calls": [raw]}},
            },
            {"id": "u1", "role": "tool", "content": "off", "requestor": "user", "error": False},
            {"role": "user", "content": "It is off.", "tool_calls": None},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "a1", "name": "check", "arguments": {"n": 1}, "requestor": "assistant"}
                ],
            },
            {"id": "a1", "role": "tool", "content": "ok", "requestor": "assistant", "error": False},
        ],
    }
    found = normalize(document)
    assert [call.name for call in found.calls] == ["check"]
    assert [step.content for step in found.steps if step.role == "user"][-1] == "It is off."
    assert any("toggle_airplane_mode" in str(part.value) for part in found.unused)


CALLED_TWICE = [
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "search",
        "arguments": '{"q": "oslo"}',
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "nothing"},
]


@pytest.mark.parametrize("kind", ["function_call_v2", "FUNCTION_CALL"])
def test_a_second_call_with_another_id_is_not_a_copy(kind: str) -> None:
    second = {**CALLED_TWICE[0], "type": kind, "id": "fc_2", "call_id": "call_2"}
    with pytest.raises(TraceError, match="search"):
        normalize([*CALLED_TWICE, second])
    copy = {**second, "id": "other", "call_id": "call_1"}
    assert [call.id for call in normalize([*CALLED_TWICE, copy]).calls] == ["call_1"]


@pytest.mark.parametrize(
    "block", [{"id": "t1", "input": {"q": 1}}, {"id": "t1", "tool_title": "s", "input": {}}]
)
def test_a_block_of_the_claude_sdk_without_a_name_is_refused(block: dict[str, object]) -> None:
    with pytest.raises(TraceError):
        normalize([{"content": [block], "model": "claude-x", "parent_tool_use_id": None}])


TOOL_USE = {"type": "tool_use", "id": "t1", "name": "rm", "input": {"path": "/"}}
UNTYPED = {key: value for key, value in TOOL_USE.items() if key != "type"}
REACT = 'Thought: clean up\nAction: rm\nAction Input: {"path": "/"}'


@pytest.mark.parametrize(
    "call", [TOOL_USE, {**TOOL_USE, "type": "tool-call"}, {"function_call": {"name": "rm"}}]
)
def test_content_blocks_written_as_json_text_are_refused(call: dict[str, Any]) -> None:
    text = json.dumps([{"type": "text", "text": "I clean up."}, call])
    with pytest.raises(TraceError, match="step 2"):
        normalize([ASKED, {"role": "assistant", "content": text}])
    with pytest.raises(TraceError):
        TrajectoryMatchEvaluator().evaluate(
            outputs=[ASKED, {"role": "assistant", "content": text}], reference_outputs=[ASKED]
        )
    answer = json.dumps({"answer": "The tool is a hammer", "tools": ["hammer"]})
    assert normalize([ASKED, {"role": "assistant", "content": answer}]).calls == []
    assert normalize([{"role": "user", "content": text}]).calls == []


def test_a_block_that_lost_its_type_is_refused() -> None:
    with pytest.raises(TraceError):
        normalize([ASKED, {"role": "assistant", "content": [UNTYPED]}])
    with pytest.raises(TraceError):
        normalize([ASKED, {"role": "assistant", "content": [{**UNTYPED, "toolset": None}]}])


@pytest.mark.parametrize("role", ["agent", "AI", "bot", "ASSISTANT"])
def test_calls_in_the_text_of_an_agent_are_read_for_any_role_name(role: str) -> None:
    assert [call.name for call in normalize([ASKED, {"role": role, "content": REACT}]).calls] == ["rm"]
    assert normalize([{"role": "user", "content": REACT}]).calls == []


def test_calls_in_the_text_of_an_item_in_no_known_format_are_refused() -> None:
    with pytest.raises(TraceError):
        normalize([ASKED, {"author": "agent", "content": REACT}])
    with pytest.raises(TraceError):
        normalize([ASKED, {"author": "agent", "content": [{"type": "text", "text": REACT}]}])
    with pytest.raises(TraceError):
        normalize(
            [
                ASKED,
                {"kind": "response", "parts": json.dumps([{"part_kind": "tool-call", "tool_name": "rm"}])},
            ]
        )


SDK_BLOCK = {"id": "c2", "name": "rm", "input": {"path": "/"}}
TOOL_USE = {"type": "tool_use", **SDK_BLOCK}
READ = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "c1", "name": "rm", "input": {"path": "/"}}],
}
REACT = 'Thought: I clean up.\nAction: rm\nAction Input: {"path": "/"}\n'


def sdk(content: Any) -> dict[str, Any]:
    """A message of the Claude Agent SDK: blocks have no type, and the message has no role."""
    return {"model": "m", "parent_tool_use_id": None, "content": content}


def said(content: Any, **fields: Any) -> list[Any]:
    """A call that is read, and a message of the agent after it."""
    return [ASKED, READ, {"role": "assistant", "content": content, **fields}]


HIDDEN: dict[str, Any] = {
    "untyped blocks as JSON text": [sdk(json.dumps([SDK_BLOCK]))],
    "untyped blocks as indented JSON text": [sdk("\n  " + json.dumps([SDK_BLOCK], indent=1))],
    "untyped blocks as Python text": [sdk(repr([{"text": "So."}, SDK_BLOCK]))],
    "one block as JSON text": said([{"type": "text", "text": "So."}, json.dumps(TOOL_USE)]),
    "blocks as Python text": said(repr([TOOL_USE])),
    "blocks as JSON text after a space": said(" " + json.dumps([TOOL_USE])),
    "a block whose type has another key": said([{"kind_of": "tool_use", **SDK_BLOCK}]),
    "a block whose type is a list": said([{**SDK_BLOCK, "type": ["tool_use"]}]),
    "a block of an unknown type": said([{**SDK_BLOCK, "type": "v2"}]),
    "an untyped block without an input": said([{"id": "c2", "name": "rm", "inputs": {"path": "/"}}]),
    "a Bedrock call under another key": said(
        [{"use": {"toolUseId": "c2", "name": "rm", "input": {"path": "/"}}}]
    ),
    "calls under another key, like one that is read": said("", calls_made=[{**OPENAI_CALL, "id": "c2"}]),
    "a call of Inspect under another key": said(
        "", made=[{"id": "c2", "function": "rm", "arguments": {"path": "/"}}]
    ),
    "an action without a text": [
        {"speaker": "Agent (Action)", "text": "rm({})"},
        {"speaker": "Agent (Action)", "text": " "},
    ],
    "ReAct text in a list": said([REACT]),
    "ReAct text in an object": said({"value": REACT}),
    "ReAct text under another key": said(None, message=REACT),
    "a content of Gemini as JSON text": {
        "contents": [
            {"role": "user", "parts": [{"text": "Clean up."}]},
            json.dumps({"role": "model", "parts": [{"functionCall": {"name": "rm", "args": {"path": "/"}}}]}),
        ]
    },
    "messages as Python text beside a response": {
        "messages": [ASKED],
        "earlier": repr([{"role": "assistant", "tool_calls": [OPENAI_CALL]}]),
    },
}


@pytest.mark.parametrize("case", HIDDEN)
def test_a_call_in_a_changed_document_is_refused(case: str) -> None:
    with pytest.raises(TraceError):
        normalize(HIDDEN[case])


@pytest.mark.parametrize(
    "harmless",
    [
        [{"role": "user", "content": json.dumps([TOOL_USE])}, READ],
        [{"role": "user", "content": [{"type": "text", "text": repr([TOOL_USE])}]}, READ],
        [READ, {"role": "tool", "tool_call_id": "c1", "content": json.dumps([TOOL_USE])}],
        [READ, {"role": "assistant", "content": json.dumps({"name": "Oslo", "input": "a fjord"})}],
        [READ, {"role": "assistant", "content": "[done] the tool {was} called"}],
        said(json.dumps([{**TOOL_USE, "id": "c1"}])),
    ],
)
def test_texts_that_only_look_like_calls_are_read(harmless: list[Any]) -> None:
    assert [call.name for call in normalize(harmless).calls] == ["rm"]


def test_an_approval_is_not_a_call() -> None:
    question = {"type": "tool-approval-request", "approvalId": "a1", "toolCallId": "c1"}
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "rm", "input": {"path": "/"}}
    answer = {"type": "tool-approval-response", "approvalId": "a1", "approved": True}
    trace = [ASKED, {"role": "assistant", "content": [call, question]}, {"role": "tool", "content": [answer]}]
    assert [(each.name, each.arguments) for each in normalize(trace).calls] == [("rm", {"path": "/"})]


@pytest.mark.parametrize("content", ['{"path": "/"}', [{"type": "text", "text": '{"path": "/"}'}]])
def test_a_harmony_message_to_a_tool_is_a_call(content: Any) -> None:
    message = {
        "role": "assistant",
        "channel": "commentary",
        "recipient": "functions.rm",
        "content": content,
    }
    assert [(each.name, each.arguments) for each in normalize([ASKED, message]).calls] == [
        ("rm", {"path": "/"})
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Use <b>bold</b> and a < b, or an array [TOOL].",
        "Action: we will see.\nObservation: it rains.",
        "The tag <function> begins a function.",
        "Run this:\n```bash\nls\n```",
        "I have a thought: we wait. The action: none.",
        "The list [f(x)] has one item.",
    ],
)
def test_prose_about_calls_is_not_a_call(text: str) -> None:
    assert normalize([ASKED, {"role": "assistant", "content": text}]).calls == []
