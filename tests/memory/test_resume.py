"""Killed at any moment and resumed: the files are those of an undisturbed run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.memory.systems.test_conformance import BUILT_IN

ROOT = Path(__file__).parents[2]


SEED = os.environ.get("KARAT_TEST_SEED", "15")
"""Draws the moments of the kills; another one looks at others."""


def killed(folder: Path, saves: str, count: int) -> dict[str, Any]:
    """Kill and resume at `count` moments, drawn over the whole evaluation."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.memory.killed", str(folder), saves, str(count), SEED]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["moments"] > 100
    assert found["killed"] == count, found["drawn"]
    assert found["different"] == [], found["drawn"]
    assert found["again"] == [], found["drawn"]
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_a_system_that_saves_continues_and_takes_in_no_session_twice(tmp_path):
    found = killed(tmp_path, "saves", 16)
    assert not any("first session" in notice for notice in found["notices"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_system_continues(tmp_path, name):
    killed(tmp_path, name, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
@pytest.mark.parametrize("name", ["mem0", "langmem"])
def test_libraries_continue(tmp_path, name):
    pytest.importorskip(name)
    found = killed(tmp_path, name, 4)
    assert not any("first session" in notice for notice in found["notices"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_a_system_that_cannot_save_starts_again_and_says_so(tmp_path):
    found = killed(tmp_path, "forgets", 5)
    assert any("first session" in notice and "cannot save" in notice for notice in found["notices"])
