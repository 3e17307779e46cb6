"""Names of runs for people: their own labels, or their task and what differs between runs of one task."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from karat.errors import RequestError
from karat.records import RunHeader

LONGEST = 60
LONGEST_VALUE = 32
WIDTHS = (LONGEST_VALUE, 20, 12)
"""Characters of a value: fewer where several values do not fit into a label, and the labels would be alike."""

CONSEQUENCES = {
    "messages": ("prompt", "system"),
    "base_url": ("model",),
    "endpoint": ("model",),
    "at": ("model",),
    "model settings": ("model",),
}
"""Settings that follow from others: shown only where the others do not distinguish the runs."""


MEMORY_CONSEQUENCES = ("system", "control", "version", "capabilities")
"""Settings that follow from a memory system: left out where the runs of one system do not differ in them."""


def settings_of(header: RunHeader) -> dict[str, Any]:
    """Return the settings of a run: its model, parameters, attempts and selection."""
    models = header.parameters.get("models")
    found: dict[str, Any] = _models(models) if isinstance(models, list) else {}
    if header.metadata.get("model"):
        found["model"] = header.metadata["model"]
    combination = header.metadata.get("matrix")
    if isinstance(combination, dict):
        found |= combination
    for name, value in header.parameters.items():
        # The parameters of a function and what memory systems share are nested mappings.
        if name in ("parameters", "shared_settings") and isinstance(value, dict):
            found |= value
        elif name == "messages" and (prompt := _prompt(value)) is not None:
            found["prompt"] = prompt
        elif name == "recorded":
            found[name] = str(value)[:8]
        elif name == "name" and value == header.task:
            continue
        elif name != "task" and not (name == "models" and isinstance(value, list)):
            found[name] = value
    for name, usual in (("attempts", 1), ("limit", None), ("offset", 0)):
        value = getattr(header, name)
        if value != usual:
            found[name] = value
    if header.replicate > 1:
        found["replicate"] = header.replicate
    return found


def _prompt(messages: object) -> str | None:
    """The text of a prompt that is one message of the user; None of any other."""
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict):
        content = messages[0].get("content")
        if messages[0].keys() == {"role", "content"} and messages[0]["role"] == "user":
            return content if isinstance(content, str) else None
    return None


def _models(identities: list[Any]) -> dict[str, Any]:
    """The models of a graph's nodes: their names first, then where they are, then everything else."""
    known = [each for each in identities if isinstance(each, dict)]
    rest = [{k: v for k, v in each.items() if k not in ("model", "at")} for each in known]
    found: dict[str, Any] = {
        key: ", ".join(dict.fromkeys(_text(each.get(key)) for each in known)) for key in ("model", "at")
    }
    return {**found, "model settings": rest}


def differing(headers: Sequence[RunHeader]) -> list[dict[str, Any]]:
    """Return for each run the settings that differ between the runs."""
    return _distinguishing([settings_of(header) for header in headers])


def brief_settings(headers: Sequence[RunHeader], longest: int) -> list[dict[str, str]]:
    """The settings that differ between runs, each from where the values part, without those that follow from others."""
    return _brief(_without_consequences(differing(headers)), longest)


def run_labels(headers: Sequence[RunHeader]) -> dict[str, str]:
    """A unique readable name for each run: its own label, else its task and what differs, at worst its id."""
    own = _own_labels(headers)
    if own is not None:
        return own
    if all(header.parameters.get("kind") == "memory" for header in headers):
        apart = _apart_in_memory(headers)
    else:
        apart = _without_consequences(differing(headers))
    several = len({header.task for header in headers}) > 1
    labels: dict[str, str] = {}
    names = Counter(header.task for header in headers)
    apart = [  # recorded outputs are called by their file, and by a hash only where two files have one name
        {k: v for k, v in each.items() if k != "recorded" or names[header.task] > 1}
        for header, each in zip(headers, apart, strict=True)
    ]
    for longest in WIDTHS:
        for header, words in zip(headers, _in_words(apart, longest), strict=True):
            label = " ".join([header.task, *words] if several or not words else words)
            labels[header.id] = label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
        if len(set(labels.values())) == len(labels):
            break
    taken = list(labels.values())
    return {run: f"{label} ({run})" if taken.count(label) > 1 else label for run, label in labels.items()}


def _apart_in_memory(headers: Sequence[RunHeader]) -> list[dict[str, Any]]:
    """What differs between memory runs. Settings of their systems count where two runs of one system differ in them."""
    every = [settings_of(header) for header in headers]
    systems = []
    for settings in every:
        system = settings.get("system")
        own = dict(system) if isinstance(system, dict) and not system.keys() & settings.keys() else {}
        if own:
            del settings["system"]
        systems.append(own)
    apart = _distinguishing([settings | own for settings, own in zip(every, systems, strict=True)])
    for task in {header.task for header in headers}:
        places = [place for place, header in enumerate(headers) if header.task == task]
        for name in {*MEMORY_CONSEQUENCES, *(name for place in places for name in systems[place])}:
            if len({_text(apart[place].get(name)) for place in places}) == 1:
                for place in places:
                    apart[place].pop(name, None)
    return _without_consequences(apart)


def _own_labels(headers: Sequence[RunHeader]) -> dict[str, str] | None:
    """The newest label of each run that no other run has; None unless there are several runs and each has one."""
    if len(headers) < 2:
        return None
    counts = Counter(label for header in headers for label in set(header.labels))
    own: dict[str, str] = {}
    for header in headers:
        label = next((each for each in reversed(header.labels) if counts[each] == 1), "")
        if not label:
            return None
        own[header.id] = label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
    return own if len(set(own.values())) == len(own) else None


def matrix_labels(headers: Sequence[RunHeader]) -> dict[str, str]:
    """For each run of a matrix, what differs between it and the others of the same matrix; in a list of any runs."""
    groups: dict[tuple[str, ...], list[RunHeader]] = {}
    for header in headers:
        matrix = header.metadata.get("matrix")
        if isinstance(matrix, dict) and matrix:
            same = (_text(header.metadata.get("experiment")), header.dataset, header.task, *sorted(matrix))
            groups.setdefault(same, []).append(header)
    labels = {}
    for group in groups.values():
        combinations = [header.metadata["matrix"] for header in group]
        apart = (
            _distinguishing(combinations)
            if any(each != combinations[0] for each in combinations)
            else combinations
        )
        labels.update({h.id: " ".join(words) for h, words in zip(group, _in_words(apart), strict=True)})
    return labels


def _distinguishing(every: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names = dict.fromkeys(name for settings in every for name in settings)
    apart = [name for name in names if len({_text(settings.get(name)) for settings in every}) > 1]
    return [{name: settings[name] for name in apart if name in settings} for settings in every]


def _without_consequences(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same settings without those that follow from another that is shown, such as `messages` from a `prompt`."""
    for name, causes in CONSEQUENCES.items():
        rest = [{key: value for key, value in settings.items() if key != name} for settings in every]
        shown = all(any(cause in settings for cause in causes) for settings in rest)
        if shown and len({_text(each) for each in rest}) == len({_text(each) for each in every}):
            every = rest
    return every


def _in_words(every: Sequence[dict[str, Any]], longest: int = LONGEST_VALUE) -> list[list[str]]:
    """`openai/a`, `temperature=0.7`: each setting in few words, that of a model without its name."""
    return [
        [text if name == "model" else f"{name}={text}" for name, text in settings.items()]
        for settings in _brief(every, longest)
    ]


def _brief(every: Sequence[dict[str, Any]], longest: int) -> list[dict[str, str]]:
    names = dict.fromkeys(name for settings in every for name in settings)
    short = {
        name: shorten({_text(settings[name]) for settings in every if name in settings}, longest)
        for name in names
    }
    return [{name: short[name][_text(value)] for name, value in settings.items()} for settings in every]


def shorten(values: set[str], longest: int) -> dict[str, str]:
    """Each text cut to a few words; those that would then look alike are shown from where they part."""
    short = _from_difference(values, longest, 0, None)
    return short if len(set(short.values())) == len(values) else _from_difference(values, longest, 0, "")


def _from_difference(values: set[str], longest: int, start: int, before: str | None) -> dict[str, str]:
    """Texts that are alike up to `start`, from there on.

    `before` is what has told them from others, unless it is None: `…kind…in French`, `…rude…in French`.
    """
    alike: dict[str, set[str]] = {}
    for value in values:
        text = f"{before or ''}…{value[start:]}" if start else value
        alike.setdefault(_cut(text, longest), set()).add(value)
    short: dict[str, str] = {}
    for cut, those in alike.items():
        if len(those) == 1:
            short[those.pop()] = cut
            continue
        one, other = min(those), max(those)
        told = before
        if before is not None and len(alike) > 1 and len(before) < longest // 3:
            told = before + ("…" if start else "") + one[start : start + longest // 4].strip()
        at = _shared_prefix(one, other)  # what these two begin with alike, all do
        around = at - longest // 4
        word = one.find(" ", around, at) + 1
        short |= _from_difference(those, longest, word or around, told)
    return short


def _shared_prefix(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _cut(text: str, longest: int) -> str:
    if not text:
        return '""'
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _text(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    )


_LIKE_AN_ID = re.compile(r"(run|eval|agg|ds)-[0-9a-f]{6,}")


def check_labels(labels: Sequence[str]) -> None:
    """Refuse labels that cannot name anything.

    `latest` means the latest, an id means what has it, and no address keeps `.` or `..`.
    """
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise RequestError(f"labels is {labels!r:.60}: it must be a list of texts, such as ['baseline']")
    for label in labels:
        if not isinstance(label, str):
            raise RequestError(f"{label!r:.60} cannot be a label: labels are texts")
        if not label.strip() or label in ("latest", ".", "..") or _LIKE_AN_ID.fullmatch(label):
            raise RequestError(f"{label!r} cannot be a label: use another word")
