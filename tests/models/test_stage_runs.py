"""Runs that ask models: what stops them, what they keep, what they cost, and what they never do twice."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading

import pytest

import karat
from karat import models
from karat.errors import BudgetReached, CredentialsRefused
from karat.tasks.prompt import PromptTask
from karat.testing import Failing, FakeProvider

PRICES = "{input: 1000, output: 2000, max_output: 50}"  # dollars for a million: easy to count


def questions(count):
    return [{"id": str(n), "input": f"question {n}"} for n in range(count)]


def asking(model, **parameters):
    """The same task twice: for the event loop and for threads."""

    async def in_the_loop(question):
        return (await model.generate(question, **parameters)).text

    def in_a_thread(question):
        return model.generate_sync(question, **parameters).text

    return {"async": in_the_loop, "sync": in_a_thread}


both = pytest.mark.parametrize("how", ["async", "sync"])


# A record that fails -------------------------------------------------------------


def test_a_record_that_fails_keeps_its_error_and_its_attempts(quick, folder):
    with FakeProvider(rates={"500": 1.0}) as server:
        task = PromptTask("{input}", model=quick(server, retries="{limit: 2, base: 0.01}"))
        karat.run(task, questions(3), store="sqlite:///karat.db")
    with karat.open_store("sqlite:///karat.db") as store:
        (run,) = store.runs.list()
        outputs = list(run.outputs())
    assert run.counts.failed == 3
    for output in outputs:
        failure = output.outcome.error
        assert failure.type == "ServerFailed"
        assert "injected failure (500)" in failure.message
        assert [attempt["status"] for attempt in failure.metadata["attempts"]] == [500] * 3
        assert [attempt["waited"] > 0 for attempt in failure.metadata["attempts"]] == [True, True, False]
        assert output.trace[0].error.startswith("ServerFailed")


def test_a_reply_that_does_not_fit_is_kept_unchanged(quick):
    with FakeProvider(["no", "still no"]) as server:
        task = PromptTask("{input}", model=quick(server), schema={"type": "object"})
        run = karat.run(task, questions(1), store="memory://")
    failure = next(run.outputs()).outcome.error
    assert (failure.type, failure.metadata["raw"]) == ("SchemaMismatch", "still no")
    assert len(failure.metadata["attempts"]) == 2


def test_a_record_succeeds_while_others_fail(quick):
    with FakeProvider(failures={1: Failing(status=400, message="a bad question")}) as server:
        run = karat.run(
            PromptTask("{input}", model=quick(server)), questions(5), store="memory://", concurrency=1
        )
    assert (run.counts.ok, run.counts.failed, run.status) == (4, 1, "partial")
    assert next(run.outputs()).outcome.error.message == "quick: a bad question (400)"


# A refused key -------------------------------------------------------------------


@both
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_stops_the_whole_run_and_the_right_one_continues_it(quick, status, how, refuses):
    with FakeProvider(latency=0.01) as server:
        task = asking(quick(server))[how]
        server.script.rates = {str(status): 1.0}
        with refuses(CredentialsRefused) as caught:
            karat.run(task, questions(300), store="sqlite:///karat.db", concurrency=8)
        assert caught.value.exit_code == 3
        assert "\n" not in str(caught.value)
        assert server.count <= 8
        server.script.rates = {}
        run = karat.run(task, questions(300), store="sqlite:///karat.db", concurrency=8)
        assert (run.counts.ok, run.counts.failed, run.status) == (300, 0, "success")


def swallowing(model):
    """Tasks that continue after any exception."""
    asks = asking(model)

    async def in_the_loop(question):
        try:
            return await asks["async"](question)
        except Exception:
            return "a fallback"

    def in_a_thread(question):
        try:
            return asks["sync"](question)
        except Exception:
            return "a fallback"

    return {"async": in_the_loop, "sync": in_a_thread}


@both
def test_a_refused_key_stops_a_run_also_when_the_task_catches_it(quick, how):
    with FakeProvider(rates={"401": 1.0}) as server:
        task = swallowing(quick(server))[how]
        with karat.open_store("memory://") as store:
            with pytest.raises(CredentialsRefused):
                karat.run(task, questions(50), store=store, concurrency=2)
            (run,) = store.runs.list()
            assert (run.status, run.counts.ok) == ("fatal_error", 0)
        assert server.count <= 4


def test_a_refused_key_is_not_a_score_when_a_judge_catches_it(quick):
    with FakeProvider(rates={"401": 1.0}) as server:
        model = quick(server)

        def judge(outputs):
            try:
                return float(model.generate_sync(f"is it good? {outputs}").text)
            except Exception:
                return 0.0

        run = karat.run(lambda question: question, questions(5), store="memory://")
        with pytest.raises(CredentialsRefused):
            karat.evaluate(run, [judge])


def test_a_refused_key_stops_also_when_an_evaluator_of_many_at_once_catches_it(quick):
    with FakeProvider(rates={"401": 1.0}) as server:
        model = quick(server)

        class Batched:
            key = "batched"
            is_async = False
            batched = True

            def evaluate_many(self, items):
                try:
                    return [float(model.generate_sync("is it good?").text) for _ in items]
                except Exception:
                    return [0.0 for _ in items]

            def evaluate(self, **item):
                return self.evaluate_many([item])[0]

        with karat.open_store("memory://") as store:
            run = karat.run(lambda question: question, questions(5), store=store)
            with pytest.raises(CredentialsRefused):
                karat.evaluate(run, [Batched()], store=store, concurrency=2)
            (evaluation,) = store.evaluations.list()
            assert (evaluation.status, evaluation.counts.ok, evaluation.counts.pending) == (
                "fatal_error",
                0,
                5,
            )
        assert server.count == 1


def test_calls_of_a_batched_evaluator_are_recorded_and_counted(quick):
    with FakeProvider(lambda body: {"text": "1", "usage": (10, 5)}) as server:
        model = quick(server, prices=PRICES)

        class Batched:
            key = "batched"
            is_async = False
            batched = True

            def evaluate_many(self, items):
                return [float(model.generate_sync("is it good?").text) for _ in items]

            def evaluate(self, **item):
                return self.evaluate_many([item])[0]

        run = karat.run(lambda question: question, questions(4), store="memory://")
        budget = models.Budget(10.0)
        evaluation = karat.evaluate(run, [Batched()], concurrency=2, budget=budget)
    assert server.count == 4, "samples: none is another's"
    assert evaluation.header.usage["quick"].cost == pytest.approx(budget.spent) == pytest.approx(0.08)
    assert [len(result.trace) for result in evaluation.results()] == [2, 0, 2, 0]


def test_a_caught_stop_inside_a_recording_of_the_task_itself_still_stops(quick):
    with FakeProvider(rates={"401": 1.0}) as server:
        ask = swallowing(quick(server))["async"]

        async def task(question):
            with models.recording(example="inner"):
                return await ask(question)

        with pytest.raises(CredentialsRefused):
            karat.run(task, questions(5), store="memory://")


@both
def test_a_refused_key_does_not_wait_long_for_calls_that_are_never_answered(quick, how, monkeypatch):
    monkeypatch.setattr("karat.execution.engines.PATIENCE_SECONDS", 0.05)
    with FakeProvider(rates={"401": 1.0}) as server, FakeProvider(latency=600) as silent:
        refused, patient = asking(quick(server))[how], asking(models.get(silent.spec()))[how]

        def task(question):
            return (patient if question == "question 0" else refused)(question)

        async def task_async(question):
            return await task(question)

        with pytest.raises(CredentialsRefused):
            karat.run(task_async if how == "async" else task, questions(4), store="memory://", concurrency=2)


@both
def test_a_budget_may_be_a_number_of_dollars(quick, how):
    with FakeProvider() as server:
        task = asking(quick(server, prices=PRICES), max_tokens=50)[how]
        with pytest.raises(BudgetReached):
            karat.run(task, questions(50), store="memory://", budget=0.5, concurrency=1)
        assert 0 < server.count < 50


@pytest.mark.parametrize("wrong", [{"budget": -1}, {"budget": "much"}, {"budget": True}, {"cache": "no"}])
def test_a_wrong_budget_or_cache_is_refused_before_anything_is_asked(wrong):
    with pytest.raises(karat.errors.RequestError, match=next(iter(wrong))):
        karat.run(lambda question: question, questions(1), store="memory://", **wrong)


def test_a_parameter_called_model_gets_the_default_model(provider, monkeypatch, refuses):
    monkeypatch.setenv("KARAT_MODEL", provider.spec())

    async def task(question, model):
        return (await models.get(model).generate(question)).text

    run = karat.run(task, questions(2), store="memory://")
    assert [output.outcome.value for output in run.outputs()] == ["question 0", "question 1"]
    monkeypatch.delenv("KARAT_MODEL")
    with refuses(karat.errors.RequestError):
        karat.run(task, questions(2), store="memory://")


def test_waiting_requests_learn_of_a_stop_at_once(quick):
    """Two are let through a second and one has to wait for long: the run must not wait for that."""
    ways = {1: Failing(status=503, headers={"retry-after": "100"}), 2: 401}
    with FakeProvider(latency=0.05, failures=ways) as server:
        model = quick(server, limits="{requests_per_minute: 120}")
        with pytest.raises(CredentialsRefused):
            karat.run(PromptTask("{input}", model=model), questions(50), store="memory://", concurrency=50)
        assert server.count == 2


# A budget ------------------------------------------------------------------------


@both
def test_a_budget_stops_cleanly_before_it_is_exceeded_and_a_larger_one_goes_on(quick, how):
    with FakeProvider(lambda body: {"text": "x", "usage": (10, 5)}, latency=0.005) as server:
        task = asking(quick(server, prices=PRICES), max_tokens=10)[how]
        budget = models.Budget(2.0)
        with pytest.raises(BudgetReached) as caught:
            karat.run(task, questions(300), store="sqlite:///karat.db", concurrency=8, budget=budget)
        assert caught.value.exit_code == 3
        assert server.count * 0.02 == pytest.approx(budget.spent)
        assert 0 < budget.spent <= 2.0
        assert budget.reserved == 0
        with karat.open_store("sqlite:///karat.db") as store:
            (run,) = store.runs.list()
            assert (run.counts.ok, run.counts.failed) == (server.count, 0)
        run = karat.run(
            task, questions(300), store="sqlite:///karat.db", concurrency=8, budget=models.Budget(100)
        )
        assert run.counts.ok == 300
        assert server.count == 300
        assert run.header.usage["quick"].cost == pytest.approx(300 * 0.02)


@both
def test_a_model_without_a_price_is_refused_and_no_record_is_spoilt(quick, how, refuses):
    with FakeProvider() as server:
        task = asking(quick(server))[how]
        with refuses(models.PriceUnknown) as caught:
            karat.run(task, questions(20), store="sqlite:///karat.db", budget=models.Budget(1))
        assert caught.value.exit_code == 2
        assert server.count == 0
        assert karat.run(task, questions(20), store="sqlite:///karat.db").counts.ok == 20


# Usage ---------------------------------------------------------------------------


def test_usage_is_added_up_per_model_and_an_unknown_price_is_not_zero(define):
    with FakeProvider(lambda body: {"text": "x", "usage": (10, 5)}) as server:
        define(f"""
priced: {{model: a, base_url: "{server.url}", prices: {PRICES}}}
other: {{model: b, base_url: "{server.url}"}}
""")
        priced, other = models.get("priced"), models.get("other")

        async def task(question):
            await priced.generate(question)
            await other.generate(question)
            return (await other.generate(question + "!")).text

        usage = karat.run(task, questions(4), store="memory://").header.usage
    assert (usage["priced"].calls, usage["priced"].input_tokens, usage["priced"].output_tokens) == (4, 40, 20)
    assert usage["priced"].cost == pytest.approx(4 * 0.02)
    assert (usage["other"].calls, usage["other"].input_tokens, usage["other"].cost) == (8, 80, None)


@pytest.mark.parametrize(
    ("answers", "failures", "cost", "output_tokens"),
    [
        (None, {1: 400}, 0.0, 0),  # refused: not charged
        (lambda body: {"text": "", "usage": (10, 5)}, {}, 0.02, 5),  # useless, and counted
        (lambda body: {"text": "no", "usage": (10, 5)}, {}, 0.04, 10),  # and so is its repair
        (None, dict.fromkeys(range(1, 20), Failing(drop=True)), None, 0),  # perhaps charged: nobody knows
    ],
)
def test_the_cost_of_a_failed_call_is_counted(quick, answers, failures, cost, output_tokens):
    with FakeProvider(answers, failures=failures) as server:
        model = quick(server, prices=PRICES, retries="{limit: 1, base: 0.0001}")
        task = PromptTask("{input}", model=model, schema={"type": "object"})
        run = karat.run(task, questions(1), store="memory://")
    assert run.counts.failed == 1
    usage = run.header.usage["quick"]
    assert usage.cost == (None if cost is None else pytest.approx(cost))
    assert usage.output_tokens == output_tokens


@both
def test_calls_before_a_timeout_are_recorded_and_counted(quick, define, how):
    answered = {"text": "x", "usage": (10, 5)}
    with FakeProvider(lambda body: answered) as server, FakeProvider(latency=600) as silent:
        define(
            f"""
quick: {{model: a, base_url: "{server.url}", prices: {PRICES}}}
silent: {{model: b, base_url: "{silent.url}", prices: {PRICES}}}
"""
        )
        first, second = asking(models.get("quick"))[how], asking(models.get("silent"))[how]

        async def in_the_loop(question):
            await first(question)
            return await second(question)

        def in_a_thread(question):
            first(question)
            return second(question)

        task = in_the_loop if how == "async" else in_a_thread
        budget = models.Budget(10.0)
        run = karat.run(task, questions(2), store="memory://", timeout=0.5, budget=budget)
        for output in run.outputs():
            assert output.outcome.error.type == "TimeoutError"
            assert [call.name for call in output.trace] == ["quick", "silent"]
            assert output.trace[0].usage.cost == pytest.approx(0.02)
            assert output.trace[1].error == ("cancelled" if how == "async" else "unfinished")
        usage = run.header.usage
        assert (usage["quick"].calls, usage["quick"].cost) == (2, pytest.approx(0.04))
        assert (usage["silent"].calls, usage["silent"].cost) == (2, None), "what it cost nobody knows"
        assert budget.spent + budget.reserved >= 0.04
        models.close()  # ends the threads that still wait


def test_a_judge_that_times_out_records_its_cost(quick):
    with FakeProvider(lambda body: {"text": "x", "usage": (10, 5)}) as server:
        model = quick(server, prices=PRICES)

        async def judge(outputs):
            await model.generate(outputs)
            await asyncio.sleep(600)

        run = karat.run(lambda question: question, questions(1), store="memory://")
        evaluation = karat.evaluate(run, [judge], timeout=0.5)
    assert evaluation.counts.failed == 1
    assert evaluation.header.usage["quick"].cost == pytest.approx(0.02)


def test_a_thread_whose_time_is_up_asks_nothing_more(quick, says):
    told, up = [], threading.Event()

    def task(question):
        up.wait(60)
        try:
            model.generate_sync(question)
        except TimeoutError as error:
            told.append(str(error))
        finally:
            up.clear()

    with FakeProvider() as server:
        model = quick(server)
        run = karat.run(task, questions(1), store="memory://", timeout=0.05)
        up.set()
        while up.is_set():
            pass
        assert server.count == 0
    assert run.counts.failed == 1
    says(*told)


@both
def test_a_stop_that_was_caught_is_noticed_also_when_the_time_is_up(quick, how):
    up = threading.Event()

    async def in_the_loop(question):
        await ask(question)
        await asyncio.sleep(600)

    def in_a_thread(question):
        ask(question)
        up.wait(60)

    with FakeProvider(rates={"401": 1.0}) as server:
        ask = swallowing(quick(server))[how]
        task = in_the_loop if how == "async" else in_a_thread
        with pytest.raises(CredentialsRefused):
            karat.run(task, questions(1), store="memory://", timeout=0.5)
        up.set()


# Kept answers --------------------------------------------------------------------


def test_samples_of_every_attempt_differ_and_all_of_them_are_kept(provider):
    numbers = iter(range(1000))
    provider.script.answers = lambda body: f"answer {next(numbers)}"
    model = models.get(provider.spec())

    async def three(question):
        return [(await model.generate("the same for all", temperature=1)).text for _ in range(3)]

    def answers(**options):
        run = karat.run(three, questions(2), attempts=2, store="memory://", **options)
        return [output.value for output in run.outputs()]

    first = answers()
    assert len({text for texts in first for text in texts}) == 2 * 2 * 3
    assert answers() == first
    assert provider.count == 12
    assert answers(cache="refresh") != first
    assert answers(cache="off") != answers()
    assert provider.count == 36


def test_another_replicate_asks_again(provider):
    numbers = iter(range(1000))
    provider.script.answers = lambda body: f"answer {next(numbers)}"
    task = PromptTask("{input}", model=provider.spec(), temperature=0)
    values = [
        [output.value for output in karat.run(task, questions(3), store="sqlite:///k.db", new=new).outputs()]
        for new in (False, False, True)
    ]
    assert values[0] == values[1]
    assert set(values[2]).isdisjoint(values[0])
    assert provider.count == 6


# Sharing, hanging, notebooks -----------------------------------------------------


def test_sync_and_async_tasks_share_the_limits_of_a_model(quick):
    with FakeProvider(latency=0.005) as server:
        model = quick(server, limits="{concurrency: 5}")
        tasks = asking(model)

        async def at_once():
            await asyncio.gather(
                *(
                    karat.run_async(task, questions(40), store="memory://", concurrency=20, cache="off")
                    for task in tasks.values()
                )
            )

        asyncio.run(at_once())
        assert server.count == 80
        assert server.most_in_flight == 5


async def test_a_plain_run_inside_a_running_loop(provider):
    run = karat.run(PromptTask("{input}", model=provider.spec()), questions(5), store="memory://")
    assert [output.value for output in run.outputs()] == [f"question {n}" for n in range(5)]


@both
def test_a_provider_that_never_answers_does_not_hang_a_run(quick, how):
    with FakeProvider(latency=600) as server:
        model = quick(server, timeouts="{total: 0.05}", retries="{limit: 1, base: 0.0001}")
        run = karat.run(asking(model)[how], questions(12), store="memory://", concurrency=6)
    assert run.counts.failed == 12
    assert {output.outcome.error.type for output in run.outputs()} == {"TimedOut"}


def test_a_provider_that_takes_no_connection_does_not_hang_a_run(define, says):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]  # the queue of connections is full with these
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        define(
            f"deaf:\n  model: m\n  base_url: http://127.0.0.1:{port}/v1\n"
            "  timeouts: {connect: 0.05}\n  retries: {limit: 0}\n"
        )
        run = karat.run(PromptTask("{input}", model="deaf"), questions(2), store="memory://")
        for each in waiting:
            each.close()
    failure = next(run.outputs()).outcome.error
    assert failure.type == "TimedOut"
    assert f"127.0.0.1:{port}" in failure.message
    says(failure.message)


# The command line ----------------------------------------------------------------


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "karat", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


def experiment(folder, model, more=""):
    (folder / "data.jsonl").write_text("".join(f'{{"id": "{n}", "input": "q {n}"}}\n' for n in range(60)))
    (folder / "prompt.yaml").write_text(
        f"dataset: {{path: data.jsonl}}\ntask: {{prompt: '{{input}}', model: {model}}}\nconcurrency: 20\n{more}"
    )


def test_a_refused_key_is_one_sentence_and_exit_code_3(folder, monkeypatch, says):
    with FakeProvider(keys=["the right one"], latency=0.01) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "the-wrong-one")
        experiment(folder, "openai/m")
        done = command("run", "prompt.yaml")
        assert done.returncode == 3
        said = [line for line in done.stderr.splitlines() if line]
        assert len(said) == 2
        says(said[0])
        assert said[1] == "to continue: karat run prompt.yaml"
        assert server.count <= 20
        monkeypatch.setenv("OPENAI_API_KEY", "the right one")
        assert command("run", "prompt.yaml").returncode == 0


def test_a_run_for_each_model(folder, provider):
    experiment(folder, provider.spec("a"))
    done = command("run", "prompt.yaml", "--model", provider.spec("a"), "--model", provider.spec("b"))
    assert done.returncode == 0, done.stderr
    assert sorted(request["model"] for request in provider.requests) == ["a"] * 60 + ["b"] * 60
    with karat.open_store("sqlite:///karat.db") as store:
        assert sorted(next(iter(run.header.usage)) for run in store.runs.list()) == [
            provider.spec("a"),
            provider.spec("b"),
        ]


# Secrets -------------------------------------------------------------------------

CANARY = "sk-canary-5f3a9b7c1d2e"


@pytest.mark.parametrize("place", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "api_key_env", "headers_env"])
@pytest.mark.parametrize("status", [None, 400, 401, 500])
def test_a_key_is_in_nothing_that_a_run_leaves_behind(
    folder, provider, monkeypatch, define, capfd, caplog, place, status
):
    caplog.set_level(logging.DEBUG)
    provider.script.answers = f"you sent {CANARY}"
    if status is not None:
        failing = Failing(status=status, message=f"bad key {CANARY}")
        provider.script.failures = dict.fromkeys(range(1, 50), failing)
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
    monkeypatch.setenv(place if place.isupper() else "MY_KEY", CANARY)
    fields = {
        "OPENAI_API_KEY": "model: openai/m",
        "ANTHROPIC_API_KEY": "model: anthropic/m",
        "api_key_env": f"model: m\n  base_url: {provider.url}\n  api_key_env: MY_KEY",
        "headers_env": f"model: m\n  base_url: {provider.url}\n  headers_env: {{X-Own: MY_KEY}}",
    }
    define(f"mine:\n  {fields[place]}\n  retries: {{limit: 1, base: 0.001}}\n")
    from karat.cli import main

    experiment(folder, "mine")
    said = [main(["run", "prompt.yaml", "--limit", "2", *more]) for more in ([], ["--json"])]
    assert said[0] == {None: 0, 400: 1, 401: 3, 500: 1}[status]
    main(["ls", "--json"])
    with karat.open_store("sqlite:///karat.db") as store:
        for run in store.runs.list():
            main(["show", run.id])
            main(["export", run.id, "-o", str(folder / f"export-{status}.jsonl")])
    out, err = capfd.readouterr()
    models.close()
    found = out + err + caplog.text
    for path in folder.rglob("*"):
        if path.is_file():
            found += path.read_bytes().decode("latin-1")
    assert CANARY in str(provider.headers)
    assert "[secret]" in found
    assert CANARY not in found
