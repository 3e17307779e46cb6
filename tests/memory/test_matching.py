"""The deterministic matcher: refusals, dates, numbers, lists, choices, coverage."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from karat.memory import turn_text
from karat.memory._language import Date, dates, is_refusal, numbers
from karat.memory._matching import Matcher, judge_answer, swapped
from karat.memory.datasets import read_memory_dataset


@pytest.mark.parametrize(
    "text",
    [
        "I don't know.",
        "I do not know",
        "The memories do not mention it.",
        "There is no information about that.",
        "Not mentioned in the conversation.",
        "I cannot determine the answer from the memories.",
        "This question is unanswerable.",
        "",
        "我不知道",
    ],
)
def test_refusals(text):
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text", ["Oslo", "She moved to Oslo in May.", "No, she likes tea.", "He knows Bruno."]
)
def test_answers_are_not_refusals(text):
    assert not is_refusal(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on 2023-05-07", Date(2023, 5, 7)),
        ("7 May 2023", Date(2023, 5, 7)),
        ("May 7th, 2023", Date(2023, 5, 7)),
        ("the 7th of May", Date(None, 5, 7)),
        ("in May 2023", Date(2023, 5, None)),
        ("in 2023", Date(2023, None, None)),
        ("2023/5", Date(2023, 5, None)),
        ("since June", Date(None, 6, None)),
    ],
)
def test_dates(text, expected):
    assert dates(text) == [expected]


def test_impossible_dates_are_none():
    assert dates("2023-13-45") == [] or all((date.month or 1) <= 12 for date in dates("2023-13-45"))


def test_numbers():
    assert numbers("1,250 euros and three cats, -2.5 degrees") == {1250.0, 3.0, -2.5}


@pytest.mark.parametrize("digits", [20, 500, 5_000])
def test_long_numbers_are_distinguished(digits):
    number = "1" * (digits - 1)
    assert numbers(f"account {number}2").isdisjoint(numbers(f"account {number}3"))


@pytest.mark.parametrize(
    ("answer", "gold", "label"),
    [
        ("It was on May 7th, 2023.", "7 May 2023", "Correct"),
        ("It was on May 8th, 2023.", "7 May 2023", "Hallucination"),
        ("in May", "7 May 2023", "Hallucination"),
        ("She has three cats.", "3", "Correct"),
        ("She has four cats.", "3", "Hallucination"),
        ("She paid 1250 euros", "1,250 euros", "Correct"),
        ("tea, coffee and milk", "coffee, tea, milk", "Correct"),
        ("tea", "coffee, tea, milk", "Omission"),
        ("Her dog is called Bruno.", "Bruno", "Correct"),
        ("Her dog is called Rex.", "Bruno", "Hallucination"),
        ("I don't know.", "Bruno", "Omission"),
        ("", "Bruno", "Omission"),
    ],
)
def test_labels_of_answers(answer, gold, label):
    assert judge_answer(answer, [gold]).label == label


def test_a_refusal_is_an_omission_also_if_the_gold_answer_reads_like_one():
    gold = "It is unclear who painted the mural; the signature is covered."
    assert judge_answer("I don't know.", [gold]).label == "Omission"
    assert judge_answer("Ana painted it in 2019.", [gold]).label == "Hallucination"


def test_any_of_several_gold_answers_is_right():
    assert judge_answer("New York City", ["NYC", "New York City"]).label == "Correct"


def test_unanswerable_questions():
    assert judge_answer("I do not know.", ["nothing was said"], answerable=False).label == "Correct"
    assert judge_answer("In Oslo.", ["nothing was said"], answerable=False).label == "Hallucination"


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("(b) blue", "Correct"),
        ("b)", "Correct"),
        ("Blue.", "Correct"),
        ("red", "Hallucination"),
        ("green", "Omission"),
    ],
)
def test_choices(answer, label):
    assert judge_answer(answer, ["blue"], choices=["red", "blue"]).label == label


@pytest.mark.parametrize("embeddings", [False, None])
def test_coverage(embeddings):
    matcher = Matcher(embeddings)
    memories = ["[2024-01-01] user: Nice weather.", "user: I live in Oslo now. My dog is called Bruno."]
    assert matcher.covered_by("The user lives in Oslo", memories) == 1
    assert matcher.covered_by("The user has 2 dogs", memories) is None
    assert matcher.covered_by("The user lives in Lyon", memories, ["The user lives in Oslo"]) is None
    assert matcher.covered_by("The user lives in Oslo", memories, ["The user lives in Lyon"]) == 1
    assert matcher.covered_by("", memories) is None
    assert matcher.covered_by("The dog Bruno lives in Oslo since 2024", memories) == 1


def test_a_fact_scattered_over_a_long_text_is_not_covered():
    words = ["Ana", "lives", "in", "a", "house", "Oslo"]
    far = ". ".join(f"{word} {'filler words here ' * 10}" for word in words)
    assert Matcher(False).covered_by("Ana lives in Oslo near Bergen", [far]) is None


def test_hostile_texts_end():
    matcher = Matcher(False)
    for text in ("a" * 1_000_000, "not " * 100_000, "1," * 100_000, ". " * 100_000, "\ud800"):
        is_refusal(text)
        dates(text)
        numbers(text)
        matcher.covered_by("Ana lives in Oslo", [text])
        judge_answer(text, ["7 May 2023"])


@pytest.mark.parametrize(
    "text",
    [
        *("a", "a, ", "a and ", "A ", "A'", "$", "1 ", "1-", "- ", "é", "if ", "no ", "my ", "My son "),
        *("from a to ", "is a ", "didn't ", "two days "),
    ],
)
def test_hostile_points_and_gold_answers_end(text):
    text *= 30_000 // len(text)
    matcher = Matcher(False)
    matcher.covered_by(text, [text, "Ana lives in Oslo"])
    judge_answer("7 May 2023", [text], matcher=matcher)
    judge_answer(text, [text], matcher=matcher)


CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "matching_cases.jsonl").read_text(encoding="utf-8").splitlines()
]
"""Cases labelled by hand. Those tagged `held out …` changed no rule; those of the second, third and fourth set were
tried on the rules that the sets before them had led to, and changed them. The third set and `held out 3` were written
as one set before anybody looked at the rules, and divided by chance; `held out 4` was written after the fourth set,
of the same kinds of errors and of others."""

RIGHT = {
    (True, "first set"): (137, 138),
    (True, "held out"): (26, 26),
    (True, "second set"): (57, 60),
    (True, "held out 2"): (25, 30),
    (True, "third set"): (104, 112),
    (True, "held out 3"): (84, 112),
    (True, "fourth set"): (65, 71),
    (True, "held out 4"): (25, 30),
    (False, "first set"): (137, 138),
    (False, "held out"): (26, 26),
    (False, "second set"): (54, 60),
    (False, "held out 2"): (24, 30),
    (False, "third set"): (104, 112),
    (False, "held out 3"): (78, 112),
    (False, "fourth set"): (62, 71),
    (False, "held out 4"): (26, 30),
}
"""How many verdicts are right, with and without embeddings; docs/memory.md has these figures."""

PRECISION = {True: (40, 48), False: (33, 40)}
"""Of what is accepted in `held out 3` (points as covered, answers as Correct), how much is right."""
RECALL = {True: (40, 56), False: (33, 56)}
"""Of what ought to be accepted there, how much is."""


def set_of(case: dict[str, Any]) -> str:
    tag: str = case["tag"]
    return tag if tag.startswith("held out") or tag.endswith(" set") else "first set"


def accepts(case: dict[str, Any], matcher: Matcher) -> bool:
    if case["kind"] == "coverage":
        return matcher.covered_by(case["point"], case["memories"], case["against"]) is not None
    verdict = judge_answer(case["answer"], case["gold"], answerable=case["answerable"], matcher=matcher)
    return verdict.label == "Correct"


@pytest.mark.parametrize("embeddings", [False, True])
def test_precision_and_recall_on_cases_that_changed_no_rule(embeddings):
    if embeddings:
        pytest.importorskip("wordllama")
    matcher = Matcher(embeddings)
    cases = [case for case in CASES if set_of(case) == "held out 3"]
    accepted = [case for case in cases if accepts(case, matcher)]
    wanted = [case for case in cases if case.get("covered") or case.get("label") == "Correct"]
    right = sum(case in wanted for case in accepted)
    assert ((right, len(accepted)), (right, len(wanted))) == (PRECISION[embeddings], RECALL[embeddings])


def is_right(case: dict[str, Any], matcher: Matcher) -> bool:
    if case["kind"] == "coverage":
        found = matcher.covered_by(case["point"], case["memories"], case["against"]) is not None
        return found == case["covered"]
    verdict = judge_answer(case["answer"], case["gold"], answerable=case["answerable"], matcher=matcher)
    return verdict.label == case["label"]


@pytest.mark.parametrize("embeddings", [False, True])
def test_verdicts_agree_with_labels_by_hand(embeddings):
    if embeddings:
        pytest.importorskip("wordllama")
    matcher, wrong = Matcher(embeddings), []
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for case in CASES:
        correct = is_right(case, matcher)
        total[set_of(case)] += 1
        right[set_of(case)] += correct
        if not correct:
            wrong.append((set_of(case), case.get("answer") or case["point"]))
    for name in total:
        assert (right[name], total[name]) == RIGHT[embeddings, name], wrong


SAME_OF_ANOTHER = [
    ("Tom joined a gym in March.", "Tom joined a choir in March."),
    ("Nina's brother is a pilot.", "Nina's cousin is a pilot."),
    ("Pia is learning Finnish.", "Pia: I am learning Welsh."),
    ("Lena moved to Ghent.", "Marta moved to Ghent."),
]


@pytest.mark.parametrize(
    ("wanted", "given", "expected"),
    [
        ("Petra lent Milan 50 euros.", "Milan lent Petra 50 euros.", True),
        ("Petra lent Milan 50 euros.", "Petra lent Milan 50 euros.", False),
        ("Petra lent Milan 50 euros.", "Milan was lent 50 euros by Petra.", False),
        ("Sofie's dog bit the postman.", "The postman bit Sofie's dog.", True),
        ("Gil's wife is Ada.", "Ada is the wife of Gil.", False),
        ("He flew from Lima to Quito.", "He flew from Quito to Lima.", True),
        ("The rent rose from 700 to 780 euros.", "The rent rose from 780 to 700 euros.", True),
        ("The picnic was cancelled because of rain.", "Because of rain they cancelled the picnic.", False),
        ("Dana joined a choir last autumn.", "Last autumn Dana joined a choir.", False),
    ],
)
def test_swapped_roles(wanted, given, expected):
    assert swapped(wanted, given) is expected
    matcher = Matcher(False)
    assert (matcher.covered_by(wanted, [given]) is None) or not expected


@pytest.mark.parametrize(
    ("point", "memory", "covered"),
    [
        ("Ida swims on Tuesdays.", "Ida: I swim on Thursdays.", False),
        ("Ida swims on Tuesdays.", "Ida: I swim on Tuesdays and Thursdays.", True),
        ("Ida was born in 1984.", "Ida: I was born in 1948.", False),
        ("Ida was in Rome for two weeks.", "Ida: I was in Rome for 14 days.", True),
        ("Ida was in Rome for two weeks.", "Ida: I was in Rome for two days.", False),
        ("Ida paid 30 dollars.", "Ida: I paid $30.", True),
        ("Ida paid 30 dollars.", "Ida: I paid €30.", False),
        ("Ida met José in Málaga.", "Ida: I met Jose in Malaga.", True),
        ("Ida lives in Rome.", "Ida: Should I live in Rome?", False),
        ("Ida booked a table in Rome.", "Assistant: You could book a table in Rome.", False),
        ("Ida moved to Rome.", "Ida: I almost moved to Rome.", False),
        ("Ida plans to move to Rome.", "Ida: I am planning to move to Rome if I can.", True),
        ("Ida sails.", "Ida: My sister sails.", False),
        ("Ida's sister sails.", "Ida: I sail.", False),
        ("Ida's sister sails.", "Ida: My sister sails.", True),
        ("Ida's sister Una sails.", "Ida: Una sails.", True),
        ("Ida and her sister sail.", "Ida: My sister and I sail.", True),
        ("Ida eats no fish.", "Ida: I don't eat fish.", True),
        ("Ida eats fish.", "Ida: I eat no fish.", False),
        ("Ida bought a ring for Una.", "Ida: I bought a ring for Max.", False),
        ("Ida can swim.", "Ida: I am unable to swim.", False),
        ("Ida passed the exam.", "Ida: I failed the exam.", False),
    ],
)
@pytest.mark.parametrize("embeddings", [False, True])
def test_what_a_memory_states(point, memory, covered, embeddings):
    if embeddings:
        pytest.importorskip("wordllama")
    assert (Matcher(embeddings).covered_by(point, [memory]) is not None) is covered


@pytest.mark.parametrize(
    ("answer", "gold", "label"),
    [
        ("two weeks", "14 days", "Correct"),
        ("3 hours", "3 days", "Hallucination"),
        ("half an hour", "30 minutes", "Correct"),
        ("two years", "24 months", "Correct"),
        ("20 euros", "20 dollars", "Hallucination"),
        ("from Quito to Lima", "from Lima to Quito", "Hallucination"),
        ("Malaga", "Málaga", "Correct"),
    ],
)
def test_answers_in_other_units_and_signs(answer, gold, label):
    assert judge_answer(answer, [gold]).label == label


@pytest.mark.parametrize(("point", "memory"), SAME_OF_ANOTHER)
def test_the_same_statement_about_something_else_is_not_covered(point, memory):
    pytest.importorskip("wordllama")
    matcher = Matcher(True)
    assert matcher.covered_by(point, [memory]) is None
    assert matcher.covered_by(point, [memory, point]) == 1
    assert (
        judge_answer(memory.partition(": ")[2] or memory, [point], matcher=matcher).label == "Hallucination"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one hundred and twenty", {120.0}),
        ("one thousand two hundred and five", {1205.0}),
        ("two million three hundred thousand", {2_300_000.0}),
        ("half a dozen", {6.0}),
        ("two and five", {2.0, 5.0}),
        ("twice a week", {2.0}),
    ],
)
def test_numbers_in_words(text, expected):
    assert numbers(text) == expected


@pytest.mark.parametrize(
    ("text", "same", "other"),
    [
        ("03/14/2024", "14 March 2024", "3 April 2024"),
        ("14.03.2024", "14 March 2024", "14 April 2024"),
        ("20240314", "14 March 2024", "14 March 2023"),
        ("06/02/2024", "2 June 2024", "7 February 2024"),
        ("06/02/2024", "6 February 2024", "2 July 2024"),
    ],
)
def test_dates_in_figures(text, same, other):
    assert judge_answer(text, [same]).label == judge_answer(same, [text]).label == "Correct"
    assert judge_answer(text, [other]).label == "Hallucination"


@pytest.mark.parametrize(
    "text",
    ["There is nothing on the table.", "She has nothing in the fridge.", "They had nothing in common."],
)
def test_nothing_is_not_always_a_refusal(text):
    assert not is_refusal(text)


def test_a_store_of_the_whole_dialogue_covers_past_turns_only():
    matcher, missing, early, points = Matcher(), [], [], 0
    for one in read_memory_dataset("demo").samples():
        turns: list[str] = []
        for session in one.sessions:
            new = [point.text for point in (*session.new, *session.updates)]
            early += [text for text in new if matcher.covered_by(text, turns) is not None]
            here = [turn_text(turn) for turn in session.turns]
            missing += [text for text in new if matcher.covered_by(text, here) is None]
            turns += here
            points += len(new)
    assert points == 71
    assert early == []
    assert len(missing) <= 2  # stated in other words ("the old hours"), which only a judge can tell
