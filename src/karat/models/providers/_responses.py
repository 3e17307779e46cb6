"""OpenAI's Responses API, to and from the chat shape in which karat keeps conversations.

Written against openai-python's types of 2026-08-21 (`types/responses/response_create_params.py`): the format has no
`stop`, `seed` and `n`. Nothing is stored at the provider (`store: false`), so reasoning items travel with the
conversation, encrypted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from karat.errors import RequestError
from karat.models._messages import Choice, Request, ToolCall
from karat.models._structured import wrapped_schema
from karat.models.providers import (
    Answer,
    WireFormat,
    as_name,
    openai_tokens,
    plain_text,
    read_arguments,
    refuse_duplicates,
    served_model,
    served_tier,
    tool_name,
    with_fees,
)
from karat.models.providers._chat import is_strict, read_logprobs, schema_name, unwrapped
from karat.models.providers._model_rules import rules_for

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint

_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}


_FREE_CALLS = ("mcp_call", "computer_call", "custom_tool_call", "local_shell_call", "tool_search_call")
"""Calls that cost no more than their tokens (developers.openai.com/api/docs/pricing, read 2026-11-17).

A web search has a price; files, code and images have others, which the reply does not tell.
"""


class Responses(WireFormat):
    """OpenAI responses."""

    name = "responses"
    unsupported: ClassVar[tuple[str, ...]] = ("stop", "seed")

    def path(self, endpoint: Endpoint) -> str:
        return "/responses"

    def body(self, endpoint: Endpoint, request: Request, native_schema: bool) -> dict[str, Any]:
        instructions, items = _items(request.messages)
        out: dict[str, Any] = {"model": endpoint.model, "input": items, "store": False}
        include = []
        if instructions:
            out["instructions"] = instructions
        if request.temperature is not None:
            out["temperature"] = request.temperature
        if request.max_tokens is not None:
            out["max_output_tokens"] = request.max_tokens
        if request.effort is not None:
            out["reasoning"] = {"effort": request.effort}
        if request.tools is not None:
            out["tools"] = [_tool(tool) for tool in request.tools]
            rules = rules_for(endpoint.model)
            if rules is not None and rules.reasons and request.effort != "none":
                include.append("reasoning.encrypted_content")
        if request.tool_choice is not None:
            out["tool_choice"] = _tool_choice(request.tool_choice)
        if request.logprobs is not None:
            include.append("message.output_text.logprobs")
            if request.logprobs:
                out["top_logprobs"] = request.logprobs
        if include:
            out["include"] = include
        if request.schema is not None and native_schema:
            schema = wrapped_schema(request.schema)
            out["text"] = {
                "format": {
                    "type": "json_schema",
                    "name": schema_name(request.schema),
                    "schema": schema,
                    "strict": is_strict(schema),
                }
            }
            if endpoint.quirks.schema_field:
                out[endpoint.quirks.schema_field] = schema
        if request.extra:
            out.update(request.extra)
        return out

    def parse(self, raw: dict[str, Any]) -> Answer:
        if raw.get("error") or raw.get("status") not in (None, "completed", "incomplete"):
            raise ValueError(f"the response is {str(raw.get('status'))[:40]}")
        text, thinking, calls, refused = [], [], [], ""
        searches, other_fees, phased = 0, False, False
        comments: list[str] = []
        """What the model says between its tool calls, which is no part of its answer (vercel/ai/pull/12860)."""
        logprobs: list[dict[str, Any]] = []
        for item in raw["output"]:
            if item["type"] == "message":
                phased = phased or item.get("phase") is not None
                for part in item["content"]:
                    if part["type"] == "output_text":
                        if item.get("phase") == "commentary":
                            comments.append(part["text"])
                            continue
                        text.append(part["text"])
                        logprobs += part.get("logprobs") or []
                    elif part["type"] == "refusal":
                        refused = str(part["refusal"])
            elif item["type"] == "function_call":
                calls.append(
                    ToolCall(
                        id=as_name(item.get("call_id") or item.get("id"), "call_id"),
                        name=tool_name(item["name"]),
                        arguments=read_arguments(item.get("arguments")),
                    )
                )
            elif item["type"] == "reasoning":
                thinking += [
                    part.get("text") or "" for part in (item.get("summary") or item.get("content") or ())
                ]
            elif item["type"] == "web_search_call":
                action = item.get("action")
                # Opening a page and searching in it is part of the search.
                searches += not isinstance(action, dict) or action.get("type") in (None, "search")
            elif str(item["type"]).endswith("_call") and item["type"] not in _FREE_CALLS:
                other_fees = True
        reason = "tool_calls" if calls else "stop"
        if raw.get("status") == "incomplete":
            why = str((raw.get("incomplete_details") or {}).get("reason") or "")
            reason = _INCOMPLETE.get(why, "length")
        if text:
            thinking += comments
        else:
            text = comments
        if refused and not text:
            text, reason = [refused], "refusal"
        choice = Choice(
            text="".join(text),
            tool_calls=calls,
            finish_reason=reason,
            thinking="\n\n".join(each for each in thinking if each),
            logprobs=read_logprobs(logprobs) if logprobs else None,
            provider_items=[_without_status(item) for item in raw["output"]] if calls or phased else [],
        )
        refuse_duplicates(calls)
        tier = served_tier(raw.get("service_tier"))
        tokens = with_fees(
            openai_tokens(raw.get("usage"), "input_tokens", "output_tokens"), tier, searches, other_fees
        )
        return Answer([choice], tokens, served_model(raw))

    def assemble(self, events: Iterable[dict[str, Any]]) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        items: list[dict[str, Any]] = []
        for event in events:
            if event.get("type") == "error":
                nested = event.get("error")
                error = nested if isinstance(nested, dict) else event
                return {
                    "error": {"message": error.get("message"), "code": error.get("code") or error.get("type")}
                }
            if event.get("type") == "response.output_item.done" and isinstance(event.get("item"), dict):
                items.append(event["item"])
            if isinstance(event.get("response"), dict):
                whole = event["response"]
        if whole.get("output") == []:  # some servers leave out what they have sent before
            whole = {**whole, "output": items}
        if whole.get("status") in (None, "in_progress", "queued"):
            raise ValueError("the stream ended before the response was complete")
        return whole

    def begins(self, event: dict[str, Any]) -> bool:
        return str(event.get("type")).endswith(".delta")

    def unwrap(self, choice: Choice, request: Request) -> Choice:
        return unwrapped(choice, request)


def _items(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """`(instructions, input)`: leading system messages, and everything after them as items."""
    instructions: list[str] = []
    items: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content")
        if role in ("system", "developer"):
            if items:
                items.append({"role": "developer", "content": plain_text(content)})
            else:
                instructions.append(plain_text(content))
        elif role == "tool":
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": message.get("tool_call_id"),
                    "output": content if isinstance(content, str) else _parts(content or ()),
                }
            )
        elif role == "assistant":
            items += _assistant(message)
        else:
            items.append(
                {"role": "user", "content": content if isinstance(content, str) else _parts(content or ())}
            )
    return "\n\n".join(instructions), items


def _assistant(message: dict[str, Any]) -> list[dict[str, Any]]:
    given = message.get("provider_items")
    if isinstance(given, list) and given and all(_is_item(item) for item in given):
        return given
    out: list[dict[str, Any]] = []
    text = plain_text(message.get("content"))
    if text:
        # The type and the list are optional at OpenAI, and needed by llama.cpp (ggml-org/llama.cpp/issues/26394,
        # read 2026-11-18).
        part = {"type": "output_text", "text": text}
        out.append({"type": "message", "role": "assistant", "content": [part]})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments")
        out.append(
            {
                "type": "function_call",
                "call_id": call.get("id"),
                "name": function["name"],
                "arguments": arguments
                if isinstance(arguments, str)
                else msgspec.json.encode(arguments).decode(),
            }
        )
    return out


def _is_item(item: Any) -> bool:
    kind = item.get("type") if isinstance(item, dict) else None
    # Calls of the provider's own tools belong to the turn too: the reasoning beside them refers to them.
    return isinstance(kind, str) and (kind in ("reasoning", "message") or kind.endswith("_call"))


def _without_status(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != "status"}


def _parts(content: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_part(part) for part in content]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "text":
        return {"type": "input_text", "text": part.get("text") or ""}
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if not isinstance(url, str):
            raise RequestError("an image part is written {type: image_url, image_url: {url: …}}")
        out = {"type": "input_image", "image_url": url}
        if isinstance(image, dict) and image.get("detail"):
            out["detail"] = image["detail"]
        return out
    if kind == "file" and isinstance(part.get("file"), dict):
        return {"type": "input_file", **part["file"]}
    if kind == "input_audio":  # `InputContent` of github.com/openai/openai-openapi, read 2026-11-18
        raise RequestError("the Responses API takes no audio: leave the part out or set api: chat")
    return part


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    out = {"type": "function", "name": function["name"], "parameters": parameters}
    # The API makes tools strict by default, which rejects most schemas that people write.
    out["strict"] = bool(function.get("strict", False))
    if function.get("description"):
        out["description"] = function["description"]
    return out


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        return {"type": "function", "name": choice["function"]["name"]}
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        return {"type": "function", "name": choice}
    return choice
