"""Judges measured by people: a store with a judged run, and a scripted judge."""

from __future__ import annotations

import json

import pytest

import karat
from karat.testing import FakeProvider
from tests.clean_environment import close_models as close_models
from tests.clean_environment import folder as folder


@pytest.fixture
def store(folder):
    from karat.store import open_store

    with open_store(f"sqlite:///{folder}/karat.db") as opened:
        yield opened


@pytest.fixture
def serve():
    running = []

    def start(answer, **options):
        server = FakeProvider(lambda body: _text(answer(body)), **options)
        server.__enter__()
        running.append(server)
        return server

    yield start
    for server in running:
        server.__exit__()


def _text(answer):
    return json.dumps(answer) if isinstance(answer, dict) else answer


def material(body) -> str:
    return next(m["content"] for m in body["messages"] if m["role"] == "user")


def echo(input):
    return input["answer"] if isinstance(input, dict) else input


def judged(store, server, answers, **params):
    """An evaluation of the given answers, by id, by `llm_judge`."""
    data = [{"id": name, "input": {"question": "?", "answer": answer}} for name, answer in answers.items()]
    run = karat.run(echo, data, store=store)
    spec = {"name": "llm_judge", "params": {"judge": server.spec("judge"), **params}}
    return karat.evaluate(run, [spec])


def says_good(body):
    """A judge that passes what contains the word good."""
    return {"analysis": "", "pass": "good" in material(body)}
