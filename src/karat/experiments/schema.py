"""The keys and types of an experiment file, its JSON Schema for editors, and its errors with their places.

Make the schema in docs/schema again with: `python -m karat.experiments.schema`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from karat.documents import Place, format_path
from karat.errors import ConfigError, KaratError, nearest, option, unknown_key

Whole = Annotated[int, Field(strict=True)]
Stop = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    # Not `use_attribute_docstrings`, which reads the source of every class at import: 20 ms, for editors alone.
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class DatasetEntry(_Part):
    """A dataset file and its fields."""

    path: str
    """JSON, JSONL, CSV, TSV or Parquet, relative to this file."""
    input: str | list[str] | None = None
    """The input field: a dotted path, or a list of fields (default: the whole row)."""
    expected: str | list[str] | None = None
    """The field with the expected output: a dotted path, or a list of fields (default: none)."""
    id: str | Literal[False] | None = None
    """The field with the example id; false for none."""
    metadata: list[str] | None = None
    """The metadata fields (default: all other fields)."""
    name: str | None = None
    """The name of the dataset in the store (default: the file name)."""
    format: Literal["csv", "json", "jsonl", "parquet", "tsv"] | None = None
    """The file format (default: from the file extension)."""
    skip_bad_rows: bool = False
    """Skip and list invalid rows instead of rejecting the file."""


class ExampleEntry(_Part):
    """An example written in this file."""

    input: Any
    """The input of the task."""
    id: str | Whole | None = None
    """The example id (default: a hash of the content)."""
    expected: Any = None
    """The expected output."""
    metadata: dict[str, Any] = {}
    """Other fields, for grouping and clustering."""


class FunctionEntry(_Part):
    """A Python function or class as the task."""

    function: str
    """`file.py:function`, relative to this file, or `package.module.function`."""
    params: dict[str, Any] = {}
    """Keyword arguments of the function or class."""
    name: str | None = None
    """The name of the task in the store (default: the function name)."""


class RecordedEntry(_Part):
    """Recorded outputs as the task."""

    recorded: str
    """A JSONL file with `{id, output}` or `{id, error}`, and `attempt` if there are several."""
    output: str | None = None
    """The output field of the records (default: output)."""
    id: str | None = None
    """The field of the records with the example id (default: id)."""
    name: str | None = None
    """The name of the task in the store (default: the file name)."""


class GraphEntry(_Part):
    """A graph task as the task."""

    graph: str
    """`eval/x/y`, `tasks.eval.x.y`, or the path of its folder or file, relative to this file."""
    run_args: dict[str, Any] = {}
    """Variables added to the state of every record."""
    model: str | None = None
    """Replaces every model in the graph file."""
    name: str | None = None
    """The name of the task in the store (default: the graph name)."""
    output_dir: str | None = None
    """The folder for the output and report files of each run, relative to this file (default: write no files)."""


class MessageEntry(_Part):
    """One message of a prompt."""

    role: Literal["system", "developer", "user", "assistant"]
    """The role of the message."""
    content: str | list[dict[str, Any]]
    """A string, or content parts as in the OpenAI chat completions API."""


class PromptEntry(_Part):
    """A prompt for a model as the task."""

    prompt: str | list[MessageEntry]
    """A string or messages; {field} is a field of the input, {input} the whole input."""
    model: str | None = None
    """The model, such as local/smollm2-135m or openai/NAME (default: KARAT_MODEL)."""
    system: str | None = None
    """A system message before the prompt."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """The sampling temperature (default: the provider's); many current models reject it."""
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """The reasoning effort."""
    api: Literal["chat", "responses", "anthropic"] | None = None
    """The wire format (default: chosen by karat)."""
    deterministic: bool | None = None
    """Whether examples may share a cached reply (default: only at temperature 0)."""
    stream: bool | None = None
    """Stream replies, to measure the time to the first token."""
    logprobs: bool | int | None = None
    """Store token probabilities in the trace."""
    max_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    """The maximum number of output tokens."""
    seed: Whole | None = None
    """The random seed, for providers that support it."""
    stop: Stop | list[Stop] | None = None
    """Stop sequences."""
    answer_schema: Annotated[dict[str, Any] | str | None, Field(alias="schema")] = None
    """A JSON Schema, a JSON file with one, or `package.module.PydanticModel`, to parse the reply."""
    name: str = "prompt"
    """The name of the task in the store."""


class EvaluatorEntry(_Part):
    """An evaluator with parameters."""

    name: str
    """A name that `karat evaluators` lists, `package.module.Name` or `file.py:Name`."""
    params: dict[str, Any] | None = None
    """What it is built with."""
    key: str | None = None
    """The key of its results (default: the name); keys must be unique."""
    bounds: tuple[float | None, float | None] | None = None
    """The lowest and the highest score (default: those of the evaluator); null for no limit."""
    higher_is_better: bool | None = None
    """Whether a higher score is better (default: that of the evaluator)."""
    pass_fail: bool | None = None
    """Whether each score is 0 or 1, so that the usual metric is the accuracy (default: that of the evaluator)."""


class FromOutputEntry(_Part):
    """A score that the task itself returns; short for `{name: from_output, params: {field: …}}`."""

    from_output: str
    """The field of the output with the score."""
    key: str | None = None
    """The key of its results (default: the field name)."""
    bounds: tuple[float | None, float | None] | None = None
    """The lowest and the highest score (default: 0 and 1); null for no limit."""
    higher_is_better: bool | None = None
    """False if a lower score is better."""
    pass_fail: bool | None = None
    """True if each score is 0 or 1: the usual metric is then the accuracy instead of the mean."""


class AggregatorEntry(_Part):
    """An aggregator with parameters."""

    name: str
    """A registered name, `package.module.Name` or `file.py:Name`."""
    params: dict[str, Any] | None = None
    """What it is built with."""
    key: str | None = None
    """The key of its estimates (default: the name); keys must be unique."""
    of: str | list[str] | None = None
    """The evaluator keys it applies to (default: all of a suitable kind)."""


def _dataset_form(given: Any) -> str | None:
    if isinstance(given, str):
        return "text"
    if isinstance(given, list):
        return "examples"
    return "DatasetEntry" if isinstance(given, Mapping) else None


def _task_form(given: Any) -> str | None:
    if isinstance(given, str):
        return "text"
    if isinstance(given, Mapping):
        for key, form in (("prompt", "PromptEntry"), ("recorded", "RecordedEntry"), ("graph", "GraphEntry")):
            if key in given:
                return form
        return "FunctionEntry" if "function" in given else None
    return None


def _evaluator_form(given: Any) -> str | None:
    if isinstance(given, Mapping):
        return "FromOutputEntry" if "from_output" in given else "EvaluatorEntry"
    return "text" if isinstance(given, str) else None


def _aggregator_form(given: Any) -> str | None:
    return "text" if isinstance(given, str) else "AggregatorEntry" if isinstance(given, Mapping) else None


DatasetForm = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[DatasetEntry, Tag("DatasetEntry")]
    | Annotated[list[ExampleEntry], Tag("examples")],
    Discriminator(_dataset_form),
]
TaskForm = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[FunctionEntry, Tag("FunctionEntry")]
    | Annotated[RecordedEntry, Tag("RecordedEntry")]
    | Annotated[GraphEntry, Tag("GraphEntry")]
    | Annotated[PromptEntry, Tag("PromptEntry")],
    Discriminator(_task_form),
]
EvaluatorForm = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[EvaluatorEntry, Tag("EvaluatorEntry")]
    | Annotated[FromOutputEntry, Tag("FromOutputEntry")],
    Discriminator(_evaluator_form),
]
AggregatorForm = Annotated[
    Annotated[str, Tag("text")] | Annotated[AggregatorEntry, Tag("AggregatorEntry")],
    Discriminator(_aggregator_form),
]


class ExperimentFile(_Part):
    """An experiment: a dataset, a task, evaluators and aggregators."""

    model_config = ConfigDict(json_schema_extra={"required": ["task"]})

    name: str | None = None
    """The name of the experiment (default: the folder name)."""
    description: str = ""
    """A description, stored with the results."""
    labels: list[str] = []
    """Labels, stored with the run, the evaluation and the aggregation."""
    store: str | None = None
    """The store: sqlite:///path, postgresql://… or memory://; --store overrides it."""
    dataset: DatasetForm | None = None
    """A file, the name of a dataset in the store, or a list of examples; a graph has its own dataset."""
    task: TaskForm | None = None
    """The task to measure."""
    models: Annotated[list[str], Field(min_length=1)] | None = None
    """Models; each gets a run."""
    matrix: dict[str, Annotated[list[Any], Field(min_length=1)]] | None = None
    """Lists of values; each combination gets a run. Keys: `model`, fields of the prompt, parameters of the function,
    variables of the graph."""
    evaluators: list[EvaluatorForm] = []
    """The evaluators (default: none; for a graph, its unit metrics)."""
    judge: str | dict[str, Any] | None = None
    """The default judge of evaluators that need one: a model, or `{model, samples, …}`."""
    aggregators: list[AggregatorForm] = []
    """The aggregators (default: accuracy for evaluators that pass or fail, else the mean; for a graph, its own)."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """The confidence level of the intervals."""
    concurrency: Annotated[int, Field(strict=True, ge=1)] | None = None
    """The number of examples at a time."""
    attempts: Annotated[int, Field(strict=True, ge=1)] = 1
    """Independent attempts per example."""
    limit: Annotated[int, Field(strict=True, ge=1)] | None = None
    """The maximum number of examples."""
    offset: Annotated[int, Field(strict=True, ge=0)] = 0
    """The number of examples to skip at the start."""
    timeout: Annotated[float, Field(gt=0)] | None = None
    """The timeout of one example in seconds."""
    retries: Annotated[int, Field(strict=True, ge=0)] = 0
    """The number of immediate retries of an example whose task raised."""
    abort_on_error: bool = False
    """Stop at the first failed example."""


FORMS: dict[str, type[BaseModel]] = {
    form.__name__: form
    for form in (
        AggregatorEntry,
        DatasetEntry,
        EvaluatorEntry,
        FromOutputEntry,
        ExampleEntry,
        FunctionEntry,
        GraphEntry,
        MessageEntry,
        PromptEntry,
        RecordedEntry,
    )
}


def experiment_schema() -> dict[str, Any]:
    """The JSON Schema of an experiment file, with the docstrings of the fields as their descriptions."""
    import ast
    from inspect import cleandoc
    from pathlib import Path

    schema = ExperimentFile.model_json_schema()
    described = {ExperimentFile.__name__: schema, **schema["$defs"]}
    for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef) or node.name not in described:
            continue
        form, properties = FORMS.get(node.name, ExperimentFile), described[node.name]["properties"]
        for field, text in pairwise(node.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    key = form.model_fields[name].alias or name
                    found = {**properties[key], "description": cleandoc(words)}
                    properties[key] = dict(sorted(found.items()))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "karat experiment",
    }


_WORDS = {
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
OF_ONE_COMMAND = ("accept_code_change", "batch", "budget", "new", "retry_failed", "wait")
"""Options of a stage that a file does not have: they belong to one command, and not to the experiment."""
TASK_FORMS = ("function", "prompt", "graph", "recorded")
_FORMS_OF = {
    "dataset": "must be a file, a name, {path, …} or a list of examples",
    "task": "must be file.py:function, or have one of function:, prompt: (with a matrix of prompts too), graph:"
    " and recorded:",
    "evaluators": "must be a name or {name, params, key}",
    "aggregators": "must be a name or {name, params, key, of}",
}


def check_schema(
    value: dict[str, Any],
) -> tuple[ExperimentFile | None, list[tuple[Place, str]], set[Place]]:
    """The valid file, or all errors with their places and the invalid top-level keys (in lists: entries)."""
    try:
        return ExperimentFile.model_validate(value), [], set()
    except ValidationError as error:
        found = [_read(each, value) for each in error.errors(include_url=False)]
    # A value that matches none of several forms has an error in each; the deepest one is the most specific.
    places = [place for place, _, _ in found]
    merged: dict[Place, list[str]] = {}
    sentences: list[tuple[Place, str]] = []
    for place, kind, text in found:
        if kind != "type":
            sentences.append((place, f"{format_path(place)}: {text}"))
        elif not any(len(other) > len(place) and other[: len(place)] == place for other in places):
            merged.setdefault(place, []).append(text)
    said = {place for place, _ in sentences}
    for place, words in merged.items():
        if place in said:
            continue
        sentences.append((place, f"{format_path(place)}: must be {' or '.join(dict.fromkeys(words))}"))
    bad = {place[: 2 if place[0] in ("evaluators", "aggregators") else 1] for place in places if place}
    return None, sentences, bad


def _read(error: Any, value: Any) -> tuple[Place, str, str]:
    """`(place, kind, words)` of a pydantic error, whose path includes the names of forms."""
    kind, steps = error["type"], list(error["loc"])
    form: Any = ExperimentFile
    place: list[str | int] = []
    for step in steps[:-1] if kind in ("missing", "extra_forbidden") else steps:
        if isinstance(step, str) and (found := _form(step)) is not None:
            form = found
        elif (isinstance(value, dict) and step in value) or (
            isinstance(value, list) and isinstance(step, int)
        ):
            place.append(step)
            value = value[step]
            if step == "examples" or (place[:1] == ["dataset"] and isinstance(step, int)):
                form = FORMS["ExampleEntry"]
    if kind == "missing":
        return (*place,), "missing", f"needs {steps[-1]!r}"
    if kind == "extra_forbidden":
        known = [field.alias or name for name, field in form.model_fields.items()]
        name = str(steps[-1])
        if form is ExperimentFile and name in OF_ONE_COMMAND:
            return (name,), "unknown", f"unknown key: it is an option of a command: give it as {option(name)}"
        return (*place, name), "unknown", unknown_key(name, known)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        for key in value if place == ["task"] and isinstance(value, dict) else ():
            if nearest(str(key), TASK_FORMS):
                return (*place, key), "unknown", unknown_key(str(key), TASK_FORMS)
        return (*place,), "form", _FORMS_OF[str(place[0])]
    if kind in _WORDS:
        return (*place,), "type", _WORDS[kind]
    if kind in ("too_short", "string_too_short"):
        return (*place,), "value", "must not be empty"
    return (*place,), "value", error["msg"].replace("Input should be", "must be").replace("'", '"')


def _form(step: str) -> Any:
    """The form that a step of pydantic's path names: `DatasetEntry`, `list[MessageEntry]`."""
    return FORMS.get(step.removeprefix("list[").removesuffix("]"))


class PlacedError(ConfigError):
    """Errors in the value at a place."""

    def __init__(self, place: Place, problems: list[str]) -> None:
        super().__init__(problems)
        self.place = place


@contextmanager
def errors_at(*place: str | int) -> Iterator[None]:
    """Attach a place to errors raised inside; the innermost place wins."""
    try:
        yield
    except PlacedError:
        raise
    except KaratError as error:
        raise PlacedError(place, problems_of(error)) from error


def problems_of(error: KaratError) -> list[str]:
    """The messages of an error."""
    return getattr(error, "problems", None) or [str(error)]


def place_of_parameter(place: Place, params: Mapping[str, Any] | None, text: str) -> Place:
    """The place of the parameter whose name or value a message quotes; else `place`."""
    for name, value in (params or {}).items():
        if repr(name) in text or (isinstance(value, str) and repr(value) in text):
            return (*place, "params", name)
    return place


if __name__ == "__main__":
    import json
    import sys

    sys.stdout.write(json.dumps(experiment_schema(), indent=2, ensure_ascii=False) + "\n")
