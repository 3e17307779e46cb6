"""Judges ask a scripted provider on loopback; every test has its own cache, key and environment."""

from __future__ import annotations

import json

import pytest

from karat.testing import FakeProvider
from tests.clean_environment import close_models as close_models
from tests.clean_environment import folder as folder


@pytest.fixture
def serve():
    """`serve(answers)` starts a provider that sends these answers; a dict is sent as JSON."""
    running = []

    def start(answers, **options):
        def text(answer):
            return json.dumps(answer) if isinstance(answer, dict) and not _is_reply(answer) else answer

        if callable(answers):
            given = lambda body: text(answers(body))  # noqa: E731 - a wrapper
        elif isinstance(answers, list):
            given = [text(each) for each in answers]
        else:
            given = text(answers)
            given = [given] if isinstance(given, dict) else given
        server = FakeProvider(given, **options)
        server.__enter__()
        running.append(server)
        return server

    yield start
    for server in running:
        server.__exit__()


def _is_reply(answer: dict) -> bool:
    return bool(answer.keys() & {"text", "raw", "finish_reason", "tool_calls"})


def material(body) -> str:
    """The user message of a request: the marker and the fenced material."""
    return next(m["content"] for m in body["messages"] if m["role"] == "user")


def instructions(body) -> str:
    return body["messages"][0]["content"]


PASS = {"analysis": "It is right.", "pass": True}
FAIL = {"analysis": "It is wrong.", "pass": False}
