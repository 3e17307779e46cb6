"""The commands there are: their names, where each is written, and which one a command line means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from karat.errors import RequestError, did_you_mean

WITH_VALUE = ("--store",)
"""Options of every command that take a value, and may stand before the command's name."""


class UsageError(RequestError):
    """A command line that cannot be read."""


class Command(NamedTuple):
    """A command: its module has `add_arguments(parser)` and `execute(arguments, terminal)`."""

    module: str
    summary: str


COMMANDS = {
    "init": Command("karat.cli.init", "write a small working evaluation to start from"),
    "run": Command("karat.cli.run", "run an experiment, or a task over a dataset"),
    "evaluate": Command("karat.cli.evaluate", "judge the outputs of one or more runs"),
    "aggregate": Command("karat.cli.aggregate", "fold the results of evaluations into estimates"),
    "compare": Command("karat.cli.compare", "compare runs with a baseline, example by example"),
    "rank": Command("karat.cli.rank", "rank runs from best to worst"),
    "report": Command("karat.cli.report", "write down all that is known of runs"),
    "judge": Command("karat.cli.judge", "correct, measure and audit judges"),
    "judge correct": Command("karat.cli.judge", "correct or confirm one decision of a judge"),
    "judge import": Command("karat.cli.judge", "store people's labels from a file"),
    "judge alignment": Command("karat.cli.judge", "how far a judge agrees with people"),
    "judge compare": Command("karat.cli.judge", "judge the same outputs with two judges"),
    "judge audit": Command("karat.cli.judge", "how often a judge errs, and how easily it is misled"),
    "graph": Command("karat.cli.graph", "draw the graph of a task"),
    "ls": Command("karat.cli.ls", "list what the store has"),
    "show": Command(
        "karat.cli.show", "show one thing: its counts, where it comes from, an example, its failures"
    ),
    "export": Command("karat.cli.export", "write records as JSON, JSONL, CSV or Parquet"),
    "rm": Command("karat.cli.rm", "remove things from the store"),
    "evaluators": Command("karat.cli.evaluators", "list the evaluators, or explain one"),
    "models": Command("karat.cli.models", "list the models that can be used here, and what each needs"),
    "models pull": Command("karat.cli.models_pull", "fetch the weights of the embedded model"),
    "models cache": Command("karat.cli.models_cache", "what is kept of model answers, and forgetting it"),
    "doctor": Command("karat.cli.doctor", "what is installed, what works here, and what to install"),
}
"""In the order in which they are listed. A name of two words is a part of the command before it."""


def find_command(given: Sequence[str]) -> tuple[str | None, list[str]]:
    """`(command, its arguments)`; options that stand before the name are given to the command."""
    before: list[str] = []
    words = iter(enumerate(given))
    for place, word in words:
        if not word.startswith("-"):
            return _longest(word, list(given[place + 1 :]), before)
        before.append(word)
        if word in WITH_VALUE:
            before += [value for _, value in [next(words, (0, ""))] if value]
    return None, before


def _longest(word: str, rest: list[str], before: list[str]) -> tuple[str, list[str]]:
    if word not in COMMANDS:
        raise UsageError(f"karat has no command {word!r}: {did_you_mean(word, COMMANDS)}")
    if rest and f"{word} {rest[0]}" in COMMANDS:
        return f"{word} {rest[0]}", [*before, *rest[1:]]
    return word, [*before, *rest]
