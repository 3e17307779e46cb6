"""`tests/line_coverage.py`: it counts the lines that a tracer sees, and a share below the floor fails the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).with_name("line_coverage.py")

# Every compound statement, with parts that the tests reach and parts that they do not.
SOURCE = '''\
"""A docstring."""
from __future__ import annotations
import contextlib, enum, sys
from typing import TYPE_CHECKING, overload
if TYPE_CHECKING:
    from nowhere import nothing
class Kind(enum.Enum):
    """A docstring."""
    A = 1
    B = (
        2
    )
@overload
def choose(number: int) -> str: ...
@overload
def choose(number: str) -> str: ...
@contextlib.contextmanager
def around():
    try:
        yield
    finally:
        sys
def choose(number):
    """A docstring."""
    global last
    last = number
    if number == 1:
        return "one"
    elif number == 2:
        return "two"  # not reached
    else:
        number += 1
    with around():
        match number:
            case 4:
                number = 0
            case _:
                number = 9  # not reached
    while number:
        number -= 1  # not reached
        if number > 5: continue  # not reached
        break  # not reached
    else:
        number = 7
    try:
        for each in [number]:
            int("x")
            number = 8  # not reached
        else:
            number = 6  # not reached
    except KeyError:
        number = 5  # not reached
    except ValueError:
        number = 4
    return [each for each in range(number)
            if each]
def never():
    return 1  # not reached
async def wait():
    async with nothing: pass  # not reached
    if last:  # pragma: no cover
        return 2
    raise NotImplementedError
'''
CALLS = "import karat\nassert [karat.choose(n) for n in (1, 3)] == ['one', [1, 2, 3]]\nkarat.Kind(2)\n"
TEST = """\
import karat
def test_1():
    assert karat.choose(1) == "one" and karat.__doc__ and karat.choose.__doc__ and karat.Kind.__doc__
def test_3():
    assert karat.choose(3) == [1, 2, 3] and karat.Kind(2)
"""
NOT_REACHED = {n for n, line in enumerate(SOURCE.split("\n"), 1) if "# not reached" in line}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package called karat with one module, and tests that run in two processes."""
    for name, text in {
        "src/karat/__init__.py": SOURCE,
        "tests/__init__.py": "",
        "tests/test_it.py": TEST,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(PLUGIN, tmp_path / "tests")
    return tmp_path


def run_tests(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(project / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.line_coverage", *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
    )


def seen_by_a_tracer(project: Path) -> set[int]:
    """The lines of the module that begin while the tests' calls run."""
    program = (
        "import sys; lines = set()\n"
        "def trace(frame, event, argument):\n"
        "    if 'src/karat' not in frame.f_code.co_filename: return None\n"
        "    if event == 'line': lines.add(frame.f_lineno)\n"
        "    return trace\n"
        f"sys.settrace(trace)\n{CALLS}sys.settrace(None)\nprint(*lines)"
    )
    environment = {**os.environ, "PYTHONPATH": str(project / "src")}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return set(map(int, output.stdout.split()))


def test_it_misses_what_a_tracer_misses(project: Path) -> None:
    done = run_tests(project, "-p", "xdist", "-n", "2", "--dist", "load")
    assert done.returncode == 0, done.stdout + done.stderr
    name, _, lines = (project / ".coverage.txt").read_text().strip().partition(": ")
    assert name == "src/karat/__init__.py"
    assert set(map(int, lines.split(", "))) == NOT_REACHED
    assert not NOT_REACHED & seen_by_a_tracer(project)


def test_the_floor_is_the_least_share_that_passes(project: Path) -> None:
    share = float(run_tests(project).stdout.partition("The tests reach ")[2].partition(" %")[0])
    assert 70 < share < 80
    assert run_tests(project, "--floor", f"{share - 0.01}").returncode == 0
    assert run_tests(project, "--floor", f"{share + 0.01}").returncode == 1


def test_failures_of_tests_stay_failures(project: Path) -> None:
    (project / "tests" / "test_it.py").write_text(
        "import karat\ndef test_it():\n    assert karat.choose(1) == 2\n"
    )
    done = run_tests(project)
    assert done.returncode == 1
    assert "1 failed" in done.stdout
