"""Read tool calls that a model wrote as text: ReAct (`Action:`, `Action Input:`), `<tool_call>`, `Calling tools:`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from karat.traces._calls import NoArguments, read_call, result_step
from karat.traces._literals import read_call as read_written_call
from karat.traces._literals import read_calls as read_written_calls
from karat.traces._literals import read_literal, read_loose_arguments
from karat.traces._objects import plain
from karat.traces.steps import Step, ToolCall, UnreadCall, Unused, rest

_LABEL = re.compile(
    r"[ \t]*(?:(?:[-*+>]|#{1,6})[ \t]+)?(?:\*\*)?(Thought|Action[ _]?Input|Action|Observation|Final[ _]?Answer)"
    r"(?:\*\*)?[ \t]*\d{0,3}:(?:\*\*)?",
    re.IGNORECASE,
)
_LABELLED = re.compile(rf"^{_LABEL.pattern}", re.IGNORECASE | re.MULTILINE)
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
_MARKS = (_CALLING, "[", "{", "`", " ", "\n", "\t", "\r", ">>>")
_BRACKET = re.compile(r"\s*[\[{]")
_BLOCK = re.compile(r"""["'.](?:tool|function)""")
"""The key or the type of a call."""
_UNTYPED = tuple(
    (re.compile(rf"""["']{one}["']"""), re.compile(rf"""["'](?:{other})["']"""))
    for one, other in (("name", "input|parameters|arguments|args"), ("role", "content|parts"))
)
"""The keys of a block of the Claude Agent SDK, of calls as models write them, which have no type, and of messages."""
_PYTHON_CALL = re.compile(r"\s*\[\s*[^\W\d][\w.]*\(.*\)\s*\]\s*", re.DOTALL)
"""How Llama writes a list of calls, as a text or as its last lines."""
_TEMPLATES = re.compile(
    r"<(?:(?:[\w-]+:|｜DSML｜)?invoke(?: name=|>)|function(?:=|\s+name=)[\"']?[\w.-]+[\"']?>|<function>>|bot_end>"
    r"|(?:\w+[:_])?(?:(?:tool|function)_?calls?|TOOL_?CALLS?)>\s*(?:[\[{<\]]|[\w.-]+\s*(?:\(|\n|<(?!/)))"
    r"|[|｜](?i:[^<>|｜\n]{0,40}(?:tool|function|plugin|python|action|invoke)[^<>|｜\n]{0,40})[|｜]?>"
    r"|\|(?:open\|>\s*(?:tools|call)\b|recipient\|>(?!\s*all\b)|role_sep\|>\s*\{)"
    r"|start_function_call>|tool>[^<\n]{1,100}</tool>\s*<tool_input>"
    r"|execute_(?:bash|ipython|browse|command)>|(?:use_mcp_tool|access_mcp_resource|write_to_file|apply_diff)>\s*<"
    r"|/(?:search|python|bash|action|execute|code_interpreter)>\s*\Z)"
)
"""How models write calls by their own chat templates, which servers parse, in tags or special tokens; and by the
prompts of agents: OpenHands, Cline, and tags at the end of a message, after which the agent waits."""
_PLAIN_MARKS = ("functools[{", "[unused11]", "to=functions.", "✿FUNCTION✿", "tool/function_call\n", ">>>")
"""The same without tags: Phi 4, Pangu, gpt-oss (Harmony), Qwen-Agent, HyperCLOVA X, Functionary."""
_RECIPIENT = re.compile(r"(?:^|\n)>>>(?!all\b)[\w.-]+[ \t]*\n")
"""How Functionary writes the name of a tool, unlike a prompt of Python."""
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*[\[{\w]")
_NAMED_JSON = re.compile(r"\s*(?!(?i:json|answer|result|output|response)\b)[^\W\d][\w.-]*[ \t]*\n\s*\{")
"""How GLM 4 and Functionary write a call: the name of the tool on a line, then its arguments."""
_JSON_CALL = re.compile(
    r"""["'](?:name|tool|(?:tool|function|recipient)_name|function|action)["']\s*:\s*["']"""
    r"""(?!final answer)[^"'\n]{1,200}["']\s*,\s*"""
    r"""["'](?:arguments|kwargs|(?:tool|action)_input|tool_args|input(?=["']\s*:\s*\{)"""
    r"""|(?:args|parameters|params)(?!["']\s*:\s*(?:\[|\{\s*["']type["']\s*:\s*["']object)))["']\s*:"""
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
_TOOL_FENCE = ("```tool_code", "```tool_call", "```tool_use", "```python\ntool_call(")
"""How Gemma and ChatGLM write calls."""
_SHELL_AT_END = re.compile(r"```(?:bash|sh|shell|mswea_bash_command)[ \t]*\n[^`]*```\s*\Z")
"""A command for a shell at the end of a message, as mini-swe-agent runs it."""
_CODE_AT_END = re.compile(r"\n[ \t]*</code>\s*\Z|<end_code>")
"""Code that smolagents runs, which its memory has once more as a call of the next message."""
_FENCE = re.compile(r"```(?:json)?")
_FENCES = re.compile(r"`{3,}")
_INLINE = re.compile(r"(`{1,2})(?!`)[^`\n]+\1(?!`)")
_WORD = re.compile(r"[\w-]+")
_IN_CALL = re.compile(r"(?<![\w-])([\w-]++)[ \t]*+(?=[\"'(\[<\n]|\Z)")
"""A word where a call has the name of its tool."""
_DEFINITIONS = ("function", "functionDeclarations", "function_declarations", "toolSpec")
"""Where a definition of a tool has the name of the tool, if not beside its type."""


NOT_AGENTS = frozenset(("user", "human", "system", "developer", "tool", "function"))
"""Roles whose texts are not the agent's: what looks like a call there was not made by it."""


FIRST, PROSE, LAST = range(3)
"""How often a trace was read."""


class Texts:
    """What a trace says about the texts of its agent.

    At first they are read as if the agent had no other way to make calls. Where that may be wrong, the trace is read
    again with all texts as prose, which tells what it calls and lists, and once more with that.
    """

    def __init__(self) -> None:
        self.begin(FIRST)
        self.is_doubtful = False
        """Whether a text cannot be decided on without the rest of the trace."""
        self.made = False
        """Whether the agent has made a call in a field of its own, and so writes none as text by habit."""
        self.tools: frozenset[str] = frozenset()
        """The tools that the trace calls or lists."""
        self.last = ""

    def begin(self, reading: int) -> None:
        """Begin to read the trace."""
        self.reading = reading
        self.written: dict[int, ToolCall] = {}
        """The calls that were read from texts, by identity."""

    def know(self, steps: list[Step], unused: list[Unused]) -> None:
        """Take the tools of a trace, and its last text."""
        calls = [call.name for step in steps for call in step.tool_calls if id(call) not in self.written]
        self.made, self.tools = bool(calls), frozenset((*calls, *_listed_tools(unused)))
        if steps and steps[-1].role not in NOT_AGENTS:
            self.last = steps[-1].text
        if self.written and self.tools:
            self.is_doubtful = True

    def may_call(self, text: str, *, is_said: bool = True) -> bool:
        """Return whether a text that may hold calls holds one, or cannot be told from one that does.

        `is_said`: it is what the agent says, without a result after it.
        """
        if not is_said:
            return True
        said = self._unquoted(text)
        if not may_hold_calls(said):
            return False
        if not self.tools or _is_marked(said) or (_may_hold_action(said) and self._is_action(said)):
            return True
        return self.names_tool(said)

    def _is_action(self, text: str) -> bool:
        """Return whether a text is written as ReAct from its start, or is all that the agent can write."""
        labelled = _LABEL.match(text.lstrip()) if self.made else _LABELLED.search(text)
        return labelled is not None or _blob(text) is not None

    def names_tool(self, text: str) -> bool:
        """Return whether a text has the name of a tool where a call has it."""
        if not self.tools.isdisjoint(_IN_CALL.findall(text)):
            return True
        return any(name in text for name in self.tools if _WORD.fullmatch(name) is None)

    def _unquoted(self, text: str) -> str:
        """Return a text without the Markdown code that it quotes: code within a line, or with text after it.

        A model stops after a call. Code at the end, or before another message, is quoted where it names no tool.
        """
        if "`" not in text:
            return text
        parts: list[str] = []
        at = 0
        for start, end in _fences(text):
            code = text[start:end]
            is_last = not text[end:].strip()
            parts.append(_INLINE.sub(" ", text[at:start]))
            at = end
            is_first = not text[:start].strip()
            if (is_first and is_last) or ((is_first or is_last) and code.startswith(_TOOL_FENCE)):
                parts.append(code)
            elif is_last:
                parts.append(code if not self.tools or self.names_tool(code) else " ")
            else:
                parts.append(" " if self.made or text == self.last else code)
        parts.append(_INLINE.sub(" ", text[at:]))
        return "".join(parts)


def _fences(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the code in fences; one that is not closed ends with the text."""
    opened: re.Match[str] | None = None
    for run in _FENCES.finditer(text):
        if opened is None:
            opened = run
        elif len(run[0]) >= len(opened[0]):
            yield opened.start(), run.end()
            opened = None
    if opened is not None:
        yield opened.start(), len(text)


def _listed_tools(unused: list[Unused]) -> Iterator[str]:
    """Yield the names of the tools that are defined beside the messages."""
    for part in unused:
        fields = part.value if isinstance(part.value, dict) else {}
        stack = [fields.get(key) for key in ("tools", "functions")]
        while stack:
            tool = plain(stack.pop())
            if isinstance(tool, list):
                stack.extend(tool)
            elif isinstance(tool, dict):
                if isinstance(tool.get("name"), str) and tool["name"].strip():
                    yield tool["name"]
                stack.extend(tool.get(key) for key in _DEFINITIONS)


texts_read: ContextVar[Texts] = ContextVar("texts_read")
"""Set while `normalize` reads a trace."""


def text_steps(role: str, text: str, extra: dict[str, Any]) -> list[Step | Unused] | None:
    """Return the steps of what an agent wrote; None where it is prose, or is read as prose for now."""
    if not may_hold_calls(text):
        return None
    texts = texts_read.get(None)
    if texts is None or (texts.reading == LAST and texts.may_call(text)):
        return read_text(role, text, extra)
    if texts.reading != FIRST or (found := read_text(role, text, extra)) is None:
        return None
    if "`" in text or any(isinstance(part, Unused) for part in found):
        texts.is_doubtful = True
        return None
    texts.written.update(
        (id(call), call) for part in found if isinstance(part, Step) for call in part.tool_calls
    )
    return found


def may_hold_calls(text: str) -> bool:
    """Return whether a text is worth a closer look."""
    return _is_marked(text) or _may_hold_action(text) or _holds_command(text) or _is_unmarked(text)


def _is_marked(text: str) -> bool:
    """Return whether a text has a mark that only a call has."""
    return _OPEN in text or _CALLING in text or _is_template(text)


def _is_unmarked(text: str) -> bool:
    """Return whether a text holds JSON or Python in the form of a call."""
    return holds_json_call(text) or _is_python_call(text) or (":" in text and _is_named_json(text))


def _is_named_json(text: str) -> bool:
    return text.rstrip().endswith("}") and _NAMED_JSON.match(text) is not None


def _is_python_call(text: str) -> bool:
    if not text.rstrip().endswith("]"):
        return False
    last = text[text.rfind("\n[") + 1 :]
    return _PYTHON_CALL.fullmatch(last) is not None and bool(read_written_calls(last))


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
    if "```" in text and any(mark in text for mark in _TOOL_FENCE):
        return True
    return _DSPY in text or (("{" in text or text.startswith(">>>")) and _is_plain_template(text))


def _is_plain_template(text: str) -> bool:
    mark = next((mark for mark in _PLAIN_MARKS if mark in text), None)
    return mark is not None and (mark != ">>>" or _RECIPIENT.search(text) is not None)


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
        _OPEN in text or _is_template(text) or _holds_command(text) or _is_python_call(text)
    ):
        return False
    if "{" in text and (
        _may_hold_json_call(text) or _is_plain_template(text) or (":" in text and _is_named_json(text))
    ):
        return False
    if text.startswith(_MARKS):
        return not (may_be_blocks(text) or _is_template(text))
    return True


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
    if _is_template(text) or _is_python_call(text) or (":" in text and _is_named_json(text)):
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
    extra = rest(fields, "action", "action_input")
    return ToolCall(None, action, arguments, extra=extra if "action_input" in fields else NoArguments(extra))


def _unfenced(text: str) -> str:
    return (_FENCE.sub("", text) if "```" in text else text).strip()
