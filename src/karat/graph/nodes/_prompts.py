"""Prompts: lists of roles with `{variables}`, compiled once and filled for every record.

`{name}`, `{name.field[0]}` and `{alias->column}` are variables; doubled (`{{name}}`) they stand for themselves, and any
other brace is a brace. A text in which other braces are doubled too, as SyGra's templates need it, is read as such a
template: each pair stands for one. What a record holds is never taken for a variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from karat.errors import RequestError, did_you_mean
from karat.graph._reading import Section
from karat.models import ROLES, message_content
from karat.paths import MISSING, find

_NAME = r"[^\W\d]\w*(?:(?:\.|->)\w+|\[\d+\])*"
_VARIABLE = re.compile(r"\{\{(" + _NAME + r")\}\}|\{(" + _NAME + r")\}")

Fill = Callable[[Mapping[str, Any]], Any]


class Prompt:
    """The messages of a node."""

    def __init__(self, messages: list[tuple[str, Any]]) -> None:
        self.messages = messages
        self.variables: dict[str, None] = {}
        self._fills = [(role, self._compile(content)) for role, content in messages]

    def fill(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The messages for a record."""
        return [{"role": role, "content": fill(state)} for role, fill in self._fills]

    def _compile(self, content: Any) -> Fill:
        if isinstance(content, str):
            return self._text(content, media=True)
        if isinstance(content, list):
            parts = [self._part(part) for part in content]

            def filled(state: Mapping[str, Any]) -> list[Any]:
                out: list[Any] = []
                for fill in parts:
                    part = fill(state)
                    out += part if isinstance(part, list) else [part]
                return out

            return filled
        return lambda state: content

    def _part(self, part: Any) -> Fill:
        """A part of a message: text, image or audio, in the shape that models are asked with."""
        if not isinstance(part, Mapping):
            text = self._text(str(part), media=True)

            def parts(state: Mapping[str, Any]) -> Any:
                found = text(state)
                return found if isinstance(found, list) else {"type": "text", "text": found}

            return parts
        kind = part.get("type")
        if kind in ("image_url", "audio_url"):
            given = part.get(kind)
            fill = self._text(given.get("url", "") if isinstance(given, Mapping) else str(given))
            more = {k: v for k, v in given.items() if k != "url"} if isinstance(given, Mapping) else {}
            shape = _image if kind == "image_url" else _audio
            return lambda state: shape(fill(state), more)
        fills = {
            key: self._text(value) if isinstance(value, str) else self._compile(value)
            for key, value in part.items()
        }
        return lambda state: {key: fill(state) for key, fill in fills.items()}

    def _text(self, template: str, media: bool = False) -> Fill:
        """A text; with `media`, a variable may stand for an image, a sound or a file, which gives parts."""
        pieces: list[str | list[str]] = []
        at = 0
        for match in _VARIABLE.finditer(template):
            pieces.append(template[at : match.start()])
            if match[1]:
                pieces.append("{" + match[1] + "}")
            else:
                self.variables[match[2]] = None
                pieces.append([match[2]])
            at = match.end()
        pieces.append(template[at:])
        if any("{{" in piece for piece in pieces if isinstance(piece, str)):
            pieces = [_unescaped(piece) if isinstance(piece, str) else piece for piece in pieces]
        if all(isinstance(piece, str) for piece in pieces):
            whole = "".join(piece for piece in pieces if isinstance(piece, str))
            return lambda state: whole
        if media:
            return lambda state: message_content(
                [piece if isinstance(piece, str) else (value_of(piece[0], state),) for piece in pieces]
            )
        return lambda state: "".join(
            piece if isinstance(piece, str) else _shown(value_of(piece[0], state)) for piece in pieces
        )


def _unescaped(text: str) -> str:
    return text.replace("{{", "{").replace("}}", "}")


def value_of(name: str, state: Mapping[str, Any]) -> Any:
    """The value of a variable: a name of the state, or a path into it."""
    value = find(state, name)
    if value is MISSING:
        raise RequestError(
            f"the prompt asks for {{{name}}} and the record has no such field: {did_you_mean(name, map(str, state))}"
        )
    return value


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _image(url: str, more: Mapping[str, Any]) -> dict[str, Any]:
    _check_url(url, "image")
    return {"type": "image_url", "image_url": {"url": url, **more}}


def _audio(url: str, more: Mapping[str, Any]) -> dict[str, Any]:
    _check_url(url, "audio")
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:audio/"):
        return {"type": "audio_url", "audio_url": {"url": url, **more}}
    form = head.removeprefix("data:audio/").partition(";")[0]
    return {"type": "input_audio", "input_audio": {"data": data, "format": {"mpeg": "mp3"}.get(form, form)}}


def _check_url(url: str, kind: str) -> None:
    if not url.startswith(("data:", "https://", "http://")):
        raise RequestError(f"{kind} {url[:60]!r} is not a URL: give https://… or data:{kind}/…;base64,…")


def read_prompt(node: Section) -> Prompt:
    """The prompt of a node's section. Invalid messages are reported and left out."""
    messages: list[tuple[str, Any]] = []
    entries = node.items("prompt")
    if not entries:
        node.problem('needs a prompt: a list such as - user: "{question}"')
    for at, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not entry:
            node.problem("must be a role with its content, such as user: …", "prompt", at)
            continue
        if set(entry) == {"role", "content"}:
            entry = {str(entry["role"]): entry["content"]}
        for role, content in entry.items():
            if role not in ROLES:
                node.problem(f"unknown role: {did_you_mean(str(role), ROLES)}", "prompt", at, str(role))
            elif isinstance(content, list):
                _check_parts(node, content, at, str(role))
                messages.append((str(role), content))
            elif content is None or isinstance(content, Mapping):
                node.problem("must be text or a list of parts", "prompt", at, str(role))
            else:
                messages.append((str(role), content if isinstance(content, str) else str(content)))
    return Prompt(messages)


def _check_parts(node: Section, parts: Iterable[Any], at: int, role: str) -> None:
    kinds = ("text", "image_url", "audio_url", "input_audio", "file", "image", "audio")
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            continue
        if kind not in kinds:
            node.problem(f"a part needs a type: {did_you_mean(str(kind), kinds)}", "prompt", at, role, number)
        elif kind not in part and not (kind in ("image", "audio", "file") and "path" in part):
            needed = "path" if kind in ("image", "audio") else kind
            node.problem(f"a part of the type {kind} needs {needed!r}", "prompt", at, role, number)
