"""Every test has its own cache, folder and environment; nothing of the person running the tests is used."""

from __future__ import annotations

import pytest

from karat import models
from karat.testing import FakeProvider

VARIABLES = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_MODEL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "KARAT_MODEL",
    "KARAT_JUDGE_MODEL",
    "KARAT_MODELS",
    "KARAT_PRICES",
    "KARAT_MODEL_PATH",
)


@pytest.fixture(scope="session", autouse=True)
def _ended():
    yield
    models.close()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def provider():
    with FakeProvider() as server:
        yield server


@pytest.fixture
def define(folder):
    """Writes models.yaml; `define(server, answers…)` gives a quick model that does not wait between tries."""

    def write(text: str) -> None:
        (folder / "models.yaml").write_text(text)

    return write


@pytest.fixture
def quick(define):
    """A model on a server whose retries wait next to nothing."""

    def make(server: FakeProvider, **fields: str) -> models.Model:
        more = "".join(f"  {name}: {value}\n" for name, value in fields.items())
        retries = "" if "retries" in fields else "  retries: {base: 0.0001, cap: 0.001}\n"
        define(f"quick:\n  model: fake\n  base_url: {server.url}\n{retries}{more}")
        return models.get("quick")

    return make
