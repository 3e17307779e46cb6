"""The functions and the answer schema that the Python files of SyGra tasks import beside the classes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field

from karat.errors import RequestError
from karat.graph._state import Message, as_message
from karat.graph.nodes._tools import marked
from karat.registry import load_object

MOST_STARTS = 1000
"""Places in an answer at which JSON is looked for."""

SYGRA_START = "__start__"
SYGRA_END = "__end__"

logger = logging.getLogger("karat.tasks")


class AIMessage(Message):
    """A message of a model, for tasks that build their messages themselves."""

    def __init__(self, content: object = "", **more: Any) -> None:
        super().__init__(content, "assistant", **more)


class HumanMessage(Message):
    """A message of a user."""

    def __init__(self, content: object = "", **more: Any) -> None:
        super().__init__(content, "user", **more)


class SystemMessage(Message):
    """A system message."""

    def __init__(self, content: object = "", **more: Any) -> None:
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


def tool(function: object = None, *more: Any, **options: Any) -> Any:
    """The decorator that marks tools, `@tool` or `@tool("name")`; karat describes them by their signatures."""
    if function is None or isinstance(function, str):
        return lambda marking: marked(marking, function)
    return marked(function)


def parse_response_as_json(s: object) -> dict[str, Any] | None:
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
    return next((found for found in _decoded(text, "{") if isinstance(found, dict)), None)


def extract_and_load_json(text: object) -> Any:
    """The JSON object or array in a model's answer, alone or inside other text; None where there is none.

    An object, or an array of objects, is preferred to other arrays.
    """
    if not isinstance(text, str):
        return None
    try:
        whole = json.loads(text)
        return whole if isinstance(whole, (dict, list)) else None
    except (ValueError, RecursionError):
        pass
    first, last = text.find("{"), text.rfind("}")
    if 0 <= first < last:
        before = len(text[:first].rstrip("[ \t\r\n"))
        after = len(text) - len(text[last + 1 :].lstrip("] \t\r\n"))
        try:
            return json.loads(text[before:after])
        except (ValueError, RecursionError):
            pass
    found = list(_decoded(text, "{["))
    objects = [each for each in found if isinstance(each, dict) or (each and isinstance(each[0], dict))]
    return next(iter(objects or found), None)


def _decoded(text: str, openings: str) -> Iterator[Any]:
    """The JSON values that begin with one of these characters, outside of each other."""
    decoder = json.JSONDecoder()
    at, tried = 0, 0
    while tried < MOST_STARTS:  # an answer of nothing but brackets would be read once for each of them
        places = [place for opening in openings if (place := text.find(opening, at)) >= 0]
        if not places:
            return
        at = min(places)
        tried += 1
        try:
            value, at = decoder.raw_decode(text, at)
            yield value
        except (ValueError, RecursionError):
            at += 1


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


class SimpleResponse(BaseModel):
    """A text, and whether it worked."""

    message: str = Field(description="the answer")
    success: bool = Field(default=True, description="whether it could be given")
