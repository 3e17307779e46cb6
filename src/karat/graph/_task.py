"""A graph as a task: its file is compiled once, and each record runs through it with its own state."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any

from karat import paths
from karat.datasets import Dataset
from karat.errors import ConfigError, KaratError, RequestError
from karat.graph._configuration import Configuration, check_data_fields, read_configuration, read_outline
from karat.graph._lookup import find_task
from karat.graph._plan import PASSED_ON, GraphPlan, failed
from karat.graph._reading import Problems
from karat.graph._state import SygraState, own
from karat.graph.metrics._unit import UnitMetrics
from karat.graph.nodes._base import Record
from karat.records import Example
from karat.serialization import encode
from karat.tasks import Context, Task, code_fingerprint, may_ask_models

LOOKED_AT = 100
"""Records whose fields are enough to tell that nothing is amiss; only else all are looked at."""


class GraphTask(Task):
    """A task that a `graph_config.yaml` describes."""

    def __init__(self, configuration: Configuration, run_args: Mapping[str, Any] | None = None) -> None:
        self.graph = configuration
        self.plan = configuration.plan
        self.output = configuration.output
        self.name = configuration.place.name
        self.is_async = self.plan.is_async
        self.run_args = dict(run_args or {})
        self._records: dict[str | tuple[str, int], Record] = {}
        """The records in progress, for the errors of timeouts."""
        parts = [*self.plan.parts(), *self.output.parts]
        self._code = _code(parts)
        # The models of its nodes are in `configuration`; only its code could ask another.
        self.names_models = not any(may_ask_models(part) for part in _different(parts))

    def golden_keys(self) -> list[str]:
        """The fields of the data that its unit metrics compare with."""
        calls = [getattr(node, "call", None) for node in self.plan.nodes.values()]
        return list(dict.fromkeys(call.golden_key for call in calls if isinstance(call, UnitMetrics)))

    def dataset(self, *, file: str | None = None, count: int | None = None) -> Dataset:
        """The data it runs over: that of its file, or local data in its place. Its prompts are checked against it."""
        from karat.graph._configuration import missing_files, task_dataset

        if file is None:
            problems = Problems(self.graph.document)
            for where, sentence in missing_files(self.graph.data, self.graph.place):
                problems.add(where, sentence)
            problems.raise_all()
        data = task_dataset(self.graph.data, self.graph.place, self.golden_keys(), file=file, count=count)
        self._check_fields(data)
        return data

    def check_inputs(self, examples: Iterable[Example]) -> list[str]:
        try:
            self._check_fields(examples)
        except ConfigError as error:
            return [f"{self.graph.place.name}, {problem}" for problem in error.problems]
        return []

    def _check_fields(self, examples: Iterable[Example]) -> None:
        """Refuse data without the fields that the graph needs; empty data pass."""
        rest = iter(examples)
        looked_at = list(islice(rest, LOOKED_AT))
        if not looked_at:
            return
        try:
            check_data_fields(self.graph, [*_fields(looked_at), *self.run_args, "id"])
        except ConfigError:  # a later record may have it
            check_data_fields(self.graph, [*_fields(chain(looked_at, rest)), *self.run_args, "id"])

    @property
    def notes(self) -> list[str]:
        """Keys of the file that have no effect, each with its line."""
        return [f"{self.graph.place.name}, {note}" for note in self.graph.problems.notes()]

    def _begin(self, example: Example, context: Context) -> tuple[SygraState, Record]:
        given = example.input
        state = SygraState({name: own(value) for name, value in self.run_args.items()})
        state.update(given if isinstance(given, dict) else {"input": given})
        if "id" not in state:
            state["id"] = example.id
        attempt = context.attempt
        record = Record(example.id, attempt, context.replicate)
        self._records[example.id if attempt == 1 else (example.id, attempt)] = record
        return state, record

    def _done(self, record: Record) -> None:
        self._records.pop(record.example if record.attempt == 1 else (record.example, record.attempt), None)

    def call(self, example: Example, context: Context) -> Any:
        state, record = self._begin(example, context)
        try:
            self.plan.run(state, record)
            return self._finish(state)
        finally:
            self._done(record)

    async def call_async(self, example: Example, context: Context) -> Any:
        state, record = self._begin(example, context)
        try:
            await self.plan.run_async(state, record)
            output = self._finish(state)
        except asyncio.CancelledError:
            raise  # `timeout_error` may ask for it next
        except BaseException:
            self._done(record)
            raise
        self._done(record)
        return output

    def timeout_error(self, example: Example, attempt: int, seconds: float) -> BaseException | None:
        record = self._records.pop(example.id if attempt == 1 else (example.id, attempt), None)
        if record is None or not record.running:
            return None
        return failed(record.running, TimeoutError(f"no output within {seconds:g} s"))

    def _finish(self, state: SygraState) -> Any:
        try:
            return self.output.record(state)
        except PASSED_ON:
            raise
        except BaseException as error:
            raise failed("output", error) from error

    def storage_error(self, output: object, error: RequestError) -> BaseException:
        """The failure of the node that set the field which cannot be stored, where one alone does."""
        for field, value in output.items() if isinstance(output, dict) else ():
            try:
                encode({field: value})
            except RequestError as found:
                source = (self.output.fields or {}).get(str(field), "") or str(field)
                key = paths.parse(source).steps[0]
                setters = [name for name, node in self.plan.nodes.items() if key in node.output_keys]
                error = type(found)(f"output field {field!r}: {found}")
                return failed(setters[0] if len(setters) == 1 else "output", error)
        return failed("output", error)

    def configuration(self) -> Any:
        out: dict[str, Any] = {"task": self.name, **self.graph.outcome}
        models = [use.identity() for use in self.plan.models()]
        if models:
            out["models"] = models
        if self.plan.outcome():
            out["nodes"] = self.plan.outcome()
        if self.run_args:
            out["run_args"] = self.run_args
        return out

    def code(self) -> str | None:
        return self._code

    def source(self) -> str:
        return str(self.graph.place.file)


def _code(parts: list[Any]) -> str | None:
    """Return one fingerprint of all the code that a graph calls; None if the source of some of it is unknown."""
    known = {id(part): code_fingerprint(part) for part in _different(parts)}
    found = [known[id(part)] for part in parts]
    if any(each is None for each in found):
        return None
    return hashlib.blake2b(json.dumps(found).encode(), digest_size=16).hexdigest()


def _different(parts: list[Any]) -> list[Any]:
    """Each part once: many nodes may call the same function."""
    return list({id(part): part for part in parts}.values())


def _fields(examples: Iterable[Example]) -> list[str]:
    found: dict[str, None] = {}
    for example in examples:
        if isinstance(example.input, dict):
            found.update(dict.fromkeys(map(str, example.input)))
    return list(found)


def load_outline(name: str) -> tuple[str, GraphPlan]:
    """The name of a graph task and its nodes and edges, as they are drawn; none of its code is imported."""
    place = find_task(name)
    return place.name, read_outline(place)


def load_task(
    name: str,
    *,
    model: str | None = None,
    unnamed: str | None = None,
    run_args: Mapping[str, Any] | None = None,
    data: str | None = None,
) -> GraphTask:
    """Read, check and compile the graph task with a name or path.

    `model` replaces every model that its file names; `unnamed` is the default where it names none.
    `data` is the file that will replace its source. If the task's file has errors, the fields of `data` are used to
    report undefined prompt variables along with them.
    """
    place = find_task(name)

    def fields(configured: dict[str, Any]) -> list[str] | None:
        from karat.graph._configuration import local_rows

        try:
            examples = local_rows(configured, place, data)
            return [*_fields(examples), *(run_args or ()), "id"] if examples else None
        except KaratError:  # reported when the data are read
            return None

    configuration = read_configuration(
        place, model=model, unnamed=unnamed, fields=fields, own_data=data is None
    )
    return GraphTask(configuration, run_args)
