"""Anthropic's messages, to and from the chat shape in which karat keeps conversations.

Written against anthropic-sdk-python's types of 2026-08-07 and the migration guides of Opus 5.5 and Sonnet 5.5
(platform.claude.com, read 2026-11-16): efforts are `output_config.effort`, a schema is `output_config.format`, and
forcing a tool does not go together with thinking.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from karat.errors import RequestError
from karat.models._messages import Choice, Request, ToolCall
from karat.models._structured import unwrapped_value, wrapped_schema
from karat.models.providers import (
    Answer,
    Tokens,
    WireFormat,
    as_name,
    details,
    plain_text,
    read_arguments,
    read_tokens,
    refuse_duplicates,
    served_model,
    served_tier,
    tool_name,
    with_fees,
)
from karat.models.providers._chat import schema_name, unwrapped
from karat.models.providers._model_rules import ModelRules, rules_for

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint

VERSION = "2023-06-01"
MAX_TOKENS = 4096
"""The format demands a limit; this one is sent where the request has none and nothing is known of the model."""

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "compaction": "pause_turn",  # asked for by `pause_after_compaction`
}
"""`refusal`, `pause_turn` and `model_context_window_exceeded` keep their names: no complete answer ends with them."""

_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)

_UNSUPPORTED = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
)
"""Keywords that `output_config.format` refuses; the answer is checked against them anyway."""


class AnthropicMessages(WireFormat):
    """Anthropic messages."""

    name = "anthropic"
    unsupported = ("seed", "logprobs")

    def path(self, endpoint: Endpoint) -> str:
        return "/messages"

    def headers(self) -> dict[str, str]:
        return {"anthropic-version": VERSION}

    def takes_schema(self, endpoint: Endpoint, request: Request) -> bool:
        rules = rules_for(endpoint.model)
        if rules is not None and rules.json_format:
            return request.schema is not None and closed(wrapped_schema(request.schema)) is not None
        # The form is fixed by forcing one tool, which leaves no room for the caller's own, nor for thinking.
        return not request.tools and request.effort in (None, "none")

    def body(self, endpoint: Endpoint, request: Request, native_schema: bool) -> dict[str, Any]:
        rules = rules_for(endpoint.model)
        system, messages = _conversation(request.messages)
        out: dict[str, Any] = {
            "model": endpoint.model,
            "max_tokens": request.max_tokens or (rules.max_tokens if rules is not None else MAX_TOKENS),
            "messages": messages,
        }
        if system:
            out["system"] = system
        if request.temperature is not None:
            out["temperature"] = request.temperature
        if request.stop is not None:
            out["stop_sequences"] = request.stop
        if request.effort == "none":
            out["thinking"] = {"type": (rules.thinking_off if rules is not None else "") or "disabled"}
        else:
            if request.effort is not None:
                out["output_config"] = {"effort": request.effort}
            if _asks_to_think(rules, request):
                out["thinking"] = {"type": "adaptive"}
                if rules is not None and rules.hides_thinking:
                    # Costs no tokens: what was thought is charged for either way
                    # (platform.claude.com/docs/en/build-with-claude/thinking, read 2026-11-18).
                    out["thinking"]["display"] = "summarized"
        if request.tools is not None:
            out["tools"] = [_tool(tool) for tool in request.tools]
            if request.tool_choice is not None:
                out["tool_choice"] = _tool_choice(request.tool_choice)
        if request.schema is not None and native_schema:
            if rules is not None and rules.json_format:
                form = {"type": "json_schema", "schema": closed(wrapped_schema(request.schema))}
                out["output_config"] = {**out.get("output_config", {}), "format": form}
            else:
                name, schema = schema_name(request.schema), wrapped_schema(request.schema)
                out["tools"] = [{"name": name, "description": "Gives the answer.", "input_schema": schema}]
                out["tool_choice"] = {"type": "tool", "name": name}
        if request.extra:
            out.update(request.extra)
        return out

    def parse(self, raw: dict[str, Any]) -> Answer:
        text, calls, thinking = [], [], []
        for block in raw["content"]:
            if block["type"] == "text":
                text.append(block["text"])
            elif block["type"] == "tool_use":
                calls.append(
                    ToolCall(
                        id=as_name(block.get("id"), "id"),
                        name=tool_name(block["name"]),
                        arguments=block.get("input"),
                    )
                )
            elif block["type"] == "thinking":
                thinking.append(str(block.get("thinking") or ""))
        refuse_duplicates(calls)
        reason = as_name(raw.get("stop_reason"), "stop_reason")
        choice = Choice(
            text="".join(text),
            tool_calls=calls,
            finish_reason=_FINISH.get(reason, reason),
            thinking="\n\n".join(each for each in thinking if each),
            # Thinking has to be given back as it came, with its signature, before the results of tools.
            provider_items=list(raw["content"])
            if calls and len(raw["content"]) > len(calls) + len(text)
            else [],
        )
        return Answer([choice], _tokens(raw.get("usage")), served_model(raw))

    def continued(self, request: Request, paused: dict[str, Any]) -> Request | None:
        """Send the paused turn back as an assistant message, in the same container, so that the model continues.

        platform.claude.com/docs/en/build-with-claude/handling-stop-reasons#pause-turn;
        github.com/enricoros/big-AGI/issues/1010 (container), 2026-11-16.
        """
        if not paused["content"] or not all(_is_block(block) for block in paused["content"]):
            return None  # nothing that could be sent back
        turn = {"role": "assistant", "content": None, "provider_items": list(paused["content"])}
        container = paused.get("container")
        extra = dict(request.extra)
        if isinstance(container, dict) and isinstance(container.get("id"), str):
            extra["container"] = container["id"]
        return msgspec.structs.replace(request, messages=[*request.messages, turn], extra=extra)

    def joined(
        self, paused: list[dict[str, Any]], last: dict[str, Any], counted: bool = True
    ) -> dict[str, Any]:
        parts = [*paused, last]
        usages = [part.get("usage") for part in parts]
        return {
            **last,
            "content": [block for part in parts for block in part["content"]],
            "usage": functools.reduce(_add_usage, usages) if counted else None,
        }

    def assemble(self, events: Iterable[dict[str, Any]]) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        blocks: dict[int, _Block] = {}
        ended = False
        for event in events:
            kind = event.get("type")
            if kind == "error":
                return event
            if kind == "message_start":
                whole = dict(event["message"])
            elif kind == "content_block_start":
                if not isinstance(event["index"], int):
                    raise ValueError("a block without a number")
                blocks[event["index"]] = _Block(event["content_block"])
            elif kind == "content_block_delta":
                blocks[event["index"]].add(event["delta"])
            elif kind == "message_delta":
                whole.update({k: v for k, v in event["delta"].items() if v is not None})
                whole["usage"] = {**(whole.get("usage") or {}), **(event.get("usage") or {})}
            elif kind == "message_stop":
                ended = True
        if not ended:
            raise ValueError("the stream ended before the message was complete")
        whole["content"] = [blocks[index].assemble() for index in sorted(blocks)]
        return whole

    def begins(self, event: dict[str, Any]) -> bool:
        return event.get("type") == "content_block_delta"

    def unwrap(self, choice: Choice, request: Request) -> Choice:
        assert request.schema is not None
        name = schema_name(request.schema)
        for call in choice.tool_calls:
            if call.name == name and not request.tools:
                value = unwrapped_value(call.arguments, request.schema)
                reason = "stop" if choice.finish_reason == "tool_calls" else choice.finish_reason
                return msgspec.structs.replace(
                    choice,
                    text=msgspec.json.encode(value).decode(),
                    tool_calls=[],
                    finish_reason=reason,
                    provider_items=[],
                )
        return unwrapped(choice, request)


def _asks_to_think(rules: ModelRules | None, request: Request) -> bool:
    """Whether a request has a `thinking` field: for an effort, and for a model that thinks and would not show it.

    A model that thinks by itself takes a forced tool, but not beside the field.
    """
    if request.effort is not None:
        return rules is None or bool(rules.thinking_off) or rules.reasons
    forced = request.tool_choice not in (None, "auto", "none")
    return rules is not None and rules.reasons and rules.hides_thinking and not forced


def closed(schema: object) -> Any:
    """A schema as `output_config.format` takes it: every object closed, without what it refuses; None: not possible."""
    try:
        return _close_objects(schema)
    except ValueError:
        return None


def _close_objects(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_close_objects(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _UNSUPPORTED:
            continue
        if name in ("properties", "$defs", "definitions") and isinstance(value, dict):
            out[name] = {key: _close_objects(each) for key, each in value.items()}
        elif name in ("const", "enum", "default", "examples"):
            out[name] = value
        else:
            out[name] = _close_objects(value)
    if schema.get("type") == "object" or "properties" in schema:
        if schema.get("additionalProperties") not in (None, False) or not schema.get("properties"):
            raise ValueError("an open object")
        out["additionalProperties"] = False
    if "patternProperties" in schema or "if" in schema:
        raise ValueError("not offered")
    return out


def _add_usage(first: Any, second: Any) -> Any:
    """The sum of two usage objects, field by field. A value that is not a number stays, and is refused when read."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {name: _add_usage(first.get(name), second.get(name)) for name in {**first, **second}}
    if first is None or second is None:
        return second if first is None else first
    for value in (first, second):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value
    return first + second


_PIECES = {
    "text_delta": "text",
    "input_json_delta": "partial_json",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}
"""The field of a delta that holds its piece of text."""


class _Block:
    """A content block of a stream. Pieces are joined at the end: adding each to the text before is quadratic."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._start = dict(start)
        self._texts: dict[str, list[str]] = {}

    def add(self, delta: dict[str, Any]) -> None:
        """Add a piece."""
        field = _PIECES.get(delta["type"])
        if field is not None:
            self._texts.setdefault(field, [self._start.get(field, "")]).append(delta[field])

    def assemble(self) -> dict[str, Any]:
        """Return the block as a reply without streaming has it."""
        block = self._start | {field: "".join(pieces) for field, pieces in self._texts.items()}
        if "partial_json" in self._texts:
            block["input"] = read_arguments(block.pop("partial_json"))
        return block


def _tokens(usage: Any) -> Tokens | None:
    if not isinstance(usage, dict) or "input_tokens" not in usage:
        return None
    tokens = read_tokens(
        usage["input_tokens"],
        usage.get("output_tokens"),
        usage.get("cache_read_input_tokens"),
        usage.get("cache_creation_input_tokens"),
        reasoning=details(usage, "output_tokens_details").get("thinking_tokens"),
        cache_write_long=details(usage, "cache_creation").get("ephemeral_1h_input_tokens"),
        cached_apart=True,
    )
    tools = details(usage, "server_tool_use")
    return with_fees(
        tokens,
        served_tier(usage.get("service_tier"), usage.get("speed"), usage.get("inference_geo")),
        tools.get("web_search_requests"),
        any(count for name, count in tools.items() if name not in _TOOLS),
    )


_TOOLS = ("web_search_requests", "web_fetch_requests", "tool_search_requests")
"""Tools of Anthropic that have a price, or cost no more than their tokens. Code execution has a price by the hour.

platform.claude.com/docs/en/about-claude/pricing, read 2026-11-17.
"""


def _conversation(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """`(system, messages)`: system texts go apart, tool results become the user's, neighbours are joined."""
    system: list[str] = []
    out: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content")
        if role in ("system", "developer"):
            system.append(plain_text(content))
            continue
        if role == "tool":
            blocks = [
                {
                    "type": "tool_result",
                    "tool_use_id": message.get("tool_call_id"),
                    "content": content if isinstance(content, str) else _blocks(content),
                }
            ]
            role = "user"
        else:
            blocks = _assistant_blocks(message) if role == "assistant" else _blocks(content)
        if out and out[-1]["role"] == role:
            out[-1]["content"].extend(blocks)
        else:
            out.append({"role": role, "content": blocks})
    return "\n\n".join(system), out


def _assistant_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    given = message.get("provider_items")
    if isinstance(given, list) and given and all(_is_block(block) for block in given):
        return list(given)
    blocks = _blocks(message.get("content"))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call.get("id"),
                "name": function["name"],
                "input": read_arguments(function.get("arguments")),
            }
        )
    return blocks


def _is_block(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    return isinstance(kind, str) and (
        kind in ("text", "thinking", "redacted_thinking", "tool_use")
        # Server tools: `server_tool_use`, `mcp_tool_use`, `web_search_tool_result`, …
        or kind.endswith(("_tool_use", "_tool_result"))
    )


def _blocks(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_block(part) for part in content]


def _block(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "input_audio":
        raise RequestError("Anthropic's messages take no audio: leave the part out or use another provider")
    if kind == "file":
        file = part.get("file")
        data = _DATA_URL.fullmatch(str(file.get("file_data"))) if isinstance(file, dict) else None
        if data is None:
            raise RequestError(
                "a file part is written {type: file, file: {filename, file_data: data:…;base64,…}}"
            )
        return {
            "type": "document",
            "source": {"type": "base64", "media_type": data[1], "data": data[2]},
        }
    if kind != "image_url":
        return part
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str):
        raise RequestError("an image part is written {type: image_url, image_url: {url: …}}")
    data = _DATA_URL.fullmatch(url)
    if data:
        return {"type": "image", "source": {"type": "base64", "media_type": data[1], "data": data[2]}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    out = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    if function.get("description"):
        out["description"] = function["description"]
    return out


def _tool_choice(choice: Any) -> Any:
    named = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}
    if isinstance(choice, str):
        return named.get(choice, {"type": "tool", "name": choice})
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        return {"type": "tool", "name": choice["function"]["name"]}
    return choice
