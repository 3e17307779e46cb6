"""The agent node: a model that may call tools, again and again, until it answers or its steps are used up."""

from __future__ import annotations

import asyncio
from typing import Any

from karat.errors import did_you_mean
from karat.graph._reading import Section
from karat.graph._state import CHAT_HISTORY, SygraState
from karat.graph.nodes._base import COMMON, MODEL_KEYS, Building, Node, Record
from karat.graph.nodes._llm import ModelNode, check_output_keys, read_use
from karat.graph.nodes._models import ModelUse, message_of
from karat.graph.nodes._prompts import Prompt, read_prompt
from karat.graph.nodes._tools import Tool, read_tools

STEPS = 10
AGENT_PROMPT, AGENT_NAME = "_agent_prompt", "_agent_name"
"""Variables with which a pre-processor gives an agent its instructions and its name."""


class AgentOutOfSteps(Exception):
    """An agent that went on calling tools and never answered."""


class AgentNode(ModelNode):
    """A bounded loop of model and tools. Every call of either is in the trace of the record."""

    strips = False

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
        self.kind = "agent"
        self.steps = section.whole("max_steps", STEPS, 1)
        self.injected = _injected(section)

    async def run_async(self, state: SygraState, record: Record) -> None:
        local, asked = await self.prepare(state)
        described = [tool.described for tool in self.tools.values()]
        before = len(state.get(CHAT_HISTORY) or ()) // 2
        messages = self._instructed(asked, local, before)
        for turn in range(before, before + self.steps):
            if turn > before and turn in self.injected:
                messages.append({"role": "system", "content": self.injected[turn]})
            reply = await self.use.ask(messages, tools=described or None)
            if not reply.tool_calls:
                message = message_of(reply, self.role, self.strips)
                if local.get(AGENT_NAME):
                    message["name"] = str(local[AGENT_NAME])
                await self.finish(state, local, message, reply.parsed, asked)
                return
            messages.append({**reply.message, "content": reply.text or None})
            replies = await asyncio.gather(*(self._call(call) for call in reply.tool_calls))
            for call, text in zip(reply.tool_calls, replies, strict=True):
                messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})
        raise AgentOutOfSteps(f"no answer within {self.steps} steps: raise max_steps, or look at the trace")

    def _instructed(self, asked: list[dict[str, Any]], state: SygraState, turn: int) -> list[dict[str, Any]]:
        """The messages with the agent's instructions first: its prompt's, or `_agent_prompt` of the state.

        The messages of `inject_system_messages` for the turn are added to them.
        """
        own = next((at for at, message in enumerate(asked) if message["role"] == "system"), None)
        text = state.get(AGENT_PROMPT) if own is None else asked[own]["content"]
        parts = [text if isinstance(text, str) else str(text)] if text else []
        parts += [self.injected[turn]] if turn in self.injected else []
        rest = [message for at, message in enumerate(asked) if at != own]
        return [{"role": "system", "content": "\n".join(parts)}, *rest] if parts else rest

    async def _call(self, call: Any) -> str:
        tool = self.tools.get(call.name)
        if tool is None:
            return f"error: there is no tool {call.name!r}: {did_you_mean(call.name, self.tools)}"
        return await tool.call(call.arguments)


def _injected(section: Section) -> dict[int, str]:
    """Messages to add after a number of turns, counting the conversation so far and the agent's own steps."""
    out = {}
    given = section.given.get("inject_system_messages")
    entries = given if isinstance(given, list) else [section.mapping("inject_system_messages")]
    for key, text in (pair for entry in entries if isinstance(entry, dict) for pair in entry.items()):
        if not str(key).isdigit() or not isinstance(text, str):
            section.problem("must be a number of turns with a text", "inject_system_messages", str(key))
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
