"""Aggregators with the same fold share one state and one resampling, with the same results as alone."""

from __future__ import annotations

from karat.graph.metrics import AggregatorMetricRegistry
from karat.graph.metrics._collator import MetricCollatorPostProcessor
from karat.stats import _classification as classification

PARAMS = {
    "precision": {"predicted_key": "text"},
    "recall": {"golden_key": "text"},
    "f1_score": {"predicted_key": "text", "golden_key": "text"},
}


def result(golden: str, predicted: str) -> dict:
    return {
        "correct": golden == predicted,
        "golden": {"text": golden},
        "predicted": {"text": predicted},
        "metadata": {},
    }


RESULTS = [result("abc"[i % 3], "abc"[(i + (i % 4 == 0)) % 3]) for i in range(60)]


def report(entries: list[dict], failed: int = 0) -> dict:
    processor = MetricCollatorPostProcessor(entries)
    processor.start({"failed_records": failed})
    for each in RESULTS:
        processor.add({"exact_match": each})
    [made] = processor.finish()
    return made["results"]


def entries(**more) -> list[dict]:
    return [
        {"name": name, "params": params, "unit_metrics_results": ["exact_match"], **more}
        for name, params in PARAMS.items()
    ]


def test_shared_folds_give_the_same_values_as_single_ones():
    together = report(entries())
    for name, params in PARAMS.items():
        alone = AggregatorMetricRegistry.get_metric(name, **params).calculate(RESULTS)
        assert together[f"exact_match-{name}"] == alone


def test_the_matrix_is_resampled_once_for_the_three():
    classification._independent.cache_clear()
    report(entries())
    assert classification._independent.cache_info().misses == 1


def test_missing_records_count_once_for_each():
    for found in report(entries(), failed=5).values():
        assert (found["n"], found["of"]) == (60, 65)


def test_one_that_reads_other_labels_or_other_metadata_has_a_state_of_its_own():
    other = {"name": "recall", "params": {"golden_key": "gone"}, "unit_metrics_results": ["exact_match"]}
    found = report([*entries(), other])
    assert "error" in found["exact_match-recall-2"], found["exact_match-recall-2"]
    assert "error" not in found["exact_match-recall"]
    with_metadata = report([entries()[0], entries(metadata={"validator": "name"})[0]])
    assert len(with_metadata) == 2
