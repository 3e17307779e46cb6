"""A call that a model wrote in a text is read or refused, in whatever form: it is never part of the prose."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from karat.evaluators.trajectory._calls import fast_calls
from karat.traces import TraceError, normalize

ASKED = {"role": "user", "content": "Clean up."}
CALL = '{"name": "rm", "arguments": {"path": "/"}}'
MADE = {"id": "c1", "type": "function", "function": {"name": "rm", "arguments": '{"path": "/tmp"}'}}
OBSERVED = {"role": "user", "content": "Observation: gone"}

WRITTEN: dict[str, str] = {
    "JSON in a fence": f"```json\n{CALL}\n```",
    "JSON in a fence after a sentence": f"I clean up.\n```json\n[{CALL}]\n```",
    "JSON in a sentence": f"I call {CALL} now.",
    "JSON with the arguments first": 'I call {"arguments": {"path": "/"}, "name": "rm"} now.',
    "JSON with the fields of a whole call": f'Now: {{"type": "function", "function": {CALL}}}',
    "JSON with a repeated key": '{"name": "ls", "arguments": {}, "name": "rm"}',
    "JSON line by line": f"{CALL}\n{CALL}",
    "JSON that was cut off": '[{"type": "tool_use", "name": "rm", "inp',
    "Llama's list of JSON": '{"name": "rm", "parameters": {}}; {"name": "ls", "parameters": {}}',
    "LangChain's action with a repeated key": 'Action: {"action": "ls", "action": "rm", "action_input": {}}',
    "LangChain's action after a sentence": 'So: {"action": "rm", "action_input": "/"}',
    "Cohere's action": 'Action: ```json\n[{"tool_name": "rm", "parameters": {}}]\n```',
    "functools": f"functools[{CALL}]",
    "GigaChat": f"function call{CALL}",
    "InternLM": f"<|action_start|><|plugin|>{CALL}<|action_end|>",
    "Apertus": '<|tools_prefix|>[{"rm": {"path": "/"}}]<|tools_suffix|>',
    "OLMo": '<function_calls>\nrm(path="/")\n</function_calls>',
    "LongCat": f"<longcat_tool_call>{CALL}</longcat_tool_call>",
    "DeepSeek 3.2": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="rm">\n</｜DSML｜invoke>',
    "Llama 4": '<|python_start|>[rm(path="/")]<|python_end|>',
    "Gemma": '```tool_code\nprint(rm(path="/"))\n```',
    "the first Claude": "<function_calls>\n<invoke>\n<tool_name>rm</tool_name>\n</invoke>\n</function_calls>",
    "OpenHands": "<execute_bash>\nrm -rf /\n</execute_bash>",
    "Cline": "<execute_command>\n<command>rm -rf /</command>\n</execute_command>",
    "Cline's MCP": "<use_mcp_tool>\n<server_name>disk</server_name>\n</use_mcp_tool>",
    "a tag at the end": "<think>I look.</think><search>rm</search>",
    "DSPy": '[[ ## next_tool_name ## ]]\nrm\n\n[[ ## next_tool_args ## ]]\n{"path": "/"}',
}
PROSE: dict[str, str] = {
    "a definition": 'Its schema is {"name": "rm", "description": "Removes", "parameters": {"type": "object"}}.',
    "a final answer": 'Answer: {"action": "Final Answer", "action_input": "It is done."}',
    "code": "Use this:\n```python\nprint({'name': 1})\n```\nIt prints a dict.",
    "HTML": "<p>Use <code>rm</code> with care.</p>",
    "a JSON answer": '{"name": "Oslo", "temperature": 21}',
    "a container": 'Use:\n```json\n{"name": "app", "args": ["-v"]}\n```',
    "a launch file": '```json\n{"name": "Python: file", "args": ["-v"], "type": "debugpy"}\n```\nThen restart.',
    "brackets": '[1] The field "tool" is old: see [2].',
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_call_is_not_prose(name: str) -> None:
    message = {"role": "assistant", "content": WRITTEN[name]}
    for document in (
        [ASKED, message],
        [ASKED, {**message, "content": [{"type": "text", "text": WRITTEN[name]}]}],
        [
            {
                "author": "agent",
                "invocationId": "i",
                "content": {"role": "model", "parts": [{"text": WRITTEN[name]}]},
            }
        ],
        {"messages": [ASKED], "output": WRITTEN[name]},
    ):
        with pytest.raises(TraceError):
            normalize(document)
    assert fast_calls([ASKED, message]) is None
    with contextlib.suppress(TraceError):  # lines of JSON are a document
        assert normalize(WRITTEN[name]).calls


@pytest.mark.parametrize("name", PROSE)
def test_prose_is_read(name: str) -> None:
    assert normalize([ASKED, {"role": "assistant", "content": PROSE[name]}]).calls == []


EXAMPLES: dict[str, str] = {
    "a configuration": 'Save this:\n```json\n{"name": "xgboost", "parameters": {"depth": 3}}\n```',
    "an intent": 'It maps to {"action": "book", "parameters": {"city": "Oslo"}}.',
    "the documentation of an API": 'It replies {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}.',
    "a part of a message": "The part has {'kind': 'tool-call'}.",
}
MESSAGES = [ASKED, {"role": "assistant", "content": None, "tool_calls": [MADE]}]
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "gone"}


def answered(text: str) -> list[Any]:
    """Traces of an agent whose calls are in fields of their own, with a last answer."""
    block = {"type": "tool_use", "id": "c1", "name": "rm", "input": {"path": "/tmp"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "gone"}
    messages = [*MESSAGES, RESULT, {"role": "assistant", "content": text}]
    return [
        messages,
        {"messages": messages, "output": text},
        [
            ASKED,
            {"role": "assistant", "content": [block]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": [{"type": "text", "text": text}]},
        ],
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_answer_of_an_agent_may_quote_json(name: str) -> None:
    for document in answered(EXAMPLES[name]):
        assert [call.name for call in normalize(document).calls] == ["rm"]


def test_json_with_a_tool_of_the_agent_is_no_example() -> None:
    for document in answered(f"Now {CALL}."):
        with pytest.raises(TraceError):
            normalize(document)
    example = {"role": "assistant", "content": EXAMPLES["an intent"].replace('"action"', '"name"')}
    listed = {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}}
    done = [*MESSAGES, RESULT, example]
    assert len(normalize({"messages": done}).calls) == 1
    for document in ({"messages": done, "tools": [listed]}, [*done, RESULT], [*done, OBSERVED]):
        with pytest.raises(TraceError):
            normalize(document)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_an_agent_says_beside_a_call_or_to_the_user_may_quote_json(name: str) -> None:
    said = {"role": "assistant", "content": EXAMPLES[name]}
    thanks = {"role": "user", "content": "Thanks."}
    beside_call = [ASKED, {**said, "tool_calls": [MADE]}, RESULT]
    for document in ([*MESSAGES, RESULT, said, thanks], beside_call):
        assert [call.name for call in normalize(document).calls] == ["rm"]
    with pytest.raises(TraceError):
        normalize(
            [*MESSAGES, RESULT, {"role": "assistant", "content": "It is done.", "notes": EXAMPLES[name]}]
        )


def beside(text: str, *calls: Any) -> list[Any]:
    return [ASKED, {"role": "assistant", "content": text, "tool_calls": list(calls)}]


def span(text: str) -> list[Any]:
    """A span of a model call with a text and a call to the same tool."""
    parts = [
        {"type": "text", "content": text},
        {"type": "tool_call", "id": "c1", "name": "rm", "arguments": {"path": "/tmp"}},
    ]
    output = json.dumps([{"role": "assistant", "parts": parts}])
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": output}
    return [{"name": "chat", "context": {"trace_id": "1", "span_id": "1"}, "attributes": attributes}]


@pytest.mark.parametrize(
    "document",
    [
        beside(f"<tool_call>{CALL}</tool_call>", MADE),
        span(f"<tool_call>{CALL}</tool_call>"),
        span('Action: rm\nAction Input: {"path": "/"}'),
        beside('<tool_call>{"name": "rm", "arguments": {"path": "/tmp"}}</tool_call>' * 2, MADE),
        beside("Action: rm\nAction Input: /\nObservation: gone\nAction: rm\nAction Input: /tmp", MADE),
        beside('<function=erase>{"path": "/"}</function>', MADE),
    ],
)
def test_a_text_describes_each_call_once(document: Any) -> None:
    """A call to the same tool with other arguments, or a second one, is another call."""
    with pytest.raises(TraceError):
        normalize(document)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "rm", "arguments": {"path": "/tmp"}}</tool_call>',
        "Action: rm\nAction Input: the temporary files",
        '<function=rm>{"path": "/tmp"}</function>',
    ],
)
def test_a_text_may_describe_the_calls_of_its_message(text: str) -> None:
    assert [call.arguments for call in normalize(beside(text, MADE)).calls] == [{"path": "/tmp"}]


def test_code_that_smolagents_runs_is_described_by_its_call() -> None:
    text = "Thought: I clean up.\n<code>\nrm('/')\n</code>"
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "python_interpreter", "arguments": "rm('/')"},
    }
    step = {"step_number": 1, "model_output": text, "tool_calls": [call], "observations": "gone"}
    assert [call.name for call in normalize([step]).calls] == ["python_interpreter"]
    messages = [
        ASKED,
        {"role": "assistant", "content": [{"type": "text", "text": text}]},
        {"role": "tool-call", "content": [{"type": "text", "text": f"Calling tools:\n{[call]!r}"}]},
    ]
    assert [call.name for call in normalize(messages).calls] == ["python_interpreter"]
    older = {"role": "assistant", "content": "Code:\n```py\nrm('/')\n```<end_code>"}
    for document in ([*messages[:2], OBSERVED], messages[:2], [ASKED, older], [ASKED, older, OBSERVED]):
        with pytest.raises(TraceError):
            normalize(document)


def test_code_that_autogen_ran_is_refused() -> None:
    code = {"role": "assistant", "content": "```python\nrm('/')\n```", "name": "coder"}
    assert normalize([ASKED, code]).calls == []
    with pytest.raises(TraceError):
        normalize(
            [ASKED, code, {"role": "user", "content": "exitcode: 0 (execution succeeded)\nCode output: "}]
        )


def test_answers_beside_the_messages_may_repeat_their_calls() -> None:
    text = f"<tool_call>{CALL}</tool_call>"
    document = {"messages": [ASKED, {"role": "assistant", "content": text}], "output": text}
    assert len(normalize(document).calls) == 1
    assert (
        normalize({"messages": [ASKED, {"role": "assistant", "content": "Done."}], "output": "Done."}).calls
        == []
    )


ENCODED = [ASKED, {"role": "assistant", "content": "", "tool_calls": [MADE]}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_bytes_are_decoded_as_json_is(encoding: str) -> None:
    assert len(normalize(json.dumps(ENCODED).encode(encoding)).calls) == 1


def test_a_byte_order_mark_is_no_text() -> None:
    assert len(normalize("\ufeff" + json.dumps(ENCODED)).calls) == 1


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ENCODED)[:-1],
        json.dumps(ENCODED)[: json.dumps(ENCODED).index("arguments")],
        json.dumps(ENCODED).replace('"Clean up."', "NaN"),
        "// a comment\n" + json.dumps(ENCODED),
        "data: " + json.dumps(ENCODED[1]) + "\n\ndata: [DONE]",
        "".join(map(json.dumps, ENCODED)),
        "\n".join(json.dumps(each, indent=1) for each in ENCODED),
        json.dumps(ENCODED[1]) + "\n# the end",
    ],
)
def test_a_document_that_is_no_json_is_not_prose(text: str) -> None:
    with pytest.raises(TraceError):
        normalize(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"data": {"tool": "rm", "params": {"path": "/"}}},
        {"data": {"function_name": "rm", "parameters": {"path": "/"}}},
        {"data": {"name": "rm", "params": {"path": "/"}}},
        {"data": {"name": "rm", "input": {"path": "/"}}},
        {"instruct_content": {"commands": [{"command_name": "rm", "args": {"path": "/"}}]}},
        {"executions": [{"tool": "rm", "kwargs": {"path": "/"}}]},
        {"tools": [{"name": "rm", "arguments": {"path": "/"}}]},
        {"toolName": "rm"},
        {"code_action": "rm('/')"},
        {"code_blocks": [{"code": "rm('/')", "language": "python"}]},
        {"type": "code", "format": "python"},
    ],
    ids=str,
)
def test_a_call_in_another_field_of_a_message_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(TraceError):
        normalize([ASKED, {"role": "assistant", "content": "rm('/')", **fields}])


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"tool": "pip", "params": {"cache": False}}},
        {"model": {"name": "m", "parameters": {"temperature": 0}}},
        {"generation_info": {"name": "m", "params": {"temperature": 0}}},
        {"tools": [{"name": "rm", "description": "Removes", "arguments": [{"name": "path"}]}]},
    ],
    ids=str,
)
def test_what_describes_a_message_is_no_call(fields: dict[str, Any]) -> None:
    assert normalize([ASKED, {"role": "assistant", "content": "Done.", **fields}]).calls == []


@pytest.mark.parametrize(
    "block",
    [
        {"input": {"path": "/"}, "detail": {"type": "tool-rm", "toolCallId": "c1"}},
        {"args": {"path": "/"}, "x": "rm"},
    ],
    ids=str,
)
def test_a_block_without_a_type_that_has_arguments_is_refused(block: dict[str, Any]) -> None:
    with pytest.raises(TraceError):
        normalize([ASKED, {"role": "assistant", "content": [block]}])


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool-call", "toolCallId": "c1", "toolName": "rm", "args": {"path": "/"}},
        {"toolUse": {"toolUseId": "c1", "name": "rm", "input": {"path": "/"}}},
        {"function_call": {"id": "c1", "args": {"path": "/"}, "name": "rm"}},
        {"content_type": "function_call", "id": "c1", "name": "rm", "plugin_name": None, "arguments": "{}"},
    ],
    ids=str,
)
def test_a_block_as_json_after_a_sentence_is_refused(block: dict[str, Any]) -> None:
    for text in (f"Now: {json.dumps(block)}", f"```json\n{json.dumps([block], indent=1)}\n```"):
        with pytest.raises(TraceError):
            normalize([ASKED, {"role": "assistant", "content": text}])


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 100_000 + "</code> x",
        "\n  " * 30_000 + "</code>",
        '{"arguments": {}, ' * 6_000,
        '"name": "x", ' * 8_000,
        "[" + '"tool_calls" ' * 8_000,
        "<" + "_tool_call" * 10_000,
        "{ " * 50_000,
        f"<tool_call>{CALL}</tool_call>" * 1_500,
        "`" * 100_000,
        "` `" * 33_000 + '{"name": "rm", "arguments": {}}',
        "```\n" * 25_000 + "Action: rm",
        "````\n```\n" * 12_000,
        "\n>>>rm\n" * 14_000,
        ">>>" * 33_000,
        "<|tool" * 16_000,
        "<" + "a_" * 50_000,
        "<tool_calls>" + "a" * 90_000,
        "<tool_calls>" + " " * 90_000,
        "<function name=" * 7_000,
        "rm" + " \n" * 50_000 + "}",
        "a" * 90_000 + '{"name": "rm", "arguments": {}}',
        "Action: rm\n" * 9_000,
        "[f(" + ")" * 90_000 + "]",
        "\n[f(1)" * 14_000 + "]",
    ],
    ids=lambda text: text[:20].strip() or "newlines",
)
def test_long_texts_are_searched_in_linear_time(text: str, limited: Any) -> None:
    calls = [{**MADE, "id": f"c{at}"} for at in range(1_500)]
    limited()
    for message in (
        {"role": "assistant", "content": text},
        {"role": "assistant", "content": text, "tool_calls": calls},
    ):
        with contextlib.suppress(TraceError):
            normalize([message, OBSERVED])
