"""The figures of a memory evaluation for people: the conclusion first, then the dimensions, controls and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import karat
from karat.errors import option, plural, wording
from karat.formatting import Block, Details, Heading, Paragraph, Table
from karat.formatting import interval as interval_text
from karat.memory._dimensions import BY_KEY, DIMENSIONS
from karat.memory._evaluators import CONTEXT

if TYPE_CHECKING:
    from karat.memory._evaluate import MemoryEvaluation

TITLES = {
    "memory_recall": "Memory recall",
    "memory_correctness": "Memory correctness",
    "update_handling": "Update handling",
    "interference_rejection": "Interference rejection",
    "question_answering": "Question answering",
    "evidence_coverage": "Evidence coverage",
}
NAMES = {
    "avg_recall": "recall",
    "avg_update_recall": "recall of updates",
    "avg_correctness": "correct",
    "avg_hallucination": "hallucinated",
    "avg_irrelevant": "irrelevant",
    "correct_ratio": "correct",
    "hallucination_ratio": "hallucinated",
    "omission_ratio": "omitted",
    "hit_rate": "hit rate",
}
NA = "n/a"
DEPENDENT = "questions on one sample depend on each other"
WIDE = 0.5
"""An interval of a rate that is at least this wide says little."""


def share(value: float | None) -> str:
    """A rate, as every report writes it."""
    return number(value, 3)


def number(value: float | None, digits: int = 2) -> str:
    """A number, or n/a."""
    return NA if value is None else f"{value:,.{digits}f}"


def report_blocks(made: MemoryEvaluation) -> list[Block]:
    """The report as blocks, for text and Markdown."""
    metrics = made.metrics
    blocks: list[Block] = [Paragraph(conclusion(made))]
    few = few_samples(made)
    if few:
        blocks.append(Paragraph(few))
    blocks.append(_dimensions(metrics))
    others = made.others()
    if others:
        blocks += [
            Heading("Systems and controls on the same data, settings and judge"),
            _others(made, others),
        ]
    blocks += [Heading("Answers and retrieval"), _details(metrics)]
    for name, title in (
        ("question_type", "Correct answers by question type"),
        ("difficulty", "Correct answers by difficulty"),
        ("session_distance", "Correct answers by sessions since the evidence"),
        ("updates_since", "Correct answers by updates since the evidence"),
    ):
        found = metrics[f"accuracy_by_{name}"]
        if len(found) > 1:
            blocks += [Heading(title), _groups(found)]
            if name == "question_type":
                blocks += _legend(metrics["question_types"])
    if metrics["agreement_with_matcher"]:
        blocks += [Heading("Agreement of the judge with the deterministic matcher"), _agreement(metrics)]
    spent = made.manifest.get("efficiency")
    if spent:
        blocks += [Heading("Time, tokens and cost"), _spent(spent)]
    blocks += [Paragraph(note) for note in made.notices]
    blocks += [Paragraph(problem) for problem in made.problems]
    blocks.append(Paragraph(f"wrote five files to {made.output_dir}"))
    rows = wording(made.evaluation.store.command("show", made.evaluation.id), "evaluation.rows()")
    blocks.append(Paragraph(f"run {made.run.id}; its rows: {rows}"))
    return blocks


def conclusion(made: MemoryEvaluation) -> str:
    """Summarise the evaluation in a sentence or two."""
    metrics = made.metrics
    answers, recall = metrics["question_answering"], metrics["memory_recall"]
    parts = []
    if answers["applicable"]:
        interval = metrics["intervals"]["question_answering.correct_ratio"]
        span = _span(interval)
        parts.append(
            f"{made.baseline} answers {share(answers['correct_ratio'])}{span} of {answers['num_valid']:,} questions"
            f" correctly and makes up {share(answers['hallucination_ratio'])}"
        )
    else:
        parts.append(f"{made.baseline} answered no question")
    if recall["applicable"]:
        parts.append(f"it stores {share(recall['avg_recall'])} of what it was given to remember")
    best = [
        row
        for row in made.controls()
        if row["baseline"] in ("full_context", "oracle") and row["correct"] is not None
    ]
    if best and answers["applicable"]:
        parts.append(", ".join(f"{row['baseline']} reaches {share(row['correct'])}" for row in best))
    return "; ".join(parts) + "."


def few_samples(made: MemoryEvaluation) -> str:
    """A sentence for an interval over so few samples that it says little; empty for any other."""
    rates = [each for each in made.aggregation.estimates if each.evaluator in BY_KEY and each.group is None]
    rates = [each for each in rates if each.evaluator == "answer"] or rates
    for rate in rates:
        if rate.value is None or not rate.n:
            continue
        if rate.low is None or rate.high is None:
            one = sum(count for _, count in made.run.header.units or ()) == 1
            return f"1 sample is too few for an interval: {DEPENDENT}." if one else ""
        samples = rate.metadata.get("clusters")
        if samples is None or rate.high - rate.low < WIDE:
            return ""
        return (
            f"{plural(samples, 'sample')} {'is' if samples == 1 else 'are'} too few for a useful interval:"
            f" {DEPENDENT}, so the intervals count samples."
        )
    return ""


def _span(interval: dict[str, Any] | None) -> str:
    if interval is None or interval["low"] is None or interval["high"] is None:
        return ""
    return f" {interval_text(interval['low'], interval['high'])}"


def _dimensions(metrics: dict[str, Any]) -> Table:
    rows = []
    for dimension in DIMENSIONS:
        block = metrics[dimension.block]
        for place, mean in enumerate(dimension.means):
            interval = metrics["intervals"][f"{dimension.block}.{mean.name}"]
            defined = interval is not None
            rows.append(
                [
                    TITLES[dimension.block] if place == 0 else "",
                    f"{NAMES.get(mean.name, mean.name)} {'↑' if mean.higher_is_better else '↓'}",
                    share(block[mean.name]) if defined else NA,
                    _span(interval).strip(),
                    f"{interval['n']:,}" if interval else "0",
                    str(block["num_judge_errors"]) if place == 0 and block["num_judge_errors"] else "",
                ]
            )
    head = ["dimension", "rate", "value", "95 % interval", "n", "judge errors"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return Table(head, rows, right=[2, 4, 5][: len(head) - 3])


def _details(metrics: dict[str, Any]) -> Table:
    abstention, used, retrieval = (
        {**metrics[block], **dict.fromkeys(metrics[block]["undefined"])}
        for block in ("abstention", "use_of_evidence", "retrieval")
    )
    answers = metrics["question_answering"]
    bypassed, questions = retrieval["retrieval_bypassed"], retrieval["questions"]
    rows = [
        [
            "correct, with unanswerable questions",
            share(answers["correct_ratio"] if answers["applicable"] else None),
        ],
        ["correct, without them", share(abstention["accuracy_answerable"])],
        ["unanswerable questions refused", share(abstention["correct_refusal_rate"])],
        ["answerable questions refused", share(abstention["false_refusal_rate"])],
        ["evidence retrieved, answer wrong", share(used["retrieved_but_not_used"])],
        ["answer right without the evidence", share(used["answered_without_evidence"])],
        ["retrieval recall@k", share(retrieval["recall_at_k"])],
        ["MRR", share(retrieval["mrr"])],
        ["nDCG", share(retrieval["ndcg"])],
        ["share of the store retrieved", share(retrieval["share_of_store"])],
        ["context tokens per question", number(retrieval["context_tokens"], 0)],
        [
            "correct answers per 1,000 context tokens",
            number(retrieval["accuracy_per_1000_context_tokens"], 3),
        ],
        ["answer tokens", number(retrieval["answer_tokens"], 0)],
        [f"items cut by {option('context_tokens')}", f"{retrieval['items_cut']:,}"],
        ["invented citations", f"{retrieval['invented_citations']:,}"],
    ]
    captions = metrics.get("captions")
    if captions:
        others = captions["accuracy_of_the_others"] if captions["applicable"] else None
        rows.append(["questions with the answer in a caption", f"{captions['with_answer']:,}"])
        rows.append(["correct, without questions of that kind", share(others)])
    if bypassed:
        rows.append(["retrieval bypassed (top_k ≥ stored items)", f"{bypassed:,} of {questions:,}"])
    return Table(["figure", "value"], rows, right=[1])


def _groups(found: dict[str, Any]) -> Table:
    rows = [
        [name, share(each["correct"]), _span(each).strip(), f"{each['n']:,}", _bar(each["correct"])]
        for name, each in found.items()
    ]
    return Table(["", "correct", "95 % interval", "n", ""], rows, right=[1, 3])


def _legend(types: dict[str, str]) -> list[Block]:
    """The question types that the abbreviations stand for."""
    return [Details("", [(short, [name]) for short, name in types.items()])]


def _bar(value: float | None) -> str:
    return "█" * round(20 * (value or 0.0))


def _agreement(metrics: dict[str, Any]) -> Table:
    rows = [
        [key, share(each["agree"]), _span(each).strip(), number(each["kappa"]), f"{each['n']:,}"]
        for key, each in metrics["agreement_with_matcher"].items()
    ]
    return Table(["dimension", "agree", "95 % interval", "kappa", "n"], rows, right=[1, 3, 4])


def _spent(spent: dict[str, Any]) -> Table:
    rows = []
    for step in ("write", "read", "answer", "judge"):
        each = spent.get(step)
        if each is None:
            continue
        cost = "unknown" if each["cost"] is None else f"${each['cost']:.4f}"
        rows.append(
            [
                step,
                f"{each['n']:,}",
                _seconds(each["p50_seconds"]),
                _seconds(each["p95_seconds"]),
                f"{each['input_tokens']:,}",
                f"{each['output_tokens']:,}",
                cost,
            ]
        )
    head = ["step", "n", "p50", "p95", "input tokens", "output tokens", "cost"]
    return Table(head, rows, right=[1, 2, 3, 4, 5, 6])


def _seconds(value: float | None) -> str:
    return NA if value is None else f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


# ---------------------------------------------------------------- other systems and controls


def other_rows(run: karat.Run, evaluation: karat.Evaluation) -> list[dict[str, Any]]:
    """The figures of the other runs in the store that share dataset, settings and judge with a run."""
    store = run.store
    judges = {each.key: each.fingerprint for each in evaluation.header.evaluators}
    rows = []
    for other in store.runs.list():
        about, own = other.header.parameters, run.header.parameters
        if other.id == run.id or other.header.dataset != run.header.dataset or about.get("kind") != "memory":
            continue
        if about.get("shared_settings") != own.get("shared_settings"):
            continue
        row = _other_row(store, other, judges)
        if row is not None:
            rows.append(row)
    return sorted(rows, key=lambda row: (row["control"], row["baseline"], row["run"]))


def _other_row(store: karat.Store, run: karat.Run, judges: dict[str, str]) -> dict[str, Any] | None:
    for name in reversed(store.children(run.id)):
        found = store.get(name)
        if not isinstance(found, karat.Evaluation):
            continue
        if {each.key: each.fingerprint for each in found.header.evaluators} != judges:
            continue
        for child in reversed(store.children(found.id)):
            made = store.get(child)
            if isinstance(made, karat.Aggregation) and any(t.aggregator == "memory" for t in made.tables):
                return _figures(run, made)
    return None


def _figures(run: karat.Run, aggregation: karat.Aggregation) -> dict[str, Any]:
    tables = {(table.evaluator, table.name): table.value for table in aggregation.tables}

    def rate(key: str, block: str, name: str) -> float | None:
        found = tables[key, block]
        return found[name] if found["applicable"] else None

    contexts = {e.name: e.value for e in aggregation.estimates if e.evaluator == CONTEXT and e.group is None}
    counts = tables.get((CONTEXT, "counts")) or {}
    return {
        "baseline": run.header.task,
        "run": run.id,
        "control": bool(run.header.parameters.get("control")),
        "recall": rate("recall", "memory_recall", "avg_recall"),
        "memories_correct": rate("correctness", "memory_correctness", "avg_correctness"),
        "update": rate("update", "update_handling", "score"),
        "interference": rate("interference", "interference_rejection", "score"),
        "correct": rate("answer", "question_answering", "correct_ratio"),
        "hallucinated": rate("answer", "question_answering", "hallucination_ratio"),
        "hit_rate": rate("evidence", "evidence_coverage", "hit_rate"),
        "context_tokens": contexts.get("context_tokens"),
        "share_of_store": contexts.get("share_of_store"),
        "answer_tokens": contexts.get("answer_tokens"),
        "retrieval_bypassed": bool(counts.get("questions"))
        and counts.get("bypassed") == counts.get("questions"),
    }


def _others(made: MemoryEvaluation, others: list[dict[str, Any]]) -> Table:
    own = _figures(made.run, made.aggregation)
    rows = [
        [
            f"{row['baseline']} (control)" if row["control"] else row["baseline"],
            share(row["recall"]),
            share(row["memories_correct"]),
            share(row["update"]),
            share(row["interference"]),
            share(row["correct"]),
            share(row["hallucinated"]),
            share(row["hit_rate"]),
            number(row["context_tokens"], 0),
            "bypassed" if row["retrieval_bypassed"] else share(row["share_of_store"]),
            number(row["answer_tokens"], 0),
        ]
        for row in (own, *others)
    ]
    head = [
        "system",
        "recall ↑",
        "correctness ↑",
        "updates ↑",
        "interference ↑",
        "answers ↑",
        "made up ↓",
        "evidence ↑",
        "context tokens",
        "of the store",
        "answer tokens",
    ]
    return Table(head, rows, right=list(range(1, len(head))), split=True)
