"""What runs are called for people: by their task, and by what differs between those that share one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from karat.records import RunHeader

LONGEST = 60


def settings_of(header: RunHeader) -> dict[str, Any]:
    """What a run was made with: its model, its parameters, its attempts and selection."""
    models = header.parameters.get("models")
    found: dict[str, Any] = _models(models) if isinstance(models, list) else {}
    if header.metadata.get("model"):
        found["model"] = header.metadata["model"]
    combination = header.metadata.get("matrix")
    if isinstance(combination, dict):
        found |= combination
    for name, value in header.parameters.items():
        # What a function was given stands in a mapping of its own.
        if name == "parameters" and isinstance(value, dict):
            found |= value
        elif name != "task" and not (name == "models" and isinstance(value, list)):
            found[name] = value
    for name, usual in (("attempts", 1), ("limit", None), ("offset", 0)):
        value = getattr(header, name)
        if value != usual:
            found[name] = value
    if header.replicate > 1:
        found["replicate"] = header.replicate
    return found


def _models(identities: list[Any]) -> dict[str, Any]:
    """The models of a graph's nodes: their names first, then where they are, then everything else."""
    told = [each for each in identities if isinstance(each, dict)]
    rest = [{k: v for k, v in each.items() if k not in ("model", "at")} for each in told]
    found: dict[str, Any] = {
        key: ", ".join(dict.fromkeys(_text(each.get(key)) for each in told)) for key in ("model", "at")
    }
    return {**found, "model settings": rest}


def differing(headers: Sequence[RunHeader]) -> list[dict[str, Any]]:
    """For each run, those of its settings that are not the same in all of them."""
    every = [settings_of(header) for header in headers]
    names = dict.fromkeys(name for settings in every for name in settings)
    apart = [name for name in names if len({_text(settings.get(name)) for settings in every}) > 1]
    return [{name: settings[name] for name in apart if name in settings} for settings in every]


def run_labels(headers: Sequence[RunHeader]) -> dict[str, str]:
    """A readable name for each run, different for each: the task, what differs, at worst the id."""
    labels: dict[str, str] = {}
    for header, settings in zip(headers, differing(headers), strict=True):
        words = [header.task] if len({each.task for each in headers}) > 1 or not settings else []
        words += [
            f"{name}={_text(value)}" if name != "model" else _text(value) for name, value in settings.items()
        ]
        label = " ".join(words)
        labels[header.id] = label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
    taken = list(labels.values())
    return {run: f"{label} ({run})" if taken.count(label) > 1 else label for run, label in labels.items()}


def _text(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    )
