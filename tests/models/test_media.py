"""Images, audio and files as parts of a message: read from a path, checked, and sent as each format wants."""

from __future__ import annotations

import base64
import json

import pytest

import karat
from karat import models
from karat.cli import main
from karat.errors import RequestError
from karat.models import _messages
from karat.tasks.prompt import PromptTask
from karat.testing import FakeProvider

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
WAV = b"RIFF\x00\x00\x00\x00WAVEfmt "
PDF = b"%PDF-1.7 text"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "cat.png").write_bytes(PNG)
    (tmp_path / "cat.wav").write_bytes(WAV)
    (tmp_path / "cat.pdf").write_bytes(PDF)
    (tmp_path / "secret.png").write_text("root:x:0:0:")
    return tmp_path


def asked(*parts):
    return [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}]


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
async def test_a_file_is_sent_as_the_format_wants_it(files, api, provider):
    model = models.get(provider.spec(), api=api)
    await model.generate(asked({"type": "image", "path": "cat.png"}, {"type": "file", "path": "cat.pdf"}))
    sent = json.dumps(provider.requests[0])
    assert base64.b64encode(PNG).decode() in sent
    assert base64.b64encode(PDF).decode() in sent
    assert "path" not in sent
    kinds = {
        "chat": ("image_url", "file"),
        "responses": ("input_image", "input_file"),
        "anthropic": ("image", "document"),
    }
    message = (provider.requests[0].get("messages") or provider.requests[0]["input"])[0]
    assert tuple(part["type"] for part in message["content"][1:]) == kinds[api]


async def test_audio_goes_to_those_who_take_it(files, provider):
    await models.get(provider.spec()).generate(asked({"type": "audio", "path": "cat.wav"}))
    part = provider.requests[0]["messages"][0]["content"][1]
    assert (part["type"], part["input_audio"]["format"]) == ("input_audio", "wav")
    for api in ("anthropic", "responses"):
        with pytest.raises(RequestError, match="no audio"):
            await models.get(provider.spec(), api=api).generate(asked({"type": "audio", "path": "cat.wav"}))
    assert provider.count == 1


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "path": "secret.png"},
        {"type": "image", "path": "/etc/passwd"},
        {"type": "file", "path": "cat.png"},
        {"type": "image", "path": "absent.png"},
        {"type": "image", "path": "."},
        {"type": "image", "path": 3},
        {"type": "video", "path": "cat.png"},
        {"type": "image", "path": "a\0b"},
    ],
)
async def test_what_is_no_media_is_never_read_out(files, provider, part, refuses):
    with refuses(RequestError):
        await models.get(provider.spec()).generate(asked(part))
    assert provider.count == 0


async def test_a_file_that_is_too_large_is_refused(files, provider, monkeypatch, refuses):
    monkeypatch.setattr(_messages, "LARGEST_FILE", 10)
    with refuses(RequestError):
        await models.get(provider.spec()).generate(asked({"type": "image", "path": "cat.png"}))


def test_a_prompt_names_the_file_of_each_record(files):
    with FakeProvider() as server:
        prompt = asked({"type": "image", "path": "{picture}"})
        dataset = karat.Dataset.from_examples(
            [{"id": "1", "input": {"picture": "cat.png"}}, {"id": "2", "input": {"picture": "/etc/passwd"}}],
            name="d",
        )
        run = karat.run(PromptTask(prompt, model=server.spec()), dataset, store="memory://")
        assert (run.counts.ok, run.counts.failed) == (1, 1)
        assert base64.b64encode(PNG).decode() in json.dumps(server.requests[0])


PICTURE = {"type": "image", "path": "cat.png"}
GRAPH = """
data_config: {{examples: {examples}}}
graph_config:
  nodes:
    ask:
      node_type: llm
      model: {{name: "m@{url}"}}
      prompt: {prompt}
"""


def contents(server):
    """The content of the one message of each request."""
    return [request["messages"][-1]["content"] for request in server.requests]


def kinds(content):
    return [part["type"] for part in content] if isinstance(content, list) else content


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Look at {picture}: {question}", ["text", "image_url", "text"]),
        ("{picture}", ["image_url"]),
        ([{"type": "text", "text": "{question}"}, "{picture}"], ["text", "image_url"]),
        (
            [{"type": "text", "text": "{question}"}, {"type": "image", "path": "{file}"}],
            ["text", "image_url"],
        ),
        ("{question} {many}", ["text", "text", "image_url", "file"]),
    ],
)
@pytest.mark.parametrize("kind", ["prompt", "graph"])
def test_media_in_a_record_are_parts_of_the_message(files, kind, prompt, expected):
    """A field of a dataset may hold a part, or a list of parts, and stands where the prompt names it."""
    row = {
        "id": "1",
        "question": "What is it?",
        "picture": PICTURE,
        "file": "cat.png",
        "many": [{"type": "text", "text": "both"}, PICTURE, {"type": "file", "path": "cat.pdf"}],
    }
    with FakeProvider("A cat.") as server:
        if kind == "prompt":
            messages = [{"role": "user", "content": prompt}]
            dataset = karat.Dataset.from_examples([{"id": "1", "input": row}], name="d")
            run = karat.run(PromptTask(messages, model=server.spec()), dataset, store="memory://")
            assert run.counts.ok == 1
        else:
            if isinstance(prompt, list):
                prompt = [part if isinstance(part, dict) else "{picture}" for part in prompt]
            text = GRAPH.format(
                examples=json.dumps([row]), url=server.url, prompt=json.dumps([{"user": prompt}])
            )
            (files / "g.yaml").write_text(text)
            assert main(["run", "g.yaml", "--store", "sqlite:///k.db", "--json"]) == 0
        (content,) = contents(server)
    assert kinds(content) == expected
    assert base64.b64encode(PNG).decode() in json.dumps(content)


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.png", "~/x.png", "a\0b", "link.png"])
def test_a_record_cannot_name_a_file_outside_of_the_current_folder(files, path, monkeypatch):
    (files / "outside.png").write_bytes(PNG)
    (files / "inner").mkdir()
    monkeypatch.chdir(files / "inner")
    (files / "inner" / "link.png").symlink_to(files / "outside.png")
    with FakeProvider() as server:
        dataset = karat.Dataset.from_examples(
            [{"id": "1", "input": {"picture": {"type": "image", "path": path}}}], name="d"
        )
        run = karat.run(PromptTask("{picture}", model=server.spec()), dataset, store="memory://")
        assert (run.counts.failed, server.count) == (1, 0)


def test_an_object_that_is_not_a_part_stays_json(files):
    rows = [
        {"type": "image"},
        {"type": "image", "path": 3},
        [],
        [{"type": "text", "text": "x"}],
        {"path": "cat.png"},
    ]
    with FakeProvider() as server:
        dataset = karat.Dataset.from_examples(
            [{"id": str(n), "input": {"x": row}} for n, row in enumerate(rows)], name="d"
        )
        run = karat.run(PromptTask("{x}", model=server.spec()), dataset, store="memory://", concurrency=1)
        assert run.counts.ok == len(rows)
        assert [json.loads(content) for content in contents(server)] == rows


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 600}},
        {"type": "input_audio", "input_audio": {"data": "A" * 600, "format": "wav"}},
        {
            "type": "file",
            "file": {"filename": "x.pdf", "file_data": "data:application/pdf;base64," + "A" * 600},
        },
    ],
)
async def test_data_inside_of_a_part_is_as_limited_as_a_file(files, provider, part, monkeypatch, refuses):
    await models.get(provider.spec()).generate(asked(part))
    monkeypatch.setattr(_messages, "LARGEST_FILE", 100)
    with refuses(RequestError):
        await models.get(provider.spec()).generate(asked(part))
    assert provider.count == 1
