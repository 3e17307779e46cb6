"""The agent node: a model that may call tools, again and again, until it answers or its steps are used up."""

from __future__ import annotations

import asyncio
from typing import Any

from karat.errors import did_you_mean
from karat.graph._reading import Section
from karat.graph._state import CHAT_HISTORY, SygraState
from karat.graph.nodes._base import COMMON, MODEL_KEYS, Building, Node, Record
from karat.graph.nodes._llm import ModelNode, check_output_keys, read_use
from karat.graph.nodes._models import ModelUse, calls_of, message_of
from karat.graph.nodes._prompts import Prompt, read_prompt
from karat.graph.nodes._tools import Tool, read_tools

STEPS = 10


class AgentOutOfSteps(Exception):
    """An agent that went on calling tools and never answered."""


class AgentNode(ModelNode):
    """A bounded loop of model and tools. Every call of either is in the trace of the record."""

    def __init__(
        self,
        name: str,
        section: Section,
        building: Building,
        prompt: Prompt,
        use: ModelUse,
        tools: list[Tool],
    ) -> None:
        super().__init__(name, section, building, prompt)
        self.kind = "agent"
        self.use = use
        self.models = [use]
        self.tools = {tool.name: tool for tool in tools}
        self.parts += [tool.function for tool in tools]
        self.parts += [use.schema] if isinstance(use.schema, type) else []
        self.steps = section.whole("max_steps", STEPS, 1)
        self.injected = _injected(section)

    async def run_async(self, state: SygraState, record: Record) -> None:
        messages = await self.prepare(state)
        described = [tool.described for tool in self.tools.values()]
        before = len(state.get(CHAT_HISTORY, ())) // 2
        for turn in range(before, before + self.steps):
            if turn in self.injected:
                messages.append({"role": "system", "content": self.injected[turn]})
            reply = await self.use.ask(messages, tools=described or None)
            if not reply.tool_calls:
                await self.finish(state, message_of(reply, self.role), reply.parsed, messages)
                return
            messages.append(
                {"role": "assistant", "content": reply.text or None, "tool_calls": calls_of(reply)}
            )
            told = await asyncio.gather(*(self._call(call) for call in reply.tool_calls))
            for call, text in zip(reply.tool_calls, told, strict=True):
                messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})
        raise AgentOutOfSteps(f"no answer within {self.steps} steps: raise max_steps, or look at the trace")

    async def _call(self, call: Any) -> str:
        tool = self.tools.get(call.name)
        if tool is None:
            return f"error: there is no tool {call.name!r}: {did_you_mean(call.name, self.tools)}"
        return await tool.call(call.arguments)


def _injected(section: Section) -> dict[int, str]:
    """What is said to the model after so many turns: those of the conversation so far, and its own steps."""
    out = {}
    given = section.given.get("inject_system_messages")
    entries = given if isinstance(given, list) else [section.mapping("inject_system_messages")]
    for key, text in (pair for entry in entries if isinstance(entry, dict) for pair in entry.items()):
        if not str(key).isdigit() or not isinstance(text, str):
            section.problem("has to be a number of turns with a text", "inject_system_messages", str(key))
        else:
            out[int(key)] = text
    return out


def build_agent(name: str, section: Section, building: Building) -> Node:
    """An agent node from its section."""
    section.known((*COMMON, *MODEL_KEYS, "max_steps", "inject_system_messages"))
    section.without_effect("tool_choice", instead="an agent's model chooses its tools")
    prompt, use = read_prompt(section), read_use(section, building)
    tools = read_tools(section, building)
    node = AgentNode(name, section, building, prompt, use, tools)
    check_output_keys(section, node.output_keys, use.schema)
    return node
