"""Stage 1 and 2 as stages: retries, costs by step, parallel samples, systems that work alone."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest

import karat
from karat.memory import Capabilities
from karat.testing import FakeProvider
from tests.memory.parts import Notes, labels_for, sample
from tests.memory.test_files import lines, run


def test_failed_questions_are_retried_and_the_restart_is_reported(tmp_path):
    class Shaky(Notes):
        """Fails on the first question, once."""

        name = "shaky"
        failed: list[str] = []

        def retrieve(self, query: str, top_k: int, now: str | None) -> Any:
            if not self.failed:
                self.failed.append(query)
                raise ConnectionError("not now")
            return super().retrieve(query, top_k, now)

    store = tmp_path / "karat.db"
    first = run(tmp_path / "out", Shaky, [sample()], store=store)
    assert first.metrics["missing"]["questions"] == 1
    assert first.exit_code == 1
    again = run(tmp_path / "out", Shaky, [sample()], store=store, retry_failed=True)
    assert again.run.id == first.run.id
    assert again.exit_code == 0
    assert len(lines(tmp_path / "out" / "qa_records.jsonl")) == 3
    assert any("first session" in notice for notice in again.notices)


def test_tokens_and_seconds_are_counted_by_step(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))

    class Spends(Notes):
        """Has a model of its own, of which it reports the tokens."""

        name = "spends"
        used = 0

        def ingest_turn(self, turn: Any) -> None:
            self.used += 10
            super().ingest_turn(turn)

        def retrieve(self, query: str, top_k: int, now: str | None) -> Any:
            self.used += 1
            return super().retrieve(query, top_k, now)

        def usage(self) -> dict[str, float]:
            return {"input_tokens": self.used, "output_tokens": 0, "cost": self.used / 1000}

    with FakeProvider(
        lambda body: {"text": '{"answer": "x", "cited": []}', "usage": {"input": 7, "output": 2}}
    ) as server:
        made = run(tmp_path / "out", Spends, [sample()], model=server.spec())
    spent = made.manifest["efficiency"]
    assert spent["write"]["input_tokens"] == 50
    assert spent["read"]["input_tokens"] == 3
    assert spent["write"]["cost"] == pytest.approx(0.05)
    assert spent["answer"]["n"] == 3
    assert spent["answer"]["input_tokens"] > 0
    assert spent["answer"]["p95_seconds"] >= spent["answer"]["p50_seconds"] > 0
    assert json.loads((tmp_path / "out" / ".karat" / "manifest.json").read_text())["efficiency"] == spent


def test_tokens_and_seconds_of_the_judge_are_separate(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    with FakeProvider(lambda body: {"text": labels_for(body), "usage": {"input": 11, "output": 3}}) as server:
        made = run(tmp_path / "out", samples=[sample()], judge=server.spec())
        asked = server.count
    spent = made.manifest["efficiency"]
    assert (spent["judge"]["input_tokens"], spent["judge"]["output_tokens"]) == (11 * asked, 3 * asked)
    assert spent["judge"]["n"] == asked
    assert spent["judge"]["p95_seconds"] >= spent["judge"]["p50_seconds"] > 0
    assert [spent[step]["input_tokens"] for step in ("write", "read", "answer")] == [0, 0, 0]
    printed = made.report()
    assert "\nAgreement " in printed
    assert all(
        re.search(rf"^{step} +\d", printed, re.MULTILINE) for step in ("write", "read", "answer", "judge")
    )


def test_the_files_do_not_depend_on_how_many_samples_are_driven_at_a_time(tmp_path):
    samples = [sample(f"s{number}", city) for number, city in enumerate(["Lyon", "Rome", "Kyiv", "Bern"])]
    run(tmp_path / "one", samples=samples, concurrency=1)
    run(tmp_path / "four", samples=samples, concurrency=4)
    for name in ("pipeline_sessions", "pipeline_qa", "session_records", "qa_records"):
        assert (tmp_path / "one" / f"{name}.jsonl").read_text() == (
            tmp_path / "four" / f"{name}.jsonl"
        ).read_text()


def test_a_system_that_works_alone_gets_one_sample_at_a_time(tmp_path):
    class Alone(Notes):
        """Notices a second instance at work."""

        name = "alone"
        lock = threading.Lock()

        def capabilities(self) -> Capabilities:
            return Capabilities(parallel=False)

        def reset(self, directory: Any) -> None:
            assert self.lock.acquire(blocking=False)
            super().reset(directory)

        def close(self) -> None:
            if self.lock.locked():
                self.lock.release()

    made = run(tmp_path / "out", Alone, [sample(f"s{n}") for n in range(4)], concurrency=4)
    assert made.metrics["missing"]["sessions"] == 0
    assert any("concurrency is 1" in notice for notice in made.notices)


def test_a_judge_that_judges_its_own_answers_is_named(tmp_path, monkeypatch, says):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))

    def both(body: dict[str, Any]) -> str:
        properties = body["response_format"]["json_schema"]["schema"]["properties"]
        return labels_for(body) if "verdicts" in properties else '{"answer": "x", "cited": []}'

    with FakeProvider(both) as server:
        made = run(tmp_path / "out", samples=[sample()], judge=server.spec(), model=server.spec())
    says(*made.notices)
    assert set(made.manifest["prompts"]["judge"]) == {
        "recall", "correctness", "update", "interference", "answer", "refusal", "evidence",
    }  # fmt: skip


async def _inside() -> Any:
    return await karat.memory.evaluate_async(
        [sample()], Notes, output_dir=_folder, judge="deterministic", model="extractive", store="memory://"
    )


_folder: Any = None


def test_it_works_on_an_event_loop(tmp_path):
    import asyncio

    global _folder
    _folder = tmp_path / "out"
    assert asyncio.run(_inside()).exit_code == 0


def test_a_state_that_cannot_be_loaded_starts_the_sample_again(tmp_path):
    class Damaged(Notes):
        """Is interrupted once, and cannot read what it saved."""

        name = "damaged"
        interrupted: list[str] = []

        def ingest_turn(self, turn: Any) -> None:
            if turn.session_id == "S02" and not self.interrupted:
                self.interrupted.append(turn.text)
                raise KeyboardInterrupt
            super().ingest_turn(turn)

        def load(self, directory: Any) -> None:
            self.turns = [("half", "of a state")]
            raise ValueError("damaged")

    store = tmp_path / "karat.db"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", Damaged, [sample()], store=store)
    made = run(tmp_path / "out", Damaged, [sample()], store=store)
    assert made.exit_code == 0
    assert any("first session" in notice for notice in made.notices)
    last = lines(tmp_path / "out" / "session_records.jsonl")[-1]
    assert [each["memory_id"] for each in last["memory_snapshot"]] == ["T1", "T2", "T3", "T4", "T5"]
