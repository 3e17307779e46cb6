"""Documentation is checked: the examples of README and docs run, in their order.

A block of Python is executed; one of Python or YAML that begins with the name of its file (`# mine.py`) is written
there for those after it. Of a block called `console` each `$ karat …` is run, and has to end well. A block called `sh`
is run from its first to its last line, without what installs and tests karat itself.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from karat.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|yaml|console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")


def blocks(page):
    """The blocks of a page that are run or written, with their lines."""
    text = page.read_text()
    for block in BLOCK.finditer(text):
        language, code = block.groups()
        if language != "yaml" or FILE.match(code):
            yield language, code, text[: block.start(2)].count("\n")


def run_shell(code, monkeypatch):
    """Run a block of a shell, each line alone; a script with `case` whole, in a new project."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    if "case $?" in code:
        assert main(["init", "project"]) == 0
        assert subprocess.run(["sh", "-c", code], cwd="project").returncode == 1  # a gate on 8 questions
        return
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if "prompt.yaml" in words and importlib.util.find_spec("xllamacpp") is None:
            continue  # the extra `local` is optional
        if words[:1] == ["cd"]:
            monkeypatch.chdir(words[1])
        elif words[:1] in (["karat"], ["sed"]):
            allowed = (0, 1, 4) if any(word.startswith("--fail-") for word in words) else (0,)  # a gate
            assert subprocess.run(words).returncode in allowed, line
        else:
            assert words[:1] in ([], ["make"], ["pip"]), f"{line}: say here how it is run"


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p))], ids=lambda p: p.name)
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache.db"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    namespace: dict[str, object] = {"__name__": "__main__"}
    for language, code, line in blocks(page):
        if named := FILE.match(code):
            Path(named[1]).write_text(code)
        elif language == "python":
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
        elif language == "sh":
            run_shell(code, monkeypatch)
        else:
            for command in re.findall(r"^\$ karat (.*)", code, re.MULTILINE):
                assert main(shlex.split(command)) == 0, command


@pytest.mark.parametrize(
    ("page", "name"), [("datasets", "Repeat"), ("models", "Acme"), ("store", "JournalBackend")]
)
def test_a_part_of_ones_own_takes_at_most_thirty_lines(page, name):
    """A task, a model provider and a store backend, with their imports; blank lines are not counted."""
    [code] = [
        code
        for _, code, _ in blocks(ROOT / "docs" / f"{page}.md")
        if re.search(rf"^class {name}\b", code, re.M)
    ]
    [made] = [n for n in ast.parse(code).body if isinstance(n, ast.ClassDef) and n.name == name]
    lines = code.splitlines()[: made.end_lineno]
    assert sum(bool(line.strip()) for line in lines) <= 30


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" not in target:
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def anchors(page):
    """What the headings of a page are linked by."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_architecture_names_every_room_and_no_other():
    source, text = ROOT / "src" / "karat", (ROOT / "docs" / "architecture.md").read_text()
    rooms = {f"{each.name}/" if each.is_dir() else each.name for each in source.iterdir()}
    named = set(re.findall(r"`([\w/]+(?:/|\.py))`", text))
    assert rooms - named - {"__init__.py", "__main__.py", "__pycache__/", "py.typed"} == set()
    for each in named - {"paths.py"}:
        assert list(source.rglob(each.strip("/"))) or (source / each).exists() or (ROOT / each).exists(), each
