"""The share of karat's statements that the tests reach, at a cost of a few per cent.

`python -m pytest -p tests.line_coverage --floor 95` loads each module of karat with a store into a list before every
statement; a tracer makes the tests half as long again on Python 3.11. As with a tracer, a statement counts when it
begins, and child processes are not measured. `.coverage.txt` lists the lines that no test reached.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "karat"
MISSING = ROOT / ".coverage.txt"
NAME = "__reached__"
EXCLUDED = re.compile(r"if TYPE_CHECKING:|@overload|raise NotImplementedError|# pragma: no cover")

reached: dict[str, list[int]] = {}  # by file: for each line, 1 if a statement began there
in_workers: dict[str, set[int]] = {}
summary: list[str] = []


def first_line(statement: Any) -> int:
    return min(each.lineno for each in (statement, *getattr(statement, "decorator_list", ())))


def is_excluded(statement: Any, lines: list[str]) -> bool:
    """Whether a simple statement, or what stands before the block of a compound one, matches EXCLUDED."""
    block = getattr(statement, "body", None)
    last = max(block[0].lineno - 1, statement.lineno) if block else statement.end_lineno
    return any(EXCLUDED.search(line) for line in lines[first_line(statement) - 1 : last])


def is_declaration(statement: ast.stmt) -> bool:
    """Whether the compiler reads it and nothing runs: a docstring, `...`, `global`, `from __future__ import`."""
    match statement:
        case ast.Expr(ast.Constant()) | ast.Global() | ast.Nonlocal() | ast.ImportFrom("__future__"):
            return True
    return False


def blocks(node: Any, lines: list[str]) -> Iterator[tuple[list[ast.stmt], list[ast.stmt]]]:
    """Each block of statements below a node, with those of its statements that count."""
    for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
        if isinstance(block, list):
            counted = [each for each in block if not is_excluded(each, lines)]
            yield block, [each for each in counted if not is_declaration(each)]
            for each in counted:
                yield from blocks(each, lines)
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from blocks(part, lines)


def parse(path: str) -> tuple[ast.Module, list[str], list[tuple[list[ast.stmt], list[ast.stmt]]]]:
    text = Path(path).read_text("utf-8")
    tree, lines = ast.parse(text), text.split("\n")
    return tree, lines, list(blocks(tree, lines))


def probe(statement: ast.stmt) -> ast.stmt:
    """`__reached__[line] = 1`, at the place of the statement before which it stands."""
    names = ast.Name(NAME, ast.Load()), ast.Constant(first_line(statement))
    store = ast.Assign([ast.Subscript(*names, ast.Store())], ast.Constant(1))
    return ast.fix_missing_locations(ast.copy_location(store, statement))


@functools.cache
def probed(path: str, name: str) -> CodeType:
    """The code of a module with its probes; `name` is the path as tracebacks show it."""
    tree, lines, found = parse(path)
    for block, counted in found:
        wanted = {id(each) for each in counted}
        block[:] = [part for each in block for part in ([probe(each)] * (id(each) in wanted) + [each])]
    reached.setdefault(path, [0] * (len(lines) + 1))
    return compile(tree, name, "exec", dont_inherit=True)


unprobed = SourceFileLoader.exec_module


def exec_module(self: SourceFileLoader, module: ModuleType) -> None:
    path = Path(self.path).resolve()
    if path.is_relative_to(SOURCE):
        code = probed(str(path), self.path)
        setattr(module, NAME, reached[str(path)])
        exec(code, vars(module))
    else:
        unprobed(self, module)


if "karat" in sys.modules:
    raise pytest.UsageError("karat was imported before its lines could be counted")
SourceFileLoader.exec_module = exec_module  # type: ignore[assignment,method-assign]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--floor", type=float, default=0, help="fail if the tests reach a smaller share, in per cent"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for path, lines in getattr(node, "workeroutput", {}).get(NAME, {}).items():
        in_workers.setdefault(path, set()).update(lines)


def pytest_sessionfinish(session: pytest.Session) -> None:
    here = {path: [n for n, hit in enumerate(hits) if hit] for path, hits in reached.items()}
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[NAME] = here
        return
    count, missing = 0, {}
    for path in sorted(map(str, SOURCE.rglob("*.py"))):
        lines = {first_line(each) for _, counted in parse(path)[2] for each in counted}
        count += len(lines)
        missing[path] = sorted(lines.difference(here.get(path, ()), in_workers.get(path, ())))
    share = 100 * (1 - sum(map(len, missing.values())) / count)
    rows = (f"{Path(path).relative_to(ROOT)}: {', '.join(map(str, n))}\n" for path, n in missing.items() if n)
    MISSING.write_text("".join(rows))
    floor = session.config.getoption("floor")
    summary.append(f"The tests reach {share:.2f} % of {count} statements; {MISSING.name} lists the others.")
    if share < floor:
        summary.append(
            f"That is less than the floor of {floor:g} %: test what was added, or delete what nothing uses."
        )
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in summary:
        terminalreporter.write_line(line)
