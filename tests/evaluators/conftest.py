"""Evaluators that ask a judge get a scripted one, so that what holds for every evaluator is tested for them too."""

from __future__ import annotations

import pytest

from tests.scripted_judge import name_in, scripted_judge


@pytest.fixture(autouse=True)
def judge(request, tmp_path, monkeypatch):
    with scripted_judge(name_in(request), tmp_path, monkeypatch):
        yield
