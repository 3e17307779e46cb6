"""Anthropic's messages, to and from the OpenAI shape in which karat keeps conversations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from karat.errors import RequestError
from karat.models._messages import Choice, Request, ToolCall
from karat.models._structured import in_object, out_of_object
from karat.models.providers import Answer, Provider, Tokens, read_arguments, read_tokens, register_provider
from karat.models.providers._chat import schema_name

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint

VERSION = "2023-06-01"
MAX_TOKENS = 4096
"""The format demands a limit; this one is sent where the request has none."""

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)


@register_provider("anthropic")
class Anthropic(Provider):
    """Anthropic messages."""

    name = "anthropic"
    base_url = "https://api.anthropic.com/v1"
    base_url_env = "ANTHROPIC_BASE_URL"
    key_env = "ANTHROPIC_API_KEY"

    def url(self, base_url: str) -> str:
        base = base_url.rstrip("/")
        return (base if base.endswith("/v1") else base + "/v1") + "/messages"

    def headers(self, key: str | None, endpoint: Endpoint) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def takes_schema(self, request: Request) -> bool:
        # The form is fixed by forcing one tool, which leaves no room for the caller's own.
        return not request.tools

    def body(self, model: str, request: Request, native_schema: bool) -> dict[str, Any]:
        system, messages = _conversation(request.messages)
        out: dict[str, Any] = {
            "model": model,
            "max_tokens": request.max_tokens or MAX_TOKENS,
            "messages": messages,
        }
        if system:
            out["system"] = system
        if request.temperature is not None:
            out["temperature"] = request.temperature
        if request.stop is not None:
            out["stop_sequences"] = request.stop
        if request.schema is not None and native_schema:
            name, schema = schema_name(request.schema), in_object(request.schema)
            out["tools"] = [{"name": name, "description": "Gives the answer.", "input_schema": schema}]
            out["tool_choice"] = {"type": "tool", "name": name}
        elif request.tools is not None:
            out["tools"] = [_tool(tool) for tool in request.tools]
            if request.tool_choice is not None:
                out["tool_choice"] = _tool_choice(request.tool_choice)
        if request.extra:
            out.update(request.extra)
        return out

    def parse(self, raw: dict[str, Any]) -> Answer:
        text, calls = [], []
        for block in raw["content"]:
            if block["type"] == "text":
                text.append(block["text"])
            elif block["type"] == "tool_use":
                calls.append(
                    ToolCall(id=block.get("id") or "", name=block["name"], arguments=block.get("input"))
                )
        reason = raw.get("stop_reason") or ""
        choice = Choice(text="".join(text), tool_calls=calls, finish_reason=_FINISH.get(reason, reason))
        return Answer([choice], _tokens(raw.get("usage")), raw.get("model") or "")

    def unwrap(self, choice: Choice, request: Request) -> Choice:
        assert request.schema is not None
        name = schema_name(request.schema)
        for call in choice.tool_calls:
            if call.name == name:
                value = out_of_object(call.arguments, request.schema)
                reason = "stop" if choice.finish_reason == "tool_calls" else choice.finish_reason
                return Choice(text=msgspec.json.encode(value).decode(), finish_reason=reason)
        return choice


def _tokens(usage: Any) -> Tokens | None:
    if not isinstance(usage, dict) or "input_tokens" not in usage:
        return None
    return read_tokens(
        usage["input_tokens"],
        usage.get("output_tokens"),
        usage.get("cache_read_input_tokens"),
        usage.get("cache_creation_input_tokens"),
        cached_apart=True,
    )


def _conversation(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """`(system, messages)`: system texts go apart, tool results become the user's, neighbours are joined."""
    system: list[str] = []
    out: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content")
        if role in ("system", "developer"):
            system.append(_plain(content))
            continue
        if role == "tool":
            blocks = [
                {
                    "type": "tool_result",
                    "tool_use_id": message.get("tool_call_id"),
                    "content": _plain(content),
                }
            ]
            role = "user"
        else:
            blocks = _blocks(content)
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
        if out and out[-1]["role"] == role:
            out[-1]["content"].extend(blocks)
        else:
            out.append({"role": role, "content": blocks})
    return "\n\n".join(system), out


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or "" for part in content or () if part.get("type") == "text")


def _blocks(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_block(part) for part in content]


def _block(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") != "image_url":
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
