"""What an experiment file may say: the keys, their types, and the JSON Schema that editors complete them by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Whole = Annotated[int, Field(strict=True)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), use_attribute_docstrings=True)


class DatasetEntry(_Part):
    """A dataset file, with the names of its fields."""

    path: str
    """JSON, JSONL, CSV, TSV or Parquet, relative to this file."""
    input: str | list[str] | None = None
    """The field that is the input (a dotted path, or a list of fields); the whole row where it is left out."""
    expected: str | list[str] | None = None
    """The field that is expected, likewise; nothing where it is left out."""
    id: str | Literal[False] | None = None
    """The field that is the example's id; false for none."""
    metadata: list[str] | None = None
    """The fields to keep beside them; all others where it is left out."""
    name: str | None = None
    """The dataset's name in the store; the file's name where it is left out."""
    format: Literal["csv", "json", "jsonl", "parquet", "tsv"] | None = None
    """Where the file's ending does not say it."""
    skip_bad_rows: bool = False
    """Leave bad rows out and list them, instead of refusing the file."""


class ExampleEntry(_Part):
    """An example written in this file."""

    input: Any
    """What the task gets."""
    id: str | Whole | None = None
    """A hash of the content where it is left out."""
    expected: Any = None
    """What evaluators compare with."""
    metadata: dict[str, Any] = {}
    """Anything else."""


class FunctionEntry(_Part):
    """A Python function or class as the task."""

    function: str
    """`file.py:function`, relative to this file, or `package.module.function`."""
    params: dict[str, Any] = {}
    """Passed to it by name."""
    name: str | None = None
    """The task's name in the store; the function's where it is left out."""


class RecordedEntry(_Part):
    """Outputs made elsewhere, as the task."""

    recorded: str
    """A JSONL of `{id, output}` or `{id, error}`, with `attempt` where there are several."""
    output: str | None = None
    """The field of the records that is the output, where it is not `output`."""
    name: str | None = None
    """The task's name in the store; the file's where it is left out."""


class GraphEntry(_Part):
    """A graph task as the task."""

    graph: str
    """`eval/x/y`, `tasks.eval.x.y`, or the path of its folder or file, relative to this file."""
    run_args: dict[str, Any] = {}
    """Variables of every record's state."""
    model: str | None = None
    """Stands in for every model that the graph names."""
    name: str | None = None
    """The task's name in the store; the graph's where it is left out."""
    output_dir: str | None = None
    """The folder, relative to this file, for the output and report files of each run; without it there are none."""


class MessageEntry(_Part):
    """One message of a prompt."""

    role: Literal["system", "developer", "user", "assistant"]
    """Who says it."""
    content: str | list[dict[str, Any]]
    """A text, or parts in the shape of OpenAI's chat completions."""


class PromptEntry(_Part):
    """A prompt, answered by a model, as the task."""

    prompt: str | list[MessageEntry]
    """A text or messages; {field} is a field of the input, {input} all of it."""
    model: str | None = None
    """Such as local/smollm2-135m or openai/NAME; KARAT_MODEL where it is left out."""
    system: str | None = None
    """A system message before the prompt."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """The provider's default where it is left out; many current models refuse it."""
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """How much the model thinks before it answers."""
    api: Literal["chat", "responses", "anthropic"] | None = None
    """The wire format, where karat's choice is not wanted."""
    deterministic: bool | None = None
    """Whether examples may share an answer; by default at temperature 0 only."""
    stream: bool | None = None
    """Whether answers are streamed, to measure the time to the first token."""
    logprobs: bool | int | None = None
    """Whether probabilities of tokens are kept in the trace."""
    max_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    """The longest answer."""
    seed: Whole | None = None
    """For providers that take one."""
    stop: str | list[str] | None = None
    """Where the answer ends."""
    answer_schema: Annotated[dict[str, Any] | str | None, Field(alias="schema")] = None
    """A JSON Schema, a file with one, or `package.module.PydanticModel`: the answer is parsed by it."""
    name: str = "prompt"
    """The task's name in the store."""


class EvaluatorEntry(_Part):
    """An evaluator with parameters."""

    name: str
    """A name that `karat evaluators` lists, `package.module.Name` or `file.py:Name`."""
    params: dict[str, Any] | None = None
    """What it is built with."""
    key: str | None = None
    """What its results are called, where two have the same name."""
    bounds: tuple[float | None, float | None] | None = None
    """The lowest and the highest score, where they are not those it declares; null for no limit."""
    higher_is_better: bool | None = None
    """Whether a higher score is a better one, where it declares otherwise."""


class FromOutputEntry(_Part):
    """What the task judged itself, as an evaluator: shorter for `{name: from_output, params: {field: …}}`."""

    from_output: str
    """The field of the output that holds it."""
    key: str | None = None
    """What its results are called; the field's name where it is left out."""
    bounds: tuple[float | None, float | None] | None = None
    """The lowest and the highest score, where they are not 0 and 1; null for no limit."""
    higher_is_better: bool | None = None
    """False where a lower score is a better one."""


class AggregatorEntry(_Part):
    """An aggregator with parameters."""

    name: str
    """A registered name, `package.module.Name` or `file.py:Name`."""
    params: dict[str, Any] | None = None
    """What it is built with."""
    key: str | None = None
    """What its estimates are called, where two have the same name."""
    of: str | list[str] | None = None
    """The evaluator keys it is for; all that fit where it is left out."""


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
    """An experiment: a dataset, a task, what judges its outputs and what folds the judgments."""

    model_config = ConfigDict(json_schema_extra={"required": ["task"]})

    name: str | None = None
    """For people; the folder's name where it is left out."""
    description: str = ""
    """For people."""
    labels: list[str] = []
    """Kept with the run, the evaluation and the aggregation."""
    store: str | None = None
    """Where results are kept: sqlite:///path, postgresql://…, memory://; --store wins."""
    dataset: DatasetForm | None = None
    """A file, a dataset of the store by its name, or examples written here; a graph has its own."""
    task: TaskForm | None = None
    """What is measured."""
    models: Annotated[list[str], Field(min_length=1)] | None = None
    """One run for each of these models."""
    matrix: dict[str, Annotated[list[Any], Field(min_length=1)]] | None = None
    """One run for each combination of these values: `model`, fields of the prompt, parameters of the function,
    variables of the graph."""
    evaluators: list[EvaluatorForm] = []
    """What judges the outputs; the graph's unit metrics where a graph is run and nothing is named."""
    judge: str | dict[str, Any] | None = None
    """The judge of evaluators that ask one and name none: a model, or `{model, samples, …}`."""
    aggregators: list[AggregatorForm] = []
    """What folds the judgments into estimates."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Of the intervals."""
    concurrency: Annotated[int, Field(strict=True, ge=1)] | None = None
    """How many examples are worked on at once."""
    attempts: Annotated[int, Field(strict=True, ge=1)] = 1
    """Independent tries at each example."""
    limit: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Only so many examples."""
    offset: Annotated[int, Field(strict=True, ge=0)] = 0
    """Beginning after so many."""
    timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds for one example."""
    retries: Annotated[int, Field(strict=True, ge=0)] = 0
    """How often an example whose task raised is tried again at once."""
    abort_on_error: bool = False
    """Stop at the first example that fails."""


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
    """The JSON Schema of an experiment file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **ExperimentFile.model_json_schema(),
        "title": "karat experiment",
    }
