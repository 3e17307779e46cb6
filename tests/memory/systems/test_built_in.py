"""What each built-in system and control keeps and returns."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter

import pytest
import time_machine

from karat.errors import DataError, RequestError
from karat.memory import ControlSystem, Turn, count_tokens, memory_systems
from karat.testing import FakeProvider

PETS = [
    ("Ann", "My dog Rex is afraid of thunder.", "2024-05-01"),
    ("Ben", "Poor thing! How old is he?", "2024-05-01"),
    ("Ann", "He turned 4 in March.", "2024-05-01"),
]
TRAVEL = [
    ("Ben", "I booked flights to Lisbon for July.", "2024-06-10T08:15:00"),
    ("Ann", "Nice, take the tram.", "2024-06-10T08:16:00"),
]


def texts(found):
    return [item.text for item in found.items]


def test_memories_have_the_seeds_fields(drive):
    stored = drive("FUMemory", PETS, TRAVEL).snapshot()
    assert [memory.memory_id for memory in stored] == ["0", "1", "2", "3", "4"]
    assert stored[3].text == "[2024-06-10 08:15] Ben: I booked flights to Lisbon for July."
    assert (stored[3].session_id, stored[3].raw_backend_id, stored[3].raw_backend_type) == (
        "S01",
        "3",
        "linear",
    )
    assert (stored[3].status, stored[3].turn_ids) == ("active", ("t3",))


def test_full_memory_returns_everything_as_one_text(drive):
    found = drive("FUMemory", PETS, TRAVEL).retrieve("anything", 5, None)
    assert len(found.items) == 1
    assert found.items[0].text.count("\n") == 4
    assert found.items[0].turn_ids == ("t0", "t1", "t2", "t3", "t4")
    assert found.trace["cut"] == 0


def test_full_memory_keeps_the_newest_turns_within_its_budget(drive):
    found = drive("FUMemory", PETS, TRAVEL, tokens=45).retrieve("anything", 5, None)
    assert count_tokens(found.items[0].text) <= 45
    assert found.items[0].turn_ids == ("t3", "t4")
    assert found.trace["cut"] == 3


def test_full_memory_cuts_a_turn_that_is_too_long_alone(drive):
    found = drive("FUMemory", [("Ann", "word " * 1000, None)], tokens=10).retrieve("anything", 5, None)
    assert count_tokens(found.items[0].text) == 10


def test_short_term_memory_returns_the_newest_first(drive):
    system = drive("STMemory", PETS, TRAVEL, k=3)
    assert [item.memory_id for item in system.retrieve("dog", 5, None).items] == ["4", "3", "2"]
    assert [item.memory_id for item in system.retrieve("dog", 1, None).items] == ["4"]
    assert len(system.snapshot()) == 5


def test_bm25_scores_are_those_of_the_formula(drive):
    system = drive("BM25Memory", PETS, TRAVEL)
    documents = [re.findall(r"[a-z0-9]+", memory.text.lower()) for memory in system.snapshot()]
    mean = sum(map(len, documents)) / len(documents)

    def score(document):
        total = 0.0
        for word in ("flights", "to", "lisbon", "in"):
            holding = sum(word in each for each in documents)
            count = Counter(document)[word]
            weight = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            total += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(document) / mean))
        return total

    found = system.retrieve("Flights to Lisbon in", 5, None)
    expected = sorted(((score(d), str(i)) for i, d in enumerate(documents)), key=lambda each: -each[0])
    assert [(pytest.approx(item.score), item.memory_id) for item in found.items] == [
        each for each in expected if each[0] > 0
    ]


def test_bm25_finds_ideographs(drive):
    chat = [("甲", "我的狗叫小白,今年四岁。", None), ("乙", "明天去北京开会。", None)]
    assert texts(drive("BM25Memory", chat).retrieve("小白几岁?", 1, None)) == ["甲: 我的狗叫小白,今年四岁。"]


def test_long_term_memory_finds_by_meaning(drive):
    system = drive("LTMemory", PETS, TRAVEL)
    assert "Rex" in texts(system.retrieve("Which pet is scared of storms?", 1, None))[0]
    assert "Lisbon" in texts(system.retrieve("vacation airplane to Portugal", 1, None))[0]


def test_an_embedder_that_returns_too_few_vectors_is_an_error(drive):
    class Broken:
        spec = "broken"

        def embed_sync(self, given):
            return [[1.0, 2.0]] * (len(given) - 1)

    with pytest.raises(DataError, match="broken"):
        drive("LTMemory", PETS, embedder=Broken())
    with pytest.raises(RequestError, match="embedder"):
        memory_systems.get("LTMemory")(embedder=5)


class TestGAMemory:
    SAME = [
        ("Ann", "The wifi password is blue42.", "2024-01-01"),
        ("Ann", "The wifi password is blue42.", "2024-03-01"),
    ]

    def test_recency_is_counted_in_the_dialogues_calendar(self, drive):
        system = drive("GAMemory", self.SAME, similarity_weight=0)  # the dates differ, and so do embeddings
        with time_machine.travel("2031-03-01"):
            found = system.retrieve("wifi password", 2, "2024-03-02")
        assert [item.memory_id for item in found.items] == ["1", "0"]
        assert found.items[0].score == pytest.approx(1.0)
        assert found.items[1].score == pytest.approx(0.0)

    def test_without_dates_later_turns_are_more_recent(self, drive):
        undated = [(speaker, text, None) for speaker, text, _ in self.SAME]
        found = drive("GAMemory", undated, similarity_weight=0).retrieve("wifi password", 2, None)
        assert [item.memory_id for item in found.items] == ["1", "0"]

    def test_weights_choose_what_counts(self, drive):
        chat = [("Ann", "I moved to Oslo in 2019.", "2024-01-01"), ("Ben", "Ok.", "2024-03-01")]
        only_importance = {"similarity_weight": 0, "recency_weight": 0}
        only_recency = {"similarity_weight": 0, "importance_weight": 0}
        first = drive("GAMemory", chat, **only_importance).retrieve("ok", 1, None)
        assert first.items[0].memory_id == "0"
        second = drive("GAMemory", chat, **only_recency).retrieve("Oslo", 1, None)
        assert second.items[0].memory_id == "1"

    def test_a_model_rates_and_concludes(self, drive):
        def answers(body):
            prompt = body["messages"][-1]["content"]
            if "Rate how much" in prompt:
                return json.dumps({"ratings": [9, 2, 8][: len(re.findall(r"^\d+\. ", prompt, re.MULTILINE))]})
            insight = {"text": "Ann cares\nfor an old dog.", "lines": [1, 2, 99], "replaces": []}
            return json.dumps({"statements": [insight]})

        with FakeProvider(answers) as provider:
            system = drive("GAMemory", PETS, model=provider.spec(), reflect_at=1.0)
            prompts = json.dumps(provider.requests)
        stored = system.snapshot()
        assert [memory.metadata["importance"] for memory in stored] == [0.9, 0.2, 0.8, 0.9]
        assert stored[3].text == "Ann cares for an old dog."
        assert stored[3].metadata["kind"] == "insight"
        assert stored[3].turn_ids == (
            "t0",
            "t2",
        )  # lines are sorted by importance, and line 99 does not exist
        assert "[2024-05-01] Ann: My dog Rex" in prompts
        assert system.configuration()["model"] is not None

    @pytest.mark.parametrize("ratings", [[1], [1, 2, 11], "many"])
    def test_ratings_that_cannot_be_read_are_an_error(self, drive, ratings):
        with FakeProvider(json.dumps({"ratings": ratings})) as provider, pytest.raises(Exception) as failure:
            drive("GAMemory", PETS, model=provider.spec())
        assert not isinstance(failure.value, (AssertionError, KeyError, TypeError))


class TestMGMemory:
    def test_each_turn_is_in_one_tier(self, drive):
        system = drive("MGMemory", PETS, TRAVEL, queue_tokens=40, working_tokens=30)
        tiers = [memory.raw_backend_type for memory in system.snapshot()]
        assert len(tiers) == 5
        assert set(tiers) == {"working", "queue", "archive"}

    def test_a_third_of_the_results_is_working_context(self, drive):
        chat = [
            ("Ann", f"My favourite food number {n} is Pad Thai and I like it.", None) for n in range(9)
        ] + [("Ben", "The ferry sails on Friday at noon.", None)]
        found = drive("MGMemory", chat).retrieve("When does the ferry sail?", 6, None)
        assert found.trace["working"] == 2
        assert "ferry" in found.items[2].text
        assert len(found.items) == 6

    def test_a_model_edits_the_working_context(self, drive):
        replies = iter(
            [
                [{"text": "Rex is 4 years old.", "lines": [3], "replaces": []}],
                [{"text": "Rex is 5 years old.", "lines": [1], "replaces": [1, 7]}],
            ]
        )
        with FakeProvider(lambda body: json.dumps({"statements": next(replies)})) as provider:
            system = drive("MGMemory", PETS, TRAVEL, model=provider.spec())
            assert "1. Rex is 4 years old." in json.dumps(provider.requests[-1])
        facts = [memory for memory in system.snapshot() if memory.metadata.get("kind") == "fact"]
        assert [(fact.text, fact.status) for fact in facts] == [
            ("Rex is 4 years old.", "archived"),
            ("Rex is 5 years old.", "active"),
        ]
        assert facts[1].replaces == (facts[0].memory_id,)
        found = texts(system.retrieve("How old is Rex?", 6, None))
        assert "Rex is 5 years old." in found
        assert "Rex is 4 years old." not in found


class TestRFMemory:
    def test_without_a_model_it_puts_telling_turns_first(self, drive):
        found = drive("RFMemory", PETS, TRAVEL, reflections=2).retrieve("anything", 5, None)
        first, rest = found.items
        assert first.memory_id == "karat:reflections"
        assert "Rex" in first.text
        assert "How old" in rest.text
        assert sorted(first.turn_ids + rest.turn_ids) == ["t0", "t1", "t2", "t3", "t4"]

    def test_one_result_holds_both(self, drive):
        found = drive("RFMemory", PETS, TRAVEL).retrieve("anything", 1, None)
        assert len(found.items) == 1
        assert len(found.items[0].turn_ids) == 5

    def test_a_model_reflects_on_each_session(self, drive):
        replies = iter(
            [
                [{"text": "Rex fears thunder.", "lines": [1], "replaces": []}],
                [{"text": "Rex is calm now.", "lines": [1], "replaces": [1]}],
            ]
        )
        with FakeProvider(lambda body: json.dumps({"statements": next(replies)})) as provider:
            system = drive("RFMemory", PETS, TRAVEL, model=provider.spec())
        reflections = system.retrieve("anything", 5, None).items[0]
        assert reflections.text == "Rex is calm now."
        assert reflections.turn_ids == ("t3",)
        assert [memory.status for memory in system.snapshot()].count("archived") == 1

    def test_a_model_that_writes_without_end_is_bounded(self, drive):
        flood = [{"text": "word " * 5_000, "lines": [1], "replaces": []}] * 200
        with FakeProvider(json.dumps({"statements": flood})) as provider:
            system = drive("RFMemory", PETS, model=provider.spec())
        written = [memory for memory in system.snapshot() if memory.metadata.get("kind") == "reflection"]
        assert len(written) == 10
        assert all(count_tokens(memory.text) <= 200 for memory in written)


class TestControls:
    def test_no_memory_stores_and_finds_nothing(self, drive):
        system = drive("no_memory", PETS)
        assert system.snapshot() == []
        assert system.retrieve("dog", 5, None).items == ()
        assert system.fixed_answer is None

    def test_always_refuse_names_its_answer(self, drive):
        assert drive("always_refuse", PETS).fixed_answer

    def test_full_context_returns_all_turns_in_order(self, drive):
        system = drive("full_context", PETS, TRAVEL)
        assert [item.memory_id for item in system.retrieve("dog", 1, None).items] == ["0", "1", "2", "3", "4"]
        assert system.every_item

    def test_oracle_returns_the_evidence_of_the_next_question_only(self, drive):
        system = drive("oracle", PETS)
        gold = Turn(turn_id="t0", speaker="Ann", text="My dog Rex", time="2024-05-01")
        system.give_gold([gold], ["the same as text"])
        found = system.retrieve("Which dog?", 5, None)
        assert texts(found) == ["[2024-05-01] Ann: My dog Rex"]
        assert found.items[0].turn_ids == ("t0",)
        assert system.retrieve("Which dog?", 5, None).items == ()
        system.give_gold([], ["Ann has a dog"])
        assert texts(system.retrieve("Which dog?", 5, None)) == ["Ann has a dog"]

    def test_only_controls_can_be_given_gold(self):
        given = [
            name
            for name in memory_systems.list()
            if isinstance(memory_systems.get(name), type)
            and issubclass(memory_systems.get(name), ControlSystem)
        ]
        assert given == ["always_refuse", "full_context", "no_memory", "oracle"]
        assert [name for name in given if memory_systems.get(name).needs_gold] == ["oracle"]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("FUMemory", {"tokens": 0}),
        ("FUMemory", {"tokens": True}),
        ("STMemory", {"k": "5"}),
        ("BM25Memory", {"b": -1}),
        ("GAMemory", {"half_life_days": 0}),
        ("GAMemory", {"recency_weight": float("nan")}),
        ("MGMemory", {"queue_tokens": -3}),
        ("RFMemory", {"model": 7}),
    ],
)
def test_wrong_parameters_are_refused(name, parameters):
    with pytest.raises(RequestError, match=f"{name}: {next(iter(parameters))}"):
        memory_systems.get(name)(**parameters)


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1}', b"\xff\xfe", b"[1]"])
def test_a_damaged_file_is_not_loaded(drive, tmp_path, content):
    (tmp_path / "memory.json").write_bytes(content)
    with pytest.raises(DataError, match=r"memory\.json"):
        drive("FUMemory").load(tmp_path)


def test_the_file_of_another_system_is_not_loaded(drive, tmp_path, refuses):
    drive("FUMemory", PETS).save(tmp_path)
    with refuses(DataError):
        drive("STMemory").load(tmp_path)


def test_vectors_of_another_length_are_not_loaded(drive, tmp_path):
    drive("LTMemory", PETS).save(tmp_path / "a")
    drive("LTMemory", TRAVEL).save(tmp_path / "b")
    (tmp_path / "b" / "memory.json").write_bytes((tmp_path / "a" / "memory.json").read_bytes())
    with pytest.raises(DataError, match=r"vectors\.npy"):
        drive("LTMemory").load(tmp_path / "b")


def test_loading_embeddings_leaves_logging_alone():
    """In a process of its own: here they may be loaded already, and pytest has handlers."""
    script = (
        "import logging; from karat import models; models.get('local/wordllama').embed_sync(['a']);"
        "print(logging.getLogger().handlers, logging.getLogger().level)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "30"]
    assert done.stderr == ""
