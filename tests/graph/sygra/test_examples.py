"""SyGra's own examples: the same outputs as SyGra with the same scripted replies, or a refusal with the reason.

They are not part of this repository: `KARAT_SYGRA` names a clone of https://github.com/ServiceNow/SyGra.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.graph.sygra.scripted import EXAMPLES, Script, digest, prepare

CLONE = os.environ.get("KARAT_SYGRA", "")
pytestmark = pytest.mark.skipif(not CLONE, reason="set KARAT_SYGRA to a clone of SyGra")

BY_SYGRA = {
    "glaive_code_assistant": ("e796d8036c24b550", 6),
    "agent_simulation": ("4cc76eac144ac5f9", 8),
    "structured_output_with_multi_llm.dpo_samples": ("28032cf63fdafaa2", 12),
    "custom_subgraphs": ("f3f6259b4554d3fb", 7),
}
"""What `scripted.py` printed for SyGra c641f46: a digest of the record, and the number of requests."""


@pytest.fixture
def clone(tmp_path):
    """A copy of the clone without its media."""
    for part in ("sygra", "tasks"):
        shutil.copytree(Path(CLONE) / part, tmp_path / part, ignore=shutil.ignore_patterns("*.gif", "*.mp4"))
    return tmp_path


def in_clone(clone, program):
    """What a program prints that is run in the clone, as `karat run` is."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, '')\n{program}"],
        capture_output=True,
        text=True,
        cwd=clone,
        env={**os.environ, "KARAT_CACHE": str(clone / "replies.db")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_sygra_gives(clone, name, monkeypatch):
    monkeypatch.delenv("KARAT_MODELS", raising=False)
    before = dict(os.environ)
    script = Script()
    try:
        prepare(clone, script.url)
        records = in_clone(
            clone,
            "import json, karat\nfrom karat.graph import load_task\n"
            f"task = load_task('tasks.examples.{name}')\n"
            "run = karat.run(task, task.dataset(), store='memory://', progress=False, limit=1)\n"
            "print(json.dumps([output.value for output in run.outputs()]))\n",
        )
    finally:
        os.environ.clear()
        os.environ.update(before)
        script.server.shutdown()
    assert [(digest(record), script.requests) for record in records] == [BY_SYGRA[name]], records


def test_every_example_loads_or_is_refused_with_the_reason(clone, monkeypatch):
    """Models that the clone names and knows have an address here; packages that karat does not bring may be missing."""
    config = (clone / "sygra/config/models.yaml").read_text()
    for name in (line.partition(":")[0] for line in config.splitlines() if line[:1].isalnum()):
        variable = name.upper().replace(" ", "_")
        monkeypatch.setenv(f"SYGRA_{variable}_URL", "http://127.0.0.1:9/v1")
        monkeypatch.setenv(f"SYGRA_{variable}_TOKEN", "x")
    names = [
        ".".join(path.parent.relative_to(clone).parts)
        for path in sorted((clone / "tasks/examples").rglob("graph_config.yaml"))
    ]
    assert len(names) >= 20
    program = (
        "import json\nfrom karat.errors import ConfigError\nfrom karat.graph import load_task\nfound = {}\n"
        f"for name in {names!r}:\n"
        "    try:\n        load_task(name)\n        found[name] = []\n"
        "    except ConfigError as error:\n        found[name] = error.problems\n"
        "print(json.dumps(found))\n"
    )
    found = in_clone(clone, program)
    known = ("not supported: ", "No module named ", "unknown model ")
    for name, problems in found.items():
        assert all(any(reason in each for reason in known) for each in problems), (name, problems)
    loaded = {name.removeprefix("tasks.examples.") for name, problems in found.items() if not problems}
    assert loaded >= {*EXAMPLES, "evol_instruct", "self_refinement", "structured_output", "semantic_dedup"}
    refused = {name for name, problems in found.items() if any("not supported" in each for each in problems)}
    assert {name.rpartition(".")[2] for name in refused} >= {"text_to_image", "image_edit", "text_to_speech"}
