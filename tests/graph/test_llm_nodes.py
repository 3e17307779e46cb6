"""Nodes that ask models, against a provider on loopback."""

from __future__ import annotations

import json

import pytest

from karat.errors import ConfigError
from karat.graph import load_task
from karat.graph.nodes._models import Prompt
from karat.models import ParameterRefused
from karat.testing import FakeProvider

SIMPLE = """
data_config:
  examples:
    - {id: a, problem: "2 + 2", answer: "4"}
    - {id: b, problem: "3 + 3", answer: "6"}
graph_config:
  nodes:
    predict_answer:
      node_type: llm
      prompt:
        - system: |
            Answer with the number alone, as in {"n": 1} and {{problem}}.
        - user: |
            {problem}
      output_keys:
        - predicted_answer
      model:
        name: MODEL
        parameters:
          temperature: 0.1
          top_p: 0.9
    unit_metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_key: answer
      predicted_key: predicted_answer
      unit_metrics_map: [{name: exact_match, params: {key: text}}]
      output_keys: [exact_match]
  edges:
    - {from: START, to: predict_answer}
    - {from: predict_answer, to: unit_metrics}
    - {from: unit_metrics, to: END}
output_config:
  output_map:
    id: {from: id}
    predicted_answer: {from: predicted_answer}
    exact_match: {from: exact_match}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map: [{name: accuracy, params: {key: text}, unit_metrics_results: [exact_match]}]
"""


def test_a_prompt_is_filled_and_its_other_braces_survive(project):
    with FakeProvider(answers={"2 + 2\n": "4", "3 + 3\n": "7"}) as server:
        project.write("qa/graph_config.yaml", SIMPLE.replace("MODEL", server.spec()))
        outcome = project.run("qa")
        assert outcome.task.is_async
        assert [r["predicted_answer"] for r in outcome.records] == ["4", "7"]
        assert outcome.report()["results"]["exact_match-accuracy"]["accuracy"] == 0.5
        asked = server.requests[0]
        assert (
            asked["messages"][0]["content"] == 'Answer with the number alone, as in {"n": 1} and {problem}.\n'
        )
        assert (asked["temperature"], asked["top_p"]) == (0.1, 0.9)
    assert outcome.run.header.usage[server.spec()].calls == 2


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('[{{"assistant": <a>}}] {problem}', '[{"assistant": <a>}] 2 + 2'),
        ('{{\n  "a": {{"b": 1}}\n}} {{problem}}', '{\n  "a": {"b": 1}\n} {problem}'),
        ('{"a": {"b": 1}} {problem}', '{"a": {"b": 1}} 2 + 2'),
    ],
)
def test_doubled_braces_are_single_ones_as_in_sygras_templates(written, sent):
    prompt = Prompt([("user", written)])
    assert prompt.fill({"problem": "2 + 2"}) == [{"role": "user", "content": sent}]


def test_a_model_can_replace_those_of_the_file(project, refuses):
    with FakeProvider(answers="4") as server:
        project.write("qa/graph_config.yaml", SIMPLE.replace("name: MODEL", "name: eval_model"))
        with refuses(ConfigError):
            load_task("qa")
        assert len(project.run("qa", model=server.spec()).records) == 2


@pytest.mark.parametrize(
    ("api", "path"),
    [("chat", "/chat/completions"), ("responses", "/responses"), ("anthropic", "/messages")],
)
def test_a_node_says_the_wire_format_and_whether_answers_are_streamed(project, api, path):
    with FakeProvider(answers="4") as server:
        text = SIMPLE.replace("name: MODEL", f"name: {server.spec()}\n        api: {api}")
        project.write("qa/graph_config.yaml", text.replace("top_p: 0.9", "stream: true"))
        outcome = project.run("qa")
        assert len(outcome.records) == 2
        assert all(path in each for each in server.counts)
        assert all(body["stream"] is True for body in server.requests)
    for output in outcome.run.outputs():
        assert output.trace[0].metadata["first_token_seconds"] > 0


def test_the_wire_format_of_a_model_is_not_that_of_the_one_in_its_stead(project):
    with FakeProvider(answers="4") as server:
        text = SIMPLE.replace("name: MODEL", "name: eval_model\n        api: responses")
        project.write("qa/graph_config.yaml", text)
        assert len(project.run("qa", model=server.spec()).records) == 2
        assert all("/chat/completions" in each for each in server.counts)


def test_a_wire_format_that_there_is_not_is_reported_with_its_place(project, refuses):
    text = SIMPLE.replace("name: MODEL", "name: openai/gpt-4o\n        api: respones")
    project.write("qa/graph_config.yaml", text)
    with refuses(ConfigError):
        load_task("qa")


def test_a_parameter_that_the_model_refuses_is_reported_before_the_first_record(project, refuses):
    project.write("qa/graph_config.yaml", SIMPLE.replace("MODEL", "anthropic/claude-opus-4-7"))
    with refuses(ConfigError):
        load_task("qa")


def test_a_parameter_that_the_model_refuses_is_one_failure_of_the_run(project, refuses):
    with FakeProvider(answers="4") as server:
        project.write("qa/graph_config.yaml", SIMPLE.replace("MODEL", server.spec("gpt-5-mini")))
        with refuses(ParameterRefused):
            project.run("qa", concurrency=1)
        assert server.count == 1


def test_a_record_whose_model_fails_is_failed_and_counts(project):
    from karat.testing import Failing

    def answer(body):
        return "4" if "2 + 2" in str(body["messages"]) else {"raw": {"choices": []}}

    with FakeProvider(answers=answer, failures={99: Failing(status=500)}) as server:
        project.write(
            "models.yaml",
            f"quick:\n  model: fake\n  base_url: {server.url}\n  retries: {{limit: 0, base: 0.0001}}\n",
        )
        project.write("qa/graph_config.yaml", SIMPLE.replace("MODEL", "quick"))
        outcome = project.run("qa")
    assert outcome.run.status == "partial"
    [failure] = outcome.failures
    assert (failure["id"], failure["node"]) == ("b", "predict_answer")
    report = outcome.report()
    assert report["evaluation_summary"] | {"timestamp": ""} == {
        "total_records": 2,
        "evaluated_records": 1,
        "failed_records": 1,
        "skipped_records": 0,
        "status": "partial",
        "timestamp": "",
    }
    accuracy = report["results"]["exact_match-accuracy"]
    assert (accuracy["accuracy"], accuracy["n"], accuracy["of"]) == (1.0, 1, 2)
    assert accuracy["accuracy_bounds"] == [0.5, 1.0]


STRUCTURED = """
data_config: {examples: [{id: 1, text: "a tune"}]}
graph_config:
  nodes:
    classify:
      node_type: llm
      prompt: [{user: "{text}"}]
      output_keys: [topic, certain]
      model: {name: "MODEL"}
      structured_output:
        schema:
          fields:
            topic: {type: str, description: "the topic"}
            certain: {type: float, description: "how certain"}
"""


def test_fields_of_a_structured_answer_go_into_the_state(project):
    with FakeProvider(answers='{"topic": "Music", "certain": 0.5}') as server:
        project.write("c/graph_config.yaml", STRUCTURED.replace("MODEL", server.spec()))
        [record] = project.run("c").records
        assert (record["topic"], record["certain"]) == ("Music", 0.5)
        schema = server.requests[0]["response_format"]["json_schema"]["schema"]
        assert schema["properties"]["topic"] == {"type": "string", "description": "the topic"}


def test_a_pydantic_model_can_be_the_schema(project):
    config = STRUCTURED.replace("MODEL", "SPEC").partition("      structured_output:")[0]
    project.write(
        "c/schemas.py",
        "from pydantic import BaseModel\nclass Topic(BaseModel):\n    topic: str\n    certain: float\n",
    )
    with FakeProvider(answers='{"topic": "Music", "certain": 1}') as server:
        text = config.replace("SPEC", server.spec()) + "      structured_output: {schema: schemas.Topic}\n"
        project.write("c/graph_config.yaml", text)
        assert project.run("c").records[0]["topic"] == "Music"


def test_several_output_keys_of_plain_text_are_refused(project):
    project.write(
        "c/graph_config.yaml",
        STRUCTURED.partition("      structured_output:")[0].replace("MODEL", "a@http://127.0.0.1:9/v1"),
    )
    with pytest.raises(ConfigError, match="several output_keys need"):
        load_task("c")


def test_functions_before_and_after_see_state_and_message(project):
    project.write("c/graph_config.yaml", """
data_config: {examples: [{id: 1, text: "a tune"}]}
graph_config:
  nodes:
    classify:
      node_type: llm
      pre_process: c.task_executor.Before
      post_process: c.task_executor.After
      prompt: [{user: "{text} {mood}"}]
      output_keys: [topic]
""")  # fmt: skip
    project.write("c/task_executor.py", """
from sygra.core.graph.functions.node_processor import NodePreProcessor, NodePostProcessorWithState
from sygra.core.graph.sygra_message import SygraMessage
from sygra.core.graph.sygra_state import SygraState
from tasks.eval.utils import parse_response_as_json

class Before(NodePreProcessor):
    def apply(self, state: SygraState):
        state["mood"] = "in minor"
        return state

class After(NodePostProcessorWithState):
    def apply(self, response: SygraMessage, state: SygraState) -> SygraState:
        found = parse_response_as_json(response.message.content)
        state.update({"topic": found["topic"], "kind": response.message.type})
        return state
""")  # fmt: skip
    with FakeProvider(
        answers=lambda body: 'Here: {"topic": "' + body["messages"][0]["content"] + '"} so'
    ) as server:
        [record] = project.run("c", model=server.spec()).records
    assert record["topic"] == "a tune in minor"
    assert record["kind"] == "ai"


def test_multi_llm_asks_all_models_at_once(project):
    with FakeProvider(latency=0.05, answers=lambda body: body["model"]) as server:
        project.write("m/graph_config.yaml", f"""
data_config: {{examples: [{{id: 1, text: hello}}]}}
graph_config:
  nodes:
    both:
      node_type: multi_llm
      prompt: [{{user: "{{text}}"}}]
      output_keys: answers
      models:
        first: {{name: "one@{server.url}", parameters: {{temperature: 0}}}}
        second: {{name: "two@{server.url}"}}
""")  # fmt: skip
        [record] = project.run("m").records
        assert record["answers"] == [{"first": "one", "second": "two"}]
        assert server.most_in_flight == 2


AGENT = """
data_config: {examples: [{id: 1, city: Lima}]}
graph_config:
  nodes:
    ask:
      node_type: agent
      prompt: [{system: "Use the tools."}, {user: "How many people live in {city}?"}]
      tools: [tools]
      max_steps: 3
      inject_system_messages: {0: "Be brief.", 1: "Come to an end."}
      output_keys: [answer]
      model: {name: "MODEL"}
"""

TOOLS = '''
def population(city: str) -> int:
    """How many people live in a city."""
    return {"Lima": 10_000_000}[city]

def broken(city: str) -> int:
    """Always fails."""
    raise ValueError("no such thing")
'''


def test_an_agent_calls_tools_until_it_answers(project, says):
    def answer(body):
        told = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        if told:
            return f"It has {told[0]}; {told[1]}; {told[2]}"
        calls = [("population", {"city": "Lima"}), ("broken", {"city": "x"}), ("populatoin", {})]
        return {"text": "", "tool_calls": [{"name": n, "arguments": a} for n, a in calls]}

    project.write("a/tools.py", TOOLS)
    with FakeProvider(answers=answer) as server:
        project.write("a/graph_config.yaml", AGENT.replace("MODEL", server.spec()))
        outcome = project.run("a")
        described = server.requests[0]["tools"][0]["function"]
        assert described["name"] == "population"
        assert described["parameters"]["required"] == ["city"]
        asked = [[m for m in request["messages"] if m["role"] == "system"] for request in server.requests]
        # its own steps are no turns of the conversation
        assert asked == [[{"role": "system", "content": "Use the tools.\nBe brief."}]] * 2
    [record] = outcome.records
    says(record["answer"])
    [output] = outcome.run.outputs()
    assert [(call.kind, call.name) for call in output.trace] == [
        ("model", server.spec()), ("tool", "population"), ("tool", "broken"), ("model", server.spec()),
    ]  # fmt: skip


def test_an_agent_that_never_answers_fails(project, says):
    calls = {"text": "", "tool_calls": [{"name": "population", "arguments": {"city": "Lima"}}]}
    project.write("a/tools.py", TOOLS)
    with FakeProvider(answers=lambda body: calls) as server:
        project.write("a/graph_config.yaml", AGENT.replace("MODEL", server.spec()))
        [failure] = project.run("a").failures
    assert failure["node"] == "ask"
    assert failure["error"].startswith("AgentOutOfSteps: ")
    says(failure["error"])


def test_a_loop_continues_with_the_conversation_until_a_condition_ends_it(project):
    project.write("l/graph_config.yaml", """
data_config: {examples: [{id: 1, question: why}]}
graph_config:
  nodes:
    generate_answer: {node_type: llm, prompt: [{user: "{question}"}], model: {name: "MODEL"}}
    critique_answer: {node_type: llm, prompt: [{system: "criticise"}], output_role: user, model: {name: "MODEL"}}
  edges:
    - {from: START, to: generate_answer}
    - {from: generate_answer, to: critique_answer}
    - from: critique_answer
      condition: task_executor.ShouldContinueCondition
      path_map: {END: END, generate_answer: generate_answer}
output_config:
  output_map: {conversation: {from: messages}}
""")  # fmt: skip
    project.write("l/task_executor.py", """
from sygra.core.graph.functions.edge_condition import EdgeCondition
from sygra.core.graph.sygra_state import SygraState
from sygra.utils import constants

class ShouldContinueCondition(EdgeCondition):
    def apply(state: SygraState) -> str:
        messages = state["messages"]
        if "no more" in messages[-1].content.lower():
            return constants.SYGRA_END
        return "generate_answer"
""")  # fmt: skip
    answers = ["because", "say more", "because it is so", "No more feedback"]
    with FakeProvider(answers=answers) as server:
        [record] = project.run("l", model=server.spec()).records
        assert [m["content"] for m in record["conversation"]] == answers
        assert [m["role"] for m in record["conversation"]] == ["assistant", "user", "assistant", "user"]
        assert len(server.requests[2]["messages"]) == 3


def test_chat_history_is_sent_again(project):
    project.write("h/graph_config.yaml", """
data_config: {examples: [{id: 1, question: why}]}
graph_config:
  graph_properties: {chat_conversation: multiturn, chat_history_window_size: 5}
  nodes:
    first: {node_type: llm, chat_history: true, prompt: [{system: s}, {user: "{question}"}], output_keys: one}
    second: {node_type: llm, chat_history: true, prompt: [{system: s}, {user: "and {one}?"}], output_keys: two}
""")  # fmt: skip
    with FakeProvider(answers=["so", "yes"]) as server:
        project.run("h", model=server.spec())
        said = [(m["role"], m["content"]) for m in server.requests[1]["messages"]]
    assert said == [("system", "s"), ("user", "why"), ("assistant", "so"), ("user", "and so?")]


def test_images_and_audio_are_parts_of_a_prompt(project, says):
    project.write("i/graph_config.yaml", """
data_config:
  examples:
    - {id: 1, picture: "data:image/png;base64,AAAA", sound: "data:audio/wav;base64,BBBB"}
    - {id: 2, picture: /etc/passwd, sound: x}
graph_config:
  nodes:
    look:
      node_type: llm
      prompt:
        - user:
            - {type: text, text: "What is in {id}?"}
            - {type: image_url, image_url: "{picture}"}
            - {type: audio_url, audio_url: "{sound}"}
      output_keys: [seen]
""")  # fmt: skip
    with FakeProvider(answers="a cat") as server:
        outcome = project.run("i", model=server.spec())
        content = server.requests[0]["messages"][0]["content"]
    assert content[0] == {"type": "text", "text": "What is in 1?"}
    assert content[1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert content[2] == {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}}
    says(outcome.failures[0]["error"])


def test_a_variable_with_several_images_is_a_part_for_each(project):
    project.write("i/graph_config.yaml", """
data_config:
  examples:
    - {id: 1, pictures: ["data:image/png;base64,AAAA", "https://127.0.0.1/b.png"]}
    - {id: 2, pictures: []}
graph_config:
  nodes:
    look:
      node_type: llm
      prompt: [{user: [{type: text, text: "Compare."}, {type: image_url, image_url: "{pictures}"}]}]
      output_keys: [seen]
""")  # fmt: skip
    with FakeProvider(answers="a cat") as server:
        assert not project.run("i", model=server.spec()).failures
        asked = sorted((request["messages"][0]["content"] for request in server.requests), key=len)
    assert asked[0] == [{"type": "text", "text": "Compare."}]
    assert [part["image_url"]["url"] for part in asked[1][1:]] == [
        "data:image/png;base64,AAAA", "https://127.0.0.1/b.png",
    ]  # fmt: skip


def test_a_post_processor_gets_a_structured_reply_without_its_fence(project):
    project.write(
        "s/reading.py", "import json\ndef read(resp):\n    return {'x': json.loads(resp.content)['a']}\n"
    )
    project.write("s/graph_config.yaml", """
data_config: {examples: [{id: 1}]}
graph_config:
  nodes:
    ask:
      node_type: llm
      prompt: [{user: hi}]
      model: {name: MODEL, structured_output: {schema: {fields: {a: {type: int}}}}}
      post_process: reading.read
      output_keys: [x]
""")  # fmt: skip
    with FakeProvider(answers='Here it is:\n```json\n{"a": 5}\n```') as server:
        [record] = project.run("s", model=server.spec()).records
    assert record["x"] == 5


def test_branches_of_models_run_at_the_same_time_and_join(project):
    project.write("b/graph_config.yaml", """
data_config: {examples: [{id: 1, text: hello}]}
graph_config:
  nodes:
    left: {node_type: llm, prompt: [{user: "left {text}"}], output_keys: l}
    right: {node_type: llm, prompt: [{user: "right {text}"}], output_keys: r}
    longer: {node_type: llm, prompt: [{user: "longer {r}"}], output_keys: rr}
    join: {node_type: lambda, lambda: joining.join, output_keys: [both]}
  edges:
    - {from: START, to: [left, right]}
    - {from: right, to: longer}
    - {from: [left, longer], to: join}
    - {from: join, to: END}
""")  # fmt: skip
    project.write(
        "b/joining.py",
        "def join(state):\n    return {'both': [*state.get('both', []), state['l'], state['rr']]}\n",
    )
    with FakeProvider(latency=0.05) as server:
        [record] = project.run("b", model=server.spec()).records
        assert server.most_in_flight == 2
    assert record["both"] == ["left hello", "longer right hello"]


def test_json_of_the_whole_record_can_be_a_variable(project):
    project.write("j/graph_config.yaml", """
data_config: {examples: [{id: 1, row: {a: [1, 2]}}]}
graph_config:
  nodes:
    say: {node_type: llm, prompt: [{user: "{row} {row.a} {row.a.1}"}], output_keys: said}
""")  # fmt: skip
    with FakeProvider() as server:
        [record] = project.run("j", model=server.spec()).records
    assert record["said"] == '{"a":[1,2]} [1,2] 2'
    assert json.loads(record["said"].split(" ")[0]) == {"a": [1, 2]}


def test_a_prompt_reaches_into_lists(project, refuses, says):
    nested = SIMPLE.replace('problem: "2 + 2"', 'd: {e: [x, "2 + 2"]}').replace(
        'problem: "3 + 3"', "d: {e: [x]}"
    )
    config = nested.replace("            {problem}\n", "            {d.e[1]}\n")
    with FakeProvider(answers={"2 + 2\n": "4"}) as server:
        project.write("qa/graph_config.yaml", config.replace("MODEL", server.spec()))
        outcome = project.run("qa")
        assert [record["predicted_answer"] for record in outcome.records] == ["4"]
        [failure] = outcome.failures
        says(failure["error"])
        project.write(
            "qa/graph_config.yaml", config.replace("d.e[1]", "f[1]").replace("MODEL", server.spec())
        )
        with refuses(ConfigError):
            load_task("qa").dataset()


FIELDS = """
data_config: {examples: [{id: a, q: one}, {id: b, q: two}]}
graph_config:
  nodes:
    rate:
      node_type: llm
      prompt: [{user: "{q}"}]
      output_keys: [rating, sure]
      model:
        name: MODEL
        structured_output: {schema: SCHEMA}
output_config: {output_map: {id: {from: id}, rating: {from: rating}, sure: {from: sure}}}
"""
SIMPLE_FIELDS = "{fields: {rating: {type: int}, sure: {type: bool}}}"
CLOSED = (
    "{type: object, required: [rating, sure], additionalProperties: false,"
    " properties: {rating: {type: integer}, sure: {type: boolean}}}"
)


def test_a_structured_answer_may_have_more_fields_and_text_is_read_as_the_type_that_is_asked_for(
    project, says
):
    answers = {"one": '{"rating": "3", "sure": "True", "why": "so"}', "two": '{"rating": 4, "sure": false}'}
    with FakeProvider(answers=answers) as server:
        text = FIELDS.replace("MODEL", server.spec()).replace("SCHEMA", SIMPLE_FIELDS)
        project.write("r/graph_config.yaml", text)
        outcome = project.run("r")
        assert server.count == 2, "no answer is asked for again"
        asked = server.requests[0]["response_format"]["json_schema"]
        assert asked["strict"] is True
    assert outcome.records == [
        {"id": "a", "rating": 3, "sure": True},
        {"id": "b", "rating": 4, "sure": False},
    ]
    [first, second] = outcome.run.outputs()
    assert first.trace[0].metadata["coerced"] == {"rating": "int", "sure": "bool"}
    assert "coerced" not in second.trace[0].metadata
    says(*[note for note in outcome.written.notes if "'rating'" in note])


def test_a_schema_that_forbids_more_fields_is_obeyed(project):
    with FakeProvider(answers='{"rating": 3, "sure": true, "why": "so"}') as server:
        project.write("r/graph_config.yaml", FIELDS.replace("MODEL", server.spec()).replace("SCHEMA", CLOSED))
        outcome = project.run("r")
    assert [failure["node"] for failure in outcome.failures] == ["rate", "rate"]


@pytest.mark.parametrize("given", ['"three"', '"3.5"', '" "', "null", '"1e400"'])
def test_a_number_of_another_kind_is_refused(project, given):
    with FakeProvider(answers=f'{{"rating": {given}, "sure": true}}') as server:
        text = FIELDS.replace("MODEL", server.spec()).replace("SCHEMA", SIMPLE_FIELDS)
        project.write("r/graph_config.yaml", text)
        assert len(project.run("r").failures) == 2
