"""The commands under `karat judge`: what they print fits the terminal, and --json prints one document."""

from __future__ import annotations

import io
import json
import sys

import pytest

import karat
from karat.analysis.judges.labels import import_labels
from karat.cli import main
from karat.cli.judge import _judged_evaluation
from karat.cli.parser import UsageError
from karat.layout import display_width

from .conftest import judged, material, says_good

NAMES = [f"an example with a rather long name, number {n}" for n in range(30)]
"""Ids of examples that do not fit a narrow terminal together with figures."""


@pytest.fixture
def evaluation(store, serve):
    evaluation = judged(
        store, serve(says_good), {name: "good" if n % 3 else "bad" for n, name in enumerate(NAMES)}
    )
    evaluation.strict = serve(lambda body: {"analysis": "", "pass": "bad" in material(body)})
    return evaluation


@pytest.fixture
def labels(folder, evaluation):
    path = folder / "labels.csv"
    rows = [f'"{name}",{"pass" if n % 2 else "fail"}' for n, name in enumerate(NAMES)]
    path.write_text("\n".join(["example,label", *rows]))
    return path


COMMANDS = {
    "import": lambda e, labels: ["import", str(labels), e.id, "--sampling", "uniform"],
    "correct": lambda e, labels: ["correct", e.id, NAMES[0], "--verdict", "pass"],
    "alignment": lambda e, labels: ["alignment", e.id],
    "compare": lambda e, labels: [
        "compare",
        e.id,
        "--judge",
        e.strict.spec(),
        "--judge",
        e.strict.spec("other"),
    ],
    "compare with the judge": lambda e, labels: [
        "compare",
        e.id,
        *("--judge", e.header.evaluators[0].params["judge"]),
        *("--judge", e.strict.spec()),
    ],
    "audit": lambda e, labels: ["audit", "--judge", e.strict.spec(), "--limit", "2"],
}


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_fits_the_terminal(evaluation, labels, folder, monkeypatch, name):
    import_labels(labels, evaluation, sampling="uniform", annotator="before")
    command = COMMANDS[name](evaluation, labels)
    monkeypatch.setenv("NO_COLOR", "1")
    for width in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        screen = Screen()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            assert main(["judge", *command, "--store", f"sqlite:///{folder}/karat.db", "--quiet"]) == 0
        assert screen.getvalue().strip()
        assert max(map(display_width, screen.getvalue().splitlines())) <= width


@pytest.mark.parametrize(
    ("name", "fields"),
    {
        "import": {"evaluations"},
        "correct": {"corrections"},
        "alignment": {"alignment"},
        "compare": {"evaluator", "judges", "n", "of", "passes", "flips", "kappa", "agreement", "difference"},
        "audit": {"id", "judge", "verdict", "false_accept", "false_reject", "attack_success", "by_attack"},
    }.items(),
)
def test_json_is_one_document(evaluation, labels, folder, capsys, name, fields):
    import_labels(labels, evaluation, sampling="uniform", annotator="before")
    command = COMMANDS[name](evaluation, labels)
    assert main(["judge", *command, "--store", f"sqlite:///{folder}/karat.db", "--json"]) == 0
    assert fields <= json.loads(capsys.readouterr().out).keys()


@pytest.mark.parametrize(
    "command",
    [
        ["alignment", "eval-none"],
        ["correct", "latest", "nobody", "--verdict", "pass"],
        ["correct", "latest", NAMES[0]],
        ["import", "missing.csv", "latest"],
        ["compare", "latest"],
        ["audit", "--judge", "{broken"],
    ],
    ids=str,
)
def test_an_error_is_one_document(evaluation, folder, capsys, command):
    assert main(["judge", *command, "--store", f"sqlite:///{folder}/karat.db", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 2


def test_names_of_examples_cannot_steer_the_terminal(store, serve, folder, capsys):
    name = "a\x1b[31mred\u202e"
    evaluation = judged(store, serve(says_good), {name: "good", "b": "bad"})
    strict = serve(lambda body: {"analysis": "", "pass": False})
    first = evaluation.header.evaluators[0].params["judge"]
    url = f"sqlite:///{folder}/karat.db"
    for command in (
        ["compare", evaluation.id, "--judge", first, "--judge", strict.spec()],
        ["correct", evaluation.id, name, "--verdict", "fail"],
    ):
        assert main(["judge", *command, "--store", url, "--quiet"]) == 0
        out = capsys.readouterr().out
        assert "red" in out
        assert "\x1b" not in out
        assert "\u202e" not in out


def test_the_latest_evaluation_is_not_the_labels(store, evaluation, labels, folder, capsys):
    """`latest` means the evaluation by evaluators, also after people's labels were stored."""
    url = f"sqlite:///{folder}/karat.db"
    assert main(["judge", "import", str(labels), "latest", "--store", url, "--json"]) == 0
    people = json.loads(capsys.readouterr().out)["evaluations"][0]["id"]
    assert store.evaluations.list()[-1].id == people
    assert store.evaluations.get("latest").id == evaluation.id
    for command in (
        ["judge", "alignment", "latest"],
        ["judge", "correct", "latest", NAMES[1], "--verdict", "fail"],
        ["show", "latest"],
        ["report", "latest"],
        ["aggregate", "latest"],
        ["export", "latest"],
    ):
        assert main([*command, "--store", url, "--json"]) == 0, command
        assert json.loads(capsys.readouterr().out)
    assert main(["judge", "import", str(labels), "latest", "--store", url, "--json"]) == 0


def test_labels_are_named_where_a_judged_evaluation_is_meant(evaluation, labels, folder, refuses):
    [people] = import_labels(labels, evaluation)
    with refuses(UsageError):
        _judged_evaluation(evaluation.store, people.id)


def test_the_latest_run_and_evaluation_are_not_those_of_an_audit(store, evaluation, labels, folder, capsys):
    """An audit stores runs and evaluations of its own, which no other command means by `latest`."""
    url = f"sqlite:///{folder}/karat.db"
    assert main(["judge", "audit", "--judge", evaluation.strict.spec(), "--limit", "2", "--store", url]) == 0
    assert store.evaluations.list()[-1].id != evaluation.id
    assert store.runs.get("latest").id == evaluation.runs[0].id
    assert store.evaluations.get("latest").id == evaluation.id


def test_the_latest_judged_evaluation_is_the_last_one_with_a_judge(store, evaluation, labels, folder, capsys):
    url = f"sqlite:///{folder}/karat.db"
    later = karat.evaluate(evaluation.runs[0], ["json_valid"], store=store)
    assert store.evaluations.get("latest").id == later.id
    assert main(["judge", "import", str(labels), "latest", "--store", url]) == 0
    assert f"latest is {evaluation.id}" in capsys.readouterr().err
