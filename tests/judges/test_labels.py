"""People's labels: import, agreement, corrected estimates, corrections."""

from __future__ import annotations

import json
import random
import re

import pytest

import karat
from karat.analysis.judges.agreement import alignment, compare_judges
from karat.analysis.judges.labels import correct, import_labels
from karat.cli import main
from karat.errors import RequestError
from karat.execution.labels import label_evaluations, labels_in, rogan_gladen

from .conftest import echo, judged, material, says_good


def write(folder, rows, name="labels.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def population(count=200, seed=1):
    """Answers with the truth in their id: the judge passes `good`, which errs in a known way."""
    draw = random.Random(seed)
    out = {}
    for n in range(count):
        right = draw.random() < 0.5
        says = draw.random() < (0.9 if right else 0.3)
        out[f"{'t' if right else 'f'}{n}"] = f"{'good' if says else 'bad'} {n}"
    return out


def test_labels_are_an_evaluation_whose_evaluator_is_the_person(store, serve, folder):
    evaluation = judged(store, serve(says_good), {"a": "good", "b": "bad", "c": "good"})
    path = write(folder, [{"example": "a", "label": "pass"}, {"example": "b", "label": "cannot tell"}])
    [stored] = import_labels(path, evaluation, annotator="ana", sampling="uniform")
    assert stored.header.runs == evaluation.header.runs
    [spec] = stored.header.evaluators
    assert (spec.name, spec.params["annotator"], spec.params["labels"]) == ("human", "ana", "llm_judge")
    assert (stored.counts.ok, stored.counts.skipped, stored.counts.not_applicable) == (1, 1, 1)
    # A changed label is another try; the same one again is nothing.
    again = import_labels(
        write(folder, [{"example": "a", "label": "fail"}]), evaluation, annotator="ana", sampling="uniform"
    )
    assert again[0].id == stored.id
    assert [label.score for label in labels_in(again[0])] == [0.0]
    assert [r.try_number for r in again[0].results(history=True) if r.example == "a"] == [1, 2]
    import_labels(
        write(folder, [{"example": "a", "label": "fail"}]), evaluation, annotator="ana", sampling="uniform"
    )
    assert len([r for r in again[0].results(history=True) if r.example == "a"]) == 2
    assert [each.id for each in label_evaluations(store, evaluation.header.runs)] == [stored.id]


def test_csv_with_scores_and_several_annotators(store, serve, folder):
    evaluation = judged(store, serve(says_good), {"a": "good", "b": "bad"})
    (folder / "l.csv").write_text("example,score,annotator,note\na,5,ana,fine\nb,1,ana,\na,4,bo,\n")
    stored = import_labels(folder / "l.csv", evaluation, scale=(1.0, 5.0))
    assert sorted(each.header.evaluators[0].params["annotator"] for each in stored) == ["ana", "bo"]
    scores = {(each.annotator, each.item.example): each.score for e in stored for each in labels_in(e)}
    assert scores == {("ana", "a"): 1.0, ("ana", "b"): 0.0, ("bo", "a"): 0.75}


WRONG_ROWS = {
    "no example": {"label": "pass"},
    "an unknown example": {"example": "zz", "label": "pass"},
    "no label": {"example": "a"},
    "both": {"example": "a", "label": "pass", "score": 1},
    "an unknown word": {"example": "a", "label": "superb"},
    "a score outside": {"example": "a", "score": 7},
    "NaN": {"example": "a", "score": "nan"},
    "an unknown evaluator": {"example": "a", "label": "pass", "evaluator": "llm_judg"},
    "a probability of 0": {"example": "a", "label": "pass", "probability": 0},
    "attempt 0": {"example": "a", "label": "pass", "attempt": 0},
    "an attempt that is not there": {"example": "a", "label": "pass", "attempt": 9},
    "an unknown column": {"example": "a", "lable": "pass"},
    "an unknown run": {"example": "a", "label": "pass", "run": "run-x"},
}


@pytest.mark.parametrize("row", WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_wrong_labels_are_refused_and_nothing_is_stored(store, serve, folder, row):
    evaluation = judged(store, serve(says_good), {"a": "good"})
    with pytest.raises(RequestError):
        import_labels(write(folder, [{"example": "a", "label": "pass"}, row]), evaluation)
    assert [label for e in label_evaluations(store, evaluation.header.runs) for label in labels_in(e)] == []


@pytest.mark.parametrize("text", ["", "not json\n", "[1]\n", "\x00\n"])
def test_files_without_labels_are_refused(store, serve, folder, text):
    evaluation = judged(store, serve(says_good), {"a": "good"})
    (folder / "x.jsonl").write_text(text)
    with pytest.raises(RequestError):
        import_labels(folder / "x.jsonl", evaluation)


def test_agreement_against_counts_by_hand(store, serve, folder):
    answers = population(100)
    evaluation = judged(store, serve(says_good, model="served-1"), answers)
    rows = [{"example": name, "label": "pass" if name[0] == "t" else "fail"} for name in answers]
    import_labels(write(folder, rows), evaluation, sampling="uniform")
    [found] = alignment(evaluation)
    judge = {name: "good" in text for name, text in answers.items()}
    person = {name: name[0] == "t" for name in answers}
    tp = sum(judge[n] and person[n] for n in answers)
    tn = sum(not judge[n] and not person[n] for n in answers)
    assert found.n == 100
    assert found.base_rate.value == pytest.approx(sum(person.values()) / 100)
    assert found.sensitivity.value == pytest.approx(tp / sum(person.values()))
    assert found.specificity.value == pytest.approx(tn / (100 - sum(person.values())))
    assert found.agreement.value == pytest.approx((tp + tn) / 100)
    pj, pp = sum(judge.values()) / 100, sum(person.values()) / 100
    chance = pj * pp + (1 - pj) * (1 - pp)
    assert found.kappa.value == pytest.approx(((tp + tn) / 100 - chance) / (1 - chance))
    assert found.bias.value == pytest.approx(pj - pp)
    assert found.served_models == ["served-1"]
    assert found.kappa.low < found.kappa.value < found.kappa.high


def test_an_alignment_is_stored_shown_beside_scores_and_becomes_stale(store, serve, folder, capsys):
    server = serve(says_good, model="served-1")
    answers = population(60)
    evaluation = judged(store, server, answers)
    rows = [{"example": name, "label": "pass" if name[0] == "t" else "fail"} for name in answers]
    import_labels(write(folder, rows), evaluation, sampling="uniform")
    [found] = alignment(evaluation)
    assert (found.judge, found.stale) == ([server.spec("judge")], False)
    [header] = [each.header for each in store.aggregations.list() if each.header.made_by == "alignment"]
    assert header.settings["served_models"] == ["served-1"]
    stored = {each.name: each.value for each in header.estimates}
    assert stored["kappa"] == pytest.approx(found.kappa.value)
    alignment(evaluation)  # the same figures are stored once
    assert sum(each.header.made_by == "alignment" for each in store.aggregations.list()) == 1
    shown = karat.aggregate(evaluation, ["accuracy"]).estimates.get(
        evaluator="llm_judge", aggregator="accuracy"
    )
    assert shown.metadata["alignment"] == header.id
    assert f"kappa {found.kappa.value:.2f}" in shown.metadata["note"]
    assert "stale" not in shown.metadata["note"]
    server.model = "served-2"
    other = judged(store, server, {"x1": "good 1", "x2": "bad 2"})
    later = karat.aggregate(other, ["accuracy"]).estimates.get(evaluator="llm_judge", aggregator="accuracy")
    assert "stale alignment" in later.metadata["note"]
    [again] = alignment(evaluation)
    assert again.stale
    assert main(["judge", "alignment", evaluation.id, "--store", f"sqlite:///{folder}/karat.db"]) == 0
    assert "stale: llm_judge" in capsys.readouterr().out


def test_only_sampled_labels_correct_the_estimate(store, serve, folder):
    answers = population(200)
    evaluation = judged(store, serve(says_good), answers)
    truth = sum(name[0] == "t" for name in answers) / 200
    raw = karat.aggregate(evaluation, ["accuracy"]).estimates
    assert not raw.select(aggregator="corrected")
    sample = random.Random(3).sample(sorted(answers), 80)
    rows = [{"example": name, "label": "pass" if name[0] == "t" else "fail"} for name in sample]
    import_labels(write(folder, rows), evaluation, sampling="selected", annotator="bo")
    assert not karat.aggregate(evaluation, ["accuracy"]).estimates.select(aggregator="corrected")
    import_labels(write(folder, rows), evaluation, sampling="uniform", annotator="ana")
    aggregation = karat.aggregate(evaluation, ["accuracy"])
    corrected = aggregation.estimates.get(aggregator="corrected")
    assert corrected.method == "ppi++"
    assert corrected.low <= truth <= corrected.high
    assert corrected.metadata["raw"] == pytest.approx(raw.get(aggregator="accuracy").value)
    assert abs(corrected.value - truth) < abs(corrected.metadata["raw"] - truth)
    assert "80 sampled labels" in aggregation.report()


def test_labels_of_another_run_are_named_and_refused_where_they_say_nothing(store, serve, folder):
    answers = population(100)
    data = [{"id": name, "input": {"question": "?", "answer": text}} for name, text in answers.items()]
    runs = [karat.run(task, data, store=store) for task in (echo, _louder)]
    evaluation = karat.evaluate(runs, [{"name": "llm_judge", "params": {"judge": serve(says_good).spec()}}])
    rows = [
        {"example": name, "label": "pass" if name[0] == "t" else "fail", "run": runs[0].id}
        for name in answers
    ]
    import_labels(write(folder, rows), evaluation, sampling="uniform")
    found = karat.aggregate(evaluation, ["accuracy"]).estimates
    borrowed = found.get(aggregator="corrected", run=runs[1].id)
    assert borrowed.method == "rogan-gladen"
    assert borrowed.metadata["borrowed_from"] == [runs[0].id]
    assert runs[0].id in borrowed.metadata["note"]
    assert found.get(aggregator="corrected", run=runs[0].id).method != "rogan-gladen"


def _louder(input):
    return input["answer"].upper().replace("GOOD", "good")


def test_rogan_gladen_is_refused_for_a_judge_that_says_nothing():
    draw = random.Random(1)
    pairs = [(draw.random() < 0.5, draw.random() < 0.5, str(n)) for n in range(200)]
    refused = rogan_gladen(pairs, [True] * 60 + [False] * 40)
    assert refused.value is None
    assert "refused" in refused.metadata["reason"]
    good = [
        (person if draw.random() < 0.9 else not person, person, str(n))
        for n, (_, person, _) in enumerate(pairs)
    ]
    found = rogan_gladen(good, [True] * 60 + [False] * 40)
    assert found.low < 0.6 < 0.7 < found.high or found.low < found.value < found.high


def test_unequal_inclusion_probabilities(store, serve, folder):
    """Labels drawn more often where the judge says pass: weighting by their probability removes the bias."""
    answers = population(400, seed=5)
    evaluation = judged(store, serve(says_good), answers)
    truth = sum(name[0] == "t" for name in answers) / 400
    draw = random.Random(7)
    rows = []
    for name, text in answers.items():
        probability = 0.6 if "good" in text else 0.2
        if draw.random() < probability:
            rows.append(
                {"example": name, "label": "pass" if name[0] == "t" else "fail", "probability": probability}
            )
    import_labels(write(folder, rows), evaluation)
    found = karat.aggregate(evaluation, ["accuracy"]).estimates.get(aggregator="corrected")
    assert found.method == "difference estimator"
    assert found.low <= truth <= found.high


CLAIMS = {
    "analysis": "",
    "claims": [
        {"claim": "a", "supported": True},
        {"claim": "b", "supported": True},
        {"claim": "c", "supported": False},
    ],
}


def grounded(store, server):
    data = [{"id": "q1", "input": {"question": "?", "context": ["c"], "answer": "A, b, c."}}]
    run = karat.run(echo, data, store=store)
    return karat.evaluate(run, [{"name": "groundedness", "params": {"judge": server.spec()}}])


def test_a_claim_is_corrected_and_the_score_follows(store, serve):
    evaluation = grounded(store, serve(lambda body: CLAIMS))
    [made] = correct(evaluation, "q1", claims={2: False})
    assert (made.kind, made.judged, made.corrected) == ("correction", True, False)
    assert (made.score_before, made.score) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    # The judge's own verdict stays.
    assert next(evaluation.results()).score == pytest.approx(2 / 3)
    # A later correction keeps the earlier one, and saying what the judge said is a confirmation.
    [second] = correct(evaluation, "q1", claims={3: False})
    assert (second.kind, second.score) == ("confirmation", pytest.approx(1 / 3))
    [stored] = label_evaluations(store, evaluation.header.runs)
    [label] = labels_in(stored)
    assert label.parts == {"claims/2": False, "claims/3": False}
    assert label.sampling == "selected"
    with pytest.raises(RequestError, match="numbered 1 to 3"):
        correct(evaluation, "q1", claims={4: True})
    with pytest.raises(RequestError, match="no requirements"):
        correct(evaluation, "q1", requirements={1: True})
    with pytest.raises(RequestError, match="q2"):
        correct(evaluation, "q2", claims={1: True})
    found = {(each.part, each.labels): each for each in alignment(evaluation)}
    assert found["claims", "selected"].n == 2
    assert not karat.aggregate(evaluation, ["mean"]).estimates.select(aggregator="corrected")


def test_a_requirement_is_corrected(store, serve):
    verdicts = [{"evidence": "", "id": n, "quote": "", "satisfied": n == 1, "steps": []} for n in (1, 2)]
    data = [{"id": "q1", "input": {"question": "?", "answer": "done"}}]
    run = karat.run(echo, data, store=store)
    server = serve(lambda body: {"analysis": "", "verdicts": verdicts})
    spec = {"name": "agent_as_judge", "params": {"judge": server.spec(), "requirements": ["a", "b"]}}
    evaluation = karat.evaluate(run, [spec])
    [made] = correct(evaluation, "q1", requirements={2: True})
    assert (made.score_before, made.score) == (0.5, 1.0)
    assert {each.part for each in alignment(evaluation)} == {"", "requirements/2"}


def test_a_corrected_branch_continues_from_there_and_asks_only_what_follows(store, serve, refuses):
    def answer(body):
        first = "directly answer" in body["messages"][0]["content"]
        return {"analysis": "", "choice": "no" if first else "yes"}

    server = serve(answer)
    run = karat.run(echo, [{"id": "q1", "input": {"question": "?", "answer": "x"}}], store=store)
    spec = {"name": "rubric_dag", "params": {"preset": "answer_quality", "judge": server.spec()}}
    evaluation = karat.evaluate(run, [spec])
    assert next(evaluation.results()).score == 0.0
    server.reset()
    [made] = correct(evaluation, "q1", nodes={"answers": "yes"})
    assert server.count == 1
    assert (made.kind, made.judged, made.corrected, made.score) == ("correction", "no", "yes", 1.0)
    server.reset()
    [leaf] = correct(evaluation, "q1", nodes={"answers": "partially"}, annotator="bo")
    assert (server.count, leaf.score) == (0, 0.5)
    [same] = correct(evaluation, "q1", nodes={"answers": "no"}, annotator="cy")
    assert (server.count, same.kind, same.score) == (0, "confirmation", 0.0)
    with refuses(RequestError):
        correct(evaluation, "q1", nodes={"answers": "partialy"})
    with refuses(RequestError):
        correct(evaluation, "q1", nodes={"grounded": "yes"}, annotator="dee")


def test_scores_per_criterion_pair_with_a_rubrics_nodes(store, serve, folder):
    server = serve(lambda body: {"analysis": "", "choice": "yes"})
    run = karat.run(echo, [{"id": "q1", "input": {"question": "?", "answer": "x"}}], store=store)
    evaluation = karat.evaluate(
        run, [{"name": "rubric_dag", "params": {"preset": "answer_quality", "judge": server.spec()}}]
    )
    rows = [
        {"example": "q1", "label": "yes", "evaluator": "answers"},
        {"example": "q1", "label": "no", "part": "grounded"},
        {"example": "q1", "score": 0.7, "evaluator": "answer_quality"},
    ]
    [stored] = import_labels(write(folder, rows), evaluation, sampling="uniform")
    [label] = labels_in(stored)
    assert label.parts == {"nodes/answers": "yes", "nodes/grounded": "no"}
    assert label.score == 0.7
    found = {each.part: each for each in alignment(evaluation)}
    assert found["nodes/answers"].agreement.value == 1.0
    assert found["nodes/grounded"].agreement.value == 0.0


def test_two_judges_on_the_same_outputs(store, serve):
    strict = serve(lambda body: {"analysis": "", "pass": "very good" in material(body)})
    lenient = serve(says_good)
    evaluation = judged(store, lenient, {"a": "very good", "b": "good", "c": "bad", "d": "very good"})
    lenient.reset()
    found = compare_judges(evaluation, [lenient.spec("judge"), strict.spec("judge")])
    assert lenient.count == 0  # judged before
    assert [flip["example"] for flip in found.flips] == ["b"]
    assert found.passes[0] - found.passes[1] in (1, -1)
    assert found.agreement.value == 0.75
    assert found.difference.value == 0.25
    with pytest.raises(RequestError):
        compare_judges(evaluation, [lenient.spec("judge")])


def test_a_judge_beside_an_exact_match(store, serve, folder, capsys):
    answers = (("a", "good"), ("b", "so good"))
    data = [{"id": n, "input": {"question": "?", "answer": a}, "expected": "good"} for n, a in answers]
    run = karat.run(echo, data, store=store)
    judge = {"name": "llm_judge", "params": {"judge": serve(says_good).spec(), "use_reference": False}}
    evaluation = karat.evaluate(run, [judge, "exact_match"])
    url = f"sqlite:///{folder}/karat.db"
    command = ["judge", "compare", evaluation.id, "--store", url]
    assert main([*command, "--evaluator", "llm_judge", "--with", "exact_match", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(flip["example"], flip["first"], flip["second"]) for flip in found["flips"]] == [("b", 1.0, 0.0)]
    assert main([*command, "--evaluator", "llm_judge", "--with", "exact_match"]) == 0
    assert capsys.readouterr().out.startswith("llm_judge compared with exact_match, 2 of 2 outputs\n")
    assert main(command) == 2


EXPERIMENT = """
dataset: [{id: a, input: good}, {id: b, input: bad}]
task: {prompt: "{input}", model: "TASK"}
judge: {model: "JUDGE", samples: 2}
evaluators:
  - llm_judge
  - {name: llm_judge, key: thrice, params: {judge: {samples: 3}}}
  - {name: llm_judge, key: own, params: {judge: {model: "OWN"}}}
"""


def test_the_judge_of_a_file(serve, folder, monkeypatch):
    task, judge, own = serve(lambda body: "good"), serve(says_good), serve(says_good)
    text = EXPERIMENT.replace("TASK", task.spec()).replace("JUDGE", judge.spec()).replace("OWN", own.spec())
    (folder / "experiment.yaml").write_text(text)
    monkeypatch.setenv("KARAT_JUDGE_MODEL", "openai/none")
    assert main(["run", "experiment.yaml", "--store", f"sqlite:///{folder}/karat.db", "--quiet"]) == 0
    assert judge.count == 2 * 2 + 2 * 3
    assert own.count == 2
    # Without a judge there is one clear sentence before the first record.
    (folder / "experiment.yaml").write_text(
        text.replace('judge: {model: "http', "# judge").replace('judge: {model: "fake', "# ")
    )
    monkeypatch.delenv("KARAT_JUDGE_MODEL")
    task.reset()
    assert main(["run", "experiment.yaml", "--store", f"sqlite:///{folder}/other.db"]) == 2
    assert task.count == 0


def test_the_commands(store, serve, folder, capsys):
    server = serve(
        lambda body: CLAIMS if "fact checker" in body["messages"][0]["content"] else says_good(body)
    )
    evaluation = judged(store, server, {"a": "good", "b": "bad", "c": "good", "d": "bad"})
    url = f"sqlite:///{folder}/karat.db"
    write(folder, [{"example": n, "label": "pass" if n in "ab" else "fail"} for n in "abcd"])
    assert (
        main(["judge", "import", "labels.jsonl", evaluation.id, "--sampling", "uniform", "--store", url]) == 0
    )
    assert re.search(r"llm_judge +4 +0 +uniform", capsys.readouterr().out)
    assert main(["judge", "alignment", evaluation.id, "--store", url, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["alignment"]
    assert (found["n"], found["labels"]) == (4, "sampled")
    assert main(["judge", "alignment", evaluation.id, "--store", url]) == 0
    assert "kappa" in capsys.readouterr().out
    claimed = grounded(store, server)
    assert main(["judge", "correct", claimed.id, "q1", "--claim", "2=false", "--store", url]) == 0
    printed = capsys.readouterr().out
    assert "0.667 → 0.333" in printed
    assert "karat judge alignment eval-" in printed
    judges = ["--judge", server.spec("judge"), "--judge", server.spec("other")]
    assert main(["judge", "compare", evaluation.id, *judges, "--store", url, "--quiet"]) == 0
    assert re.search(r"flips +0$", capsys.readouterr().out, re.MULTILINE)
    for wrong in (["--claim", "2"], ["--claim", "x=true"], ["--node", "a"], []):
        assert main(["judge", "correct", claimed.id, "q1", *wrong, "--store", url]) == 2
    assert main(["judge"]) == 2
