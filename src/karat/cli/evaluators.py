"""Lists the evaluators, or explains one: what it does, its parameters, an example.

Evaluators of other kinds are named with a word before them (unit:NAME), one of your own by its place:
package.module.Name or file.py:Name.

    karat evaluators
    karat evaluators contains
"""

from __future__ import annotations

import argparse
import inspect
import json
from typing import Any

from karat.cli.parser import Parser
from karat.cli.terminal import Terminal


def add_arguments(parser: Parser) -> None:
    """Which one."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="explain this one")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Lists or explains."""
    from karat.cli.options import import_from_here
    from karat.evaluators import evaluators

    import_from_here()
    if given.name is None:
        found = [*(_described(evaluators, name) for name in evaluators.list()), *_unit_metrics()]
        terminal.show({"evaluators": found}, lambda: _list(found))
    else:
        document = _described(evaluators, given.name)
        terminal.show(document, lambda: _explain(document))
    return 0


def _described(registry: Any, name: str) -> dict[str, Any]:
    """Everything about a part, JSON-able."""
    from karat.evaluators.base import kind_of

    part = registry.get(name)
    out = {**registry.describe(name), "about": inspect.getdoc(part) or ""}
    out["params"] = {key: _jsonable(entry) for key, entry in out["params"].items()}
    example = getattr(part, "example", None)
    if isinstance(example, dict) and example:
        out["example"] = _jsonable(example)
    if isinstance(part, type):
        out["kind"] = kind_of(part)
    return out


def _unit_metrics() -> list[dict[str, Any]]:
    from karat.evaluators.unit.registry import unit_metrics

    found = []
    for name in unit_metrics.list():
        if ":" not in name:
            described = _described(unit_metrics, name)
            found.append({**described, "name": f"unit:{name}"})
    return found


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else repr(value)


def _list(found: list[dict[str, Any]]) -> str:
    from karat.report.text import clean, table

    rows = [["name", "what it says"]]
    rows += [[clean(each["name"], 40), clean(each["description"], 110)] for each in found]
    return table(rows) + "\n\nkarat evaluators NAME explains one"


def _explain(described: dict[str, Any]) -> str:
    from karat.report.text import clean, table

    aliases = f"  (also {', '.join(described['aliases'])})" if described["aliases"] else ""
    lines = [clean(described["name"] + aliases), ""]
    lines += [clean(line) for line in described["about"].splitlines()]
    if described["params"]:
        rows = [["parameter", "default", "type"]]
        for name, entry in described["params"].items():
            default = "required" if entry.get("required") else json.dumps(entry.get("default"), default=str)
            rows.append([clean(name, 40), clean(default, 40), clean(entry.get("type", ""), 60)])
        lines += ["", table(rows)]
    if "example" in described:
        lines += ["", "example", *_example(described)]
    return "\n".join(lines)


def _example(described: dict[str, Any]) -> list[str]:
    from karat.report.text import clean

    example = described["example"]
    spec: Any = described["name"]
    if example.get("params"):
        spec = {"name": spec, "params": example["params"]}
    lines = [f"  evaluator          {clean(json.dumps(spec, ensure_ascii=False), 300)}"]
    for name, value in example.items():
        if name != "params":
            lines.append(f"  {name.ljust(18)} {clean(json.dumps(value, ensure_ascii=False), 300)}")
    return lines
