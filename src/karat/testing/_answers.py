"""A scripted reply as each wire format writes it, at once or as a stream of events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

ANTHROPIC_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",  # Anthropic has no other word for a withheld answer
}
"""How Anthropic calls the reasons to stop that a script may give in OpenAI's words."""


def answer_for(path: str, parts: Mapping[str, Any], number: int, model: str | None, n: int) -> dict[str, Any]:
    """The body that answers a request, in the format of its path."""
    if path.endswith("/messages"):
        return anthropic_answer(parts, number, model)
    if path.endswith("/responses"):
        return responses_answer(parts, number, model)
    return chat_answer(parts, number, model, n)


def needs_signature(model: object) -> bool:
    """Whether a model seals its thoughts in the tool calls, and wants them back: Gemini 3 and later."""
    return isinstance(model, str) and re.search(r"(?:^|/)gemini-[3-9]", model) is not None


def chat_answer(parts: Mapping[str, Any], number: int, model: str | None, n: int) -> dict[str, Any]:
    """A chat completion."""
    calls = [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])},
        }
        for i, c in enumerate(parts.get("tool_calls") or ())
    ]
    if calls and needs_signature(model):
        calls[0]["extra_content"] = {"google": {"thought_signature": "sealed"}}
    message: dict[str, Any] = {"role": "assistant", "content": parts.get("text")}
    if calls:
        message["tool_calls"] = calls
    if parts.get("thinking"):
        message["reasoning_content"] = parts["thinking"]
    if parts.get("refusal"):
        message |= {"content": None, "refusal": parts["refusal"]}
    reason = parts.get("finish_reason") or ("tool_calls" if calls else "stop")
    choice: dict[str, Any] = {"message": message, "finish_reason": reason}
    if parts.get("logprobs"):
        choice["logprobs"] = {"content": parts["logprobs"]}
    used = _usage(parts)
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": i, **choice} for i in range(n)],
        "usage": used
        and {
            "prompt_tokens": used["input"],
            "completion_tokens": used["output"],
            "total_tokens": _total(used),
            "prompt_tokens_details": {"cached_tokens": used.get("cached", 0)},
            "completion_tokens_details": {"reasoning_tokens": used.get("reasoning", 0)},
        },
    }


def responses_answer(parts: Mapping[str, Any], number: int, model: str | None) -> dict[str, Any]:
    """A response."""
    output: list[dict[str, Any]] = []
    if parts.get("thinking"):
        summary = [{"type": "summary_text", "text": parts["thinking"]}]
        output.append(
            {"id": f"rs_{number}", "type": "reasoning", "summary": summary, "encrypted_content": "sealed"}
        )
    if parts.get("refusal"):
        content = [{"type": "refusal", "refusal": parts["refusal"]}]
        output.append({"id": f"msg_{number}", "type": "message", "role": "assistant", "content": content})
    elif parts.get("text"):
        logprobs = parts.get("logprobs") or []
        text = {"type": "output_text", "text": parts["text"], "annotations": [], "logprobs": logprobs}
        output.append({"id": f"msg_{number}", "type": "message", "role": "assistant", "content": [text]})
    for i, call in enumerate(parts.get("tool_calls") or ()):
        arguments = json.dumps(call["arguments"])
        output.append(
            {
                "id": f"fc_{i}",
                "type": "function_call",
                "call_id": f"call_{i}",
                "name": call["name"],
                "arguments": arguments,
                "status": "completed",
            }
        )
    reason = {"length": "max_output_tokens"}.get(parts.get("finish_reason") or "", parts.get("finish_reason"))
    incomplete = reason in ("max_output_tokens", "content_filter")
    used = _usage(parts)
    return {
        "id": f"resp_{number}",
        "object": "response",
        "model": model,
        "status": "incomplete" if incomplete else "completed",
        "incomplete_details": {"reason": reason} if incomplete else None,
        "error": None,
        "output": output,
        "usage": used
        and {
            "input_tokens": used["input"],
            "output_tokens": used["output"],
            "total_tokens": _total(used),
            "input_tokens_details": {"cached_tokens": used.get("cached", 0), "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": used.get("reasoning", 0)},
        },
    }


def anthropic_answer(parts: Mapping[str, Any], number: int, model: str | None) -> dict[str, Any]:
    """A message."""
    content: list[dict[str, Any]] = []
    if parts.get("thinking"):
        content.append({"type": "thinking", "thinking": parts["thinking"], "signature": "sealed"})
    text = parts.get("refusal") or parts.get("text")
    if text:
        content.append({"type": "text", "text": text})
    for i, call in enumerate(parts.get("tool_calls") or ()):
        content.append(
            {"type": "tool_use", "id": f"toolu_{i}", "name": call["name"], "input": call["arguments"]}
        )
    given = "content_filter" if parts.get("refusal") else parts.get("finish_reason")
    reason = ANTHROPIC_REASONS.get(given or "", given) or (
        "tool_use" if parts.get("tool_calls") else "end_turn"
    )
    used = _usage(parts)
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "usage": used
        and {
            # Anthropic counts what it read from its cache apart.
            "input_tokens": used["input"] - used.get("cached", 0) if used.get("cached") else used["input"],
            "output_tokens": used["output"],
            **({"cache_read_input_tokens": used["cached"]} if used.get("cached") else {}),
            **(
                {"output_tokens_details": {"thinking_tokens": used["reasoning"]}}
                if used.get("reasoning")
                else {}
            ),
        },
    }


def _total(used: Mapping[str, Any]) -> Any:
    try:
        return used["input"] + used["output"]
    except TypeError:
        return None


def _usage(parts: Mapping[str, Any]) -> dict[str, Any] | None:
    """`usage` of an answer: `(input, output)`, or a mapping with `cached` and `reasoning` too."""
    given = parts["usage"]
    if not given:
        return None
    return dict(given) if isinstance(given, Mapping) else {"input": given[0], "output": given[1]}


def events_of(path: str, body: dict[str, Any], include_usage: bool) -> Iterator[str]:
    """The events of a stream with the content of a body."""
    if path.endswith("/messages"):
        yield from _anthropic_events(body)
    elif path.endswith("/responses"):
        yield from _responses_events(body)
    else:
        yield from _chat_events(body, include_usage)


def _event(data: Any, name: str | None = None) -> str:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n"


def _pieces(text: str) -> list[str]:
    middle = max(1, len(text) // 3)
    return [text[at : at + middle] for at in range(0, len(text), middle)]


def _chat_events(body: dict[str, Any], include_usage: bool) -> Iterator[str]:
    frame = {"id": body["id"], "object": "chat.completion.chunk", "model": body["model"]}
    for choice in body["choices"]:
        message, index = choice["message"], choice["index"]
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in _pieces(message.get("reasoning_content") or "")]
        deltas += [{"content": piece} for piece in _pieces(message.get("content") or "")]
        deltas += [{"refusal": piece} for piece in _pieces(message.get("refusal") or "")]
        for at, call in enumerate(message.get("tool_calls") or ()):
            name = {"name": call["function"]["name"], "arguments": ""}
            deltas.append({"tool_calls": [{**call, "index": at, "function": name}]})
            for piece in _pieces(call["function"]["arguments"]):
                deltas.append({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
        for delta in deltas:
            yield _event({**frame, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
        end = {"index": index, "delta": {}, "finish_reason": choice["finish_reason"]}
        if choice.get("logprobs"):
            end["logprobs"] = choice["logprobs"]
        yield _event({**frame, "choices": [end]})
    if include_usage:
        yield _event({**frame, "choices": [], "usage": body["usage"]})
    yield "data: [DONE]\n\n"


def _responses_events(body: dict[str, Any]) -> Iterator[str]:
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    yield _event({"type": "response.created", "response": begun}, "response.created")
    for item in body["output"]:
        for part in item.get("content") or ():
            for piece in _pieces(part.get("text") or ""):
                name = "response.output_text.delta"
                yield _event({"type": name, "item_id": item["id"], "delta": piece}, name)
    name = f"response.{body['status']}"
    yield _event({"type": name, "response": body}, name)


def _anthropic_events(body: dict[str, Any]) -> Iterator[str]:
    start = {
        **body,
        "content": [],
        "stop_reason": None,
        "usage": {**(body["usage"] or {}), "output_tokens": 1},
    }
    yield _event({"type": "message_start", "message": start}, "message_start")
    for index, block in enumerate(body["content"]):
        empty: dict[str, dict[str, Any]] = {
            "text": {"text": ""},
            "tool_use": {"input": {}},
            "thinking": {"thinking": "", "signature": ""},
        }
        opened = {**block, **empty.get(block["type"], {})}
        yield _event(
            {"type": "content_block_start", "index": index, "content_block": opened}, "content_block_start"
        )
        deltas: list[dict[str, Any]] = []
        if block["type"] == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        elif block["type"] == "tool_use":
            written = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(written)]
        elif block["type"] == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        for delta in deltas:
            yield _event(
                {"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta"
            )
        yield _event({"type": "content_block_stop", "index": index}, "content_block_stop")
    yield _event(
        {"type": "message_delta", "delta": {"stop_reason": body["stop_reason"]}, "usage": body["usage"]},
        "message_delta",
    )
    yield _event({"type": "message_stop"}, "message_stop")
