"""`karat evaluators`: every part is explained with its parameters and an example that runs."""

from __future__ import annotations

import pytest
import yaml

from karat.evaluators import build_evaluator, evaluators
from karat.evaluators._base import kind_of
from karat.graph.metrics import unit_metrics
from tests.scripted_judge import name_in, scripted_judge

SINGLE = [
    name
    for name in evaluators.list()
    if evaluators.get(name).__module__.startswith("karat.") and kind_of(evaluators.get(name)) == "single"
]
UNIT = [
    f"unit:{name}" for name in unit_metrics.list() if unit_metrics.get(name).__module__.startswith("karat.")
]


def example_in(said: str) -> tuple[str, str]:
    """The YAML and the Python of the example, as printed."""
    lines = [line.removeprefix("  ") for line in said.partition("\nexample\n")[2].splitlines()]
    gap = lines.index("")
    return "\n".join(lines[:gap]), "\n".join(lines[gap:])


@pytest.fixture(autouse=True)
def judge(request, tmp_path, monkeypatch):
    """A scripted judge for the evaluators that ask one."""
    with scripted_judge(name_in(request), tmp_path, monkeypatch):
        yield


@pytest.mark.parametrize("name", [*SINGLE, *UNIT])
def test_the_printed_example_runs_as_python_and_as_yaml(karat, name):
    said = karat("evaluators", name)
    assert said.code == 0
    written, program = example_in(said.out)
    names: dict = {}
    exec(program, names)
    assert "assert" in program
    assert names["result"].key == build_evaluator(name, dict(evaluators.get(name).example["params"])).key

    [spec] = yaml.safe_load(written)["evaluators"]
    spec = {"name": spec} if isinstance(spec, str) else spec
    example = evaluators.get(name).example
    again = build_evaluator(**spec).evaluate(
        **{key: example[key] for key in ("outputs", "reference_outputs", "inputs") if key in example}
    )
    assert again.score == pytest.approx(example["score"])


@pytest.mark.parametrize("name", [*SINGLE, *UNIT])
def test_description_and_every_parameter_with_its_default(karat, name):
    said = karat("evaluators", name).out
    described = evaluators.describe(name)
    assert described["description"]
    assert described["description"] in said
    lines = said.splitlines()
    for parameter, entry in described["params"].items():
        [line] = [line for line in lines if line.split("  ")[0].rstrip() == parameter]
        assert ("required" in line) == bool(entry.get("required"))


def test_words_that_a_parameter_takes_are_spelt_out(karat):
    said = karat("evaluators", "trajectory_match")
    assert "strict | unordered | subset | superset | in_order" in said.out
    assert "exact | ignore | subset | superset" in said.out


def test_unit_metrics_are_listed_as_evaluators_name_them(karat):
    listed = {each["name"]: each for each in karat("evaluators", "--json").json["evaluators"]}
    assert set(UNIT) <= set(listed)
    assert listed["unit:fuzzy_match"]["params"]["threshold"]["default"] == 0.8
    assert listed["unit:fuzzy_match"]["example"]["score"] == 1.0


def test_parameters_have_types_of_a_file_and_their_meaning(karat, says):
    described = karat("evaluators", "llm_judge", "--json").json["params"]
    says(*(f"{name}: {described[name]['type']}" for name in ("judge", "continuous", "examples", "scale")))
    says(described["judge"]["description"])
    said = karat("evaluators", "llm_judge").out
    assert "meaning" in said
    assert "openai/NAME" in said
    for name in SINGLE:
        for entry in karat("evaluators", name, "--json").json["params"].values():
            assert not {"JudgeLike", "None", "Sequence", "Mapping", "Callable", "str"} & set(
                entry.get("type", "").replace("[", " ").split()
            )
