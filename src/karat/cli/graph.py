"""Draw the graph of a task: its nodes and edges.

TASK is tasks.eval.x.y, eval/x/y, or the path of a folder or file. The output is Mermaid text, which many Markdown
viewers render as a diagram, or an SVG.

    karat graph eval/question_answering/demo
    karat graph eval/question_answering/demo --format svg --out graph.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

from karat.cli.parser import Parser, UsageError
from karat.cli.terminal import Terminal

ENDINGS = {".mmd": "mermaid", ".mermaid": "mermaid", ".md": "mermaid", ".txt": "mermaid", ".svg": "svg"}


def add_arguments(parser: Parser) -> None:
    """Declare the task and the options of the drawing."""
    parser.add_argument("task", metavar="TASK", help="a graph task")
    parser.option(
        "--format",
        choices=("mermaid", "svg"),
        help="output format (default: from the file extension, else mermaid)",
    )
    parser.option("--out", metavar="FILE", help="write the drawing to a file instead of stdout")
    parser.option("--model", metavar="MODEL", help="accepted for symmetry with `karat run`, and ignored")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Draw a task from its file alone: its code is not imported."""
    from karat.datasets.writers import write_whole
    from karat.graph import arrows, load_outline, mermaid, svg

    wanted = given.format or _form(given.out)
    name, plan = load_outline(given.task)
    drawn = svg(plan) if wanted == "svg" else mermaid(plan)
    document = {
        "task": name,
        "nodes": {name: node.kind for name, node in plan.nodes.items()},
        "edges": [{"from": a, "to": b, **({"when": c} if c else {})} for a, b, c in arrows(plan)],
        wanted: drawn,
    }
    if given.out is None:
        terminal.show(document, drawn)
        return 0
    write_whole(given.out, drawn)
    terminal.done({**document, "file": given.out}, f"wrote {given.out}")
    return 0


def _form(file: str | None) -> str:
    """The format of a file, from its extension."""
    ending = Path(file).suffix.lower() if file is not None else ".mmd"
    if ending not in ENDINGS:
        raise UsageError(f"{file}: unknown file extension: use {', '.join(ENDINGS)}, or add --format")
    return ENDINGS[ending]
