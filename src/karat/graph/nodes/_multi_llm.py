"""The multi_llm node: one prompt asked of several models at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from karat.graph._reading import Section
from karat.graph._state import MESSAGES, Message, SygraState
from karat.graph.nodes._base import COMMON, MODEL_KEYS, Building, Node, Record, output_keys_of
from karat.graph.nodes._llm import ModelNode, called
from karat.graph.nodes._models import ModelUse, message_of, read_model
from karat.graph.nodes._prompts import Prompt, read_prompt
from karat.models import Reply


class MultiLlmNode(ModelNode):
    """Asks its models in parallel; the answers go into the state as a list with one mapping, by the models' labels.

    An answer is the text of the model, also where it was asked for structured output. `multi_llm_post_process` gets a
    mapping of labels to what each model would add to the state alone, and the state.
    """

    def __init__(
        self, name: str, section: Section, building: Building, prompt: Prompt, uses: dict[str, ModelUse]
    ) -> None:
        super().__init__(name, section, building, prompt)
        self.kind = "multi_llm"
        self.output_keys = output_keys_of(section) or ["model_responses"]
        self.uses = uses
        self.models = list(uses.values())
        self.parts += [use.schema for use in uses.values() if isinstance(use.schema, type)]
        self.gather = building.function(section, "multi_llm_post_process", 2)
        if self.gather is not None:
            self.parts.append(self.gather.part)
            self.declared = "output_keys" in section

    async def run_async(self, state: SygraState, record: Record) -> None:
        local, messages = await self.prepare(state)
        replies = await self._ask_all(messages)
        key = self.output_keys[0]
        updates = {label: await self._read(reply, local) for label, reply in replies.items()}
        if self.gather is not None:
            given = await called(self.gather, updates, local)
            state.merge(given, f"multi_llm_post_process of {self.name}")
            return
        answers = {label: _at(update, key) for label, update in updates.items()}
        if len(self.output_keys) == 1:
            state.merge({key: [answers]}, self.name)
        else:
            state.update(zip(self.output_keys, answers.values(), strict=False))

    async def _ask_all(self, messages: list[dict[str, Any]]) -> dict[str, Reply]:
        """All replies; when one of the models fails the others are not waited for."""
        asked = [asyncio.ensure_future(use.ask(messages)) for use in self.uses.values()]
        try:
            return dict(zip(self.uses, await asyncio.gather(*asked), strict=True))
        except BaseException:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            raise

    async def _read(self, reply: Reply, local: SygraState) -> Any:
        """What one model adds: what the post-processor returns, else its answer under the node's output key."""
        message = message_of(reply, self.role, self.strips)
        if self.post_process is not None:
            return await self.processed(message, SygraState(local))
        key = self.output_keys[0]
        if key == MESSAGES:
            return {key: [Message(message, name=self.name)]}
        return {key: message.content}


def _at(update: Any, key: str) -> Any:
    return update[key] if isinstance(update, Mapping) and key in update else update


def build_multi_llm(name: str, section: Section, building: Building) -> Node:
    """A multi_llm node from its section."""
    section.known((*COMMON, *MODEL_KEYS, "models", "multi_llm_post_process"))
    section.without_effect("model", instead="models names them")
    section.without_effect("tools", "tool_choice", instead="an llm or agent node uses tools")
    prompt = read_prompt(section)
    models, uses = section.section("models"), {}
    if not models.given:
        section.problem("needs models: a mapping of labels to {name, parameters}")
    for label, given in models.given.items():
        value = {"name": given} if isinstance(given, str) else given
        inner = Section(value, (*models.place, label), section.problems)
        uses[str(label)] = read_model(inner, building, section)
    return MultiLlmNode(name, section, building, prompt, uses)
