"""Tools: which functions of a module or a class a model is offered, and what becomes of its wish to call them."""

from __future__ import annotations

import asyncio
import json

import pytest

from karat.graph import load_task
from karat.testing import FakeProvider

TASK = """
data_config: {examples: [{id: a, question: "5 - 3"}]}
graph_config:
  nodes:
    ask:
      node_type: llm
      prompt: [{user: "{question}"}]
      tools: [TOOLS]
      output_keys: KEYS
      model: MODEL
  edges: [{from: START, to: ask}, {from: ask, to: END}]
output_config:
  output_map: {id: {from: id}, response: {from: response}, tool_calls: {from: tool_calls}}
"""
SUBTRACT = """
from langchain_core.tools import tool

@tool
def subtract(a: float, b: float):
    "Subtract b from a."
    return a - b
"""
CALL = {"text": "", "tool_calls": [{"name": "subtract", "arguments": {"a": 5, "b": 3}}]}


def asked(project, keys, answers=CALL, more=""):
    project.write("calc/tools.py", SUBTRACT)
    with FakeProvider(lambda request: answers) as server:
        text = TASK.replace("MODEL", server.spec()).replace("TOOLS", "tools").replace("KEYS", keys)
        project.write("calc/graph_config.yaml", text.replace("      model:", f"{more}      model:"))
        [record] = project.run("calc").records
    return record


def is_call(call):
    return (
        call["type"] == "function"
        and call["function"]["name"] == "subtract"
        and json.loads(call["function"]["arguments"]) == {"a": 5, "b": 3}
    )


@pytest.mark.parametrize("keys", ["[response, tool_calls]", "response"])
def test_a_post_processor_finds_the_wished_calls_in_the_state(project, keys):
    project.write(
        "calc/after.py",
        "class After:\n"
        "    def apply(self, resp, state):\n"
        "        assert state['tool_calls'][0]['function']['name'] == 'subtract'\n"
        "        return {'response': resp.message.content}\n",
    )
    record = asked(project, keys, more="      post_process: after.After\n")
    assert record["response"] == ""
    assert [is_call(call) for call in record["tool_calls"]] == [True]


def test_a_post_processor_that_is_a_function_finds_the_text_of_the_message(project):
    project.write(
        "calc/after.py",
        "def after(resp, state):\n    return {'response': [resp.content, resp.message.content]}\n",
    )
    record = asked(
        project, "response", {**CALL, "text": "let me see"}, more="      post_process: after.after\n"
    )
    assert record["response"] == ["let me see", "let me see"]


def test_without_a_post_processor_they_stand_beside_the_text(project):
    record = asked(project, "[response, tool_calls]", {**CALL, "text": "let me see"})
    assert record["response"] == "let me see"
    assert [is_call(call) for call in record["tool_calls"]] == [True]
    for keys in ("[response, tool_calls]", "response"):
        record = asked(project, keys)
        assert record["response"] == ""
        assert [is_call(call) for call in record["tool_calls"]] == [True]


def test_where_none_is_wished_the_list_is_empty(project):
    assert asked(project, "[response, tool_calls]", "two") == {"id": "a", "response": "two", "tool_calls": []}


def test_a_history_can_be_an_output_field(project):
    with FakeProvider(lambda request: "two") as server:
        text = TASK.replace("MODEL", server.spec()).replace("KEYS", "response").replace("tools: [TOOLS]", "")
        text = text.replace("tool_calls: {from: tool_calls}", "said: {from: __chat_history__}")
        project.write("calc/graph_config.yaml", text.replace("model:", "chat_history: true\n      model:"))
        [record] = project.run("calc").records
    assert record["said"] == [
        {"name": "ask", "request": [{"role": "user", "content": "5 - 3"}], "response": "two"}
    ]


CLASS = """
from abc import ABC
from karat.graph.sygra._functions import tool

class Tools(ABC):
    def not_a_tool(self):
        return "no"

    @tool
    def subtract(a: float, b: float):
        "Subtract b from a."
        return a - b

    @tool
    def add(self, a: float, b: float):
        return a + b

    @tool
    @staticmethod
    def twice(a: float):
        return 2 * a

    @staticmethod
    @tool("three_times")
    def thrice(a: float):
        return 3 * a

class Plain:
    step = 1
    def __init__(self):
        self.by = 10
    def times(self, a: int):
        return a * self.by
    def _hidden(self):
        return 0
    @classmethod
    def after(cls, a: int):
        return a + cls.step

def bare(a: int):
    return a
"""


def tools_of(project, name):
    project.write("calc/inside.py", CLASS)
    text = TASK.replace("MODEL", "m@http://127.0.0.1:9/v1").replace("TOOLS", name).replace("KEYS", "response")
    project.write("calc/graph_config.yaml", text)
    return load_task("calc").plan.nodes["ask"].tools


def test_tools_of_a_class_are_its_marked_functions_however_they_are_written(project):
    tools = tools_of(project, "inside.Tools")
    assert set(tools) == {"subtract", "add", "twice", "three_times"}
    described = tools["subtract"].described["function"]
    assert described["parameters"]["required"] == ["a", "b"]
    assert tools["add"].described["function"]["parameters"]["required"] == ["a", "b"]
    assert asyncio.run(tools["subtract"].call({"a": 5, "b": 3})) == "2"
    assert asyncio.run(tools["add"].call({"a": 5, "b": 3})) == "8"
    assert asyncio.run(tools["twice"].call({"a": 5})) == "10"
    assert asyncio.run(tools["three_times"].call({"a": 5})) == "15"


def test_a_class_without_marks_offers_its_public_methods(project):
    tools = tools_of(project, "inside.Plain")
    assert set(tools) == {"times", "after"}
    assert asyncio.run(tools["times"].call({"a": 5})) == "50"
    assert asyncio.run(tools["after"].call({"a": 5})) == "6"


def test_a_module_without_marks_offers_its_public_functions(project):
    assert set(tools_of(project, "inside")) == {"bare"}
