"""Reading JSON from text that a model wrote: strict, with where and why when it is not JSON."""

from __future__ import annotations

import json
from typing import Any, NoReturn


class NotJSON(ValueError):
    """The text is not JSON; the message says where it stops being so."""


def parse_json(text: str, *, fenced: bool = False) -> Any:
    """The value a JSON text stands for. NaN and Infinity, which Python would accept, are not JSON.

    With `fenced` the text may also hold exactly one Markdown fence (```` ```json ````) with prose around it.
    """
    try:
        return _loads(text)
    except NotJSON:
        inside = _fences(text) if fenced else []
        if len(inside) > 1:
            raise NotJSON(f"there are {len(inside)} fenced blocks, which one is meant is unclear") from None
        if not inside:
            raise
        return _loads(inside[0])


def looks_fenced(text: str) -> bool:
    """Whether a text that is not JSON has a fence, so that a comment can name the option."""
    return "```" in text or "~~~" in text


def _fences(text: str) -> list[str]:
    """What stands in Markdown fences that are unnamed or named json; line by line, so linear in the text."""
    found: list[str] = []
    fence = ""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        mark = line.strip()
        if not fence:
            if mark.startswith(("```", "~~~")):
                name = mark.lstrip(mark[0])
                fence = mark[: len(mark) - len(name)]
                lines = []
                wanted = name.strip().lower() in ("", "json", "jsonc", "json5")
        elif len(mark) >= len(fence) and not mark.strip(fence[0]) and mark:
            if wanted:
                found.append("".join(lines))
            fence = ""
        else:
            lines.append(line)
    return found


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise NotJSON("it is empty") from None
        said = error.msg.removesuffix(" at")  # one of Python's messages ends so
        raise NotJSON(f"{said} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise NotJSON("it is nested too deeply to be read") from None
    except NotJSON:
        raise
    except ValueError:  # the limit of Python's own
        raise NotJSON("it has an integer of thousands of digits, too many to be read") from None


def _refuse(constant: str) -> NoReturn:
    raise NotJSON(f"{constant} is not JSON")
