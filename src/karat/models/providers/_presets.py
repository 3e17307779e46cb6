"""The providers that karat knows by name, as data: address, wire formats, key, and how each differs.

`source` is the page to check a row against, and `checked` the day on which that was done; no provider was called.
Where a provider has an OpenAI-compatible endpoint, that one is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from karat.models.providers import Provider, Quirks, register_provider

if TYPE_CHECKING:
    from karat.models._endpoints import Endpoint


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One provider."""

    name: str
    base_url: str
    apis: tuple[str, ...] = ("chat",)
    base_url_env: str = ""
    base_url_suffix: str = ""
    key_env: str = ""
    token_env: str = ""
    key_header: str = "Authorization"
    needs_key: bool = True
    free: bool = False
    batches: str = ""
    quirks: Quirks = Quirks()
    source: str
    """Where the row can be checked."""
    checked: str
    """When the row was compared with the source, or with a stored copy of it."""


_RESPONSES_ONLY = re.compile(
    # gpt-5.4 and later, GPT-6: /chat/completions refuses function tools beside reasoning (OpenAI's deployment
    # checklist, 2026-11; github.com/openai/openai-openapi/issues/541, 2026-05-18; BerriAI/litellm/pull/34569).
    r"gpt-(?:5\.(?:[4-9]|\d\d)|[6-9]|\d\d)(?![\w.]*-chat)"
    # These are served by /responses alone (OpenAI's model pages).
    r"|(?:gpt-5[\w.]*|o[13])-pro|gpt-[\w.]+-codex|codex-mini|computer-use|o\d[\w-]*-deep-research"
)


def needs_responses(model: str) -> bool:
    """Whether OpenAI serves a model, with all it can do, by the Responses API only."""
    return _RESPONSES_ONLY.match(model) is not None


PRESETS = (
    Preset(
        name="openai",
        base_url="https://api.openai.com/v1",
        apis=("chat", "responses"),
        base_url_env="OPENAI_BASE_URL",
        key_env="OPENAI_API_KEY",
        batches="openai",
        source="https://developers.openai.com/api/reference; github.com/openai/openai-openapi (stored 2026-08-21)",
        checked="2026-11-18",
    ),
    Preset(
        name="anthropic",
        base_url="https://api.anthropic.com/v1",
        apis=("anthropic",),
        base_url_env="ANTHROPIC_BASE_URL",
        base_url_suffix="/v1",
        key_env="ANTHROPIC_API_KEY",
        key_header="x-api-key",
        batches="anthropic",
        source="https://platform.claude.com/docs/en/api/overview",
        checked="2026-11-18",
    ),
    Preset(
        name="azure",
        base_url="{AZURE_OPENAI_ENDPOINT}/openai/v1",
        apis=("chat", "responses"),
        base_url_env="AZURE_OPENAI_BASE_URL",
        key_env="AZURE_OPENAI_API_KEY",
        token_env="AZURE_OPENAI_AD_TOKEN",  # noqa: S106 - the name of a variable
        key_header="api-key",
        source="https://learn.microsoft.com/azure/foundry/openai/api-version-lifecycle (v1 API)",
        checked="2026-11-18",
    ),
    Preset(
        name="gemini",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        base_url_env="GEMINI_BASE_URL",
        key_env="GEMINI_API_KEY",
        source="https://ai.google.dev/gemini-api/docs/openai",
        checked="2026-11-18",
    ),
    Preset(
        name="vertex",
        base_url="https://aiplatform.googleapis.com/v1/projects/{GOOGLE_CLOUD_PROJECT}/locations/global/endpoints/openapi",
        base_url_env="VERTEX_BASE_URL",
        key_env="VERTEX_ACCESS_TOKEN",
        source="https://docs.cloud.google.com/vertex-ai/generative-ai/docs/migrate/openai/auth-and-credentials"
        " (tokens last an hour: api_key_command); …/docs/learn/locations (the global endpoint)",
        checked="2026-11-18",
    ),
    Preset(
        name="bedrock",
        base_url="https://bedrock-mantle.{AWS_REGION}.api.aws/v1",
        apis=("chat", "responses", "anthropic"),
        base_url_env="BEDROCK_BASE_URL",
        key_env="AWS_BEARER_TOKEN_BEDROCK",
        source="https://docs.aws.amazon.com/bedrock/latest/userguide/inference-responses-api.html;"
        " …/inference-messages-api.html (bedrock-runtime.REGION.amazonaws.com/openai/v1, which AWS recommends by now,"
        " has fewer models and features: set BEDROCK_BASE_URL for it, or for a model under /openai/v1 of mantle)",
        checked="2026-11-18",
    ),
    Preset(
        name="mistral",
        base_url="https://api.mistral.ai/v1",
        base_url_env="MISTRAL_BASE_URL",
        key_env="MISTRAL_API_KEY",
        quirks=Quirks(max_tokens="max_tokens", seed="random_seed", required_tool="any"),
        source="https://docs.mistral.ai/api",
        checked="2026-11-18",
    ),
    Preset(
        name="openrouter",
        base_url="https://openrouter.ai/api/v1",
        base_url_env="OPENROUTER_BASE_URL",
        key_env="OPENROUTER_API_KEY",
        quirks=Quirks(max_tokens="max_tokens", effort="reasoning", several=False, ignores_parameters=True),
        source="https://openrouter.ai/docs/features/provider-routing; …/docs/use-cases/reasoning-tokens",
        checked="2026-11-18",
    ),
    Preset(
        name="groq",
        base_url="https://api.groq.com/openai/v1",
        apis=("chat", "responses"),
        base_url_env="GROQ_BASE_URL",
        key_env="GROQ_API_KEY",
        quirks=Quirks(max_tokens="max_completion_tokens", several=False),
        source="https://console.groq.com/docs/openai (n must be 1; logprobs are a 400)",
        checked="2026-11-18",
    ),
    Preset(
        name="together",
        base_url="https://api.together.ai/v1",
        base_url_env="TOGETHER_BASE_URL",
        key_env="TOGETHER_API_KEY",
        quirks=Quirks(max_tokens="max_tokens"),
        source="https://docs.together.ai/docs/inference/openai-compatibility",
        checked="2026-11-18",
    ),
    Preset(
        name="fireworks",
        base_url="https://api.fireworks.ai/inference/v1",
        apis=("chat", "responses", "anthropic"),
        base_url_env="FIREWORKS_BASE_URL",
        key_env="FIREWORKS_API_KEY",
        quirks=Quirks(max_tokens="max_tokens"),
        source="https://docs.fireworks.ai/tools-sdks/openai-compatibility; …/nexus/apis-and-sdks (responses, messages)",
        checked="2026-11-18",
    ),
    Preset(
        name="deepseek",
        base_url="https://api.deepseek.com",
        base_url_env="DEEPSEEK_BASE_URL",
        key_env="DEEPSEEK_API_KEY",
        quirks=Quirks(
            max_tokens="max_tokens",
            thinking_switch=True,
            ignored_while_thinking=("temperature", "top_p", "presence_penalty", "frequency_penalty"),
            several=False,
            json_schema=False,
        ),
        source="https://api-docs.deepseek.com (response_format has json_object only); …/guides/thinking_mode (models"
        " think unless `thinking` is disabled; sampling parameters are then ignored without an error)",
        checked="2026-11-18",
    ),
    Preset(
        name="xai",
        base_url="https://api.x.ai/v1",
        apis=("responses", "chat"),  # chat completions are deprecated there
        base_url_env="XAI_BASE_URL",
        key_env="XAI_API_KEY",
        source="https://docs.x.ai/developers/model-capabilities/text/comparison",
        checked="2026-11-18",
    ),
    Preset(
        name="huggingface",
        base_url="https://router.huggingface.co/v1",
        apis=("chat", "responses", "anthropic"),
        base_url_env="HF_BASE_URL",
        key_env="HF_TOKEN",
        quirks=Quirks(max_tokens="max_tokens", several=False),
        source="https://huggingface.co/docs/inference-providers; …/guides/responses-api (beta);"
        " …/integrations/claude-code (messages)",
        checked="2026-11-18",
    ),
    Preset(
        name="ollama",
        base_url="http://localhost:11434/v1",
        apis=("chat", "responses", "anthropic"),
        base_url_env="OLLAMA_BASE_URL",
        needs_key=False,
        free=True,
        quirks=Quirks(max_tokens="max_tokens", several=False),
        source="https://docs.ollama.com/api/openai-compatibility (n is not supported); …/anthropic-compatibility"
        " (no tool_choice, so that nothing forces a schema there: structured: prompt)",
        checked="2026-11-18",
    ),
    Preset(
        name="vllm",
        base_url="http://localhost:8000/v1",
        apis=("chat", "responses", "anthropic"),
        base_url_env="VLLM_BASE_URL",
        key_env="VLLM_API_KEY",
        needs_key=False,
        quirks=Quirks(max_tokens="max_tokens"),
        source="https://docs.vllm.ai/en/stable/serving/online_serving.html",
        checked="2026-11-18",
    ),
    Preset(
        name="llama.cpp",
        base_url="http://localhost:8080/v1",
        apis=("chat", "responses", "anthropic"),
        base_url_env="LLAMA_CPP_BASE_URL",
        key_env="LLAMA_API_KEY",
        needs_key=False,
        free=True,
        quirks=Quirks(max_tokens="max_tokens", several=False, schema_field="json_schema"),
        source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md"
        " (servers announce at start that a future release will listen on 9931: pull/26508);"
        " tests/models/test_real_server.py (text.format of the Responses API is ignored, json_schema is not)",
        checked="2026-11-18",
    ),
    Preset(
        name="lmstudio",
        base_url="http://localhost:1234/v1",
        apis=("chat", "responses", "anthropic"),
        base_url_env="LMSTUDIO_BASE_URL",
        key_env="LM_API_TOKEN",
        needs_key=False,
        free=True,
        quirks=Quirks(max_tokens="max_tokens", several=False),
        source="https://lmstudio.ai/docs/developer/openai-compat; …/anthropic-compat; …/core/authentication",
        checked="2026-11-18",
    ),
    Preset(
        name="litellm",
        base_url="http://localhost:4000/v1",
        apis=("chat", "responses", "anthropic"),
        base_url_env="LITELLM_BASE_URL",
        key_env="LITELLM_API_KEY",
        needs_key=False,
        source="https://docs.litellm.ai/docs/proxy/user_keys; …/response_api; …/anthropic_unified",
        checked="2026-11-18",
    ),
)


class PresetProvider(Provider):
    """A provider that is a row of data."""

    preset: Preset

    def __init__(self) -> None:
        for field in Preset.__struct_fields__:
            if field not in ("source", "checked"):
                setattr(self, field, getattr(self.preset, field))
        self._urls: dict[tuple[str, str], str] = {}

    def choose_api(self, model: str, official: bool) -> str:
        """Return the API that a model needs (Responses, or Anthropic's on Bedrock), else the provider's first."""
        if self.name in ("openai", "azure") and official and needs_responses(model):
            return "responses"
        if self.name == "bedrock" and "anthropic." in model:
            return "anthropic"
        return self.apis[0]

    def url(self, base_url: str, endpoint: Endpoint, body: Mapping[str, Any]) -> str:
        known = self._urls.get((base_url, endpoint.api))  # no preset puts the model into the address
        if known is None:
            known = self._urls[base_url, endpoint.api] = self._url(base_url, endpoint, body)
        return known

    def _url(self, base_url: str, endpoint: Endpoint, body: Mapping[str, Any]) -> str:
        if self.name == "bedrock" and endpoint.api == "anthropic" and not base_url.endswith("/anthropic/v1"):
            base_url = base_url.removesuffix("/v1").removesuffix("/openai") + "/anthropic/v1"
        return super().url(base_url, endpoint, body)


for _preset in PRESETS:
    register_provider(_preset.name)(
        type(
            f"{_preset.name.title()}Provider",
            (PresetProvider,),
            {"preset": _preset, "__doc__": _preset.source},
        )
    )
