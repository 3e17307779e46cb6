"""List the evaluators, or describe one: its purpose, its parameters and an example.

Unit metrics of graph tasks have the prefix unit: (unit:NAME). Name your own evaluator by its import path
(package.module.Name) or its file (file.py:Name).

    karat evaluators
    karat evaluators contains
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import typing
from typing import Any

from karat.cli.parser import Parser
from karat.cli.terminal import Terminal
from karat.formatting import Block, Heading, Lines, Paragraph, Table

GIVEN = ("outputs", "reference_outputs", "inputs")
"""What an example may give to `evaluate`, beside the parameters."""
LONGEST = 2_000
"""Characters of a line of an example; a longer one is cut and will not run."""


def add_arguments(parser: Parser) -> None:
    """Declare the argument NAME."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="the evaluator to describe")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """List the evaluators, or describe one."""
    from karat.cli.parser import import_from_here
    from karat.evaluators import evaluators

    import_from_here()
    if given.name is None:
        found = [*(_describe(evaluators, name) for name in evaluators.list()), *_unit_metrics()]
        terminal.show({"evaluators": found}, lambda: _list(found))
    else:
        document = _describe(evaluators, given.name)
        terminal.show(document, lambda: _explain(document))
    return 0


def _describe(registry: Any, name: str) -> dict[str, Any]:
    """Everything about a part, JSON-able."""
    from karat.evaluators._base import kind_of

    part = registry.get(name)
    out = {**registry.describe(name), "about": inspect.getdoc(part) or ""}
    choices = _choices(part)
    out["params"] = {
        key: _jsonable(
            {**entry, **_readable(entry), **choices.get(key, {}), "description": _about(part, key)}
        )
        for key, entry in out["params"].items()
    }
    example = getattr(part, "example", None)
    if isinstance(example, dict) and example:
        out["example"] = _jsonable(example)
    if isinstance(part, type):
        out["kind"] = kind_of(part)
    return out


TYPES = {
    "str": "text",
    "bool": "true or false",
    "int": "integer",
    "float": "number",
    "Sequence": "list",
    "list": "list",
    "Mapping": "mapping",
    "dict": "mapping",
    "Callable": "function",
    "object": "any",
    "Any": "any",
    "Paths": "path, or list of paths",
    "Criteria": "text, or mapping of texts",
    "JudgeLike": "model, list of models, or mapping of settings",
}
"""Annotations in the words of a YAML file."""


def _readable(entry: dict[str, Any]) -> dict[str, str]:
    """The type of a parameter as a YAML file writes it; that of a plug-in may stay as it is."""
    if "type" not in entry:
        return {}
    outside, inner = entry["type"], 1
    while inner:  # what is in brackets, from the innermost
        outside, inner = re.subn(r"\[[^\[\]]*\]", "", outside)
    names = [name.strip().rpartition(".")[2] for name in outside.split("|")]
    return {"type": " or ".join(dict.fromkeys(TYPES.get(name, name) for name in names if name != "None"))}


def _about(part: Any, name: str) -> str:
    """The first sentence about a parameter in the docstring of a part, or of what it is derived from."""
    classes = inspect.getmro(part) if isinstance(part, type) else (part,)
    for each in classes:
        for text in (each.__dict__.get("__doc__"), getattr(each.__dict__.get("__init__"), "__doc__", None)):
            for sentence in re.split(r"(?<=[.;])\s+", " ".join((text or "").split())):
                if f"`{name}`" in sentence or f"`{name}:" in sentence:
                    return sentence.rstrip(";.")
    return ""


def _choices(part: Any) -> dict[str, dict[str, Any]]:
    """The words that parameters of a few words take, where the part annotates them."""
    try:
        hints = typing.get_type_hints(part.__init__)
    except Exception:  # annotations of others may name what cannot be found
        return {}
    literal = {name: hint for name, hint in hints.items() if typing.get_origin(hint) is typing.Literal}
    return {name: {"type": " | ".join(map(str, typing.get_args(hint)))} for name, hint in literal.items()}


def _unit_metrics() -> list[dict[str, Any]]:
    from karat.evaluators import evaluators
    from karat.graph.metrics import unit_metrics

    return [_describe(evaluators, f"unit:{name}") for name in unit_metrics.list() if ":" not in name]


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else repr(value)


def _list(found: list[dict[str, Any]]) -> list[Block]:
    rows = [[each["name"], each["description"]] for each in found]
    return [
        Table(["name", "description"], rows, cell=110, lines=4),
        Paragraph("karat evaluators NAME describes one evaluator"),
    ]


def _explain(described: dict[str, Any]) -> list[Block]:
    aliases = f" (also {', '.join(described['aliases'])})" if described["aliases"] else ""
    blocks: list[Block] = [Heading(described["name"] + aliases)]
    blocks += [Paragraph(text) for text in described["about"].split("\n\n") if text.strip()]
    if described["params"]:
        rows = []
        for name, entry in described["params"].items():
            default = "required" if entry.get("required") else json.dumps(entry.get("default"), default=str)
            rows.append([name, default, str(entry.get("type", "")), entry["description"]])
        head = ["parameter", "default", "type", *(["meaning"] if any(row[3] for row in rows) else [])]
        blocks.append(Table(head, [row[: len(head)] for row in rows], cell=200, lines=6))
    if "example" in described:
        blocks += [Heading("example"), Lines(_example(described))]
    return blocks


def _example(described: dict[str, Any]) -> list[str]:
    """The example as YAML, and as Python that runs."""
    example, name = described["example"], described["name"]
    params = example.get("params")
    spec: Any = {"name": name, "params": params} if params else name
    given = ", ".join(f"{key}={example[key]!r}" for key in GIVEN if key in example)
    built = f"build_evaluator({name!r}, {params!r})" if params else f"build_evaluator({name!r})"
    python = ["from karat.evaluators import build_evaluator", f"result = {built}.evaluate({given})"]
    if isinstance(example.get("score"), (int, float)):
        python.append(f"assert round(result.score, 6) == {round(example['score'], 6)}")
    lines = [f"evaluators: [{json.dumps(spec, ensure_ascii=False)}]", ""]
    return lines + python
