"""Read tool calls that a model wrote as text: ReAct (`Action:`, `Action Input:`), `<tool_call>`, `Calling tools:`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from karat.traces._calls import read_call, result_step
from karat.traces._literals import read_call as read_written_call
from karat.traces._literals import read_calls as read_written_calls
from karat.traces._literals import read_literal, read_loose_arguments
from karat.traces.steps import Step, ToolCall, UnreadCall, Unused, rest

_LABEL = re.compile(
    r"[ \t]*(?:(?:[-*+>]|#{1,6})[ \t]+)?(?:\*\*)?(Thought|Action[ _]?Input|Action|Observation|Final[ _]?Answer)"
    r"(?:\*\*)?[ \t]*\d{0,3}:(?:\*\*)?",
    re.IGNORECASE,
)
_LABELS = {
    "thought": "Thought",
    "action": "Action",
    "actioninput": "Action Input",
    "observation": "Observation",
    "finalanswer": "Final Answer",
}
"""The labels by their letters: models write `Action_Input` and `action input` too."""
_ACTION = re.compile(r"[Aa](?:ction|CTION)[ _]?(?:[Ii]nput|INPUT)?[*\"'\s\d]{0,8}:")
"""The label of an action, or its key in JSON, anywhere in a text: a cheap test that passes most prose."""
_WRITTEN = re.compile(r"[^\W\d][\w.-]*(?:[ \t]*(?:\[.*\]|\(.*\))[ \t]*(?:\n.*)?)?", re.DOTALL)
"""An action as the ReAct paper writes it (`search[Oslo]`), as a Python call, or the bare name of a tool."""
_NO_ACTION = re.compile(
    r"(?:(?:none|n/?a|no action|no tool|finish|final answer)\b.*)?", re.IGNORECASE | re.DOTALL
)
"""Actions that call nothing: the agent ends, or does not need a tool."""
_TEMPLATE = (
    "the action to take",
    "the input to the action",
    "the result of the action",
    "you should always think",
)
"""How the instructions of LangChain and CrewAI describe the sections: CrewAI repeats them after a tool's result."""
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TAGGED = re.compile(r"\s*(?:[\[{<]|```)|\s*[^\W\d][\w.-]*\s*(?:\(|<arg_)|[^\W\d][\w.-]*\s*\Z")
"""How the text of a <tool_call> begins: JSON, a fence, XML, `name(`, or (in GLM's template) the bare name of a tool."""
_CALLING = "Calling tools:"
_LATER_CALLING = re.compile(r"^Calling tools:\s*(?=\[)", re.MULTILINE)
_MARKS = (_CALLING, "[", "{", "`", " ", "\n", "\t", "\r")
_BRACKET = re.compile(r"\s*[\[{]")
_BLOCK = re.compile(r"""["'.](?:tool|function)""")
"""The key or the type of a call."""
_UNTYPED = tuple(
    (re.compile(rf"""["']{one}["']"""), re.compile(rf"""["'](?:{other})["']"""))
    for one, other in (("name", "input|parameters|arguments|args"), ("role", "content|parts"))
)
"""The keys of a block of the Claude Agent SDK, of calls as models write them, which have no type, and of messages."""
_PYTHON_CALL = re.compile(r"\s*\[\s*[^\W\d][\w.]*\(.*\)\s*\]\s*", re.DOTALL)
"""How Llama writes a list of calls."""
_TEMPLATES = re.compile(
    r"<(?:(?:\w+:|｜DSML｜)?invoke(?: name=|>)|function=[\w.-]+>"
    r"|\|(?:python_(?:tag|start)|action_start|tools_prefix)\|>|[|｜]tool[_▁]calls?[_▁](?:section[_▁])?begin[|｜]>|\|tool_calls?\|>\s*[\[{\w]|\|(?:START_ACTION|function_call)\|>"
    r"|\|[^<]{0,100}\bto=functions\.[\w.-]+|(?:tool_calls|TOOLCALL|function_calls)>\s*[\[{\w]|\w+_tool_call>\s*\{"
    r"|start_function_call>\s*call|execute_(?:bash|ipython|browse|command)>"
    r"|(?:use_mcp_tool|access_mcp_resource|write_to_file|apply_diff)>\s*<"
    r"|/(?:search|python|bash|action|execute|code_interpreter)>\s*\Z)"
)
"""How models write calls by their own chat templates, which servers parse: Claude, Llama, Mistral, DeepSeek, Kimi,
Granite and Phi, Command R, gpt-oss (Harmony), Nemotron, FunctionGemma, InternLM, Apertus, OLMo, LongCat; and by the
prompts of agents: OpenHands, Cline, and tags at the end of a message, after which the agent waits."""
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*[\[{\w]")
_JSON_CALL = re.compile(
    r"""["'](?:name|tool|(?:tool|function|recipient)_name|function|action)["']\s*:\s*["']"""
    r"""(?!final answer)[^"'\n]{1,200}["']\s*,\s*"""
    r"""["'](?:arguments|args|parameters|params|kwargs|(?:tool|action)_input|tool_args|input(?=["']\s*:\s*\{))["']\s*:"""
    r"""|["'](?:(?:content_|part_|block_)?type|(?:part_)?kind)["']\s*:\s*"""
    r"""["'](?:server_)?(?:tool|function|mcp)[-_]?(?:use|call|invocation)["']"""
    r"""|["'](?:tool|function)_?(?:use|call|invocation)s?["']\s*:\s*[\[{]""",
    re.IGNORECASE,
)
"""The fields of a call as JSON anywhere in a text: models write it in a fence, after a sentence, or line by line."""
_JSON_ARGUMENTS = re.compile(r"""\{\s*["'](?:arguments|args|parameters)["']\s*:\s*\{""")
_JSON_NAME = re.compile(
    r"""\}\s*,\s*["'](?:name|tool|tool_name|function)["']\s*:\s*["'][^"'\n]{1,200}["']\s*\}"""
)
"""The same with the arguments first."""
_JSON_KEY = re.compile(r"""["'](?:tool|function)[_-]?(?:call|use|invocation)s?["']""", re.IGNORECASE)
"""What a text in brackets that is no JSON, such as one that was cut off, holds if it is a document with calls."""
_INPUT = re.compile(r"\bAction[ _]?Input:[ \t]*\S")
_DSPY = "[[ ## next_tool_name ## ]]"
_SHELL = ("```bash", "```sh", "```mswea", "```python", "```py\n")
_TOOL_FENCE = ("```tool_code", "```tool_call")
"""How Gemma writes calls."""
_SHELL_AT_END = re.compile(r"```(?:bash|sh|shell|mswea_bash_command)[ \t]*\n[^`]*```\s*\Z")
"""A command for a shell at the end of a message, as mini-swe-agent runs it."""
_CODE_AT_END = re.compile(r"\n[ \t]*</code>\s*\Z|<end_code>")
"""Code that smolagents runs, which its memory has once more as a call of the next message."""
_FENCE = re.compile(r"```(?:json)?")


NOT_AGENTS = frozenset(("user", "human", "system", "developer", "tool", "function"))
"""Roles whose texts are not the agent's: what looks like a call there was not made by it."""


def may_hold_calls(text: str) -> bool:
    """Return whether a text is worth a closer look."""
    return (
        _may_hold_action(text)
        or _OPEN in text
        or _CALLING in text
        or _holds_command(text)
        or _is_template(text)
        or holds_json_call(text)
    )


def _holds_command(text: str) -> bool:
    if "```" in text and any(mark in text for mark in _SHELL):
        return True
    return ("</code>" in text or "<end_code>" in text) and _CODE_AT_END.search(text) is not None


def holds_json_call(text: str) -> bool:
    """Return whether a text that is not JSON as a whole, whose parts can be searched, holds a call as JSON."""
    if "{" not in text or not _may_hold_json_call(text):
        return False
    return text.lstrip()[:1] not in ("{", "[") or read_loose_arguments(text)[1] is not None


def _may_hold_json_call(text: str) -> bool:
    if _JSON_CALL.search(text) is not None:
        return True
    if (first := _JSON_ARGUMENTS.search(text)) is not None and _JSON_NAME.search(
        text, first.end()
    ) is not None:
        return True
    return text.lstrip()[:1] in ("{", "[") and _JSON_KEY.search(text) is not None


def _may_hold_action(text: str) -> bool:
    return ("ction" in text or "CTION" in text) and _ACTION.search(text) is not None


def _is_template(text: str) -> bool:
    if "<" in text and _TEMPLATES.search(text) is not None:
        return True
    if "[TOOL_CALLS]" in text and _MISTRAL.search(text) is not None:
        return True
    if "```tool_c" in text and any(mark in text for mark in _TOOL_FENCE):
        return True
    if "[" not in text:
        return False
    return _DSPY in text or (_PYTHON_CALL.fullmatch(text) is not None and bool(read_written_calls(text)))


def may_be_blocks(text: str) -> bool:
    """Return whether a text may be a message's content blocks as JSON or Python, with a call among them."""
    if _BRACKET.match(text) is None:
        return False
    return (
        _BLOCK.search(text) is not None
        or any(one.search(text) and other.search(text) for one, other in _UNTYPED)
        or _PYTHON_CALL.fullmatch(text) is not None
    )


def is_written_call(value: object) -> bool:
    """Return whether a value is text and nothing but a call with its arguments: `search({"q": 1})`, `search(q=1)`."""
    if not isinstance(value, str) or not value.rstrip().endswith(")"):
        return False
    call = read_written_call(value)
    return call is not None and call[2] is None


def is_prose(text: str) -> bool:
    """Return whether a text needs no closer look: it holds no calls and is no content blocks."""
    if ":" in text and (_may_hold_action(text) or _CALLING in text):
        return False
    if ("<" in text or "[" in text or "`" in text) and (
        _OPEN in text or _is_template(text) or _holds_command(text)
    ):
        return False
    if "{" in text and _may_hold_json_call(text):
        return False
    return not text.startswith(_MARKS) or not may_be_blocks(text)


def is_parsed(text: str) -> bool:
    """Return whether the calls of a text have exactly the arguments that are written there."""
    return _OPEN in text or _CALLING in text


def read_text(role: str, text: str, extra: dict[str, Any]) -> list[Step | Unused] | None:
    """Return the steps of an assistant's text with ReAct, tagged or listed calls; None where it holds none of them."""
    if text.startswith(_CALLING):
        return [_listed_calls(text, None, text[len(_CALLING) :], extra)]
    if _CALLING in text and (later := _LATER_CALLING.search(text)) is not None:
        return [_listed_calls(text, text[: later.start()].strip() or None, text[later.end() :], extra)]
    if _OPEN in text and (tagged := _tagged(role, text, extra)) is not None:
        return tagged
    if _is_template(text):
        return [UnreadCall("", "a tool call in a model's own template: parse it into tool_calls first", text)]
    if not _may_hold_action(text):
        return None
    if "action_input" in text and (only := _blob(text)) is not None:
        # LangChain's structured chat: the whole message is one action.
        return None if isinstance(only, str) else [Step(role, text, [only], extra=extra)]
    sections = list(_sections(text))
    labels = [label for label, _, _ in sections]
    if "Action" not in labels:
        written = _is_one_line(text) and _INPUT.search(text, text.find("Action:")) is not None
        return (
            [UnreadCall("", "an action within a line: write each label on its own line", text)]
            if written
            else None
        )
    for at, (label, _, inside) in enumerate(sections):
        if label == "Action" and (labels[at + 1 : at + 2] == ["Action Input"] or _blob(inside) is not None):
            return list(_transcript(role, sections, extra))
    if "Thought" in labels:
        for at, (label, _, inside) in enumerate(sections):
            observed = labels[at + 1 : at + 2] == ["Observation"]
            if label != "Action" or _NO_ACTION.fullmatch(inside) is not None:
                continue
            if observed or inside.startswith(("{", "```")) or _WRITTEN.fullmatch(inside):
                return [UnreadCall("", "an action without an 'Action Input:'", text)]
    return None


def is_answered(text: str, following: str | None) -> bool:
    """Return whether a text without calls ends with an action whose result is the next message, if there is one."""
    if _CODE_AT_END.search(text) is not None and (following is None or is_observation(following)):
        return True
    if following is None:
        return False
    if following.lstrip().startswith("exitcode: "):  # AutoGen runs every block of code
        return "```" in text
    return is_observation(following) and _awaits_observation(text)


def _awaits_observation(text: str) -> bool:
    if _SHELL_AT_END.search(text) is not None or (_may_hold_action(text) and _is_one_line(text)):
        return True
    if not _may_hold_action(text):
        return False
    sections = list(_sections(text))
    return bool(sections) and sections[-1][0] == "Action" and _NO_ACTION.fullmatch(sections[-1][2]) is None


def is_observation(text: str) -> bool:
    """Return whether a text begins with `Observation:`, or with the exit status of a command."""
    if text.lstrip().startswith("<returncode>"):
        return True
    match = _LABEL.match(text.lstrip()[:200])
    return match is not None and _label(match) == "Observation"


def _is_one_line(text: str) -> bool:
    """Return whether a thought is followed by an action, not at the start of a line."""
    thought = text.find("Thought:")
    return 0 <= thought < text.find("Action:", thought)


def _label(match: re.Match[str]) -> str:
    return _LABELS[match[1].lower().replace(" ", "").replace("_", "")]


def _listed_calls(text: str, content: str | None, calling: str, extra: dict[str, Any]) -> Step | Unused:
    """Read the Python list of calls that follows `Calling tools:`."""
    try:
        listed = read_literal(calling.strip())
    except ValueError:
        return UnreadCall("", "tool calls that are not written as a Python list", text)
    calls = [read_call(each) for each in listed] if isinstance(listed, list) else [None]
    found = [call for call in calls if call is not None]
    if len(found) < len(calls):
        return UnreadCall("", "a tool call without a name", text)
    return Step("assistant", content, found, extra=extra)


def _tagged(role: str, text: str, extra: dict[str, Any]) -> list[Step | Unused] | None:
    """Read `<tool_call>{"name": …, "arguments": …}</tool_call>`."""
    calls: list[ToolCall] = []
    at = text.find(_OPEN)
    while at >= 0:
        start = at + len(_OPEN)
        end = text.find(_CLOSE, start)
        inside = text[start:] if end < 0 else text[start:end]
        if _TAGGED.match(inside) is not None:
            fields, raw = read_loose_arguments(_unfenced(inside))
            listed = fields if isinstance(fields, list) and fields else [fields]
            found = [read_call(each) for each in listed] if raw is None else [None]
            read = [call for call in found if call is not None]
            if len(read) < len(found):
                return [
                    UnreadCall("", "the text of a <tool_call> is not JSON with a name and arguments", text)
                ]
            calls.extend(read)
        at = -1 if end < 0 else text.find(_OPEN, end)
    return [Step(role, text, calls, extra=extra)] if calls else None


def _sections(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield label, whole text and inner text of the labelled sections; text before the first has the label ""."""
    label, lines, inner = "", [], []
    for line in text.splitlines(keepends=True):
        match = _LABEL.match(line)
        if match is not None and line[match.end() :].strip().startswith(_TEMPLATE):
            match = None
        if match is None:
            lines.append(line)
            inner.append(line)
            continue
        if lines:
            yield label, "".join(lines), "".join(inner).strip()
        label, lines, inner = _label(match), [line], [line[match.end() :]]
    if lines:
        yield label, "".join(lines), "".join(inner).strip()


def _transcript(
    role: str, sections: list[tuple[str, str, str]], extra: dict[str, Any]
) -> Iterator[Step | Unused]:
    """Yield a step for each thought with its action, and one for each observation."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    position = 0
    while position < len(sections):
        label, whole, inside = sections[position]
        position += 1
        if label == "Observation":
            if texts:
                yield Step(role, "".join(texts).strip(), calls, extra=extra)
                texts, calls, extra = [], [], {}
            yield result_step(None, None, inside)
            continue
        if label == "Thought" and calls:
            yield Step(role, "".join(texts).strip(), calls, extra=extra)
            texts, calls, extra = [], [], {}
        texts.append(whole)
        if label != "Action":
            continue
        if position < len(sections) and sections[position][0] == "Action Input":
            _, more, given = sections[position]
            position += 1
            texts.append(more)
            named = inside.strip().strip("*`\"'").strip()
            if not named:
                yield UnreadCall("", "an action without a tool", whole + more)
                return
            calls.append(ToolCall(None, named, _input(given)))
        elif (blob := _blob(inside)) is not None:
            if isinstance(blob, ToolCall):
                calls.append(blob)
        elif _NO_ACTION.fullmatch(inside) is None:
            yield UnreadCall("", "an action without an 'Action Input:'", whole)
            return
    if texts:
        yield Step(role, "".join(texts).strip(), calls, extra=extra)


def _input(given: str) -> Any:
    """Return the arguments of an action; text that is not an object becomes the tool's only argument, `input`."""
    text = _unfenced(given)
    if not text:
        return {}
    arguments, raw = read_loose_arguments(text)
    return arguments if raw is None and isinstance(arguments, dict) else {"input": text}


def _blob(inside: str) -> ToolCall | str | None:
    """Read an action written as JSON: `{"action": "search", "action_input": {…}}`, or with a name and arguments.

    The text of a final answer is no call and returned as it is. None where the text is no action.
    """
    text = _unfenced(inside)
    if not text.startswith("{"):
        return None
    fields, raw = read_loose_arguments(text)
    if raw is not None or not isinstance(fields, dict):
        return None
    action = fields.get("action")
    if not isinstance(action, str):
        return read_call(fields) if "name" in fields and "arguments" in fields else None
    if action.strip().lower() in ("", "final answer"):
        return text if action.strip() else None
    given = fields.get("action_input")
    arguments = given if isinstance(given, dict) else {} if given is None else {"input": given}
    return ToolCall(None, action, arguments, extra=rest(fields, "action", "action_input"))


def _unfenced(text: str) -> str:
    return (_FENCE.sub("", text) if "```" in text else text).strip()
