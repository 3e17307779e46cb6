"""Structured output: native support, the prompt, one repair, and an error with the raw text."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, RootModel

from karat import models
from karat.errors import RequestError
from karat.json_schema import validator
from karat.models import _structured
from karat.models._structured import output_schema, wrapped_schema
from karat.models.providers._chat import is_strict
from karat.testing import FakeProvider

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["city"],
}


class City(BaseModel):
    city: str
    people: int = 0


async def test_a_json_schema(quick):
    with FakeProvider('{"city": "Rome", "people": 3}') as server:
        reply = await quick(server).generate("q", schema=CITY)
        assert reply.parsed == {"city": "Rome", "people": 3}
        sent = server.requests[0]["response_format"]
        assert sent["json_schema"]["schema"] == CITY
        assert sent["json_schema"]["strict"] is False


async def test_a_pydantic_model(quick):
    with FakeProvider('{"city": "Rome"}') as server:
        reply = await quick(server).generate("q", schema=City)
        assert reply.parsed == City(city="Rome")
        assert server.requests[0]["response_format"]["json_schema"]["name"] == "City"


@pytest.mark.parametrize("text", ['```json\n{"city": "Rome"}\n```', 'Here it is: {"city": "Rome"} — enjoy.'])
async def test_json_in_a_fence_or_a_sentence(quick, text):
    with FakeProvider(text) as server:
        assert (await quick(server).generate("q", schema=CITY)).parsed == {"city": "Rome"}
        assert server.count == 1


async def test_one_repair_is_asked_for(quick):
    with FakeProvider(['{"town": "Rome"}', '{"city": "Rome"}']) as server:
        with models.recording(example="e") as calls:
            reply = await quick(server).generate("q", schema=CITY)
        assert reply.parsed == {"city": "Rome"}
        assert server.count == 2
        said = server.requests[1]["messages"]
        assert said[1] == {"role": "assistant", "content": '{"town": "Rome"}'}
        assert "'city' is a required property" in said[2]["content"]
        assert [attempt.error for attempt in reply.attempts] == ["SchemaMismatch"]
        assert calls[0].usage.input_tokens == reply.usage.input_tokens > 10  # both answers were paid for
        with models.recording(example="e"):
            again = await quick(server).generate("q", schema=CITY)
        assert (again.parsed, again.cached, server.count) == ({"city": "Rome"}, True, 2)


async def test_an_invalid_repaired_reply_is_an_error_and_is_not_cached(quick):
    with FakeProvider(["no", "still no", '{"city": "Rome"}']) as server:
        with pytest.raises(models.SchemaMismatch, match="not JSON") as caught, models.recording(example="e"):
            await quick(server).generate("q", schema=CITY)
        assert caught.value.raw == "still no"
        assert [attempt.error for attempt in caught.value.attempts] == ["SchemaMismatch"] * 2
        with models.recording(example="e"):
            assert (await quick(server).generate("q", schema=CITY)).parsed == {"city": "Rome"}


async def test_a_pydantic_validator_counts(quick):
    with FakeProvider(['{"city": "Rome", "people": "many"}', '{"city": "Rome", "people": 4}']) as server:
        assert (await quick(server).generate("q", schema=City)).parsed == City(city="Rome", people=4)


async def test_without_a_way_of_its_own_the_schema_goes_into_the_prompt(quick):
    with FakeProvider('{"city": "Rome"}') as server:
        await quick(server, structured="prompt").generate("q", schema=CITY)
        sent = server.requests[0]
        assert "response_format" not in sent
        assert json.dumps(CITY, separators=(",", ":")) in sent["messages"][0]["content"]


async def test_anthropic_is_held_to_the_form_by_a_tool(monkeypatch):
    def answers(body):
        name = body["tool_choice"]["name"]
        return {"text": None, "tool_calls": [{"name": name, "arguments": {"city": "Rome"}}]}

    with FakeProvider(answers) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        reply = await models.get("anthropic/m").generate("q", schema=City)
        assert reply.parsed == City(city="Rome")
        assert json.loads(reply.text) == {"city": "Rome"}
        assert reply.tool_calls == []
        assert server.requests[0]["tools"][0]["input_schema"]["properties"].keys() == {"city", "people"}


async def test_anthropic_and_a_schema_that_is_not_an_object(monkeypatch):
    with FakeProvider(
        lambda body: {"text": None, "tool_calls": [{"name": "answer", "arguments": {"answer": [1, 2]}}]}
    ) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        reply = await models.get("anthropic/m").generate("q", schema={"type": "array"})
        assert reply.parsed == [1, 2]


async def test_a_model_that_calls_the_callers_tools_first_is_let(quick):
    with FakeProvider(
        lambda body: {"text": None, "tool_calls": [{"name": "look", "arguments": {}}]}
    ) as server:
        reply = await quick(server).generate(
            "q", schema=CITY, tools=[{"type": "function", "function": {"name": "look"}}]
        )
        assert reply.tool_calls[0].name == "look"
        assert reply.parsed is None


async def test_a_wrong_schema_is_told_before_anything_is_sent(provider, refuses):
    model = models.get(provider.spec())
    with pytest.raises(RequestError, match=r"schema .*\$\.type"):
        await model.generate("q", schema={"type": "strnig"})
    with refuses(RequestError):
        await model.generate("q", schema=5)
    deep: dict[str, object] = {}
    for _ in range(3000):
        deep = {"items": deep}
    chain = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#"}]}}}
    for schema in ({"$ref": "#"}, chain, deep, {"propertys": {}}):
        with refuses(RequestError):
            await model.generate("q", schema=schema)
    assert provider.count == 0


def test_strict_is_for_schemas_that_allow_it():
    closed = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert is_strict(closed)
    assert not is_strict(CITY)
    assert not is_strict({**closed, "properties": {"a": CITY}})
    assert not is_strict({"anyOf": [closed, CITY]})


@pytest.mark.parametrize("text", [None, "Here it is."])
async def test_the_repair_request_quotes_the_reply(monkeypatch, text):
    """Anthropic answers through a tool, mostly without any text."""
    inputs = iter([{"town": "Rome"}, {"city": "Rome"}])

    def answers(body):
        return {
            "text": text,
            "tool_calls": [{"name": body["tool_choice"]["name"], "arguments": next(inputs)}],
        }

    with FakeProvider(answers) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        reply = await models.get("anthropic/m").generate("q", schema=City)
        assert reply.parsed == City(city="Rome")
        said = server.requests[1]["messages"]
        assert said[1]["content"] == [{"type": "text", "text": '{"town":"Rome"}'}]
        assert "city: Field required" in said[2]["content"][0]["text"]


@pytest.mark.parametrize("schema", [CITY, City])
async def test_who_was_asked_is_not_told_to_the_model(schema, says):
    with FakeProvider(['{"town": "Rome"}', '{"city": "Rome"}']) as server:
        await models.get(server.spec()).generate("q", schema=schema)
        messages = server.requests[1]["messages"]
        asked = json.dumps(messages)
        assert "http" not in asked
        assert "127.0.0.1" not in asked
        says(json.dumps(messages[-1]))


class Cities(RootModel[list[City]]):
    """A root that is not an object, with a definition that is referenced."""


def resolves(schema):
    """Whether every reference of a schema leads somewhere: checking a value follows them."""
    value = {"answer": [{"city": "Rome"}]}
    return list(Draft202012Validator(schema).iter_errors(value)) == []


async def test_openai_schemas_that_are_not_objects_are_wrapped(quick):
    with FakeProvider('{"answer": [{"city": "Rome"}]}') as server:
        reply = await quick(server).generate("q", schema=Cities)
        assert reply.parsed == Cities([City(city="Rome")])
        assert json.loads(reply.text) == [{"city": "Rome"}]
        sent = server.requests[0]["response_format"]["json_schema"]["schema"]
        assert sent["type"] == "object"
        assert resolves(sent)


@pytest.mark.parametrize("text", ['[{"city": "Rome"}]', 'Here: ```json\n{"answer": [{"city": "Rome"}]}\n```'])
async def test_a_server_that_wraps_otherwise_or_not_at_all(quick, text):
    with FakeProvider(text) as server:
        assert (await quick(server).generate("q", schema=Cities)).parsed == Cities([City(city="Rome")])
        assert server.count == 1


async def test_a_wrapper_that_the_prompt_asks_for_stays(quick):
    anything = {"anyOf": [{"type": "object", "required": ["answer"]}, {"type": "array"}]}
    with FakeProvider('{"answer": 1}') as server:
        reply = await quick(server, structured="prompt").generate("q", schema=anything)
        assert reply.parsed == {"answer": 1}


async def test_anthropic_gets_definitions_where_references_lead(monkeypatch):
    call = {"name": "Cities", "arguments": {"answer": [{"city": "Rome"}]}}
    with FakeProvider(lambda body: {"text": None, "tool_calls": [call]}) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        reply = await models.get("anthropic/m").generate("q", schema=Cities)
        assert reply.parsed == Cities([City(city="Rome")])
        assert resolves(server.requests[0]["tools"][0]["input_schema"])


def test_a_schema_that_refers_to_itself_still_does_when_it_is_wrapped():
    nested = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}}
    check = Draft202012Validator(wrapped_schema(nested))
    assert check.is_valid({"answer": [1, [2, [3]]]})
    assert not check.is_valid({"answer": [1, ["two"]]})


async def test_a_repair_is_a_call_of_its_own(quick):
    async def calls(server, kind=None):
        with models.recording(example="e", cache="off") as made:
            if kind is None:
                await quick(server).generate("q", schema=CITY)
            else:
                with pytest.raises(kind):
                    await quick(server).generate("q", schema=CITY)
        return made[0].usage.calls

    with FakeProvider(["no", '{"city": "Rome"}'], failures={1: 500}) as server:
        assert await calls(server) == 1  # asked again, and right
    with FakeProvider(["no", '{"city": "Rome"}']) as server:
        assert await calls(server) == 2
    with FakeProvider("no") as server:
        assert await calls(server, models.SchemaMismatch) == 2
    with FakeProvider("no", failures={2: 400}) as server:
        assert await calls(server, models.BadRequest) == 2
    with FakeProvider("no", failures={1: 400}) as server:
        assert await calls(server, models.BadRequest) == 1


def test_an_answer_of_many_wrong_values_is_looked_through_only_so_far(refuses):
    """Each violation takes 50 µs and a kilobyte: one answer of 2 MB took 28 s and 1.4 GB."""
    schema = {"type": "array", "items": {"type": "integer", "minimum": 1}}
    form, read = output_schema(schema), []

    class Watched:
        def iter_errors(self, value):
            for error in validator(schema).iter_errors(value):
                read.append(error.validator)
                yield error

    form._validator = Watched()
    with refuses(ValueError):
        form.read('["1",' + '"x",' * 20_000 + '"2"]')
    assert len(read) == 3
    del read[:]
    with refuses(ValueError):
        form.read("[" + "0," * 20_000 + "0]")
    assert len(read) == _structured.MOST_ERRORS + 1


def test_numbers_as_text_are_read_in_every_place():
    schema = {
        "type": "object",
        "additionalProperties": {"type": "array", "items": {"type": ["integer", "boolean"]}},
    }
    form = output_schema(schema)
    assert form.read('{"a": ["1", 2, "true"], "b": ["-3"]}') == {"a": [1, 2, True], "b": [-3]}
    assert output_schema({"type": "number"}).read('"2.5"') == 2.5


def test_an_answer_of_too_many_parts_is_not_decoded(refuses):
    """Pydantic makes errors for all of them."""

    class Numbers(BaseModel):
        numbers: list[int]

    for schema in (Numbers, {"type": "object"}):
        with refuses(ValueError):
            output_schema(schema).read('{"numbers": [' + '"x",' * _structured.MOST_PARTS + "1]}")
