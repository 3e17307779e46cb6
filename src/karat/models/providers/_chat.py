"""The chat completions format of OpenAI and compatible servers (vLLM, Ollama, llama.cpp, gateways)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from karat.models._messages import Choice, Request
from karat.models._structured import is_object, read_json, unwrapped_value, wrapped_schema
from karat.models.providers import (
    MOST_CHOICES,
    Answer,
    Tokens,
    WireFormat,
    as_name,
    details,
    read_tokens,
    read_tool_calls,
    served_model,
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
        if request.effort is not None:
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
        for choice in raw["choices"]:
            message = choice["message"]
            text, reason = message.get("content"), choice.get("finish_reason")
            if text.__class__ is not str:
                text = _text(text)
            if reason.__class__ is not str:
                reason = as_name(reason, "finish_reason")
            if not text and message.get("refusal"):
                text, reason = str(message["refusal"]), "refusal"
            calls = read_tool_calls(message["tool_calls"]) if message.get("tool_calls") else []
            thinking = message.get("reasoning_content") or message.get("reasoning")
            logprobs = choice.get("logprobs")
            choices.append(
                Choice(
                    text=text,
                    tool_calls=calls,
                    finish_reason=reason,
                    thinking=thinking if isinstance(thinking, str) else "",
                    logprobs=read_logprobs(logprobs["content"])
                    if isinstance(logprobs, dict) and logprobs.get("content")
                    else None,
                )
            )
        if not choices:
            raise ValueError("no choices")
        return Answer(choices, _tokens(raw.get("usage")), served_model(raw))

    def assemble(self, events: Iterable[dict[str, Any]]) -> dict[str, Any]:
        whole: dict[str, Any] = {"choices": []}
        choices: dict[int, dict[str, Any]] = {}
        for event in events:
            if event.get("error"):
                return event
            whole.update({key: event[key] for key in ("id", "model", "usage") if event.get(key)})
            for part in event.get("choices") or ():
                index = part.get("index") or 0
                if not isinstance(index, int):
                    raise ValueError("a choice without a number")
                choice = choices.setdefault(index, {"index": index, "message": {"role": "assistant"}})
                _add_delta(choice, part)
        whole["choices"] = [choices[index] for index in sorted(choices)]
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


def _messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without what only other formats understand."""
    for message in messages:
        if "provider_items" in message:
            return [{k: v for k, v in each.items() if k != "provider_items"} for each in messages]
    return messages


def _add_delta(choice: dict[str, Any], part: dict[str, Any]) -> None:
    message, delta = choice["message"], part.get("delta") or {}
    for key in ("content", "reasoning_content", "reasoning", "refusal"):
        if isinstance(delta.get(key), str):
            message[key] = message.get(key, "") + delta[key]
    for call in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        at = call.get("index", len(calls))
        if not isinstance(at, int) or not 0 <= at <= len(calls):
            raise ValueError("a tool call out of order")
        if at == len(calls):
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        known, function = calls[at], call.get("function") or {}
        known["id"] = call.get("id") or known["id"]
        known["function"]["name"] += function.get("name") or ""
        known["function"]["arguments"] += function.get("arguments") or ""
    if part.get("finish_reason"):
        choice["finish_reason"] = part["finish_reason"]
    logprobs = part.get("logprobs")
    if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
        choice.setdefault("logprobs", {"content": []})["content"] += logprobs["content"]


def read_logprobs(content: Any) -> list[dict[str, Any]]:
    """Probabilities of tokens: `[{token, logprob, top: {token: logprob}}]`."""
    out = []
    for each in content:
        entry: dict[str, Any] = {"token": str(each["token"]), "logprob": float(each["logprob"])}
        if each.get("top_logprobs"):
            entry["top"] = {str(top["token"]): float(top["logprob"]) for top in each["top_logprobs"]}
        out.append(entry)
    return out


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content if part.get("type") in ("text", "output_text"))


def _tokens(usage: Any) -> Tokens | None:
    if not isinstance(usage, dict) or "prompt_tokens" not in usage:
        return None
    if "prompt_tokens_details" not in usage and "completion_tokens_details" not in usage:
        return read_tokens(usage["prompt_tokens"], usage.get("completion_tokens"))
    given, made = details(usage, "prompt_tokens_details"), details(usage, "completion_tokens_details")
    return read_tokens(
        usage["prompt_tokens"],
        usage.get("completion_tokens"),
        given.get("cached_tokens"),
        given.get("cache_write_tokens"),
        reasoning=made.get("reasoning_tokens"),
        audio_input=given.get("audio_tokens"),
        audio_output=made.get("audio_tokens"),
        image_input=given.get("image_tokens"),
        image_output=made.get("image_tokens"),
    )


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
