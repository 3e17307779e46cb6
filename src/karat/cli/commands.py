"""The table of commands, and how to find the command in a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from karat.errors import RequestError, did_you_mean

WITH_VALUE = ("--store",)
"""General options that take a value and may precede the command name."""


class UsageError(RequestError):
    """A command line that cannot be read."""


class Command(NamedTuple):
    """A command: its module has `add_arguments(parser)` and `execute(arguments, terminal)`."""

    module: str
    summary: str


COMMANDS = {
    "init": Command("karat.cli.init", "write a small working evaluation to start from"),
    "run": Command("karat.cli.run", "run an experiment, or a task over a dataset"),
    "evaluate": Command("karat.cli.evaluate", "evaluate the outputs of one or more runs"),
    "aggregate": Command("karat.cli.aggregate", "aggregate the results of evaluations into estimates"),
    "compare": Command("karat.cli.compare", "compare runs with a baseline, example by example"),
    "rank": Command("karat.cli.rank", "rank runs from best to worst"),
    "report": Command("karat.cli.report", "write a report on runs, evaluations or aggregations"),
    "view": Command("karat.cli.view", "open a local web viewer on the results"),
    "judge": Command("karat.cli.judge", "correct, measure and audit judges"),
    "judge correct": Command("karat.cli.judge", "correct or confirm one decision of a judge"),
    "judge sample": Command("karat.cli.judge", "write a sheet of outputs for a person to label"),
    "judge import": Command("karat.cli.judge", "import human labels from a file"),
    "judge alignment": Command("karat.cli.judge", "measure how well a judge agrees with human labels"),
    "judge compare": Command("karat.cli.judge", "evaluate the same outputs with two judges"),
    "judge audit": Command(
        "karat.cli.judge", "measure the error rates of a judge and its resistance to attacks"
    ),
    "graph": Command("karat.cli.graph", "draw the graph of a task"),
    "memory": Command("karat.cli.memory", "evaluate a memory system on dialogues and questions"),
    "ls": Command("karat.cli.ls", "list the contents of the store"),
    "show": Command(
        "karat.cli.show", "show a dataset, run, evaluation or aggregation, one example, or the failures"
    ),
    "tag": Command("karat.cli.tag", "label a dataset, run, evaluation or aggregation"),
    "export": Command("karat.cli.export", "write records as JSON, JSONL, CSV or Parquet"),
    "rm": Command("karat.cli.rm", "remove datasets, runs, evaluations or aggregations"),
    "evaluators": Command("karat.cli.evaluators", "list the evaluators, or describe one"),
    "models": Command("karat.cli.models", "list the available models and their requirements"),
    "models pull": Command("karat.cli.models_pull", "download the weights of the embedded model"),
    "models cache": Command("karat.cli.models_cache", "show or clear the cache of model replies"),
    "doctor": Command("karat.cli.doctor", "check the installation, the store and the models"),
}
"""In the order of `karat --help`. A name of two words is a subcommand."""


def find_command(given: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return `(command, its arguments)`; options before the command name are passed to the command."""
    before: list[str] = []
    words = iter(enumerate(given))
    for place, word in words:
        if not word.startswith("-"):
            if word not in COMMANDS:
                raise UsageError(f"unknown command {word!r}: {did_you_mean(word, [*COMMANDS, 'help'])}")
            rest = list(given[place + 1 :])
            if rest and f"{word} {rest[0]}" in COMMANDS:
                word = f"{word} {rest.pop(0)}"
            return word, [*before, *rest]
        before.append(word)
        if word in WITH_VALUE:
            before += [value for _, value in [next(words, (0, ""))] if value]
    return None, before
