"""The nodes that call no model: `lambda`, `weighted_sampler` and `subgraph`.

A lambda node runs the user's own code, a function or a class.

A class that can be called is made once with the node's keys and called with the state; a class or a function
otherwise gets the node's keys and the state, `apply(node_dict, state)`. A function with one parameter gets the state.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import hashlib
import inspect
import math
import random
from typing import TYPE_CHECKING, Any

from karat.errors import ConfigError, KaratError, RequestError, did_you_mean, for_thread
from karat.graph._functions import applied, is_async, positional
from karat.graph._reading import Section
from karat.graph._state import SygraState, own
from karat.graph.metrics._unit import UnitMetrics
from karat.graph.nodes._base import COMMON, Building, Node, Record, output_keys_of
from karat.serialization import canonical

if TYPE_CHECKING:
    from karat.graph._plan import GraphPlan

LANGUAGE = (*COMMON, "lambda", "blocking")
"""Keys of a lambda node that are the language's; all others are its function's."""
ALIASES = ("output_key", "output_vars")


class LambdaNode(Node):
    """A node that calls a function for every record, on the event loop unless it is `blocking`."""

    kind = "lambda"

    def __init__(self, name: str, call: Any, part: Any, output_keys: list[str], blocking: bool) -> None:
        super().__init__(name, output_keys)
        self.parts = [part]
        self.declared = bool(output_keys)
        self.call = call
        self._awaited = is_async(call)
        self._blocking = blocking
        self.is_async = self._awaited or blocking
        if isinstance(call, UnitMetrics):
            self.parts = list(call.metrics())

    def run(self, state: SygraState, record: Record) -> None:
        given = self.call(state)
        if given is not None and given is not state:
            state.merge(given, self.name)

    async def run_async(self, state: SygraState, record: Record) -> None:
        if self._blocking:
            given = await asyncio.to_thread(for_thread(self.call), state)
        else:
            given = self.call(state)
        if inspect.isawaitable(given):
            given = await given
        state.merge(given, self.name)


def build_lambda(name: str, section: Section, building: Building) -> Node | None:
    """A lambda node from its section."""
    path = section.text("lambda", needed=True)
    if path is None:
        return None
    try:
        part = building.place.load(path)
        if part is UnitMetrics and not _check_unit_metrics(section):
            return None
        call = _callable(part, section, building)
        if call is None:
            return None
    except RequestError as error:
        section.problem(str(error), "lambda")
        return None
    output_keys = output_keys_of(section)
    if isinstance(call, UnitMetrics):
        named = [field for field in call.fields if field in output_keys]
        output_keys = named or list(call.fields)
    return LambdaNode(name, call, part, output_keys, section.flag("blocking"))


def _check_unit_metrics(section: Section) -> bool:
    """Whether a unit-metrics node is valid; each error is reported at its line."""
    keys = ("golden_key", "predicted_key", "unit_metrics_map")
    right = all(key in section for key in keys)
    for key in keys:
        if key not in section:
            section.problem(f"needs {key!r}")
        elif key != "unit_metrics_map" and section.text(key) is None:
            right = False
    for key in section.given:
        if key not in (*LANGUAGE, *keys):
            right = False
            section.problem(f"UnitMetrics has no parameter {key!r}: {did_you_mean(str(key), keys)}", key)
    for entry in section.sections("unit_metrics_map"):
        try:
            UnitMetrics("golden", "predicted", [entry.given])
        except RequestError as error:
            right = False
            entry.problem(str(error).removeprefix("unit_metrics_map: "))
    return right


def _callable(part: Any, section: Section, building: Building) -> Any:
    """The node's function of the state, or None if it cannot be loaded, which is reported."""
    if isinstance(part, type) and any("__call__" in vars(base) for base in part.__mro__):
        return _instantiate(part, section, building)
    function = applied(part, 2, "lambda")
    _check_takes_state(function.call, part)
    if function.takes < 2:
        section.known((*LANGUAGE, *ALIASES))  # nothing reads any other
        return function.call
    _check_mistyped(section)
    return functools.partial(function.call, dict(section.given))


def _check_takes_state(call: Any, part: Any) -> None:
    """Refuse what cannot be called with a state."""
    if not positional(call, 1):
        who = getattr(part, "__qualname__", type(part).__qualname__)
        raise RequestError(f"{who} takes no argument: it must take the state")


def _check_mistyped(section: Section) -> None:
    """Keys that only code reads may be any; one a letter away from the language's would be lost in silence."""
    for key in section.given:
        close = difflib.get_close_matches(key, LANGUAGE, n=1, cutoff=0.85)
        if close and key not in (*LANGUAGE, *ALIASES):
            section.problem(f"unknown key, did you mean {close[0]!r}", key)


def _instantiate(part: type, section: Section, building: Building) -> Any:
    """Create an instance with the node's keys; keys of the graph language only if its signature names them.

    None if they do not fit, which is reported.
    """
    parameters = inspect.signature(part).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if takes_all:  # else a key that it does not ask for is refused below
        _check_mistyped(section)
    asked = {p.name for p in parameters}
    keys = {
        key: value
        for key, value in section.given.items()
        if key not in LANGUAGE or key in asked or (takes_all and key == "output_keys")
    }
    if issubclass(part, UnitMetrics) and not keys.get("output_keys"):
        keys["output_keys"] = sorted(building.asked)
    elif issubclass(part, UnitMetrics):
        keys["output_keys"] = section.texts("output_keys")
    if not section.fits(part, keys, part.__qualname__):
        return None
    try:
        made: Any = part(**keys)
    except (TypeError, ValueError, KeyError) as error:
        raise RequestError(
            f"{part.__qualname__} cannot be constructed: {type(error).__name__}: {error}"
        ) from error
    _check_takes_state(made, part)
    return made


# The weighted_sampler node: draws values for attributes, the same ones whenever the same run is repeated.


class SamplerNode(Node):
    """A node that draws a value for each attribute, by the seed, the record, the attempt and the replicate."""

    kind = "weighted_sampler"

    def __init__(
        self, name: str, attributes: dict[str, tuple[list[Any], list[float] | None]], seed: object
    ) -> None:
        super().__init__(name, list(attributes))
        self.attributes = attributes
        drawn_from = canonical([list(each) for each in attributes.values()])
        self.outcome = hashlib.blake2b(drawn_from, digest_size=16).hexdigest()
        self.seed = seed

    def run(self, state: SygraState, record: Record) -> None:
        where = f"{self.seed}/{self.name}/{record.example}/{record.attempt}/{record.replicate}"
        draw = random.Random(where)
        for name, (values, weights) in self.attributes.items():
            state[name] = own(draw.choices(values, weights)[0])


def build_sampler(name: str, section: Section, building: Building) -> Node | None:
    """A weighted_sampler node from its section."""
    section.known((*COMMON, "attributes", "seed"))
    attributes = section.section("attributes")
    if not attributes.given:
        section.problem("needs attributes: a mapping of names to {values, weights}")
        return None
    read = {key: _attribute(attributes.section(key), building) for key in attributes.given}
    if any(each is None for each in read.values()):
        return None
    return SamplerNode(
        name, {key: each for key, each in read.items() if each is not None}, section.given.get("seed", 0)
    )


def _attribute(section: Section, building: Building) -> tuple[list[Any], list[float] | None] | None:
    section.known(("values", "weights"))
    values = section.given.get("values")
    if isinstance(values, dict):
        values = _column(section.section("values"), building)
    if not isinstance(values, list) or not values:
        if values is None or not isinstance(values, list):
            section.problem("needs values: a list, or {column, source}")
        else:
            section.problem("needs at least one value", "values")
        return None
    weights = section.given.get("weights")
    if weights is None:
        return values, None
    if not isinstance(weights, list) or len(weights) != len(values):
        section.problem(f"must be a list of {len(values)}, one for each value", "weights")
        return None
    good = all(isinstance(w, (int, float)) and math.isfinite(w) and w >= 0 for w in weights)
    if not good or not sum(weights):
        section.problem("weights must be numbers, 0 or more, and not all 0", "weights")
        return None
    return values, [float(weight) for weight in weights]


def _column(section: Section, building: Building) -> list[Any] | None:
    """The values of a column of a data source."""
    from karat.datasets import source_rows

    section.known(("column", "source"))
    columns = section.texts("column")
    if not columns or "source" not in section:
        section.problem("needs a column and its source")
        return None
    try:
        rows = source_rows(section.mapping("source"), building.place.folder, building.place.load)
        return [row[column] for row in rows for column in columns if column in row]
    except KaratError as error:
        section.problems.caught((*section.place, "source"), error)
        return None


# The subgraph node: another task's graph as one step of this one, with some of its nodes changed.


class _Inside:
    """The place of a record in a subgraph."""

    kind = "subgraph"

    def __init__(self, record: Record) -> None:
        self._record = record

    @property
    def running(self) -> list[str]:
        """The nodes at work in the subgraph."""
        return [name for name in self._record.running.split(", ") if name]


class SubgraphNode(Node):
    """A node that runs another graph on the state of the record."""

    def __init__(self, name: str, plan: GraphPlan, outcome: object) -> None:
        super().__init__(name, plan.output_keys())
        self.plan = plan
        self.is_async = plan.is_async
        self.declared = plan.declared
        self.variables = plan.unset()
        self.parts = plan.parts()
        self.models = plan.models()
        self.outcome = {"graph": outcome, "nodes": plan.outcome()}

    def run(self, state: SygraState, record: Record) -> None:
        self.plan.run(state, self._inside(record))

    async def run_async(self, state: SygraState, record: Record) -> None:
        await self.plan.run_async(state, self._inside(record))

    def _inside(self, record: Record) -> Record:
        """The record inside of the subgraph, which the record around it asks where it is."""
        inner = Record(record.example, record.attempt, record.replicate, within=f"{self.name}.")
        if isinstance(record.at, str):  # beside nodes of other branches the subgraph itself is named
            record.at = _Inside(inner)
        return inner


def build_subgraph(name: str, section: Section, building: Building) -> Node | None:
    """A subgraph node from its section."""
    from karat.graph._configuration import read_subgraph

    section.known((*COMMON, "subgraph", "node_config_map"))
    path = section.text("subgraph", needed=True)
    if path is None:
        return None
    changes = section.section("node_config_map")
    for node, keys in changes.given.items():
        if not isinstance(keys, dict):
            changes.problem("must be a mapping of the node's keys to their new values", node)
    try:
        configuration = read_subgraph(path, building, changes.given)
    except ConfigError as error:
        for problem in error.problems:  # whose lines are those of the other file
            there = f"{error.where}, {problem}" if error.where else problem
            section.problems.add((*section.place, "subgraph"), there)
        return None
    for note in configuration.problems.notes():
        section.problems.note((*section.place, "subgraph"), f"{path}, {note}")
    for node in changes.given:
        if node not in configuration.node_names:
            changes.problem(
                f"{path} has no such node: {did_you_mean(str(node), configuration.node_names)}", node
            )
    return SubgraphNode(name, configuration.plan, configuration.outcome)
