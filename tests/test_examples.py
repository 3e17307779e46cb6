"""Every script in examples/ runs to its end, in a fresh process and an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.test_docs import ROOT

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_runs(script, tmp_path):
    environment = {**os.environ, "KARAT_CACHE": str(tmp_path / "cache.db")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
