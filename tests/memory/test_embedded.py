"""A whole evaluation with the embedded model, as the answering model and as the judge."""

from __future__ import annotations

import json

import msgspec
import pytest

from karat import models
from karat.errors import KaratError
from karat.memory import evaluate
from tests.memory.parts import Notes, sample

MODEL = "local/smollm2-135m"


@pytest.fixture
def _embedded():
    pytest.importorskip("xllamacpp", reason="the extra `local` is optional")
    try:
        models.get(MODEL)
    except KaratError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_embedded")
def test_the_embedded_model_answers_and_judges(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    whole = sample()
    small = msgspec.structs.replace(whole, sessions=whole.sessions[:1], questions=whole.questions[:1])
    made = evaluate(
        [small],
        Notes,
        output_dir=tmp_path / "out",
        store="memory://",
        judge=MODEL,
        model=MODEL,
        top_k=1,
        max_judge_errors=1.0,
        progress=False,
    )
    assert made.exit_code == 0
    blocks = made.metrics
    assert blocks["memory_recall"]["total_gold"] + 2 * blocks["memory_recall"]["num_judge_errors"] == 2
    assert (
        blocks["memory_correctness"]["total_memories"] + 2 * blocks["memory_correctness"]["num_judge_errors"]
        == 2
    )
    asked = blocks["question_answering"]
    assert (asked["num_total"], asked["num_valid"] + asked["num_judge_errors"]) == (1, 1)
    record = json.loads((tmp_path / "out" / "qa_records.jsonl").read_text())
    assert isinstance(record["generated_answer"], str)
    assert MODEL in record["eval"]["methods"]["answer"]
