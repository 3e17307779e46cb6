"""The evaluation of memory systems is a plug-in: it imports what any plug-in may import, and nothing else of karat."""

from __future__ import annotations

from pathlib import Path

import pytest

import karat.memory
from tests.graph.test_public_api import refused

FOLDER = Path(karat.memory.__file__).parent


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: str(p.relative_to(FOLDER)))
def test_memory_imports_only_what_a_plugin_may(path):
    assert refused(path, "karat.memory") == []
