"""The six dimensions: what is judged of a record, the fields that the verdicts become, and the formulas over them.

A dimension turns a record of stage 1 into numbered items and gets a label for each, from a judge or from the matcher.
All counts and rates are computed here from these labels, so both ways share one set of formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from karat.errors import CannotJudge, option
from karat.evaluators import ItemVerdict
from karat.memory._language import content_words, is_refusal, sentences
from karat.memory._matching import SUPPORTED, Matcher, judge_answer
from karat.stats import MeanState

Record = Mapping[str, Any]
Fields = dict[str, Any]
Counted = Mapping[str, str | Callable[[Fields], int]]
Parts = dict[str, str | Sequence[str]]
"""Material by name: a text, or a list of lines."""

SETTLED = "rule"
"""The method of a verdict that follows without any comparison, such as that of an empty delta."""


class MeanRate(NamedTuple):
    """A rate of a dimension: its name in `aggregate_metrics.json`, its direction, and its values in one record."""

    name: str
    higher_is_better: bool
    values: Callable[[Fields], Sequence[float]]


class Dimension:
    """One of the six dimensions."""

    key: ClassVar[str]
    """The key of the results."""
    block: ClassVar[str]
    """Its block in `aggregate_metrics.json`."""
    of_sessions: ClassVar[bool] = True
    labels: ClassVar[tuple[str, ...]]
    strongest: ClassVar[tuple[str, ...]] = ()
    """The labels in the order in which one of them, given for a part of the material, holds for all of it."""
    means: ClassVar[tuple[MeanRate, ...]]
    rate: ClassVar[str] = ""
    """The field of its main rate."""
    counted: ClassVar[Counted]
    """The counts of its block in their order: the field that is added up, or how to compute it from the fields."""

    def items(self, record: Record) -> list[str]:
        """The numbered items; none where the dimension does not apply to the record."""
        raise NotImplementedError

    def parts(self, record: Record) -> Parts:
        """The context that a judge sees with the items; a list may be divided among several requests."""
        raise NotImplementedError

    def merged(self, labels: Sequence[str]) -> str:
        """The label of an item from labels that a judge gave with a part of the material each; `strongest` first."""
        return min(labels, key=self.strongest.index)

    def settled(self, record: Record) -> list[ItemVerdict] | None:
        """The verdicts where nothing has to be compared."""
        return None

    def match(self, record: Record, matcher: Matcher) -> list[ItemVerdict]:
        """The verdicts of the deterministic matcher."""
        raise NotImplementedError

    def fields(self, record: Record, verdicts: Sequence[ItemVerdict], reasoning: str) -> Fields:
        """The fields of `eval` that follow from the verdicts; without verdicts nothing was judged: rates are null."""
        raise NotImplementedError

    def same(self, record: Record, label: str, reasoning: str) -> list[ItemVerdict]:
        """The same label for every item."""
        return [ItemVerdict(number, label, reasoning) for number, _ in enumerate(self.items(record), 1)]

    def score(self, fields: Fields) -> float | None:
        """The score of a result: the main rate of its record."""
        value: float | None = fields[self.rate]
        return value

    def counts(self, fields: Fields) -> dict[str, int]:
        """The counts that `aggregate_metrics.json` adds up over records."""
        return {
            name: fields[source] if isinstance(source, str) else source(fields)
            for name, source in self.counted.items()
        }


def _lines(texts: Iterable[str]) -> list[str]:
    return [f"- {text}" for text in texts]


def _list_texts(texts: Iterable[str]) -> str:
    return "\n".join(_lines(texts))


def written(record: Record) -> list[Record]:
    """The memories of a delta that count as written: added and updated ones."""
    return [each for each in record["memory_delta"] if each["op"] in ("add", "update")]


def active(record: Record) -> list[str]:
    """The texts of the memories in force in a snapshot."""
    if record.get("snapshot_omitted"):
        raise CannotJudge(
            f"the snapshot of session {record['session_id']!r} was omitted: run stage 1 with"
            f" {option('snapshots', 'all')}"
        )
    return [each["text"] for each in record["memory_snapshot"] if each.get("status", "active") == "active"]


def _previous_texts(change: Record) -> Sequence[str]:
    """The texts that an update replaced, if its metadata has them."""
    texts = (change.get("metadata") or {}).get("previous_texts") or ()
    return texts if isinstance(texts, (list, tuple)) else ()


def _points(record: Record, *kinds: str) -> list[Record]:
    return [point for kind in kinds for point in record["gold_state"][f"session_{kind}_memories"]]


def _ratio(count: int, total: int) -> float | None:
    return count / total if total else None


def _optional(name: str) -> Callable[[Fields], Sequence[float]]:
    return lambda fields: [] if fields[name] is None else [fields[name]]


def _pooled(weights: Mapping[str, float]) -> Callable[[Fields], Sequence[float]]:
    """Each counted item as a value: pooled means are means over items."""
    return lambda fields: [weight for name, weight in weights.items() for _ in range(fields[name])]


def _coverage(points: Sequence[str], memories: Sequence[str], matcher: Matcher) -> list[ItemVerdict]:
    out = []
    for number, point in enumerate(points, 1):
        place = matcher.covered_by(point, memories)
        comment = "no memory states it" if place is None else f"stated by memory {place + 1}"
        out.append(ItemVerdict(number, "missing" if place is None else "covered", comment))
    return out


class RecallDimension(Dimension):
    """The share of a session's gold points that its delta covers."""

    key = "recall"
    rate = "recall"
    block = "memory_recall"
    labels = strongest = ("covered", "missing")
    counted: ClassVar[Counted] = {
        "num_sessions_with_recall": lambda fields: int(fields["recall"] is not None),
        "num_sessions_with_update": lambda fields: int(fields["update_recall"] is not None),
        "total_covered": "covered_count",
        "total_gold": "num_gold",
    }
    means = (
        MeanRate("avg_recall", True, _optional("recall")),
        MeanRate("avg_update_recall", True, _optional("update_recall")),
    )

    def items(self, record: Record) -> list[str]:
        return [point["memory_content"] for point in _points(record, "new", "update")]

    def parts(self, record: Record) -> Parts:
        return {"memories": _lines(each["text"] for each in written(record))}

    def settled(self, record: Record) -> list[ItemVerdict] | None:
        if written(record):
            return None
        return self.same(record, "missing", "the session added no memory")

    def match(self, record: Record, matcher: Matcher) -> list[ItemVerdict]:
        return _coverage(self.items(record), [each["text"] for each in written(record)], matcher)

    def fields(self, record: Record, verdicts: Sequence[ItemVerdict], reasoning: str) -> Fields:
        points, updates = len(self.items(record)), len(_points(record, "update"))
        covered = [verdict.id for verdict in verdicts if verdict.label == "covered"]
        of_updates = sum(number > points - updates for number in covered)
        return {
            "recall": _ratio(len(covered), len(verdicts)),
            "covered_count": len(covered),
            "num_gold": points,
            "update_recall": _ratio(of_updates, updates) if verdicts else None,
            "update_covered_count": of_updates,
            "update_total": updates,
            "recall_reasoning": reasoning,
        }


class Correctness(Dimension):
    """The share of the memories in a delta that are right."""

    key = "correctness"
    rate = "correctness_rate"
    block = "memory_correctness"
    labels = ("correct", "hallucination", "irrelevant")
    strongest = (
        "correct",
        "irrelevant",
        "hallucination",
    )  # without a source in one part, there may be one in another
    counted: ClassVar[Counted] = {
        "num_sessions": lambda fields: int(fields["correctness_rate"] is not None),
        "total_memories": "num_memories",
        "total_correct": "num_correct",
        "total_hallucination": "num_hallucination",
        "total_irrelevant": "num_irrelevant",
    }
    means = (
        MeanRate("avg_correctness", True, _optional("correctness_rate")),
        MeanRate("avg_hallucination", False, lambda f: _share(f, "num_hallucination")),
        MeanRate("avg_irrelevant", False, lambda f: _share(f, "num_irrelevant")),
    )

    def items(self, record: Record) -> list[str]:
        return [each["text"] for each in written(record)]

    def parts(self, record: Record) -> Parts:
        return {"dialogue": dialogue_lines(record), "known": _lines(self._known(record))}

    def _known(self, record: Record) -> list[str]:
        earlier = [text for each in written(record) for text in _previous_texts(each)]
        return [each["memory_content"] for each in record["gold_state"]["cumulative_gold_memories"]] + earlier

    def match(self, record: Record, matcher: Matcher) -> list[ItemVerdict]:
        """A memory is supported if its sources contain its words, and relevant if it shares a gold point's.

        Without gold points the words do not show relevance, and a supported memory counts as correct.
        """
        gold = record["gold_state"]["cumulative_gold_memories"] + _points(record, "interference")
        points = [content_words(each["memory_content"]) for each in gold]
        sources = content_words(dialogue_text(record)).union(*map(content_words, self._known(record)), ())
        out = []
        for number, memory in enumerate(self.items(record), 1):
            words = content_words(memory)
            support = len(words & sources) / len(words) if words else 0.0
            if words and support < SUPPORTED:
                out.append(ItemVerdict(number, "hallucination", f"{support:.2f} of its words have a source"))
                continue
            parts = [content_words(each) for each in (memory, *sentences(memory))]
            related = not points or any(
                point and len(point & part) / len(point) >= 0.5 for point in points for part in parts
            )
            label = "correct" if words and related else "irrelevant"
            comment = "it has a source" + (" and a gold point" if points and related else "")
            out.append(ItemVerdict(number, label, comment if words else "it says nothing"))
        return out

    def fields(self, record: Record, verdicts: Sequence[ItemVerdict], reasoning: str) -> Fields:
        found = Counter(verdict.label for verdict in verdicts)
        return {
            "correctness_rate": _ratio(found["correct"], len(verdicts)),
            "num_memories": len(self.items(record)),
            "num_correct": found["correct"],
            "num_hallucination": found["hallucination"],
            "num_irrelevant": found["irrelevant"],
            "correctness_reasoning": reasoning,
            "correctness_records": [
                {"id": verdict.id, "label": verdict.label, "reasoning": verdict.reasoning}
                for verdict in verdicts
            ],
        }


def _share(fields: Fields, name: str) -> list[float]:
    return [] if fields["correctness_rate"] is None else [fields[name] / fields["num_memories"]]


def dialogue_text(record: Record) -> str:
    """The dialogue of a session as a text."""
    return "\n".join(dialogue_lines(record))


def dialogue_lines(record: Record) -> list[str]:
    """The turns of a session with speaker and time."""
    if record.get("dialogue") is None:
        raise CannotJudge(
            f"the record of session {record['session_id']!r} has no dialogue, without which correctness cannot be"
            " judged: write the pipeline files with karat, or add the key"
        )
    return [
        f"{turn['speaker']}{' (' + turn['time'] + ')' if turn.get('time') else ''}: {turn['text']}"
        for turn in record["dialogue"]
    ]


class Update(Dimension):
    """Whether outdated memories were replaced; judged on the snapshot."""

    key = "update"
    rate = "update_score"
    block = "update_handling"
    labels = ("updated", "both", "outdated", "neither")

    def merged(self, labels: Sequence[str]) -> str:
        new = any(label in ("updated", "both") for label in labels)
        old = any(label in ("outdated", "both") for label in labels)
        return _version_label(new, old)

    counted: ClassVar[Counted] = {
        "num_updated": "update_num_updated",
        "num_both": "update_num_both",
        "num_outdated": "update_num_outdated",
        "num_total": "update_total_items",
    }
    means = (
        MeanRate(
            "score",
            True,
            _pooled({"update_num_updated": 1.0, "update_num_both": 0.5, "update_num_outdated": 0.0}),
        ),
    )

    def items(self, record: Record) -> list[str]:
        return [
            point["memory_content"]
            + (f" (instead of: {'; '.join(before)})" if (before := _earlier_statement(point)) else "")
            for point in _points(record, "update")
        ]

    def parts(self, record: Record) -> Parts:
        return {"memories": _lines(active(record))}

    def settled(self, record: Record) -> list[ItemVerdict] | None:
        if active(record):
            return None
        return self.same(record, "neither", "nothing is stored")

    def match(self, record: Record, matcher: Matcher) -> list[ItemVerdict]:
        stored, out = active(record), []
        for number, point in enumerate(_points(record, "update"), 1):
            before = _earlier_statement(point)
            new = matcher.covered_by(point["memory_content"], stored, before) is not None
            old = any(
                matcher.covered_by(each, stored, [point["memory_content"]]) is not None for each in before
            )
            label = _version_label(new, old)
            out.append(ItemVerdict(number, label, f"new version {_is(new)}, earlier version {_is(old)}"))
        return out

    def fields(self, record: Record, verdicts: Sequence[ItemVerdict], reasoning: str) -> Fields:
        found = Counter(verdict.label for verdict in verdicts)
        outdated = found["outdated"] + found["neither"]
        points = _points(record, "update")
        return {
            "update_score": _ratio_of(found["updated"] + 0.5 * found["both"], len(verdicts)),
            "update_num_updated": found["updated"],
            "update_num_both": found["both"],
            "update_num_outdated": outdated,
            "update_num_neither": found["neither"],
            "update_total_items": len(points),
            "update_records": [
                {
                    "memory_id": points[verdict.id - 1]["memory_id"],
                    "label": "outdated" if verdict.label == "neither" else verdict.label,
                    "reasoning": verdict.reasoning,
                    **({"neither": True} if verdict.label == "neither" else {}),
                }
                for verdict in verdicts
            ],
        }


def _version_label(new: bool, old: bool) -> str:
    """The label of an update by which versions are stored."""
    return ("both" if old else "updated") if new else ("outdated" if old else "neither")


def _earlier_statement(point: Record) -> list[str]:
    return [text for text in point.get("original_memories") or () if text.strip()]


def _is(stored: bool) -> str:
    return "stored" if stored else "not stored"


def _ratio_of(total: float, count: int) -> float | None:
    return total / count if count else None


class Interference(Dimension):
    """Whether what must not be remembered was kept out; judged on the snapshot."""

    key = "interference"
    rate = "interference_score"
    block = "interference_rejection"
    labels = ("rejected", "memorized")
    strongest = ("memorized", "rejected")
    counted: ClassVar[Counted] = {
        "num_rejected": "interference_num_rejected",
        "num_memorized": "interference_num_memorized",
        "num_total": "interference_total_items",
    }
    means = (
        MeanRate(
            "score",
            True,
            _pooled({"interference_num_rejected": 1.0, "interference_num_memorized": 0.0}),
        ),
    )

    def items(self, record: Record) -> list[str]:
        return [point["memory_content"] for point in _points(record, "interference")]

    def parts(self, record: Record) -> Parts:
        return {"memories": _lines(active(record))}

    def settled(self, record: Record) -> list[ItemVerdict] | None:
        if active(record):
            return None
        return self.same(record, "rejected", "nothing is stored")

    def match(self, record: Record, matcher: Matcher) -> list[ItemVerdict]:
        return [
            ItemVerdict(each.id, "memorized" if each.label == "covered" else "rejected", each.reasoning)
            for each in _coverage(self.items(record), active(record), matcher)
        ]

    def fields(self, record: Record, verdicts: Sequence[ItemVerdict], reasoning: str) -> Fields:
        found = Counter(verdict.label for verdict in verdicts)
        points = _points(record, "interference")
        return {
            "interference_score": _ratio(found["rejected"], len(verdicts)),
            "interference_num_rejected": found["rejected"],
            "interference_num_memorized": found["memorized"],
            "interference_total_items": len(points),
            "interference_records": [
                {
                    "memory_id": points[verdict.id - 1]["memory_id"],
                    "label": verdict.label,
                    "reasoning": verdict.reasoning,
                }
                for verdict in verdicts
            ],
        }


class AnswerQuality(Dimension):
    """Whether an answer is right."""

    key = "answer"
    block = "question_answering"
    of_sessions = False
    labels = strongest = ("Correct", "Hallucination", "Omission")
    counted: ClassVar[Counted] = {
        "num_total": lambda fields: 1,
        "num_valid": lambda fields: int(fields["answer_is_valid"]),
    }
    means = (
        MeanRate("correct_ratio", True, lambda f: _label_share(f, "Correct")),
        MeanRate("hallucination_ratio", False, lambda f: _label_share(f, "Hallucination")),
        MeanRate("omission_ratio", False, lambda f: _label_share(f, "Omission")),
    )

    def items(self, record: Record) -> list[str]:
        answer = record["generated_answer"]
        return [] if answer is None else [answer]

    def parts(self, record: Record) -> Parts:
        out: Parts = {"question": record["retrieval"]["query"]}
        if record.get("choices"):
            out["choices"] = _list_texts(record["choices"])
        if record.get("answerable", True):
            out["gold"] = _list_texts(gold_answers(record))
            if record.get("rubric"):
                out["rubric"] = _list_texts(record["rubric"])
        return out

    def settled(self, record: Record) -> list[ItemVerdict] | None:
        return (
            None
            if record["generated_answer"].strip()
            else [ItemVerdict(1, "Omission", "the answer is empty")]
        )

    def match(self, record: Record, matcher: Matcher) -> list[ItemVerdict]:
        verdict = judge_answer(
            record["generated_answer"],
            gold_answers(record) or record.get("rubric") or [],
            answerable=record.get("answerable", True),
            choices=record.get("choices") or (),
            matcher=matcher,
        )
        return [ItemVerdict(1, verdict.label, verdict.reasoning)]

    def fields(self, record: Record, verdicts: Sequence[ItemVerdict], reasoning: str) -> Fields:
        return {
            "answer_label": verdicts[0].label if verdicts else None,
            "answer_reasoning": (verdicts[0].reasoning or reasoning) if verdicts else "",
            "answer_is_valid": bool(verdicts),
        }

    def score(self, fields: Fields) -> float | None:
        return float(fields["answer_label"] == "Correct") if fields["answer_is_valid"] else None


def gold_answers(record: Record) -> list[str]:
    """The gold answer and the others that are right as well."""
    return [each for each in (record["gold_answer"], *record.get("gold_answers", ())) if each.strip()]


def _label_share(fields: Fields, label: str) -> list[float]:
    return [float(fields["answer_label"] == label)] if fields["answer_is_valid"] else []


class EvidenceCoverage(Dimension):
    """Whether the memories that an answer cites contain the gold evidence."""

    key = "evidence"
    rate = "evidence_hit_rate"
    block = "evidence_coverage"
    of_sessions = False
    labels = strongest = ("covered", "missing")
    counted: ClassVar[Counted] = {
        "num_covered": "evidence_covered_count",
        "num_total": lambda fields: 0 if fields["evidence_hit_rate"] is None else fields["num_evidence"],
    }
    means = (MeanRate("hit_rate", True, lambda f: _hits(f)),)

    def items(self, record: Record) -> list[str]:
        return [] if record["generated_answer"] is None else list(record["gold_evidence_contents"])

    def parts(self, record: Record) -> Parts:
        return {"memories": _lines(record["cited_memories"])}

    def settled(self, record: Record) -> list[ItemVerdict] | None:
        if record["cited_memories"]:
            return None
        return self.same(record, "missing", "the answer cites no memory")

    def match(self, record: Record, matcher: Matcher) -> list[ItemVerdict]:
        return _coverage(self.items(record), record["cited_memories"], matcher)

    def fields(self, record: Record, verdicts: Sequence[ItemVerdict], reasoning: str) -> Fields:
        covered = sum(verdict.label == "covered" for verdict in verdicts)
        return {
            "evidence_hit_rate": _ratio(covered, len(verdicts)),
            "evidence_covered_count": covered,
            "num_evidence": len(record["gold_evidence_contents"]),
            "evidence_reasoning": reasoning,
            "num_cited_memories": len(record["cited_memories"]),
        }


def _hits(fields: Fields) -> list[float]:
    if fields["evidence_hit_rate"] is None:
        return []
    covered = fields["evidence_covered_count"]
    return [1.0] * covered + [0.0] * (fields["num_evidence"] - covered)


DIMENSIONS: tuple[Dimension, ...] = (
    RecallDimension(),
    Correctness(),
    Update(),
    Interference(),
    AnswerQuality(),
    EvidenceCoverage(),
)
BY_KEY = {dimension.key: dimension for dimension in DIMENSIONS}


def refused(record: Record) -> bool | None:
    """Whether an answer is a refusal ("I don't know"); None without an answer."""
    answer = record["generated_answer"]
    return None if answer is None else is_refusal(answer)


class Totals:
    """A dimension over many records, in bounded memory; each mean is clustered by sample."""

    def __init__(self, dimension: Dimension) -> None:
        self.dimension = dimension
        self.means = {mean.name: MeanState() for mean in dimension.means}
        self.counts: Counter[str] = Counter()
        self.errors = 0

    def add(self, sample: Sequence[Fields], errors: int = 0, skipped: int = 0) -> None:
        """Add the judged records of one sample, how many could not be judged, and to how many it does not apply."""
        for mean in self.dimension.means:
            values = [value for fields in sample for value in mean.values(fields)]
            if values:
                self.means[mean.name].add(values)
        for fields in sample:
            self.counts.update(self.dimension.counts(fields))
        self.errors += errors
        if isinstance(self.dimension, AnswerQuality):  # its total counts questions without a valid label too
            self.counts["num_total"] += errors + skipped

    def merge(self, other: Totals) -> Totals:
        """Add the totals of other samples."""
        for name, state in other.means.items():
            self.means[name] = self.means[name].merge(state)
        self.counts.update(other.counts)
        self.errors += other.errors
        return self

    def to_dict(self) -> dict[str, Any]:
        """The block of `aggregate_metrics.json`: every rate is a number, `applicable` is whether it is meaningful."""
        out: dict[str, Any] = {}
        for mean in self.dimension.means:
            state = self.means[mean.name]
            out[mean.name] = (state.mean or 0.0) if state.n else 0.0
        out.update({name: self.counts[name] for name in self.dimension.counted})
        out["num_judge_errors"] = self.errors
        out["applicable"] = self.means[self.dimension.means[0].name].n > 0
        return out
