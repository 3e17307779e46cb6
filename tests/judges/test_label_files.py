"""Label files that people make by mistake or on purpose, and labels of parts."""

from __future__ import annotations

import csv
import json

import pytest

import karat
from karat.analysis.judges.agreement import alignment
from karat.analysis.judges.labels import import_labels
from karat.errors import RequestError
from karat.execution.labels import label_evaluations, labels_in
from karat.reporting.export import export

from .conftest import echo, judged, material, says_good

CLAIMS = [{"claim": "a", "supported": True}, {"claim": "b", "supported": False}]
VERDICTS = [{"evidence": "", "id": n, "quote": "", "satisfied": n == 1, "steps": []} for n in (1, 2)]


def stored(evaluation):
    found = label_evaluations(evaluation.store, evaluation.header.runs)
    return [label for each in found for label in labels_in(each)]


def answer_all(body):
    system = body["messages"][0]["content"]
    if "fact checker" in system:
        return {"analysis": "", "claims": CLAIMS}
    if "inspector" in system:
        return {"analysis": "", "verdicts": VERDICTS}
    if "Choices:" in system:
        return {"analysis": "", "choice": "yes"}
    return says_good(body)


@pytest.fixture
def evaluation(store, serve):
    """Four judges over two outputs of each of two attempts."""
    server = serve(answer_all)
    data = [{"id": n, "input": {"question": "?", "context": ["c"], "answer": "good"}} for n in ("q1", "q2")]
    run = karat.run(echo, data, store=store, attempts=2)
    judge = server.spec()
    return karat.evaluate(
        run,
        [
            {"name": "groundedness", "params": {"judge": judge}},
            {"name": "agent_as_judge", "params": {"judge": judge, "requirements": ["x", "y"]}},
            {"name": "rubric_dag", "params": {"judge": judge, "preset": "answer_quality"}},
            {
                "name": "llm_judge",
                "key": "tone",
                "params": {"judge": judge, "criterion": {"polite": "It is polite.", "clear": "It is clear."}},
            },
        ],
    )


BASE = {"example": "q1", "attempt": 1}
WRONG_PARTS = {
    "claim 0": {"evaluator": "groundedness", "part": "claims/0", "label": "true"},
    "claim 3 of 2": {"evaluator": "groundedness", "part": "claims/3", "label": "true"},
    "claim -1": {"evaluator": "groundedness", "part": "claims/-1", "label": "true"},
    "claim 01": {"evaluator": "groundedness", "part": "claims/01", "label": "true"},
    "claims without a number": {"evaluator": "groundedness", "part": "claims", "label": "true"},
    "a requirement of claims": {"evaluator": "groundedness", "part": "requirements/1", "label": "true"},
    "requirement 3 of 2": {"evaluator": "agent_as_judge", "part": "requirements/3", "label": "true"},
    "an unknown node": {"evaluator": "answer_quality", "part": "nodes/none", "label": "yes"},
    "a choice that is none": {"evaluator": "answer_quality", "part": "nodes/answers", "label": "perhaps"},
    "a node of another evaluator": {"evaluator": "groundedness", "part": "answers", "label": "yes"},
    "an unknown criterion": {"evaluator": "tone", "part": "criteria/none", "label": "pass"},
    "a word for a claim": {"evaluator": "groundedness", "part": "claims/1", "label": "perhaps"},
    "no evaluator among several": {"label": "pass"},
    "a list as a label": {"evaluator": "tone", "label": ["pass"]},
    "an object as an example": {"evaluator": "tone", "label": "pass", "example": {"id": "q1"}},
    "true as an example": {"evaluator": "tone", "label": "pass", "example": True},
    "a control character": {"evaluator": "tone", "label": "pass", "annotator": "a\u0000b"},
    "a long annotator": {"evaluator": "tone", "label": "pass", "annotator": "a" * 5000},
    "a probability in words": {"evaluator": "tone", "label": "pass", "probability": "half"},
    "true as a probability": {"evaluator": "tone", "label": "pass", "probability": True},
    "NaN as a probability": {"evaluator": "tone", "label": "pass", "probability": "nan"},
    "attempt 1.5": {"evaluator": "tone", "label": "pass", "attempt": 1.5},
    "a huge attempt": {"evaluator": "tone", "label": "pass", "attempt": 10**30},
    "attempt 3 of 2": {"evaluator": "tone", "label": "pass", "attempt": 3},
    "a unit that is not there": {"evaluator": "tone", "label": "pass", "unit": "session/1"},
    "a word as a score": {"evaluator": "tone", "score": "pass"},
    "infinity": {"evaluator": "tone", "score": "inf"},
}


@pytest.mark.parametrize("row", WRONG_PARTS.values(), ids=WRONG_PARTS)
def test_a_wrong_row_is_named_and_nothing_is_stored(evaluation, folder, row):
    good = {**BASE, "evaluator": "tone", "label": "pass", "annotator": "first"}
    path = folder / "labels.jsonl"
    path.write_text(json.dumps(good) + "\n" + json.dumps({**BASE, **row}) + "\n")
    with pytest.raises(RequestError, match="line 2"):
        import_labels(path, evaluation)
    assert stored(evaluation) == []


FILES = {
    "UTF-16": ("l.csv", "example,label\na,pass\n".encode("utf-16")),
    "Latin-1": ("l.csv", "example,label,note\na,pass,très bien\n".encode("latin-1")),
    "a cell too many": ("l.csv", b"example,label,note\na,pass,good, really\n"),
    "a cell too few": ("l.csv", b"example,label,note\na,pass\n"),
    "two columns of one name": ("l.csv", b"example,label,label\na,pass,fail\n"),
    "a quote that does not end": ("l.csv", b'example,label\na,"pass\n'),
    "no header": ("l.csv", b"a,pass\n"),
    "semicolons": ("l.csv", b"example;label\na;pass\n"),
    "an empty label": ("l.csv", b"example,label\na,\n"),
    "labels that differ": ("l.csv", b"example,label\na,pass\na,fail\n"),
    "labels that differ in case": ("l.csv", b"example,label\na,pass\nb,fail\na,no\n"),
    "an unknown ending": ("l.txt", b"example,label\na,pass\n"),
    "a JSON list": ("l.json", b'[{"example": "a", "label": "pass"}]'),
    "cut off": ("l.jsonl", b'{"example": "a", "label": "pa'),
    "nested deeply": ("l.jsonl", b'{"example": "a", "label": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "a number": ("l.jsonl", b"1\n"),
    "NaN": ("l.jsonl", b'{"example": "a", "score": NaN}\n'),
    "only blank lines": ("l.jsonl", b"\n\n"),
}


@pytest.mark.parametrize(("name", "content"), FILES.values(), ids=FILES)
def test_a_hostile_file_is_refused_and_nothing_is_stored(store, serve, folder, name, content):
    evaluation = judged(store, serve(says_good), {"a": "good", "b": "bad"})
    (folder / name).write_bytes(content)
    with pytest.raises(RequestError):
        import_labels(folder / name, evaluation)
    assert stored(evaluation) == []


GOOD_FILES = {
    "a byte order mark": ("l.csv", b"\xef\xbb\xbfexample,label\na,pass\n"),
    "Windows line ends": ("l.csv", b"example,label\r\na,pass\r\n"),
    "tabs": ("L.TSV", b"example\tlabel\na\tpass\n"),
    "the same label twice": ("l.csv", b"example,label\na,pass\na,pass\n"),
    "a line separator in a note": (
        "l.jsonl",
        '{"example": "a", "label": "pass", "note": "a\u2028b"}\n'.encode(),
    ),
    "a number as a note": ("l.jsonl", b'{"example": "a", "label": true, "note": 3}\n'),
    "wide digits": ("l.jsonl", '{"example": "a", "score": "\uff11"}\n'.encode()),
}


@pytest.mark.parametrize(("name", "content"), GOOD_FILES.values(), ids=GOOD_FILES)
def test_a_readable_file_is_read(store, serve, folder, name, content):
    evaluation = judged(store, serve(says_good), {"a": "good", "b": "bad"})
    (folder / name).write_bytes(content)
    import_labels(folder / name, evaluation)
    assert [(label.item.example, label.score) for label in stored(evaluation)] == [("a", 1.0)]


def test_a_uniform_sample_has_no_different_probabilities(store, serve, folder):
    evaluation = judged(store, serve(says_good), {"a": "good", "b": "bad"})
    (folder / "l.csv").write_text("example,label,probability\na,pass,0.5\nb,fail,0.1\n")
    with pytest.raises(RequestError, match="not uniform"):
        import_labels(folder / "l.csv", evaluation, sampling="uniform")
    assert import_labels(folder / "l.csv", evaluation)


def test_labels_of_every_kind_of_part(evaluation, folder):
    rows = [
        {"evaluator": "groundedness", "part": "claims/1", "label": "unsupported"},
        {"evaluator": "groundedness", "part": "claims/2", "score": 0},
        {"evaluator": "agent_as_judge", "part": "requirements/2", "label": "satisfied"},
        {"evaluator": "answer_quality", "part": "nodes/answers", "label": True},
        {"evaluator": "grounded", "label": "No"},
        {"evaluator": "polite", "label": "fail"},
        {"evaluator": "tone", "part": "criteria/clear", "label": "pass"},
    ]
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps({**BASE, **row}) + "\n" for row in rows))
    import_labels(path, evaluation, sampling="uniform")
    assert {part: value for label in stored(evaluation) for part, value in label.parts.items()} == {
        "claims/1": False,
        "claims/2": False,
        "requirements/2": True,
        "nodes/answers": "yes",
        "nodes/grounded": "no",
        "criteria/polite": False,
        "criteria/clear": True,
    }
    found = {(each.evaluator, each.part): each for each in alignment(evaluation)}
    assert {name: (each.n, each.agreement.value) for name, each in found.items()} == {
        ("groundedness", "claims"): (2, 0.5),
        ("agent_as_judge", "requirements/2"): (1, 0.0),
        ("answer_quality", "nodes/answers"): (1, 1.0),
        ("answer_quality", "nodes/grounded"): (1, 0.0),
        ("tone", "criteria/polite"): (1, 0.0),
        ("tone", "criteria/clear"): (1, 1.0),
    }


def test_scores_on_a_scale_pair_with_nodes_and_criteria(evaluation, folder):
    """Scores of 1 to 5 for each criterion: 1 is the worst, not the word for pass."""
    rows = [
        {"evaluator": "answers", "score": 5},
        {"evaluator": "grounded", "score": 1},
        {"evaluator": "polite", "score": 1},
        {"evaluator": "clear", "score": 4},
        {"evaluator": "answer_quality", "score": 2},
    ]
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps({**BASE, **row}) + "\n" for row in rows))
    import_labels(path, evaluation, sampling="uniform", scale=(1.0, 5.0))
    found = {(each.evaluator, each.part): each for each in alignment(evaluation)}
    rates = {name: (each.judge_rate.value, each.base_rate.value) for name, each in found.items()}
    assert rates == {
        ("answer_quality", ""): (1.0, 0.0),
        ("answer_quality", "nodes/answers"): (1.0, 1.0),
        ("answer_quality", "nodes/grounded"): (1.0, 0.0),
        ("tone", "criteria/polite"): (1.0, 0.0),
        ("tone", "criteria/clear"): (1.0, 1.0),
    }


def test_agreement_at_a_node_is_about_its_choices(store, serve, folder):
    choices = ["yes", "partially", "no"]
    said = {f"e{n}": (choices[n % 3], choices[(n * n) % 3]) for n in range(30)}

    def answer(body):
        number = material(body).rpartition("number ")[2].split()[0]
        first = "directly answer" in body["messages"][0]["content"]
        return {"analysis": "", "choice": said[f"e{number}"][0] if first else "yes"}

    data = [{"id": f"e{n}", "input": {"question": "?", "answer": f"number {n} "}} for n in range(30)]
    run = karat.run(echo, data, store=store)
    spec = {"name": "rubric_dag", "params": {"preset": "answer_quality", "judge": serve(answer).spec()}}
    evaluation = karat.evaluate(run, [spec])
    path = folder / "labels.jsonl"
    path.write_text(
        "".join(
            json.dumps({"example": n, "part": "answers", "label": b}) + "\n" for n, (_, b) in said.items()
        )
    )
    import_labels(path, evaluation, sampling="uniform")
    [found] = alignment(evaluation)
    expected = karat.stats.cohen_kappa([a for a, _ in said.values()], [b for _, b in said.values()])
    assert found.part == "nodes/answers"
    assert found.kappa.value == pytest.approx(expected.value)
    # "partially" is half way up: with "yes" it is on the passing side.
    assert found.base_rate.value == pytest.approx(sum(b != "no" for _, b in said.values()) / 30)


def test_a_label_of_a_claim_belongs_to_that_claim(store, serve, folder):
    """Judged again by another judge, the answer has other claims; claim 1 is another one then."""
    run = karat.run(
        echo, [{"id": "q1", "input": {"question": "?", "context": ["c"], "answer": "A b."}}], store=store
    )
    first = serve(lambda body: {"analysis": "", "claims": CLAIMS})
    other = [{"claim": "z", "supported": True}, {"claim": "b", "supported": False}]
    second = serve(lambda body: {"analysis": "", "claims": other})
    evaluations = [
        karat.evaluate(run, [{"name": "groundedness", "params": {"judge": server.spec()}}])
        for server in (first, second)
    ]
    path = folder / "labels.jsonl"
    path.write_text(
        "".join(json.dumps({"example": "q1", "part": f"claims/{n}", "label": False}) + "\n" for n in (1, 2))
    )
    import_labels(path, evaluations[0], sampling="uniform")
    assert [each.n for each in alignment(evaluations[0])] == [2]
    assert [each.n for each in alignment(evaluations[1])] == [1]


def test_labels_of_another_criterion_are_not_used(store, serve, folder):
    """The same run and key with another criterion: its labels answer another question."""
    answers = {f"e{n}": "good" if n % 2 else "bad" for n in range(8)}
    evaluation = judged(store, serve(says_good), answers, criterion="It is right.")
    other = judged(store, serve(says_good), answers, criterion="It is polite.")
    again = judged(store, serve(says_good), answers, criterion="It is right.", continuous=False)
    (folder / "l.csv").write_text("example,label\n" + "".join(f"e{n},pass\n" for n in range(4)))
    import_labels(folder / "l.csv", evaluation, sampling="uniform")
    assert [each.n for each in alignment(evaluation)] == [4]
    assert [each.n for each in alignment(again)] == [4]
    assert karat.aggregate(again, ["mean"]).estimates.get(aggregator="corrected")
    with pytest.raises(RequestError, match="no labels"):
        alignment(other)
    assert not karat.aggregate(other, ["mean"]).estimates.select(aggregator="corrected")


def test_a_judges_own_pass_mark_decides_what_passes(store, serve, folder):
    server = serve(lambda body: {"analysis": "", "score": 3})
    evaluation = judged(store, server, {"a": "x", "b": "y"}, continuous=True, pass_mark=0.9)
    (folder / "l.csv").write_text("example,label\na,fail\nb,fail\n")
    import_labels(folder / "l.csv", evaluation, sampling="uniform")
    [found] = alignment(evaluation)
    assert (found.judge_rate.value, found.agreement.value) == (0.0, 1.0)


def test_two_people_who_disagree_are_two_labels(store, serve, folder):
    evaluation = judged(store, serve(says_good), {"a": "good", "b": "bad"})
    (folder / "l.csv").write_text("example,label,annotator\na,pass,x\na,fail,y\nb,fail,x\nb,fail,y\n")
    import_labels(folder / "l.csv", evaluation, sampling="uniform")
    [found] = alignment(evaluation)
    assert (found.n, found.base_rate.value, found.agreement.value) == (4, 0.25, 0.75)


def test_labels_without_a_verdict_are_a_clear_error(store, serve, folder, refuses):
    evaluation = judged(store, serve(says_good), {"a": "good"})
    with pytest.raises(RequestError, match="no labels"):
        alignment(evaluation)
    (folder / "l.csv").write_text("example,label\na,cannot tell\n")
    import_labels(folder / "l.csv", evaluation)
    with pytest.raises(RequestError, match="no labels"):
        alignment(evaluation)
    with refuses(RequestError):
        alignment(evaluation, evaluator="llm_judg")


def test_a_corrected_estimate_is_about_all_outputs_like_the_raw_one(store, serve, folder):
    """Examples with many units count as often as they have units: with every label the mean is the labels' own."""
    evaluation = judged(store, serve(says_good), {f"e{n}": "good" if n % 3 else "bad" for n in range(12)})
    rows = [{"example": f"e{n}", "label": "pass" if n % 2 else "fail"} for n in range(12)]
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_labels(path, evaluation, sampling="uniform")
    found = karat.aggregate(evaluation, ["mean"]).estimates
    corrected, raw = found.get(aggregator="corrected"), found.get(aggregator="mean")
    assert corrected.value == pytest.approx(0.5)
    assert corrected.metadata["raw"] == pytest.approx(raw.value)


def _several(input):
    return input["answer"]


def test_attempts_are_clusters_of_the_corrected_estimate(store, serve, folder):
    data = [
        {"id": f"e{n}", "input": {"question": "?", "answer": "good" if n % 4 else "bad"}} for n in range(40)
    ]
    run = karat.run(_several, data, store=store, attempts=3)
    evaluation = karat.evaluate(run, [{"name": "llm_judge", "params": {"judge": serve(says_good).spec()}}])
    rows = [
        {"example": f"e{n}", "attempt": k, "label": "pass" if n % 2 else "fail"}
        for n in range(0, 40, 2)
        for k in ((1, 2) if n % 4 else (3,))
    ]
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_labels(path, evaluation, sampling="uniform")
    found = karat.aggregate(evaluation, ["mean"]).estimates
    corrected, raw = found.get(aggregator="corrected"), found.get(aggregator="mean")
    assert corrected.method == "ppi++, clustered"
    assert corrected.metadata["raw"] == pytest.approx(raw.value)
    assert corrected.metadata["clusters"] == 40
    assert corrected.of == raw.of == 120


def test_outputs_without_a_verdict_count_in_the_corrected_estimate(store, serve, folder):
    def answer(body):
        return "no verdict" if "odd" in material(body) else says_good(body)

    evaluation = judged(store, serve(answer), {f"e{n}": "odd" if n % 5 == 0 else "good" for n in range(40)})
    assert evaluation.counts.failed == 8
    rows = [{"example": f"e{n}", "label": "pass" if n % 2 else "fail"} for n in range(20)]
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_labels(path, evaluation, sampling="uniform")
    corrected = karat.aggregate(evaluation, ["accuracy"]).estimates.get(aggregator="corrected")
    assert (corrected.n, corrected.of) == (32, 40)
    assert corrected.lowest < corrected.value < corrected.highest


def test_the_columns_of_an_export_are_read_or_listed(store, serve, folder):
    """`id` is the example, what karat exports beside it is not read, and one notice lists it."""
    evaluation = judged(store, serve(says_good), {"a": "good", "=b": "bad"})
    path = folder / "l.csv"
    export(evaluation, path, "csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["id"] for row in rows} == {"a", "'=b"}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "label", "topic"])
        writer.writeheader()
        writer.writerows([{**row, "label": "pass", "topic": "law"} for row in rows])
    notices: list[str] = []
    import_labels(path, evaluation, notify=notices.append)
    assert {(label.item.example, label.score) for label in stored(evaluation)} == {("a", 1.0), ("=b", 1.0)}
    [notice] = notices
    assert "'topic'" in notice
    assert "'llm_judge.score'" in notice
    assert "'output'" not in notice


@pytest.mark.parametrize(
    "header",
    ["exmaple,label", "example,lable", "example,labels", "example,label,Run", "example,label,probabilty"],
)
def test_a_misspelt_column_is_refused(store, serve, folder, refuses, header):
    evaluation = judged(store, serve(says_good), {"a": "good"})
    (folder / "l.csv").write_text(f"{header}\na,pass{',1' * (header.count(',') - 1)}\n")
    with refuses(RequestError):
        import_labels(folder / "l.csv", evaluation)


@pytest.mark.parametrize("name", ["source", "topic", "name", "state", "parent", "answer", "sample"])
def test_a_column_of_another_name_is_not_taken_for_a_mistake(store, serve, folder, name):
    evaluation = judged(store, serve(says_good), {"a": "good"})
    (folder / "l.csv").write_text(f"example,label,{name}\na,pass,x\n")
    notices: list[str] = []
    import_labels(folder / "l.csv", evaluation, notify=notices.append)
    assert repr(name) in notices[0]
