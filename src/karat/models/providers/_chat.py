"""The chat completions format of OpenAI and compatible servers (vLLM, Ollama, llama.cpp, gateways)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from karat.models._messages import Choice, Request, ToolCall
from karat.models._structured import is_object, read_json, unwrapped_value, wrapped_schema
from karat.models.providers import (
    MOST_CHOICES,
    Answer,
    Tokens,
    WireFormat,
    as_name,
    details,
    openai_tokens,
    read_tool_calls,
    served_model,
    served_tier,
    with_fees,
)

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint

# These take `max_completion_tokens` and refuse the older name.
_NEW_LIMIT = re.compile(r"(?:[\w.-]+/)?(?:o\d|gpt-[5-9])")


_DROPPED = {
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "logprobs", "reasoning"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
}
"""Parameters that change answers, and that a router may drop."""


_OF_THE_WHOLE = ("id", "model", "usage", "service_tier")
"""Fields of the events of a stream that are about the answer as a whole."""

_PAID = {"server_tool_use", "num_sources_used", "num_server_side_tools_used"}
"""Counts of the tools of OpenRouter and xAI in a usage object (docs.x.ai/developers/pricing, read 2026-11-17).

Groq lists its own as `executed_tools` of a message. A search of OpenAI is not counted, and shows in `annotations`.
"""


_USUAL_REASONS = frozenset(("stop", "length", "tool_calls", "content_filter", ""))
_REASONS = {
    "content_filter": "content_filter",  # Gemini: `content_filter: RECITATION`
    **dict.fromkeys(("safety", "recitation", "blocklist", "prohibited_content", "spii"), "content_filter"),
    "max_tokens": "length",
    "model_length": "model_context_window_exceeded",  # Mistral
    "insufficient_system_resource": "error",  # DeepSeek
    "abort": "error",  # vLLM
}
"""Reasons of other servers, in the words of OpenAI and Anthropic.

Mistral's and DeepSeek's as the clients generated from or written for their APIs list them (crates
mistral-openapi-client 0.1 and ds-api 0.10), read 2026-11-18; `abort` is what vLLM's requests end with when aborted.
"""


class ChatCompletions(WireFormat):
    """OpenAI chat completions, or any compatible server."""

    name = "chat"
    several: ClassVar[bool] = True

    def path(self, endpoint: Endpoint) -> str:
        return "/chat/completions"

    def body(self, endpoint: Endpoint, request: Request, native_schema: bool) -> dict[str, Any]:
        model, quirks = endpoint.model, endpoint.quirks
        out: dict[str, Any] = {"model": model, "messages": _messages(request.messages)}
        if request.temperature is not None:
            out["temperature"] = request.temperature
        if request.max_tokens is not None:
            newer = "max_completion_tokens" if _NEW_LIMIT.match(model) else "max_tokens"
            out[quirks.max_tokens or newer] = request.max_tokens
        if request.effort == "none" and quirks.thinking_switch:
            out["thinking"] = {"type": "disabled"}
        elif request.effort is not None:
            out[quirks.effort] = (
                {"effort": request.effort} if quirks.effort == "reasoning" else request.effort
            )
        if request.seed is not None:
            out[quirks.seed] = request.seed
        if request.stop is not None:
            out["stop"] = request.stop
        if request.tools is not None:
            out["tools"] = request.tools
        if request.tool_choice is not None:
            required = request.tool_choice == "required"
            out["tool_choice"] = quirks.required_tool if required else request.tool_choice
        if request.logprobs is not None:
            out["logprobs"] = True
            if request.logprobs:
                out["top_logprobs"] = request.logprobs
        if request.schema is not None and native_schema:
            schema = wrapped_schema(request.schema)
            out["response_format"] = {
                "type": "json_schema",
                "json_schema": {
                    "name": schema_name(request.schema),
                    "schema": schema,
                    "strict": is_strict(schema),
                },
            }
        if request.n != 1:
            out["n"] = request.n
        if request.extra:
            out.update(request.extra)
        if quirks.ignores_parameters and not _DROPPED.isdisjoint(out):
            routing = out.get("provider")
            out["provider"] = {"require_parameters": True, **(routing if isinstance(routing, dict) else {})}
        return out

    def parse(self, raw: dict[str, Any]) -> Answer:
        if raw.get("error"):
            raise ValueError("an error beside the choices")
        if len(raw["choices"]) > MOST_CHOICES:
            raise ValueError(f"{len(raw['choices'])} choices")
        choices = []
        searched = False
        for choice in raw["choices"]:
            message = choice["message"]
            text, reason = message.get("content"), choice.get("finish_reason")
            if text.__class__ is not str:
                text = _text(text)
            if reason.__class__ is not str:
                reason = as_name(reason, "finish_reason")
            if reason not in _USUAL_REASONS:
                reason = _REASONS.get(reason.partition(":")[0].lower(), reason)
            if not text and message.get("refusal"):
                text, reason = str(message["refusal"]), "refusal"
            calls = read_tool_calls(message["tool_calls"]) if message.get("tool_calls") else []
            thinking = message.get("reasoning_content") or message.get("reasoning")
            logprobs = choice.get("logprobs")
            if message.get("annotations") or message.get("executed_tools"):
                searched = True
            choices.append(
                Choice(
                    text=text,
                    tool_calls=calls,
                    finish_reason=reason,
                    thinking=thinking if isinstance(thinking, str) else "",
                    logprobs=read_logprobs(logprobs["content"])
                    if isinstance(logprobs, dict) and logprobs.get("content")
                    else None,
                    provider_items=_thoughts(message, calls) if calls else [],
                )
            )
        if not choices:
            raise ValueError("no choices")
        usage, tier = raw.get("usage"), raw.get("service_tier")
        tokens = openai_tokens(usage, "prompt_tokens", "completion_tokens")
        if (
            searched
            or (tier is not None and tier != "default")
            or (usage.__class__ is dict and not _PAID.isdisjoint(usage))
        ):
            tokens = _with_fees(tokens, tier, usage, searched)
        return Answer(choices, tokens, served_model(raw))

    def assemble(self, events: Iterable[dict[str, Any]]) -> dict[str, Any]:
        whole: dict[str, Any] = {"choices": []}
        choices: dict[int, _Assembled] = {}
        for event in events:
            if event.get("error"):
                return event
            whole.update({key: event[key] for key in _OF_THE_WHOLE if event.get(key)})
            for part in event.get("choices") or ():
                index = part.get("index") or 0
                if not isinstance(index, int):
                    raise ValueError("a choice without a number")
                if index not in choices:
                    choices[index] = _Assembled(index)
                choices[index].add(part)
        whole["choices"] = [choices[index].choice() for index in sorted(choices)]
        return whole

    def is_complete(self, whole: dict[str, Any]) -> bool:
        return all(choice.get("finish_reason") for choice in whole["choices"])

    def begins(self, event: dict[str, Any]) -> bool:
        deltas = [part.get("delta") or {} for part in event.get("choices") or ()]
        return any(
            delta.get(key) for delta in deltas for key in ("content", "tool_calls", "reasoning_content")
        )

    def unwrap(self, choice: Choice, request: Request) -> Choice:
        return unwrapped(choice, request)


def unwrapped(choice: Choice, request: Request) -> Choice:
    """Replace the text of a choice by the value of `answer`, if the schema was wrapped."""
    if request.schema is None or is_object(request.schema):
        return choice
    try:
        wrapped = read_json(choice.text)
    except ValueError:
        return choice
    value = unwrapped_value(wrapped, request.schema)
    if value is wrapped:
        return choice
    return msgspec.structs.replace(choice, text=msgspec.json.encode(value).decode())


_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details", "extra_content")
"""Fields of a turn with tool calls that its server wants back with the results of the tools.

DeepSeek answers 400 without `reasoning_content` (api-docs.deepseek.com/guides/thinking_mode#tool-calls), Gemini 3
without the `extra_content` of the calls, which has a signature (ai.google.dev/gemini-api/docs/thought-signatures);
OpenRouter has `reasoning_details` (openrouter.ai/docs/use-cases/reasoning-tokens). Read 2026-11-17.
"""


def _thoughts(message: dict[str, Any], calls: list[ToolCall]) -> list[dict[str, Any]]:
    """The turn as its server wants it back, if it has more than text and calls."""
    raw = message["tool_calls"]
    given = {name: message[name] for name in _THOUGHTS if message.get(name)}
    if not given and not any(call.get("extra_content") for call in raw):
        return []
    # With the ids of the calls as they are answered: those that occur twice were numbered.
    again = [{**call, "id": known.id} for call, known in zip(raw, calls, strict=True)]
    return [{"role": "assistant", "content": message.get("content"), "tool_calls": again, **given}]


def _messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without what only other formats understand, and turns of tools as their server gave them."""
    for message in messages:
        if "provider_items" in message:
            return [_turn(each) for each in messages]
    return messages


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    given = message.get("provider_items")
    if isinstance(given, list) and len(given) == 1:
        turn = given[0]
        if isinstance(turn, dict) and turn.get("role") == "assistant" and "tool_calls" in turn:
            return turn
    return {name: value for name, value in message.items() if name != "provider_items"}


class _Call:
    """A tool call of a stream. Pieces are joined at the end: adding each to the text before takes quadratic time."""

    def __init__(self) -> None:
        self.id, self.extra = "", None
        self.name: list[str] = []
        self.arguments: list[str] = []

    def assemble(self) -> dict[str, Any]:
        function = {"name": "".join(self.name), "arguments": "".join(self.arguments)}
        out = {"id": self.id, "type": "function", "function": function}
        return {**out, "extra_content": self.extra} if self.extra else out


class _Assembled:
    """A choice of a stream, put together from its pieces."""

    def __init__(self, index: int) -> None:
        self._choice: dict[str, Any] = {"index": index, "message": {"role": "assistant"}}
        self._texts: dict[str, list[str]] = {}
        self._calls: list[_Call] = []
        self._latest: dict[int, _Call] = {}
        """The last call of each index."""

    def add(self, part: dict[str, Any]) -> None:
        """Add a piece."""
        choice, delta = self._choice, part.get("delta") or {}
        message = choice["message"]
        for key in ("content", "reasoning_content", "reasoning", "refusal"):
            if isinstance(delta.get(key), str):
                self._texts.setdefault(key, []).append(delta[key])
        if isinstance(delta.get("reasoning_details"), list):
            message.setdefault("reasoning_details", []).extend(delta["reasoning_details"])
        if delta.get("extra_content"):
            message["extra_content"] = delta["extra_content"]
        for call in delta.get("tool_calls") or ():
            self._add_call(call)
        if part.get("finish_reason"):
            choice["finish_reason"] = part["finish_reason"]
        logprobs = part.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            choice.setdefault("logprobs", {"content": []})["content"] += logprobs["content"]

    def _add_call(self, call: dict[str, Any]) -> None:
        at = call.get("index", len(self._calls))
        if not isinstance(at, int) or not 0 <= at <= len(self._calls):
            raise ValueError("a tool call out of order")
        id, function = call.get("id"), call.get("function") or {}
        known = self._latest.get(at)
        # Gemini gives all of its calls the same index: another id is another call.
        if known is None or (id and known.id and id != known.id):
            known = self._latest[at] = _Call()
            self._calls.append(known)
        if id and id == known.id and function.get("name"):  # some servers repeat id and name with each piece
            known.name = []
        known.name.append(function.get("name") or "")
        known.id = id or known.id
        known.arguments.append(function.get("arguments") or "")
        known.extra = call.get("extra_content") or known.extra

    def choice(self) -> dict[str, Any]:
        """The choice as it would have come at once."""
        message = self._choice["message"]
        message |= {key: "".join(pieces) for key, pieces in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [call.assemble() for call in self._calls]
        return self._choice


def read_logprobs(content: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Probabilities of tokens: `[{token, logprob, top: {token: logprob}}]`. ValueError: one is not a finite number.

    An alternative of probability 0 is left out: its logarithm is no number of JSON, and servers send null for it.
    """
    out = []
    for each in content:
        logprob = float(each["logprob"])
        if not math.isfinite(logprob):
            raise ValueError("a logprob that is not a number")
        entry: dict[str, Any] = {"token": str(each["token"]), "logprob": logprob}
        if each.get("top_logprobs"):
            tops = {str(top["token"]): top["logprob"] for top in each["top_logprobs"]}
            entry["top"] = {
                token: float(value)
                for token, value in tops.items()
                if value is not None and math.isfinite(float(value))
            }
        out.append(entry)
    return out


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content if part.get("type") in ("text", "output_text"))


def _with_fees(tokens: Tokens | None, tier: object, usage: Any, searched: bool) -> Tokens | None:
    """The tokens with their tier and the searches that the provider counts; without a count the fee is unknown."""
    counts = usage if isinstance(usage, dict) else {}
    searches = details(counts, "server_tool_use").get("web_search_requests")
    others = any(counts.get(name) for name in _PAID if name != "server_tool_use")
    return with_fees(tokens, served_tier(tier), searches, others or (searched and not searches))


def schema_name(schema: dict[str, Any]) -> str:
    """A name for the schema that every provider accepts."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", str(schema.get("title") or "answer"))[:64] or "answer"


def is_strict(schema: object) -> bool:
    """Whether OpenAI's strict mode takes the schema: every object closed and every property required."""
    if isinstance(schema, list):
        return all(is_strict(each) for each in schema)
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if isinstance(properties, dict) or schema.get("type") == "object":
        properties = properties or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(
            properties
        ):
            return False
        if not all(is_strict(each) for each in properties.values()):
            return False
    return all(is_strict(value) for key, value in schema.items() if key != "properties")
