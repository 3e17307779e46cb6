"""What a run will cost, before it is made: from its prompts, or from a few records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from karat import models
from karat.errors import RequestError
from karat.experiments.checking import read_experiment
from karat.experiments.cost_estimate import Range, estimate_plan, estimate_text
from karat.testing import FakeProvider


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    with FakeProvider(lambda body: {"text": "yes", "usage": (100, 20)}) as server:
        Path("models.yaml").write_text(
            f"m:\n  model: m\n  base_url: {server.url}\n  prices: {{input: 10, output: 50}}\n"
            "  limits: {requests_per_minute: 60}\n"
            f"j:\n  model: j\n  base_url: {server.url}\n  prices: {{input: 10, output: 50}}\n"
        )
        rows = [{"id": str(n), "q": "word " * 40} for n in range(50)]
        Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))

        def plan(task="prompt: 'Answer: {input}', model: m, max_tokens: 30", evaluators="", **options):
            Path("e.yaml").write_text(
                "dataset: {path: d.jsonl, input: q, id: id}\ntask: {" + task + "}\n" + evaluators
            )
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
    assert made.seconds == 100  # at 60 requests a minute


def test_the_time_of_prompts_is_that_of_the_rate_limits_or_unknown(experiment):
    _, plan = experiment
    text = Path("models.yaml").read_text()
    Path("models.yaml").write_text(text.replace("requests_per_minute: 60", "tokens_per_minute: 530"))
    (made,) = estimate_plan(plan())
    assert made.seconds == pytest.approx(60 * made.input_tokens.value / 530)
    assert "time" in estimate_text([made])
    (unlimited,) = estimate_plan(plan("prompt: '{input}', model: j, max_tokens: 5"))
    assert unlimited.seconds is None


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


TASK = "prompt: 'Answer: {input}', model: j, max_tokens: 30"
JUDGES = """
judge: {model: j, samples: 2}
evaluators:
  - llm_judge
  - json_valid
  - {name: rubric_dag, params: {preset: answer_quality}}
"""


def verdict(body):
    """The task's answer, or the reply of whichever judge asks."""
    schema = str(body.get("response_format", ""))
    reply = {"analysis": "", "choice": "yes"} if "choice" in schema else {"analysis": "", "pass": True}
    return {"text": json.dumps(reply) if schema else "yes", "usage": (100, 20)}


def test_judges_are_counted_without_a_call(experiment):
    server, plan = experiment
    run, *judges = estimate_plan(plan(TASK, JUDGES))
    assert server.count == 0
    assert run.evaluator is None
    assert [each.evaluator for each in judges] == ["llm_judge", "answer_quality"]
    for each in judges:
        assert each.items == 50
        assert each.input_tokens.low < each.input_tokens.value < each.input_tokens.high
        assert 0 < each.cost.low < each.cost.high
        assert each.output_tokens.high >= 50 * 2 * 1024
    server.script.answers = verdict
    import karat

    planned = plan(TASK, JUDGES)
    made = karat.run(planned.runs[0].task, planned.dataset, store="memory://", concurrency=4)
    before = len(server.requests)
    karat.evaluate(made, planned.evaluators, concurrency=4)
    asked = [body for body in server.requests[before:] if "choice" not in str(body["response_format"])]
    sent = sum(len(message["content"].encode()) for body in asked for message in body["messages"])
    assert judges[0].input_tokens.low <= sent / 4 <= judges[0].input_tokens.high
    assert len(asked) == 50 * 2


def test_the_time_of_judges_is_that_of_the_rate_limits_of_their_models(experiment, says):
    _, plan = experiment
    judges = "judge: {model: m, samples: 2}\nevaluators: [llm_judge]\n"
    _, judge = estimate_plan(plan(TASK, judges))
    assert judge.seconds == pytest.approx(50 * 2)  # two requests for each item, at 60 a minute
    says(judge.basis)
    run, unlimited = estimate_plan(plan(TASK, judges.replace("model: m", "model: j")))
    assert (run.seconds, unlimited.seconds) == (None, None)
    assert estimate_text([run, unlimited]).count("time           unknown") == 2


def answer_with(usage):
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    return {"raw": {"model": "m", "choices": [choice], "usage": usage}}


PRICES = "{input: 10, output: 50, cache_read: 1, cache_write: 12, audio_input: 100, image_output: 200}"


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 80}}, 20 * 10 + 80 * 1 + 20 * 50),
        ({"prompt_tokens_details": {"audio_tokens": 60}}, 40 * 10 + 60 * 100 + 20 * 50),
        ({"completion_tokens_details": {"image_tokens": 10}}, 100 * 10 + 10 * 50 + 10 * 200),
    ],
    ids=["cached input", "audio", "images"],
)
def test_tokens_with_prices_of_their_own_are_estimated_at_these(experiment, usage, cost):
    server, plan = experiment
    counts = {"prompt_tokens": 100, "completion_tokens": 20, **usage}
    server.script.answers = lambda body: answer_with(counts)
    text = Path("models.yaml").read_text()
    Path("models.yaml").write_text(text.replace("{input: 10, output: 50}", PRICES))
    (asked,) = estimate_plan(plan(), sample=2)
    (again,) = estimate_plan(plan(), sample=2)  # from the cache: what they cost without it
    assert server.count == 2
    assert asked.cost.value == pytest.approx(50 * cost / 1e6)
    assert again.cost.value == pytest.approx(asked.cost.value)


def test_tokens_that_a_provider_does_not_count_are_unknown_and_not_zero(experiment, says):
    server, plan = experiment
    server.script.answers = lambda body: answer_with(None)
    for _ in range(2):
        (made,) = estimate_plan(plan(), sample=2)
        assert (made.input_tokens.value, made.output_tokens.value, made.cost.value) == (None, None, None)
        says(made.basis)


def test_images_make_what_prompts_cost_unknown(experiment):
    _, plan = experiment
    prompt = "prompt: [{role: user, content: [{type: text, text: 'What is {input}?'}, {type: image, path: a.png}]}]"
    (made,) = estimate_plan(plan(f"{prompt}, model: m, max_tokens: 5"))
    assert (made.input_tokens.value, made.input_tokens.high, made.cost.high) == (None, None, None)
    assert made.input_tokens.low == pytest.approx(50 * 213 / 5.5)
    assert "sample=5" in made.basis


@pytest.mark.parametrize("sample", [0, 2])
def test_a_batch_is_estimated_at_its_price_and_without_a_time(experiment, monkeypatch, sample, refuses):
    server, plan = experiment
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-test")
    task = "prompt: '{input}', model: openai/gpt-4o-mini, max_tokens: 5"
    (usual,) = estimate_plan(plan(task), sample=sample)
    (batch,) = estimate_plan(plan(task), sample=sample, batch=True)
    assert batch.cost.high == pytest.approx(usual.cost.high / 2)
    assert (batch.seconds, "batch" in batch.basis) == (None, True)
    with refuses(models.ParameterRefused):
        estimate_plan(plan("prompt: '{input}', model: ollama/x, max_tokens: 5"), batch=True)


def test_judges_of_a_sample_are_not_paid_for_again(experiment):
    server, plan = experiment
    server.script.answers = verdict
    run, judge, rubric = estimate_plan(plan(TASK, JUDGES), sample=5)
    assert run.cost.value == pytest.approx(50 * (100 * 10 + 20 * 50) / 1e6)
    assert judge.cost.value == pytest.approx(2 * run.cost.value)  # two votes
    assert rubric.cost.value == pytest.approx(2 * run.cost.value * 2)  # two nodes
    assert judge.model == "j"
    made = server.count
    assert made == 5 + 5 * 2 + 5 * 2 * 2
    import karat

    planned = plan(TASK, JUDGES)
    karat.evaluate(karat.run(planned.runs[0].task, planned.dataset, store="memory://"), planned.evaluators)
    assert server.count == 50 + 50 * 2 + 50 * 2 * 2
    assert "total cost" in estimate_text([run, judge, rubric])


COMPARED = """
judge: {model: j}
matrix: {max_tokens: [30, 40, 50]}
evaluators: [llm_judge, pairwise_judge]
"""


def choices(body):
    """The task's answer, the verdict of a judge, or the preference of one that compares."""
    schema = str(body.get("response_format", ""))
    reply = {"analysis": "", "choice": "first"} if "choice" in schema else {"analysis": "", "pass": True}
    return {"text": json.dumps(reply) if schema else "yes", "usage": (100, 20)}


def test_comparisons_of_runs_are_counted_without_a_call(experiment, says):
    server, plan = experiment
    made = estimate_plan(plan(TASK, COMPARED))
    assert server.count == 0
    assert [each.evaluator for each in made] == [None, "llm_judge"] * 3 + ["pairwise_judge"]
    compared = made[-1]
    assert compared.items == 3 * 50  # each pair of three runs
    assert compared.input_tokens.low < compared.input_tokens.value < compared.input_tokens.high
    assert compared.input_tokens.value > made[1].input_tokens.value * 3  # both orders, both outputs
    assert 0 < compared.cost.low < compared.cost.high
    [line] = [line for line in estimate_text(made).splitlines() if "pairwise_judge" in line]
    says(line)


def test_comparisons_of_a_sample_are_not_paid_for_again(experiment):
    server, plan = experiment
    server.script.answers = choices
    made = estimate_plan(plan(TASK, COMPARED), sample=5)
    assert [each.evaluator for each in made] == [None, "llm_judge"] * 3 + ["pairwise_judge"]
    run, compared = made[0], made[-1]
    assert compared.cost.value == pytest.approx(3 * 2 * run.cost.value)  # three pairs in both orders
    paid = server.count
    assert paid == 3 * 5 + 3 * 5 + 3 * 5 * 2
    import karat

    planned = plan(TASK, COMPARED)
    runs = [karat.run(each.task, planned.dataset, store="sqlite:///k.db") for each in planned.runs]
    evaluation = karat.evaluate(runs, planned.evaluators, store="sqlite:///k.db")
    assert evaluation.counts.failed == 0
    assert server.count == 3 * 50 + 3 * 50 + 3 * 50 * 2


def test_a_judge_of_what_no_output_has_yet_is_unknown_without_a_sample(experiment):
    _, plan = experiment
    judges = "judge: {model: m}\nevaluators:\n  - {name: groundedness, params: {context: output.documents}}\n"
    _, judge = estimate_plan(plan(TASK, judges))
    assert judge.input_tokens.value is None
    assert "sample=5" in judge.basis


def test_a_graph_is_estimated_and_not_run(experiment, tmp_path, capsys):
    server, _ = experiment
    Path("graph.yaml").write_text(
        "data_config: {examples: [{id: a, q: one}, {id: b, q: two}, {id: c, q: three}]}\n"
        "graph_config:\n  nodes:\n    ask:\n      node_type: llm\n      model: {name: m}\n"
        "      prompt: [{user: 'Answer {q}'}]\n"
    )
    from karat.cli import main

    store = f"sqlite:///{tmp_path}/k.db"
    assert main(["run", "graph.yaml", "--estimate", "--store", store, "--json"]) == 2
    assert server.count == 0
    capsys.readouterr()
    assert main(["run", "graph.yaml", "--estimate", "2", "--store", store, "--json"]) == 0
    [made] = json.loads(capsys.readouterr().out)["estimates"]
    assert (server.count, made["items"]) == (2, 3)
    assert made["cost"]["value"] == pytest.approx(3 * (100 * 10 + 20 * 50) / 1e6)
    assert not list(tmp_path.glob("*output*"))


def test_without_a_limit_or_a_price_nothing_is_promised(experiment):
    server, plan = experiment
    (made,) = estimate_plan(plan("prompt: '{input}', model: m"))
    assert (made.output_tokens.high, made.cost.high) == (None, None)
    assert "output tokens  unknown" in estimate_text([made])
    (unpriced,) = estimate_plan(plan(f"prompt: '{{input}}', model: 'x@{server.url}', max_tokens: 5"))
    assert unpriced.cost.low is None
    assert "unknown" in estimate_text([unpriced])


@pytest.mark.parametrize(
    ("extra", "most"),
    [("", 512), (", max_tokens: 7", 7), (", max_tokens: 9000", 2048), (", schema: {type: object}", 2048)],
)
def test_the_embedded_model_costs_nothing_and_ends_at_its_own_limit(experiment, extra, most):
    _, plan = experiment
    judged = "evaluators: [{name: llm_judge, params: {criterion: short, judge: local/smollm2-135m}}]\n"
    made, judge = estimate_plan(plan(f"prompt: '{{input}}', model: local/smollm2-135m{extra}", judged))
    assert made.output_tokens.high == 50 * most
    for each in (made, judge):
        assert each.cost == Range(0.0, 0.0, 0.0)
        assert "cost           $0.0000" in estimate_text([each])
    assert judge.input_tokens.high is not None


def test_the_upper_limit_allows_for_a_chat_template(experiment):
    """The template of the embedded model adds some 30 tokens to a prompt, which may be most of it."""
    _, plan = experiment
    Path("d.jsonl").write_text('{"id": "a", "q": "Hi"}\n{"id": "b", "q": "Hello"}\n')
    planned = plan("prompt: '{input}', model: local/smollm2-135m, max_tokens: 1")
    (made,) = estimate_plan(planned)
    (asked,) = estimate_plan(planned, sample=2)
    assert made.input_tokens.low <= asked.input_tokens.value <= made.input_tokens.high


def test_the_price_list_knows_the_longest_answer(experiment):
    _, plan = experiment
    text = Path("models.yaml").read_text()
    Path("models.yaml").write_text(text.replace("output: 50", "output: 50, max_output: 40"))
    (made,) = estimate_plan(plan("prompt: '{input}', model: m"))
    assert made.output_tokens.high == 50 * 40
    assert made.cost.high == pytest.approx((made.input_tokens.high * 10 + 2000 * 50) / 1e6)


def test_code_is_estimated_from_records_alone(experiment):
    server, plan = experiment
    Path("t.py").write_text(
        "from karat import models\nasync def ask(text):\n    return (await models.get('m').generate(text)).text\n"
    )
    with pytest.raises(RequestError, match="sample=5"):
        estimate_plan(plan("function: 't.py:ask'"))
    (made,) = estimate_plan(plan("function: 't.py:ask'"), sample=3)
    assert (server.count, made.input_tokens.value) == (3, 5000)
    models.close()
