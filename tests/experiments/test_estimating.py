"""What a run will cost, before it is made: from its prompts, or from a few records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from karat import models
from karat.errors import RequestError
from karat.experiments.checking import read_experiment
from karat.experiments.estimating import estimate_plan, estimate_text
from karat.testing import FakeProvider


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    with FakeProvider(lambda body: {"text": "yes", "usage": (100, 20)}) as server:
        Path("models.yaml").write_text(
            f"m:\n  model: m\n  base_url: {server.url}\n  prices: {{input: 10, output: 50}}\n"
            "  limits: {requests_per_minute: 60}\n"
        )
        rows = [{"id": str(n), "q": "word " * 40} for n in range(50)]
        Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))

        def plan(task="prompt: 'Answer: {input}', model: m, max_tokens: 30", **options):
            Path("e.yaml").write_text("dataset: {path: d.jsonl, input: q, id: id}\ntask: {" + task + "}\n")
            return read_experiment("e.yaml", options=options)

        yield server, plan


def test_prompts_are_counted_without_a_call(experiment):
    server, plan = experiment
    (made,) = estimate_plan(plan(attempts=2))
    assert server.count == 0
    assert made.items == 100
    assert made.input_tokens.low < made.input_tokens.value < made.input_tokens.high
    assert made.input_tokens.value == pytest.approx(100 * 212 / 4)
    assert made.output_tokens.high == 100 * 30
    assert made.cost.high == pytest.approx((made.input_tokens.high * 10 + 3000 * 50) / 1e6)
    assert "bytes" in made.basis


def test_a_sample_of_records_is_made_and_not_paid_for_again(experiment):
    server, plan = experiment
    (made,) = estimate_plan(plan(), sample=5)
    assert server.count == 5
    assert (made.input_tokens.value, made.output_tokens.value) == (5000, 1000)
    assert made.cost.value == pytest.approx(50 * (100 * 10 + 20 * 50) / 1e6)
    assert (made.cost.low, made.cost.high) == (made.cost.value, made.cost.value)
    assert made.seconds >= 50  # at 60 requests a minute
    import karat

    planned = plan()
    run = karat.run(planned.runs[0].task, planned.dataset, store="memory://")
    assert run.counts.ok == 50
    assert server.count == 50
    assert "about $0.1000" in estimate_text([made])


def test_without_a_limit_or_a_price_nothing_is_promised(experiment):
    server, plan = experiment
    (made,) = estimate_plan(plan("prompt: '{input}', model: m"))
    assert (made.output_tokens.high, made.cost.high) == (None, None)
    (unpriced,) = estimate_plan(plan(f"prompt: '{{input}}', model: 'x@{server.url}', max_tokens: 5"))
    assert unpriced.cost.low is None
    assert "unknown" in estimate_text([unpriced])


def test_code_is_estimated_from_records_alone(experiment):
    server, plan = experiment
    Path("t.py").write_text(
        "from karat import models\nasync def ask(text):\n    return (await models.get('m').generate(text)).text\n"
    )
    with pytest.raises(RequestError, match="--estimate 5"):
        estimate_plan(plan("function: 't.py:ask'"))
    (made,) = estimate_plan(plan("function: 't.py:ask'"), sample=3)
    assert (server.count, made.input_tokens.value) == (3, 5000)
    models.close()
