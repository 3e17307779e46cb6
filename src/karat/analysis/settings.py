"""What differs between runs: parameters, prompt, code, commit, environment, served models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from karat.formatting import plural
from karat.records import RunHeader
from karat.store.run_labels import differing

LONGEST = 4000
"""Characters that are kept of a setting, such as a prompt."""

Aspect = Literal["parameter", "task", "dataset", "code", "environment", "served model"]


class SettingDifference(msgspec.Struct, frozen=True):
    """A setting that is not the same in all runs."""

    aspect: Aspect
    name: str
    values: list[str | None]
    """One for each run; None where a run has no such setting."""


def setting_differences(headers: Sequence[RunHeader], datasets: Sequence[str]) -> list[SettingDifference]:
    """What differs between runs, the most likely cause of other scores first."""
    settings = differing(headers)
    names = dict.fromkeys(name for each in settings for name in each)
    found = [_difference("task", "task", [header.task for header in headers])]
    found += [_difference("parameter", name, [each.get(name) for each in settings]) for name in names]
    found.append(_difference("dataset", "dataset", datasets))
    found.append(_difference("code", "code", [header.code and header.code[:10] for header in headers]))
    found.append(
        _difference("code", "commit", [(h.environment.get("git_commit") or "")[:10] or None for h in headers])
    )
    rest = dict.fromkeys(name for h in headers for name in h.environment if name != "git_commit")
    found += [_difference("environment", name, [h.environment.get(name) for h in headers]) for name in rest]
    found.append(_difference("served model", "served model", [_served(header) for header in headers]))
    return [each for each in found if each is not None]


def served_warnings(headers: Sequence[RunHeader], labels: dict[str, str]) -> list[str]:
    """A warning for each run in which one model was served by several versions."""
    out = []
    for header in headers:
        for model, usage in header.usage.items():
            if len(usage.served) > 1:
                parts = [f"{name} ({plural(calls, 'call')})" for name, calls in sorted(usage.served.items())]
                out.append(
                    f"{labels.get(header.id, header.id)}: {model} was served by {len(parts)} models within one run:"
                    f" {', '.join(parts)}; its scores mix them"
                )
    return out


def _served(header: RunHeader) -> str | None:
    return ", ".join(sorted({name for usage in header.usage.values() for name in usage.served})) or None


def _difference(aspect: Aspect, name: str, values: Sequence[Any]) -> SettingDifference | None:
    texts = [None if value is None else _text(value) for value in values]
    return SettingDifference(aspect, name, texts) if len(set(texts)) > 1 else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def unequal_settings(headers: Sequence[RunHeader], labels: dict[str, str]) -> list[str]:
    """A sentence for each setting that runs say they have to share (`shared_settings`) and do not."""
    shared = [header.parameters.get("shared_settings") for header in headers]
    if not any(isinstance(each, dict) for each in shared):
        return []
    known = [each if isinstance(each, dict) else {} for each in shared]
    out = []
    for name in dict.fromkeys(name for each in known for name in each):
        values = [json.dumps(each.get(name), sort_keys=True, ensure_ascii=False) for each in known]
        if len(set(values)) > 1:
            listing = ", ".join(
                f"{value[:80]} in {labels.get(header.id, header.id)}"
                for value, header in zip(values, headers, strict=True)
            )
            out.append(f"{name} is not the same in all runs: {listing}")
    return out
