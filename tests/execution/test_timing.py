"""Service time apart from waiting: a rate limit must not make a model look slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import karat
from karat import models
from karat.models import _recording
from karat.models._recording import recording
from karat.records import Call, ItemResult, Output
from karat.testing import FakeProvider


def call(queue: float = 0.0) -> Call:
    return Call(kind="model", name="m", queue_seconds=queue)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 10, 4)], 4),  # start, end, and how long of it the call waited
        ([(0, 10, 10)], 10),
        ([(0, 10, 0)], 0),
        ([(0, 10, 25)], 10),  # an implausible report is bounded
        ([(0, 10, 4), (10, 20, 3)], 7),  # one after the other
        ([(0, 10, 4), (0, 12, 8)], 4),  # the second waits while the first is served
        ([(0, 10, 8), (0, 12, 8)], 8),  # both wait at the same time
        ([(0, 10, 2), (5, 30, 20)], 17),  # 2 of the first, then 15 when the first is over
    ],
)
def test_waiting_is_counted_once_and_only_while_nothing_is_served(
    monkeypatch: pytest.MonkeyPatch, spans: list[tuple[float, float, float]], expected: float
) -> None:
    now = [0.0]
    monkeypatch.setattr(_recording.time, "perf_counter", lambda: now[0])
    calls = recording()
    moments = [(start, 0, n) for n, (start, _, _) in enumerate(spans)]
    moments += [(end, 1, n) for n, (_, end, _) in enumerate(spans)]
    places = {}
    for moment, is_end, n in sorted(moments):
        now[0] = moment
        if is_end:
            calls.finish(places[n], call(spans[n][2]))
        else:
            places[n] = calls.begin(call())
    assert calls.queue_seconds() == expected
    assert recording().queue_seconds() == 0.0


def test_a_record_has_service_and_queue_seconds_apart() -> None:
    output = Output(format=1, example="a", outcome=None, seconds=3.0, queue_seconds=1.0)  # type: ignore[arg-type]
    result = ItemResult(
        format=1,
        example="a",
        key="k",
        runs=("r",),
        outcome=None,  # type: ignore[arg-type]
        seconds=3.0,
        queue_seconds=4.0,
    )
    assert (output.service_seconds, result.service_seconds) == (2.0, 0.0)


@pytest.mark.parametrize("how", ["async", "sync"])
def test_outputs_and_results_record_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    monkeypatch.chdir(tmp_path)
    with FakeProvider(latency=0.02) as server:
        Path("models.yaml").write_text(
            f"one:\n  model: fake\n  base_url: {server.url}\n  limits: {{concurrency: 1, adaptive: false}}\n"
        )
        model = models.get("one")

        async def ask_async(text: str) -> str:
            return str((await model.generate(text)).text)

        def ask(text: str) -> str:
            return str(model.generate_sync(text).text)

        async def judge_async(outputs: str) -> float:
            await model.generate(f"judge {outputs}")
            return 1.0

        def judge(outputs: str) -> float:
            model.generate_sync(f"judge {outputs}")
            return 1.0

        data = [{"id": str(n), "input": f"question {n}"} for n in range(4)]
        task: Any = ask if how == "sync" else ask_async
        run = karat.run(task, data, store="memory://", concurrency=4)
        evaluation = karat.evaluate(run, judge if how == "sync" else judge_async, concurrency=4)
    for records in (list(run.outputs()), list(evaluation.results())):
        assert any(each.queue_seconds > 0 for each in records)
        for each in records:
            assert each.queue_seconds <= each.seconds
            assert each.service_seconds == pytest.approx(each.seconds - each.queue_seconds)
            assert each.service_seconds > 0
