"""The names that code, files and commands of users rest on: removing one of them is a break, to be written down."""

from __future__ import annotations

import importlib
import inspect

import pytest

import karat
from karat.cli.parser import COMMANDS, command_parser

STATS = """Agreement BradleyTerry ClassMetrics Classification ConfusionState ExactSum MeanState PairedComparison
PairedTest RankedRun StatisticsError agreement_between bootstrap bradley_terry classification_metrics
clopper_pearson cohen_kappa elo exact_sum fleiss_kappa holm kappa krippendorff_alpha mcnemar mean_interval
missing_bounds newcombe paired percent_agreement permutation ppi proportion share smallest_effect tango
wilson with_bounds"""
BOUNDED = "mean_interval paired ppi"
EVALUATORS = """AgentAsJudgeEvaluator AnswerCorrectnessEvaluator AnswerRelevanceEvaluator BaseUnitMetric Bleu ByFunction
ByMetric CannotJudge ChoiceMatch Chrf Contains ContextRelevanceEvaluator EditDistance EmbeddingDistance
Evaluator ExactMatch FromOutput FunctionEvaluator GraphTrajectoryMatchEvaluator GroundednessEvaluator
JSONSchemaMatch JSONValid LLMJudge LLMTrajectoryJudge NumericMatch PairwiseJudge RedundantCallsEvaluator
RegexMatch Rouge RubricDagEvaluator RunOutput SetMatch TokenF1 ToolCallAccuracyEvaluator ToolUseEvaluator
TrajectoryMatchEvaluator UnitMetricRegistry UnitMetricResult"""
KEYWORDS = {
    "run": "task dataset store concurrency attempts limit progress",
    "evaluate": "store concurrency progress",
    "aggregate": "store progress",
    "compare": "store concurrency progress",
    "rank": "store concurrency progress",
}
FLAGS = {
    "run": """--abort-on-error --accept-code-change --attempts --batch_size --budget --check --concurrency --data
        --debug --description --expected --id --input --label --limit --model --new --no-cache --num_records
        --offset --output-format --output_dir --output_with_ts --param --recorded --refresh --resume
        --retries --retry-failed --run_args --run_name --skip-bad-rows --start_index --task --timeout --wait""",
    "evaluate": """--abort-on-error --amend --budget --concurrency --description --evaluator --label --new --no-cache
        --refresh --retry-failed --timeout --wait""",
    "aggregate": "--aggregator --confidence --description --label --new",
    "compare": "--cluster --confidence --evaluator --examples --fail-if-worse --format --metric --test",
    "rank": "--amend --confidence --elo --evaluator --format --metric --plan --seed --ties",
    "report": "--confidence --format --output",
    "graph": "--format --model --out",
    "ls": "--last --limit",
    "show": "--example --failed",
    "export": "--format --output",
    "rm": "--cascade",
    "models": "--check",
    "models cache": "--model --older-than",
    "memory": """--dataset --baseline --output-dir --dataset-type --judge --model --top-k --context-tokens --max-samples
        --eval-only --concurrency""",
}
"""Without --store, --json, --quiet and --help, which every command has."""


def test_names_of_modules():
    assert set(STATS.split()) <= set(karat.stats.__all__)
    assert set(EVALUATORS.split()) <= set(karat.evaluators.__all__)
    assert {"normalize", "normalize_trajectory", "TraceError"} <= set(karat.traces.__all__)
    assert "RecordedOutputs" in karat.tasks.__all__
    assert "FakeProvider" in karat.testing.__all__
    for name in BOUNDED.split():
        assert "bounds" in inspect.signature(getattr(karat.stats, name)).parameters
    assert {"generate", "generate_sync"} <= set(dir(karat.models.get("local/smollm2-135m")))
    assert {"places", "of"} <= set(dir(karat.Ranking))
    assert {"calls", "steps"} <= set(dir(karat.traces.normalize([{"role": "user", "content": "x"}])))


@pytest.mark.parametrize("function", KEYWORDS)
def test_keywords_of_functions_and_their_twins(function):
    for name in (function, f"{function}_async"):
        assert set(KEYWORDS[function].split()) <= set(inspect.signature(getattr(karat, name)).parameters)


@pytest.mark.parametrize("command", FLAGS)
def test_flags_of_commands(command):
    parser = command_parser(command, importlib.import_module(COMMANDS[command].module))
    known = set(parser._option_string_actions)
    assert {*FLAGS[command].split(), "--store", "--json", "--quiet", "--help"} <= known
