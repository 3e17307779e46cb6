"""The progress line: how far a stage is, and what it will have cost."""

from __future__ import annotations

import io

import pytest

import karat
from karat.execution import pipeline
from karat.execution.progress import Progress, ProgressLine
from karat.models._recording import counters
from karat.models.providers import _local
from karat.tasks.prompt import PromptTask
from karat.testing import FakeProvider


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (Progress("run", 100, done=25, cost=0.5), "$0.50 of about $2.00"),
        (Progress("run", 100, done=60, before=50, cost=0.5), "$0.50 of about $2.50"),
        (Progress("run", 100, done=100, cost=2.0), "$2.00"),
        (Progress("run", 100, done=50, before=50, cost=0.1), "$0.10"),
    ],
)
def test_the_line_shows_the_cost_so_far_and_the_projected_total(progress, said):
    parts = ProgressLine().line(progress).split("  ")
    assert said in parts


def test_a_run_reports_its_cost_as_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "TICK_SECONDS", 0.001)
    lines: list[str] = []
    with FakeProvider(lambda body: {"text": "x", "usage": (1000, 1000)}, latency=0.02) as server:
        (tmp_path / "models.yaml").write_text(
            f"priced:\n  model: m\n  base_url: {server.url}\n  prices: {{input: 100, output: 400}}\n"
        )
        task = PromptTask("{input}", model="priced")
        data = [{"id": str(n), "input": str(n)} for n in range(4)]
        show = ProgressLine()
        karat.run(task, data, store="memory://", concurrency=1, progress=lambda p: lines.append(show.line(p)))
    assert any("$0.50 of about $2.00" in line for line in lines)
    assert "$2.00" in lines[-1]
    assert "of about" not in lines[-1]


def test_without_a_cost_none_is_shown():
    assert "$" not in ProgressLine().line(Progress("run", 100, done=25))


class Stream(io.StringIO):
    """A stream that is a terminal, or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_line_says_which_variant_and_how_many_requests_wait(says):
    progress = Progress("run", 100, done=25, retries=3, waiting=12, variant=2, variants=4)
    line = ProgressLine().line(progress)
    says(*[part for part in line.split("  ") if "variant" in part or "retr" in part])
    assert "variant" not in ProgressLine().line(Progress("run", 100, variant=1, variants=1))


def test_a_log_gets_a_line_every_thirty_seconds():
    stream, clock = Stream(False), Clock()
    show = ProgressLine(stream, clock)
    progress = Progress("run", 1000)
    for second in range(95):
        clock.now = 100.0 + second
        progress.done = second
        show(progress)
    lines = stream.getvalue().splitlines()
    assert [line.split(" of ")[0] for line in lines] == ["karat: run: 30", "karat: run: 60", "karat: run: 90"]


def test_a_log_reports_at_once_that_a_model_is_loaded():
    stream = Stream(False)
    show = ProgressLine(stream, Clock())
    progress = Progress("run", 10)
    for note in ("", "loading local/small", "loading local/small", "", ""):
        progress.note = note
        show(progress)
    assert stream.getvalue().count("\n") == 1
    assert "loading local/small" in stream.getvalue()


def test_a_finished_line_is_written_once():
    stream = Stream(True)
    show = ProgressLine(stream, Clock())
    progress = Progress("run", 10, done=10)
    show(progress)
    show(progress)
    assert stream.getvalue().count("\n") == 1


def test_the_line_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = Stream(True)
    ProgressLine(stream, Clock())(Progress("run", 100_000, done=5, failed=5, retries=9, waiting=3, cost=4.0))
    assert len(stream.getvalue().strip("\r")) < 40


def test_progress_is_reported_while_every_request_waits(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    monkeypatch.setattr(pipeline, "TICK_SECONDS", 0.001)
    seen: list[int] = []
    with FakeProvider(rates={"500": 1.0}) as server:
        (tmp_path / "models.yaml").write_text(
            f"broken:\n  model: small\n  base_url: {server.url}\n  retries: {{limit: 3, base: 0.2}}\n"
        )
        monkeypatch.chdir(tmp_path)

        async def ask(text):
            return (await karat.models.get("broken").generate(text)).text

        data = [{"id": str(n), "input": str(n)} for n in range(3)]
        karat.run(ask, data, store="memory://", progress=lambda p: seen.append(p.waiting))
    assert max(seen) == 3


def test_retries_are_in_the_line(tmp_path, monkeypatch):
    """A provider that refuses every request: two retries for each of three records."""
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    stream = Stream(True)
    with FakeProvider(rates={"500": 1.0}) as server:
        (tmp_path / "models.yaml").write_text(
            f"broken:\n  model: small\n  base_url: {server.url}\n  retries: {{limit: 2, base: 0.001}}\n"
        )
        monkeypatch.chdir(tmp_path)

        async def ask(text):
            return (await karat.models.get("broken").generate(text)).text

        data = [{"id": str(n), "input": str(n)} for n in range(3)]
        run = karat.run(ask, data, store="memory://", progress=ProgressLine(stream))
        assert (run.counts.failed, server.count) == (3, 9)
    last = stream.getvalue().rstrip("\n").rpartition("\r")[2]
    assert "3 failed" in last
    assert "6 retries" in last
    assert "1 retry" in ProgressLine().line(Progress("run", 10, retries=1))


def test_loading_the_local_model_is_announced(monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr(_local, "_servers", {})
    monkeypatch.setattr(_local, "LlamaServer", lambda *_: seen.append(counters.loading))
    monkeypatch.setattr(_local.weights, "find", lambda _: None)
    _local.server_for("small")
    assert seen == ["local/small"]
    assert counters.loading == ""


def test_an_experiment_says_which_variant_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text("def shout(text, end=''):\n    return text.upper() + end\n")
    (tmp_path / "experiment.yaml").write_text(
        "dataset: [{id: a, input: one, expected: ONE}]\ntask: task.py:shout\nmatrix: {end: ['', '!']}\n"
        "evaluators: [exact_match]\n"
    )
    seen: list[tuple[str, int, int]] = []
    karat.experiment("experiment.yaml", progress=lambda p: seen.append((p.what, p.variant, p.variants)))
    assert set(seen) >= {("run", 1, 2), ("run", 2, 2), ("evaluate", 0, 0)}


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.02, "200/s"), (2, "2.0/s"), (40, "0.1/s"), (100, "2.4/min"), (1000, "0.2/min")]
)
def test_a_slow_rate_is_never_zero(monkeypatch, seconds, said):
    monkeypatch.setattr("karat.execution.progress.time.monotonic", lambda: 50.0 + seconds)
    assert Progress("run", 100, done=4, started=50.0).facts[0] == said
