"""Human labels: a person's verdicts, stored as an evaluation whose evaluator is that person.

A label belongs to the same item as the judge's result (run, example, attempt, unit), or to a part of it such as
`claims/3`. A changed label is another try of its item; "cannot tell" is a skip. Only labels that are declared as a
random sample correct a judge's estimate: people correct what looks wrong, and such labels are not a random sample.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from karat.errors import RequestError
from karat.execution.pipeline import environment
from karat.keys import Wanted, fingerprint, result_item
from karat.records import (
    FORMAT,
    HUMAN,
    AggregationHeader,
    Estimate,
    EvaluationHeader,
    EvaluatorSpec,
    ItemResult,
    Ok,
    Result,
    Skipped,
)
from karat.serialization import encode
from karat.stats._means import over_examples
from karat.stats._proportions import with_bounds
from karat.store import Store
from karat.store.backend import NOT_APPLICABLE, OK, StoredRow
from karat.store.columns import cells_of_result
from karat.store.handles import Chunks, Evaluation, check_complete
from karat.store.lease import Held
from karat.store.repositories import latest, result_decoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

Sampling = Literal["uniform", "selected"]
LOOKED_AT = 2000
"""Results that are searched for the first one of each evaluator."""


class LabelledItem(NamedTuple):
    """A labelled output, by its place."""

    run: str
    example: str
    attempt: int = 1
    unit: str = ""


class NewLabel(msgspec.Struct, frozen=True, kw_only=True):
    """A label to be stored."""

    item: LabelledItem
    score: float | None = None
    value: Any = None
    """The label in the person's own word."""
    part: str = ""
    """`claims/3`, `requirements/1`, `nodes/grounded`, `criteria/tone`; empty for the whole output."""
    about: str = ""
    """The claim, requirement or question that the part is."""
    probability: float | None = None
    note: str = ""
    skip: bool = False
    kind: Literal["label", "correction", "confirmation"] = "label"


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """A stored label of an item, with its parts."""

    item: LabelledItem
    evaluator: str
    asked: str
    """What the labelled evaluator asks: see `asked_by`."""
    annotator: str
    sampling: str
    score: float | None
    value: Any
    parts: dict[str, Any]
    about: dict[str, str]
    """What each part is about: claims get new numbers when an output is judged again."""
    probability: float | None
    kind: str
    evaluation: str


def label_key(annotator: str, evaluator: str) -> str:
    """The key of a person's labels for one evaluator."""
    return f"{annotator}/{evaluator}"


_ASKED = (
    "criterion",
    "choices",
    "dag",
    "preset",
    "requirements",
    "question",
    "answer",
    "reference",
    "context",
)


def asked_by(spec: EvaluatorSpec) -> str:
    """A hash of what an evaluator asks: another judge or prompt asks the same, another criterion does not."""
    return fingerprint(name=spec.name, params={name: spec.params.get(name) for name in _ASKED})


def store_labels(
    judged: Evaluation,
    evaluator: str,
    labels: Sequence[NewLabel],
    *,
    annotator: str,
    sampling: Sampling,
    question: str = "",
    options: Sequence[str] = (),
) -> Evaluation:
    """Add one person's labels on the results of one evaluator to their evaluation, which is made if there is none."""
    store = judged.store
    runs = judged.header.runs
    places, known = _places(judged)
    key = label_key(annotator, evaluator)
    params: dict[str, Any] = {"annotator": annotator, "labels": evaluator, "sampling": sampling}
    params["asked"] = next(asked_by(each) for each in judged.header.evaluators if each.key == evaluator)
    if question:
        params["question"] = question
    spec = EvaluatorSpec(
        key, HUMAN, params, fingerprint(name=HUMAN, params=params), "single", False, (0.0, 1.0)
    )
    configuration = fingerprint(human=params, runs=runs)
    header = EvaluationHeader(
        format=FORMAT,
        id="",
        dataset=judged.header.dataset,
        runs=runs,
        evaluators=[spec],
        configuration=configuration,
        labels=[HUMAN],
        metadata={"labels_of": judged.id, **({"options": list(options)} if options else {})},
        environment=environment(),
    )
    evaluation, _, held = store.evaluations.open(
        header, Wanted(configuration, "known", what="evaluation"), runs
    )
    if held is None:
        held = Held.take(store.backend, evaluation.number)
    try:
        rows = list(_rows(evaluation, key, labels, places, known, runs))
        store.backend.append(evaluation.number, rows, held.owner)
        counts = store.evaluations.count(evaluation.number, len(evaluation_items(evaluation)))
        done = msgspec.structs.replace(
            evaluation.header, counts=counts, status="success", finished=time.time(), error=None
        )
        evaluation.header = store.evaluations.save(evaluation.number, done, held)
    finally:
        held.release()
    return evaluation


def evaluation_items(evaluation: Evaluation) -> set[tuple[int, str]]:
    """The items of an evaluation that have a result."""
    backend = evaluation.store.backend
    return {
        (row.position, row.item)
        for row in backend.scan(evaluation.number, 0, backend.extent(evaluation.number))
    }


def _places(judged: Evaluation) -> tuple[dict[str, int], set[LabelledItem]]:
    """The position of every example, and the items that were judged."""
    places: dict[str, int] = {}
    items: set[LabelledItem] = set()
    for position, result in results_of(judged):
        places[result.example] = position
        items.update(LabelledItem(run, result.example, result.attempt, result.unit) for run in result.runs)
    return places, items


def results_of(evaluation: Evaluation) -> Iterator[tuple[int, ItemResult]]:
    """`(position, result)` of the current try of every item, in dataset order."""
    backend = evaluation.store.backend
    chunks, found = Chunks(0, backend.extent(evaluation.number)), 0
    for start, stop in chunks:
        for row in latest(chunks.saw(backend.scan(evaluation.number, start, stop))):
            found += 1
            yield row.position, result_decoder.decode(row.payload)
    check_complete(evaluation, found)


def _rows(
    evaluation: Evaluation,
    key: str,
    labels: Sequence[NewLabel],
    places: Mapping[str, int],
    known: set[LabelledItem],
    runs: Sequence[str],
) -> Iterator[StoredRow]:
    before: dict[LabelledItem, ItemResult] = {
        LabelledItem(r.runs[0], r.example, r.attempt, r.unit): r for _, r in results_of(evaluation)
    }
    grouped: dict[LabelledItem, list[NewLabel]] = {}
    for label in labels:
        if label.item not in known:
            raise RequestError(
                f"example {label.item.example!r} has no result for run {label.item.run}, attempt {label.item.attempt}"
                + (f", unit {label.item.unit!r}" if label.item.unit else "")
            )
        grouped.setdefault(label.item, []).append(label)
    for item, mine in grouped.items():
        old = before.get(item)
        result = _merge_labels(key, old.result if old is not None else None, mine)
        if old is not None and old.result == result:
            continue  # the same label again
        number = 1 if old is None else old.try_number + 1
        skipped = result.score is None and not result.metadata.get("parts")
        outcome: Ok[Result] | Skipped = Skipped("cannot tell", applicable=False) if skipped else Ok(result)
        record = ItemResult(
            format=FORMAT,
            example=item.example,
            key=key,
            runs=(item.run,),
            outcome=outcome,
            unit=item.unit,
            attempt=item.attempt,
            try_number=number,
        )
        place = result_item(0, [runs.index(item.run)], item.attempt, item.unit)
        status = NOT_APPLICABLE if skipped else OK
        cells = cells_of_result(outcome, 0.0, 0.0, None)
        yield StoredRow(places[item.example], place, number, status, None, encode(record), cells)


def _merge_labels(key: str, old: Result | None, labels: Iterable[NewLabel]) -> Result:
    """The label of an item: the previous label, with the new whole label and the new parts."""
    score = old.score if old is not None else None
    value = old.value if old is not None else None
    metadata: dict[str, Any] = dict(old.metadata) if old is not None else {}
    parts, about = dict(metadata.get("parts", {})), dict(metadata.get("about", {}))
    note = old.comment if old is not None else ""
    for label in labels:
        if label.part:
            parts[label.part] = None if label.skip else label.value
            about[label.part] = label.about
        if not label.part or label.score is not None:
            score, value = (None, "cannot tell") if label.skip else (label.score, label.value)
        note = label.note or note
        if label.probability is not None:
            metadata["probability"] = label.probability
        metadata["kind"] = label.kind
    if parts:
        metadata |= {"parts": parts, "about": about}
    return Result(key, score, value, note, metadata)


# ---------------------------------------------------------------- reading


def label_evaluations(store: Store, runs: Iterable[str]) -> list[Evaluation]:
    """The evaluations that hold people's labels on any of these runs."""
    out: dict[str, Evaluation] = {}
    for run in runs:
        for child in store.children(run):
            if child.startswith("eval-") and child not in out:
                out[child] = store.evaluations.get(child)
    return [each for each in out.values() if any(spec.name == HUMAN for spec in each.header.evaluators)]


def labels_in(evaluation: Evaluation) -> Iterator[Label]:
    """The current labels of an evaluation."""
    specs = {spec.key: spec.params for spec in evaluation.header.evaluators if spec.name == HUMAN}
    for _, record in results_of(evaluation):
        result, params = record.result, specs.get(record.key)
        if result is None or params is None:
            continue
        yield Label(
            item=LabelledItem(record.runs[0], record.example, record.attempt, record.unit),
            evaluator=str(params["labels"]),
            asked=str(params["asked"]),
            annotator=str(params["annotator"]),
            sampling=str(params["sampling"]),
            score=result.score,
            value=result.value,
            parts=result.metadata.get("parts", {}),
            about=result.metadata.get("about", {}),
            probability=result.metadata.get("probability"),
            kind=str(result.metadata.get("kind", "label")),
            evaluation=evaluation.id,
        )


def labels_on(evaluations: Sequence[Evaluation], people: Iterable[Evaluation] | None = None) -> list[Label]:
    """The labels on the runs of evaluations that answer what their evaluators ask.

    The same key may stand for another criterion in another evaluation of a run; its labels are left out.
    """
    if people is None:
        runs = dict.fromkeys(run for each in evaluations for run in each.header.runs)
        people = label_evaluations(evaluations[0].store, runs)
    asked = {(spec.key, asked_by(spec)) for each in evaluations for spec in each.header.evaluators}
    return [label for each in people for label in labels_in(each) if (label.evaluator, label.asked) in asked]


def is_sample(label: Label) -> bool:
    """Whether a label belongs to a declared random sample."""
    return label.kind == "label" and (label.sampling == "uniform" or label.probability is not None)


# ---------------------------------------------------------------- corrected estimates


def corrected_estimates(
    evaluations: Sequence[Evaluation],
    people: Sequence[Evaluation],
    confidence: float,
    raw: Sequence[Estimate] = (),
) -> list[Estimate]:
    """PPI++ for each evaluator and run that a random sample of labels exists for; borrowed labels are named.

    `raw` are the estimates without labels, which know how many items a run has.
    """
    labels = [
        label for label in labels_on(evaluations, people) if label.score is not None and is_sample(label)
    ]
    if not labels:
        return []
    scores: dict[tuple[str, str], dict[LabelledItem, float]] = {}
    sizes: Counter[tuple[str, str]] = Counter()
    for evaluation in evaluations:
        singles = {
            spec.key for spec in evaluation.header.evaluators if spec.kind == "single" and spec.name != HUMAN
        }
        for _, record in results_of(evaluation):
            if record.key not in singles:
                continue
            place = record.key, record.runs[0]
            if not isinstance(record.outcome, Skipped) or record.outcome.applicable:
                sizes[place] += 1
            if record.score is not None:
                item = LabelledItem(record.runs[0], record.example, record.attempt, record.unit)
                scores.setdefault(place, {})[item] = record.score
    for each in raw:
        if each.aggregator in ("accuracy", "mean") and each.group is None and each.run is not None:
            sizes[each.evaluator, each.run] = max(sizes[each.evaluator, each.run], each.of)
    out = []
    for (key, run), judged in scores.items():
        mine = [label for label in labels if label.evaluator == key and label.item in judged]
        others = [label for label in labels if label.evaluator == key and label.item.run != run]
        if mine:
            found = _ppi(key, run, judged, mine, confidence)
        elif others:
            found = _from_other_runs(key, run, judged, others, scores, confidence)
        else:
            continue
        of = max(sizes[key, run], len(judged))
        if found.value is not None and of > len(judged):
            low, high = found.metadata.get("bounds", (0.0, 1.0))
            found = with_bounds(msgspec.structs.replace(found, n=len(judged)), of, low, high)
        out.append(found)
    return out


def _ppi(
    key: str, run: str, judged: Mapping[LabelledItem, float], labels: Sequence[Label], confidence: float
) -> Estimate:
    """Correct the mean of the judge's scores by labels of this run.

    The mean is that of all judged outputs, as in the raw estimate: an example with several attempts or units counts
    as often as it has them. Its outputs form a cluster. Several people's labels on one output are averaged.
    """
    from karat.stats import ppi

    used, left_out = one_design(labels)
    given: dict[LabelledItem, list[Label]] = {}
    for label in used:
        given.setdefault(label.item, []).append(label)
    truth = [sum(label.score or 0.0 for label in each) / len(each) for each in given.values()]
    rest = [item for item in judged if item not in given]
    shares = [max(label.probability or 0.0 for label in each) for each in given.values()]
    raw = sum(judged.values()) / len(judged)
    unit = all(0.0 <= value <= 1.0 for value in (*truth, *judged.values()))
    clustered = len({item.example for item in judged}) < len(judged)
    estimate = ppi(
        truth,
        [judged[item] for item in given],
        [judged[item] for item in rest],
        clusters=[item.example for item in given] if clustered else None,
        judged_clusters=[item.example for item in rest] if clustered else None,
        probabilities=shares if len(set(shares)) > 1 else None,
        bounds=(0.0, 1.0) if unit else None,
        confidence=confidence,
    )
    note = f"{len(truth)} sampled {'label' if len(truth) == 1 else 'labels'}; raw {raw:.3f}"
    if left_out:
        note += f"; {left_out} of another sampling design not used"
    if not unit:
        values = [*truth, *judged.values()]
        estimate.metadata["bounds"] = (min(values), max(values))
    about = {"raw": raw, "labels_from": sorted({label.evaluation for label in used}), "note": note}
    estimate = msgspec.structs.replace(estimate, metadata={**estimate.metadata, **about})
    return estimate.about(evaluator=key, aggregator="corrected", run=run)


def one_design(labels: Sequence[Label]) -> tuple[list[Label], int]:
    """Labels drawn in one way, and the number of others: a uniform sample and one with probabilities do not mix."""
    drawn = [label for label in labels if label.probability is not None]
    uniform = [label for label in labels if label.probability is None]
    used, other = (drawn, uniform) if len(drawn) >= len(uniform) else (uniform, drawn)
    known = {label.item for label in used}
    return used, len({label.item for label in other} - known)


def _from_other_runs(
    key: str,
    run: str,
    judged: Mapping[LabelledItem, float],
    labels: Sequence[Label],
    scores: Mapping[tuple[str, str], Mapping[LabelledItem, float]],
    confidence: float,
) -> Estimate:
    """Rogan–Gladen with sensitivity and specificity from other runs' labels, which are named."""
    used, _ = one_design(labels)
    pairs = [
        (found[label.item] >= 0.5, (label.score or 0.0) >= 0.5, label.item.example, label.probability or 1.0)
        for label in used
        if (found := scores.get((key, label.item.run), {})) and label.item in found
    ]
    passed = [(score >= 0.5, item.example) for item, score in judged.items()]
    estimate = rogan_gladen(
        [pair[:3] for pair in pairs],
        [each for each, _ in passed],
        confidence,
        clusters=[example for _, example in passed],
        probabilities=[pair[3] for pair in pairs],
    )
    runs = sorted({label.item.run for label in used})
    raw = sum(each for each, _ in passed) / len(passed)
    note = estimate.metadata.get("reason") or f"labels borrowed from {', '.join(runs)}; raw {raw:.3f}"
    about = {"borrowed_from": runs, "raw": raw, "note": note}
    estimate = msgspec.structs.replace(estimate, metadata={**estimate.metadata, **about})
    return estimate.about(evaluator=key, aggregator="corrected", run=run)


def rogan_gladen(
    pairs: Sequence[tuple[bool, bool, str]],
    judged: Sequence[bool],
    confidence: float = 0.95,
    *,
    clusters: Sequence[str] | None = None,
    probabilities: Sequence[float] | None = None,
) -> Estimate:
    """The share of true passes from the judge's share and its sensitivity and specificity (Rogan & Gladen 1978).

    `pairs` are (judge, person, example), `clusters` the examples of the `judged` outputs, `probabilities` the inclusion
    probabilities of the pairs. It is refused where the lower limit of sensitivity + specificity − 1 is not above 0:
    the judge's verdicts then say nothing about people's.
    """
    from karat.stats._distributions import critical

    n = len(judged)
    examples = list(range(n)) if clusters is None else list(clusters)
    chances = [1.0] * len(pairs) if probabilities is None else list(probabilities)
    hits = [(judge, e, p) for (judge, person, e), p in zip(pairs, chances, strict=True) if person]
    rejects = [(not judge, e, p) for (judge, person, e), p in zip(pairs, chances, strict=True) if not person]
    method = "rogan-gladen"
    if not hits or not rejects or not n:
        reason = {"reason": "labels of both kinds, pass and fail, are needed"}
        return Estimate(None, n=0, of=n, method=method, confidence=confidence, metadata=reason)
    sensitivity, specificity = (
        sampled_share(
            [value for value, _, _ in each], [e for _, e, _ in each], [p for *_, p in each], confidence
        )
        for each in (hits, rejects)
    )
    # A sum of two independent limits is wider than needed and never too narrow.
    low = (sensitivity.low or 0.0) + (specificity.low or 0.0) - 1.0
    about: dict[str, Any] = {
        "sensitivity": sensitivity.value,
        "specificity": specificity.value,
        "labels": len(pairs),
        "lower_limit_of_j": low,
    }
    if low <= 0.0:
        about["reason"] = "refused: the lower limit of sensitivity + specificity - 1 is not above 0"
        return Estimate(None, n=0, of=n, method=method, confidence=confidence, metadata=about)
    share = sum(judged) / n
    parts = [
        _ErrorParts([(float(value), e, 1.0) for value, e in zip(judged, examples, strict=True)]),
        _ErrorParts([(float(value), e, 1.0 / p) for value, e, p in hits]),
        _ErrorParts([(float(value), e, 1.0 / p) for value, e, p in rejects]),
    ]
    se, sp = parts[1].mean, parts[2].mean
    value = min(1.0, max(0.0, (share + sp - 1.0) / (se + sp - 1.0)))
    # The delta method over three shares (Lang & Reiczigel 2014 adjust the counts as here).
    share_, se_, sp_ = parts[0].adjusted(2), parts[1].adjusted(1), parts[2].adjusted(1)
    j = se_ + sp_ - 1.0
    if j <= 0:
        about["reason"] = "refused: too few labels"
        return Estimate(None, n=0, of=n, method=method, confidence=confidence, metadata=about)
    p_ = min(1.0, max(0.0, (share_ + sp_ - 1.0) / j))
    slopes = (1.0, -p_, 1.0 - p_)
    variance = sum(
        slope**2 * at * (1.0 - at) / (part.effective + more)
        for slope, at, part, more in zip(slopes, (share_, se_, sp_), parts, (4, 2, 2), strict=True)
    )
    # Outputs of one example are alike, in the run and among the labels: how much that widens the errors seen.
    variance *= _cluster_inflation(slopes, parts) / j**2
    half = critical(confidence) * math.sqrt(variance)
    limits = max(0.0, p_ - half), min(1.0, p_ + half)
    return Estimate(
        value, min(limits[0], value), max(limits[1], value), n, n, method, confidence, metadata=about
    )


class _ErrorParts:
    """A weighted share, and each cluster's part in its error."""

    def __init__(self, values: Sequence[tuple[float, Hashable, float]]) -> None:
        self.weight = math.fsum(weight for *_, weight in values)
        self.mean = math.fsum(value * weight for value, _, weight in values) / self.weight
        self.effective = self.weight**2 / math.fsum(weight**2 for *_, weight in values)
        self.singles = [(value - self.mean) * weight / self.weight for value, _, weight in values]
        self.by_cluster: dict[Hashable, float] = {}
        for (_, name, _), part in zip(values, self.singles, strict=True):
            self.by_cluster[name] = self.by_cluster.get(name, 0.0) + part

    def adjusted(self, more: int) -> float:
        """The share with `more` successes and as many failures added."""
        return (self.mean * self.effective + more) / (self.effective + 2 * more)


def _cluster_inflation(slopes: Sequence[float], parts: Sequence[_ErrorParts]) -> float:
    """The variance with clusters over the one without, at least 1."""
    together: dict[Hashable, float] = {}
    for slope, part in zip(slopes, parts, strict=True):
        for name, each in part.by_cluster.items():
            together[name] = together.get(name, 0.0) + slope * each
    clustered = math.fsum(each * each for each in together.values())
    alone = math.fsum(
        (slope * each) ** 2 for slope, p in zip(slopes, parts, strict=True) for each in p.singles
    )
    g = len(together)
    return max(1.0, clustered / alone * g / (g - 1)) if alone > 0.0 and g > 1 else 1.0


def sampled_share(
    values: Sequence[bool], clusters: Sequence[str], probabilities: Sequence[float], confidence: float
) -> Estimate:
    """The share of true values in a sample with inclusion probabilities, clustered by example."""
    from karat.stats import proportion

    if len(set(probabilities)) <= 1:
        return over_examples(proportion(values, clusters, confidence))
    import numpy as np

    numbers = np.array(values, dtype=np.float64)
    rows = np.stack([numbers, np.ones(len(numbers))], axis=1)
    return sampled_ratio(rows, clusters, probabilities, confidence, np.array([[0.0, 1.0], [1.0, 1.0]]))


def sampled_ratio(
    rows: NDArray[Any],
    clusters: Sequence[str],
    probabilities: Sequence[float],
    confidence: float,
    extremes: NDArray[Any],
) -> Estimate:
    """The ratio of two weighted sums; `rows` has both terms of each item."""
    from karat.stats._prediction_powered import WeightedSample

    def ratio(sums: NDArray[Any]) -> NDArray[Any]:
        import numpy as np

        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(sums[:, 1] > 0.0, sums[:, 0] / sums[:, 1], np.nan)

    return WeightedSample(probabilities, clusters).estimate(rows, ratio, extremes, confidence)


# ---------------------------------------------------------------- audits beside scores


def latest_audit(store: Store, models: Sequence[str]) -> AggregationHeader | None:
    """The header of the latest audit of a judge, by the names of its models."""
    return _latest(store, "audit", judge=list(models))


def latest_alignment(store: Store, evaluator: str, models: Sequence[str]) -> AggregationHeader | None:
    """The header of the latest alignment of an evaluator's judge with people, by the names of its models."""
    return _latest(store, "alignment", evaluator=evaluator, judge=list(models))


def _latest(store: Store, made_by: str, **settings: Any) -> AggregationHeader | None:
    found = None
    for each in store.aggregations.list():
        header = each.header
        if header.made_by == made_by and all(header.settings.get(k) == v for k, v in settings.items()):
            found = header
    return found


def with_audits(evaluations: Sequence[Evaluation], estimates: Sequence[Estimate]) -> list[Estimate]:
    """The estimates of judges with a note on the latest audit and alignment of the same judge."""
    notes = {
        key: _trust_note(evaluations[0].store, key, models, served)
        for key, (models, served) in judges_of(evaluations).items()
    }
    if not notes:
        return list(estimates)
    out = []
    for each in estimates:
        note = notes.get(each.evaluator)
        if note is None or each.group is not None:
            out.append(each)
            continue
        before = str(each.metadata.get("note", ""))
        text = "; ".join(filter(None, [before, note[0]]))
        out.append(msgspec.structs.replace(each, metadata={**each.metadata, "note": text, **note[1]}))
    return out


def judges_of(evaluations: Sequence[Evaluation]) -> dict[str, tuple[list[str], list[str]]]:
    """The evaluators that ask a judge, by their first results: the models they asked, and those that were served."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for evaluation in evaluations:
        if not evaluation.header.usage and not evaluation.header.counts.reused:
            continue  # no model was asked, now or for a result that was copied
        open_ = {spec.key for spec in evaluation.header.evaluators if spec.kind == "single"} - found.keys()
        for _, record in islice(results_of(evaluation), LOOKED_AT):
            if record.key in open_ and record.result is not None:
                open_.discard(record.key)
                recorded = record.result.metadata
                if {"model", "served_model", "prompt", "requests"} <= recorded.keys():
                    found[record.key] = _as_list(recorded["model"]), _as_list(recorded["served_model"])
            if not open_:
                break
    return found


def _as_list(value: Any) -> list[str]:
    return [str(each) for each in (value if isinstance(value, list) else [value]) if each]


def _trust_note(
    store: Store, key: str, models: Sequence[str], served: Sequence[str]
) -> tuple[str, dict[str, str | None]]:
    """Describe how a judge was validated: a note, and the ids of its audit and alignment."""
    text, audit = _audit_note(store, models, served)
    header = latest_alignment(store, key, models)
    if header is None:
        return text, {"audit": audit}
    kappa = next((each for each in header.estimates if each.name == "kappa" and each.group is None), None)
    measured = (
        f"kappa {kappa.value:.2f} with people ({kappa.n} labels)"
        if kappa is not None and kappa.value is not None
        else "no agreement with people measured"
    )
    word = "stale alignment (another model is served now): " if is_stale(header, served) else ""
    return f"{text}; {word}{measured}", {"audit": audit, "alignment": header.id}


def is_stale(header: AggregationHeader, served: Sequence[str]) -> bool:
    """Whether an audit or alignment was made while the provider served another model under the same name."""
    return bool(served) and set(header.settings.get("served_models") or ()) != set(served)


def _audit_note(store: Store, models: Sequence[str], served: Sequence[str]) -> tuple[str, str | None]:
    header = latest_audit(store, models)
    if header is None:
        return "judge not audited", None
    numbers = {each.name: each.value for each in header.estimates if each.group is None}
    stale = is_stale(header, served)
    shares = ", ".join(
        f"{label} {numbers[name]:.3f}"
        for label, name in (
            ("false accepts", "false_accept"),
            ("false rejects", "false_reject"),
            ("attacks", "attack_success"),
        )
        if numbers.get(name) is not None
    )
    word = (
        "stale audit (another model is served now)" if stale else f"audited: {header.settings.get('verdict')}"
    )
    return f"{word}, {shares}", header.id
