"""The stores that the conformance suite runs against, and processes beside this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from karat.store import Store, open_store
from karat.store.backend import HeaderRow


@dataclass(frozen=True)
class Kind:
    """A kind of store, and what it can do."""

    name: str
    other_processes: bool = True
    """Whether another process can open the same store."""


KINDS = [Kind("memory", other_processes=False), Kind("sqlite"), Kind("postgresql")]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of store in turn."""
    found: Kind = request.param
    return found


@pytest.fixture(params=[k for k in KINDS if k.other_processes], ids=lambda kind: kind.name)
def shared_kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of store that several processes can open."""
    found: Kind = request.param
    return found


@pytest.fixture
def url_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[Kind], str]:
    """The URL of an empty store of a kind."""

    def url(kind: Kind) -> str:
        if kind.name == "postgresql":
            return str(request.getfixturevalue("postgres_url"))
        return "memory://" if kind.name == "memory" else f"sqlite:///{tmp_path}/karat.db"

    return url


@pytest.fixture
def store(kind: Kind, url_of: Callable[[Kind], str]) -> Iterator[Store]:
    """An empty store of each kind."""
    with open_store(url_of(kind)) as opened:
        yield opened


@pytest.fixture
def url(shared_kind: Kind, url_of: Callable[[Kind], str]) -> str:
    """The URL of an empty store of each kind that several processes can open."""
    return url_of(shared_kind)


@pytest.fixture
def shared(url: str) -> Iterator[Store]:
    """An empty store of each kind that several processes can open, opened here."""
    with open_store(url) as opened:
        yield opened


def add_header(store: Store, id: str = "run-0000000001", **fields: Any) -> int:
    """A header with nothing in it, for tests of rows."""
    values: dict[str, Any] = {"kind": "run", "configuration": "c", "created": 1.0, "finished": None}
    header = HeaderRow(number=0, id=id, payload=b"{}", **{**values, **fields})
    number = store.backend.insert_header(header, (), None)
    assert number is not None
    return number


class Child:
    """A process that runs a function of child.py and prints what it returns."""

    def __init__(self, function: str, *arguments: Any, **options: Any) -> None:
        command = [sys.executable, str(Path(__file__).with_name("child.py")), function, json.dumps(arguments)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [*options.pop("before", []), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            **options,
        )

    def wait_for(self, word: str) -> None:
        """Waits until the child has printed a line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if line != word:
            raise AssertionError(f"{line!r} instead of {word!r}: {self.process.communicate()[1]}")

    def go_on(self) -> None:
        """Lets a child that waits go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        """What the function returned."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return json.loads(out.splitlines()[-1])

    def kill(self) -> None:
        """SIGKILL, as in an accident; nothing has cleaned up yet."""
        self.process.kill()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts processes and sees to it that none is left."""
    children: list[Child] = []

    def start(function: str, *arguments: Any, **options: Any) -> Child:
        children.append(Child(function, *arguments, **options))
        return children[-1]

    yield start
    for each in children:
        each.process.kill()
        each.process.communicate()
