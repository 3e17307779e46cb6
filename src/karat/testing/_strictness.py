"""The refusals of the real providers, with their own messages: FakeProvider is as strict for models it knows.

Messages as they were reported in 2026: github.com/danielmiessler/Fabric/issues/2109 (Anthropic's sampling parameters),
github.com/agno-agi/agno/issues/7015 (prefill), github.com/openai/openai-agents-python/issues/2089 (efforts),
github.com/BerriAI/litellm/pull/34569 (tools beside reasoning), and the migration guides of Claude 5.5. The fields of
each format are those of openai-python (2026-08-21) and anthropic-sdk-python (2026-08-07).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from karat.models.providers._model_rules import DEFAULT_TEMPERATURE, ModelRules, rules_for
from karat.testing._answers import needs_signature

CHAT_FIELDS = {
    *(
        "messages",
        "model",
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
    ),
    *(
        "max_completion_tokens",
        "max_tokens",
        "metadata",
        "modalities",
        "n",
        "parallel_tool_calls",
        "prediction",
    ),
    *(
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
    ),
    *(
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
    ),
    *(
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    ),
}
RESPONSES_FIELDS = {
    *(
        "background",
        "context_management",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
    ),
    *(
        "max_tool_calls",
        "metadata",
        "model",
        "moderation",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
    ),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier"),
    *("service_tier", "store", "stream", "stream_options", "temperature", "text", "tool_choice", "tools"),
    *("top_logprobs", "top_p", "truncation", "user"),
}
ANTHROPIC_FIELDS = {
    *(
        "max_tokens",
        "messages",
        "model",
        "cache_control",
        "container",
        "inference_geo",
        "metadata",
        "output_config",
    ),
    *(
        "service_tier",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
    ),
    *("top_k", "top_p"),
}


def objection(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any] | None:
    """The error with which the real provider answers 400 to a request, or None.

    A model that is not known by name accepts every field that the format defines, and no other.
    """
    model = body.get("model")
    rules = rules_for(model) if isinstance(model, str) else None
    if rules is None or not isinstance(model, str):
        return _unknown_field(path, body) or _missing_thoughts(path, body)
    if path.endswith("/messages"):
        message = _anthropic(model, rules, body, headers)
        return None if message is None else _anthropic_error(message)
    if path.endswith("/responses"):
        return _responses(model, rules, body)
    if path.endswith("/chat/completions"):
        return _chat(model, rules, body)
    return None


SERVER_FIELDS = {
    *("min_p", "top_k", "repetition_penalty", "stop_token_ids", "ignore_eos", "chat_template_kwargs"),
    *(
        "reasoning",
        "include_reasoning",
        "provider",
        "models",
        "route",
        "transforms",
        "thinking",
        "guided_json",
    ),
    *("cache_prompt", "id_slot", "grammar", "mirostat", "keep_alive", "random_seed", "safe_prompt"),
}
"""Fields that other servers of chat completions define: vLLM, llama.cpp, Ollama, OpenRouter, Mistral, DeepSeek."""


def hides_thinking(path: str, body: Mapping[str, Any]) -> bool:
    """Whether the real model leaves the text of its thinking out of the reply to a request."""
    model, thinking = body.get("model"), body.get("thinking")
    rules = rules_for(model) if isinstance(model, str) and path.endswith("/messages") else None
    if rules is None or not rules.hides_thinking:
        return False
    return thinking.get("display") != "summarized" if isinstance(thinking, dict) else rules.reasons


def _unknown_field(path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The error for a field that the format of a path does not define."""
    if path.endswith("/messages"):
        known = ANTHROPIC_FIELDS
    elif path.endswith("/responses"):
        known = RESPONSES_FIELDS | {"json_schema"}  # of llama.cpp
    elif path.endswith("/chat/completions"):
        known = CHAT_FIELDS | SERVER_FIELDS
    else:
        return None
    for name in body:
        if name not in known:
            if known is ANTHROPIC_FIELDS:
                return _anthropic_error(f"{name}: Extra inputs are not permitted")
            if path.endswith("/responses"):
                return _openai_error(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
            return _openai_error(f"Unrecognized request argument supplied: {name}", None, None)
    return None


def _missing_thoughts(path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The error for a turn with tool calls that comes back without what the model thought.

    Messages: github.com/openai/openai-agents-python/issues/2137 (Gemini), github.com/earendil-works/pi/issues/3636
    (DeepSeek), read 2026-11-17.
    """
    if not path.endswith("/chat/completions"):
        return None
    turns = [turn for turn in body.get("messages") or () if turn.get("tool_calls")]
    for at, turn in enumerate(turns):
        call = turn["tool_calls"][0]
        if needs_signature(body.get("model")) and not call.get("extra_content"):
            name = (call.get("function") or {}).get("name")
            message = (
                f"Unable to submit request because function call `default_api:{name}` in the {at + 2}. content"
                " block is missing a `thought_signature`."
            )
            return _openai_error(message, None, None)
        thinks = (body.get("thinking") or {}).get("type") != "disabled"
        if "deepseek-v4" in str(body.get("model")) and thinks and not turn.get("reasoning_content"):
            message = "The `reasoning_content` in the thinking mode must be passed back to the API."
            return _openai_error(message, None, "invalid_request_error")
    return None


def _openai_error(message: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def _anthropic_error(message: str) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": message},
        "request_id": "req_fake",
    }


def _chat(model: str, rules: ModelRules, body: Mapping[str, Any]) -> dict[str, Any] | None:
    for name in body:
        if name not in CHAT_FIELDS:
            return _openai_error(f"Unrecognized request argument supplied: {name}", None, None)
    if rules.reasons and "max_tokens" in body:
        message = (
            "Unsupported parameter: 'max_tokens' is not supported with this model."
            " Use 'max_completion_tokens' instead."
        )
        return _openai_error(message, "max_tokens", "unsupported_parameter")
    effort = body.get("reasoning_effort")
    refused = _openai_refusals(model, rules, body, effort, "reasoning_effort")
    if refused is not None:
        return refused
    from karat.models.providers._presets import needs_responses

    tools = any(tool.get("type") == "function" for tool in body.get("tools") or ())
    if tools and needs_responses(model) and (effort or rules.default_effort) != "none":
        message = (
            f"Function tools with reasoning_effort are not supported for {model} in /v1/chat/completions."
            " To use function tools, use /v1/responses or set reasoning_effort to 'none'."
        )
        return _openai_error(message, "reasoning_effort", None)
    return _strict_schema((body.get("response_format") or {}).get("json_schema"), "response_format")


def _responses(model: str, rules: ModelRules, body: Mapping[str, Any]) -> dict[str, Any] | None:
    for name in body:
        if name not in RESPONSES_FIELDS:
            return _openai_error(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    for at, tool in enumerate(body.get("tools") or ()):
        if "name" not in tool:
            param = f"tools[{at}].name"
            return _openai_error(
                f"Missing required parameter: '{param}'.", param, "missing_required_parameter"
            )
    kinds = ("input_text", "input_image", "input_file", "output_text", "refusal")
    for at, item in enumerate(body["input"] if isinstance(body.get("input"), list) else ()):
        for number, part in enumerate(item.get("content") if isinstance(item.get("content"), list) else ()):
            if part.get("type") not in kinds:
                param = f"input[{at}].content[{number}]"
                message = f"Invalid value: '{part.get('type')}'. Supported values are: 'input_text', 'input_image', …"
                return _openai_error(message, param, "invalid_value")
    effort = (body.get("reasoning") or {}).get("effort")
    refused = _openai_refusals(model, rules, body, effort, "reasoning.effort")
    if refused is not None:
        return refused
    if "reasoning.encrypted_content" in (body.get("include") or ()) and not rules.reasons:
        return _openai_error("Encrypted content is not supported with this model.", "include", None)
    return _strict_schema((body.get("text") or {}).get("format"), "text.format")


def _openai_refusals(
    model: str, rules: ModelRules, body: Mapping[str, Any], effort: Any, param: str
) -> dict[str, Any] | None:
    if effort is not None and rules.efforts is not None and effort not in rules.efforts:
        if not rules.efforts:
            message = f"Unsupported parameter: '{param}' is not supported with this model."
            return _openai_error(message, param, "unsupported_parameter")
        values = ", ".join(f"'{each}'" for each in rules.efforts)
        message = (
            f"Unsupported value: '{effort}' is not supported with the '{model}' model."
            f" Supported values are: {values}."
        )
        return _openai_error(message, param, "unsupported_value")
    reasoning = rules.reasons and (effort or rules.default_effort) != "none"
    for name in body:
        if name in rules.refuses or (reasoning and name in rules.refuses_while_reasoning):
            if name == "temperature" and body[name] == DEFAULT_TEMPERATURE:
                continue
            if name == "temperature" and "mini" in model:
                message = (
                    f"Unsupported value: 'temperature' does not support {body[name]} with this model."
                    " Only the default (1) value is supported."
                )
                return _openai_error(message, name, "unsupported_value")
            message = f"Unsupported parameter: '{name}' is not supported with this model."
            return _openai_error(message, name, "unsupported_parameter")
    return None


def _strict_schema(form: Any, param: str) -> dict[str, Any] | None:
    from karat.models.providers._chat import is_strict

    if isinstance(form, dict) and form.get("strict") and not is_strict(form.get("schema")):
        message = (
            f"Invalid schema for {param} '{form.get('name')}': In context=(), 'additionalProperties' is required to"
            " be supplied and to be false."
        )
        return _openai_error(message, param, "invalid_json_schema")
    return None


def _anthropic(
    model: str, rules: ModelRules, body: Mapping[str, Any], headers: Mapping[str, str]
) -> str | None:
    if "anthropic-version" not in {name.lower() for name in headers}:
        return "anthropic-version: header is required"
    if "max_tokens" not in body:
        return "max_tokens: Field required"
    for name in body:
        if name not in ANTHROPIC_FIELDS:
            return f"{name}: Extra inputs are not permitted"
        if name in rules.refuses and not (name == "temperature" and body[name] == DEFAULT_TEMPERATURE):
            return f"`{name}` is deprecated for this model."
    if "temperature" in body and "top_p" in body and rules.json_format:
        return "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    thinking = (body.get("thinking") or {}).get("type")
    if thinking in ("disabled", "enabled") and rules.reasons and rules.thinking_off != thinking:
        return (
            f'"thinking.type.{thinking}" is not supported for this model. Use "thinking.type.adaptive" and'
            ' "output_config.effort" to control thinking behavior.'
        )
    effort = (body.get("output_config") or {}).get("effort")
    if effort is not None and (rules.efforts is None or effort not in rules.efforts):
        if not rules.efforts:
            return "This model does not support the effort parameter."
        values = " or ".join(repr(each) for each in rules.efforts if each != "none")
        return f"output_config.effort: Input should be {values}"
    forced = (body.get("tool_choice") or {}).get("type") in ("any", "tool")
    if forced and not rules.forced_tool:
        return 'tool_choice: type "tool" and "any" are not supported for this model.'
    if forced and thinking == "adaptive":
        return "Thinking may not be enabled when tool_choice forces tool use."
    form = (body.get("output_config") or {}).get("format")
    if form is not None:
        if not rules.json_format:
            return "output_config.format: Extra inputs are not permitted"
        if not _is_closed(form.get("schema")):
            problem = "For 'object' type, 'additionalProperties' must be explicitly set to false"
            return f"output_config.format.schema: {problem}"
    return _anthropic_messages(rules, body)


def _anthropic_messages(rules: ModelRules, body: Mapping[str, Any]) -> str | None:
    messages = body.get("messages") or []
    waiting: list[str] = []
    for at, message in enumerate(messages):
        if message.get("role") not in ("user", "assistant"):
            return f"messages.{at}.role: Input should be 'user' or 'assistant'"
        blocks = message.get("content") if isinstance(message.get("content"), list) else []
        answered = {block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"}
        if waiting and not set(waiting) <= answered:
            missing = ", ".join(waiting)
            problem = "`tool_use` ids were found without `tool_result` blocks immediately after"
            return f"messages.{at}: {problem}: {missing}."
        waiting = [block["id"] for block in blocks if block.get("type") == "tool_use"]
        for number, block in enumerate(blocks):
            if block.get("type") == "text" and not block.get("text"):
                return f"messages.{at}.content.{number}: text content blocks must be non-empty"
            if block.get("type") == "thinking" and "signature" not in block:
                return f"messages.{at}.content.{number}.thinking.signature: Field required"
            if block.get("type") in ("image_url", "file", "input_audio"):
                problem = "found using 'type' does not match any of the expected tags"
                return f"messages.{at}.content.{number}: Input tag '{block['type']}' {problem}"
    if (
        messages
        and messages[-1].get("role") == "assistant"
        and not rules.prefill
        and not _is_paused(messages[-1])
    ):
        return "This model does not support assistant message prefill. The conversation must end with a user message."
    return None


def _is_paused(message: Mapping[str, Any]) -> bool:
    """Whether it is a turn that stopped with `pause_turn`: it has blocks of a server tool, and is to be continued."""
    content = message.get("content")
    kinds = [str(block.get("type")) for block in content] if isinstance(content, list) else []
    return any(kind.endswith(("_tool_use", "_tool_result")) for kind in kinds)


def _is_closed(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(_is_closed(each) for each in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return False
    return all(_is_closed(value) for value in schema.values())
