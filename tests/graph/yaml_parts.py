"""The parts of a graph file that most tests need and few are about: the node that judges, and the report on it."""

from __future__ import annotations

JUDGING = (
    "{node_type: lambda, lambda: tasks.eval.utils.UnitMetrics, golden_key: GOLDEN, predicted_key: said,"
    " unit_metrics_map: [{name: exact_match, params: {key: text}}], output_keys: [exact_match]}"
)
ACCURACY = (
    "{processor: tasks.eval.utils.MetricCollatorPostProcessor, params: {aggregator_metrics_map:"
    " [{name: accuracy, params: {key: text}, unit_metrics_results: [exact_match]}]}}"
)


def filled(text: str, golden: str = "answer") -> str:
    """A graph file with `JUDGING` as a node (`exact_match` of `said`) and `ACCURACY` as a post-processor."""
    return text.replace("JUDGING", JUDGING.replace("GOLDEN", golden)).replace("ACCURACY", ACCURACY)
