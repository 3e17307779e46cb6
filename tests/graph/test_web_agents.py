"""A web agent's task as SyGra's own is built: relative imports, tools, retries in the state, a report over tries."""

from __future__ import annotations

import json

import pytest

from karat.graph import load_task
from karat.testing import FakeProvider

FOLDER = "tasks/eval/agents/web_agents"
CODE = "tasks.eval.agents.web_agents.task_executor"

GRAPH = f"""
data_config:
  source:
    type: disk
    file_path: {FOLDER}/recorded.json
    file_format: json
    transformations:
      - transform: sygra.processors.data_transform.AddRetryFieldsTransform
        params: {{max_retries: 3, initial_retry_count: 0, original_current_user_text: }}
graph_config:
  graph_properties:
    chat_conversation: multiturn
    chat_history_window_size: 1000
    retry_chat_injection: {{required: "yes", retry_prompt_injection: "yes"}}
  nodes:
    fetch_next_action_tools:
      node_type: llm
      chat_history: True
      pre_process: {CODE}.BeforeAsking
      post_process: {CODE}.AfterAsking
      output_keys: [model_responses]
      prompt:
        - system: [{{type: text, text: "Do what the mission wants: {{mission}}"}}]
        - user:
            - {{type: image_url, image_url: "{{current_screenshot}}"}}
            - {{type: text, text: "{{current_user_text}}"}}
      tools: [tasks.eval.agents.web_agents.tools]
      tool_choice: auto
      model: {{name: eval_model, parameters: {{temperature: 0.3}}}}
    inline_evaluation:
      node_type: lambda
      lambda: {CODE}.Judge
      output_keys: [tool_match, step_match]
    evaluate_step:
      node_type: lambda
      lambda: {CODE}.CountRetries
      output_keys: [should_continue]
  edges:
    - {{from: START, to: fetch_next_action_tools}}
    - {{from: fetch_next_action_tools, to: inline_evaluation}}
    - {{from: inline_evaluation, to: evaluate_step}}
    - from: evaluate_step
      condition: {CODE}.Again
      path_map: {{END: END, fetch_next_action_tools: fetch_next_action_tools}}
output_config:
  output_map:
    id: {{from: id}}
    mission_id: {{from: mission_id}}
    turn: {{from: turn}}
    model_responses: {{from: model_responses}}
    tool_match: {{from: tool_match}}
    step_match: {{from: step_match}}
  oasst_mapper: {{required: "no", type: sft, intermediate_writing: "yes"}}
graph_post_process:
  - processor: {CODE}.Flatten
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      use_previous_output: True
      aggregator_metrics_map:
        - {{name: accuracy, params: {{key: tool}}, unit_metrics_results: [tool_match]}}
        - {{name: accuracy, params: {{key: tool}}, unit_metrics_results: [step_match]}}
        - {{name: precision, params: {{predicted_key: tool}}, unit_metrics_results: [step_match]}}
        - {{name: recall, params: {{golden_key: tool}}, unit_metrics_results: [step_match]}}
        - {{name: f1_score, params: {{predicted_key: tool, golden_key: tool}}, unit_metrics_results: [step_match]}}
        - {{name: "pass@k", params: {{k: 3}}, unit_metrics_results: [step_match]}}
        - {{name: "pass^k", params: {{k: 3}}, unit_metrics_results: [step_match]}}
        - name: step_efficiency
          params: {{key: tool}}
          metadata: {{mission_id: mission_id, step_id: turn, retry_id: retry_id}}
          unit_metrics_results: [step_match]
"""

EXECUTOR = """
import json

from sygra.core.eval.metrics.unit_metrics.action_within_bbox import ActionWithinBboxMetric
from sygra.core.eval.metrics.unit_metrics.exact_match import ExactMatchMetric
from sygra.core.eval.metrics.unit_metrics.scroll_direction import ScrollDirectionMetric
from sygra.core.eval.metrics.unit_metrics.typed_value_match import TypedValueMatchMetric
from sygra.core.graph.functions.edge_condition import EdgeCondition
from sygra.core.graph.functions.lambda_function import LambdaFunction
from sygra.core.graph.functions.node_processor import NodePostProcessorWithState, NodePreProcessor
from sygra.core.graph.graph_postprocessor import GraphPostProcessor
from sygra.utils import constants, utils

from .constants import KINDS, PREFIX

METRICS = {"click": ActionWithinBboxMetric, "typing": TypedValueMatchMetric, "scroll": ScrollDirectionMetric}


class BeforeAsking(NodePreProcessor):
    @classmethod
    def apply(cls, state):
        told = utils.get_graph_properties(utils.current_task).get("retry_chat_injection", {})
        state["current_screenshot"] = "data:image/png;base64,iVBORw0KGgo="
        if state["curr_retries"] and told.get("retry_prompt_injection") == "yes":
            state["current_user_text"] = f"{state['asked']} (retry {state['curr_retries']})"
        else:
            state["current_user_text"] = state["asked"]
        return state


class AfterAsking(NodePostProcessorWithState):
    @classmethod
    def apply(cls, resp, state):
        said = {"text_response": resp.message.content, "tool_calls": state.get("tool_calls", [])}
        state.setdefault("model_responses", {})[f"{PREFIX}{state['curr_retries']}"] = said
        return state


class Judge(LambdaFunction):
    @classmethod
    def apply(cls, lambda_node_dict, state):
        retry = f"{PREFIX}{state['curr_retries']}"
        calls = state["model_responses"][retry]["tool_calls"]
        if not calls:
            return state
        tool = KINDS.get(calls[0]["function"]["name"], calls[0]["function"]["name"])
        golden = {**state["golden_response"]["properties"], "tool": state["golden_response"]["tool"]}
        predicted = {**json.loads(calls[0]["function"]["arguments"]), "tool": tool}
        [match] = ExactMatchMetric(key="tool").evaluate(golden=[golden], predicted=[predicted])
        [step] = METRICS[tool]().evaluate(golden=[golden], predicted=[predicted])
        state.setdefault("tool_match", {})[retry] = match.to_dict()
        state.setdefault("step_match", {})[retry] = step.to_dict()
        return state


class CountRetries(LambdaFunction):
    @classmethod
    def apply(cls, lambda_node_dict, state):
        state["curr_retries"] += 1
        state["should_continue"] = state["curr_retries"] < state["max_retries"]
        return state


class Again(EdgeCondition):
    @classmethod
    def apply(cls, state):
        return "fetch_next_action_tools" if state["should_continue"] else constants.SYGRA_END


class Flatten(GraphPostProcessor):
    def process(self, data, metadata):
        return [
            {
                "mission_id": record["mission_id"],
                "turn": record["turn"],
                "retry_id": retry,
                "tool_match": (record["tool_match"] or {}).get(retry),
                "step_match": (record["step_match"] or {}).get(retry),
            }
            for record in data
            for retry in record["model_responses"]
        ]
"""

TOOLS = '''
from langchain_core.tools import tool


@tool
def click_tool(x: float, y: float):
    """Clicks at a point."""


@tool
def type_tool(text: str):
    """Types a text."""


@tool
def scroll_tool(direction: str):
    """Scrolls."""
'''

BOX = {"bbox": {"x": 0, "y": 0, "width": 10, "height": 10}}
INSIDE, OUTSIDE = ("click_tool", {"x": 5, "y": 5}), ("click_tool", {"x": 50, "y": 5})
STEPS = [
    ("shop", 1, "open it", "click", BOX, [INSIDE, INSIDE, INSIDE]),
    ("shop", 2, "say it", "typing", {"text": "red kettle"}, [INSIDE, ("type_tool", {"text": "red kettle"}), OUTSIDE]),
    ("shop", 3, "go on", "scroll", {"direction": "down"}, [("scroll_tool", {"direction": "up"})] * 3),
    ("news", 1, "close it", "click", BOX, [None, OUTSIDE, INSIDE]),
]  # fmt: skip


@pytest.fixture
def outcome(project):
    project.write(f"{FOLDER}/graph_config.yaml", GRAPH)
    project.write(f"{FOLDER}/task_executor.py", EXECUTOR)
    project.write(f"{FOLDER}/tools.py", TOOLS)
    project.write(
        f"{FOLDER}/constants.py",
        "PREFIX = 'retry_'\nKINDS = {'click_tool': 'click', 'type_tool': 'typing', 'scroll_tool': 'scroll'}\n",
    )
    rows = [
        {
            "id": f"{mission}-{turn}",
            "mission": "shopping",
            "mission_id": mission,
            "turn": turn,
            "asked": asked,
            "golden_response": {"tool": tool, "properties": properties},
        }
        for mission, turn, asked, tool, properties, _ in STEPS
    ]
    project.write(f"{FOLDER}/recorded.json", json.dumps(rows))
    answers = {asked: calls for _, _, asked, _, _, calls in STEPS}

    def answer(request):
        asked, _, retry = request["messages"][-1]["content"][-1]["text"].partition(" (retry ")
        call = answers[asked][int(retry[:-1]) if retry else 0]
        calls = [] if call is None else [{"name": call[0], "arguments": call[1]}]
        return {"text": "so", "tool_calls": calls}

    with FakeProvider(answer) as server:
        yield project.run("tasks.eval.agents.web_agents", model=server.spec())


def test_every_step_is_tried_as_often_as_the_task_says(outcome):
    assert [record["id"] for record in outcome.records] == ["shop-1", "shop-2", "shop-3", "news-1"]
    assert all(list(r["model_responses"]) == ["retry_0", "retry_1", "retry_2"] for r in outcome.records)
    assert not outcome.failures


def test_another_tool_is_wrong_and_no_reason_to_fail(outcome, says):
    clicked = outcome.records[1]["step_match"]["retry_0"]
    assert clicked["correct"] is False
    says(clicked["metadata"]["reason"])


def test_the_report_is_over_tries_and_steps(outcome):
    results = outcome.report()["results"]
    assert results["tool_match-accuracy"]["accuracy"] == pytest.approx(9 / 11)
    assert results["step_match-accuracy"]["accuracy"] == pytest.approx(5 / 11)
    assert (results["step_match-accuracy"]["n"], results["step_match-accuracy"]["of"]) == (11, 12)


def test_a_class_is_right_only_where_the_whole_step_was(outcome):
    results = outcome.report()["results"]
    precision = results["step_match-precision"]["precision_per_class"]
    recall = results["step_match-recall"]["recall_per_class"]
    # clicks: 4 of 7 were inside, though 5 of them were where a click was wanted
    assert precision == {"click": pytest.approx(4 / 7), "scroll": 0.0, "typing": 1.0}
    assert recall == {"click": pytest.approx(4 / 5), "scroll": 0.0, "typing": pytest.approx(1 / 3)}
    f1 = results["step_match-f1_score"]["f1_score_per_class"]
    assert f1["click"] == pytest.approx(2 * (4 / 7) * (4 / 5) / (4 / 7 + 4 / 5))


def test_pass_at_k_without_problems_draws_from_all_results(outcome):
    results = outcome.report()["results"]
    at, hat = results["step_match-pass@k"], results["step_match-pass^k"]
    assert [at[f"pass@{k}"] for k in (1, 2, 3)] == [
        pytest.approx(value) for value in (5 / 11, 1 - 15 / 55, 1 - 20 / 165)
    ]
    assert hat["success_rate"] == hat["pass^1"] == pytest.approx(5 / 11)
    assert hat["pass^3"] == pytest.approx(10 / 165)
    assert at["pooled"] is hat["pooled"] is True
    assert at["pass@3_bounds"] == [pytest.approx(1 - 35 / 220), pytest.approx(1 - 20 / 220)]
    assert (at["n"], at["of"]) == (11, 12)


def test_step_efficiency_is_by_the_try_that_was_right(outcome):
    found = outcome.report()["results"]["step_match-step_efficiency"]
    # at once, at the first retry, never; of the last step the first try has no verdict
    assert found["step_efficiency"] == pytest.approx((1.0 + 0.8 + 0.0) / 3)
    assert (found["n"], found["of"], found["total_steps"]) == (3, 4, 4)
    counts = [found[key] for key in ("first_attempt_correct", "retry_correct", "never_correct")]
    assert counts == [1, 1, 1]
    assert found["avg_retries_when_correct"] == 0.5


def test_ignored_settings_are_reported_with_their_line(outcome, says):
    says(*outcome.task.notes)
    assert (
        load_task("tasks.eval.agents.web_agents", model="fake@http://127.0.0.1:9/v1").notes
        == outcome.task.notes
    )
