"""Writes a small working evaluation into a folder: a dataset, a task, an experiment.

It works at once and needs no network:

    karat init capitals
    karat run capitals/experiment.yaml
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from karat.cli.parser import Parser
from karat.cli.terminal import Terminal
from karat.errors import RequestError

FILES = ("experiment.yaml", "questions.jsonl", "answer.py")
SCHEMA = "experiment.schema.json"


def add_arguments(parser: Parser) -> None:
    """The folder."""
    parser.add_argument("folder", metavar="DIR", help="the folder to write into; made if there is none")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Writes the files, or none of them."""
    from karat.experiments.schema import experiment_schema

    folder = Path(given.folder)
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is a file: name a folder")
    taken = [name for name in (*FILES, SCHEMA) if (folder / name).exists()]
    if taken:
        raise RequestError(f"{folder / taken[0]} exists already: name another folder, nothing is overwritten")
    source = Path(__file__).parent.parent / "templates"
    contents = {name: (source / name).read_text(encoding="utf-8") for name in FILES}
    contents[SCHEMA] = json.dumps(experiment_schema(), indent=2) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{folder} cannot be written: {error.strerror}") from error
    written = [str(folder / name) for name in contents]
    command = f"karat run {folder / 'experiment.yaml'}"
    text = "\n".join([*(f"wrote {path}" for path in written), "", f"now: {command}"])
    terminal.show({"files": written, "next": command}, text)
    return 0
