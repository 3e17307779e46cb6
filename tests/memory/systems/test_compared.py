"""All built-in systems and controls, mem0 and langmem, offline, in one store and one report.

On the shipped set, and on a part of a published Mem-Gallery dialogue where the data are at hand.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from karat.cli import main
from karat.memory import MemoryEvaluation, evaluate
from karat.testing import only_loopback
from tests.memory.datasets.making import write_json
from tests.memory.datasets.test_mem_gallery import REAL
from tests.memory.systems.scripted import extracting
from tests.memory.systems.test_conformance import BUILT_IN, CONTROLS
from tests.memory.test_files import SNIPPET

pytest.importorskip("mem0")
pytest.importorskip("langmem")

FILES = {
    "pipeline_sessions.jsonl", "pipeline_qa.jsonl", "session_records.jsonl", "qa_records.jsonl",
    "aggregate_metrics.json",
}  # fmt: skip


def evaluated(dataset: str | Path, tmp_path: Path) -> dict[str, MemoryEvaluation]:
    """Every system and control on a dataset, in one store; each has written its files, and none left the machine."""
    store = f"sqlite:///{tmp_path / 'results.db'}"
    made = {}
    with extracting() as provider, only_loopback() as attempts:
        for name in [*CONTROLS, *BUILT_IN, "mem0", "langmem"]:
            made[name] = evaluate(
                dataset,
                name,
                output_dir=tmp_path / name,
                judge="deterministic",
                model="extractive",
                store=store,
                params={"model": provider.spec()} if name in ("mem0", "langmem") else None,
                progress=False,
            )
    assert attempts == []
    assert {name: each.exit_code for name, each in made.items()} == dict.fromkeys(made, 0)
    for name in made:
        assert {path.name for path in (tmp_path / name).iterdir() if path.is_file()} == FILES
        figures = json.loads((tmp_path / name / "aggregate_metrics.json").read_text())
        assert figures["baseline_id"] == name
        assert figures["question_answering"]["num_valid"] == figures["question_answering"]["num_total"] > 0
    report = made["langmem"].report()
    assert [name for name in made if name not in report] == []
    return made


def test_every_system_is_evaluated_on_the_shipped_set(tmp_path, capsys, monkeypatch):
    made = evaluated("demo", tmp_path)
    correct = {
        name: json.loads((tmp_path / name / "aggregate_metrics.json").read_text())["question_answering"]
        for name in made
    }
    assert correct["oracle"]["correct_ratio"] >= correct["no_memory"]["correct_ratio"]
    assert correct["always_refuse"]["hallucination_ratio"] == 0
    runs = [each.run.id for each in made.values()]
    assert (
        main(
            ["rank", *runs, "--metric", "answer", "--store", f"sqlite:///{tmp_path / 'results.db'}", "--json"]
        )
        == 0
    )
    ranked = json.loads(capsys.readouterr().out)
    assert {place["run"] for place in ranked["places"]} == set(runs)
    for name in ("mem0", "langmem"):  # the analysis of the format runs unchanged
        (tmp_path / name / "results").mkdir()
        (tmp_path / name / "results" / "FUMemory").symlink_to(tmp_path / name)
        monkeypatch.chdir(tmp_path / name)
        exec(SNIPPET, {})
        assert "Recall: " in capsys.readouterr().out


@pytest.mark.skipif(REAL is None, reason="the Mem-Gallery dialogues are not at hand")
def test_every_system_is_evaluated_on_a_published_dialogue(tmp_path):
    """The first two sessions of a dialogue, and the questions that are about nothing else."""
    assert REAL is not None
    whole: dict[str, Any] = json.loads((REAL / "Academic_Animal_Pet_Research_Life.json").read_text())
    sessions = whole["multi_session_dialogues"][:2]
    known = {each["session_id"] for each in sessions}
    asked = [each for each in whole["human-annotated QAs"] if set(each["session_id"]) <= known]
    assert len(asked) > 10
    part = {**whole, "multi_session_dialogues": sessions, "human-annotated QAs": asked}
    made = evaluated(write_json(tmp_path / "data" / "part.json", part), tmp_path)
    totals = {each.metrics["question_answering"]["num_total"] for each in made.values()}
    assert totals == {len(asked)}


ALONE = """
    import fcntl, socket, struct, sys
    with socket.socket() as lo:
        fcntl.ioctl(lo, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS: loopback is down at first

    def left():
        counted = [line.split() for line in open("/proc/self/net/snmp") if line.startswith("Ip:")]
        over4 = int(dict(zip(*counted))["OutNoRoutes"])
        return over4 + int(dict(line.split() for line in open("/proc/self/net/snmp6"))["Ip6OutNoRoutes"])

    import ctypes
    from karat.memory import evaluate
    from tests.memory.parts import sample
    from tests.memory.systems.scripted import extracting
    from tests.memory.systems.test_conformance import BUILT_IN, CONTROLS
    with extracting() as provider:
        for name in [*CONTROLS, *BUILT_IN, "mem0", "langmem"]:
            made = evaluate(
                [sample()], name, output_dir=f"{sys.argv[1]}/{name}", store="memory://", judge="deterministic",
                model="extractive", params={"model": provider.spec()} if name in ("mem0", "langmem") else None,
            )
            assert made.exit_code == 0, made.problems
    before, libc = left(), ctypes.CDLL(None)
    address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(80), socket.inet_aton("192.0.2.1"))
    libc.connect(libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0), address, len(address))
    print("tried to leave:", before, "and by hand:", left() - before)
    """


def test_no_connection_leaves_a_machine_that_is_only_loopback(tmp_path):
    """In a network namespace of its own, whose kernel counts what finds no route: of compiled code and children too."""
    alone = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("network namespaces are not allowed here")
    done = subprocess.run(
        [*alone, sys.executable, "-c", textwrap.dedent(ALONE), str(tmp_path)],
        capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False,
    )  # fmt: skip
    assert "tried to leave: 0 and by hand: 1" in done.stdout, done.stderr
