"""What models write by their own chat templates is a call or is refused: one text for each template that servers parse.

The templates are those of the tool parsers of vLLM, SGLang and llama.cpp, and of older models and prompts.
"""

# ruff: noqa: E501 - a text is easier to read on one line

from __future__ import annotations

from typing import Any

import pytest

from karat.evaluators.trajectory._calls import fast_calls
from karat.traces import TraceError, normalize

ASKED = {"role": "user", "content": "Clean up."}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "a b"}

CALL = '{"name": "rm", "arguments": {"path": "/"}}'
BARE = '{"path": "/"}'
PYTHON = '[rm(path="/")]'
TEMPLATES: dict[str, str] = {
    "Hermes, Qwen 2.5, Granite 4, MiMo": f"<tool_call>\n{CALL}\n</tool_call>",
    "Hermes with a scratch pad": f"<scratch_pad>\nGoal: clean\nActions: rm\n</scratch_pad>\n<tool_call>\n{CALL}\n</tool_call>",
    "Qwen 3 with a thought": f"<think>\nI have to clean.\n</think>\n\n<tool_call>\n{CALL}\n</tool_call>",
    "Qwen 3 Coder": "<tool_call>\n<function=rm>\n<parameter=path>\n/\n</parameter>\n</function>\n</tool_call>",
    "Qwen 3 Coder without its tag": "<function=rm>\n<parameter=path>\n/\n</parameter>\n</function>",
    "Qwen-Agent": '✿FUNCTION✿: rm\n✿ARGS✿: {"path": "/"}',
    "GLM 4.5": "<tool_call>rm\n<arg_key>path</arg_key>\n<arg_value>/</arg_value>\n</tool_call>",
    "GLM 4.7": "<tool_call>rm<arg_key>path</arg_key><arg_value>/</arg_value></tool_call>",
    "GLM 4": f"rm\n{BARE}",
    "ChatGLM 3": "rm\n ```python\ntool_call(path='/')\n```",
    "Mistral": f"[TOOL_CALLS] [{CALL}]",
    "Mistral 3": f"[TOOL_CALLS]rm{BARE}",
    "Mistral 3 with the id": f"[TOOL_CALLS]rm[CALL_ID]abcdef123[ARGS]{BARE}",
    "Llama 3 JSON": '{"name": "rm", "parameters": {"path": "/"}}',
    "Llama 3 tag": '<|python_tag|>{"name": "rm", "parameters": {"path": "/"}}',
    "Llama 3 built-in tool": '<|python_tag|>brave_search.call(query="disk")',
    "Llama 3.1 user-defined": f"<function=rm>{BARE}</function>",
    "Llama 4 pythonic": f"<|python_start|>{PYTHON}<|python_end|>",
    "Llama 3.2, ToolACE, Gemma 3 pythonic": PYTHON,
    "several pythonic calls": '[ls(path="/"), rm(path="/", force=True)]',
    "Granite": f"<|tool_call|>[{CALL}]",
    "Granite 20B": f"<function_call> {CALL}",
    "Granite with a tag": f"<tool_call>[{CALL}]",
    "InternLM": '<|action_start|><|plugin|>{"name": "rm", "parameters": {"path": "/"}}<|action_end|>',
    "Jamba": f"<tool_calls>[{CALL}]</tool_calls>",
    "Hunyuan": f"<tool_calls>[{CALL}]</tool_calls>",
    "Hunyuan 3": "<tool_calls>\n<tool_call>rm<tool_sep>\n<arg_key>path</arg_key>\n<arg_value>/</arg_value>\n</tool_call>\n</tool_calls>",
    "MiniMax M1": f"<tool_calls>\n{CALL}\n</tool_calls>",
    "MiniMax M2": '<minimax:tool_call>\n<invoke name="rm">\n<parameter name="path">/</parameter>\n</invoke>\n</minimax:tool_call>',
    "MiniMax M3": ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="rm"><path>/</path></invoke>',
    "DeepSeek 3": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>rm\n```json\n{BARE}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "DeepSeek 3.1": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>rm<｜tool▁sep｜>{BARE}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "DeepSeek 3.2": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="rm">\n<｜DSML｜parameter name="path" string="true">/</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "Kimi K2": f"<|tool_calls_section_begin|><|tool_call_begin|>functions.rm:0<|tool_call_argument_begin|>{BARE}<|tool_call_end|><|tool_calls_section_end|>",
    "Kimi K3": '<|open|>tools<|sep|><|open|>call tool="rm" index="1"<|sep|><|open|>argument key="path"<|sep|>/<|close|>argument<|sep|><|close|>call<|sep|>',
    "xLAM": f"[{CALL}]",
    "xLAM in a fence": f"```json\n[{CALL}]\n```",
    "Phi 4 mini, FireFunction": f"functools[{CALL}]",
    "Phi 4 mini with tokens": f"<|tool_call|>[{CALL}]<|/tool_call|>",
    "Seed-OSS": "<seed:tool_call>\n<function=rm>\n<parameter=path>/</parameter>\n</function>\n</seed:tool_call>",
    "Step 3": '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="rm"><steptml:parameter name="path">/</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>',
    "Step 3.5": "<tool_call>\n<function=rm>\n<parameter=path>/</parameter>\n</function>\n</tool_call>",
    "Step Audio 2": f"<tool_call>function\nrm\n{BARE}</tool_call>",
    "ERNIE 4.5": f"<tool_call>\n{CALL}\n</tool_call>\n",
    "LongCat": f"<longcat_tool_call>{CALL}</longcat_tool_call>",
    "OLMo 3": '<function_calls>\nrm(path="/")\n</function_calls>',
    "LFM 2": f"<|tool_call_start|>{PYTHON}<|tool_call_end|>",
    "gpt-oss": f"<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{BARE}<|call|>",
    "gpt-oss without the first tokens": f"commentary to=functions.rm <|constrain|>json<|message|>{BARE}",
    "gpt-oss without its tokens": f"commentary to=functions.rm json{BARE}",
    "Functionary 2": f"<|from|>assistant\n<|recipient|>rm\n<|content|>{BARE}",
    "Functionary 3": f">>>rm\n{BARE}",
    "Functionary 3 after a text": f">>>all\nI clean up.\n>>>rm\n{BARE}",
    "Functionary 3 without the first mark": f"rm\n{BARE}",
    "Functionary 3 with code": ">>>python\nimport shutil\nshutil.rmtree('/')",
    "Command R": 'Action: ```json\n[\n    {\n        "tool_name": "rm",\n        "parameters": {"path": "/"}\n    }\n]```',
    "Command R7B, Command A": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "rm", "parameters": {"path": "/"}}]<|END_ACTION|>',
    "Gemma": '```tool_code\nrm(path="/")\n```',
    "Gemma with a fence of its own": f"```tool_use\n{CALL}\n```",
    "Gemma 4": '<|tool_call>call:rm{path:<|"|>/<|"|>}<tool_call|>',
    "FunctionGemma": "<start_function_call>call:rm{path:<escape>/<escape>}<end_function_call>",
    "GigaChat 3": f"function call<|role_sep|>\n{CALL}",
    "GigaChat 3 by its token": f"<|function_call|>{CALL}",
    "Apertus": '<|tools_prefix|>[{"rm": {"path": "/"}}]<|tools_suffix|>',
    "Nemotron": f"<TOOLCALL>[{CALL}]</TOOLCALL>",
    "MiniCPM 5": '<function name="rm"><param name="path">/</param></function>',
    "Dots": '<dots_function_call><invoke name="rm"><parameter name="path">/</parameter></invoke></dots_function_call>',
    "Poolside": "<tool_call>rm\n<arg_key>path</arg_key>\n<arg_value>/</arg_value>\n</tool_call>",
    "Muse": '<atem:function_calls><atem:invoke name="rm"><atem:parameter name="path">/</atem:parameter></atem:invoke></atem:function_calls>',
    "Inkling": '<|content_invoke_tool_json|>{"name": "rm", "args": {"path": "/"}}<|end_message|>',
    "Pangu": f"[unused11][{CALL}][unused12]",
    "HyperCLOVA X": f"-> tool/function_call\n[{CALL}]",
    "the first Claude": "<function_calls>\n<invoke>\n<tool_name>rm</tool_name>\n<parameters>\n<path>/</path>\n</parameters>\n</invoke>\n</function_calls>",
    "Claude": '<function_calls>\n<invoke name="rm">\n<parameter name="path">/</parameter>\n</invoke>\n</function_calls>',
    "Claude in a name space": '<x:function_calls>\n<x:invoke name="rm">\n<x:parameter name="path">/</x:parameter>\n</x:invoke>',
    "Gorilla": '<<function>>rm(path="/")',
    "NexusRaven": "Call: rm(path='/')<bot_end>\nThought: It removes everything.",
    "GPT4Tools, ReAct": "Thought: I have to clean.\nAction: rm\nAction Input: /",
    "LangChain's JSON agent": 'Thought: clean\nAction:\n```\n{"action": "rm", "action_input": {"path": "/"}}\n```',
    "LangChain's XML agent": "<tool>rm</tool><tool_input>/</tool_input>",
    "OpenHands": "<execute_bash>\nrm -rf /\n</execute_bash>",
    "Cline": "<execute_command>\n<command>rm -rf /</command>\n</execute_command>",
    "Search-R1": "<think>I look.</think>\n<search>rm</search>",
    "DSPy": '[[ ## next_tool_name ## ]]\nrm\n\n[[ ## next_tool_args ## ]]\n{"path": "/"}',
}
"""A call of `rm` (or of a built-in tool) with its arguments, by the models whose template it is."""


UNMARKED = (
    "GLM 4",
    "Llama 3.2, ToolACE, Gemma 3 pythonic",
    "xLAM in a fence",
    "Functionary 3 without the first mark",
)
"""Templates without a mark of their own, which are calls where the tool is known or the agent has made no call."""
FIRST = ("GLM 4", "Functionary 3 without the first mark", "Functionary 3 with code")
"""Templates that are the whole of a message; with a sentence before them, that has a mark too."""


def messages(text: str, tool: str) -> dict[str, list[Any]]:
    """The text as the whole of a message of several formats, and of an agent that has made a call of a tool."""
    call = {"id": "c1", "type": "function", "function": {"name": tool, "arguments": '{"path": "/tmp"}'}}
    made = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, RESULT]
    return {
        "made": [*made, {"role": "assistant", "content": text}],
        "OpenAI": [ASKED, {"role": "assistant", "content": text}],
        "Anthropic": [ASKED, {"role": "assistant", "content": [{"type": "text", "text": text}]}],
        "Gemini": [
            {"role": "user", "parts": [{"text": "Clean up."}]},
            {"role": "model", "parts": [{"text": text}]},
        ],
        "LangChain": [{"type": "human", "content": "Clean up."}, {"type": "ai", "content": text}],
    }


def assert_read_or_refused(document: list[Any], before: int) -> None:
    fast = fast_calls(document)
    assert fast is None or len(fast.names) > before
    try:
        calls = normalize(document).calls
    except TraceError:
        return
    assert len(calls) > before
    assert all(call.arguments for call in calls)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_in_a_template_is_read_or_refused(name: str) -> None:
    for place, document in messages(TEMPLATES[name], "rm").items():
        assert_read_or_refused(document, place == "made")
    if name not in UNMARKED:
        assert_read_or_refused(messages(TEMPLATES[name], "ls")["made"], 1)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_in_a_template_after_a_sentence_is_read_or_refused(name: str) -> None:
    if name in FIRST:
        pytest.skip("it is the whole of a message")
    for document in messages(f"I clean up now.\n\n{TEMPLATES[name]}", "rm").values():
        assert_read_or_refused(document, 0)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_in_a_template_before_another_message_is_read_or_refused(name: str) -> None:
    document = messages(TEMPLATES[name], "rm")["OpenAI"]
    assert_read_or_refused([*document, {"role": "user", "content": "gone"}], 0)
