"""Messages name an option as the caller writes it: a flag on the command line, an argument in Python."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import karat
from karat.cli import main
from karat.cli.parser import COMMANDS, command_parser
from karat.errors import CodeChanged, RequestError, for_command_line, option, wording

SOURCE = Path(karat.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z]")
NO_MESSAGES = {"cli", "testing", "_weights.py"}
"""The command line itself, that of the fake provider, and a command line of pip."""
COMMAND = re.compile(rf"\bkarat ({'|'.join({name.partition(' ')[0] for name in COMMANDS})})\b")
NO_COMMANDS = {"cli", "view", "html_report.py", "stored_analyses.py"}
"""The command line and what it serves, a file for people, and the names of stored analyses."""
CALLED = (
    karat.run, karat.evaluate, karat.compare, karat.rank, karat.open_store, karat.Store.tag, karat.Dataset.from_file,
    karat.tasks.RecordedOutputs, karat.memory.evaluate,
)  # fmt: skip
ELSEWHERE = {"cascade", "sampling", "new", "wait", "retry_failed", "accept_code_change", "budget"}
"""Keywords of `Store.remove` and `import_labels`, and those of `**options`."""


def test_an_option_is_written_for_the_caller():
    assert [option("new", True), option("limit", "N"), option("model", "extractive"), option("top_k")] == [
        "new=True",
        "limit=N",
        "model='extractive'",
        "top_k",
    ]
    with for_command_line():
        assert [
            option("new", True),
            option("limit", "N"),
            option("model", "extractive"),
            option("top_k"),
        ] == [
            "--new",
            "--limit N",
            "--model extractive",
            "--top-k",
        ]
        with for_command_line():
            pass
        assert wording("a command", "a call") == "a command"
    assert wording("a command", "a call") == "a call"


def strings_of(path: Path) -> list[tuple[int, str]]:
    """The strings of a module without docstrings and without what `wording` has for the command line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "wording":
            left_out |= {id(part) for part in ast.walk(node.args[0])}
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out
    ]


def test_no_message_names_a_flag_to_a_caller_in_python():
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        if NO_MESSAGES.isdisjoint(path.relative_to(SOURCE).parts)
        for line, text in strings_of(path)
        if FLAG.search(text) and text != "--store"  # of `Store.command`
    ]
    assert found == []


def test_no_message_names_a_command_to_a_caller_in_python():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if not NO_COMMANDS.isdisjoint(path.relative_to(SOURCE).parts):
            continue
        found += [f"{path.name}:{line}: {text!r}" for line, text in strings_of(path) if COMMAND.search(text)]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        worded = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "wording"
            for part in ast.walk(node.args[0])
        }
        found += [
            f"{path.name}:{node.lineno}: a command that has no form in Python"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "command"
            and id(node) not in worded
        ]
    assert found == []


def named_options() -> set[str]:
    names = set()
    for path in SOURCE.rglob("*.py"):
        if "cli" in path.relative_to(SOURCE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "option":
                names |= {str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)}
    return names


def test_every_option_that_a_message_names_is_a_flag_and_an_argument():
    flags: set[str] = set()
    for name, command in COMMANDS.items():
        parser = command_parser(name, importlib.import_module(command.module))
        flags |= set(parser._option_string_actions)
    arguments = {each for called in CALLED for each in inspect.signature(called).parameters} | ELSEWHERE
    for name in named_options():
        assert f"--{name.replace('_', '-')}" in flags, name
        assert name in arguments, name


def answer(question: str) -> str:
    return question


def test_a_notice_names_the_argument_to_python_and_the_flag_to_the_command_line(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("answer.py").write_text("def answer(question):\n    return question\n")
    Path("rows.jsonl").write_text('{"input": "a", "expected": "a"}\n')
    for _ in range(2):
        run = karat.run("answer.py:answer", "rows.jsonl", store="python.db", progress=False)
        assert main(["run", "answer.py:answer", "--data", "rows.jsonl", "--store", "shell.db"]) == 0
    assert "new=True" in run.notice
    assert not FLAG.search(run.notice)
    assert "--new" in capsys.readouterr().err


def test_an_error_names_the_argument_to_python_and_the_flag_to_the_command_line(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    task = "def answer(question):\n    if question == 'b':\n        raise KeyboardInterrupt\n    return question\n"
    Path("answer.py").write_text(task)
    Path("rows.jsonl").write_text('{"input": "a"}\n{"input": "b"}\n')
    command = ["run", "answer.py:answer", "--data", "rows.jsonl", "--concurrency", "1", "--store", "karat.db"]
    assert main(command) == 130
    Path("answer.py").write_text(task.replace("return question", "return 'another'"))
    assert main(command) == 2
    assert "--accept-code-change" in capsys.readouterr().err
    with pytest.raises(CodeChanged) as refused:
        karat.run("answer.py:answer", "rows.jsonl", store="karat.db", progress=False)
    assert "accept_code_change=True" in str(refused.value)
    assert not FLAG.search(str(refused.value))


@pytest.mark.parametrize("kind", ["compare", "rank"])
def test_a_remedy_is_a_call_to_python(kind):
    data = karat.Dataset.from_examples([{"input": "a", "expected": "a"}], name="rows")
    with karat.open_store("memory://") as store:
        runs = [
            karat.run(answer, data, store=store, progress=False, new=bool(n), attempts=1 + n) for n in (0, 1)
        ]
        with pytest.raises(RequestError) as alone:
            getattr(karat, kind)(runs[:1], **({"metric": "exact_match"} if kind == "rank" else {}))
        with pytest.raises(RequestError) as not_evaluated:
            getattr(karat, kind)(runs, **({"metric": "exact_match"} if kind == "rank" else {}))
    assert f"karat.{kind}([" in str(alone.value)
    assert f"karat.evaluate(['{runs[0].id}'" in str(not_evaluated.value)
