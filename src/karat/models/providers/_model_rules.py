"""Rules of specific models: the parameters they refuse, their effort levels, how to request them.

Model names change every few months. A model that is not listed gets no special treatment: its provider reports a
refused parameter with a 400, which karat turns into one failure of the run. Each row names its source and date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint
    from karat.models._messages import Request

SAMPLING = ("temperature", "top_p", "top_k")
DEFAULT_TEMPERATURE = 1
"""Models that refuse a temperature accept this one: Anthropic's and OpenAI's documents speak of other values only
(platform.claude.com/docs, "sampling parameters removed", by way of models.dev pull request 1468, 2026-11-18)."""

_REASONING_REFUSES = (
    *("temperature", "top_p", "logprobs", "top_logprobs"),
    *("presence_penalty", "frequency_penalty", "logit_bias"),
)


class ModelRules(msgspec.Struct, frozen=True, kw_only=True):
    """One family of models."""

    pattern: str
    """The whole name, without a provider's prefix and with or without a date."""
    refuses: tuple[str, ...] = ()
    """Parameters that the API rejects with 400 for any value."""
    refuses_while_reasoning: tuple[str, ...] = ()
    """Parameters that are a 400 unless the effort is none."""
    default_effort: str = ""
    efforts: tuple[str, ...] | None = ()
    """The efforts it accepts; empty: none; None: unknown, so any effort is sent."""
    reasons: bool = False
    prefill: bool = True
    """Whether a conversation may end with the assistant's turn."""
    forced_tool: bool = True
    """Whether a tool call can be forced."""
    json_format: bool = False
    """Anthropic: whether `output_config.format` takes a JSON Schema."""
    thinking_off: str = ""
    """Anthropic: the `thinking.type` that stands for the effort none."""
    hides_thinking: bool = False
    """Anthropic: whether the text of thinking is left out unless `thinking.display` asks for a summary."""
    max_tokens: int = 4096
    """Anthropic: the limit that is sent where the request has none, since the format demands one."""
    source: str


_CLAUDE_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_MIGRATION = "https://platform.claude.com/docs/en/about-claude/models/migration-guide, 2026-11-16"

RULES = (
    ModelRules(
        pattern=r"claude-opus-5-[5-9]",
        refuses=SAMPLING,
        efforts=_CLAUDE_EFFORTS,  # thinking cannot be turned off
        reasons=True,
        prefill=False,
        forced_tool=False,
        json_format=True,
        hides_thinking=True,
        max_tokens=32000,
        source="https://platform.claude.com/docs/en/models/opus-5-5/migration-guide, 2026-11-16",
    ),
    ModelRules(
        pattern=r"claude-(?:sonnet|haiku)-5-[5-9]",
        refuses=SAMPLING,
        efforts=("none", *_CLAUDE_EFFORTS),
        reasons=True,
        prefill=False,
        forced_tool=False,
        json_format=True,
        hides_thinking=True,
        thinking_off="between_tools",
        max_tokens=32000,
        source="https://platform.claude.com/docs/en/models/sonnet-5-5/migration-guide, 2026-11-16",
    ),
    ModelRules(
        pattern=r"claude-(?:fable|mythos)-5-[1-9]",
        refuses=SAMPLING,
        efforts=_CLAUDE_EFFORTS,
        reasons=True,
        prefill=False,
        forced_tool=False,
        json_format=True,
        hides_thinking=True,
        max_tokens=32000,
        source="https://platform.claude.com/docs/en/models/fable-5-1/migration-guide;"
        " github.com/anthropics/claude-cookbooks/issues/854, 2026-09-02",
    ),
    ModelRules(
        pattern=r"claude-(?:fable|mythos)-[\w-]+",
        refuses=SAMPLING,
        efforts=_CLAUDE_EFFORTS,
        reasons=True,
        prefill=False,
        json_format=True,
        hides_thinking=True,
        max_tokens=32000,
        source=_MIGRATION,
    ),
    ModelRules(
        pattern=r"claude-(?:opus-5|sonnet-5|haiku-5)",
        refuses=SAMPLING,
        efforts=("none", *_CLAUDE_EFFORTS),
        reasons=True,
        prefill=False,
        json_format=True,
        hides_thinking=True,
        thinking_off="disabled",
        max_tokens=32000,
        source="https://platform.claude.com/docs/en/models/sonnet-5/migration-guide, 2026-11-16",
    ),
    ModelRules(
        pattern=r"claude-opus-4-[7-9]",
        refuses=SAMPLING,
        efforts=("none", *_CLAUDE_EFFORTS),
        prefill=False,
        json_format=True,
        hides_thinking=True,
        thinking_off="disabled",
        max_tokens=16000,
        source=f"{_MIGRATION}; github.com/danielmiessler/Fabric/issues/2109, 2026-05-01",
    ),
    ModelRules(
        pattern=r"claude-(?:opus|sonnet)-4-6",
        efforts=("none", "low", "medium", "high", "max"),
        prefill=False,
        json_format=True,
        thinking_off="disabled",
        max_tokens=16000,
        source=f"{_MIGRATION}; github.com/agno-agi/agno/issues/7015",
    ),
    ModelRules(
        pattern=r"claude-opus-4-5", efforts=("low", "medium", "high"), json_format=True, source=_MIGRATION
    ),
    ModelRules(pattern=r"claude-(?:sonnet|haiku)-4-5|claude-opus-4-1", json_format=True, source=_MIGRATION),
    ModelRules(pattern=r"claude-[\w-]+", source=_MIGRATION),
    ModelRules(
        pattern=r"gpt-6-astra|gpt-6\.1-sol",
        refuses=_REASONING_REFUSES,
        efforts=("low", "medium", "high", "xhigh", "max"),
        default_effort="medium",
        reasons=True,
        source="https://developers.openai.com/api/docs/guides/deployment-checklist, 2026-11-16",
    ),
    ModelRules(
        pattern=r"gpt-6[\w.-]*|gpt-5\.6[\w-]*",
        refuses_while_reasoning=_REASONING_REFUSES,
        efforts=("none", "low", "medium", "high", "xhigh", "max"),
        default_effort="medium",
        reasons=True,
        source="https://developers.openai.com/api/docs/guides/latest-model, 2026-11-16;"
        " github.com/BerriAI/litellm/pull/34569, 2026-07-24",
    ),
    ModelRules(
        pattern=r"gpt-5\.5",
        refuses_while_reasoning=_REASONING_REFUSES,
        efforts=("none", "low", "medium", "high", "xhigh"),
        default_effort="medium",
        reasons=True,
        source="github.com/jeffdafoe/llm-memory-api/pull/178, 2026-04-29",
    ),
    ModelRules(
        pattern=r"gpt-5\.[24](?:-mini|-nano)?",
        refuses_while_reasoning=_REASONING_REFUSES,
        efforts=("none", "low", "medium", "high", "xhigh"),
        default_effort="none",
        reasons=True,
        source="https://developers.openai.com/api/docs/guides/latest-model#gpt-54-parameter-compatibility, 2026-11-16",
    ),
    ModelRules(
        pattern=r"gpt-5\.1(?:-mini)?",
        refuses_while_reasoning=_REASONING_REFUSES,
        efforts=("none", "low", "medium", "high"),
        default_effort="none",
        reasons=True,
        source="github.com/openai/openai-agents-python/issues/2089, 2025-11-17; github.com/vercel/ai/issues/10932",
    ),
    ModelRules(
        pattern=r"gpt-5(?:-mini|-nano)?",
        refuses=_REASONING_REFUSES,
        efforts=("minimal", "low", "medium", "high"),
        default_effort="medium",
        reasons=True,
        source="https://developers.openai.com/api/docs/guides/reasoning, 2026-11-16",
    ),
    ModelRules(
        pattern=r"gpt-5[\w.]*-(?:pro|codex)[\w-]*",
        refuses=_REASONING_REFUSES,
        efforts=None,
        reasons=True,
        source="https://developers.openai.com/api/docs/models, 2026-11-16",
    ),
    ModelRules(
        pattern=r"o[134](?:-mini|-pro)?",
        refuses=_REASONING_REFUSES,
        efforts=("low", "medium", "high"),
        default_effort="medium",
        reasons=True,
        source="https://developers.openai.com/api/docs/guides/reasoning, 2026-11-16",
    ),
    ModelRules(pattern=r"grok-4\.20[\w-]*", source="github.com/vercel/ai (@ai-sdk/xai 4.0.8), 2026-07-07"),
    ModelRules(
        pattern=r"grok-4\.3",
        efforts=("none", "low", "medium", "high"),
        source="https://docs.x.ai/developers/model-capabilities/text/reasoning#effort-levels, by @ai-sdk/xai 3.0.97,"
        " read 2026-11-18",
    ),
    ModelRules(
        pattern=r"grok-4\.5",
        efforts=("low", "medium", "high"),
        default_effort="high",
        source="github.com/anomalyco/opencode/issues/39448, read 2026-11-18",
    ),
    ModelRules(
        pattern=r"grok-4\.6",
        efforts=("low", "medium", "high", "xhigh"),
        source="github.com/chenyme/grok2api/pull/901, 2026-08-13",
    ),
    ModelRules(
        pattern=r"gpt-(?:3\.5|4)[\w.-]*|gpt-5[\w.]*-chat[\w-]*",
        source="https://developers.openai.com/api/docs/models; community.openai.com/t/1110750 (a table of what each"
        " model takes), read 2026-11-18",
    ),
)

_DATED = r"(?:-\d{4}-\d{2}-\d{2}|-\d{8}|-latest)?(?:-v\d+(?::\d+)?)?(?:@\d{8}|@latest)?"
_NAME = re.compile(r"(?:^|[/.:])(claude-[\w@:.-]+|gpt-[\w.-]+|grok-[\w.-]+|o\d[\w-]*)$")


@lru_cache(maxsize=256)
def rules_for(model: str) -> ModelRules | None:
    """Return the rules of a model by its name without prefix (`anthropic/`, `us.anthropic.`); None if unlisted."""
    found = _NAME.search(model)
    if found is None:
        return None
    for rules in RULES:
        if re.fullmatch(f"(?:{rules.pattern}){_DATED}", found[1]):
            return rules
    return None


def refusal(endpoint: Endpoint, parameters: Mapping[str, Any]) -> str | None:
    """Return a sentence with the parameter that the model refuses and the fix; None if no rule applies.

    `parameters` are those of a call by name. No rule applies to a model behind a custom address, or behind a router,
    which drops unsupported parameters.
    """
    if not endpoint.official or endpoint.quirks.ignores_parameters:
        return None
    effort = parameters.get("effort")
    given = [
        name
        for name in (*parameters, *(parameters.get("extra") or ()))
        if parameters.get(name, 0) is not None
        and not (name == "temperature" and parameters.get(name) == DEFAULT_TEMPERATURE)
    ]
    ignored = [name for name in given if name in endpoint.quirks.ignored_while_thinking]
    if ignored and effort != "none" and not endpoint.model.endswith("-chat"):
        return f"{endpoint.spec} ignores {ignored[0]} while it thinks: remove it, or set effort: none"
    rules = rules_for(endpoint.model)
    if rules is None:
        return None
    if effort is not None and rules.efforts is not None and effort not in rules.efforts:
        has = f"it takes {', '.join(rules.efforts)}" if rules.efforts else "it has no effort to set"
        return f"{endpoint.spec} does not accept effort {effort!r}: {has}"
    for name in given:
        if name in rules.refuses:
            return f"{endpoint.spec} does not accept {name}: remove it"
        if name in rules.refuses_while_reasoning and (effort or rules.default_effort) != "none":
            return f"{endpoint.spec} accepts {name} only with effort: none: remove it, or set the effort"
    if parameters.get("tool_choice") not in (None, "auto", "none") and not rules.forced_tool:
        return f"{endpoint.spec} cannot be forced to call a tool: set tool_choice to auto"
    return None


def prefill_refusal(endpoint: Endpoint, request: Request) -> str | None:
    """Why a conversation that ends with the assistant's turn is refused, or None."""
    if request.messages[-1].get("role") != "assistant" or not endpoint.official:
        return None
    rules = rules_for(endpoint.model)
    if rules is None or rules.prefill:
        return None
    return (
        f"{endpoint.spec} does not accept a conversation that ends with an assistant message:"
        " let it end with the user's, and give a schema for the form of the reply"
    )
