"""How far a judge agrees with people and with another judge, and its calibration."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from karat.analysis.judges.parts import (
    judged_key,
    judged_parts,
    part_texts,
    rubric_of,
    verdict_passes,
)
from karat.errors import (
    RequestError,
    wording,
)
from karat.evaluators.judges.rubric import choice_worths
from karat.execution.evaluate import evaluate
from karat.execution.labels import (
    Label,
    LabelledItem,
    is_sample,
    judges_of,
    labels_on,
    latest_alignment,
    one_design,
    results_of,
    sampled_ratio,
    sampled_share,
)
from karat.keys import fingerprint
from karat.records import (
    FORMAT,
    HUMAN,
    AggregationHeader,
    Counts,
    Estimate,
    ItemResult,
)
from karat.stats._means import over_examples
from karat.store.handles import Evaluation


class JudgeAgreement(msgspec.Struct, frozen=True, kw_only=True):
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
    """A judge's and a person's verdict on the same output, or part of it."""

    judge: bool
    person: bool
    example: str
    probability: float | None
    choices: tuple[str, str] | None = None
    """Both choices at a node of a rubric."""


def alignment(
    evaluation: Evaluation, *, evaluator: str | None = None, confidence: float = 0.95, keep: bool = True
) -> list[JudgeAgreement]:
    """Agreement of every judge of an evaluation with people's labels: overall, and for each requirement or claim.

    Each label is compared with the judge's verdict, so that an output with two labels counts twice. Labels with
    different inclusion probabilities are weighted by them. The figures are stored as an Aggregation, so that they are
    shown beside the scores of the same judge; with `keep=False` they are not.
    """
    labels = labels_on([evaluation])
    if evaluator is not None:
        judged_key(evaluation, evaluator)
        labels = [label for label in labels if label.evaluator == evaluator]
    if not labels:
        what = f"results of {evaluator!r} in" if evaluator is not None else "the runs of"
        raise RequestError(
            f"there are no labels on {what} {evaluation.id}:"
            + wording(
                f" {evaluation.store.command('judge', 'import', 'FILE', evaluation.id)}",
                " import_labels(FILE, evaluation)",
            )
        )
    out: list[JudgeAgreement] = []
    records: dict[tuple[str, LabelledItem], ItemResult] = {
        (r.key, LabelledItem(r.runs[0], r.example, r.attempt, r.unit)): r
        for _, r in results_of(evaluation)
        if len(r.runs) == 1
    }
    worths = {
        spec.key: choice_worths(rubric)
        for spec in evaluation.header.evaluators
        if (rubric := rubric_of(spec)) is not None
    }
    for key in dict.fromkeys(label.evaluator for label in labels):
        mine = [label for label in labels if label.evaluator == key]
        for kind in ("sampled", "selected"):
            chosen = [label for label in mine if is_sample(label) == (kind == "sampled")]
            if kind == "sampled":
                chosen, _ = one_design(chosen)
            if chosen:
                out += _agreements(key, kind, chosen, records, worths.get(key, {}), confidence)
    if not out:
        raise RequestError(
            f"none of the {len(labels)} labels is on a verdict of {evaluation.id}: its results are of other items,"
            " failed, or are undecided"
        )
    out = _with_judges(evaluation, out)
    for key in dict.fromkeys(each.evaluator for each in out if each.judge and keep):
        _store_alignment(evaluation, key, [each for each in out if each.evaluator == key], confidence)
    return out


def _with_judges(evaluation: Evaluation, found: Sequence[JudgeAgreement]) -> list[JudgeAgreement]:
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


def _store_alignment(
    evaluation: Evaluation, key: str, found: Sequence[JudgeAgreement], confidence: float
) -> None:
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
    records: Mapping[tuple[str, LabelledItem], ItemResult],
    worths: Mapping[str, Mapping[str, float]],
    confidence: float,
) -> list[JudgeAgreement]:
    whole: list[_Pair] = []
    parts: dict[str, list[_Pair]] = {}
    served: dict[str, None] = {}
    for label in labels:
        record = records.get((key, label.item))
        result = record.result if record is not None else None
        if result is None:
            continue
        model = result.metadata.get("served_model")
        for each in model if isinstance(model, list) else [model]:
            if each:
                served[str(each)] = None
        passes = verdict_passes(result.metadata.get("verdict"), result.score)
        chance = label.probability if kind == "sampled" else None
        if label.score is not None and passes is not None:
            whole.append(_Pair(passes, label.score >= 0.5, label.item.example, chance))
        judged, texts = judged_parts(result.metadata), part_texts(result.metadata)
        for name, labelled in label.parts.items():
            # The same number is another claim where an output was judged again.
            if name in judged and label.about.get(name, "") == texts[name]:
                node = worths.get(name.removeprefix("nodes/"), {}) if name.startswith("nodes/") else {}
                pair = _pair(judged[name], labelled, node, label.item.example, chance)
                if pair is not None:
                    parts.setdefault("claims" if name.startswith("claims/") else name, []).append(pair)
    people = sorted({label.annotator for label in labels})
    return [
        _measure_part(key, part, kind, pairs, confidence, list(served), people)
        for part, pairs in [("", whole), *sorted(parts.items())]
        if pairs
    ]


def _pair(
    judged: Any, labelled: Any, worths: Mapping[str, float], example: str, chance: float | None
) -> _Pair | None:
    """Both verdicts on a part; None where one of them is open."""
    if judged is None or labelled is None:
        return None
    if isinstance(judged, bool):
        person = labelled if isinstance(labelled, bool) else float(labelled) >= 0.5
        return _Pair(judged, person, example, chance)
    if judged not in worths:
        return None
    if isinstance(labelled, str):
        if labelled not in worths:
            return None
        return _Pair(worths[judged] >= 0.5, worths[labelled] >= 0.5, example, chance, (judged, labelled))
    return _Pair(worths[judged] >= 0.5, float(labelled) >= 0.5, example, chance)


def _measure_part(
    key: str,
    part: str,
    kind: str,
    pairs: Sequence[_Pair],
    confidence: float,
    served: list[str],
    people: list[str],
) -> JudgeAgreement:
    """The figures of one part; at a node of a rubric, agreement and kappa are about the choices themselves."""
    judge, person = [pair.judge for pair in pairs], [pair.person for pair in pairs]
    chosen = [pair.choices for pair in pairs if pair.choices is not None]
    both: Sequence[tuple[Any, Any]] = (
        chosen if len(chosen) == len(pairs) else list(zip(judge, person, strict=True))
    )
    clusters = [pair.example for pair in pairs]
    chances = [pair.probability or 1.0 for pair in pairs]

    def overall(values: Sequence[bool]) -> Estimate:
        return sampled_share(values, clusters, chances, confidence)

    def among(wanted: Sequence[bool], values: Sequence[bool]) -> Estimate | None:
        places = [n for n in range(len(pairs)) if wanted[n]]
        if not places:
            return None
        chosen = [(values[n], clusters[n], chances[n]) for n in places]
        return sampled_share(
            [v for v, _, _ in chosen], [c for _, c, _ in chosen], [p for *_, p in chosen], confidence
        )

    return JudgeAgreement(
        evaluator=key,
        part=part,
        labels=kind,
        n=len(pairs),
        base_rate=overall(person),
        judge_rate=overall(judge),
        agreement=overall([a == b for a, b in both]),
        kappa=_kappa(both, clusters, chances, confidence),
        sensitivity=among(person, judge),
        specificity=among([not each for each in person], [not each for each in judge]),
        bias=_mean_gap(judge, person, clusters, chances, confidence),
        served_models=served,
        annotators=people,
    )


def _kappa(
    both: Sequence[tuple[Any, Any]], clusters: Sequence[str], chances: Sequence[float], confidence: float
) -> Estimate:
    from karat.stats import cohen_kappa

    first, second = [a for a, _ in both], [b for _, b in both]
    if len(set(chances)) <= 1:
        return over_examples(cohen_kappa(first, second, clusters=clusters, confidence=confidence))
    from karat.stats._prediction_powered import weighted_kappa

    return weighted_kappa(first, second, chances, clusters, confidence)


def _mean_gap(
    judge: Sequence[bool],
    person: Sequence[bool],
    clusters: Sequence[str],
    chances: Sequence[float],
    confidence: float,
) -> Estimate:
    from karat.stats import mean_interval

    gaps = [float(j) - float(p) for j, p in zip(judge, person, strict=True)]
    if len(set(chances)) <= 1:
        return over_examples(mean_interval(gaps, clusters, confidence=confidence, bounds=(-1.0, 1.0)))
    import numpy as np

    rows = np.stack([np.array(gaps), np.ones(len(gaps))], axis=1)
    return sampled_ratio(rows, clusters, chances, confidence, np.array([[-1.0, 1.0], [1.0, 1.0]]))


# Compare one judge with another.


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
        raise RequestError(
            f"two judges are compared, not {len(judges)}: give {wording('--judge twice', 'two')}"
        )
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
    names = [_judge_name(judge) for judge in judges]
    return _compare_judges(
        spec.key, names, [_scores(each, spec.key) for each in made], [each.id for each in made], confidence
    )


def _judge_name(judge: Any) -> str:
    """The judge as it is printed and stored: without its key."""
    if not isinstance(judge, Mapping):
        return str(judge)
    return json.dumps({name: value for name, value in judge.items() if name != "api_key"})


def compare_evaluators(
    evaluation: Evaluation, first: str | None, second: str, *, confidence: float = 0.95
) -> JudgeComparison:
    """Compare a judge with another evaluator of the same evaluation, such as an exact match, without judging again."""
    keys = [judged_key(evaluation, first).key, judged_key(evaluation, second).key]
    tables = [_scores(evaluation, key) for key in keys]
    return _compare_judges(keys[0], keys, tables, [evaluation.id], confidence)


def _scores(evaluation: Evaluation, key: str) -> dict[LabelledItem, float | None]:
    return {
        LabelledItem(r.runs[0], r.example, r.attempt, r.unit): r.score
        for _, r in results_of(evaluation)
        if r.key == key
    }


def _compare_judges(
    key: str,
    names: list[str],
    tables: Sequence[Mapping[LabelledItem, float | None]],
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
        kappa=over_examples(cohen_kappa(*verdicts, clusters=clusters, confidence=confidence)),
        agreement=over_examples(percent_agreement(*verdicts, clusters, confidence)),
        difference=over_examples(
            mean_interval(
                [x - y for x, y in zip(a, b, strict=True)],
                clusters,
                confidence=confidence,
                bounds=(-1.0, 1.0),
            )
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


# Calibration of a judge: people's labels over the judge's scores of the same outputs.

BINS = 5
"""Ranges of scores, where a judge gives more different scores than that."""
MOST_SCORES = 5
"""Different scores that each have a point of their own."""


class CalibrationBin(msgspec.Struct, frozen=True):
    """Items with the same or similar judge scores."""

    score: float
    """The mean of the judge's scores."""
    people: Estimate
    """The share of the items that people pass."""


class Calibration(msgspec.Struct, frozen=True):
    """One judge against people's labels on the same outputs."""

    evaluator: str
    evaluation: str
    bins: list[CalibrationBin]
    n: int
    annotators: list[str] = []


def calibrations(evaluation: Evaluation, confidence: float = 0.95) -> list[Calibration]:
    """Return the calibration of each evaluator of an evaluation with human labels; empty without labels."""
    labels = [label for label in labels_on([evaluation]) if label.score is not None]
    wanted = {spec.key for spec in evaluation.header.evaluators if spec.kind == "single"}
    keys = [key for key in dict.fromkeys(label.evaluator for label in labels) if key in wanted]
    if not keys:
        return []
    scores: dict[tuple[str, LabelledItem], float] = {}
    for _, record in results_of(evaluation):
        if record.key in keys and len(record.runs) == 1 and record.score is not None:
            item = LabelledItem(record.runs[0], record.example, record.attempt, record.unit)
            scores[record.key, item] = record.score
    out = []
    for key in keys:
        labels_by_item: dict[LabelledItem, list[float]] = {}
        for label in labels:
            if label.evaluator == key and label.score is not None:
                labels_by_item.setdefault(label.item, []).append(label.score)
        pairs = [
            (scores[key, item], sum(each) / len(each) >= 0.5, item.example)
            for item, each in labels_by_item.items()
            if (key, item) in scores and 0.0 <= scores[key, item] <= 1.0
        ]
        if pairs:
            people = sorted({label.annotator for label in labels if label.evaluator == key})
            out.append(
                Calibration(key, evaluation.id, _calibration_bins(pairs, confidence), len(pairs), people)
            )
    return out


def _calibration_bins(pairs: Sequence[tuple[float, bool, str]], confidence: float) -> list[CalibrationBin]:
    from karat.stats import proportion

    distinct = sorted({score for score, _, _ in pairs})
    groups: dict[float, list[tuple[float, bool, str]]] = {}
    for pair in pairs:
        own = len(distinct) <= MOST_SCORES
        groups.setdefault(pair[0] if own else min(BINS - 1, int(pair[0] * BINS)), []).append(pair)
    return [
        CalibrationBin(
            sum(score for score, _, _ in group) / len(group),
            over_examples(
                proportion([passed for _, passed, _ in group], [example for *_, example in group], confidence)
            ),
        )
        for _, group in sorted(groups.items())
    ]
