"""Run labels: unique, short, and made of the settings that differ."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.records import FORMAT, Counts, RunHeader
from karat.store.run_labels import matrix_labels, run_labels


def header(number: int, parameters: dict[str, Any], **metadata: Any) -> RunHeader:
    return RunHeader(
        format=FORMAT,
        id=f"run-{number}",
        dataset="ds-1",
        task="ask",
        configuration=str(number),
        code="code",
        parameters=parameters,
        metadata=metadata,
        counts=Counts(),
    )


START = "You are an assistant, and whatever you are asked, you answer and stay "


@given(st.lists(st.text(max_size=80), min_size=2, max_size=6))
def test_every_run_has_a_unique_name(prompts: list[str]) -> None:
    headers = [
        header(i, {"messages": [{"content": text}]}, matrix={"prompt": text})
        for i, text in enumerate(prompts)
    ]
    labels = run_labels(headers)
    assert len(set(labels.values())) == len(prompts)
    assert all(len(label) <= 60 + len(" (run-0)") for label in labels.values())
    assert not any("messages=" in label for label in labels.values())


@pytest.mark.parametrize(
    ("prompts", "labels"),
    [
        (["short", ""], ["prompt=short", 'prompt=""']),
        (
            ["x" * 40 + " one of them", "x" * 40 + " two of them"],
            ["prompt=…one of them", "prompt=…two of them"],
        ),
        (
            [START + each for each in ("kind, in French", "kind, in German", "rude")],
            ["prompt=…stay kind, in French", "prompt=…stay kind, in German", "prompt=…stay rude"],
        ),
        (
            [f"{START}{manner}. {START}in {tongue}" for manner in ("kind", "rude") for tongue in ("A", "B")],
            [
                f"prompt=…stay {manner[:3]}…in {tongue}"
                for manner in ("kind", "rude")
                for tongue in ("A", "B")
            ],
        ),
        (["x" * 40, "y"], [f"prompt={'x' * 31}…", "prompt=y"]),
    ],
)
def test_long_values_are_shown_where_they_part(prompts: list[str], labels: list[str]) -> None:
    assert (
        list(matrix_labels([header(i, {}, matrix={"prompt": p}) for i, p in enumerate(prompts)]).values())
        == labels
    )


def test_values_that_do_not_fit_into_a_label_are_cut_where_that_tells_runs_apart() -> None:
    headers = [
        header(i, {"model": f"provider/{START}{a}", "system": START + b, "style": START + c})
        for i, (a, b, c) in enumerate(itertools.product(("large", "small"), ("kind", "rude"), ("one", "two")))
    ]
    labels = run_labels(headers)
    assert len({label.removesuffix(f" ({id})") for id, label in labels.items()}) == len(headers)


def test_only_runs_of_one_matrix_are_held_against_each_other() -> None:
    runs = [
        header(1, {}, experiment="a", matrix={"model": "openai/x", "temperature": 0}),
        header(2, {}, experiment="a", matrix={"model": "openai/x", "temperature": 1}),
        header(3, {}, experiment="b", matrix={"model": "openai/y", "temperature": 0}),
        header(4, {}),
    ]
    assert matrix_labels(runs) == {
        "run-1": "temperature=0",
        "run-2": "temperature=1",
        "run-3": "openai/y temperature=0",
    }


def test_where_messages_alone_tell_runs_apart_they_are_reported() -> None:
    runs = [header(i, {"messages": text}, matrix={"prompt": "p"}) for i, text in enumerate(["a", "b"])]
    assert run_labels(runs) == {"run-0": "messages=a", "run-1": "messages=b"}


def test_runs_with_labels_of_their_own_are_named_by_them() -> None:
    headers = [header(1, {"t": 0}), header(2, {"t": 1})]
    headers[0].labels[:] = ["release", "baseline"]
    assert run_labels(headers) == {"run-1": "t=0", "run-2": "t=1"}, "one of them has none"
    headers[1].labels[:] = ["release", "candidate"]
    assert run_labels(headers) == {"run-1": "baseline", "run-2": "candidate"}
    headers[1].labels[:] = ["release"]
    assert run_labels(headers) == {"run-1": "t=0", "run-2": "t=1"}, "a shared label names neither"


def memory_run(number: int, task: str, system: dict[str, Any], **more: Any) -> RunHeader:
    return msgspec.structs.replace(
        header(number, {"kind": "memory", "system": system, "version": 1, **more}), task=task
    )


def test_memory_systems_are_named_by_what_tells_their_runs_apart() -> None:
    bm25 = [memory_run(n, "BM25Memory", {"k1": k1, "b": 0.75}) for n, k1 in enumerate((1.2, 2.0))]
    other = memory_run(2, "FUMemory", {"tokens": 8000})
    assert list(run_labels([*bm25, other]).values()) == ["BM25Memory k1=1.2", "BM25Memory k1=2.0", "FUMemory"]
    assert list(run_labels(bm25).values()) == ["k1=1.2", "k1=2.0"]
    # What all systems share is told for each of them.
    assert list(run_labels([bm25[0], memory_run(3, "FUMemory", {}, top_k=9)]).values()) == [
        "BM25Memory",
        "FUMemory top_k=9",
    ]
    # A setting of a system that is called like one of all memory runs stays inside of it.
    apart = [memory_run(n, "Mine", {"version": n}) for n in range(2)]
    assert list(run_labels(apart).values()) == ['system={"version": 0}', 'system={"version": 1}']
