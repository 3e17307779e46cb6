"""Each kind of failure has its own type, with its own retry policy."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

import karat
from karat import models
from karat.errors import CredentialsRefused, Stopped
from karat.records import Failed
from karat.tasks.prompt import PromptTask
from karat.testing import Failing, FakeProvider


async def failure(server, quick, kind, **fields):
    model = quick(server, **fields)
    with models.recording(example="e") as calls, pytest.raises(kind) as caught:
        await model.generate("question")
    assert calls[0].error == f"{kind.__name__}: {caught.value}"
    return caught.value


async def test_a_refused_connection(quick, says):
    with FakeProvider() as gone:
        pass
    error = await failure(gone, quick, models.ConnectionRefused)
    assert f"127.0.0.1:{gone.port}" in str(error)
    says(error)
    assert [attempt.error for attempt in error.attempts] == ["ConnectionRefused"] * 4


async def test_an_unknown_host(define):
    define("far:\n  model: x\n  base_url: http://nowhere.invalid/v1\n  retries: {limit: 0}\n")
    with pytest.raises(models.ConnectionRefused, match=r"nowhere\.invalid"):
        await models.get("far").generate("x")


async def test_a_timeout(quick):
    with FakeProvider(latency=30) as server:
        error = await failure(server, quick, models.TimedOut, timeouts="{read: 0.05}")
        assert "read 0.05 s" in str(error)
        assert server.count == 3
        error = await failure(server, quick, models.TimedOut, timeouts="{total: 0.05}", retries="{limit: 0}")
        assert len(error.attempts) == 1


async def test_a_connection_that_times_out(define):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as busy, contextlib.ExitStack() as stack:
        for _ in range(8):  # nobody accepts: when its queue is full, who comes next waits
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(busy.getsockname())
        where = f"base_url: 'http://127.0.0.1:{busy.getsockname()[1]}/v1'"
        define(
            f"far: {{model: m, {where}, timeouts: {{connect: 0.05}}, retries: {{base: 0.0001}}, "
            "prices: {input: 1, output: 1}}\n"
        )
        with models.recording(example="e") as calls, pytest.raises(models.TimedOut) as caught:
            await models.get("far").generate("x")
        assert "no connection" in str(caught.value)
        assert "within 0.05 s" in str(caught.value)
        assert [attempt.error for attempt in caught.value.attempts] == ["TimedOut"] * 4
        assert calls[0].usage.cost == 0.0  # nothing was sent


async def test_400_is_never_asked_again_and_says_what_the_provider_says(quick, says):
    with FakeProvider(failures={1: Failing(status=400, message="temperature is out of range")}) as server:
        error = await failure(server, quick, models.BadRequest)
        says(error)
        assert server.count == 1


@pytest.mark.parametrize("status", [404, 405, 422])
async def test_other_4xx_are_not_asked_again(quick, status):
    with FakeProvider(failures={1: status}) as server:
        error = await failure(server, quick, models.BadRequest)
        assert error.status == status
        assert server.count == 1


async def test_a_redirect_is_not_followed(quick, says):
    with FakeProvider(
        failures={1: Failing(status=302, headers={"Location": "http://127.0.0.1:1/"})}
    ) as server:
        error = await failure(server, quick, models.BadRequest)
        assert error.status == 302
        says(error)


UNKNOWN_MODEL = [
    '{"error": {"message": "The model `fake` does not exist or you do not have access to it.",'
    ' "type": "invalid_request_error", "code": "model_not_found"}}',
    '{"type": "error", "error": {"type": "not_found_error", "message": "model: fake"}}',
    '{"error": {"message": "model \'fake\' not found", "type": "api_error"}}',
]


@pytest.mark.parametrize("body", UNKNOWN_MODEL)
def test_a_model_that_does_not_exist_is_one_failure_of_the_run(quick, body, refuses):
    failures = dict.fromkeys(range(1, 99), Failing(status=404, body=body))
    with FakeProvider(failures=failures) as server:
        task = PromptTask("{input}", model=quick(server).spec)
        with refuses(models.ParameterRefused):
            karat.run(task, [{"id": str(n), "input": n} for n in range(50)], store="memory://", concurrency=2)
        assert server.count <= 4


QUOTED = [  # a message that repeats the text of a record, and what the text is
    (400, "cannot process: invalid api key"),
    (400, "insufficient_quota: you have no credit"),
    (400, "authentication_error: the key was refused (401)"),
    (400, "temperature is not supported"),
    (400, "max_tokens: 100000 > 64000, which is the maximum allowed"),
    (400, "unsupported parameter: 'seed'"),
    (400, "this model does not support thinking"),
    (422, "the Max Tokens field must be at most 5"),
    (400, "use /v1/responses instead"),
    (404, "no endpoint takes the requested parameters"),
    (404, "the model `fake` does not exist"),
    (429, "insufficient_quota"),
]


@pytest.mark.parametrize(("status", "text"), QUOTED)
def test_an_error_that_quotes_a_record_fails_this_record_alone(quick, status, text):
    fields = {
        "parameters": "{temperature: 0.5, max_tokens: 9, seed: 3, effort: low}",
        "retries": "{limit: 0}",
    }
    body = json.dumps({"error": {"message": f"cannot answer {text}", "code": "bad_input"}})
    with FakeProvider(failures={1: Failing(status=status, body=body)}) as server:
        task = PromptTask("{input}", model=quick(server, **fields).spec)
        run = karat.run(task, [{"input": text}, {"input": "ordinary"}], store="memory://", concurrency=1)
    assert [isinstance(output.outcome, Failed) for output in run.outputs()] == [True, False]


@pytest.mark.parametrize(
    "code", [{"code": "x", "type": "insufficient_quota"}, {"code": "insufficient_quota"}]
)
async def test_an_account_without_credit_is_known_by_its_code_or_type(quick, code):
    body = json.dumps({"error": {"message": "no", **code}})
    with FakeProvider(failures={1: Failing(status=429, body=body)}) as server:
        with pytest.raises(models.QuotaExhausted):
            await quick(server).generate("x")
        assert server.count == 1


async def test_gemini_refuses_a_key_with_400(quick):
    body = json.dumps(
        [
            {
                "error": {
                    "code": 400,
                    "message": "API key not valid. Please pass a valid API key.",
                    "status": "INVALID_ARGUMENT",
                    "details": [{"reason": "API_KEY_INVALID", "domain": "googleapis.com"}],
                }
            }
        ]
    )
    with (
        FakeProvider(failures={1: Failing(status=400, body=body)}) as server,
        pytest.raises(CredentialsRefused),
    ):
        await quick(server).generate("x")


def test_another_404_fails_its_record_alone(quick):
    with FakeProvider(failures={1: Failing(status=404, message="no such file")}) as server:
        task = PromptTask("{input}", model=quick(server).spec)
        run = karat.run(task, [{"id": str(n), "input": n} for n in range(3)], store="memory://")
    assert (run.counts.ok, run.counts.failed) == (2, 1)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_stops_everything(quick, status, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "not the right one")
    with FakeProvider(failures=dict.fromkeys(range(1, 5), status)) as server:
        model = quick(server, api_key_env="SOME_KEY")
        with pytest.raises(CredentialsRefused, match="SOME_KEY") as caught:
            await model.generate("x")
        assert isinstance(caught.value, Stopped)
        assert caught.value.exit_code == 3
        assert server.count == 1


async def test_a_missing_key_stops_before_anything_is_sent(monkeypatch):
    with pytest.raises(CredentialsRefused, match="OPENAI_API_KEY"):
        await models.get("openai/gpt-4o-mini").generate("x")


async def test_an_account_without_credit_stops_everything(quick):
    with FakeProvider(failures={1: Failing(status=429, code="insufficient_quota")}) as server:
        with pytest.raises(models.QuotaExhausted, match="credit"):
            await quick(server).generate("x")
        assert server.count == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_passing_failures_are_asked_again(quick, status):
    with FakeProvider(failures={1: status, 2: status}) as server:
        with models.recording(example="e") as calls:
            reply = await quick(server).generate("question")
        assert reply.text == "question"
        assert [attempt.status for attempt in reply.attempts] == [status, status]
        assert [attempt["status"] for attempt in calls[0].metadata["attempts"]] == [status, status]
        assert server.count == 3


async def test_exhausted_retries_list_all_attempts(quick):
    with FakeProvider(rates={"500": 1.0}) as server:
        error = await failure(server, quick, models.ServerFailed, retries="{limit: 4, base: 0.0001}")
        assert len(error.attempts) == 5
        assert error.metadata["attempts"][0]["error"] == "ServerFailed"
        assert server.count == 5


async def test_a_dropped_connection_is_asked_again(quick):
    with FakeProvider(failures={1: Failing(drop=True)}) as server:
        reply = await quick(server).generate("question")
        assert [attempt.error for attempt in reply.attempts] == ["ConnectionDropped"]


async def test_a_body_cut_short_is_asked_again(quick):
    with FakeProvider(failures={1: Failing(truncate=True)}) as server:
        reply = await quick(server).generate("question")
        assert [attempt.error for attempt in reply.attempts] == ["BrokenBody"]


@pytest.mark.parametrize(
    "body", ["", "<html>busy</html>", "[1]", "{}", '{"choices": []}', '{"choices": [{}]}', "[" * 100_000]
)
async def test_a_malformed_body(quick, body):
    with FakeProvider(failures={n: Failing(body=body) for n in range(1, 9)}) as server:
        error = await failure(server, quick, models.BrokenBody)
        assert len(error.attempts) == 6
        assert len(str(error)) < 300


async def test_a_content_filter(quick):
    with FakeProvider(answers=lambda body: {"text": "", "finish_reason": "content_filter"}) as server:
        await failure(server, quick, models.ContentFiltered)
        assert server.count == 1
    with FakeProvider(failures={1: Failing(status=400, code="content_filter")}) as server:
        await failure(server, quick, models.ContentFiltered)


@pytest.mark.parametrize(
    ("finish", "text", "kind"),
    [
        ("content_filter", "x", models.ContentFiltered),
        ("stop", "", models.EmptyAnswer),
        ("error", "x", models.BrokenBody),
    ],
)
async def test_one_useless_answer_of_several_spoils_the_call_and_is_not_kept(quick, finish, text, kind):
    def choice(text, finish):
        return {"message": {"role": "assistant", "content": text}, "finish_reason": finish}

    answer = {"raw": {"choices": [choice("fine", "stop"), choice(text, finish)]}}
    with FakeProvider(lambda body: answer) as server:
        model = quick(server, retries="{limit: 0}")
        with models.recording(example="e"), pytest.raises(kind, match="one of 2"):
            await model.generate("q", n=2)
    assert models.cache_stats()["entries"] == 0


async def test_a_refusal_is_a_failure(quick):
    message = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
    raw = {"raw": {"choices": [{"message": message, "finish_reason": "stop"}]}}
    with FakeProvider(lambda body: raw) as server:
        error = await failure(server, quick, models.Refused)
        assert error.raw == "I cannot help with that."


@pytest.mark.parametrize(
    ("code", "kind", "times"),
    [(400, models.BadRequest, 1), (429, models.RateLimited, 3), (None, models.BrokenBody, 3)],
)
async def test_an_error_with_a_good_status(quick, code, kind, times):
    raw = {"raw": {"error": {"message": "no room upstream", "code": code}}}
    with FakeProvider(lambda body: raw) as server:
        error = await failure(server, quick, kind, retries="{limit: 2, base: 0.0001}")
        assert "no room upstream" in str(error)
        assert server.count == times


async def test_an_error_with_a_good_status_can_be_about_the_key(quick):
    raw = {"raw": {"error": {"message": "no such key", "code": 401}}}
    with FakeProvider(lambda body: raw) as server, pytest.raises(CredentialsRefused, match="no such key"):
        await quick(server).generate("x")


async def test_an_empty_answer(quick):
    for nothing in ("", " \n\t"):
        with FakeProvider(answers=nothing) as server:
            await failure(server, quick, models.EmptyAnswer)
    with FakeProvider(answers=lambda body: {"text": "", "finish_reason": "length"}) as server:
        assert "max_tokens" in str(await failure(server, quick, models.EmptyAnswer))


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens",
        "prompt is too long: 210000 tokens",
        "request (5031 tokens) exceeds the available context size",
        "input length and `max_tokens` exceed context limit: 199990 + 4096 > 200000",
    ],
)
async def test_a_context_that_is_too_long(quick, message):
    with FakeProvider(failures={1: Failing(status=400, message=message)}) as server:
        assert message in str(await failure(server, quick, models.ContextTooLong))


async def test_messages_of_providers_are_bounded_and_on_one_line(quick):
    with FakeProvider(failures={1: Failing(status=400, message="a\n\x1b[31m" + "b" * 10_000)}) as server:
        text = str(await failure(server, quick, models.BadRequest))
        assert len(text) < 700
        assert text.isprintable()


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    "way",
    [
        Failing(status=400),
        Failing(status=500),
        Failing(drop=True),
        Failing(truncate=True),
        Failing(body="{}"),
        Failing(body='{"choices": [{"message": {"content": "x"}, "finish_reason": "content_filter"}]}'),
        Failing(body='{"choices": [{"message": {"content": ""}, "finish_reason": "length"}]}'),
    ],
)
async def test_nothing_but_a_complete_answer_is_kept(quick, way, temperature):
    with FakeProvider(failures={1: way}) as server:
        model = quick(server, retries="{limit: 0}")
        for entries in (0, 1, 1):
            with models.recording(example="e"):
                if entries:
                    assert (await model.generate("q", temperature=temperature)).text == "q"
                else:
                    with pytest.raises(models.ModelFailure):
                        await model.generate("q", temperature=temperature)
            assert models.cache_stats()["entries"] == entries
        assert server.count == 2


async def test_failures_are_not_kept(quick):
    with FakeProvider(failures={1: 400}) as server:
        model = quick(server)
        for expected in (None, "question"):
            with models.recording(example="e"):
                if expected is None:
                    with pytest.raises(models.BadRequest):
                        await model.generate("question", temperature=0)
                else:
                    assert (await model.generate("question", temperature=0)).text == expected


async def test_a_wait_that_is_longer_than_allowed_is_named(quick, says):
    failing = Failing(status=429, headers={"retry-after": "9999"})
    with FakeProvider(failures={1: failing}) as server:
        error = await failure(server, quick, models.RateLimited)
        says(error)
        assert server.count == 1


async def test_a_schema_that_the_server_cannot_enforce_is_refused_with_the_fix(quick):
    failing = Failing(status=400, message="response_format is not supported")
    with FakeProvider(failures={1: failing, 2: failing}) as server:
        assert "structured: prompt" in str(await failure(server, quick, models.BadRequest))
        error = await failure(server, quick, models.BadRequest, structured="prompt")
        assert "structured: prompt" not in str(error)


async def test_a_key_for_an_address_is_given_in_models_yaml(refuses):
    with (
        FakeProvider(keys=["k"]) as server,
        refuses(CredentialsRefused),
    ):
        await models.get(server.spec()).generate("x")


@pytest.mark.parametrize("message", ["input was flagged by moderation", "violates our content policy"])
async def test_a_403_can_be_about_the_question(quick, message):
    with FakeProvider(failures={1: Failing(status=403, message=message)}) as server:
        assert message in str(await failure(server, quick, models.ContentFiltered))


@pytest.mark.parametrize(
    "body",
    [
        "[1]",
        "{}",
        '{"choices": []}',
        '{"choices": {"a": 1}, "id": 1}',
    ],
)
async def test_what_an_answer_lacks_is_told_in_words(quick, body, says):
    with FakeProvider(failures={1: Failing(body=body)}) as server:
        error = await failure(server, quick, models.BrokenBody, retries="{limit: 0}")
        says(error)


async def test_the_place_is_named_once(says):
    with FakeProvider() as gone:
        pass
    with pytest.raises(models.ConnectionRefused) as caught:
        await models.get(gone.spec()).generate("x")
    says(caught.value)


async def test_a_budget_and_a_refused_key_are_found_beside_the_other_failures():
    import karat.errors

    assert models.CredentialsRefused is karat.errors.CredentialsRefused
    assert models.BudgetReached is karat.errors.BudgetReached
