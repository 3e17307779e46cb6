"""A judge for tests of every evaluator: a provider on loopback that gives the reply of the evaluator's example."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from karat.evaluators import evaluators
from karat.testing import FakeProvider


@contextmanager
def scripted_judge(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the evaluator's judge reply as its example says; nothing for evaluators that ask no model."""
    known = bool(name) and evaluators.has(name)
    reply = getattr(evaluators.get(name), "example", {}).get("reply") if known else None
    if reply is None:
        yield
        return
    with FakeProvider(json.dumps(reply)) as server:
        monkeypatch.setenv("KARAT_CACHE", str(folder / "replies.db"))
        monkeypatch.setenv("KARAT_JUDGE_MODEL", server.spec())
        yield


def name_in(request: pytest.FixtureRequest) -> str:
    """The evaluator that a parametrised test is about."""
    return str(request.node.callspec.params.get("name", "")) if hasattr(request.node, "callspec") else ""
