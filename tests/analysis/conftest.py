"""A store with runs of a task whose accuracy is a parameter."""

from __future__ import annotations

import pytest

import karat
from karat.tasks import FunctionTask

CLASSES = ["Music", "Art", "Other"]
COUNT = 60


def examples(count=COUNT):
    return [
        {"id": f"e{i}", "input": i, "expected": CLASSES[i % 3], "metadata": {"document": f"d{i // 4}"}}
        for i in range(count)
    ]


def answer_at(number, rate):
    """The right class for a share of the numbers that `rate` says, another for the rest."""
    right = (number * 7919 % 100) / 100 < rate
    return CLASSES[(number + (not right)) % 3]


def run_at(store, rate, *, broken=(), count=COUNT, data=None, **options):
    def answer(number, rate):
        if number in broken:
            raise ValueError("the `model` | is <b>down</b>\x1b[31m")
        return answer_at(number, rate)

    task = FunctionTask(answer, name="answer", parameters={"rate": rate})
    task.code = lambda: f"answer {sorted(broken)}"
    dataset = karat.Dataset.from_examples(data or examples(count), name="classes")
    return karat.run(task, dataset, store=store, progress=False, **options)


def right(outputs, expected):
    same = outputs == expected
    return karat.Result("right", float(same), same, metadata={"golden": expected, "predicted": outputs})


right.pass_fail = True  # type: ignore[attr-defined]


@pytest.fixture
def store(tmp_path):
    with karat.open_store(tmp_path / "karat.db") as opened:
        yield opened
