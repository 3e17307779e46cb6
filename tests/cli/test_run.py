"""karat run: experiments, functions, recorded outputs; what it returns and what it keeps."""

import json
import sys

import pytest


def test_init_gives_something_that_works_at_once(karat, folder, says):
    said = karat("init", "capitals")
    assert said.code == 0
    assert "now: karat run capitals/experiment.yaml" in said.out
    said = karat("run", "capitals/experiment.yaml", "--json")
    assert said.code == 0
    assert said.json["status"] == "success"
    assert said.json["runs"][0]["counts"]["ok"] == 8
    assert said.json["aggregation"]["estimates"][0]["value"] == 0.75
    again = karat("init", "capitals")
    assert again.code == 2
    says(again.err)


def test_init_writes_the_schema_its_experiment_names(karat, folder):
    karat("init", "here")
    schema = json.loads((folder / "here/experiment.schema.json").read_text())
    assert "dataset" in schema["properties"]
    assert "$schema=experiment.schema.json" in (folder / "here/experiment.yaml").read_text()


def test_an_experiment_runs_evaluates_aggregates_and_reports(karat, project, says):
    said = karat("run", "experiment.yaml")
    assert said.code == 1, "one example failed"
    assert "exact_match  accuracy" in said.out
    assert "5 of 6" in said.out
    assert "--failed" in said.out
    assert "6 items: 5 ok, 1 failed" in said.out
    assert said.err == ""
    says(karat("run", "experiment.yaml").err)
    assert karat("run", "experiment.yaml", "--quiet").err == ""


def test_the_same_command_returns_what_is_finished(karat, project, says):
    first = karat("run", "experiment.yaml", "--json").json
    second = karat("run", "experiment.yaml", "--json").json
    assert second["runs"][0]["id"] == first["runs"][0]["id"]
    says(second["runs"][0]["notice"])
    assert second["aggregation"]["id"] == first["aggregation"]["id"]
    assert len(karat("ls", "--json").json["runs"]) == 1
    other = karat("run", "experiment.yaml", "--json", "--new").json
    assert other["runs"][0]["replicate"] == 2


def test_a_function_over_a_file(karat, project):
    arguments = ["task.py:shout", "--data", "good.jsonl", "--input", "question", "--expected", "answer"]
    said = karat("run", *arguments, "--label", "first", "--description", "loud", "--param", "end=!", "--json")
    assert said.code == 0
    run = said.json["runs"][0]
    assert run["counts"]["ok"] == 4
    assert run["labels"] == ["first"]
    assert run["description"] == "loud"
    assert run["parameters"]["parameters"] == {"end": "!"}
    assert said.json["evaluation"] is None


def test_a_dotted_path_means_the_modules_of_this_folder(karat, project):
    said = karat("run", "task.shout", "--data", "good.jsonl", "--input", "question", "--limit", 2, "--json")
    assert said.code == 0
    assert said.json["runs"][0]["counts"]["total"] == 2


def test_a_dataset_of_the_store_by_its_name(karat, project, says):
    karat("run", "task.py:shout", "--data", "good.jsonl", "--input", "question")
    said = karat("run", "task.py:shout", "--data", "good", "--offset", 1, "--attempts", 2, "--json")
    assert said.json["runs"][0]["counts"]["total"] == 6
    wrong = karat("run", "task.py:shout", "--data", "goood")
    assert wrong.code == 2
    says(wrong.err)


def test_recorded_outputs(karat, project):
    lines = [{"id": "q0", "output": "ONE"}, {"id": "q1", "error": "timed out elsewhere"}]
    (project / "outputs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = karat("run", "--recorded", "outputs.jsonl", "--data", "good.jsonl", "--limit", 2, "--json")
    assert said.code == 1
    assert said.json["runs"][0]["counts"]["ok"] == 1
    both = karat("run", "task.py:shout", "--recorded", "outputs.jsonl", "--data", "good.jsonl")
    assert both.code == 2


def test_retry_failed_tries_again(karat, project):
    karat("run", "experiment.yaml")
    (project / "task.py").write_text("def shout(text, end=''):\n    return text.upper()\n")
    for name in [name for name in sys.modules if name.startswith("task_")]:
        del sys.modules[name]  # a file is imported once in a process, and a command is usually one
    said = karat("run", "experiment.yaml", "--retry-failed", "--accept-code-change", "--json")
    assert said.code == 0
    assert said.json["runs"][0]["counts"]["ok"] == 6


def test_abort_on_error_stops_with_exit_code_1(karat, project, says):
    said = karat("run", "experiment.yaml", "--abort-on-error", "--concurrency", 1)
    assert said.code == 1
    says(said.err)


def test_bad_rows_are_reported_or_listed(karat, project, says):
    (project / "bad.jsonl").write_text('{"question": "one"}\n{oops\n{"question": "two"}\n')
    arguments = ["run", "task.py:shout", "--data", "bad.jsonl", "--input", "question"]
    said = karat(*arguments)
    assert said.code == 2
    assert "line 2" in said.err
    said = karat(*arguments, "--skip-bad-rows", "--json")
    assert said.code == 0
    says(said.err)
    assert said.json["runs"][0]["counts"]["total"] == 2
    assert said.json["bad_rows"]["count"] == 1
    assert said.json["bad_rows"]["first"][0]["line"] == 2


def test_the_output_of_a_task_is_not_in_the_document(karat, project):
    (project / "loud.py").write_text("def say(text):\n    print('hello', text)\n    return text\n")
    said = karat("run", "loud.py:say", "--data", "good.jsonl", "--input", "question", "--json")
    assert said.json["runs"][0]["counts"]["ok"] == 4
    assert "hello one" in said.err
    assert karat("export", "latest", "--json").json["task"] == "say"


def test_a_class_that_cannot_be_made_is_one_sentence(karat, project, says):
    (project / "keyed.py").write_text(
        "import os\n\n\nclass Ask:\n"
        "    def __init__(self):\n        self.key = os.environ['NO_SUCH_KEY']\n"
        "    def __call__(self, text):\n        return text\n"
    )
    said = karat("run", "keyed.py:Ask", "--data", "good.jsonl")
    assert said.code == 2
    says(said.err)


def test_a_script_that_ends_itself_when_imported_is_one_sentence(karat, project, says):
    (project / "script.py").write_text("import sys\nsys.exit(4)\n")
    said = karat("run", "script.py:main", "--data", "good.jsonl")
    assert (said.code, said.out) == (2, "")
    says(said.err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["experimnt.yaml"],
        ["tsk.py:shout", "--data", "qa.jsonl"],
        ["task.py:shot", "--data", "qa.jsonl"],
        ["task.py", "--data", "qa.jsonl"],
        ["task.py:shout"],
        ["task.py:shout", "--data", "qx.jsonl"],
        ["task.py:shout", "--data", "empty.jsonl"],
        ["task.py:shout", "--data", "qa.jsonl", "--param", "ende=x"],
        ["empty.yaml"],
        ["."],
        ["nonsense"],
        ["experiment.yaml", "--data", "qa.jsonl"],
    ],
)
def test_a_target_that_cannot_run_is_refused_in_one_sentence(karat, project, arguments, says):
    (project / "empty.jsonl").write_text("")
    (project / "empty.yaml").write_text("")
    if arguments == ["."]:
        (project / "experiment.yaml").write_text("datset: x\n")
    said = karat("run", *arguments)
    assert said.code == 2
    says(said.err)
    assert not (project / "karat.db").exists()


def test_a_file_without_a_function_is_not_suggested_again(karat, project, says):
    said = karat("run", "task.py", "--data", "qa.jsonl").err
    assert "task.py?" not in said
    says(said)


def test_check_reports_ok_and_computes_nothing(karat, project, says):
    said = karat("run", "experiment.yaml", "--check")
    assert said.code == 0
    says(said.out)
    assert karat("run", "experiment.yaml", "--check", "--json").json["ok"] is True
    assert not (project / "karat.db").exists()


def test_model_output_cannot_steer_the_terminal(karat, project):
    run = karat("run", "experiment.yaml", "--json").json["runs"][0]["id"]
    for arguments in (["show", run, "--failed"], ["show", run, "--example", "q4"]):
        said = karat(*arguments)
        assert said.code == 0
        assert "cannot shout" in said.out
        assert "\x1b" not in said.out
        assert "\x1b" not in karat(*arguments, "--json").out


def test_a_run_for_each_model(karat, project):
    (project / "ask.py").write_text("def ask(text, model='none'):\n    return f'{text} by {model}'\n")
    arguments = ["run", "ask.py:ask", "--data", "good.jsonl", "--input", "question"]
    said = karat(*arguments, "--model", "local/smollm2-135m", "--model", "openai/a", "--json")
    assert said.code == 0
    assert [run["model"] for run in said.json["runs"]] == ["local/smollm2-135m", "openai/a"]
    assert "by openai/a" in karat("export", said.json["runs"][1]["id"]).out
    wrong = karat(*arguments, "--model", "opnai/a")
    assert wrong.code == 2
    assert "unknown model 'opnai/a'" in wrong.err


def test_a_model_reaches_a_function_without_the_parameter_as_the_default(karat, project):
    (project / "ask.py").write_text(
        "from karat import models\ndef ask(text):\n    return models.default_spec()\n"
    )
    said = karat(
        "run", "ask.py:ask", "--data", "good.jsonl", "--input", "question", "--model", "openai/a", "--json"
    )
    assert json.loads(karat("export", said.json["runs"][0]["id"]).out.splitlines()[0])["output"] == "openai/a"


def test_a_budget_is_refused_for_a_model_without_a_price(karat, project, says):
    (project / "prompt.yaml").write_text(
        "dataset: {path: qa.jsonl, input: question}\ntask: {prompt: '{input}?', model: 'x@http://127.0.0.1:9/v1'}\n"
    )
    said = karat("run", "prompt.yaml", "--budget", 1)
    assert said.code == 2
    says(said.err)
