"""Messages, chat histories and local state, as SyGra 2.1 gives them for the same scripted replies."""

from __future__ import annotations

import pytest

from karat.graph.nodes._models import NEXT_TURN, SINGLE_TURN
from karat.graph.sygra._functions import extract_and_load_json
from karat.testing import FakeProvider

CODE = """
from sygra.core.graph.functions.edge_condition import EdgeCondition
from sygra.core.graph.functions.node_processor import (
    NodePostProcessor, NodePostProcessorWithState, NodePreProcessor,
)
from langchain_core.messages import AIMessage, HumanMessage
from sygra.processors.output_record_generator import BaseOutputGenerator
from sygra.utils import constants, utils


class Swap(NodePreProcessor):
    def apply(self, state):
        kinds = {"ai": HumanMessage, "human": AIMessage}
        state["messages"] = [kinds[m.type](content=m.content) for m in state["messages"]]
        state["question"] = state["question"].upper()
        return state


class AsUser(NodePostProcessor):
    def apply(self, response):
        return {"messages": [HumanMessage(response.message.content)]}


class KeepsState(NodePostProcessorWithState):
    def apply(self, response, state):
        state["answer"] = response.message.content
        return state


class Enough(EdgeCondition):
    def apply(state):
        done = "enough" in state["messages"][-1].content.lower()
        return constants.SYGRA_END if done else "answer"


class Talk(BaseOutputGenerator):
    def talk(self, data, state):
        return utils.convert_messages_from_langchain_to_chat_format(data)


def one(state):
    return {"messages": [AIMessage("one")]}


def two(state):
    return {"messages": [HumanMessage("two")]}


def grow(state):
    state["items"].append(2)
    state["deep"]["list"][0]["a"].append(2)
    state["messages"].append(HumanMessage("there"))


def seen(response, state):
    return {"answer": state["items"]}


def grow_more(response, state):
    state["items"].append(3)


def whole_state(response, state):
    return state


class Persona(NodePreProcessor):
    def apply(self, state):
        state["_agent_prompt"] = "You are Ann."
        state["_agent_name"] = "Ann"
        return state


def named(response, state):
    return {"spoke": response.message.name, "said": response.message.content}


def gather(outputs):
    return {"seen": {label: update["answers"] for label, update in outputs.items()}}


def changes_only(response, state):
    state["answer"] = response.message.content.upper()
"""


@pytest.fixture
def run(project):
    """Runs a graph over one record with scripted replies; gives its output and the requests."""

    def go(text, *replies, **record):
        project.write("t/code.py", CODE)
        row = {"id": "r", "question": "why", **record}
        project.write("t/graph_config.yaml", f"data_config: {{examples: [{row!r}]}}\n{text}")
        with FakeProvider(answers=list(replies)) as server:
            outcome = project.run("t", model=server.spec())
            assert outcome.failures == []
            return outcome.records[0], [request["messages"] for request in server.requests]

    return go


LOOP = """
graph_config:
  nodes:
    answer: {node_type: llm, prompt: [{user: "{question}"}]}
    criticise:
      node_type: llm
      pre_process: code.Swap
      post_process: code.AsUser
      prompt: [{system: "About {question}"}]
  edges:
    - {from: START, to: answer}
    - {from: answer, to: criticise}
    - {from: criticise, condition: code.Enough, path_map: {END: END, answer: answer}}
output_config:
  generator: code.Talk
  output_map: {question: {from: question}, talk: {from: messages, transform: talk}}
"""


def test_messages_append_and_a_pre_processor_changes_only_what_its_node_sees(run):
    record, requests = run(LOOP, "first", "say more", "second", "Enough")
    assert record["question"] == "why"
    assert record["talk"] == [
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "say more"},
        {"role": "assistant", "content": "second"},
        {"role": "user", "content": "Enough"},
    ]
    assert requests[3] == [
        {"role": "system", "content": "About WHY"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "say more"},
        {"role": "user", "content": "second"},
    ]


def test_two_nodes_that_return_one_message_each_give_two(run):
    record, _ = run("""
graph_config:
  nodes: {a: {node_type: lambda, lambda: code.one}, b: {node_type: lambda, lambda: code.two}}
output_config: {output_map: {messages: {from: messages}}}
""")  # fmt: skip
    assert [m["content"] for m in record["messages"]] == ["one", "two"]


def test_a_state_that_is_handed_back_adds_no_message_twice(run):
    record, _ = run("""
graph_config:
  nodes:
    a: {node_type: lambda, lambda: code.one}
    b: {node_type: llm, prompt: [{user: "{question}"}], post_process: code.KeepsState}
output_config: {output_map: {messages: {from: messages}, answer: {from: answer}}}
""", "so")  # fmt: skip
    assert [m["content"] for m in record["messages"]] == ["one"]
    assert record["answer"] == "so"


def test_a_post_processor_that_returns_nothing_keeps_what_it_changed(run):
    record, _ = run("""
graph_config:
  nodes:
    b:
      {node_type: llm, prompt: [{user: "{question}"}], pre_process: code.Swap, post_process: code.changes_only}
output_config: {output_map: {question: {from: question}, answer: {from: answer}}}
""", "so")  # fmt: skip
    assert record == {"question": "why", "answer": "SO"}


NESTED = """
graph_config:
  nodes:
    say: {node_type: lambda, lambda: code.one}
    b: {node_type: llm, prompt: [{user: "{items} {deep.list}"}], pre_process: code.grow, POST}
output_config:
  output_map: {items: {from: items}, deep: {from: deep}, messages: {from: messages}, answer: {from: answer}}
"""


@pytest.mark.parametrize(
    ("post", "items", "said", "answer"),
    [
        ("output_keys: answer", [1], ["one"], "so"),
        ("post_process: code.seen", [1], ["one"], [1, 2]),
        (
            "post_process: code.grow_more",
            [1, 2, 3],
            ["one"],
            None,
        ),  # what it changed itself, as the node saw it
        ("post_process: code.whole_state", [1, 2], ["one", "there"], None),
    ],
)
def test_changes_of_a_pre_processor_inside_values_stay_in_its_node(run, post, items, said, answer):
    record, requests = run(NESTED.replace("POST", post), "so", items=[1], deep={"list": [{"a": [1]}]})
    assert requests[0][0]["content"] == '[1,2] [{"a":[1,2]}]'
    assert record["items"] == items
    changed = post.endswith("whole_state")
    assert record["deep"] == {"list": [{"a": [1, 2] if changed else [1]}]}
    assert [each["content"] for each in record["messages"]] == said
    assert record["answer"] == answer


def test_the_message_of_a_node_has_its_name(run):
    record, _ = run("graph_config: {nodes: {ask: {node_type: llm, prompt: [{user: q}]}}}", "so")
    assert record["messages"] == [{"role": "assistant", "content": "so", "name": "ask"}]


AGENTS = """
graph_config:
  graph_properties: {chat_conversation: CONVERSATION, chat_history_window_size: 5}
  nodes:
    ann:
      node_type: agent
      chat_history: true
      pre_process: code.Persona
      post_process: code.named
      inject_system_messages: [{1: "Come to an end."}]
      prompt: [{user: "{question}"}]
    bob: {node_type: agent, chat_history: true, prompt: [{system: "You are Bob."}, {user: "{said}"}], output_keys: x}
    ann2:
      node_type: agent
      chat_history: true
      pre_process: code.Persona
      inject_system_messages: [{1: "Come to an end."}]
      prompt: [{user: "{x}"}]
      output_keys: y
output_config: {output_map: {history: {from: __chat_history__}, spoke: {from: spoke}, said: {from: said}, y: {from: y}}}
"""


def test_a_chat_history_has_name_request_and_response_and_agents_have_their_own_instructions(run):
    text = AGENTS.replace("CONVERSATION", "multiturn")
    record, requests = run(text, " Hello \n", "Hi", "Bye")
    assert record["spoke"] == "Ann"
    assert record["said"] == " Hello \n", "an agent's answer is not stripped"
    first, second, third = record["history"]
    assert first == {"name": "ann", "request": [{"role": "user", "content": "why"}], "response": " Hello \n"}
    assert (second["name"], second["response"]) == ("bob", "Hi")
    assert (third["name"], third["response"]) == ("ann2", "Bye")
    assert requests[0][0] == {"role": "system", "content": "You are Ann."}
    assert requests[1][0] == {"role": "system", "content": "You are Bob."}
    assert requests[2][0] == {"role": "system", "content": "You are Ann.\nCome to an end."}
    assert [m["role"] for m in requests[2]] == ["system", "user", "assistant", "user", "assistant", "user"]


def test_a_single_turn_conversation_is_sent_as_one_message(run):
    record, requests = run(AGENTS.replace("CONVERSATION", "singleturn"), "Hello", "Hi", "Bye")
    assert len(record["history"]) == 3
    # the prompt is sent as it is while there is no history; then the message stands in its place
    assert [m["content"] for m in requests[0]] == ["You are Ann.", "why"]
    assert [m["role"] for m in requests[1]] == ["user"]
    assert [m["role"] for m in requests[2]] == ["system", "user"]
    first, second, *turns, _, last = requests[2][1]["content"].split("\n")
    assert (first, second) == SINGLE_TURN
    # SyGra puts the first turn before the window, also where the window has it
    assert turns == ["Organizer: why", "ann: Hello", "ann: Hello", "bob: Hi"]
    assert last == NEXT_TURN.format("ann2").strip()
    assert record["history"][2]["request"] == [requests[2][1]]


def test_a_single_turn_has_the_first_turn_and_the_window(run):
    text = AGENTS.replace("CONVERSATION", "singleturn").replace("window_size: 5", "window_size: 1")
    _, requests = run(text, "Hello", "Hi", "Bye")
    assert requests[2][1]["content"].split("\n")[2:-2] == ["Organizer: why", "ann: Hello", "bob: Hi"]


def test_a_history_that_the_data_bring_starts_at_its_first_user_turn(run):
    record, requests = run(
        """
graph_config:
  graph_properties: {chat_conversation: multiturn, chat_history_window_size: 3}
  nodes: {ask: {node_type: llm, chat_history: true, prompt: [{system: s}, {user: "{question}"}], output_keys: x}}
output_config: {output_map: {history: {from: __chat_history__}}}
""",
        "so",
        __chat_history__=[
            {"role": "user", "content": "u1"},
            {"role": "assistant", "content": "a1"},
            {"role": "user", "content": "u2"},
            {"role": "assistant", "content": "a2"},
        ],
    )
    assert [m["content"] for m in requests[0]] == ["s", "u2", "a2", "why"]
    assert record["history"][-1]["response"] == "so"


MULTI = """
graph_config:
  nodes:
    both:
      node_type: multi_llm
      prompt: [{user: "{question}"}]
      output_keys: answers
      MORE
      models:
        a: {name: m, structured_output: {schema: {fields: {message: {type: str}}}}}
"""


def test_multi_llm_gives_a_list_with_one_mapping_of_texts(run):
    record, _ = run(MULTI.replace("MORE", ""), ' {"message": "m"} \n')
    assert record["answers"] == [{"a": '{"message": "m"}'}]


def test_a_multi_llm_post_processor_gets_what_each_model_would_add(run):
    record, _ = run(MULTI.replace("MORE", "multi_llm_post_process: code.gather"), ' {"message": "m"} \n')
    assert record["seen"] == {"a": '{"message": "m"}'}


def test_an_answer_is_stripped(run):
    record, _ = run(
        "graph_config: {nodes: {ask: {node_type: llm, prompt: [{user: q}], output_keys: x}}}", "  so \n"
    )
    assert record["x"] == "so"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ('Ratings: [{"a": 1}]. Done', [{"a": 1}]),
        ('```json\n[\n {"a": 1}\n]\n```', [{"a": 1}]),
        ('see [1]: {"a": {"b": 2}}', {"a": {"b": 2}}),
        ('{"a": 1} and {"b": 2}', {"a": 1}),
        ("list: [1, 2]", [1, 2]),
        ("[]", []),
        ("3", None),
        ("nothing", None),
        ("", None),
        (None, None),
        ("[" * 100_000, None),
        ("{" * 100_000, None),
    ],
)
def test_json_is_found_in_an_answer(text, found):
    assert extract_and_load_json(text) == found


def test_calls_of_tools_and_their_results_stay_with_the_messages_of_a_conversation(run):
    """Providers refuse the result of a call that the message before it does not have."""
    text = "graph_config: {nodes: {ask: {node_type: llm, prompt: [{system: s}], output_keys: x}}}"
    said = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "add", "args": {"a": 1}}]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
    ]
    _, [asked] = run(text, "so", messages=said)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    assert asked[1:] == [said[0], {**said[1], "tool_calls": [call]}, said[2]]
