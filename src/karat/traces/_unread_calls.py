"""Refuse a trace that still holds a tool call which no reader has read.

Every value of a trace ends up in a step's calls, in its content or extra fields, or among the unused parts. So what
looks like a call outside the steps' calls was not read. It is accepted only where it repeats a call that was, as many
frameworks write calls twice: by its id, or without one where frameworks repeat calls (`_Known`). Anything else is
refused, because an evaluator would count it as absent.

The document itself is searched too, except for the arguments and the results of the calls that were read: a reader that
leaves out a part of it can lose no call.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from karat.traces._calls import APPROVAL, ARGUMENTS, IDS, NAMES, letters_of, read_call, unread_arguments
from karat.traces._literals import read_arguments, read_loose_arguments
from karat.traces._objects import plain
from karat.traces._text_calls import (
    NOT_AGENTS,
    holds_json_call,
    is_answered,
    is_observation,
    is_parsed,
    is_written_call,
    may_be_blocks,
    may_hold_calls,
    read_text,
    texts_read,
)
from karat.traces.steps import Step, ToolCall, TraceError, Unused, text_of

# Name the format that an unreadable value resembles most, and what to convert it to.

_FORMATS = tuple(
    (name, frozenset(keys.split()), fix)
    for name, keys, fix in (
        (
            "OpenAI messages",
            "role content tool_calls tool_call_id choices message",
            "give [{'role', 'content', 'tool_calls'}]",
        ),
        (
            "a list of calls",
            "name tool function action arguments args kwargs command",
            "give [{'name', 'arguments'}, …]",
        ),
        (
            "OpenAI Responses",
            "call_id arguments output status response object",
            "give the items of response.output",
        ),
        (
            "the OpenAI Agents SDK",
            "raw_item agent new_items last_agent final_output",
            "give result.to_input_list()",
        ),
        (
            "Anthropic messages",
            "type id input tool_use_id stop_reason",
            "give [{'role', 'content': [blocks]}]",
        ),
        ("Gemini", "parts contents candidates functionCall", "give contents with a role and parts"),
        (
            "Bedrock Converse",
            "toolUse toolResult toolUseId stopReason output",
            "give messages with content blocks",
        ),
        ("Pydantic AI", "parts part_kind tool_name kind", "give result.all_messages_json()"),
        (
            "the Vercel AI SDK",
            "toolCallId toolName toolInvocations toolInvocation parts steps",
            "give UIMessages or response.messages",
        ),
        (
            "LangChain",
            "type content additional_kwargs response_metadata tool_call_chunks kwargs lc",
            "give whole messages, not chunks",
        ),
        (
            "LangChain agents",
            "intermediate_steps tool tool_input log observation",
            "give {'input', 'intermediate_steps', 'output'}",
        ),
        (
            "LangGraph",
            "values next config checkpoint created_at thread_id",
            "give state['messages'] or get_state_history()",
        ),
        (
            "LangSmith",
            "run_type inputs outputs child_runs dotted_order trace_id",
            "give runs with 'run_type', 'inputs' and 'outputs'",
        ),
        (
            "Langfuse",
            "observations traceId startTime statusMessage level",
            "give a trace with its observations",
        ),
        (
            "OpenTelemetry spans",
            "resourceSpans attributes span_id spanId events scopeSpans",
            "give spans with their attributes",
        ),
        ("Potato", "speaker text conversation", "give turns with 'speaker' and 'text'"),
        ("AutoGen", "source models_usage type content", "give TaskResult.model_dump()"),
        (
            "smolagents",
            "step_number tool_calls observations model_output task",
            "give agent.memory.get_full_steps()",
        ),
        ("Inspect", "samples eval epoch target messages plan", "give a sample, or a log with one sample"),
        (
            "the Claude Agent SDK",
            "session_id sessionId uuid parentUuid parent_tool_use_id message subtype",
            "give its messages, or a session file",
        ),
        ("ADK", "author invocationId invocation_id actions content events", "give session.events"),
        ("MCP", "jsonrpc method params result id", "give the JSON-RPC messages in order"),
        (
            "tau-bench",
            "traj task_id reward simulations reward_info trial",
            "give one result or one simulation",
        ),
        ("BFCL", "id result ground_truth inference_log", "give one line of a result file"),
        (
            "Haystack, LlamaIndex or Semantic Kernel",
            "blocks block_type items content_type contents tool_kwargs tool_output return_direct meta",
            "give whole messages, with a role",
        ),
        ("Codex", "payload thread_id item rollout", "give a session file, whose lines have a payload"),
        ("Gemini CLI", "projectHash sessionId toolCalls messages", "give the JSON document of a session"),
        (
            "mini-swe-agent or SWE-agent",
            "trajectory_format info extra thought actions action observation",
            "give messages with tool_calls, such as {'name': 'bash', 'arguments': {'command': …}}",
        ),
    )
)


_SHARED = Counter(key for _, keys, _ in _FORMATS for key in keys)
"""In how many formats a key occurs: `uuid` says more about a format than `type`."""


def nearest_format(value: object) -> str:
    """Return "the nearest format is …: give …" for a dict, or for the first dict of a list."""
    if isinstance(value, (list, tuple)):
        value = next((each for each in value if isinstance(each, dict)), None)
    keys = {str(key) for key in value} if isinstance(value, dict) else set()

    def likeness(each: tuple[str, frozenset[str], str]) -> tuple[float, float]:
        shared = each[1] & keys
        return sum(1 / _SHARED[key] for key in shared), len(shared) / len(each[1])

    name, _, fix = max(_FORMATS, key=likeness)
    return f"the nearest known format is {name}: {fix}"


_KEY = re.compile(
    r".*(?:tool|function|mcp)(?:call|use|invocation|request|execution)(?:request|chunk|part|block|event|item)?s?"
)
"""Keys under which formats store calls, in lower case and without punctuation: `tool_calls`, `toolUse`."""
_OTHER_KEYS = frozenset(
    (
        "codeblocks",
        "invocation",
        "invocations",
        "agentaction",
        "agentactions",
        "intermediatesteps",
        "executedtools",
    )
)
_KIND = re.compile(
    r"(?:tool|function|mcp)(?:call|use|invocation|request)|toolaction|agentaction|dynamictool|ontoolstart"
)
"""Kinds of parts that are calls: `tool-call`, `function_call`, `ToolUseBlock`."""
_BUILTIN = re.compile(
    r"(?:web|file|google|tool|x|image)search(?:tool)?call|codeinterpretercall|codeexecutioncall|executablecode|computercall"
    r"|imagegenerationcall|(?:local|function)?shellcall|applypatchcall|urlcontextcall|googlemapscall|browsercall|commandexecution|filechange"
    r"|execcommandbegin|patchapplybegin|websearchbegin"
)
"""Kinds of calls to tools that the provider runs, which name no tool: `web_search_call`."""
_NO_CALL = re.compile(
    r"result|response$|responses$|output|return|execution|summary|definition|approval|choice"
)
"""Kinds of parts that only belong to a call: `tool_call_response`, `function_call_output`."""
_KINDS = frozenset(
    (
        "type",
        "kind",
        "part_kind",
        "block_type",
        "content_type",
        "role",
        "object",
        "event",
        "event_type",
        "message_type",
        "sessionUpdate",
        "_type",
        "@type",
    )
)
_SKIPPED = re.compile(
    r"(?:expected|reference|gold|groundtruth|target|available|reward|evaluation).*"
    r"|tools|functions|tooldefinitions?|toolschemas?|toolchoice|usage|.*usage|usagemetadata|tooluseresult|toolresults?"
    r"|functionresponses?|artifact|jsonschema|inputschema|outputschema|.*config|.*configuration|.*settings"
)
"""Keys whose values are no calls of the agent: definitions of tools, the expected calls, counts."""
_METADATA = re.compile(
    r"(?:.*metadata|meta|model|generationinfo|tags|labels|annotations|environment|env|provenance)"
)
"""Keys whose values describe the trace and not what the agent did."""
_ACTIONS = frozenset(
    (
        *(
            "action",
            "actions",
            "tool",
            "toolname",
            "command",
            "call",
            "calls",
            "function",
            "functionname",
            "invoke",
        ),
        *(
            "arguments",
            "args",
            "params",
            "parameters",
            "kwargs",
            "toolinput",
            "toolargs",
            "toolkwargs",
            "functionargs",
        ),
    )
)
"""Keys that make an item in an unknown format look like a call."""
_NESTED_ACTIONS = re.compile(r"speaker|actions?|commands?|toolname|functionname|.*invocationinput")
"""Keys that do so at any depth of the item."""
_MESSAGE_ACTIONS = (
    "action",
    "actions",
    "command",
    "commands",
    "code_action",
    "shell",
    "tool_name",
    "toolName",
)
"""Fields of an agent's message that say what it did (SWE-agent), if the message lists no calls."""
_GIVEN = ("arguments", "args", "tool_input", "toolInput", "tool_args", "tool_kwargs")
_PARAMETERS = (*ARGUMENTS, "params", "tool_params", "toolParams", "toolArgs", "functionArgs", "function_args")
_TOOL_NAMES = ("tool", "tool_name", "toolName", "function_name", "functionName", "command_name")
_KEYWORDS = frozenset((*NAMES, "kwargs", "id", "type"))
"""The fields of a call with keyword arguments; serialized objects and messages have others beside them."""
_CALL_IDS = ("toolCallId", "toolUseId", "callID", "callId")
_NAMED = frozenset((*NAMES, "function"))
_TOOL_PART = frozenset(("input", "args", "toolCallId"))
"""The fields of a call of the Vercel AI SDK, whose type ends with the name of the tool."""
_NUMBERED = re.compile(r"tool_name_\d+")
"""The names of the tools in a trajectory of DSPy."""
_UNTYPED = frozenset(("id", "name", "input", "cache_control", "caller"))
"""The fields of Anthropic's block of a call without its type."""
_SERIALIZED = ("constructor", "not_implemented", "secret")
"""The types of LangChain's serialized objects, which have a name and keyword arguments."""
_WORDS = frozenset(("auto", "none", "required", "any", ""))
"""Values of `function_call` and `tool_choice` in a request, which name no tool."""


def check_calls(steps: list[Step], unused: list[Unused], document: object = None) -> None:
    """Raise a TraceError where a part that looks like a tool call is not one of the steps' calls and repeats none."""
    calls = [call for step in steps for call in step.tool_calls]
    for position, step in enumerate(steps):
        for at, call in enumerate(step.tool_calls):
            if call.extra and (key := unread_arguments(call, call.extra)) is not None:
                raise TraceError(
                    f"step {position + 1} ({step.role}), tool_calls[{at}]: the arguments of {call.name[:60]!r} under "
                    f"{key!r} were not read: give them under the key of the format"
                )
    known: _Known | None = None
    for value, where, item, scope in _all_places(steps, unused, calls, document):
        if value is None:
            continue
        if isinstance(value, _Written):
            raise TraceError(
                f"{where}: what may be a tool call is written as {value[:60]!r}…, and does not count as absent; "
                "parse it into 'tool_calls'; for an example, list the agent's tools in 'tools' beside the messages; or "
                "register a format"
            )
        known = known or _Known(calls)
        known.repeated_here(calls if scope is None else scope)
        is_document = value is document
        found = _find(
            value, known, where, item, _read_parts(steps, unused) if is_document else {}, is_document
        )
        if found is None and not is_document:
            found = known.too_many(where, whole=scope is None)
        if found is not None:
            place, reason = found
            raise TraceError(
                f"{place}: {reason}, and does not count as absent; {nearest_format(value)}, or register a format"
            )


def _read_parts(steps: list[Step], unused: list[Unused]) -> dict[int, Any]:
    """Return the values that were read and may look like calls, by identity: arguments, results, what was reviewed.

    Readers often copy the outermost dict or list of them, so those directly inside count too.
    """
    values = [call.arguments for step in steps for call in step.tool_calls]
    values += [step.tool_result.content for step in steps if step.tool_result is not None]
    values += [part.value for part in unused if part.reviewed]
    for value in tuple(values):
        if isinstance(value, (dict, list)):
            values.extend(value.values() if isinstance(value, dict) else value)
    return {id(value): value for value in values if isinstance(value, (dict, list, tuple))}


def _all_places(
    steps: list[Step], unused: list[Unused], calls: list[ToolCall], document: Any
) -> Iterator[tuple[Any, str, bool, list[ToolCall] | None]]:
    """Yield the values in which an unread call may hide, with their place, and whether each is an unknown item.

    Last, the calls that may be repeated there without an id: those of the same message; of those before, in a result.
    None stands for all of them together, in metadata beside the messages.
    """
    made = 0
    for position, step in enumerate(steps):
        for value, where, item in _step_places(steps, position):
            yield value, where, item, step.tool_calls if step.tool_result is None else calls[:made]
        made += len(step.tool_calls)
    for part in unused:
        scope = calls if part.repeats else None if part.harmless else []
        for value, where, item in _unused_places(part, calls):
            yield value, where, item, scope
    if isinstance(document, (dict, list, tuple)):
        yield document, "the trace", False, calls


def _step_places(steps: list[Step], position: int) -> Iterator[tuple[Any, str, bool]]:
    step = steps[position]
    content, is_agent = step.content, step.role not in NOT_AGENTS
    if isinstance(content, str) and is_agent:
        if may_be_blocks(content):
            blocks, place = (
                _blocks_in(content),
                f"step {position + 1} ({step.role}), content as JSON text",
            )
            yield blocks, place, False
            yield from _written_calls(blocks, place, step)
        if may_hold_calls(content) and not _is_call_text(step):
            where = f"step {position + 1} ({step.role}), content"
            # A text among messages is not said by the agent: it may be a message that was not decoded.
            is_message = step.extra.get("format") == "text" and len(steps) > 1
            yield from _in_text(
                content, where, step, None if is_message else steps[position + 1 : position + 2]
            )
    for at, call in enumerate(step.tool_calls):
        if call.extra:
            others = _without_kinds(call.extra)
            place = f"step {position + 1} ({step.role}), tool_calls[{at}]"
            yield others, place, False
            if is_agent:
                yield from _written_calls(others, place, step)
            for key in ("function", "custom"):
                if isinstance(plain(call.extra.get(key)), dict):
                    yield {"tool_calls": [{key: call.extra[key]}]}, place, False
    if not step.extra and type(content) in (str, type(None)):
        return
    where = f"step {position + 1} ({step.role})"
    if step.tool_result is None and not isinstance(content, str):
        yield content, f"{where}, content", False
        if is_agent:
            yield from _untyped_blocks(content, f"{where}, content")
            following = steps[position + 1 : position + 2]
            yield from _written_calls(content, f"{where}, content", step, following=following)
            if isinstance(content, list):
                # A text among blocks may be a block that was not decoded.
                texts = [block for block in content if isinstance(block, str)]
                yield from _written_calls(texts, f"{where}, content", step)
    if step.extra:
        # The kind of a step with calls (`mcp_call`) is that of a call that was read.
        yield (_without_kinds(step.extra) if step.tool_calls else step.extra), where, False
        others = {k: v for k, v in step.extra.items() if not _is_metadata(letters_of(k))}
        is_said = is_agent and step.tool_result is None
        yield from _written_calls(others, where, step, read=not is_said)
        if is_said and not step.tool_calls:
            if step.extra.get("type") == "code":  # Open Interpreter runs the content
                yield _Written(text_of(content)), where, False
            inside = plain(step.extra.get("extra"))  # mini-swe-agent has them one level deeper
            for fields in (step.extra, inside if isinstance(inside, dict) else {}):
                for key in _MESSAGE_ACTIONS:
                    # The `actions` of ADK's events are an object of changes to the state.
                    if fields.get(key) and (isinstance(fields[key], (str, list)) or key == "action"):
                        yield _Written(fields[key]), f"{where}.{key}", False


def _unused_places(part: Unused, calls: list[ToolCall]) -> Iterator[tuple[Any, str, bool]]:
    if part.reviewed:
        return
    if isinstance(part.value, (dict, list, tuple)):
        yield part.value, part.where or "the trace", not part.harmless
    # What frameworks write beside the messages may repeat a message, and its calls are then among those of the steps.
    step = Step("assistant", tool_calls=calls) if part.repeats else None
    read = part.harmless and not part.repeats
    yield from _written_calls(part.value, part.where or "the trace", step, read, [] if part.repeats else None)


def _without_kinds(extra: dict[str, Any]) -> dict[str, Any]:
    """Return the fields beside a call that was read, without those that say what kind of a call it is."""
    return {
        key: value
        for key, value in extra.items()
        if key not in _KINDS or not isinstance(value, str) or value.lstrip().startswith(("{", "["))
    }


def _is_call_text(step: Step) -> bool:
    """Return whether the content of a step is the text of its call, as in an action of Potato."""
    return bool(step.tool_calls) and step.content.lstrip().startswith(step.tool_calls[0].name)


def _in_text(
    text: str, where: str, step: Step | None, following: list[Step] | None
) -> Iterator[tuple[Any, str, bool]]:
    """Yield a text that holds a call as an unread one, unless it describes the calls of the step, one by one."""
    calls = list(step.tool_calls) if step is not None else []
    is_said = following is not None and (bool(calls) or not any(map(_is_result, following)))
    # Beside calls, only texts with one of these marks are searched, as in the fast readers.
    if calls and not any(mark in text for mark in ":<[`"):
        return
    if not texts_read.get().may_call(text, is_said=is_said):
        return
    found = read_text("assistant", text, {})
    if found is None and holds_json_call(text):
        if not any(_is_named(call, text) for call in calls):
            yield _Written(text), where, False
        return
    if found is None:
        if following is None or calls:
            return
        answers = [each.text for each in following if each.role in NOT_AGENTS or each.tool_result is not None]
        if len(answers) == len(following) and is_answered(text, answers[0] if answers else None):
            yield _Written(text), where, False
        return
    written = [call for part in found if isinstance(part, Step) for call in part.tool_calls]
    if any(isinstance(part, Unused) for part in found) and not any(_is_named(call, text) for call in calls):
        yield _Written(text), where, False
        return
    is_exact = is_parsed(text)
    for call in written:
        at = next((i for i, made in enumerate(calls) if _describes(call, made, is_exact)), None)
        if at is None:
            yield _Written(text), where, False
            return
        del calls[at]


class _Written(str):
    """A text that holds a call which was not read."""


def _is_result(step: Step) -> bool:
    """Return whether a step gives, or may give, the result of the text before it."""
    return step.tool_result is not None or step.role not in ("user", "human") or is_observation(step.text)


def _is_named(call: ToolCall, text: str) -> bool:
    """Return whether a text has the name of a call, or the code that is its argument."""
    return call.name in text or (isinstance(call.arguments, str) and call.arguments.strip() in text)


def _describes(written: ToolCall, call: ToolCall, is_exact: bool) -> bool:
    """Return whether a text stands for a call. ReAct often has other words than those of the arguments."""
    if is_exact or (isinstance(call.arguments, dict) and call.arguments.keys() == written.arguments.keys()):
        return _says_the_same(written, call)
    return written.name == call.name


def _blocks_in(text: str) -> Any:
    """Return the content blocks that a text is as JSON or as Python; None where it is neither."""
    decoded, raw = read_loose_arguments(text)
    return decoded if raw is None and isinstance(decoded, (dict, list)) else None


def _untyped_blocks(content: Any, where: str) -> Iterator[tuple[Any, str, bool]]:
    """Yield the content blocks that may be calls and that `_find` does not know by their type.

    They have the id and the name of a call, and no type or an unknown one, or a type that ends like that of a call.
    """
    for at, block in enumerate(content if isinstance(content, list) else [content]):
        if isinstance(block, (list, tuple)):
            yield {"tool_calls": [{"content": block}]}, f"{where}[{at}]", False
        if not isinstance(block, dict):
            continue
        # Two of three: the name of a tool, its arguments, and an id in a block without a type.
        signs = isinstance(block.get("name"), str) + any(key in block for key in ARGUMENTS)
        is_untyped = not isinstance(block.get("type"), str)
        signs += block.get("id") is not None and is_untyped
        signs += 2 * (is_untyped and any(isinstance(block.get(key), dict) for key in ARGUMENTS))
        if signs > 1 or str(block.get("type")).endswith("_call") or isinstance(block.get("speaker"), str):
            yield {"tool_calls": [block]}, f"{where}[{at}]", False
        elif not isinstance(block.get("text"), str):
            yield block, f"{where}[{at}]", True


NODES = 1_000_000
"""How many texts, lists and dicts of a value are searched for calls; more is an error."""


def _written_calls(
    value: Any,
    where: str,
    step: Step | None = None,
    read: bool = False,
    following: list[Step] | None = None,
) -> Iterator[tuple[Any, str, bool]]:
    """Yield the calls that are written in the texts of a value, as unread ones.

    `step`: the step that the value belongs to; its texts may describe its calls. `read`: the texts repeat others.
    `following`: for the content of a step, the steps after it.
    """
    stack, count = [value], 0
    seen: set[int] = set()
    while stack:
        value, count = stack.pop(), count + 1
        if not isinstance(value, str):
            if id(value) in seen:
                continue
            seen.add(id(value))
        if count > NODES:
            raise TraceError(f"{where} has more than {NODES:,} parts, too many to search for tool calls")
        if isinstance(value, dict):
            stack.extend(
                part
                for key, part in value.items()
                if isinstance(part, _SEARCHED) and not _is_skipped(letters_of(key))
            )
        elif isinstance(value, (list, tuple)):
            stack.extend(part for part in value if isinstance(part, _SEARCHED))
        elif isinstance(value, str):
            if may_be_blocks(value) and (blocks := _blocks_in(value)) is not None:
                yield blocks, f"{where}, JSON text", False
                stack.append(blocks)
            elif not read and may_hold_calls(value):
                yield from _in_text(value, f"{where}, text", step, following)


_SEARCHED = (str, dict, list, tuple)


class _Known:
    """The calls that were read, and those of them that a place may repeat without an id."""

    def __init__(self, calls: list[ToolCall]) -> None:
        self.by_id: dict[str, list[ToolCall]] = {}
        for call in calls:
            for identity in _ids_of(call):
                self.by_id.setdefault(identity, []).append(call)
        self.repeated_here([])

    def repeated_here(self, calls: list[ToolCall]) -> None:
        """Begin a place that may repeat these calls without an id."""
        self.scope = calls
        self.by_name: dict[str, list[ToolCall]] | None = None
        self.copies: dict[int, ToolCall] = {}
        """The calls that were repeated here, by the identity of the dict that repeats them."""

    def too_many(self, where: str, whole: bool) -> tuple[str, str] | None:
        """Return why the place repeats other calls than it may; `whole`: all of them or none."""
        if not self.copies:
            return None
        left = list(self.scope)
        for copy in self.copies.values():
            at = next((i for i, call in enumerate(left) if call is copy or _says_the_same(copy, call)), None)
            if at is None:
                return where, f"a second tool call of {copy.name[:60]!r} without an id, which may be another"
            del left[at]
        if whole and left:
            copy = next(iter(self.copies.values()))
            return where, f"a tool call of {copy.name[:60]!r} without an id, which may be another"
        return None

    def repeats(self, call: ToolCall, value: object) -> bool:
        """Return whether a call in the document, written as `value`, is one that was read."""
        ids = _ids_of(call)
        for each in ids:
            # An id names one call, unless it was given to different ones.
            named = [other for other in self.by_id.get(each, ()) if other.name == call.name]
            if named and all(_says_the_same(named[0], other) for other in named[1:]):
                # A copy with arguments shows that the call was read without its own.
                return not call.arguments or bool(named[0].arguments) or named[0].raw is not None
            if any(_says_the_same(call, other) for other in named):
                return True
        if self.by_name is None:
            self.by_name = {}
            for other in self.scope:
                self.by_name.setdefault(other.name, []).append(other)
        # A call with an id of its own is not a copy of one with another id, though the arguments are the same.
        for other in self.by_name.get(call.name, ()):
            if not (ids and _ids_of(other)) and _says_the_same(call, other):
                self.copies[id(value)] = other
                return True
        return False


def _ids_of(call: ToolCall) -> set[str]:
    """Return all ids of a call: OpenAI's Responses have two, `id` and `call_id`, and that of a request for approval."""
    beside = (call.extra[key] for key in (*IDS, APPROVAL) if key in call.extra)
    return {each for each in (call.id, *beside) if isinstance(each, str)}


def _says_the_same(call: ToolCall, other: ToolCall) -> bool:
    if call.name != other.name:
        return False
    if call.raw is not None:
        return call.raw in (other.raw, other.arguments) or other.arguments == {"input": call.raw}
    if call.arguments == other.arguments or (call.arguments == {} and other.raw is not None):
        return True
    # NaN is not equal to itself, and each reading of the same text makes another one.
    return "nan" in (written := repr(call.arguments)) and written == repr(other.arguments)


def _find(
    value: Any, known: _Known, where: str, item: bool, seen: dict[int, Any], named: bool
) -> tuple[str, str] | None:
    """Return place and reason of the first call in a value that is not known; what was `seen` is not searched.

    `named`: only of calls with a name. The readers have checked the others, and what else a document calls a call.
    """
    stack = [(value, where, False)]
    while stack:
        value, where, described = stack.pop()
        if not isinstance(value, (dict, list, tuple)) or id(value) in seen:
            continue
        seen[id(value)] = value  # keeps it alive: another one could get its identity
        if not isinstance(value, dict):
            stack.extend(
                (part, f"{where}[{at}]", described) for at, part in enumerate(value) if type(part) is not str
            )
            continue
        value = _unflattened(value)
        reason = _call_like(value, known, described, named) or (_action_like(value, known) if item else None)
        item = False
        if reason is not None:
            return where, reason
        given = _arguments_key(value)
        # What is inside the function of a call that was read is not another call.
        is_read = id(value) in known.copies or (
            isinstance(value.get("id"), str) and value["id"] in known.by_id
        )
        for key, part in value.items():
            if key == given:
                continue
            if isinstance(part, (str, int, float, type(None))):
                if (
                    isinstance(part, str)
                    and not named
                    and part not in _WORDS
                    and _is_call_key(key)
                    and not _repeated(part, known)
                ):
                    return f"{where}.{key}", f"{key!r} is text and not a tool call"
                continue
            letters = letters_of(key)
            if _is_skipped(letters) and not (letters == "tools" and _are_runs(part)):
                continue
            place = f"{where}.{key}"
            if _is_call_key(key):
                unread = _unread_in(part, known, named)
                if unread is not None:
                    return place, unread
            is_described = described or (key == "function" and is_read) or _is_metadata(letters)
            stack.append((part, place, is_described))
    return None


def _are_runs(tools: Any) -> bool:
    """Return whether a list of tools holds what was called, as agno writes it, and not what may be called."""
    return isinstance(tools, list) and any(isinstance(each, dict) and _is_run(each) for each in tools)


def _is_run(tool: dict[Any, Any]) -> bool:
    return "tool_args" in tool or ("arguments" in tool and "description" not in tool)


def _arguments_key(value: dict[Any, Any]) -> str | None:
    """Return the key of the arguments of a dict that is a call: they may look like calls and are not."""
    if not any(isinstance(value[key], str) for key in _NAMED & value.keys()):
        return None
    is_call = any(_is_call_kind(value[key]) for key in _kinds_of(value))
    return next((key for key in (ARGUMENTS if is_call else _GIVEN) if key in value), None)


def _kinds_of(value: dict[Any, Any]) -> list[str]:
    return [key for key in _KINDS & value.keys() if isinstance(value[key], str)]


def _call_like(value: dict[Any, Any], known: _Known, described: bool, named: bool) -> str | None:
    """Return why a dict is an unread tool call; None if it is not a call or was already read.

    Metadata may describe a program, a hook or a container by `{name, args}`. There a dict is a call only if its kind
    or its key marks it as one.
    """
    kind: str | None = next((value[key] for key in _kinds_of(value) if _is_call_kind(value[key])), None)
    if letters_of(value.get("method", "")) == "toolscall":
        return _unread_request(value, known)
    if kind is None and str(value.get("type")).startswith("tool-") and _TOOL_PART & value.keys():
        kind = None if _NO_CALL.search(letters_of(value["type"])) else str(value["type"])
    if kind is None and any(key in value for key in ("input", "args", "rawInput", "tool")):
        kind = next((f"a part with a {key}" for key in _CALL_IDS if key in value), None)
    if kind is None and "text" in value and "action" in str(value.get("speaker")).lower():
        kind = "a turn of Potato"
    if kind is None and value.get("type") == "web_search" and "query" in value:
        kind = "web_search"
    if kind is None and str(value.get("type")).lower() == "tool" and isinstance(value.get("name"), str):
        kind = "a run of a tool" if "input" in value or "output" in value else None
    if kind is None and not described and _is_named_with_parameters(value):
        kind = "a dict with a name and its parameters"
    if kind is None:
        kind = next((key for key in value if isinstance(key, str) and _NUMBERED.fullmatch(key)), None)
    if kind is None and isinstance(value.get("input"), dict) and "id" in value and "name" in value:
        given = {key for key, part in value.items() if part is not None}
        kind = "a block with a name and an input, and no type" if given <= _UNTYPED else None
    function = value.get("function")
    if kind is None and not described and isinstance(function, str) and "arguments" in value:
        kind = "a dict with a function and its arguments"
    if kind is None and not described and isinstance(function, dict) and "arguments" in function:
        # The id of the call is here, beside the function.
        kind = "a dict with a function and its arguments"
    if kind is None and not described and any(isinstance(value.get(key), str) for key in NAMES):
        if value.get("type") in _SERIALIZED:
            return None
        if not any(key in value for key in _GIVEN) and not ("kwargs" in value and value.keys() <= _KEYWORDS):
            return None
        kind = "a dict with a tool and its arguments"
    if kind is None:
        return None
    call, source = _extract(value)
    if (call is None and named) or (call is not None and known.repeats(call, source)):
        return None
    if call is None and any(str(value.get(key)) in known.by_id for key in IDS if value.get(key) is not None):
        return None
    whose = f" of {call.name[:60]!r}" if call is not None else ""
    return f"a tool call{whose} ({kind[:60]}) that is in no known format"


def _is_named_with_parameters(value: dict[Any, Any]) -> bool:
    """Return whether a dict has the name of a tool, or only a name, and an object that may be its arguments."""
    given = next((key for key in _PARAMETERS if isinstance(value.get(key), dict)), None)
    if given is None:
        return False
    return any(isinstance(value.get(key), str) for key in _TOOL_NAMES) or (
        isinstance(value.get("name"), str) and value.keys() <= {"name", given, *IDS}
    )


def _unread_request(value: dict[Any, Any], known: _Known) -> str | None:
    """Return why a request of MCP is an unread call; its id is beside the name and the arguments."""
    params = plain(value.get("params"))
    call = read_call({**params, "id": value.get("id")}) if isinstance(params, dict) else None
    if call is not None and known.repeats(call, params):
        return None
    named = f" of {call.name[:60]!r}" if call is not None else ""
    return f"a tool call{named} (the request {str(value['method'])[:60]!r}) that is in no known format"


def _unread_in(part: Any, known: _Known, named: bool = False) -> str | None:
    """Return why the value of a call-like key is not a list of known calls; `named`: only of calls with a name."""
    part = plain(part)
    if part == [] or part == {} or part == ():
        return None
    for each in part if isinstance(part, (list, tuple)) else [part]:
        each = plain(each)
        if each is None or each in ("", [], {}):
            continue
        call, source = _extract(each) if isinstance(each, dict) else (None, each)
        if call is None and named:
            continue
        if (
            call is None
            and isinstance(each, dict)
            and any(str(each[k]) in known.by_id for k in IDS if each.get(k))
        ):
            continue
        if call is None or not known.repeats(call, source):
            whose = (
                f"of {call.name[:60]!r} that is in no known format" if call is not None else "without a name"
            )
            return f"a tool call {whose}"
    return None


def _extract(value: dict[str, Any]) -> tuple[ToolCall | None, Any]:
    """Read a call from a dict in any known format, and return the dict that names it, which may be one level deeper."""
    call = read_call(value)
    if call is not None:
        return call, value
    for key, part in value.items():
        part = plain(part)
        if isinstance(part, dict) and (_is_call_key(key) or key in ("action", "call", "data", "function")):
            call = read_call(part)
            if call is not None:
                return call, part
    return None, value


def _repeated(text: str, known: _Known) -> bool:
    """Return whether a text under a call-like key is JSON of calls that are known."""
    decoded, raw = read_arguments(text)
    return raw is None and isinstance(decoded, (dict, list)) and _unread_in(decoded, known) is None


def _action_like(value: dict[Any, Any], known: _Known) -> str | None:
    """Return why an item in an unknown format may be a call; None where it has the id of a known one."""
    if any(str(value[key]) in known.by_id for key in IDS if value.get(key) is not None):
        return None
    key = next(
        (key for key in value if letters_of(key) in _ACTIONS and value[key] not in (None, "", [])), None
    )
    if key is None and "input" in value and ("name" in value or "output" in value):
        key = "input"
    key = key or next((each for each in ("speaker", "run_type") if each in value), None)
    stack: list[Any] = [value] if key is None else []
    seen: set[int] = set()
    while stack and key is None:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            key = next(
                (each for each in part if part[each] and _NESTED_ACTIONS.fullmatch(letters_of(each))), None
            ) or next((each for each in part if is_written_call(part[each])), None)
            stack.extend(
                inner
                for each, inner in part.items()
                if isinstance(inner, _NESTED) and not _is_described(letters_of(each))
            )
        else:
            key = next((each for each in part if is_written_call(each)), None)
            stack.extend(inner for inner in part if isinstance(inner, _NESTED))
    return None if key is None else f"an item in an unknown format with {str(key)[:40]!r}"


_NESTED = (dict, list, tuple)


def _is_described(letters: str) -> bool:
    return _is_skipped(letters) or _is_metadata(letters)


@lru_cache(maxsize=4096)
def _is_skipped(letters: str) -> bool:
    return _SKIPPED.fullmatch(letters) is not None


@lru_cache(maxsize=4096)
def _is_metadata(letters: str) -> bool:
    return _METADATA.fullmatch(letters) is not None


@lru_cache(maxsize=4096)
def _is_call_key(key: Any) -> bool:
    letters = letters_of(key)
    if letters in _OTHER_KEYS:
        return True
    return _KEY.fullmatch(letters) is not None and not _is_skipped(letters)


@lru_cache(maxsize=4096)
def _is_call_kind(kind: str) -> bool:
    letters = letters_of(kind[:80])
    if _BUILTIN.fullmatch(letters) is not None:
        return True
    return _KIND.search(letters) is not None and _NO_CALL.search(letters) is None


def _unflattened(value: dict[Any, Any]) -> dict[Any, Any]:
    """Return flat attributes (`ai.toolCall.name`) as nested dicts."""
    flat = [key for key in value if isinstance(key, str) and "." in key]
    if not flat:
        return value
    nested: dict[Any, Any] = {key: part for key, part in value.items() if key not in flat}
    for key in flat:
        place = nested
        *path, last = key.split(".")
        for part in path:
            inner = place.get(part)
            if not isinstance(inner, _Branch):
                inner = place[part] = _Branch() if inner is None else _Branch({"": inner})
            place = inner
        place[last] = value[key]
    return {key: _listed(part) for key, part in nested.items()}


class _Branch(dict[str, Any]):
    """A dict made of flat attributes, unlike those that are their values."""


def _listed(tree: Any) -> Any:
    if not isinstance(tree, _Branch):
        return tree
    if tree and all(key.isdecimal() and len(key) < 10 for key in tree):
        return [_listed(tree[key]) for key in sorted(tree, key=int)]
    return {key: _listed(value) for key, value in tree.items()}
