"""Stage 2: the evaluators of the six dimensions, once with a judge and once with the matcher, and their aggregator."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, ClassVar

import msgspec

from karat.aggregators import Aggregate, Aggregator, Group, not_applicable
from karat.errors import CannotJudge, NotApplicable
from karat.evaluators import Evaluator, ItemJudge, ItemVerdict
from karat.memory._dimensions import (
    BY_KEY,
    SETTLED,
    Dimension,
    Record,
    Totals,
    refused,
)
from karat.memory._matching import Matcher
from karat.memory._system import NO_TYPE
from karat.records import EvaluatorSpec, Failed, Ok, Result
from karat.stats import MeanState

MATCHED = "match_"
"""Prefix of the keys of the matcher's results where a judge decides."""
RETRIEVAL, CONTEXT = "retrieval", "context_tokens"


@lru_cache(maxsize=16)
def prompt_text(name: str) -> str:
    """A judge prompt of this package."""
    return files("karat.memory").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")


def prompt_hashes() -> dict[str, str]:
    """The hash of each judge prompt, for the manifest."""
    names = ("recall", "correctness", "update", "interference", "answer", "refusal", "evidence")
    return {name: hashlib.blake2b(prompt_text(name).encode(), digest_size=8).hexdigest() for name in names}


def checked_record(output: object, dimension: Dimension) -> Record:
    """The record that a dimension judges; NotApplicable for one of the other kind."""
    if not isinstance(output, Mapping) or ("memory_delta" in output) == ("retrieval" in output):
        raise CannotJudge(f"{dimension.key}: the output is not a record of a session or a question")
    if dimension.of_sessions != ("memory_delta" in output):
        raise NotApplicable("for sessions" if dimension.of_sessions else "for questions")
    if not dimension.items(output):
        raise NotApplicable("the record has nothing to judge in this dimension")
    return output


def judged(
    key: str,
    dimension: Dimension,
    record: Record,
    verdicts: Sequence[ItemVerdict],
    method: str,
    reasoning: str,
    metadata: Mapping[str, Any],
) -> Result:
    """The result of verdicts: the fields of `eval` as its value."""
    fields = dimension.fields(record, verdicts, reasoning)
    more: dict[str, Any] = {**metadata, "method": method, "labels": [each.label for each in verdicts]}
    if dimension.key == "answer":
        more["about"] = about_question(record)
    counted = Counter(verdict.label for verdict in verdicts)
    comment = ", ".join(f"{count} {label}" for label, count in counted.items())
    return Result(key, dimension.score(fields), fields, comment, more)


def summary_of(verdicts: Sequence[ItemVerdict]) -> str:
    """The reasoning of a matcher in one sentence."""
    counted = Counter(verdict.label for verdict in verdicts)
    return "; ".join(
        f"{label}: {', '.join(str(v.id) for v in verdicts if v.label == label)}" for label in counted
    )


class MatchedDimension(Evaluator):
    """A dimension judged by the deterministic matcher."""

    version = "4"

    def __init__(self, dimension: str, key: str | None = None, embeddings: bool | None = None) -> None:
        super().__init__(key or dimension)
        self.dimension = BY_KEY[dimension]
        self.matcher = Matcher(embeddings)
        self.params = {"dimension": dimension, "method": self.matcher.method}

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        record = checked_record(outputs, self.dimension)
        verdicts = self.dimension.settled(record)
        method = SETTLED
        if verdicts is None:
            verdicts, method = self.dimension.match(record, self.matcher), self.matcher.method
        return judged(self.key, self.dimension, record, verdicts, method, summary_of(verdicts), {})


class JudgedDimension(ItemJudge):
    """A dimension judged by a model. Subclasses name the dimension, and the prompt where it has another name."""

    dimension: ClassVar[Dimension]
    prompt_name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.dimension = BY_KEY[cls.name]
        cls.labels = cls.dimension.labels

    def __init__(self, judge: object = None) -> None:
        super().__init__(judge=judge, prompt=prompt_text(self.prompt_name or self.name))

    def merged(self, labels: Sequence[str]) -> str:
        return self.dimension.merged(labels)

    async def judge_output(self, output: object) -> Result:
        record = checked_record(output, self.dimension)
        settled = self.dimension.settled(record)
        if settled is not None:
            asked = {"model": self.settings.names, "served_model": [], "prompt": [], "requests": 0}
            return judged(self.key, self.dimension, record, settled, SETTLED, settled[0].reasoning, asked)
        verdicts, metadata = await self.label_items(
            self.dimension.items(record), self.dimension.parts(record)
        )
        method = f"judge: {', '.join(self.settings.names)}"
        return judged(self.key, self.dimension, record, verdicts, method, metadata["reasoning"], metadata)


class JudgedRecall(JudgedDimension):
    """Which gold points of a session its delta covers."""

    name = "recall"


class JudgedCorrectness(JudgedDimension):
    """Judge which memories of a delta are correct, hallucinated or irrelevant."""

    name = "correctness"


class JudgedUpdate(JudgedDimension):
    """Judge which updates a snapshot holds."""

    name = "update"


class JudgedInterference(JudgedDimension):
    """Judge which interfering statements a snapshot holds."""

    name = "interference"


class JudgedEvidence(JudgedDimension):
    """Judge which gold evidence the cited memories cover."""

    name = "evidence"


class _JudgedRefusal(JudgedDimension):
    """Answers to unanswerable questions, with a rubric of their own."""

    name, prompt_name = "answer", "refusal"


class JudgedAnswer(JudgedDimension):
    """Whether an answer is right; unanswerable questions have a rubric of their own."""

    name = "answer"

    def __init__(self, judge: object = None) -> None:
        super().__init__(judge)
        self.refusals = _JudgedRefusal(judge)

    def configuration(self) -> Any:
        return {"answers": super().configuration(), "refusals": self.refusals.configuration()}

    async def judge_output(self, output: object) -> Result:
        record = checked_record(output, self.dimension)
        if not record.get("answerable", True):
            return await self.refusals.judge_output(output)
        return await super().judge_output(output)


JUDGED: tuple[type[JudgedDimension], ...] = (
    JudgedRecall,
    JudgedCorrectness,
    JudgedUpdate,
    JudgedInterference,
    JudgedAnswer,
    JudgedEvidence,
)


class RetrievalQuality(Evaluator):
    """Rank metrics of a retrieval on the gold evidence, for systems whose memories name their turns: recall@k."""

    name = RETRIEVAL
    version = "1"

    def __init__(self) -> None:
        super().__init__(RETRIEVAL)
        self.params = {}

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        found = ranked(_question(outputs))
        if found["recall_at_k"] is None:
            raise NotApplicable("no gold evidence, or a system whose memories do not name their turns")
        return Result(self.key, found["recall_at_k"], found, "recall@k, by the turns that memories name")


class ContextSize(Evaluator):
    """The number of memory tokens that the answering model was shown, and other measures of the context."""

    name = CONTEXT
    version = "1"
    bounds = (0.0, None)
    higher_is_better = False

    def __init__(self) -> None:
        super().__init__(CONTEXT)
        self.params = {}

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        record = _question(outputs)
        about = record.get("context") or {}
        if not isinstance(about.get("tokens"), int):
            raise NotApplicable("the record does not say how long the context was")
        value = {
            "context_tokens": about["tokens"],
            "items_cut": about.get("items_cut"),
            "tokens_cut": about.get("tokens_cut"),
            "share_of_store": record.get("share_of_store"),
            "bypassed": record.get("retrieval_bypassed"),
            "answer_tokens": record.get("answer_tokens"),
            "invented_citations": record.get("num_invented_citations"),
        }
        return Result(self.key, float(about["tokens"]), value, f"{about['tokens']} tokens")


def _question(output: Any) -> Record:
    if not isinstance(output, Mapping) or "retrieval" not in output:
        raise NotApplicable("for questions")
    return output


def ranked(record: Record) -> dict[str, float | None]:
    """recall@k, reciprocal rank and nDCG of a retrieval; None without provenance or gold evidence."""
    evidence = [set(turns) for turns in record.get("gold_evidence_turn_ids") or () if turns]
    if not evidence or not record.get("provenance"):
        return {"recall_at_k": None, "mrr": None, "ndcg": None}
    left = list(range(len(evidence)))
    first, gain = 0.0, 0.0
    for rank, item in enumerate(record["retrieval"]["items"]):
        turns = set(item.get("turn_ids") or ())
        hit = [number for number in left if evidence[number] & turns]
        if not first and any(evidence[number] & turns for number in range(len(evidence))):
            first = 1.0 / (rank + 1)
        gain += len(hit) / math.log2(rank + 2)
        left = [number for number in left if number not in hit]
    k = max(1, min(len(evidence), record["retrieval"]["top_k"]))
    ideal = sum(1.0 / math.log2(rank + 2) for rank in range(k))
    return {
        "recall_at_k": 1.0 - len(left) / len(evidence),
        "mrr": first,
        "ndcg": min(1.0, gain / ideal),
    }


_found_in_text = Matcher(embeddings=False)


def about_question(record: Record) -> dict[str, Any]:
    """The metadata by which answers are grouped."""
    evidence = record.get("gold_evidence_contents") or []
    retrieved: bool | None = None
    if evidence:
        recall = ranked(record)["recall_at_k"]
        texts = [item["text"] for item in record["retrieval"]["items"]]
        retrieved = (
            all(_found_in_text.covered_by(each, texts) is not None for each in evidence)
            if recall is None
            else recall == 1.0
        )
    return {
        "type": record.get("question_type_abbrev") or NO_TYPE,
        "type_name": record.get("question_type") or "",
        "difficulty": record.get("difficulty") or "",
        "answerable": record.get("answerable", True),
        "refused": refused(record),
        "evidence_retrieved": retrieved,
        "session_distance": record.get("session_distance"),
        "updates_since": record.get("updates_since"),
        "caption_has_answer": bool(record.get("caption_has_answer")),
        "context_tokens": (record.get("context") or {}).get("tokens"),
    }


SHOWN = ("answer", "evidence", "recall", "correctness", "update", "interference")
"""The dimensions in the order of their evaluators: lists and reports of runs take the first one for their headline."""


def evaluators_for(judge: object, embeddings: bool | None = None) -> list[Any]:
    """The evaluators of stage 2: with a judge, and the matcher beside it; or the matcher alone."""
    if judge is None:
        decide: list[Any] = [MatchedDimension(key, embeddings=embeddings) for key in SHOWN]
        return [*decide, RetrievalQuality(), ContextSize()]
    judged = {kind.dimension.key: kind for kind in JUDGED}
    beside = [MatchedDimension(key, f"{MATCHED}{key}", embeddings) for key in SHOWN]
    return [*(judged[key](judge) for key in SHOWN), *beside, RetrievalQuality(), ContextSize()]


# ---------------------------------------------------------------- the aggregator


class _State(msgspec.Struct):
    totals: Any
    groups: dict[str, dict[str, MeanState]]
    means: dict[str, MeanState]
    counts: Counter[str]
    type_names: dict[str, set[str]]
    """The question types of each abbreviation."""
    of: int = 0


GROUPS = {
    "question_type": "type",
    "difficulty": "difficulty",
    "session_distance": "session_distance",
    "updates_since": "updates_since",
}


BETTER = {
    **dict.fromkeys(
        ("accuracy_answerable", "correct_refusal_rate", "accuracy_without_leaking_captions"), "higher"
    ),
    **dict.fromkeys(("false_refusal_rate", "retrieved_but_not_used", "context_tokens"), "lower"),
    **dict.fromkeys(("recall_at_k", "mrr", "ndcg"), "higher"),
}
"""The better direction of figures beside the rates of the dimensions; the others have none."""


MAIN_RATES = {"answer": "accuracy", "recall": "mean", "correctness": "mean"}
"""The names of first rates that are means of the scores of records. Others are pooled over items and keep their own
names, because a mean of scores, as in a comparison, is another figure where records have several items."""


class MemoryDimensions(Aggregator[_State]):
    """The rates of a dimension with intervals clustered by sample, and its block of `aggregate_metrics.json`."""

    name = "memory"

    def __init__(self, confidence: float = 0.95, dimension: str = "") -> None:
        self.confidence = confidence
        self.dimension = BY_KEY.get(dimension)
        self.key = dimension

    def for_evaluator(self, spec: EvaluatorSpec) -> MemoryDimensions:
        """The same aggregator for the dimension of an evaluator's key."""
        return MemoryDimensions(self.confidence, spec.key.removeprefix(MATCHED))

    def start(self) -> _State:
        return _State(Totals(self.dimension) if self.dimension else None, {}, {}, Counter(), {})

    def add(self, state: _State, group: Group) -> _State:
        ok = [each.outcome.value for each in group.results if isinstance(each.outcome, Ok)]
        errors = sum(isinstance(each.outcome, Failed) for each in group.results)
        state.of += len(ok) + group.missing
        if self.dimension is not None:
            units = "session/" if self.dimension.of_sessions else "question/"
            skipped = sum(not_applicable(each) and each.unit.startswith(units) for each in group.results)
            state.totals.add([result.value for result in ok], errors, skipped)
        if self.key == "answer":
            self._add_answers(state, ok)
        elif self.key == RETRIEVAL:
            _add_all(state.means, {name: _values(ok, name) for name in ("recall_at_k", "mrr", "ndcg")})
        elif self.key == CONTEXT:
            self._add_contexts(state, ok)
        return state

    def _add_answers(self, state: _State, results: Sequence[Result]) -> None:
        abouts = [(each.metadata.get("about") or {}, float(each.score or 0.0)) for each in results]
        for name, field in GROUPS.items():
            found: dict[str, list[float]] = {}
            for about, score in abouts:
                if about.get(field) not in (None, ""):
                    found.setdefault(str(about[field]), []).append(score)
            for value, scores in found.items():
                state.groups.setdefault(name, {}).setdefault(value, MeanState()).add(scores)
        for about, _ in abouts:
            if about.get("type_name"):
                state.type_names.setdefault(about["type"], set()).add(about["type_name"])
        named = {
            "accuracy_answerable": [score for about, score in abouts if about.get("answerable")],
            "correct_refusal_rate": [score for about, score in abouts if about.get("answerable") is False],
            "false_refusal_rate": [
                float(bool(about.get("refused")) and score < 1.0)  # a right answer may contain a doubt
                for about, score in abouts
                if about.get("answerable")
            ],
            "retrieved_but_not_used": [
                1.0 - s for about, s in abouts if about.get("evidence_retrieved") is True
            ],
            "answered_without_evidence": [
                s
                for about, s in abouts
                if about.get("evidence_retrieved") is False and about.get("answerable")
            ],
            "accuracy_without_leaking_captions": [
                s for about, s in abouts if not about.get("caption_has_answer")
            ],
        }
        if not any(about.get("caption_has_answer") for about, _ in abouts):
            state.counts["without_leaks"] += 1
        _add_all(state.means, named)
        state.counts["leaking_captions"] += sum(bool(about.get("caption_has_answer")) for about, _ in abouts)
        state.counts["unanswerable"] += sum(about.get("answerable") is False for about, _ in abouts)

    def _add_contexts(self, state: _State, results: Sequence[Result]) -> None:
        names = ("context_tokens", "answer_tokens", "share_of_store")
        _add_all(state.means, {name: _values(results, name) for name in names})
        state.counts["questions"] += len(results)
        state.counts["bypassed"] += sum(bool(each.value.get("bypassed")) for each in results)
        for name in ("items_cut", "tokens_cut", "invented_citations"):
            state.counts[name] += int(sum(_values(results, name)))

    def merge(self, a: _State, b: _State) -> _State:
        if self.dimension is not None:
            a.totals.merge(b.totals)
        for name, groups in b.groups.items():
            for value, state in groups.items():
                a.groups.setdefault(name, {}).setdefault(value, MeanState()).merge(state)
        for name, state in b.means.items():
            a.means.setdefault(name, MeanState()).merge(state)
        for short, names in b.type_names.items():
            a.type_names.setdefault(short, set()).update(names)
        a.counts.update(b.counts)
        a.of += b.of
        return a

    def _better(self, name: str) -> str | None:
        """The better direction of a rate; None where neither end is better."""
        for mean in self.dimension.means if self.dimension is not None else ():
            if mean.name == name:
                return "higher" if mean.higher_is_better else "lower"
        return BETTER.get(name)

    def finish(self, state: _State) -> Aggregate:
        out = Aggregate()
        means: dict[str, MeanState] = {}
        if self.dimension is not None:
            out.add_table(state.totals.to_dict(), self.dimension.block)
            means = {name: mean for name, mean in state.totals.means.items() if mean.n}
        shown = {**means, **{name: mean for name, mean in state.means.items() if mean.n}}
        main = self.dimension.means[0].name if self.dimension is not None else ""
        kind = MAIN_RATES.get(self.key, main)
        for name, mean in shown.items():
            bounded = (0.0, 1.0) if mean.least >= 0.0 and mean.most <= 1.0 else None
            estimate = mean.estimate(self.confidence, bounds=bounded)
            estimate.metadata["better"] = self._better(name)
            if name == main:
                out.add(estimate.about(aggregator=kind))
            else:
                out.add(estimate.about(aggregator=name), name)
        for name, groups in state.groups.items():
            for value in sorted(groups, key=_group_order):
                estimate = groups[value].estimate(self.confidence, bounds=(0.0, 1.0))
                if name == "question_type" and value in state.type_names:
                    reason = estimate.metadata.get("reason") if None in (estimate.low, estimate.high) else ""
                    names = " or ".join(sorted(state.type_names[value]))
                    estimate.metadata["note"] = "; ".join(filter(None, [names, reason]))
                out.add(estimate.about(aggregator=kind), group={name: value})
        if state.counts:
            out.add_table(dict(state.counts), "counts")
        return out


def _values(results: Sequence[Result], name: str) -> list[float]:
    return [float(each.value[name]) for each in results if each.value.get(name) is not None]


def _group_order(value: str) -> tuple[int, str]:
    return (int(value), "") if value.isdigit() else (10**9, value)


def _add_all(means: dict[str, MeanState], named: Mapping[str, Iterable[float]]) -> None:
    for name, values in named.items():
        listed = [float(value) for value in values]
        if listed:
            means.setdefault(name, MeanState()).add(listed)
