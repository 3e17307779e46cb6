"""Judges measured by people: importing and correcting labels, agreement, and one judge against another."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from karat.errors import ConfigError, DataError, RequestError, did_you_mean
from karat.evaluators._base import build_evaluator
from karat.execution.evaluate import evaluate
from karat.execution.labels import (
    HUMAN,
    Item,
    Label,
    NewLabel,
    Sampling,
    is_sample,
    judges_of,
    label_evaluations,
    labels_in,
    latest_alignment,
    results_of,
    store_labels,
)
from karat.keys import fingerprint
from karat.records import FORMAT, AggregationHeader, Counts, Estimate, EvaluatorSpec, ItemResult, Ok
from karat.store.handles import Evaluation

COLUMNS = (
    "example",
    "label",
    "score",
    "run",
    "attempt",
    "unit",
    "evaluator",
    "part",
    "annotator",
    "probability",
    "note",
)
PASS = frozenset({"pass", "passed", "yes", "true", "correct", "right", "good", "1", "supported", "satisfied"})
FAIL = frozenset(
    {"fail", "failed", "no", "false", "incorrect", "wrong", "bad", "0", "unsupported", "not satisfied"}
)
SKIP = frozenset(
    {"", "cannot tell", "can't tell", "skip", "unsure", "n/a", "na", "?", "don't know", "unclear"}
)
MOST_PROBLEMS = 20
LARGEST_FILE = 200_000_000
ANNOTATOR = "person"


# ---------------------------------------------------------------- which results are meant


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
    judges = [spec for spec in specs if asks_judge(spec)] or specs
    if len(judges) != 1:
        raise RequestError(
            f"{evaluation.id} has {len(judges)} evaluators that may be meant: give --evaluator"
            f" {' or '.join(spec.key for spec in judges) or 'KEY'}"
        )
    return judges[0]


def asks_judge(spec: EvaluatorSpec) -> bool:
    """Whether an evaluator of an evaluation asks a judge."""
    from karat.evaluators._base import evaluators
    from karat.evaluators.judges._base import JudgeEvaluator

    try:
        part = evaluators.get(spec.name)
    except RequestError:
        return False
    return isinstance(part, type) and issubclass(part, JudgeEvaluator)


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
            f"--{name} ({', '.join(sorted(values)[:6])})"
            for name, values in (
                ("run", {record.runs[0] for record in found}),
                ("attempt", {str(record.attempt) for record in found}),
                ("unit", {record.unit for record in found}),
            )
            if len(values) > 1
        ]
        raise RequestError(
            f"example {example!r} has {len(found)} results of {key!r}: say which with {' '.join(fields)}"
        )
    return found[0]


# ---------------------------------------------------------------- importing labels


def import_labels(
    path: str | Path,
    evaluation: Evaluation,
    *,
    annotator: str | None = None,
    sampling: Sampling = "selected",
    evaluator: str | None = None,
    scale: tuple[float, float] | None = None,
    question: str = "",
) -> list[Evaluation]:
    """Store the labels of a JSONL or CSV file: one evaluation for each annotator and evaluator."""
    rows = list(_read_rows(Path(path)))
    if not rows:
        raise DataError(f"{path} has no labels")
    runs = evaluation.header.runs
    problems: list[str] = []
    grouped: dict[tuple[str, str], list[NewLabel]] = {}
    words: dict[tuple[str, str], dict[str, None]] = {}
    nodes = _nodes(evaluation)
    for number, row in rows:
        try:
            key, label = _label(row, evaluation, evaluator, runs, scale, nodes)
        except (RequestError, ValueError) as error:
            problems.append(f"line {number}: {error}")
            continue
        who = str(row.get("annotator") or annotator or ANNOTATOR)
        grouped.setdefault((who, key), []).append(label)
        words.setdefault((who, key), {})[str(label.value)] = None
    if problems:
        more = len(problems) - MOST_PROBLEMS
        problems = [*problems[:MOST_PROBLEMS], *([f"… and {more} more"] if more > 0 else [])]
        raise ConfigError(problems, str(path))
    return [
        store_labels(
            evaluation,
            key,
            labels,
            annotator=who,
            sampling=sampling,
            question=question,
            options=sorted(words[who, key]) if len(words[who, key]) <= 20 else (),
        )
        for (who, key), labels in grouped.items()
    ]


def _read_rows(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise DataError(f"{path} is larger than {LARGEST_FILE:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {type(error).__name__}") from None
    if path.suffix.lower() in (".csv", ".tsv"):
        reader = csv.DictReader(
            io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ","
        )
        unknown = [name for name in reader.fieldnames or () if name not in COLUMNS]
        if unknown:
            raise DataError(
                f"{path}: unknown column {unknown[0]!r}: {did_you_mean(str(unknown[0]), COLUMNS)}"
            )
        try:
            for row in reader:
                yield reader.line_num, {name: value for name, value in row.items() if value not in (None, "")}
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: {error}") from None
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"{path}, line {number}: not JSON") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: a label is an object, not {type(row).__name__}")
        unknown = [name for name in row if name not in COLUMNS]
        if unknown:
            raise DataError(
                f"{path}, line {number}: unknown field {unknown[0]!r}: {did_you_mean(unknown[0], COLUMNS)}"
            )
        yield number, row


def _nodes(evaluation: Evaluation) -> dict[str, str]:
    """The nodes of rubrics and the criteria of judges → the key of their evaluator."""
    out: dict[str, str] = {}
    for _, record in results_of(evaluation):
        metadata = record.result.metadata if record.result is not None else {}
        for step in metadata.get("path") or ():
            out.setdefault(str(step.get("node")), record.key)
        for name in metadata.get("criteria") or ():
            out.setdefault(str(name), record.key)
    return out


def _label(
    row: Mapping[str, Any],
    evaluation: Evaluation,
    default: str | None,
    runs: Sequence[str],
    scale: tuple[float, float] | None,
    nodes: Mapping[str, str],
) -> tuple[str, NewLabel]:
    if row.get("example") in (None, ""):
        raise ValueError("there is no example")
    if ("label" in row) == ("score" in row):
        raise ValueError("give either label or score")
    part = str(row.get("part") or "")
    named = str(row["evaluator"]) if row.get("evaluator") is not None else default
    if named is not None and named in nodes and named not in [s.key for s in evaluation.header.evaluators]:
        part, named = part or f"nodes/{named}", nodes[named]
    key = judged_key(evaluation, named).key
    if part and "/" not in part:
        part = f"nodes/{part}" if part in nodes else part
    run = str(row["run"]) if row.get("run") is not None else None
    matching = [each for each in runs if run is None or each.startswith(run)]
    if len(matching) != 1:
        raise ValueError(
            f"the evaluation has {len(runs)} runs: say which with run"
            if run is None
            else f"{run!r} is no run of it"
        )
    item = Item(
        matching[0], str(row["example"]), _whole(row.get("attempt", 1), "attempt"), str(row.get("unit") or "")
    )
    score, value, skip = _value(row, scale, bool(part))
    probability = row.get("probability")
    if probability is not None:
        probability = float(probability)
        if not 0 < probability <= 1:
            raise ValueError(f"probability has to be above 0 and at most 1, not {probability:g}")
    return key, NewLabel(
        item=item,
        score=None if part else score,
        value=(
            bool(score) if score in (0.0, 1.0) and part.startswith(("claims/", "requirements/")) else value
        )
        if part
        else value,
        part=part,
        probability=probability,
        note=str(row.get("note") or ""),
        skip=skip,
    )


def _whole(value: Any, name: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise ValueError(f"{name} has to be a whole number, not {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} has to be 1 or more")
    return number


def _value(
    row: Mapping[str, Any], scale: tuple[float, float] | None, part: bool
) -> tuple[float | None, Any, bool]:
    """Return score, label and whether the person could not decide."""
    given = row["label"] if "label" in row else row["score"]
    if isinstance(given, bool):
        return float(given), given, False
    text = "" if given is None else str(given).strip()
    if text.lower() in SKIP:
        return None, "cannot tell", True
    if "label" in row and scale is None:
        if text.lower() in PASS:
            return 1.0, text, False
        if text.lower() in FAIL:
            return 0.0, text, False
    try:
        number = float(text)
    except ValueError:
        if part:
            return None, text, False
        raise ValueError(f"{text[:40]!r} is no label: write pass or fail, a score, or cannot tell") from None
    low, high = scale or (0.0, 1.0)
    if not math.isfinite(number) or not low <= number <= high:
        raise ValueError(f"the score {text[:20]} is outside {low:g} to {high:g}: give --scale LOW:HIGH")
    return (number - low) / (high - low), given, False


# ---------------------------------------------------------------- correcting a verdict


class Correction(msgspec.Struct, frozen=True):
    """What came of a person's verdict on a part."""

    evaluation: str
    kind: str
    """`correction`, or `confirmation` if the label equals the judge's verdict."""
    part: str
    judged: Any
    said: Any
    score_before: float | None
    score: float | None


def correct(
    evaluation: Evaluation,
    example: str,
    *,
    evaluator: str | None = None,
    claims: Mapping[int, bool] | None = None,
    requirements: Mapping[int, bool] | None = None,
    nodes: Mapping[str, str] | None = None,
    verdict: bool | None = None,
    run: str | None = None,
    attempt: int | None = None,
    unit: str | None = None,
    annotator: str = ANNOTATOR,
    note: str = "",
) -> list[Correction]:
    """Store a person's verdicts on parts of a judge's result beside it, with the score that follows from them."""
    spec = judged_key(evaluation, evaluator)
    record = find_result(evaluation, spec.key, example, run=run, attempt=attempt, unit=unit)
    if not isinstance(record.outcome, Ok):
        raise RequestError(
            f"the result of {spec.key!r} for example {example!r} is {record.outcome.status}: nothing to correct"
        )
    result = record.outcome.value
    item = Item(record.runs[0], record.example, record.attempt, record.unit)
    earlier = _earlier_parts(evaluation, item, spec.key, annotator)
    changes: list[tuple[str, Any, Any]] = []
    score: float | None = result.score
    if claims:
        score = _with_parts(result.metadata, "claims", "supported", claims, earlier, changes)
    if requirements:
        score = _with_parts(result.metadata, "verdicts", "satisfied", requirements, earlier, changes)
    for node, choice in (nodes or {}).items():
        score, judged, chosen = _with_node(evaluation, spec, record, node, choice)
        changes.append((f"nodes/{node}", judged, chosen))
    if verdict is not None:
        judged_pass = None if result.score is None else result.score >= 0.5
        changes.append(("", judged_pass, verdict))
        score = float(verdict)
    if not changes:
        raise RequestError(
            "nothing to correct: give --claim N=true|false, --requirement N=true|false or --node NAME=CHOICE"
        )
    labels = [
        NewLabel(
            item=item,
            score=score if place == len(changes) - 1 else None,
            value=labelled,
            part=part,
            note=note,
            kind="confirmation" if judged == labelled else "correction",
        )
        for place, (part, judged, labelled) in enumerate(changes)
    ]
    stored = store_labels(evaluation, spec.key, labels, annotator=annotator, sampling="selected")
    return [
        Correction(stored.id, label.kind, label.part, judged, labelled, result.score, score)
        for label, (_, judged, labelled) in zip(labels, changes, strict=True)
    ]


def _earlier_parts(evaluation: Evaluation, item: Item, key: str, annotator: str) -> dict[str, Any]:
    for each in label_evaluations(evaluation.store, [item.run]):
        for label in labels_in(each):
            same = (label.item, label.evaluator, label.annotator) == (item, key, annotator)
            if same and label.sampling == "selected":
                return dict(label.parts)
    return {}


_PART = {"claims": "claims", "verdicts": "requirements"}


def _with_parts(
    metadata: Mapping[str, Any],
    field: str,
    name: str,
    given: Mapping[int, bool],
    earlier: Mapping[str, Any],
    changes: list[tuple[str, Any, Any]],
) -> float | None:
    """The share with some parts decided by a person; earlier corrections of the same person stay."""
    listed = metadata.get(field)
    if not isinstance(listed, list) or not listed:
        raise RequestError(f"this result has no {_PART[field]}")
    values = [part.get(name) for part in listed]
    for number in range(1, len(values) + 1):
        if isinstance(earlier.get(f"{_PART[field]}/{number}"), bool):
            values[number - 1] = earlier[f"{_PART[field]}/{number}"]
    for number, value in given.items():
        if not 1 <= number <= len(values):
            raise RequestError(
                f"there is no {_PART[field][:-1]} {number}: they are numbered 1 to {len(values)}"
            )
        changes.append((f"{_PART[field]}/{number}", listed[number - 1].get(name), value))
        values[number - 1] = value
    if any(value is None for value in values):
        return None
    return sum(map(bool, values)) / len(values)


def _with_node(
    evaluation: Evaluation, spec: EvaluatorSpec, record: ItemResult, node: str, choice: str
) -> tuple[float | None, Any, str]:
    """The score when a person decides a node: what follows it is asked, what came before it stays."""
    from karat.evaluators.judges._base import Case
    from karat.evaluators.judges._core import run_sync
    from karat.evaluators.judges.rubric import RubricDagEvaluator
    from karat.paths import MISSING

    result = record.result
    path = result.metadata.get("path") if result is not None else None
    if not path:
        raise RequestError("this result has no path through a rubric")
    built = build_evaluator(spec.name, spec.params, spec.key)
    if not isinstance(built, RubricDagEvaluator):
        raise RequestError(f"{spec.key!r} is no rubric")
    run = evaluation.store.runs.get(record.runs[0])
    output = next(
        o
        for o in run.outputs()
        if (o.example, o.attempt, o.unit) == (record.example, record.attempt, record.unit)
    )
    found = next(each for each in evaluation.dataset if each.id == record.example)
    case = Case(output.value, found.expected, found.input, MISSING, found, output)
    corrected = run_sync(built.corrected(case, path, node, choice))
    step = next(each for each in corrected.metadata["path"] if each["node"] == node)
    return corrected.score, step.get("judged"), step["choice"]


# ---------------------------------------------------------------- agreement


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far a judge agrees with people on one evaluator, or on one part of it."""

    evaluator: str
    part: str = ""
    labels: str
    """`sampled` or `selected`."""
    run: str | None = None
    n: int
    base_rate: Estimate
    """The share that people pass."""
    judge_rate: Estimate
    agreement: Estimate
    kappa: Estimate
    sensitivity: Estimate | None = None
    specificity: Estimate | None = None
    bias: Estimate
    """The judge's rate less the people's."""
    judge: list[str] = []
    """The models that the evaluator asked."""
    served_models: list[str] = []
    """The models that the provider served for the labelled results."""
    stale: bool = False
    """Whether the provider has served another model since: the figures are of a judge that is gone."""
    annotators: list[str] = []


class _Pair(msgspec.Struct, frozen=True):
    judge: float
    person: float
    example: str


def alignment(
    evaluation: Evaluation, *, evaluator: str | None = None, confidence: float = 0.95, keep: bool = True
) -> list[Agreement]:
    """Agreement of every judge of an evaluation with people's labels: overall, and for each requirement or claim.

    The figures are stored as an Aggregation, so that they are shown beside the scores of the same judge; with
    `keep=False` they are not.
    """
    store = evaluation.store
    labels = [label for each in label_evaluations(store, evaluation.header.runs) for label in labels_in(each)]
    if not labels:
        raise RequestError(
            f"there are no labels on the runs of {evaluation.id}: karat judge import FILE {evaluation.id}"
        )
    keys = [evaluator] if evaluator is not None else list(dict.fromkeys(label.evaluator for label in labels))
    out: list[Agreement] = []
    records: dict[tuple[str, Item], ItemResult] = {
        (r.key, Item(r.runs[0], r.example, r.attempt, r.unit)): r
        for _, r in results_of(evaluation)
        if len(r.runs) == 1
    }
    for key in keys:
        mine = [label for label in labels if label.evaluator == key]
        for kind in ("sampled", "selected"):
            chosen = [label for label in mine if is_sample(label) == (kind == "sampled")]
            if chosen:
                out += _agreements(key, kind, chosen, records, confidence)
    out = _with_judges(evaluation, out)
    for key in dict.fromkeys(each.evaluator for each in out if each.judge and keep):
        _store_alignment(evaluation, key, [each for each in out if each.evaluator == key], confidence)
    return out


def _with_judges(evaluation: Evaluation, found: Sequence[Agreement]) -> list[Agreement]:
    """The agreements with the judge of each, and whether the provider serves another model by now.

    "By now" means in the newest evaluation of the store that asked the same models for the same evaluator.
    """
    judges = judges_of([evaluation])
    out = []
    for each in found:
        models, served = judges.get(each.evaluator, ([], []))
        newest = _newest_served(evaluation, each.evaluator, models) or served
        stale = bool(each.served_models) and not set(newest) <= set(each.served_models)
        out.append(msgspec.structs.replace(each, judge=models, stale=stale))
    return out


def _newest_served(evaluation: Evaluation, key: str, models: list[str]) -> list[str]:
    later = [
        each
        for each in evaluation.store.evaluations.list()
        if each.id != evaluation.id
        and each.header.created >= evaluation.header.created
        and any(spec.key == key and spec.name != HUMAN for spec in each.header.evaluators)
    ]
    for each in sorted(later, key=lambda one: -one.header.created):
        asked, served = judges_of([each]).get(key, ([], []))
        if asked == models and served:
            return served
    return []


_FIGURES = ("base_rate", "judge_rate", "agreement", "kappa", "sensitivity", "specificity", "bias")


def _store_alignment(evaluation: Evaluation, key: str, found: Sequence[Agreement], confidence: float) -> None:
    """Keep the agreement of one judge; the same figures again are not stored twice."""
    store, first = evaluation.store, found[0]
    estimates = []
    for each in found:
        # The overall agreement on a random sample, where there is one, is what is shown beside scores.
        overall = each.part == "" and (each.labels == "sampled" or all(a.labels != "sampled" for a in found))
        group = None if overall else {"part": each.part, "labels": each.labels}
        for name in _FIGURES:
            figure = getattr(each, name)
            if figure is not None:
                estimates.append(figure.about(evaluator=key, aggregator="alignment", name=name, group=group))
    served = sorted({model for each in found for model in each.served_models})
    settings = {"evaluator": key, "judge": first.judge, "served_models": served, "confidence": confidence}
    configuration = fingerprint(alignment=settings, figures=[msgspec.to_builtins(each) for each in estimates])
    before = latest_alignment(store, key, first.judge)
    if before is not None and before.configuration == configuration:
        return
    now = time.time()
    header = AggregationHeader(
        format=FORMAT,
        id="",
        configuration=configuration,
        evaluations=[evaluation.id],
        made_by="alignment",
        settings=settings,
        estimates=estimates,
        created=now,
        finished=now,
        status="success",
        counts=Counts(ok=sum(each.n for each in found if each.part == "")),
    )
    store.aggregations.add(header)


def _agreements(
    key: str,
    kind: str,
    labels: Sequence[Label],
    records: Mapping[tuple[str, Item], ItemResult],
    confidence: float,
) -> list[Agreement]:
    whole: list[_Pair] = []
    parts: dict[str, list[_Pair]] = {}
    served: dict[str, None] = {}
    for item in dict.fromkeys(label.item for label in labels):
        record = records.get((key, item))
        result = record.result if record is not None else None
        if result is None:
            continue
        model = result.metadata.get("served_model")
        for each in model if isinstance(model, list) else [model]:
            if each:
                served[str(each)] = None
        mine = [label for label in labels if label.item == item]
        scores = [label.score for label in mine if label.score is not None]
        if scores and result.score is not None:
            whole.append(_Pair(result.score, sum(scores) / len(scores), item.example))
        for name, judged in judged_parts(result.metadata).items():
            truths = [_truth(label.parts[name], judged) for label in mine if name in label.parts]
            values = [value for value in truths if value is not None]
            if values and judged is not None:
                shown = judged if isinstance(judged, bool) else True
                group = name if name.startswith(("requirements/", "nodes/", "criteria/")) else "claims"
                parts.setdefault(group, []).append(
                    _Pair(float(shown), sum(values) / len(values), item.example)
                )
    people = sorted({label.annotator for label in labels})
    return [
        _measured(key, part, kind, pairs, confidence, list(served), people)
        for part, pairs in [("", whole), *sorted(parts.items())]
        if pairs
    ]


def judged_parts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The judge's verdict on every part of a result, by its address."""
    out: dict[str, Any] = {}
    for number, claim in enumerate(metadata.get("claims") or (), 1):
        out[f"claims/{number}"] = claim.get("supported")
    for number, verdict in enumerate(metadata.get("verdicts") or (), 1):
        if "satisfied" in verdict:
            out[f"requirements/{number}"] = verdict["satisfied"]
    for step in metadata.get("path") or ():
        out[f"nodes/{step.get('node')}"] = step.get("choice")
    for name, each in (metadata.get("criteria") or {}).items():
        out[f"criteria/{name}"] = {"pass": True, "fail": False}.get(each.get("verdict"))
    return out


def _truth(label: Any, judged: Any) -> float | None:
    """Return a person's label of a part as 1 or 0; for a choice, whether it equals the judge's."""
    if label is None:
        return None
    if isinstance(judged, str):
        return float(str(label).casefold() == judged.casefold())
    if isinstance(label, bool):
        return float(label)
    text = str(label).strip().lower()
    return 1.0 if text in PASS else 0.0 if text in FAIL else None


def _measured(
    key: str,
    part: str,
    kind: str,
    pairs: Sequence[_Pair],
    confidence: float,
    served: list[str],
    people: list[str],
) -> Agreement:
    from karat.stats import cohen_kappa, mean_interval, percent_agreement, proportion

    judge = [pair.judge >= 0.5 for pair in pairs]
    person = [pair.person >= 0.5 for pair in pairs]
    clusters = [pair.example for pair in pairs]
    hits = [(j, c) for j, p, c in zip(judge, person, clusters, strict=True) if p]
    rejects = [(not j, c) for j, p, c in zip(judge, person, clusters, strict=True) if not p]
    gaps = [float(j) - float(p) for j, p in zip(judge, person, strict=True)]
    return Agreement(
        evaluator=key,
        part=part,
        labels=kind,
        n=len(pairs),
        base_rate=proportion(person, clusters, confidence),
        judge_rate=proportion(judge, clusters, confidence),
        agreement=percent_agreement(judge, person, clusters, confidence),
        kappa=cohen_kappa(judge, person, clusters=clusters, confidence=confidence),
        sensitivity=proportion([h for h, _ in hits], [c for _, c in hits], confidence) if hits else None,
        specificity=proportion([r for r, _ in rejects], [c for _, c in rejects], confidence)
        if rejects
        else None,
        bias=mean_interval(gaps, clusters, confidence=confidence, bounds=(-1.0, 1.0)),
        served_models=served,
        annotators=people,
    )


# ---------------------------------------------------------------- one judge against another


class JudgeComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two judges on the same outputs."""

    evaluator: str
    judges: list[str]
    evaluations: list[str]
    n: int
    of: int
    passes: list[int]
    """How many of the `n` outputs each judge passes."""
    flips: list[dict[str, Any]]
    """Items on which the verdicts differ: `{run, example, attempt, unit, first, second}`."""
    kappa: Estimate
    agreement: Estimate
    difference: Estimate
    """The first judge's mean score less the second's, paired by example."""


def compare_judges(
    evaluation: Evaluation,
    judges: Sequence[Any],
    *,
    evaluator: str | None = None,
    confidence: float = 0.95,
    **options: Any,
) -> JudgeComparison:
    """Judge the same outputs with two judges and compare their verdicts item by item."""
    if len(judges) != 2:
        raise RequestError(f"two judges are compared, not {len(judges)}: give --judge twice")
    spec = judged_key(evaluation, evaluator)
    made = [
        evaluate(
            evaluation.header.runs,
            [{"name": spec.name, "params": _judged_by(spec.params, judge), "key": spec.key}],
            store=evaluation.store,
            **options,
        )
        for judge in judges
    ]
    names = [judge if isinstance(judge, str) else json.dumps(judge) for judge in judges]
    return _compared(
        spec.key, names, [_scores(each, spec.key) for each in made], [each.id for each in made], confidence
    )


def compare_evaluators(
    evaluation: Evaluation, first: str | None, second: str, *, confidence: float = 0.95
) -> JudgeComparison:
    """Compare a judge with another evaluator of the same evaluation, such as an exact match, without judging again."""
    keys = [judged_key(evaluation, first).key, judged_key(evaluation, second).key]
    tables = [_scores(evaluation, key) for key in keys]
    return _compared(keys[0], keys, tables, [evaluation.id], confidence)


def _scores(evaluation: Evaluation, key: str) -> dict[Item, float | None]:
    return {
        Item(r.runs[0], r.example, r.attempt, r.unit): r.score
        for _, r in results_of(evaluation)
        if r.key == key
    }


def _compared(
    key: str,
    names: list[str],
    tables: Sequence[Mapping[Item, float | None]],
    evaluations: list[str],
    confidence: float,
) -> JudgeComparison:
    from karat.stats import cohen_kappa, mean_interval, percent_agreement

    first, second = tables
    both = [item for item in first if first[item] is not None and second.get(item) is not None]
    a, b = [float(first[item] or 0.0) for item in both], [float(second[item] or 0.0) for item in both]
    flips = [
        {**item._asdict(), "first": x, "second": y}
        for item, x, y in zip(both, a, b, strict=True)
        if (x >= 0.5) != (y >= 0.5)
    ]
    clusters = [item.example for item in both]
    verdicts = [value >= 0.5 for value in a], [value >= 0.5 for value in b]
    return JudgeComparison(
        evaluator=key,
        judges=names,
        evaluations=evaluations,
        n=len(both),
        of=len(first),
        passes=[sum(each) for each in verdicts],
        flips=flips,
        kappa=cohen_kappa(*verdicts, clusters=clusters, confidence=confidence),
        agreement=percent_agreement(*verdicts, clusters, confidence),
        difference=mean_interval(
            [x - y for x, y in zip(a, b, strict=True)], clusters, confidence=confidence, bounds=(-1.0, 1.0)
        ),
    )


def _judged_by(params: Mapping[str, Any], judge: Any) -> dict[str, Any]:
    """The parameters of an evaluator with another judge; its other settings stay."""
    rest = {name: value for name, value in params.items() if name not in ("judge", "config")}
    old = params.get("judge")
    kept = (
        {
            n: v
            for n, v in old.items()
            if n in ("samples", "early_stop", "majority", "check_consistency", "max_tokens")
        }
        if isinstance(old, Mapping)
        else {}
    )
    new = {"model": judge} if isinstance(judge, str) else dict(judge)
    return {**rest, "judge": {**kept, **new}}
