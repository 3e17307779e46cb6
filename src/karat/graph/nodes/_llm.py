"""The llm node: a prompt filled from the state, asked of a model, its answer put into the state."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from karat.graph._functions import Applied
from karat.graph._reading import Section
from karat.graph._state import CHAT_HISTORY, MESSAGES, Message, SygraMessage, SygraState, as_message
from karat.graph.nodes._base import COMMON, MODEL_KEYS, Building, Node, Record, output_keys_of
from karat.graph.nodes._models import ModelUse, message_of, read_model
from karat.graph.nodes._prompts import Prompt, read_prompt
from karat.graph.nodes._tools import Tool, read_tools
from karat.models import OutputSchema, Reply
from karat.serialization import to_json_value

TOOL_CALLS = "tool_calls"
"""Where an llm node with tools puts those that the model wants called."""


class ModelNode(Node):
    """Base of nodes that call a model: the prompt, the functions around it, the conversation.

    A node works on its own copy of the state. Changes by a pre-processor are visible to the prompt and the
    post-processor of the same node only. The node adds to the record what its post-processor returns.
    """

    is_async = True
    strips = True
    """Whether whitespace around an answer is dropped."""

    use: ModelUse
    """The model of a node that asks one."""

    def __init__(
        self,
        name: str,
        section: Section,
        building: Building,
        prompt: Prompt,
        use: ModelUse | None = None,
        tools: Sequence[Tool] = (),
    ) -> None:
        super().__init__(name, output_keys_of(section) or [MESSAGES])
        self.prompt = prompt
        self.variables = [] if "pre_process" in section else list(prompt.variables)  # it may set them
        self.input_key = section.text("input_key", MESSAGES) or MESSAGES
        self.role = section.text("output_role", "assistant") or "assistant"
        self.pre_process = building.function(section, "pre_process", 1)
        self.post_process = building.function(section, "post_process", 2)
        self.parts = [f.part for f in (self.pre_process, self.post_process) if f is not None]
        self.declared = "output_keys" in section or self.post_process is None
        self.history = section.flag("chat_history")
        self.beside = [CHAT_HISTORY] if self.history else []
        self.window: int = building.properties["chat_history_window_size"]
        self.multiturn = building.properties["chat_conversation"] == "multiturn"
        self.tools = {tool.name: tool for tool in tools}
        self.parts += [tool.function for tool in tools]
        if use is not None:
            self.use = use
            self.models = [use]
            self.parts += [use.schema] if isinstance(use.schema, type) else []

    async def prepare(self, state: SygraState) -> tuple[SygraState, list[dict[str, Any]]]:
        """The node's own state, and the messages to be asked: the prompt, the history, the conversation."""
        local = SygraState(state)
        if self.pre_process is not None:
            given = await called(self.pre_process, local)
            if given is not None and given is not local:
                if not isinstance(given, dict):
                    raise TypeError(
                        f"pre_process of {self.name} returned {type(given).__name__}:"
                        " return the state, or a mapping of what it changes"
                    )
                local.update(given)
        messages = self.prompt.fill(local)
        if self.history:
            messages = self._with_history(messages, local)
        conversation = local.get(self.input_key)
        if isinstance(conversation, list):
            messages += [as_message(each) for each in conversation]
        return local, messages

    def _with_history(self, messages: list[dict[str, Any]], state: SygraState) -> list[dict[str, Any]]:
        entries = state.get(CHAT_HISTORY) or []
        if not entries:
            return messages
        first = next((at for at, m in enumerate(messages) if m["role"] != "system"), len(messages))
        recent = entries[-self.window :] if self.window else []
        turns = _turns(recent) if self.multiturn else [self._transcript(entries, recent)]
        return [*messages[:first], *turns, *messages[first:]]

    def _transcript(self, entries: list[Any], recent: list[Any]) -> dict[str, Any]:
        """The conversation as one message: its first message, then each speaker with their text."""
        turns = _turns(entries[:1])
        lines = [f"Organizer: {turns[0]['content']}"] if turns and turns[0]["role"] == "user" else []
        shown = recent if entries[0] in recent else [entries[0], *recent]
        for entry in shown:
            content = entry.get("response") if "request" in entry else entry.get("content")
            lines.append(f"{entry.get('name') or entry.get('role') or ''}: {content}")
        text = "\n".join(
            ["The conversation so far:", *lines, "", f"Give the next turn, that of {self.name}."]
        )
        return {"role": "user", "content": text}

    async def finish(
        self,
        state: SygraState,
        local: SygraState,
        message: Message,
        parsed: Any,
        messages: list[dict[str, Any]],
    ) -> None:
        """Put an answer into the state of the record."""
        if self.post_process is not None:
            who = f"post_process of {self.name}"
            state.merge(await self.processed(message, local), who)
        else:
            apart = [key for key in self.output_keys if key in self.beside]
            keep(state, self.output_keys, message, parsed, self.name, apart)
        if self.history:
            asked = [{"role": m["role"], "content": m["content"]} for m in messages]
            entry = {"name": self.name, "request": asked, "response": message.content}
            state.append(CHAT_HISTORY, [entry])

    async def processed(self, message: Message, local: SygraState) -> Any:
        """What the post-processor returns; where it returns nothing, what it changed in its state."""
        assert self.post_process is not None
        before = dict(local)
        given = await called(self.post_process, SygraMessage(message), local)
        if given is None:
            return {key: value for key, value in local.items() if value is not before.get(key, before)}
        return given


def _turns(entries: list[Any]) -> list[dict[str, Any]]:
    """Entries of a chat history as messages. Turns that data brought begin with one of the user's."""
    out: list[dict[str, Any]] = []
    for entry in entries:
        if not isinstance(entry, Mapping):
            continue
        if "role" in entry:
            if out or entry["role"] == "user":
                out.append(dict(entry))
            continue
        asked = [m for m in entry.get("request") or () if m.get("role") == "user"]
        out += [{"role": "user", "content": m["content"]} for m in asked[-1:]]
        out.append({"role": "assistant", "content": entry.get("response", "")})
    return out


class LlmNode(ModelNode):
    """Asks one model."""

    def __init__(
        self,
        name: str,
        section: Section,
        building: Building,
        prompt: Prompt,
        use: ModelUse,
        tools: list[Tool],
    ) -> None:
        super().__init__(name, section, building, prompt, use, tools)
        self.kind = "llm"
        self._more: dict[str, Any] = {}
        if tools:
            self._more["tools"] = [tool.described for tool in tools]
            self._more["tool_choice"] = section.text("tool_choice", "auto")
            self.beside.append(TOOL_CALLS)

    async def run_async(self, state: SygraState, record: Record) -> None:
        local, messages = await self.prepare(state)
        reply: Reply = await self.use.ask(messages, **self._more)
        if self.tools:
            state[TOOL_CALLS] = local[TOOL_CALLS] = reply.tool_call_messages
        await self.finish(state, local, message_of(reply, self.role, self.strips), reply.parsed, messages)


async def called(function: Applied, *arguments: Any) -> Any:
    """What a function of the task returns, awaited where it has to be."""
    given = function(*arguments)
    return await given if inspect.isawaitable(given) else given


def keep(
    state: SygraState,
    keys: list[str],
    message: Message,
    parsed: object,
    node: str,
    apart: Collection[str] = (),
) -> None:
    """Where no post-processor reads the answer: fields of a structured one by name, else the text.

    Those that stand `apart` are set already.
    """
    keys = [key for key in keys if key not in apart]
    if not keys:
        return
    if keys == [MESSAGES]:
        state.append(MESSAGES, [Message(message, name=node)])
        return
    value = parsed if parsed is not None else message.content
    value = to_json_value(value)
    if isinstance(value, Mapping) and all(key in value for key in keys):
        state.update({key: value[key] for key in keys})
    elif message.tool_calls and not message.content and TOOL_CALLS not in apart:
        state[keys[0]] = message.tool_calls
    else:
        state[keys[0]] = value


def check_output_keys(section: Section, keys: list[str], schema: object) -> None:
    """Fail if several fields are to be filled from one text."""
    if len(keys) < 2 or "post_process" in section:
        return
    written = schema.schema if isinstance(schema, OutputSchema) else schema
    properties = written.get("properties", {}) if isinstance(written, Mapping) else None
    if schema is None:
        section.problem(
            "several output_keys need a structured_output with these fields, or a post_process", "output_keys"
        )
    elif properties is not None:
        for key in keys:
            if key not in properties:
                section.problem(f"the structured_output has no field {key!r}", "output_keys")


def build_llm(name: str, section: Section, building: Building) -> Node:
    """An llm node from its section."""
    section.known((*COMMON, *MODEL_KEYS))
    prompt, use = read_prompt(section), read_use(section, building)
    tools = read_tools(section, building)
    if not tools:
        section.without_effect("tool_choice", instead="the node has no tools")
    node = LlmNode(name, section, building, prompt, use, tools)
    keys = [key for key in node.output_keys if key not in node.beside]
    check_output_keys(section, keys, use.schema)
    return node


def read_use(section: Section, building: Building) -> ModelUse:
    """The model of a node: `model: NAME` or `model: {name, …}`."""
    given = section.given.get("model")
    value = {"name": given} if isinstance(given, str) else given
    return read_model(Section(value, (*section.place, "model"), section.problems), building, section)
