"""The catalogue of usable models: what each needs, and whether it answers."""

from __future__ import annotations

from datetime import date

from karat import models
from karat.models.providers._presets import PRESETS


def rows():
    return {row["spec"]: row for row in models.available()}


def test_every_kind_is_listed_with_what_it_needs(monkeypatch, define):
    define("mine: {model: m, base_url: 'http://127.0.0.1:1/v1', api_key_env: MY_KEY}\n")
    found = rows()
    assert found["local/smollm2-135m"] == {
        "spec": "local/smollm2-135m",
        "kind": "local",
        "ready": True,
        "needs": "",
    }
    assert found["local/wordllama"]["kind"] == "embedder"
    assert (found["openai/NAME"]["ready"], found["openai/NAME"]["needs"]) == (False, "OPENAI_API_KEY")
    assert found["anthropic/NAME"]["needs"] == "ANTHROPIC_API_KEY"
    assert (found["mine"]["kind"], found["mine"]["needs"]) == ("defined", "MY_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_MODEL", "gpt-4o-mini")
    monkeypatch.setenv("MY_KEY", "k")
    assert rows()["openai/gpt-4o-mini"]["ready"]
    assert rows()["mine"]["ready"]


def test_absent_weights_are_needed(monkeypatch, folder):
    monkeypatch.setattr("karat.models.providers._weights.places", lambda weights: iter(()))
    assert "karat.models.pull()" in rows()["local/smollm2-135m"]["needs"]


def test_a_check_is_a_real_call_past_the_cache(provider):
    for _ in range(2):
        found = models.check(provider.spec("m"))
        assert (found["ok"], found["answer"], found["served_model"]) == (
            True,
            "Answer with the word yes.",
            "m",
        )
    assert provider.count == 2


def test_a_check_that_fails_says_why(says):
    assert models.check("local/wordllama")["answer"] == "256 dimensions"
    says(models.check("opnai/x")["error"])
    found = models.check("openai/gpt-4o-mini")
    assert not found["ok"]
    assert "OPENAI_API_KEY" in found["error"]


def test_every_preset_names_its_source_and_the_day_it_was_checked():
    names = {preset.name for preset in PRESETS}
    wanted = (
        "openai anthropic azure gemini vertex bedrock mistral openrouter groq together fireworks deepseek xai"
    )
    assert names == {*wanted.split(), "huggingface", "ollama", "vllm", "llama.cpp", "lmstudio", "litellm"}
    for preset in PRESETS:
        assert preset.source.startswith("https://"), preset.name
        date.fromisoformat(preset.checked)


def test_a_server_without_a_key_is_not_called_ready_before_it_is_asked(monkeypatch, define, says):
    define("here: {model: m, base_url: 'http://127.0.0.1:1/v1'}\n")
    for name in ("ollama", "vllm", "llama.cpp", "lmstudio", "litellm"):
        row = rows()[f"{name}/NAME"]
        assert row["ready"] is None
        says(row["needs"])
    assert rows()["here"]["ready"] is None
    monkeypatch.setenv("VLLM_BASE_URL", "http://other:8000/v1")
    says(rows()["vllm/NAME"]["needs"])
