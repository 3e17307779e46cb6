"""Write a small working evaluation into a folder: a dataset, a task and an experiment file.

It runs as it is and needs no network:

    karat init capitals
    karat run capitals/experiment.yaml

With --graph, the command writes a graph task: `graph_config.yaml`, its data, its code and the JSON Schema of the file.

    karat init capitals --graph
    karat run capitals
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from karat.cli.parser import Parser
from karat.cli.terminal import Terminal
from karat.errors import RequestError, refuse_nul

FILES = ("experiment.yaml", "questions.jsonl", "answer.py")
SCHEMA = "experiment.schema.json"
GRAPH_FILES = ("graph/graph_config.yaml", "questions.jsonl", "graph/answers.py")
GRAPH_SCHEMA = "graph.schema.json"


def add_arguments(parser: Parser) -> None:
    """Declare the argument FOLDER."""
    parser.add_argument(
        "folder", metavar="DIR", help="the folder to write into; created if it does not exist"
    )
    parser.option("--graph", action="store_true", help="write a graph task instead of an experiment")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Write all files or none."""
    from karat.datasets.writers import unwritable, whole_file

    refuse_nul(given.folder)
    folder = Path(given.folder)
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is a file: name a folder")
    contents = _graph() if given.graph else _experiment()
    taken = [name for name in contents if (folder / name).exists()]
    if taken:
        raise RequestError(f"{folder / taken[0]} already exists and is not overwritten: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            with whole_file(folder / name) as file:
                file.write(text.encode())
    except OSError as error:
        raise unwritable(folder, error) from error
    written = [str(folder / name) for name in contents]
    command = f"karat run {folder if given.graph else folder / 'experiment.yaml'}"
    text = "\n".join([*(f"wrote {path}" for path in written), "", f"now: {command}"])
    terminal.done({"files": written, "next": command}, text)
    return 0


def _templates(names: tuple[str, ...]) -> dict[str, str]:
    source = Path(__file__).parent.parent / "templates"
    return {Path(name).name: (source / name).read_text(encoding="utf-8") for name in names}


def _experiment() -> dict[str, str]:
    from karat.experiments.schema import experiment_schema

    return {**_templates(FILES), SCHEMA: json.dumps(experiment_schema(), indent=2) + "\n"}


def _graph() -> dict[str, str]:
    from karat.graph import graph_schema

    return {**_templates(GRAPH_FILES), GRAPH_SCHEMA: json.dumps(graph_schema(), indent=2) + "\n"}
