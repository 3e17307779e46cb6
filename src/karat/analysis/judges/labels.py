"""Labels of people: imported from a file, given as the correction of one verdict, or asked for on a sheet."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from karat.analysis.judges.parts import (
    check_corrected,
    find_result,
    judged_key,
    part_texts,
    rubric_of,
    verdict_passes,
    where_failed,
)
from karat.datasets.readers.rows import BadRow, RowSource
from karat.datasets.writers import unguarded
from karat.errors import (
    ConfigError,
    DataError,
    RequestError,
    did_you_mean,
    option,
    unknown_metadata,
    wording,
)
from karat.evaluators._base import build_evaluator
from karat.evaluators.judges._core import choice_name
from karat.execution.labels import (
    LabelledItem,
    NewLabel,
    Sampling,
    labels_on,
    results_of,
    store_labels,
)
from karat.paths import MISSING, find
from karat.records import (
    EvaluatorSpec,
    ItemResult,
    Ok,
)
from karat.store.handles import Evaluation
from karat.store.rows import Row

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
SHEET_COLUMNS = ("id", "input", "output", "expected")
"""What a person sees beside the label."""
PASS = frozenset({"pass", "passed", "yes", "true", "correct", "right", "good", "1", "supported", "satisfied"})
FAIL = frozenset(
    {"fail", "failed", "no", "false", "incorrect", "wrong", "bad", "0", "unsupported", "not satisfied"}
)
SKIP = frozenset(
    {"", "cannot tell", "can't tell", "skip", "unsure", "n/a", "na", "?", "don't know", "unclear"}
)
MOST_PROBLEMS = 20
LONGEST_NAME = 1000
ANNOTATOR = "person"


# Import labels from a file.


def import_labels(
    path: str | Path,
    evaluation: Evaluation,
    *,
    annotator: str | None = None,
    sampling: Sampling = "selected",
    evaluator: str | None = None,
    scale: tuple[float, float] | None = None,
    question: str = "",
    notify: Callable[[str], None] | None = None,
) -> list[Evaluation]:
    """Store the labels of a JSONL or CSV file: one evaluation for each annotator and evaluator.

    Everything is checked before the first label is stored: a file with one wrong line stores nothing. `notify` is
    called with the columns that are not read.
    """
    ignored: dict[str, None] = {}
    problems: list[str] = []
    reader = _LabelReader(evaluation, evaluator, scale)
    grouped: dict[tuple[str, str], list[NewLabel]] = {}
    words: dict[tuple[str, str], dict[str, None]] = {}
    seen: dict[tuple[str, str, LabelledItem, str], tuple[int, NewLabel]] = {}
    for number, row in _read_rows(Path(path), ignored):
        try:
            key, label = reader.read(row)
            who = _text(row, "annotator") or annotator or ANNOTATOR
            place = who, key, label.item, label.part
            line, earlier = seen.setdefault(place, (number, label))
            if earlier != label:
                raise ValueError(f"another label for the same output is in line {line}: keep one of them")
        except (RequestError, ValueError) as error:
            problems.append(f"line {number}: {error}")
            continue
        if line != number:
            continue  # the same label twice
        grouped.setdefault((who, key), []).append(label)
        words.setdefault((who, key), {})[str(label.value)] = None
    if problems:
        more = len(problems) - MOST_PROBLEMS
        problems = [*problems[:MOST_PROBLEMS], *([f"… and {more} more"] if more > 0 else [])]
        raise ConfigError(problems, str(path))
    if not grouped:
        raise DataError(f"{path} has no labels")
    if sampling == "uniform" and len({label.probability for each in grouped.values() for label in each}) > 1:
        raise RequestError(
            f"{path}: probabilities differ, so the sample is not uniform: leave out"
            f" {option('sampling', 'uniform')}, or the column"
        )
    if notify is not None and ignored:
        notify(f"{path}: columns that are not read: {_listed_columns(ignored)}")
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


def _listed_columns(names: Iterable[str]) -> str:
    shown = [repr(name[:80]) for name in islice(names, MOST_PROBLEMS + 1)]
    return ", ".join([*shown[:MOST_PROBLEMS], *(["…"] if len(shown) > MOST_PROBLEMS else [])])


def _misspelt(name: str, given: Collection[str]) -> str | None:
    """The column that a name looks like, among those that a row does not have."""
    from rapidfuzz.distance import OSA

    known = [each for each in COLUMNS if each not in given]
    if "label" in given or "score" in given:  # a row has one of them
        known = [each for each in known if each not in ("label", "score")]
    plain = name.strip().lower()
    distances = {each: OSA.distance(plain, each) for each in known}
    near = min(distances, key=lambda each: distances[each], default=None)
    return near if near is not None and distances[near] <= (2 if len(near) >= 7 else 1) else None


def _read_rows(path: Path, ignored: dict[str, None]) -> Iterable[tuple[int, dict[str, Any]]]:
    """The rows of a file with their lines; an empty cell of a CSV file is a column that was not given.

    What `karat export` writes can be labelled: `id` is the example there. Columns that are no label's are put into
    `ignored`, unless they look like a misspelt one.
    """
    source = RowSource(path)
    if source.format not in ("csv", "tsv", "jsonl"):
        raise DataError(f"{path} is a {source.format} file: labels are read from JSONL or CSV")
    for number, row in source.read():
        if isinstance(row, BadRow):
            raise DataError(row.sentence(str(path)))
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number}: a label is an object, not {type(row).__name__}")
        if "example" not in row and "id" in row:
            row["example"] = row.pop("id")
        for name in [name for name in row if name not in COLUMNS]:
            near = _misspelt(name, row) if name not in SHEET_COLUMNS else None
            if near is not None:
                raise DataError(
                    f"{path}: line {number}: unknown column {name[:80]!r}: did you mean {near!r}?"
                )
            if name not in SHEET_COLUMNS and len(ignored) <= MOST_PROBLEMS:
                ignored[name] = None
            del row[name]
        if source.format != "jsonl":
            row = {name: value for name, value in row.items() if value != ""}
        yield number, row


def _text(row: Mapping[str, Any], name: str) -> str:
    """A field as text; numbers are written out, and anything else is refused."""
    value = row.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{name} must be text, not {type(value).__name__}")
    text = str(value).strip() if name != "note" else str(value)
    if name != "note" and (len(text) > LONGEST_NAME or not text.isprintable()):
        raise ValueError(f"{name} must be printable text of at most {LONGEST_NAME} characters")
    return text


class _LabelReader:
    """A reader of the rows of a label file, checked against the results of an evaluation."""

    def __init__(
        self, evaluation: Evaluation, evaluator: str | None, scale: tuple[float, float] | None
    ) -> None:
        self.evaluation, self.default, self.scale = evaluation, evaluator, scale
        self.runs = evaluation.header.runs
        self.keys = [spec.key for spec in evaluation.header.evaluators]
        self.rubrics = {spec.key: rubric_of(spec) for spec in evaluation.header.evaluators}
        self.results: dict[tuple[str, LabelledItem], Mapping[str, Any]] = {}
        self.named: dict[str, tuple[str, str]] = {}
        """The names of nodes and criteria → the key of their evaluator, and the address of the part."""
        for key, rubric in self.rubrics.items():
            for node in rubric.nodes if rubric is not None else ():
                self.named.setdefault(node, (key, f"nodes/{node}"))
        for _, record in results_of(evaluation):
            if len(record.runs) != 1:
                continue
            metadata = record.result.metadata if record.result is not None else {}
            self.results[
                record.key, LabelledItem(record.runs[0], record.example, record.attempt, record.unit)
            ] = metadata
            for name in metadata.get("criteria") or ():
                self.named.setdefault(str(name), (record.key, f"criteria/{name}"))

    def read(self, row: Mapping[str, Any]) -> tuple[str, NewLabel]:
        """The key of the evaluator, and the label; ValueError or RequestError with the problem."""
        example = _text(row, "example")
        if not example:
            raise ValueError("there is no example: name its column example or id")
        if ("label" in row) == ("score" in row):
            given = "both label and score are given" if "label" in row else "there is no label"
            raise ValueError(f"{given}: give either label or score; write cannot tell for a label left open")
        part, named = _text(row, "part"), _text(row, "evaluator") or self.default
        if named is not None and named in self.named and named not in self.keys:
            named, address = self.named[named]
            part = part or address
        spec = judged_key(self.evaluation, named)
        if part and "/" not in part and part in self.named and self.named[part][0] == spec.key:
            part = self.named[part][1]
        item = LabelledItem(
            self._run(_text(row, "run")),
            example,
            _check_integer(row.get("attempt", 1), "attempt"),
            _text(row, "unit"),
        )
        if (spec.key, item) not in self.results:
            # A CSV file that karat wrote has an apostrophe before what looks like a formula.
            plain = item._replace(example=unguarded(item.example), unit=unguarded(item.unit))
            item = plain if (spec.key, plain) in self.results else item
        metadata = self.results.get((spec.key, item))
        if metadata is None:
            where = f", unit {item.unit!r}" if item.unit else ""
            raise ValueError(
                f"example {example[:80]!r} has no result of {spec.key!r} for run {item.run}, attempt"
                f" {item.attempt}{where}"
            )
        texts = part_texts(metadata)
        if part:
            self._check_part(part, spec.key, texts)
        score, value, skip = _value(row, self.scale)
        if part and not skip:
            score, value = None, self._part_value(part, spec.key, score, value)
        elif not skip and score is None:
            raise ValueError(
                f"{str(value)[:40]!r} is not a label: write pass or fail, a score, or cannot tell"
            )
        return spec.key, NewLabel(
            item=item,
            score=score,
            value=value,
            part=part,
            about=texts.get(part, ""),
            probability=_probability(row.get("probability")),
            note=_text(row, "note"),
            skip=skip,
        )

    def _run(self, given: str) -> str:
        matching = [each for each in self.runs if each.startswith(given)]
        if len(matching) == 1:
            return matching[0]
        if not given:
            raise ValueError(f"the evaluation has {len(self.runs)} runs: select one with run")
        raise ValueError(
            f"{given[:80]!r} is not a run of {self.evaluation.id}: {did_you_mean(given, self.runs)}"
        )

    def _check_part(self, part: str, key: str, texts: Mapping[str, str]) -> None:
        if part in texts:
            return
        kind, _, name = part.partition("/")
        rubric = self.rubrics.get(key)
        if kind == "nodes" and rubric is not None and name in rubric.nodes:
            return  # a node that the judge did not come to
        known = list(texts) or ["none"]
        shown = ", ".join(known[:6]) + (", …" if len(known) > 6 else "")
        raise ValueError(f"there is no part {part[:80]!r} in this result: its parts are {shown}")

    def _part_value(self, part: str, key: str, score: float | None, value: Any) -> Any:
        """The label of a part: true or false, a choice of a node, or a score from 0 to 1."""
        kind, _, name = part.partition("/")
        rubric = self.rubrics.get(key)
        if kind == "nodes" and rubric is not None:
            choices = {choice.casefold(): choice for choice in rubric.nodes[name].choices}
            labelled = choice_name("label", value) if isinstance(value, bool) else str(value)
            if labelled.casefold() in choices:
                return choices[labelled.casefold()]
            if not isinstance(value, float):
                hint = did_you_mean(labelled, rubric.nodes[name].choices)
                raise ValueError(f"{labelled[:40]!r} is not a choice of {name!r}: {hint}")
            return value
        if score is None:
            raise ValueError(f"{str(value)[:40]!r} is not a label of {part}: write true or false, or a score")
        return bool(score) if score in (0.0, 1.0) else score


def _probability(value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        number = math.nan
    if not 0 < number <= 1:
        raise ValueError(f"probability must be a number above 0 and at most 1, not {str(value)[:40]!r}")
    return number


def _check_integer(value: Any, name: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise ValueError(f"{name} must be a whole number, not {str(value)[:40]!r}") from None
    if not 1 <= number < 1 << 31:
        raise ValueError(f"{name} must be 1 or more")
    return number


def _value(row: Mapping[str, Any], scale: tuple[float, float] | None) -> tuple[float | None, Any, bool]:
    """Return score, label and whether the person could not decide; a word that is no label has no score."""
    given = row["label"] if "label" in row else row["score"]
    if isinstance(given, bool):
        return float(given), given, False
    if not isinstance(given, (str, int, float, type(None))):
        raise ValueError(f"a label is a word or a number, not {type(given).__name__}")
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
        if "score" in row:
            raise ValueError(f"{text[:40]!r} is not a score") from None
        return None, text, False
    low, high = scale or (0.0, 1.0)
    if not math.isfinite(number) or not low <= number <= high:
        scaled = wording("--scale LOW:HIGH", "scale=(LOW, HIGH)")
        raise ValueError(f"the score {text[:20]} is outside {low:g} to {high:g}: give {scaled}")
    score = (number - low) / (high - low)
    return score, score, False


# Correct one verdict, or one part of it.


class Correction(msgspec.Struct, frozen=True):
    """A person's verdict on a part of a judge's result, and the score before and after it."""

    evaluation: str
    kind: str
    """`correction`, or `confirmation` if the label equals the judge's verdict."""
    part: str
    judged: Any
    """The verdict of the judge."""
    corrected: Any
    """The verdict of the person."""
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
    """Store a person's verdicts on parts of a judge's result beside it, with the score that follows from them.

    Earlier corrections of the same result by the same person stay.
    """
    spec = judged_key(evaluation, evaluator)
    check_corrected(evaluation, spec)
    record = find_result(evaluation, spec.key, example, run=run, attempt=attempt, unit=unit)
    if not isinstance(record.outcome, Ok):
        raise RequestError(
            f"the result of {spec.key!r} for example {example!r} is {record.outcome.status}: nothing to correct"
        )
    result = record.outcome.value
    item = LabelledItem(record.runs[0], record.example, record.attempt, record.unit)
    texts = part_texts(result.metadata)
    earlier = _earlier_parts(evaluation, item, spec.key, annotator, texts)
    changes: list[tuple[str, Any, Any]] = []
    score: float | None = result.score
    if claims:
        score = _with_parts(result.metadata, "claims", "supported", claims, earlier, changes)
    if requirements:
        score = _with_parts(result.metadata, "verdicts", "satisfied", requirements, earlier, changes)
    if nodes:
        score = _with_nodes(evaluation, spec, record, nodes, earlier, changes)
    if verdict is not None:
        changes.append(("", verdict_passes(result.metadata.get("verdict"), result.score), verdict))
        score = float(verdict)
    if not changes:
        raise RequestError(
            "nothing to correct: give "
            + wording(
                "--verdict pass|fail, --claim N=true|false, --requirement N=true|false or --node NAME=CHOICE",
                "verdict=, claims=, requirements= or nodes=",
            )
        )
    labels = [
        NewLabel(
            item=item,
            score=score if place == len(changes) - 1 else None,
            value=labelled,
            part=part,
            about=texts.get(part, ""),
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


def _earlier_parts(
    evaluation: Evaluation, item: LabelledItem, key: str, annotator: str, texts: Mapping[str, str]
) -> dict[str, Any]:
    """Earlier labels of the same person on parts of this result."""
    for label in labels_on([evaluation]):
        same = (label.item, label.evaluator, label.annotator) == (item, key, annotator)
        if same and label.sampling == "selected":
            return {
                part: value
                for part, value in label.parts.items()
                if part not in texts or label.about.get(part, "") == texts[part]
            }
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
    """The score with some parts decided by a person; earlier corrections of the same person stay."""
    from karat.evaluators.judges.rag import claims_score

    listed = metadata.get(field)
    what = _PART[field]
    if not isinstance(listed, list) or not listed or name not in listed[0]:
        raise RequestError(f"this result has no {what}")
    parts = [dict(part) for part in listed]
    for number, part in enumerate(parts, 1):
        if isinstance(earlier.get(f"{what}/{number}"), bool):
            part[name] = earlier[f"{what}/{number}"]
    for number, value in given.items():
        if not 1 <= number <= len(parts):
            raise RequestError(f"there is no {what[:-1]} {number}: they are numbered 1 to {len(parts)}")
        changes.append((f"{what}/{number}", listed[number - 1].get(name), value))
        parts[number - 1][name] = value
    if field == "claims":
        return claims_score(parts, metadata.get("reference_claims"))
    if any(part[name] is None for part in parts):
        return None
    return sum(bool(part[name]) for part in parts) / len(parts)


def _with_nodes(
    evaluation: Evaluation,
    spec: EvaluatorSpec,
    record: ItemResult,
    given: Mapping[str, str],
    earlier: Mapping[str, Any],
    changes: list[tuple[str, Any, Any]],
) -> float | None:
    """The score when a person decides nodes: the judge is asked only about nodes that no person has decided."""
    from karat.evaluators.judges._base import Case
    from karat.evaluators.judges.rubric import RubricDagEvaluator
    from karat.paths import MISSING
    from karat.sync import run_plain

    result = record.result
    path = result.metadata.get("path") if result is not None else None
    if not path:
        raise RequestError("this result has no path through a rubric")
    built = build_evaluator(spec.name, spec.params, spec.key)
    if not isinstance(built, RubricDagEvaluator):
        raise RequestError(f"{spec.key!r} is not a rubric")
    run = evaluation.store.runs.get(record.runs[0])
    output = next(
        o
        for o in run.outputs()
        if (o.example, o.attempt, o.unit) == (record.example, record.attempt, record.unit)
    )
    found = next(each for each in evaluation.dataset if each.id == record.example)
    case = Case(output.value, found.expected, found.input, MISSING, found, output)
    before = {
        part.removeprefix("nodes/"): str(value)
        for part, value in earlier.items()
        if part.startswith("nodes/") and isinstance(value, str)
    }
    corrected = run_plain(built.corrected(case, path, given, before))
    judged = {step["node"]: step.get("choice") for step in path}
    for step in corrected.metadata["path"]:
        if step["node"] in given:
            changes.append((f"nodes/{step['node']}", judged.get(step["node"]), step["choice"]))
    return corrected.score


# Sheets for people: a random sample of judged outputs, without the judge's verdicts, to label and import.

SAMPLE_COLUMNS = (
    "example",
    "run",
    "attempt",
    "unit",
    "evaluator",
    "input",
    "output",
    "expected",
    "label",
    "note",
    "probability",
)
"""What `import_labels` reads, and what a person has to see."""


def sample_sheet(
    evaluation: Evaluation,
    *,
    n: int = 50,
    evaluator: str | None = None,
    by: str | None = None,
    seed: int = 0,
) -> tuple[list[dict[str, Any]], int]:
    """Draw outputs that a judge has judged, in random order; return the rows of the sheet and how many were judged.

    Each row has its inclusion probability, which is the same for all. With `by` (a metadata field, or `run`) each value
    has the same number of rows, as far as it has so many outputs, and the probabilities differ. The judge's verdicts
    play no part: neither in the rows nor, through the probabilities, in the drawing.
    """
    key = judged_key(evaluation, evaluator).key
    strata: dict[str, list[tuple[str, str, int, str]]] = {}
    fields: set[str] = set()
    for row in evaluation.rows():
        if not row.others and row.results[key].status == "ok":
            fields.update(row.metadata)
            strata.setdefault(_stratum(row, by), []).append((row.run, row.id, row.attempt, row.unit))
    if not strata:
        raise RequestError(
            f"{evaluation.id} has no results of {key!r} to sample: see {where_failed(evaluation)}"
        )
    if by is not None and strata.keys() == {_NONE}:
        raise RequestError(unknown_metadata(by, {"run", *fields}))
    draw = random.Random(seed)
    chosen: dict[tuple[str, str, int, str], float] = {}
    sizes = _equal_shares(n, {name: len(items) for name, items in strata.items()}, draw)
    for name, items in strata.items():
        probability = sizes[name] / len(items)
        chosen.update(dict.fromkeys(draw.sample(items, sizes[name]), probability))
    rows = []
    for row in evaluation.rows():
        item = row.run, row.id, row.attempt, row.unit
        if item in chosen and not row.others:
            rows.append(_sheet_row(row, key, chosen[item]))
    draw.shuffle(rows)
    return rows, sum(map(len, strata.values()))


_NONE = ""


def _stratum(row: Row, by: str | None) -> str:
    if by is None:
        return "all"
    value = row.run if by == "run" else find(row.metadata, by)
    return _NONE if value is MISSING else repr(value)


def _equal_shares(n: int, sizes: dict[str, int], draw: random.Random) -> dict[str, int]:
    """Return how many items to draw from each stratum: equal numbers, more of large strata if small ones run out."""
    shares = dict.fromkeys(sizes, 0)
    left = min(n, sum(sizes.values()))
    while left:
        open_ = [name for name in sizes if shares[name] < sizes[name]]
        each = left // len(open_)
        for name in open_ if each else draw.sample(open_, left):
            added = min(each or 1, sizes[name] - shares[name])
            shares[name] += added
            left -= added
    return shares


def _sheet_row(row: Row, key: str, probability: float) -> dict[str, Any]:
    return {
        "example": row.id,
        "run": row.run,
        "attempt": row.attempt,
        "unit": row.unit,
        "evaluator": key,
        "input": row.shown("input"),
        "output": row.shown("output"),
        "expected": row.shown("expected"),
        "label": None,
        "note": None,
        "probability": probability,
    }
