"""The small functions that the Python files of SyGra tasks import beside the classes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from karat.errors import RequestError
from karat.graph._state import Message, as_message
from karat.graph.nodes._tools import marked
from karat.registry import load_object

SYGRA_START = "__start__"
SYGRA_END = "__end__"

logger = logging.getLogger("karat.tasks")


class AIMessage(Message):
    """What a model said, for tasks that make their messages themselves."""

    def __init__(self, content: Any = "", **more: Any) -> None:
        super().__init__(content, "assistant", **more)


class HumanMessage(Message):
    """What a person said."""

    def __init__(self, content: Any = "", **more: Any) -> None:
        super().__init__(content, "user", **more)


class SystemMessage(Message):
    """What a model is told beforehand."""

    def __init__(self, content: Any = "", **more: Any) -> None:
        super().__init__(content, "system", **more)


class BaseTaskExecutor:
    """What drives a task in SyGra. In karat the stages do, so that a class of one's own would change nothing."""

    REMEDY = (
        "karat drives a task by its graph_config.yaml alone: say what it changes there, as data_config,"
        " output_config.generator or graph_post_process"
    )

    def __init_subclass__(cls, **more: Any) -> None:
        raise RequestError(f"{cls.__qualname__} extends BaseTaskExecutor, which has no effect: {cls.REMEDY}")

    def __init__(self, *given: Any, **more: Any) -> None:
        raise RequestError(f"there is no task executor to make: {self.REMEDY}, and run it with `karat run`")


def tool(function: Any = None, *more: Any, **options: Any) -> Any:
    """The decorator that marks tools, `@tool` or `@tool("name")`; karat describes them by their signatures."""
    if function is None or isinstance(function, str):
        return lambda marking: marked(marking, function)
    return marked(function)


def parse_response_as_json(s: Any) -> dict[str, Any] | None:
    """The JSON object in a model's answer, alone or inside other text; None where there is none.

    Another JSON value that stands alone becomes `{"value": …}`.
    """
    if s is None:
        return None
    text = s if isinstance(s, str) else str(s)
    try:
        parsed = json.loads(text)
        return parsed if isinstance(parsed, dict) else {"value": parsed}
    except (ValueError, RecursionError):
        pass
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            parsed, _ = decoder.raw_decode(text, at)
            return parsed if isinstance(parsed, dict) else None
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
    return None


def extract_and_load_json(text: str) -> Any:
    """As `parse_response_as_json`."""
    return parse_response_as_json(text)


def get_func_from_str(func_str: str) -> Any:
    """The object at a dotted path."""
    return load_object(func_str)


def load_json_file(filepath: str) -> Any:
    """The value in a JSON file."""
    return json.loads(Path(filepath).read_text(encoding="utf-8"))


def load_jsonl_file(filepath: str) -> list[Any]:
    """The values in a JSONL file."""
    lines = Path(filepath).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def load_yaml_file(filepath: str) -> Any:
    """The value in a YAML file."""
    return yaml.safe_load(Path(filepath).read_text(encoding="utf-8"))


def convert_messages_from_langchain_to_chat_format(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """Messages as `{role, content}`."""
    return [as_message(message) for message in messages]


def convert_messages_from_chat_format_to_langchain(messages: Iterable[Any]) -> list[Message]:
    """`{role, content}` as messages with attributes."""
    return [Message(m["content"], m["role"]) for m in map(as_message, messages)]
