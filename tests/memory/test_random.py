"""Random gold, deltas, snapshots, answers and judge replies, against a naive implementation of the formulas.

The oracle below is written from the description of the formulas and shares no code with karat: it reads the pipeline
files and knows how the scripted judge labels a text.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import karat
from karat.testing import FakeProvider
from tests.memory.test_formulas import write

Record = dict[str, Any]
RECALL = EVIDENCE = ("covered", "missing")
CORRECTNESS = ("correct", "hallucination", "irrelevant")
UPDATE = ("updated", "both", "outdated", "neither")
INTERFERENCE = ("rejected", "memorized")
ANSWER = ("Correct", "Hallucination", "Omission")
BROKEN = "BROKEN"
"""In a text about which the scripted judge never gives a usable reply."""


@dataclass(frozen=True)
class Profile:
    """What is special about the files of a case."""

    kinds: tuple[str, ...] = ("new", "update", "interference")
    questions: int = 6
    prefix: str = ""
    """Before every text."""
    twice: bool = False
    """Whether all points of a session have the same text."""
    omitted: float = 0.0
    """The share of sessions whose snapshot was omitted."""
    deltas: tuple[int, ...] = (0, 0, 1, 3, 5)


PROFILES = {
    "all judgments fail": Profile(prefix=BROKEN),
    "interference only": Profile(kinds=("interference",)),
    "updates only, snapshots omitted": Profile(kinds=("update",), omitted=1.0),
    "some snapshots omitted": Profile(omitted=0.5),
    "no gold": Profile(kinds=()),
    "no questions": Profile(questions=0),
    "nothing at all": Profile(kinds=(), questions=0, deltas=(0,)),
    "sessions that add nothing": Profile(deltas=(0,)),
    "the same point twice": Profile(twice=True),
    "other scripts": Profile(prefix="caf\u00e9 \u4f60\u597d \U0001f431 \u05e9\u05dc\u05d5\u05dd "),
}


def label(text: str, labels: tuple[str, ...]) -> str:
    return labels[zlib.crc32(text.encode()) % len(labels)]


def verdicts(texts: list[str], labels: tuple[str, ...]) -> list[str] | None:
    """What the scripted judge says about items; None where its reply cannot be used."""
    if any(BROKEN in text for text in texts):
        return None
    if zlib.crc32("|".join([*labels, *texts]).encode()) % 5 == 0:
        return None
    return [label(text, labels) for text in texts]


def judge(body: Record) -> str:
    wanted = body["response_format"]["json_schema"]["schema"]["properties"]["verdicts"]["items"]["properties"]
    shown = body["messages"][1]["content"]  # a request for repair comes after it
    listed = re.search(r"\[(\w+) begin items\]\n(.*?)\n\[\1 end items\]", shown, re.DOTALL)
    assert listed is not None
    texts = [line.partition(". ")[2] for line in listed[2].splitlines()]
    found = verdicts(texts, tuple(wanted["label"]["enum"]))
    if found is None:
        return '{"analysis": "", "verdicts": [{"analysis": "", "id": 99, "label": "covered"}]}'
    said = [{"analysis": "", "id": n, "label": each} for n, each in enumerate(found, 1)]
    return json.dumps({"analysis": "", "verdicts": said})


# ---------------------------------------------------------------- random pipeline files


def sessions_of(rng: random.Random, sample: str, profile: Profile) -> list[Record]:
    out, so_far = [], []
    for number in range(rng.randint(1, 5)):
        name = f"S{number:02}"

        same = rng.random() if profile.twice else None

        def points(kind: str, most: int, name: str = name, same: float | None = same) -> list[Record]:
            return [
                {
                    "memory_id": f"{name}-{kind}-{n}",
                    "memory_content": f"{profile.prefix}{kind} {rng.random() if same is None else same}",
                    "original_memories": [f"old {rng.random()}"]
                    if kind == "update" and rng.random() < 0.5
                    else [],
                }
                for n in range(rng.randint(0, most) if kind in profile.kinds else 0)
            ]

        new, update, interference = points("new", 4), points("update", 3), points("interference", 2)
        so_far = [*so_far, *new, *update]
        delta = [
            {
                "session_id": name, "op": rng.choice(["add", "add", "update", "archive"]),
                "text": f"{profile.prefix}memory {rng.random()}", "linked_previous": [], "metadata": {},
            }
            for _ in range(rng.choice(profile.deltas))
        ]  # fmt: skip
        stored = [
            {
                "memory_id": str(n),
                "text": f"stored {n}",
                "status": rng.choice(["active", "archived"]),
                "source": "x",
            }
            for n in range(rng.choice([0, 1, 3]))
        ]
        omitted = {"snapshot_omitted": True} if rng.random() < profile.omitted else {}
        out.append(
            {
                "sample_id": sample, "sample_uuid": f"u-{sample}", "session_id": name,
                "memory_snapshot": [] if omitted else stored, "memory_delta": delta, **omitted,
                "gold_state": {
                    "session_id": name, "cumulative_gold_memories": so_far, "session_new_memories": new,
                    "session_update_memories": update, "session_interference_memories": interference,
                },
                "dialogue": [{"turn_id": name, "speaker": "user", "text": "hello", "time": None}],
            }
        )  # fmt: skip
    return out


def question_of(rng: random.Random, sample: str, profile: Profile) -> Record:
    answerable = rng.random() < 0.8
    evidence = (
        [f"{profile.prefix}evidence {rng.random()}" for _ in range(rng.randint(0, 3))] if answerable else []
    )
    answer = rng.choice([None, "", *(f"{profile.prefix}answer {rng.random()}" for _ in range(3))])
    return {
        "sample_id": sample, "sample_uuid": f"u-{sample}", "checkpoint_id": "c", "question": "What is it?",
        "gold_answer": "it", "gold_evidence_memory_ids": [str(n) for n in range(len(evidence))],
        "gold_evidence_contents": evidence, "question_type": "recall", "question_type_abbrev": "R",
        "difficulty": "easy", "retrieval": {"query": "What is it?", "top_k": 5, "items": [], "raw_trace": {}},
        "generated_answer": answer, "answerable": answerable,
        "cited_memories": ["stored"] if answer and rng.random() < 0.7 else [],
    }  # fmt: skip


# ---------------------------------------------------------------- the oracle


def mean(values: list[float]) -> Any:
    """What compares as the mean."""
    return pytest.approx(fmean(values)) if values else 0.0


def expected(sessions: list[Record], questions: list[Record]) -> dict[str, Record]:
    recalls: list[float] = []
    update_recalls: list[float] = []
    rates: list[list[float]] = []
    covered = gold = 0
    totals = dict.fromkeys(CORRECTNESS, 0)
    updates, rejected, memorized = {"updated": 0, "both": 0, "outdated": 0}, 0, 0
    errors = dict.fromkeys(("recall", "correctness", "update", "interference", "answer", "evidence"), 0)
    for each in sessions:
        state = each["gold_state"]
        new, update = state["session_new_memories"], state["session_update_memories"]
        points = [point["memory_content"] for point in new + update]
        delta = [change["text"] for change in each["memory_delta"] if change["op"] != "archive"]
        active = [one for one in each["memory_snapshot"] if one["status"] == "active"]
        if points:
            found = verdicts(points, RECALL) if delta else ["missing"] * len(points)
            if found is None:
                errors["recall"] += 1
            else:
                recalls.append(found.count("covered") / len(points))
                covered, gold = covered + found.count("covered"), gold + len(points)
                if update:
                    update_recalls.append(found[len(new) :].count("covered") / len(update))
        if delta:
            found = verdicts(delta, CORRECTNESS)
            if found is None:
                errors["correctness"] += 1
            else:
                rates.append([found.count(name) / len(delta) for name in CORRECTNESS])
                for name in CORRECTNESS:
                    totals[name] += found.count(name)
        if update:
            texts = [
                p["memory_content"]
                + (f" (instead of: {'; '.join(p['original_memories'])})" if p["original_memories"] else "")
                for p in update
            ]
            found = verdicts(texts, UPDATE) if active else ["neither"] * len(update)
            if found is None or each.get("snapshot_omitted"):
                errors["update"] += 1
            else:
                for name in found:
                    updates["outdated" if name == "neither" else name] += 1
        interfering = [point["memory_content"] for point in state["session_interference_memories"]]
        if interfering:
            found = verdicts(interfering, INTERFERENCE) if active else ["rejected"] * len(interfering)
            if found is None or each.get("snapshot_omitted"):
                errors["interference"] += 1
            else:
                rejected, memorized = rejected + found.count("rejected"), memorized + found.count("memorized")
    labels: list[str] = []
    hits = evidence = 0
    for each in questions:
        answer = each["generated_answer"]
        if answer is None:
            continue
        found = verdicts([answer], ANSWER) if answer else ["Omission"]
        if found is None:
            errors["answer"] += 1
        else:
            labels += found
        wanted = each["gold_evidence_contents"]
        if wanted:
            found = verdicts(wanted, EVIDENCE) if each["cited_memories"] else ["missing"] * len(wanted)
            if found is None:
                errors["evidence"] += 1
            else:
                hits, evidence = hits + found.count("covered"), evidence + len(wanted)
    changed, kept = sum(updates.values()), rejected + memorized
    return {
        "memory_recall": {
            "avg_recall": mean(recalls), "avg_update_recall": mean(update_recalls),
            "num_sessions_with_recall": len(recalls), "num_sessions_with_update": len(update_recalls),
            "total_covered": covered, "total_gold": gold,
            "num_judge_errors": errors["recall"], "applicable": bool(recalls),
        },
        "memory_correctness": {
            **{name: mean([rate[n] for rate in rates])
               for n, name in enumerate(("avg_correctness", "avg_hallucination", "avg_irrelevant"))},
            "num_sessions": len(rates), "total_memories": sum(totals.values()), "total_correct": totals["correct"],
            "total_hallucination": totals["hallucination"], "total_irrelevant": totals["irrelevant"],
            "num_judge_errors": errors["correctness"], "applicable": bool(rates),
        },
        "update_handling": {
            "score": mean([(updates["updated"] + updates["both"] / 2) / changed] if changed else []),
            **{f"num_{name}": count for name, count in updates.items()}, "num_total": changed,
            "num_judge_errors": errors["update"], "applicable": changed > 0,
        },
        "interference_rejection": {
            "score": mean([rejected / kept] if kept else []), "num_rejected": rejected, "num_memorized": memorized,
            "num_total": kept, "num_judge_errors": errors["interference"], "applicable": kept > 0,
        },
        "question_answering": {
            **{f"{name.lower()}_ratio": mean([labels.count(name) / len(labels)] if labels else []) for name in ANSWER},
            "num_total": len(questions), "num_valid": len(labels), "num_judge_errors": errors["answer"],
            "applicable": bool(labels),
        },
        "evidence_coverage": {
            "hit_rate": mean([hits / evidence] if evidence else []), "num_covered": hits, "num_total": evidence,
            "num_judge_errors": errors["evidence"], "applicable": evidence > 0,
        },
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(25))
def test_every_figure_is_that_of_the_naive_implementation(tmp_path, monkeypatch, seed):
    compare(tmp_path, monkeypatch, seed, Profile())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PROFILES)
def test_every_figure_of_an_edge_case_is_that_of_the_naive_implementation(tmp_path, monkeypatch, name, seed):
    compare(tmp_path, monkeypatch, seed, PROFILES[name])


def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, profile: Profile) -> None:
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    rng = random.Random(seed)
    names = [f"s{number}" for number in range(rng.randint(1, 4))]
    sessions = [each for name in names for each in sessions_of(rng, name, profile)]
    questions = [
        question_of(rng, name, profile) for name in names for _ in range(rng.randint(0, profile.questions))
    ]
    write(tmp_path / "pipeline_sessions.jsonl", sessions)
    write(tmp_path / "pipeline_qa.jsonl", questions)
    before = [(tmp_path / name).read_bytes() for name in ("pipeline_sessions.jsonl", "pipeline_qa.jsonl")]
    with FakeProvider(judge) as server:
        made = karat.memory.evaluate(
            None, "x", output_dir=tmp_path, eval_only=True, judge=server.spec(), store="memory://",
            max_judge_errors=1.0,
        )  # fmt: skip
    found = json.loads((tmp_path / "aggregate_metrics.json").read_text())
    wanted = expected(sessions, questions)
    assert {block: found[block] for block in wanted} == wanted
    assert made.exit_code == 0
    check_records(tmp_path, sessions, questions)
    assert before == [
        (tmp_path / name).read_bytes() for name in ("pipeline_sessions.jsonl", "pipeline_qa.jsonl")
    ]


def check_records(folder: Path, sessions: list[Record], questions: list[Record]) -> None:
    """Every line is there in its order, undefined rates are null, and an invalid label is null."""
    judged = [json.loads(line) for line in (folder / "session_records.jsonl").read_text().splitlines()]
    assert [(each["sample_id"], each["session_id"]) for each in judged] == [
        (each["sample_id"], each["session_id"]) for each in sessions
    ]
    for each in judged:
        if not (each["gold_state"]["session_new_memories"] or each["gold_state"]["session_update_memories"]):
            assert each["eval"]["recall"] is None
        elif not any(change["op"] != "archive" for change in each["memory_delta"]):
            assert each["eval"]["recall"] == 0
    asked = [json.loads(line) for line in (folder / "qa_records.jsonl").read_text().splitlines()]
    assert [each["generated_answer"] for each in asked] == [each["generated_answer"] for each in questions]
    for each in asked:
        assert each["eval"]["answer_is_valid"] == (each["eval"]["answer_label"] is not None)
        if not each["gold_evidence_contents"]:
            assert (each["eval"]["evidence_hit_rate"], each["eval"]["num_evidence"]) == (None, 0)
