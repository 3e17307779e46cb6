"""`domain_a_v2`: three files, or one file per sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from karat.errors import DataError
from karat.memory.datasets import read_memory_dataset
from tests.memory.datasets.making import only, read, seen_by_systems, write_json, write_jsonl


def turn(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, "timestamp": "2025-03-01T10:00:00", **more}


def point(memory_id: str, content: str, **more: Any) -> dict[str, Any]:
    defaults = {
        "memory_type": "fact",
        "memory_source": "primary",
        "is_update": False,
        "original_memories": [],
    }
    return {"memory_id": memory_id, "memory_content": content, **defaults, "importance": 0.5, **more}


def question(text: str, answer: Any, *evidence: dict[str, str], **more: Any) -> dict[str, Any]:
    defaults = {"question_type": "factual_recall", "question_type_abbrev": "FR", "difficulty": "easy"}
    return {"question": text, "answer": answer, "evidence": list(evidence), **defaults, **more}


def sessions() -> list[dict[str, Any]]:
    return [
        {
            "_v2_session_id": "S00",
            "dialogue": [turn("I have a cat named Tom.")],
            "memory_points": [point("mp_S00_1", "The user has a cat named Tom.")],
        },
        {
            "_v2_session_id": "S01",
            "dialogue": [
                turn(
                    "Look.",
                    attachments=[{"image_id": "S01_img_1", "caption": "a red door", "type": "image_caption"}],
                ),
                {"role": "assistant", "content": "Nice.", "timestamp": "2025-03-08T10:02:00"},
            ],
        },
        {"_v2_session_id": "S02", "dialogue": [turn("The cat is called Bob now.")]},
    ]


def points() -> list[dict[str, Any]]:
    return [
        {
            "session_id": "S02",
            "memory_points": [
                point(
                    "mp_S02_1",
                    "The cat is named Bob.",
                    is_update="True",
                    original_memories=["The cat is Tom."],
                ),
                point("mp_S02_2", "The user has a dog.", memory_source="interference", is_update="True"),
                point("mp_S02_3", "The user likes doors.", is_update="False", source_turns=[1]),
            ],
        }
    ]


def checkpoints() -> list[dict[str, Any]]:
    return [
        {
            "checkpoint_id": "probe_1",
            "covered_sessions": ["S01", "S00"],
            "questions": [question("What is on the picture?", "a red door", {"image_id": "S01_img_1"})],
        },
        {
            "checkpoint_id": "probe_2",
            "covered_sessions": ["S02"],
            "questions": [
                question("Name of the cat?", "Bob", {"memory_id": "mp_S02_1"}, {"memory_id": "mp_S00_1"}),
                question("Name of the cat?", 7, {"memory_id": "nowhere"}, {"memory_id": "mp_S02_3"}),
                question("Name of the bird?", "Not mentioned.", question_type="answer_refusal"),
            ],
        },
    ]


def three_files(folder: Path, **changes: Any) -> Path:
    ids = {"uuid": "u-1", "sample_id": "one"}
    write_json(folder / "domain_a_v2.json", [{**ids, "sessions": changes.get("sessions", sessions())}])
    write_jsonl(
        folder / "stage4_memory_points.jsonl", {**ids, "memory_sessions": changes.get("points", points())}
    )
    write_jsonl(
        folder / "stage4b_qa_checkpoints.jsonl",
        {**ids, "checkpoints": changes.get("checkpoints", checkpoints())},
    )
    return folder


def one_file(path: Path) -> Path:
    sample = {
        "sample_id": "one",
        "sessions": sessions(),
        "memory_points": points(),
        "qa_checkpoints": checkpoints(),
    }
    return write_json(path, sample)


def test_points_are_split_by_source_and_update(tmp_path):
    first, _, last = only(three_files(tmp_path)).sessions
    assert [one.memory_id for one in first.new] == ["mp_S00_1"]
    assert [one.memory_id for one in last.new] == ["mp_S02_3"]
    assert [(one.memory_id, one.original) for one in last.updates] == [("mp_S02_1", ("The cat is Tom.",))]
    assert [one.memory_id for one in last.interference] == ["mp_S02_2"]
    assert last.new[0].turn_ids == ("S02:1",)


def test_a_checkpoint_is_asked_after_its_last_session_in_the_order_of_the_dialogue(tmp_path):
    asked = only(three_files(tmp_path)).questions
    assert [(one.index, one.after_session) for one in asked] == [
        (0, "S01"),
        (1, "S02"),
        (2, "S02"),
        (3, "S02"),
    ]
    assert asked[0].now == "2025-03-08T10:02:00"


def test_evidence_is_a_memory_or_a_picture_and_unknown_ids_are_listed(tmp_path):
    sample = only(three_files(tmp_path))
    picture, both, unknown, refusal = sample.questions
    assert picture.evidence[0].turn_ids == ("S01:1",)
    assert "a red door" in picture.evidence[0].text
    assert [one.evidence_id for one in both.evidence] == ["mp_S02_1", "mp_S00_1"]
    assert [one.evidence_id for one in unknown.evidence] == ["mp_S02_3"]
    assert any("'nowhere'" in note and "question 2" in note for note in sample.notes)
    assert unknown.answer == "7"
    assert not refusal.answerable
    assert refusal.evidence == ()


def test_evidence_from_a_later_session_is_excluded_and_listed(tmp_path):
    early = checkpoints()
    early[0]["questions"] = [question("Name?", "Bob", {"memory_id": "mp_S02_1"})]
    sample = only(three_files(tmp_path, checkpoints=early[:1]))
    assert sample.questions[0].evidence == ()
    assert any("mp_S02_1" in note for note in sample.notes)


def test_captions_are_part_of_the_text(tmp_path):
    sample = only(three_files(tmp_path))
    assert sample.sessions[1].turns[0].text == "Look.\n[image S01_img_1: a red door]"
    assert sample.modality == "caption"


def test_both_forms_read_alike(tmp_path):
    joined = only(three_files(tmp_path / "three"))
    single = only(one_file(tmp_path / "tree" / "agent" / "gui" / "one.json"))
    write_json(tmp_path / "tree" / "small_ids.json", ["one"])
    assert single.sessions == joined.sessions
    assert single.questions == joined.questions
    assert [sample.sample_id for sample in read(tmp_path / "tree")] == ["one"]
    assert only(tmp_path / "three" / "domain_a_v2.json") == joined


def test_session_ids_that_say_something_are_replaced(tmp_path):
    changed = json.loads(json.dumps(sessions()).replace("S01", "S01_answer"))
    asked = json.loads(
        json.dumps(checkpoints()).replace('"S01"', '"S01_answer"').replace("S01_img", "S01_answer_img")
    )
    sample = only(three_files(tmp_path, sessions=changed, checkpoints=asked))
    assert [one.session_id for one in sample.sessions] == ["S01", "S02", "S03"]
    assert [one.source_id for one in sample.sessions] == ["S00", "S01_answer", "S02"]
    assert sample.questions[0].after_session == "S02"


def test_no_gold_is_visible(tmp_path):
    canary = sessions()
    canary[1]["gold"] = canary[1]["dialogue"][0]["label"] = "CANARY"
    gold = points()
    gold[0]["memory_points"][0]["memory_content"] = "CANARY"
    asked = checkpoints()
    for one in asked[1]["questions"]:
        one.update(
            answer="CANARY", question_type="CANARY", question_type_abbrev="CANARY", difficulty="CANARY"
        )
    asked[1]["checkpoint_id"] = "CANARY"
    sample = only(three_files(tmp_path, sessions=canary, points=gold, checkpoints=asked))
    assert "CANARY" in sample.questions[1].answer
    assert "CANARY" not in seen_by_systems(sample)


def test_a_picture_outside_the_folder_is_not_named(tmp_path):
    outside = sessions()
    outside[1]["dialogue"][0]["attachments"] = [
        {"image_id": "a", "caption": "", "file_path": "../../etc/passwd"},
        {"image_id": "b", "caption": "", "file_path": "images/b.png"},
        {"image_id": "c", "caption": "", "file_path": "/etc/passwd"},
    ]
    sample = only(three_files(tmp_path, sessions=outside))
    paths = [one.file_path for one in sample.sessions[1].turns[0].attachments]
    assert paths == [None, str((tmp_path / "images" / "b.png").resolve()), None]
    assert len([note for note in sample.notes if "outside" in note]) == 2


def test_the_hash_is_of_the_content_wherever_it_is(tmp_path):
    first = read_memory_dataset(three_files(tmp_path / "a")).hash
    assert read_memory_dataset(three_files(tmp_path / "b")).hash == first
    assert read_memory_dataset(three_files(tmp_path / "c", points=[])).hash != first


def broken(folder: Path, name: str) -> None:
    """Break one thing in the three files."""
    three_files(folder)
    asked = checkpoints()
    if name == "empty covered_sessions":
        asked[1]["covered_sessions"] = []
    elif name == "unknown covered session":
        asked[1]["covered_sessions"] = ["S09"]
    elif name == "evidence without id":
        asked[1]["questions"][0]["evidence"] = [{"page": 3}]
    elif name == "no answer":
        asked[1]["questions"][0]["answer"] = None
    elif name == "question is a list":
        asked[1]["questions"][0]["question"] = ["x"]
    if name in ("empty points", "other sample"):
        row = {"uuid": "u", "sample_id": "two", "memory_sessions": []}
        write_jsonl(folder / "stage4_memory_points.jsonl", *([row] if name == "other sample" else []))
    elif name == "duplicate line":
        row = {"uuid": "u", "sample_id": "one", "memory_sessions": []}
        write_jsonl(folder / "stage4_memory_points.jsonl", row, row)
    elif name == "not JSON":
        (folder / "stage4b_qa_checkpoints.jsonl").write_text('{"sample_id": "one", "checkpoints": [}\n')
    elif name == "nested too deeply":
        deep = '[{"sample_id": "one", "sessions": ' + "[" * 100_000 + "]" * 100_000 + "}]"
        (folder / "domain_a_v2.json").write_text(deep)
    elif name == "missing file":
        (folder / "stage4_memory_points.jsonl").unlink()
    elif name == "not UTF-8":
        (folder / "domain_a_v2.json").write_bytes(b'[{"sample_id": "\xff"}]')
    elif name == "bad flag":
        three_files(
            folder, points=[{"session_id": "S02", "memory_points": [point("a", "b", is_update="maybe")]}]
        )
    elif name == "two sessions":
        three_files(folder, sessions=[sessions()[0], sessions()[0]], checkpoints=[])
    elif name == "points twice":
        own = sessions()
        own[2]["memory_points"] = [point("a", "b")]
        three_files(folder, sessions=own)
    else:
        three_files(folder, checkpoints=asked)


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        (
            "empty covered_sessions",
            "stage4b_qa_checkpoints.jsonl line 1",
            ["'probe_2'", "checkpoints[1].covered_sessions"],
        ),
        ("unknown covered session", "stage4b_qa_checkpoints.jsonl line 1", ["'probe_2'", "'S09'"]),
        (
            "evidence without id",
            "stage4b_qa_checkpoints.jsonl line 1",
            ["checkpoints[1].questions[0].evidence[0]"],
        ),
        ("no answer", "stage4b_qa_checkpoints.jsonl line 1", ["checkpoints[1].questions[0]", "answer"]),
        ("question is a list", "stage4b_qa_checkpoints.jsonl line 1", ["questions[0].question", "a list"]),
        ("empty points", "stage4_memory_points.jsonl", ["'one'"]),
        ("other sample", "stage4_memory_points.jsonl", ["'one'"]),
        ("duplicate line", "stage4_memory_points.jsonl line 2", ["'one'", "line 1"]),
        ("not JSON", "stage4b_qa_checkpoints.jsonl line 1", []),
        ("nested too deeply", "domain_a_v2.json", []),
        ("missing file", "stage4_memory_points.jsonl", []),
        ("not UTF-8", "domain_a_v2.json", ["UTF-8"]),
        ("bad flag", "stage4_memory_points.jsonl line 1", ["is_update", "'maybe'"]),
        ("two sessions", "domain_a_v2.json", ["'S00'"]),
        ("points twice", "domain_a_v2.json", ["S02"]),
    ],
)
def test_an_error_names_the_file_and_the_place(tmp_path, name, file, words):
    broken(tmp_path, name)
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert file in message
    assert all(word in message for word in words), message
    assert len(message) < 1000
