"""Sessions and questions as short texts, for the tables that show the rows of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from karat.records import Example

LONGEST = 1000
"""Characters of a text."""
MOST_LINES = 20


def summary_of_unit(example: Example, unit: str, record: Mapping[str, Any] | None) -> dict[str, str]:
    """What tables show of a session or a question; of one that failed, only its input."""
    if record is None:
        return _failed(example, unit)
    if "memory_delta" in record:
        turns = [f"{turn['speaker']}: {turn['text']}" for turn in record.get("dialogue") or ()]
        gold = record["gold_state"]
        kinds = ("new", "update", "interference")
        points = [
            f"{kind}: {point['memory_content']}"
            for kind in kinds
            for point in gold[f"session_{kind}_memories"]
        ]
        changes = [f"{each['op']}: {each['text']}" for each in record["memory_delta"]]
        return {
            "input": _lines(turns),
            "expected": _lines(points),
            "output": _lines(changes) or "the session changed no memory",
        }
    retrieved = [f"retrieved: {item['text']}" for item in record["retrieval"]["items"]]
    answer = record["generated_answer"]
    return {
        "input": _cut(record["retrieval"]["query"]),
        "expected": _cut(record["gold_answer"]),
        "output": _lines(["no answer" if answer is None else answer, *retrieved]),
    }


def _failed(example: Example, unit: str) -> dict[str, str]:
    kind, _, name = unit.partition("/")
    for each in example.input[f"{kind}s"]:
        if kind == "question" and str(each["index"]) == name:
            return {"input": _cut(each["question"]), "expected": ""}
        if kind == "session" and each["session_id"] == name:
            turns = (f"{turn['speaker']}: {turn['text']}" for turn in each.get("turns", ()))
            return {"input": _lines(turns), "expected": ""}
    return {}


def _lines(texts: Iterable[str]) -> str:
    kept: list[str] = []
    room = LONGEST
    for text in texts:
        if room <= 0 or len(kept) == MOST_LINES:
            kept.append("…")
            break
        kept.append(" ".join(text[:room].split()))
        room -= len(text) + 1
    return _cut("\n".join(kept))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
