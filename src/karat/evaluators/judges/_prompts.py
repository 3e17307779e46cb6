"""Prompt templates: versioned files, filled with trusted settings only. Judged text never enters a template."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from karat.errors import RequestError, did_you_mean
from karat.evaluators.judges._replies import Contract

SLOTS = ("criterion", "scale", "choices", "common", "examples", "reply")
MATERIAL = ("question", "answer", "reference", "context", "input", "output", "expected")
_SLOT = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Prompt(msgspec.Struct, frozen=True):
    """A template with its version; `identity` is what the fingerprint holds."""

    name: str
    version: str
    text: str

    @property
    def identity(self) -> str:
        """Name, version and hash of the text: `criterion/1 3f2a…`."""
        digest = hashlib.blake2b((self.text + _common().text).encode(), digest_size=6).hexdigest()
        return f"{self.name}/{self.version} {digest}"

    def fill(self, contract: Contract, **slots: str) -> str:
        """The instructions: everything that is the same for all judged texts."""
        values = {"common": _common().text.strip(), "reply": reply_instructions(contract), **slots}
        text = _SLOT.sub(lambda match: values.get(match[1], ""), self.text)
        return re.sub(r"\n{3,}", "\n\n", text).strip()


@lru_cache(maxsize=64)
def shipped(name: str) -> Prompt:
    """A template that comes with karat."""
    text = files("karat.evaluators.judges").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")
    head, _, body = text.partition("\n---\n")
    return Prompt(name, head.removeprefix("version:").strip(), body.strip() + "\n")


def _common() -> Prompt:
    return shipped("common")


def prompt_of(who: str, given: str | None, name: str) -> Prompt:
    """The user's own template, as text or as a path, or the shipped one.

    The rules for reading the material and the form of the reply are added where a template leaves them out.
    """
    if given is None:
        return shipped(name)
    if not isinstance(given, str) or not given.strip():
        raise RequestError(f"{who}: prompt must be a text or the path of a file")
    text, label = given, "own"
    if "\n" not in given and len(given) < 500 and given.strip().endswith((".md", ".txt")):
        path = Path(given).expanduser()
        try:
            text, label = path.read_text(encoding="utf-8"), path.stem
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"{who}: the prompt {given} cannot be read: {type(error).__name__}") from None
    version, head, body = "own", *_split(text)
    if head:
        version, text = head, body
    for slot in _SLOT.findall(text):
        if slot in MATERIAL:
            raise RequestError(
                f"{who}: the prompt has {{{{{slot}}}}}: judged text is added after the prompt, between markers;"
                f" write 'the {slot}' instead"
            )
        if slot not in SLOTS:
            raise RequestError(f"{who}: the prompt has {{{{{slot}}}}}: {did_you_mean(slot, SLOTS)}")
    for slot in ("common", "reply"):
        if slot not in _SLOT.findall(text):
            text += f"\n\n{{{{{slot}}}}}"
    return Prompt(label, version, text)


def _split(text: str) -> tuple[str, str]:
    head, line, body = text.partition("\n---\n")
    return (
        (head.removeprefix("version:").strip(), body) if line and head.startswith("version:") else ("", text)
    )


def reply_instructions(contract: Contract) -> str:
    """The form of the reply in words; providers that can be held to a schema are held to it as well."""
    shape: dict[str, Any] = {"analysis": "what decides, in a few sentences"}
    if contract.field == "pass":
        form = '{"analysis": "…", "pass": true or false}'
        rest = '"pass" is true if the criterion is satisfied and false otherwise.'
    elif contract.field == "score":
        form = '{"analysis": "…", "score": ' + " or ".join(map(str, contract.values)) + "}"
        rest = '"score" is a whole number of the scale above.'
    elif contract.field == "choice":
        form = (
            '{"analysis": "…", "choice": '
            + " or ".join(json.dumps(c, ensure_ascii=False) for c in contract.values)
            + "}"
        )
        rest = '"choice" is exactly one of the choices.'
    elif contract.field == "claims":
        form = '{"analysis": "…", "claims": [{"claim": "…", "supported": true or false}, …]}'
        rest = '"claims" has one entry for each claim; it is [] if there is none.'
    elif contract.labels:
        labels = " or ".join(json.dumps(label, ensure_ascii=False) for label in contract.labels)
        form = '{"analysis": "…", "verdicts": [{"analysis": "…", "id": 1, "label": ' + labels + "}, …]}"
        numbers = ", ".join(map(str, contract.values))
        rest = f'"verdicts" has exactly one entry for each of the items {numbers}; "id" is the number of the item.'
    elif contract.evidence:
        form = (
            '{"analysis": "…", "verdicts": [{"evidence": "…", "id": 1, "quote": "…", "satisfied": true or false,'
            ' "steps": [2, 3]}, …]}'
        )
        rest = '"verdicts" has exactly one entry for each requirement.'
    else:
        verdict = (
            '"score": ' + " or ".join(map(str, contract.scale)) if contract.scale else '"pass": true or false'
        )
        form = '{"analysis": "…", "verdicts": [{"analysis": "…", "criterion": "…", ' + verdict + "}, …]}"
        rest = f'"verdicts" has exactly one entry for each criterion: {", ".join(map(str, contract.values))}.'
    return (
        f'Reply with one JSON object and nothing else, in this form:\n{form}\n"analysis" says {shape["analysis"]}.'
        f" {rest}"
    )


def scale_text(anchors: Mapping[int, str]) -> str:
    """The anchored integers of a graded score."""
    return "\nScale:\n" + "\n".join(f"{number}: {text}" for number, text in anchors.items()) + "\n"


def examples_text(examples: Sequence[Mapping[str, Any]], field: str) -> str:
    """Worked examples that the user wrote; they are part of the instructions."""
    if not examples:
        return ""
    lines = ["\nExamples of verdicts:"]
    for number, example in enumerate(examples, 1):
        lines.append(f"Example {number}:")
        for name, value in example.items():
            if name not in ("analysis", field):
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
                lines.append(f"{name}: {text}")
        reply = {"analysis": example.get("analysis", ""), field: example.get(field)}
        lines.append(f"Reply: {json.dumps(reply, ensure_ascii=False, default=str)}")
    return "\n".join(lines) + "\n"
