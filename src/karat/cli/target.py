"""What `karat run X` was given: an experiment file, or a function."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from karat.errors import RequestError

YAML = (".yaml", ".yml")


class Target(NamedTuple):
    """What there is to run."""

    kind: Literal["experiment", "function"]
    name: str
    """The file of an experiment; `file.py:function` or a dotted path."""


def recognise(text: str) -> Target:
    """Decides by the look of it: a YAML file, a folder with an experiment, `file.py:function`, a dotted path."""
    from karat.experiments.plan import refuse_missing

    path = Path(text)
    if path.is_dir():
        inside = path / "experiment.yaml"
        if inside.is_file():
            return Target("experiment", str(inside))
        raise RequestError(f"{text} is a folder without an experiment.yaml: name a file in it")
    if path.suffix in YAML:
        refuse_missing(path)
        return Target("experiment", text)
    file, colon, function = text.partition(":")
    if file.endswith(".py"):
        refuse_missing(Path(file))
        if not colon or not function:
            raise RequestError(f"{file} has functions: say which, as {file}:FUNCTION")
        return Target("function", text)
    if "." in text and all(word.isidentifier() for word in text.split(".")):
        return Target("function", text)
    raise RequestError(
        f"{text!r} cannot be run: give an experiment (experiment.yaml), file.py:function or package.module.function"
    )
