"""The weighted_sampler node: draws values for attributes, the same ones whenever the same run is repeated."""

from __future__ import annotations

import hashlib
import math
import random
from typing import Any

from karat.errors import KaratError
from karat.graph._reading import Section
from karat.graph._state import SygraState, own
from karat.graph.nodes._base import COMMON, Building, Node, Record
from karat.serialization import canonical


class SamplerNode(Node):
    """Draws one value for each attribute; a draw depends on the seed, the record, the attempt and the replicate."""

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
        section.problem("weights are numbers of 0 or more, and not all 0", "weights")
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
