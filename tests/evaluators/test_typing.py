"""The public types of karat.evaluators, as mypy --strict sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import karat

PROGRAM = '''
from typing import Any

from karat.evaluators import Evaluator, ExactMatch, RunOutput, build_evaluator, register_evaluator
from karat.records import Example, Result
from karat.tasks import Context, RecordedOutputs, Task


class Length(Evaluator):
    """Counts characters."""

    name = "length"
    bounds = (0.0, None)
    higher_is_better = False
    reuse = False

    def evaluate(
        self, *, outputs: str, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        return Result(self.key, float(len(outputs)))


class Longest(Evaluator):
    def evaluate_runs(self, example: Example, outputs: list[RunOutput]) -> dict[str, float]:
        return {output.run: float(len(output.value)) for output in outputs}


class Echo(Task):
    name = "echo"

    def call(self, example: Example, context: Context) -> Any:
        return example.input


register_evaluator("length", Length, "Counts characters.")


@register_evaluator("shout")
def shout(outputs: str) -> bool:
    return outputs.isupper()


reveal_type(ExactMatch().evaluate(outputs="a"))
reveal_type(shout("A"))
task: Task = RecordedOutputs("recorded.jsonl")
'''


def check(tmp_path: Path, program: str) -> tuple[int, str]:
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", str(file)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(karat.__file__).parent.parent)},
    )
    return done.returncode, done.stdout + done.stderr


def test_the_public_types(tmp_path: Path) -> None:
    wrong = PROGRAM + "\nExactMatch(case_sensitiv=3)\nExactMatch(case_sensitive=3)\n"
    code, told = check(tmp_path, wrong)
    errors = [line for line in told.splitlines() if "program.py" in line and "error:" in line]
    assert code == 1, told
    assert len(errors) == 2, told
    assert "case_sensitiv" in errors[0]
    assert 'expected "bool"' in errors[1]
    assert told.count("karat.records.Result") >= 1, told
