"""Fixtures for tests that call models: each test has its own cache, working folder and environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from karat import models

VARIABLES = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_MODEL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "KARAT_MODEL",
    "KARAT_JUDGE_MODEL",
    "KARAT_MODELS",
    "KARAT_MODEL_PATH",
    "KARAT_PRICES",
    "KARAT_STORE",
)
"""Settings of the person who runs the tests."""


@pytest.fixture(scope="session", autouse=True)
def close_models() -> Iterator[None]:
    """Close the clients of the process after the last test."""
    yield
    models.close()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the test, with the reply cache in it."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    monkeypatch.chdir(tmp_path)
    return tmp_path
