"""The multi_llm node: one prompt asked of several models at once."""

from __future__ import annotations

import asyncio
from typing import Any

from karat.graph._reading import Section
from karat.graph._state import SygraMessage, SygraState
from karat.graph.nodes._base import COMMON, MODEL_KEYS, Building, Node, Record, merge, output_keys_of
from karat.graph.nodes._llm import ModelNode, called
from karat.graph.nodes._models import ModelUse, message_of, read_model
from karat.graph.nodes._prompts import Prompt, read_prompt
from karat.models._messages import Reply
from karat.serialization import to_json_value


class MultiLlmNode(ModelNode):
    """Asks its models in parallel; the answers go into the state as one mapping, by the models' labels."""

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
        messages = await self.prepare(state)
        replies = await self._ask_all(messages)
        answers = {label: await self._read(reply, state) for label, reply in replies.items()}
        if self.gather is not None:
            merge(state, await called(self.gather, answers, state), f"multi_llm_post_process of {self.name}")
        elif len(self.output_keys) == 1:
            state[self.output_keys[0]] = answers
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

    async def _read(self, reply: Reply, state: SygraState) -> Any:
        message = message_of(reply, self.role)
        if self.post_process is not None:
            return await called(self.post_process, SygraMessage(message), SygraState(state))
        parsed = to_json_value(reply.parsed)
        return parsed if parsed is not None else message.content


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
