"""Entries of a models.yaml that was written for SyGra: recognised by `model_type`, checked when a model is used.

SyGra keeps addresses and keys out of the file: those of the model `gpt-4o` are in the environment variables
`SYGRA_GPT-4O_URL` and `SYGRA_GPT-4O_TOKEN`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from karat.errors import ConfigError
from karat.models._messages import PARAMETERS

COMPATIBLE = ("openai", "vllm", "tgi", "azure", "azure_openai", "ollama")
"""Model types that answer OpenAI's chat completions."""

RENAMED = {"max_new_tokens": "max_tokens"}


class SygraEntry:
    """One model of a SyGra models file, unconverted."""

    def __init__(self, name: str, given: Mapping[str, Any], path: str) -> None:
        self.name = name
        self.given = given
        self.path = path

    def _refuse(self, sentence: str) -> ConfigError:
        return ConfigError([f"{self.name}: {sentence}"], self.path)

    def fields(self) -> dict[str, Any]:
        """The fields of a karat entry that mean the same; what karat cannot ask is refused with the reason."""
        kind = str(self.given["model_type"])
        output, taken = self.given.get("output_type", "text"), self.given.get("input_type", "text")
        if output not in ("text", None):
            raise self._refuse(f"not supported: {output} output")
        if taken not in ("text", None):
            raise self._refuse(f"not supported: models of the input type {taken}")
        if kind not in COMPATIBLE:
            raise self._refuse(
                f"not supported: models of the type {kind} (supported: {', '.join(COMPATIBLE)});"
                " name another model with --model"
            )
        model = str(self.given.get("model") or self.given.get("model_serving_name") or self.name)
        out: dict[str, Any] = {"model": model, "parameters": self._parameters()}
        variable = "SYGRA_" + re.sub(r"\s+", "_", self.name).upper()
        token = f"{variable}_TOKEN"
        url = str(self.given.get("url") or os.environ.get(f"{variable}_URL", "")).split("|")[0].strip()
        if kind == "openai" and not url:
            return {
                **out,
                "model": f"openai/{model}",
                **({"key_env": token} if os.environ.get(token) else {}),
            }
        if kind == "ollama" and not url:
            url = "http://localhost:11434/v1"
        if not url:
            raise self._refuse(f"has no address: set {variable}_URL, or name another model with --model")
        host = urlsplit(url).hostname or ""
        if host.endswith((".azure.com", ".azure.us")) and urlsplit(url).path in ("", "/"):
            return {**out, "base_url": url.rstrip("/") + "/openai/v1", "headers_env": {"api-key": token}}
        return {**out, "base_url": url, **({"key_env": token} if os.environ.get(token) else {})}

    def _parameters(self) -> dict[str, Any]:
        given = self.given.get("parameters") or {}
        if not isinstance(given, Mapping):
            raise self._refuse("parameters is not a mapping")
        named = {RENAMED.get(str(key), str(key)): value for key, value in given.items()}
        own = {key: value for key, value in named.items() if key in PARAMETERS}
        extra = {key: value for key, value in named.items() if key not in PARAMETERS}
        return {**own, **({"extra": extra} if extra else {})}
