"""The model of a node: which one, with what parameters, and in what form it answers."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from karat.errors import KaratError
from karat.graph._reading import Section
from karat.graph._schemas import read_structured_output
from karat.graph._state import Message
from karat.graph.nodes._base import Building
from karat.models import Reply, annotate, check_extra
from karat.serialization import to_json_value

OWN = ("temperature", "max_tokens", "seed", "stop", "n", "tool_choice", "effort", "logprobs", "deterministic")
ELSEWHERE = ("output_type", "input_type", "provider", "model_type", "backend")
"""Keys of SyGra that say what a model is; karat's models have that in their name or in models.yaml."""
OTHERS = (
    "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "reasoning_effort", "response_format",
)  # fmt: skip


class ModelUse:
    """A model as one node uses it."""

    def __init__(self, model: Any, parameters: Mapping[str, Any], schema: Any) -> None:
        self.model = model
        self.schema = schema
        self.parameters = {key: value for key, value in parameters.items() if key in OWN}
        extra = {key: value for key, value in parameters.items() if key not in OWN}
        if extra:
            self.parameters["extra"] = check_extra(extra)
        if model is not None:
            model.check_options(self.parameters)  # before the first record

    async def ask(self, messages: list[dict[str, Any]], **more: Any) -> Reply:
        """The model's reply."""
        reply: Reply = await self.model.generate(messages, schema=self.schema, **{**self.parameters, **more})
        if reply.parsed is not None and (coerced := _coerced(reply)):
            annotate(coerced=coerced)
        return reply

    def identity(self) -> Any:
        """What belongs into the fingerprint of a run."""
        return self.model.identity()


def read_model(section: Section, building: Building, node: Section) -> ModelUse:
    """The model of a section `{name, parameters, structured_output}`; the structured output may be beside it.

    A model that cannot be built is reported and left out, so that other errors of the node are found too.
    """
    from karat import models

    section.known(("name", "parameters", "structured_output", *OWN, *OTHERS, *ELSEWHERE))
    for key in ("output_type", "input_type"):
        if (kind := section.text(key)) not in (None, "text"):
            section.problem(f"not supported: {kind} {key.removesuffix('_type')}", key)
    section.without_effect("provider", "model_type", "backend", instead="its name says where a model is")
    given = {key: section.given[key] for key in (*OWN, *OTHERS) if section.given.get(key) is not None}
    parameters = {**given, **section.mapping("parameters")}
    for key in parameters:
        if not isinstance(key, str):
            section.problem("must be a word", "parameters", str(key))
        elif mistyped := _mistyped(key):
            section.problem(f"unknown key, did you mean {mistyped!r}", "parameters", key)
    outside = section if "structured_output" in section else node
    schema = read_structured_output(outside.section("structured_output"), building.place)
    name = building.model or section.text("name") or building.unnamed
    model = None
    try:
        model = models.get(name)
        return ModelUse(model, parameters, schema)
    except KaratError as error:
        section.problems.caught((*section.place, "name" if model is None else "parameters"), error)
        return ModelUse(None, {}, schema)


COERCED = "coerced"
"""In the metadata of a model call: the fields of its answer that were text and were read as another type."""


def _coerced(reply: Reply) -> dict[str, str]:
    """The fields that the model wrote as text and the schema made a number or a boolean of."""
    from karat.graph.sygra._functions import extract_and_load_json  # which imports the nodes

    parsed = to_json_value(reply.parsed)
    written = extract_and_load_json(reply.text)
    return dict(_differing(written, parsed, ""))


def _differing(written: Any, parsed: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(written, dict) and isinstance(parsed, dict):
        for key in written.keys() & parsed.keys():
            yield from _differing(written[key], parsed[key], f"{path}.{key}" if path else str(key))
    elif isinstance(written, list) and isinstance(parsed, list):
        for at, (one, other) in enumerate(zip(written, parsed, strict=False)):
            yield from _differing(one, other, f"{path}[{at}]")
    elif isinstance(written, str) and isinstance(parsed, (bool, int, float)):
        yield path, type(parsed).__name__


def _mistyped(key: str) -> str | None:
    """The parameter a key is one letter away from; others go to the provider as they are, which may know them."""
    known = (*OWN, *OTHERS)
    close = [] if key in known else difflib.get_close_matches(key, known, n=1, cutoff=0.9)
    return close[0] if close else None


def message_of(reply: Reply, role: str = "assistant", strips: bool = True) -> Message:
    """A reply as the message that post-processors get; whitespace around its text is removed by default."""
    calls = [{"id": call.id, "name": call.name, "args": call.arguments} for call in reply.tool_calls]
    return Message(reply.text.strip() if strips else reply.text, role, calls)
