"""OpenAI's chat completions, as OpenAI and every compatible server (vLLM, Ollama, llama.cpp, gateways) speak it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from karat.models._messages import Choice, Request
from karat.models._structured import in_object, is_object, out_of_object, read_json
from karat.models.providers import Answer, Provider, Tokens, read_tokens, read_tool_calls, register_provider

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint

# These take `max_completion_tokens` and refuse the older name.
_NEW_LIMIT = re.compile(r"(?:[\w.-]+/)?(?:o\d|gpt-[5-9])")


@register_provider("openai")
class OpenAI(Provider):
    """OpenAI chat completions, or any server that speaks them."""

    name = "openai"
    base_url = "https://api.openai.com/v1"
    base_url_env = "OPENAI_BASE_URL"
    key_env = "OPENAI_API_KEY"
    several: ClassVar[bool] = True

    def url(self, base_url: str) -> str:
        return base_url.rstrip("/") + "/chat/completions"

    def embeddings_url(self, base_url: str) -> str:
        """Where texts are posted to be embedded."""
        return base_url.rstrip("/") + "/embeddings"

    def headers(self, key: str | None, endpoint: Endpoint) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, model: str, request: Request, native_schema: bool) -> dict[str, Any]:
        out: dict[str, Any] = {"model": model, "messages": request.messages}
        if request.temperature is not None:
            out["temperature"] = request.temperature
        if request.max_tokens is not None:
            out["max_completion_tokens" if _NEW_LIMIT.match(model) else "max_tokens"] = request.max_tokens
        if request.seed is not None:
            out["seed"] = request.seed
        if request.stop is not None:
            out["stop"] = request.stop
        if request.tools is not None:
            out["tools"] = request.tools
        if request.tool_choice is not None:
            out["tool_choice"] = request.tool_choice
        if request.schema is not None and native_schema:
            schema = in_object(request.schema)
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
        return out

    def parse(self, raw: dict[str, Any]) -> Answer:
        choices = []
        for choice in raw["choices"]:
            message = choice["message"]
            text, reason = _text(message.get("content")), choice.get("finish_reason") or ""
            if not text and message.get("refusal"):
                text, reason = str(message["refusal"]), "content_filter"
            calls = read_tool_calls(message["tool_calls"]) if message.get("tool_calls") else []
            choices.append(Choice(text=text, tool_calls=calls, finish_reason=reason))
        if not choices:
            raise ValueError("no choices")
        return Answer(choices, _tokens(raw.get("usage")), raw.get("model") or "")

    def unwrap(self, choice: Choice, request: Request) -> Choice:
        if request.schema is None or is_object(request.schema):
            return choice
        try:
            wrapped = read_json(choice.text)
        except ValueError:
            return choice
        value = out_of_object(wrapped, request.schema)
        if value is wrapped:
            return choice
        return msgspec.structs.replace(choice, text=msgspec.json.encode(value).decode())


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content if part.get("type") in ("text", "output_text"))


def _tokens(usage: Any) -> Tokens | None:
    if not isinstance(usage, dict) or "prompt_tokens" not in usage:
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return read_tokens(usage["prompt_tokens"], usage.get("completion_tokens"), cached)


def schema_name(schema: dict[str, Any]) -> str:
    """A name for the schema that every provider accepts."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", str(schema.get("title") or "answer"))[:64] or "answer"


def is_strict(schema: Any) -> bool:
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
