"""A local web viewer of a store: aiohttp serves a JSON API and the pages that are drawn from it. It never writes.

Here is how pages and requests name things: runs, rows, fields; light enough to be imported before the server listens.
"""

from __future__ import annotations

import re

import msgspec

from karat.errors import RequestError
from karat.store import Store
from karat.store.handles import Run


class Download(msgspec.Struct, frozen=True):
    """A field that is downloaded as a file."""

    body: bytes
    type: str
    name: str


def find_run(store: Store, name: str) -> Run:
    """A run by its id, a unique prefix of it, one of its labels, or `latest`."""
    try:
        return store.runs.get(name)
    except RequestError:
        labelled = [run for run in store.runs.list() if name in run.header.labels]
        if not labelled:
            raise
        return labelled[-1]


def find_pair(store: Store, first: str, second: str) -> list[Run]:
    """The two runs of `FIRST..SECOND`; a label may contain two dots too, so every place to divide them is tried."""
    text = f"{first}..{second}"
    places = [match.start() for match in re.finditer(r"(?=\.\.)", text)]
    for place in sorted(places, key=lambda each: each != len(first))[:MOST_PLACES]:
        try:
            return [find_run(store, text[:place]), find_run(store, text[place + 2 :])]
        except RequestError:
            continue
    return [find_run(store, first), find_run(store, second)]


MOST_PLACES = 10
"""At which the names of two runs may be divided."""

KEY = re.compile(r"([0-9]{1,10})\.([0-9]{1,9})(?:/(.*))?", re.DOTALL)


def read_key(key: str) -> tuple[int, int, str]:
    """The position, attempt and unit of a row's key."""
    found = KEY.fullmatch(key)
    if found is None:
        raise RequestError(f"key is {key[:60]!r}: give POSITION.ATTEMPT or POSITION.ATTEMPT/UNIT")
    return int(found[1]), int(found[2]), found[3] or ""


def write_key(position: int, attempt: int, unit: str) -> str:
    """Format the key of a row."""
    return f"{position}.{attempt}/{unit}" if unit else f"{position}.{attempt}"


def quoted(field: str) -> str:
    """A field as a filter names it."""
    return field if re.fullmatch(r'[^\s()"<>=:~!]+', field) else f'"{escaped(field)}"'


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
