"""Help, and the messages for invalid command lines."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from karat.cli import main
from karat.cli.parser import COMMANDS, page

DOCS = Path(__file__).parents[2] / "docs"


def test_every_command_is_documented_as_it_is():
    """Make it again with: python -c 'from karat.cli.parser import page; print(page(), end="")' > docs/cli.md"""
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(karat, name):
    said = karat(*name.split(), "--help")
    assert said.code == 0
    assert said.out.startswith(f"karat {name}")
    assert "--json" in said.out


@pytest.mark.parametrize("name", ["ls", "models", "models cache", "models pull"])
def test_examples_are_on_separate_lines(karat, name):
    examples = [
        line for line in karat(*name.split(), "--help").out.splitlines() if line.startswith("    karat ")
    ]
    assert examples[0].startswith(f"    karat {name}")
    assert all(line.count("karat") == 1 for line in examples)


def test_help_lists_the_commands(karat):
    said = karat("--help")
    assert said.code == 0
    assert all(command.summary.split()[0] in said.out for command in COMMANDS.values())


def test_version(karat):
    assert karat("--version").out.startswith("karat ")
    assert "karat" in karat("--version", "--json").json


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from karat.cli import main; main(['--help']);"
        "heavy = {'numpy', 'pydantic', 'aiohttp', 'msgspec', 'yaml', 'asyncio', 'sqlite3', 'pathlib'};"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "rnu",
        "hlep",
        "run x.yaml --concurency 5",
        "ls rns",
        "models pul",
        "models cache stat",
        "show",
        "run",
        "run x --limit many",
        "run x --limit 0",
        "run x --limit",
        "run x --budget -1",
        "run x --param oops",
        "run x --no-cache --refresh",
        "evaluate",
        "evaluate r -e {oops",
        "evaluate latest",
        "aggregate e -a mean --confidence 95",
        "--jsn",
        "",
        "show x --failed --example y",
        "export x -o out.xls",
        "export x --format xml",
        "export x --format parquet",
        "models cache stats --model x",
    ],
)
def test_a_mistake_is_one_sentence_with_the_nearest_right_word(karat, line, says):
    said = karat(*line.split())
    assert said.code == 2
    assert said.out == ""
    says(said.err)
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err


def test_global_options_may_precede_the_command(karat, project):
    said = karat("--store", "memory://", "--json", "ls", "runs")
    assert said.code == 0
    assert said.json == {"store": "memory://", "runs": []}


def test_errors_are_json_where_json_is_asked_for(karat):
    said = karat("rnu", "--json")
    assert said.code == 2
    assert said.err == ""
    assert said.json["error"]["type"] == "UsageError"
    assert said.json["error"]["exit_code"] == 2


def test_a_bug_is_reported_as_one(karat, monkeypatch, says):
    def broken(arguments, terminal):
        raise LookupError("not foreseen")

    monkeypatch.setattr("karat.cli.ls.execute", broken)
    said = karat("ls")
    assert said.code == 70
    says(said.err)
    assert "KARAT_TRACEBACK=1" in said.err
    monkeypatch.setenv("KARAT_TRACEBACK", "1")
    said = karat("ls")
    assert said.code == 70
    assert "Traceback" in said.err


def test_a_store_that_is_not_there_is_not_made_by_looking(karat, folder, says):
    said = karat("ls")
    assert said.code == 2
    says(said.err)
    assert not (folder / "karat.db").exists()


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_help_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    for command in ([], ["run"], ["show"], ["compare"]):
        screen = Screen()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            assert main([*command, "--help"]) == 0
        lines = [line for line in screen.getvalue().splitlines() if not line.startswith("    karat ")]
        assert max(map(len, lines)) <= 70


def test_each_subcommand_has_its_own_help(karat):
    """No two commands have the same text, and each shows how it is called."""
    texts = {}
    for name in COMMANDS:
        lines = karat(*name.split(), "--help").out.splitlines()
        texts[name] = lines[2]
        if name.startswith("judge "):
            assert any(line.startswith(f"    karat {name} ") for line in lines)
            assert not [
                line for line in lines if line.startswith("    karat ") and f"karat {name} " not in line
            ]
    assert len(set(texts.values())) == len(texts)


def test_a_group_of_commands_lists_them(karat):
    said = karat("judge", "--help").out
    assert all(name in said for name in COMMANDS if name.startswith("judge "))
