"""Every test has its own cache, folder and environment; nothing of the person running the tests is used."""

from __future__ import annotations

import pytest

from karat import models
from karat.testing import FakeProvider
from tests.clean_environment import close_models as close_models
from tests.clean_environment import folder as folder


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
