"""The results of a judge that a label, an agreement or an audit is about, and their parts: claims, nodes, criteria."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from karat.errors import (
    RequestError,
    did_you_mean,
    option,
    wording,
)
from karat.evaluators.judges.rubric import RUBRIC_PRESETS, Rubric, read_rubric
from karat.execution.labels import (
    results_of,
)
from karat.records import (
    HUMAN,
    EvaluatorSpec,
    ItemResult,
)
from karat.store.handles import Evaluation


def judged_key(evaluation: Evaluation, key: str | None) -> EvaluatorSpec:
    """The evaluator of an evaluation that is meant; without a key, the only one that asks a judge."""
    specs = [spec for spec in evaluation.header.evaluators if spec.name != HUMAN and spec.kind == "single"]
    if key is not None:
        for spec in specs:
            if spec.key == key:
                return spec
        raise RequestError(
            f"{evaluation.id} has no evaluator {key!r}: {did_you_mean(key, [s.key for s in specs])}"
        )
    asking = [spec for spec in specs if asks_judge(spec)]
    judges = asking or specs
    if len(judges) != 1:
        what = f"{len(judges)} judges" if asking else f"no judge and {len(judges)} evaluators"
        raise RequestError(
            f"{evaluation.id} has {what}: choose one with"
            f" {' or '.join(option('evaluator', spec.key) for spec in judges) or option('evaluator', 'KEY')}"
        )
    return judges[0]


def where_failed(evaluation: Evaluation) -> str:
    return wording(evaluation.store.command("show", evaluation.id, "--failed"), "evaluation.results()")


def asks_judge(spec: EvaluatorSpec) -> bool:
    """Whether an evaluator of an evaluation asks a judge."""
    from karat.evaluators.judges._base import JudgeEvaluator

    part = _registered(spec)
    return isinstance(part, type) and issubclass(part, JudgeEvaluator)


def _registered(spec: EvaluatorSpec) -> Any:
    """The evaluator that is registered under a name; None for one that a file or an import path names."""
    from karat.evaluators._base import evaluators

    try:
        return evaluators.get(spec.name)
    except RequestError:
        return None


def check_corrected(evaluation: Evaluation, spec: EvaluatorSpec) -> None:
    """Refuse to correct the score of a built-in evaluator that asks no judge. One of the user's own may ask one."""
    if asks_judge(spec) or not getattr(_registered(spec), "__module__", "").startswith("karat."):
        return
    judges = [each.key for each in evaluation.header.evaluators if each.kind == "single" and asks_judge(each)]
    if judges:
        raise RequestError(
            f"{spec.key!r} is no judge, so there is no decision to correct: name one with"
            f" {' or '.join(option('evaluator', key) for key in judges)}"
        )
    raise RequestError(
        f"{evaluation.id} has no judge, and {spec.key!r} makes no decision that could be corrected: labels of people"
        f" are stored with {wording('karat judge import', 'import_labels()')}"
    )


def find_result(
    evaluation: Evaluation,
    key: str,
    example: str,
    *,
    run: str | None = None,
    attempt: int | None = None,
    unit: str | None = None,
) -> ItemResult:
    """The one current result that is meant."""
    found = [
        record
        for _, record in results_of(evaluation)
        if record.example == example
        and record.key == key
        and (run is None or record.runs[0].startswith(run))
        and (attempt is None or record.attempt == attempt)
        and (unit is None or record.unit == unit)
    ]
    if not found:
        raise RequestError(f"{evaluation.id} has no result of {key!r} for example {example!r}")
    if len(found) > 1:
        fields = [
            f"{option(name)} ({', '.join(sorted(values)[:6])})"
            for name, values in (
                ("run", {record.runs[0] for record in found}),
                ("attempt", {str(record.attempt) for record in found}),
                ("unit", {record.unit for record in found}),
            )
            if len(values) > 1
        ]
        raise RequestError(
            f"example {example!r} has {len(found)} results of {key!r}: select one with {' '.join(fields)}"
        )
    return found[0]


# The parts of a judge's result.


def judged_parts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The judge's verdict on every part of a result, by its address: true, false, a choice, or None if undecided."""
    out: dict[str, Any] = {}
    for number, claim in enumerate(metadata.get("claims") or (), 1):
        out[f"claims/{number}"] = claim.get("supported")
    for number, verdict in enumerate(metadata.get("verdicts") or (), 1):
        if "satisfied" in verdict:
            out[f"requirements/{number}"] = verdict["satisfied"]
    for step in metadata.get("path") or ():
        out[f"nodes/{step.get('node')}"] = step.get("choice")
    for name, each in (metadata.get("criteria") or {}).items():
        out[f"criteria/{name}"] = verdict_passes(each.get("verdict"), each.get("score"))
    return out


def part_texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each part of a result. Claims get new numbers whenever an output is judged again."""
    out: dict[str, str] = {}
    for number, claim in enumerate(metadata.get("claims") or (), 1):
        out[f"claims/{number}"] = str(claim.get("claim"))
    for number, verdict in enumerate(metadata.get("verdicts") or (), 1):
        if "satisfied" in verdict:
            out[f"requirements/{number}"] = str(verdict.get("requirement"))
    for step in metadata.get("path") or ():
        out[f"nodes/{step.get('node')}"] = str(step.get("question"))
    for name in metadata.get("criteria") or {}:
        out[f"criteria/{name}"] = str(name)
    return out


def verdict_passes(verdict: object, score: float | None) -> bool | None:
    """Whether a judge passes: by its own word, which knows its pass mark, else by its score."""
    if verdict in ("pass", "fail"):
        return bool(verdict == "pass")
    return None if score is None else score >= 0.5


def rubric_of(spec: EvaluatorSpec) -> Rubric | None:
    if spec.name != "rubric_dag":
        return None
    dag = spec.params.get("dag", RUBRIC_PRESETS.get(str(spec.params.get("preset"))))
    return None if dag is None else read_rubric(dag)
