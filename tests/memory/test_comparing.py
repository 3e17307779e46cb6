"""Memory systems in the store: compare, rank, report and show; equal settings; controls beside a system."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import karat
from karat.analysis.judges.audit import audit
from karat.cli import main
from karat.errors import KaratError, RequestError, UnknownName, for_command_line
from karat.formatting import Heading, Paragraph, Table, as_text
from karat.layout import Layout, display_width
from karat.memory import _pipeline as pipeline
from karat.memory._evaluate import JUDGE_VARIABLES
from karat.memory._system import abbreviation
from karat.memory.systems._baselines import FullContext
from karat.store.rows import row_tables
from karat.testing import FakeProvider
from tests.memory.parts import Notes, Oracle, labels_for, sample
from tests.memory.test_files import FIVE, run


class Forgetful(Notes):
    """Remembers the first turn alone."""

    name = "forgetful"

    def ingest_turn(self, turn):
        if not self.turns:
            super().ingest_turn(turn)


@pytest.fixture
def two(tmp_path):
    store = tmp_path / "karat.db"
    one = run(tmp_path / "one", store=store)
    other = run(tmp_path / "two", Forgetful, store=store)
    return store, one, other


def test_systems_are_compared_ranked_and_reported(two, capsys):
    store, one, other = two
    compared = karat.compare([one.run.id, other.run.id], store=store)
    recall = next(each for each in compared.differences if each.evaluator == "recall")
    assert recall.compared.difference.value < 0
    assert (
        main(["rank", one.run.id, other.run.id, "--metric", "recall", "--store", str(store), "--json"]) == 0
    )
    ranked = json.loads(capsys.readouterr().out)
    assert ranked["places"][0]["run"] == one.run.id
    assert main(["report", one.run.id, other.run.id, "--store", str(store)]) == 0
    printed = capsys.readouterr().out
    assert "forgetful" in printed
    assert main(["show", one.run.id, "--example", "ana", "--store", str(store)]) == 0


def test_intervals_of_a_comparison_count_samples(two):
    store, one, other = two
    compared = karat.compare([one.run.id, other.run.id], store=store, metrics=["answer"])
    [answer] = compared.differences
    assert answer.compared.difference.n == 6  # questions
    assert answer.compared.difference.metadata["clusters"] == 2


def test_a_report_has_the_accuracy_with_and_without_unanswerable_questions(two, says):
    _, one, _ = two
    tables = [block for block in one.blocks() if isinstance(block, Table) and block.head[0] == "figure"]
    shown = {str(row[0]): row[1] for row in tables[0].rows}
    stated = one.metrics["abstention"]
    names = ("accuracy_answerable", "correct_refusal_rate", "false_refusal_rate")
    figures = [one.metrics["question_answering"]["correct_ratio"], *(stated[name] for name in names)]
    assert list(shown.values())[:4] == [f"{figure:.3f}" for figure in figures]
    assert figures[0] != figures[1]
    says(*(f"{label}: {figure}" for label, figure in list(shown.items())[:4]))


def test_a_report_names_the_question_types_and_writes_rates_like_other_reports(two):
    _, one, _ = two
    types = {
        question.type_abbrev or abbreviation(question.type): question.type for question in sample().questions
    }
    assert one.metrics["question_types"] == types
    text = one.report()
    table, legend = text.partition("Correct answers by question type")[2].split("\n\n")[:2]
    for short, name in types.items():
        assert re.search(rf"^{short} .*\d\.\d{{3}}", table, re.MULTILINE)
        assert re.search(rf"^\s*{short} +{name}$", legend, re.MULTILINE)
    assert "%" not in text.replace("95 % interval", "")


def test_dimensions_that_apply_to_no_record_do_not_stop_a_comparison(tmp_path, says):
    store = tmp_path / "karat.db"
    plain = msgspec.structs.replace(
        sample(), sessions=sample().sessions[:1], questions=sample().questions[:1]
    )
    runs = [
        run(tmp_path / name, system, [plain], store=store).run.id
        for name, system in (("one", Notes), ("two", Forgetful))
    ]
    compared = karat.compare(runs, store=store)
    keys = {each.evaluator for each in compared.differences}
    assert "recall" in keys
    assert "interference" not in keys
    says(*[note for note in compared.notes if note.startswith("interference: ")])
    with pytest.raises(RequestError, match="interference"):
        karat.compare(runs, store=store, metrics=["interference"])


def test_items_that_evaluators_do_not_apply_to_take_one_line(two):
    store, one, other = two
    compared = karat.compare([one.run.id, other.run.id], store=store)
    [note] = [note for note in compared.notes if "not applicable" in note]
    skipped = {"recall": 0, "answer": 0}
    for row in one.evaluation.rows():
        for key in skipped:
            skipped[key] += row.results[key].score is None
    assert all(skipped.values())
    assert all(f"{key} {count}" in note.replace(",", "") for key, count in skipped.items())


def test_systems_are_called_by_their_names_alone(two):
    store, one, other = two
    compared = karat.compare([one.run.id, other.run.id], store=store)
    assert [run.label for run in compared.runs] == [one.baseline, other.baseline]


def test_a_comparison_calls_runs_by_labels_they_got_after_an_earlier_one(two):
    store, one, other = two
    first = karat.compare([one.run.id, other.run.id], store=store)
    for made, label in ((one, "before"), (other, "after")):
        assert main(["tag", made.run.id, label, "--store", str(store)]) == 0
    again = karat.compare([one.run.id, other.run.id], store=store)
    assert [run.label for run in again.runs] == ["before", "after"]
    assert again.id != first.id


def test_rows_show_no_reasons_of_evaluators_that_do_not_apply(two):
    _, one, _ = two
    questions = [row for row in one.evaluation.rows() if row.unit.startswith("question")]
    [table] = row_tables(questions, one.evaluation.header.evaluators)
    assert isinstance(table, Table)
    skipped = [table.head.index(key) for key in ("recall", "correctness", "update", "interference")]
    assert sorted(table.drop[:4]) == skipped
    assert table.head.index("unit") not in table.drop
    assert not any("recall:" in str(row[table.head.index("why")]) for row in table.rows)


def test_a_wide_interval_over_few_samples_is_explained_after_the_conclusion(tmp_path, says):
    few = run(tmp_path / "few")
    shown = [block.text for block in few.blocks() if isinstance(block, Paragraph)]
    says(shown[1])
    [_, one, *_] = run(tmp_path / "one", samples=[sample()]).blocks()
    assert isinstance(one, Paragraph)
    says(one.text)
    many = run(tmp_path / "many", samples=[sample(f"s{number}") for number in range(30)])
    assert not any("30 samples" in getattr(block, "text", "") for block in many.blocks())


def test_the_report_names_the_run_and_its_rows(two):
    _, one, _ = two
    printed = one.report()
    assert one.run.id in printed
    assert "its rows: evaluation.rows()" in printed
    with for_command_line():
        assert f"its rows: karat show {one.evaluation.id}" in one.report()


def test_unequal_settings_are_refused_unless_asked_for(tmp_path, capsys, says):
    store = tmp_path / "karat.db"
    one = run(tmp_path / "one", store=store)
    other = run(tmp_path / "two", Forgetful, store=store, top_k=3)
    with pytest.raises(RequestError, match=r"top_k.*unequal=True"):
        karat.compare([one.run.id, other.run.id], store=store)
    assert main(["compare", one.run.id, other.run.id, "--store", str(store)]) == 2
    says(capsys.readouterr().err)
    assert main(["compare", one.run.id, other.run.id, "--store", str(store), "--unequal"]) == 0
    says(*[line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")])


def test_a_ranking_names_unequal_settings(tmp_path, says):
    store = tmp_path / "karat.db"
    one = run(tmp_path / "one", store=store)
    other = run(tmp_path / "two", Forgetful, store=store, top_k=3)
    ranked = karat.rank([one.run.id, other.run.id], metric="answer", store=store)
    [note] = [note for note in ranked.notes if "top_k " in note]
    says(note)
    third = run(tmp_path / "three", "BM25Memory", store=store)
    assert not any("top_k" in n for n in karat.rank([one.run, third.run], metric="answer").notes)


def test_a_ranking_by_no_metric_names_the_option(two, refuses):
    store, one, other = two
    with refuses(RequestError):
        karat.rank([one.run.id, other.run.id], store=store)


def test_a_rate_that_is_pooled_over_items_is_not_called_a_mean(tmp_path):
    """Comparisons have the mean of the scores of records: one name for both would show two figures under it."""
    several = [sample(), msgspec.structs.replace(sample("bea"), questions=sample().questions[:1])]
    made = run(tmp_path / "one", samples=several)
    names = {
        each.evaluator: each.aggregator
        for each in made.aggregation.estimates
        if not each.name and not each.group
    }
    assert names == {
        "answer": "accuracy", "evidence": "hit_rate", "recall": "mean", "correctness": "mean", "update": "score",
        "interference": "score",
    }  # fmt: skip


@pytest.mark.parametrize("changed", ["context_tokens", "answer_model", "answer_prompt", "answer_tokens"])
def test_systems_share_everything_that_answers_depend_on(tmp_path, monkeypatch, changed):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    store = tmp_path / "karat.db"
    with FakeProvider('{"answer": "x", "cited": []}') as server:
        one = run(tmp_path / "one", store=store, model=server.spec("first"))
        options: dict[str, Any] = {"model": server.spec("first")}
        if changed == "context_tokens":
            options["context_tokens"] = 50
        elif changed == "answer_model":
            options["model"] = server.spec("second")
        elif changed == "answer_prompt":
            monkeypatch.setattr(pipeline, "PROMPT", "Answer as you like.")
        else:
            monkeypatch.setattr(pipeline, "ANSWER_TOKENS", 99)
        other = run(tmp_path / "two", Forgetful, store=store, **options)
    with pytest.raises(RequestError, match=rf"{changed}.*unequal=True"):
        karat.compare([one.run.id, other.run.id], store=store)
    allowed = karat.compare([one.run.id, other.run.id], store=store, unequal=True)
    assert any(changed in warning for warning in allowed.warnings)


def test_rows_of_a_report_show_what_answers_were_made_of(tmp_path):
    store = tmp_path / "karat.db"
    run(tmp_path / "two", Forgetful, store=store)  # its one memory is always retrieved
    made = run(tmp_path / "one", store=store, samples=[sample(), sample("bea", "Rome")])
    tables = [block for block in made.blocks() if isinstance(block, Table)]
    [table] = [each for each in tables if each.head[0] == "system"]
    rows = {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    retrieval = made.metrics["retrieval"]
    assert rows["notes"]["context tokens"] == f"{retrieval['context_tokens']:.0f}"
    assert rows["notes"]["answer tokens"] == f"{retrieval['answer_tokens']:.0f}"
    assert rows["forgetful"]["of the store"] == "bypassed"


def test_controls_of_the_same_data_and_settings_are_shown_beside_a_system(tmp_path, says):
    store = tmp_path / "karat.db"
    run(tmp_path / "oracle", Oracle, store=store)
    run(tmp_path / "other", Oracle, store=store, top_k=2)
    made = run(tmp_path / "one", store=store)
    assert [row["baseline"] for row in made.controls()] == ["small_oracle"]
    assert made.to_dict()["others"][0]["correct"] == pytest.approx(1.0)
    says(*[block.text for block in made.blocks() if isinstance(block, Heading) and "controls" in block.text])


def test_the_command_prints_one_json_document(tmp_path, capsys):
    code = main(
        ["memory", "--dataset", "demo", "--baseline", "BM25Memory", "--output-dir", str(tmp_path / "out"),
         "--judge", "deterministic", "--model", "extractive", "--max-samples", "1", "--store", "memory://", "--json"]
    )  # fmt: skip
    said = json.loads(capsys.readouterr().out)
    assert code == 0
    assert said["ok"] is True
    assert said["metrics"] == json.loads((tmp_path / "out" / "aggregate_metrics.json").read_text())
    assert {"write", "read", "answer", "judge"} == set(said["efficiency"])


def test_options_of_the_command_reach_the_run(tmp_path):
    given = {
        "--dataset": "demo", "--dataset-type": "domain_a_v2", "--baseline": "BM25Memory", "--param": "k1=1.5",
        "--output-dir": str(tmp_path / "out"), "--judge": "deterministic", "--model": "extractive", "--top-k": "3",
        "--context-tokens": "80", "--max-samples": "1", "--snapshots": "checkpoints", "--seed": "7",
        "--concurrency": "2", "--store": "memory://",
    }  # fmt: skip
    assert main(["memory", *(word for option in given.items() for word in option), "--quiet"]) == 0
    manifest = json.loads((tmp_path / "out" / ".karat" / "manifest.json").read_text())
    assert (manifest["top_k"], manifest["context_tokens"], manifest["seed"]) == (3, 80, 7)
    assert (manifest["snapshots"], manifest["dataset"]["samples"]) == ("checkpoints", 1)
    assert (manifest["dataset"]["type"], manifest["system"]["k1"]) == ("domain_a_v2", 1.5)
    records = [json.loads(line) for line in (tmp_path / "out" / "pipeline_qa.jsonl").read_text().splitlines()]
    assert all(len(each["retrieval"]["items"]) <= 3 and each["context"]["tokens"] <= 80 for each in records)


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def test_everything_in_the_terminal_is_in_the_json_document(tmp_path):
    made = run(tmp_path / "one", samples=[sample(), sample("bea", "Rome")], controls=True)
    said = made.to_dict()
    shown: set[str] = set()
    for value in numbers_in(said):
        shown |= {f"{value:.0f}", f"{value:,}", f"${value:.4f}", f"{value * 1000:.1f}"}
        shown |= {f"{value:.{digits}f}" for digits in (1, 2, 3)}
    words = json.dumps(said, ensure_ascii=False)
    found = 0
    for block in made.blocks():
        if isinstance(block, Paragraph):
            text = (
                block.text.removeprefix("wrote five files to ")
                .removeprefix("run ")
                .partition("; its rows")[0]
            )
            assert json.dumps(text, ensure_ascii=False)[1:-1] in words
        elif isinstance(block, Table):
            for cell in (cell for row in block.rows for cell in row):
                for figure in re.findall(r"\$?\d[\d,]*(?:\.\d+)?", str(cell)):
                    found += 1
                    assert figure in shown or figure in words or figure == "1,000", (figure, cell)
    assert found > 50
    assert said["exit_code"] == made.exit_code == 0


def test_a_new_run_is_made_where_asked_for(tmp_path):
    runs = [
        run(tmp_path / name, samples=[sample()], store=tmp_path / "a.db", new=new).run.id
        for name, new in (("one", False), ("two", False), ("three", True))
    ]
    assert runs[0] == runs[1] != runs[2]


def test_controls_are_run_with_a_system_where_asked_for(tmp_path):
    made = run(tmp_path / "one", samples=[sample()], controls=True)
    assert [row["baseline"] for row in made.controls()] == [
        "always_refuse",
        "full_context",
        "no_memory",
        "oracle",
    ]
    refusing = next(row for row in made.controls() if row["baseline"] == "always_refuse")
    assert refusing["correct"] == pytest.approx(1 / 3)
    assert sorted(p.name for p in (tmp_path / "one").iterdir() if p.is_file()) == FIVE


def test_the_report_says_whether_the_judge_was_audited(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    with FakeProvider(labels_for) as server:
        made = run(tmp_path / "out", samples=[sample()], judge=server.spec())
    assert any("not audited" in notice for notice in made.notices)


def test_the_report_has_the_audit_of_its_judge(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))

    def answer(body: dict[str, Any]) -> str:
        wanted = body["response_format"]["json_schema"]["schema"]["properties"]
        if "verdicts" in wanted:
            return labels_for(body)
        return json.dumps({"analysis": "", **({"pass": True} if "pass" in wanted else {"choice": "tie"})})

    with FakeProvider(answer) as server, karat.open_store(tmp_path / "karat.db") as store:
        audited = audit(server.spec(), store=store, limit=3, attacks=[])
        made = run(tmp_path / "out", samples=[sample()], judge=server.spec(), store=store)
        printed = made.report()
    [note] = [notice for notice in made.notices if "audited" in notice]
    assert f"audited: {audited.verdict}" in note
    assert " ".join(note.split()) in " ".join(printed.split())


@pytest.mark.parametrize(
    ("options", "meant"),
    [({"judge": "determinstic"}, "judge='deterministic'"), ({"model": "extracive"}, "model='extractive'")],
)
def test_a_misspelled_word_for_no_model_is_suggested(tmp_path, options, meant):
    with pytest.raises(UnknownName, match=meant):
        run(tmp_path / "one", **options)


def test_the_directory_of_another_system_is_refused_for_its_name_alone(tmp_path, refuses):
    run(tmp_path / "one", store=tmp_path / "karat.db")
    with refuses(RequestError):
        run(tmp_path / "one", Forgetful, store=tmp_path / "karat.db")


def test_the_directory_of_other_settings_is_refused_with_what_differs(tmp_path, refuses):
    run(tmp_path / "one", store=tmp_path / "karat.db")
    with refuses(RequestError):
        run(tmp_path / "one", store=tmp_path / "karat.db", top_k=3, context_tokens=100, seed=2)


def test_the_directory_of_other_data_is_refused_with_names_and_sizes(tmp_path, refuses):
    run(tmp_path / "one", "BM25Memory", "demo", max_samples=1)
    with refuses(RequestError):
        run(tmp_path / "one", "BM25Memory", "demo", max_samples=2)


def test_a_limit_of_all_samples_is_the_same_run_as_none(tmp_path):
    first = run(tmp_path / "one", store=tmp_path / "karat.db")
    again = run(tmp_path / "one", store=tmp_path / "karat.db", max_samples=2)
    assert again.run.id == first.run.id
    with pytest.raises(RequestError, match="another run"):
        run(tmp_path / "one", store=tmp_path / "karat.db", max_samples=1)


def test_a_system_with_controls_is_continued_after_a_control_was_interrupted(tmp_path, monkeypatch):
    expected = run(tmp_path / "whole", store=tmp_path / "whole.db", controls=True)

    def stop(self, turn):
        raise KeyboardInterrupt

    monkeypatch.setattr(FullContext, "ingest_turn", stop)
    with pytest.raises((KeyboardInterrupt, KaratError)):
        run(tmp_path / "one", store=tmp_path / "karat.db", controls=True)
    monkeypatch.undo()
    made = run(tmp_path / "one", store=tmp_path / "karat.db", controls=True)
    assert made.exit_code == 0
    rows = [{**row, "run": ""} for row in made.others()]
    assert rows == [{**row, "run": ""} for row in expected.others()]
    for name in FIVE:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ([], ["--dataset", "--baseline", "--output-dir", "--judge"]),
        (["--dataset", "demo"], ["--baseline", "--output-dir", "--judge"]),
        (["--eval-only", "--judge", "deterministic"], ["--output-dir"]),
    ],
)
def test_all_missing_options_are_named_at_once(monkeypatch, capsys, given, missing):
    for name in JUDGE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert main(["memory", *given, "--json"]) == 2
    said = json.loads(capsys.readouterr().out)["error"]
    assert said["type"] == "UsageError"
    options = ("--dataset", "--baseline", "--output-dir", "--judge")
    assert [name for name in options if name in said["message"]] == missing


def test_tables_of_a_report_fit_a_narrow_terminal(tmp_path):
    run(tmp_path / "other", Forgetful, store=tmp_path / "karat.db")
    made = run(tmp_path / "one", store=tmp_path / "karat.db")
    for block in made.blocks():
        if isinstance(block, Table):
            text = as_text([block], Layout(width=80))
            assert max(map(display_width, text.splitlines())) <= 80
