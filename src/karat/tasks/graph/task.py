"""A graph as a task: its file compiled once, then each record taken through it with a state of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from karat.compat import current_modules
from karat.datasets.dataset import Dataset
from karat.errors import Stopped
from karat.keys import code_fingerprint, digest
from karat.records import Example
from karat.tasks.base import Context, Task
from karat.tasks.graph.configuration import Configuration, check_data_fields, read_configuration
from karat.tasks.graph.lookup import find_task
from karat.tasks.graph.node import Record
from karat.tasks.graph.plan import FAILURES, failed
from karat.tasks.graph.state import SygraState
from karat.tasks.graph.unit_metrics import UnitMetrics

LOOKED_AT = 100
"""Records whose fields tell what a prompt may ask for."""


class GraphTask(Task):
    """A task that a `graph_config.yaml` describes."""

    def __init__(self, configuration: Configuration, run_args: Mapping[str, Any] | None = None) -> None:
        self.graph = configuration
        self.plan = configuration.plan
        self.output = configuration.output
        self.name = configuration.place.name
        self.is_async = self.plan.is_async
        self.run_args = dict(run_args or {})
        self._code = _code([*self.plan.parts(), *self.output.parts])

    def golden_keys(self) -> list[str]:
        """The fields of the data that its unit metrics compare with."""
        calls = [getattr(node, "call", None) for node in self.plan.nodes.values()]
        return list(dict.fromkeys(call.golden_key for call in calls if isinstance(call, UnitMetrics)))

    def dataset(self, *, file: str | None = None, count: int | None = None) -> Dataset:
        """The data it runs over: that of its file, or local data in its place. Its prompts are checked against it."""
        from karat.tasks.graph.data import task_dataset

        data = task_dataset(self.graph.data, self.graph.place, self.golden_keys(), file=file, count=count)
        self.check(data)
        return data

    def check(self, dataset: Dataset) -> None:
        """Refuses data that lack what the graph asks for."""
        fields: dict[str, None] = {}
        for example in islice(dataset, LOOKED_AT):
            if isinstance(example.input, dict):
                fields.update(dict.fromkeys(map(str, example.input)))
        check_data_fields(self.graph, [*fields, *self.run_args, "id"])

    def _begin(self, example: Example, context: Context) -> tuple[SygraState, Record]:
        given = example.input
        state = SygraState(self.run_args) if self.run_args else SygraState()
        state.update(given if isinstance(given, dict) else {"input": given})
        if "id" not in state:
            state["id"] = example.id
        return state, Record(example.id, context.attempt, context.replicate)

    def call(self, example: Example, context: Context) -> Any:
        state, record = self._begin(example, context)
        self.plan.run(state, record)
        return self._finish(state)

    async def call_async(self, example: Example, context: Context) -> Any:
        state, record = self._begin(example, context)
        await self.plan.run_async(state, record)
        return self._finish(state)

    def _finish(self, state: SygraState) -> Any:
        try:
            return self.output.record(state)
        except Stopped:
            raise
        except FAILURES as error:
            raise failed("output", error) from error

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


def _code(parts: list[Any]) -> str | None:
    """One fingerprint of all the code that a graph calls; None where some of it cannot be known."""
    found = [code_fingerprint(part) for part in parts]
    if any(each is None for each in found):
        return None
    return digest(json.dumps(found).encode())


def load_task(name: str, *, model: str | None = None, run_args: Mapping[str, Any] | None = None) -> GraphTask:
    """The graph task that a name or path means, read, checked and compiled."""
    place = find_task(name)
    with current_modules(place.folder if place.root is None else place.root / "tasks"):
        return GraphTask(read_configuration(place, model=model), run_args)
