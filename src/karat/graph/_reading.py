"""Reading a configuration so that every mistake in it is found at once, each with its line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from karat.documents import Document, Place, format_path
from karat.errors import ConfigError, KaratError, did_you_mean, nearest


class Problems:
    """The mistakes found so far in one file."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._found: dict[tuple[int, str], str] = {}
        self._notes: dict[tuple[int, str], None] = {}

    def add(self, place: Place, sentence: str) -> None:
        """Add a problem at a place."""
        self._found[self._with_note(place, sentence)] = sentence

    def note(self, place: Place, sentence: str) -> None:
        """Add a note: not an error, but something the user should know."""
        self._notes[self._with_note(place, sentence)] = None

    def _with_note(self, place: Place, sentence: str) -> tuple[int, str]:
        where = format_path(place)
        return self.document.line(place), f"{where}: {sentence}" if where else sentence

    def caught(self, place: Place, error: KaratError) -> None:
        """Add an error that another part of karat raised."""
        for sentence in getattr(error, "problems", None) or [str(error)]:
            self.add(place, sentence)

    def __len__(self) -> int:
        return len(self._found)

    def sentences(self) -> list[str]:
        """All problems in file order; a module that cannot be imported is one, however often it is named."""
        lines: dict[str, list[int]] = {}
        texts: dict[str, str] = {}
        for line, text in sorted(self._found, key=lambda found: (found[0], _sort_key(found[1]))):
            sentence = self._found[line, text]
            once = sentence if sentence.startswith("importing ") else f"{line} {text}"
            texts.setdefault(once, text)
            lines.setdefault(once, []).append(line)
        return [
            f"line {first}: {texts[each]}" + (f" (also line {', '.join(map(str, others))})" if others else "")
            for each, (first, *others) in lines.items()
        ]

    def notes(self) -> list[str]:
        """All notes in file order."""
        return [f"line {line}: {sentence}" for line, sentence in sorted(self._notes)]

    def raise_all(self) -> None:
        """Raise all mistakes as one error, if there are any."""
        if self._found:
            raise ConfigError(self.sentences(), str(self.document.path))


def _sort_key(text: str) -> list[str | int]:
    """A text as it is sorted: line 9 of another file comes before its line 10."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"(\d+)", text))]


class Section:
    """A mapping of the file, read key by key; a value of the wrong kind is a problem and reads as missing."""

    def __init__(self, value: object, place: Place, problems: Problems) -> None:
        self.place = place
        self.problems = problems
        self.given: dict[str, Any] = {}
        if isinstance(value, Mapping):
            self.given = dict(value)
        elif value is not None:
            self.problem("must be a mapping")

    def __contains__(self, key: str) -> bool:
        return self.given.get(key) is not None

    def problem(self, sentence: str, *steps: str | int) -> None:
        """A mistake here, or at a place inside."""
        self.problems.add((*self.place, *steps), sentence)

    def known(self, keys: Iterable[str]) -> None:
        """Report every other key as unknown."""
        keys = list(keys)
        for key in self.given:
            if key not in keys:
                self.problem(f"unknown key: {did_you_mean(str(key), keys)}", key)

    def others(self, keys: Iterable[str]) -> list[str]:
        """The keys beside the known ones; one that resembles a known one is refused as a misspelt one."""
        keys = list(keys)
        found = [str(key) for key in self.given if key not in keys]
        for key in found:
            if nearest(key, keys):
                self.problem(f"unknown key: {did_you_mean(key, keys)}", key)
        return found

    def fits(self, part: Callable[..., Any], given: Mapping[str, Any], what: str) -> bool:
        """Whether a part accepts the given parameters and none is missing; each error is reported at its key."""
        before = len(self.problems)
        takes = [
            p for p in inspect.signature(part).parameters.values()
            if p.kind not in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY)
        ]  # fmt: skip
        named = [p for p in takes if p.kind is not p.VAR_KEYWORD]
        known = [p.name for p in named]
        for key in given if len(named) == len(takes) else ():
            if key not in known:
                self.problem(f"{what} has no parameter {key!r}: {did_you_mean(key, known)}", key)
        for p in named:
            if p.default is p.empty and p.name not in given:
                self.problem(f"{what} needs the parameter {p.name!r}")
        return len(self.problems) == before

    def without_effect(self, *keys: str, instead: str = "") -> None:
        """Report each of these keys that is given: other tools read it, and karat ignores it."""
        for key in keys:
            if key in self:
                more = f": {instead}" if instead else ""
                self.problems.note((*self.place, key), f"has no effect{more}")

    def section(self, key: str) -> Section:
        """Read a mapping."""
        return Section(self.given.get(key), (*self.place, key), self.problems)

    def sections(self, key: str) -> list[Section]:
        """A list of mappings inside."""
        return [
            Section(item, (*self.place, key, at), self.problems) for at, item in enumerate(self.items(key))
        ]

    def text(self, key: str, default: str | None = None, *, needed: bool = False) -> str | None:
        """Read a text."""
        value = self.given.get(key)
        if value is None:
            if needed:
                self.problem(f"needs {key!r}")
            return default
        if not isinstance(value, str):
            self.problem("must be text", key)
            return default
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false, also as the words yes and no."""
        value = self.given.get(key)
        words = {"yes": True, "no": False, "true": True, "false": False}
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.problem("must be true or false", key)
        return default

    def integer(self, key: str, default: int, least: int = 0) -> int:
        """Read an integer."""
        value = self.given.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.problem(f"must be an integer of at least {least}", key)
            return default
        return value

    def items(self, key: str) -> list[Any]:
        """Read a list."""
        value = self.given.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.problem("must be a list", key)
            return []
        return value

    def texts(self, key: str) -> list[str]:
        """A text, or a list of texts, as a list."""
        value = self.given.get(key)
        if value is not None and not isinstance(value, (str, list)):
            self.problem("must be text, or a list of texts: quote a number", key)
            return []
        values = [value] if isinstance(value, str) else self.items(key)
        for at, each in enumerate(values):
            if not isinstance(each, str):
                self.problem("must be text", key, at)
        return [each for each in values if isinstance(each, str)]

    def mapping(self, key: str) -> dict[str, Any]:
        """A mapping, without interpretation."""
        return self.section(key).given
