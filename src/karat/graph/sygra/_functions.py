"""Functions and classes that the Python files of SyGra tasks import, among them those about the running task.

Several tasks may run in one process at the same time. The running task is identified by the file of the calling code.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel, Field

from karat.documents import read_document
from karat.errors import RequestError, wording
from karat.graph._state import Message, as_message
from karat.graph.metrics._aggregator_metrics import (
    F1ScoreMetric,
    PassAtKMetric,
    PrecisionMetric,
    RecallMetric,
    StepEfficiencyMetric,
)
from karat.graph.metrics._unit_metrics import (
    ActionWithinBboxMetric,
    ExactMatchMetric,
    FuzzyMatchMetric,
    ScrollAmountMetric,
    ScrollDirectionMetric,
    TypedValueMatchMetric,
)
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
    """SyGra's base of classes that run a task. karat's stages run tasks, so a subclass is refused."""

    REMEDY = (
        "karat drives a task by its graph_config.yaml alone: configure the change there, as data_config,"
        " output_config.generator or graph_post_process"
    )

    def __init_subclass__(cls, **more: Any) -> None:
        raise RequestError(f"{cls.__qualname__} extends BaseTaskExecutor, which has no effect: {cls.REMEDY}")

    def __init__(self, *given: Any, **more: Any) -> None:
        run = wording("karat run", "karat.run")
        raise RequestError(f"a task executor cannot be created: {self.REMEDY}, and run it with {run}")


def tool(function: Callable[..., Any] | str | None = None, *more: Any, **options: Any) -> Any:
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
    return next((found for found in _decode_values(text, "{") if isinstance(found, dict)), None)


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
    found = list(_decode_values(text, "{["))
    objects = [each for each in found if isinstance(each, dict) or (each and isinstance(each[0], dict))]
    return next(iter(objects or found), None)


def _decode_values(text: str, openings: str) -> Iterator[Any]:
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
    """The object at a dotted path, as the calling code would import it."""
    own_import = sys._getframe(1).f_builtins["__import__"]
    return load_object(func_str, import_module=lambda name: own_import(name, fromlist=("__name__",)))


def load_json_file(filepath: str) -> Any:
    """Return the value in a JSON file."""
    return json.loads(Path(filepath).read_text(encoding="utf-8"))


def load_jsonl_file(filepath: str) -> list[Any]:
    """The values in a JSONL file."""
    lines = Path(filepath).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def load_yaml_file(filepath: str) -> Any:
    """Return the value in a YAML file."""
    return yaml.safe_load(Path(filepath).read_text(encoding="utf-8"))


def convert_messages_from_langchain_to_chat_format(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """Messages as `{role, content}`."""
    return [as_message(message) for message in messages]


def convert_messages_from_chat_format_to_langchain(messages: Iterable[Any]) -> list[Message]:
    """`{role, content}` as messages with attributes."""
    return [Message(**message) for message in map(as_message, messages)]


class SimpleResponse(BaseModel):
    """A text, and whether it worked."""

    message: str = Field(description="the answer")
    success: bool = Field(default=True, description="whether it could be given")


MOST_FOLDERS = 8
"""How far above a Python file its task's folder is looked for."""


def calling_task() -> Any:
    """The place of the task whose code is asking; None where it is not a task's."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        found = _task_of(frame.f_code.co_filename)
        if found is not None:
            return found
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=4096)
def _task_of(file: str) -> Any:
    from karat.graph._lookup import NAMES, TaskPlace

    for folder in Path(file).parents[:MOST_FOLDERS]:
        for name in NAMES:
            if (folder / name).is_file():
                return TaskPlace(folder / name)
        if folder.name in ("tasks", "site-packages"):
            break
    return None


def current_task() -> str | None:
    """The name of the task that runs, as its files are imported by, or its folder."""
    place = calling_task()
    return None if place is None else place.package or str(place.folder)


def get_graph_properties(task_name: str | None = None) -> dict[str, Any]:
    """`graph_properties` of a task's file: the running task, unless another is named."""
    from karat.graph._lookup import find_task

    place = calling_task()
    if task_name and (place is None or task_name not in (place.package, str(place.folder))):
        try:
            place = find_task(task_name)
        except RequestError:
            return {}
    return {} if place is None else dict(_properties(place.file, place.file.stat().st_mtime_ns))


@functools.lru_cache(maxsize=64)
def _properties(file: Path, changed: int) -> dict[str, Any]:
    value = read_document(file).value
    graph = value.get("graph_config") if isinstance(value, dict) else None
    found = graph.get("graph_properties") if isinstance(graph, dict) else None
    return found if isinstance(found, dict) else {}


def get_graph_property(key: str, default_value: object, task_name: str | None = None) -> Any:
    """Return a graph property, or its default."""
    return get_graph_properties(task_name).get(key, default_value)


def get_file_in_task_dir(task: str, file: str) -> str:
    """The path of a file in a task's folder."""
    from karat.graph._lookup import find_task

    place = calling_task()
    if place is None or task not in (place.package, str(place.folder)):
        place = find_task(task)
    return str(place.folder / file)


def __getattr__(name: str) -> Any:
    if name == "CURRENT_TASK":  # asked for anew each time, as another task may be asking
        return current_task()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# The configuration classes of SyGra's metrics: parameters that are checked as the metric itself checks them.


class _Config:
    """Parameters of a metric as attributes, those that were not given with their defaults."""

    metric: ClassVar[type[Any]]

    def __init__(self, **given: Any) -> None:
        self._values: dict[str, Any] = dict(self.metric(**given).config)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no parameter {name!r}") from None

    def model_dump(self) -> dict[str, Any]:
        """All settings as keyword arguments of the metric."""
        return dict(self._values)


def _config(metric: type[Any]) -> type[_Config]:
    name = f"{metric.__name__}Config"
    return type(name, (_Config,), {"metric": metric, "__doc__": f"Parameters of {metric.name}."})


ExactMatchMetricConfig = _config(ExactMatchMetric)
FuzzyMatchMetricConfig = _config(FuzzyMatchMetric)
ActionWithinBboxMetricConfig = _config(ActionWithinBboxMetric)
TypedValueMatchMetricConfig = _config(TypedValueMatchMetric)
ScrollDirectionMetricConfig = _config(ScrollDirectionMetric)
ScrollAmountMetricConfig = _config(ScrollAmountMetric)
PrecisionMetricConfig = _config(PrecisionMetric)
RecallMetricConfig = _config(RecallMetric)
F1ScoreMetricConfig = _config(F1ScoreMetric)
PassAtKMetricConfig = _config(PassAtKMetric)
StepEfficiencyMetricConfig = _config(StepEfficiencyMetric)
