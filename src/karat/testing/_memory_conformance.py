"""The requirements of every memory system, as tests to inherit."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec

from karat.memory import MemorySystem, Retrieval, StoredMemory, Turn
from karat.serialization import prepared

_THINGS = (
    "kettle", "violin", "bicycle", "lantern", "compass", "blanket", "telescope", "teapot", "camera", "ladder",
    "hammock", "typewriter", "umbrella", "backpack", "skateboard", "microscope", "accordion", "suitcase", "canoe",
    "rug",
)  # fmt: skip
_PLACES = (
    "attic", "cellar", "garage", "kitchen", "balcony", "shed", "library", "office", "hallway", "garden", "studio",
    "bakery", "harbour", "museum", "station",
)  # fmt: skip


def numbered_turns(count: int, *, session_id: str = "S00", start: int = 0) -> list[Turn]:
    """Turns that each say something of their own, at most 300 different ones, on days of the year 2019."""
    return [
        Turn(
            turn_id=f"t{number}",
            speaker=("Ann", "Ben")[number % 2],
            text=f"The {_THINGS[number % 20]} number {number + 1000} is in the {_PLACES[number // 20 % 15]}.",
            time=(date(2019, 1, 1) + timedelta(days=number)).isoformat(),
            session_id=session_id,
        )
        for number in range(start, start + count)
    ]


class MemorySystemConformance:
    """Tests that a memory system has to pass. Inherit from it in a test file and override `make`.

    pytest collects the subclass: `class TestMine(MemorySystemConformance): def make(self): return Mine()`. A system
    that stores nothing by design sets `stores = False`.
    """

    stores = True
    """Whether what is said can be found in a snapshot."""
    verbatim = True
    """Whether a memory holds the words of the turn that it comes from."""
    long_text = 1_000_000
    """The characters of the longest turn that is tried."""

    def make(self) -> MemorySystem:
        """A new instance of the system, before `reset`."""
        raise TypeError(f"{type(self).__name__} has no make")

    def started(self, directory: Path, turns: Iterable[Turn] = ()) -> MemorySystem:
        """A system with one finished session."""
        directory.mkdir(parents=True, exist_ok=True)
        system = self.make()
        system.reset(directory)
        session = ""
        for turn in turns:
            system.ingest_turn(turn)
            session = turn.session_id
        if session:
            system.end_session(session)
        return system

    def test_it_has_a_name_and_a_configuration_that_is_json(self) -> None:
        system = self.make()
        assert system.name
        assert system.version
        assert msgspec.json.decode(msgspec.json.encode(system.configuration())) is not None
        system.close()

    def test_300_memories_are_listed_and_at_most_top_k_found(self, tmp_path: Path) -> None:
        turns = numbered_turns(300)
        system = self.started(tmp_path / "store", turns)
        snapshot = system.snapshot()
        assert len({memory.memory_id for memory in snapshot}) == len(snapshot)
        assert len(snapshot) == (300 if self.stores else 0)
        if self.stores and self.verbatim:
            texts = "\n".join(memory.text for memory in snapshot)
            assert [turn.text for turn in turns if turn.text not in texts] == []
        unlimited = getattr(system, "every_item", False)
        for top_k in (7, 1):
            found = system.retrieve("Where is the violin?", top_k, "2019-12-01")
            assert len(found.items) <= top_k or unlimited
            ids = [item.memory_id for item in found.items]
            assert len(set(ids)) == len(ids)
        system.close()

    def test_retrieval_does_not_change_what_is_stored(self, tmp_path: Path) -> None:
        system = self.started(tmp_path / "store", numbered_turns(12))
        before = system.snapshot()
        first = _comparable(system.retrieve("Where is the violin?", 5, "2019-12-01"))
        assert _comparable(system.retrieve("Where is the violin?", 5, "2019-12-01")) == first
        assert system.snapshot() == before
        system.close()

    def test_an_empty_memory_finds_nothing(self, tmp_path: Path) -> None:
        system = self.started(tmp_path / "store")
        assert system.snapshot() == []
        assert system.retrieve("Where is the violin?", 5, None).items == ()
        system.close()

    def test_reset_empties_it(self, tmp_path: Path) -> None:
        system = self.started(tmp_path / "first", numbered_turns(5))
        (tmp_path / "second").mkdir()
        system.reset(tmp_path / "second")
        assert system.snapshot() == []
        assert system.retrieve("Where is the violin?", 5, None).items == ()
        system.close()

    def test_two_instances_share_nothing(self, tmp_path: Path) -> None:
        first = self.started(tmp_path / "first", numbered_turns(3))
        second = self.started(tmp_path / "second", numbered_turns(2, start=20))
        if self.stores:
            assert len(first.snapshot()) == 3
            assert len(second.snapshot()) == 2
        found = " ".join(item.text for item in second.retrieve("Where is the kettle?", 10, None).items)
        assert "1000" not in found
        first.close()
        second.close()

    def test_sessions_add_up(self, tmp_path: Path) -> None:
        system = self.started(tmp_path / "store", numbered_turns(3))
        before = {memory.memory_id: memory.text for memory in system.snapshot()}
        for turn in numbered_turns(2, session_id="S01", start=20):
            system.ingest_turn(turn)
        system.end_session("S01")
        after = {memory.memory_id: memory.text for memory in system.snapshot()}
        assert before.items() <= after.items()
        assert len(after) == (5 if self.stores else 0)
        system.close()

    def test_what_is_saved_can_be_loaded_and_continued(self, tmp_path: Path) -> None:
        system = self.started(tmp_path / "first", numbered_turns(9))
        if not system.capabilities().save:
            system.close()
            return
        saved = tmp_path / "saved"
        saved.mkdir()
        system.save(saved)
        stored, found = system.snapshot(), system.retrieve("Where is the violin?", 4, "2019-12-01")
        system.close()
        second = self.started(tmp_path / "second")
        second.load(saved)
        assert second.snapshot() == stored
        assert _comparable(second.retrieve("Where is the violin?", 4, "2019-12-01")) == _comparable(found)
        for turn in numbered_turns(2, session_id="S01", start=20):
            second.ingest_turn(turn)
        second.end_session("S01")
        assert second.snapshot()[: len(stored)] == stored or not self.verbatim
        assert len(second.snapshot()) == (11 if self.stores else 0)
        second.close()

    def test_memories_name_their_turns_where_the_system_says_so(self, tmp_path: Path) -> None:
        system = self.started(tmp_path / "store", numbered_turns(9))
        if system.capabilities().provenance:
            known = {f"t{number}" for number in range(9)}
            stored = [set(memory.turn_ids) for memory in system.snapshot()]
            assert all(turns and turns <= known for turns in stored)
            found = system.retrieve("Where is the violin?", 3, None).items
            assert all(set(item.turn_ids) <= known for item in found)
        system.close()

    def test_no_connection_leaves_this_machine(self, tmp_path: Path) -> None:
        with only_loopback() as attempts:
            system = self.started(tmp_path / "store", numbered_turns(4))
            system.snapshot()
            system.retrieve("Where is the violin?", 5, "2019-12-01")
            system.close()
        assert attempts == []

    def test_the_time_is_the_dialogues(self, tmp_path: Path) -> None:
        system = self.started(tmp_path / "store", numbered_turns(6))
        found = system.retrieve("Where is the violin?", 5, "2019-12-01")
        year = str(date.today().year)  # the only clock that a system could have looked at
        for memory in system.snapshot():
            assert year not in _content(memory)
        assert all(year not in item.text for item in found.items)
        if self.stores and self.verbatim and system.capabilities().event_time == "text":
            assert all("2019-01-0" in memory.text for memory in system.snapshot())
        system.close()

    def test_hostile_and_foreign_texts_are_stored(self, tmp_path: Path) -> None:
        texts = [
            "",
            " ",
            "a\x00b\x1b[31mred\x07",
            "\ud800 half a character",
            "'; DROP TABLE memories; --",
            '{"op": "close"}\n{"op": "reset"}',
            "記憶は 大切 です。 Ünïcödé 👩‍👩‍👧 \u202eright to left",
            "long " * (self.long_text // 5),
        ]
        turns = [
            Turn(turn_id=f"t{n}", speaker="Ann", text=text, time="2019-01-01", session_id="S00")
            for n, text in enumerate(texts)
        ]
        system = self.started(tmp_path / "store", turns)
        snapshot = system.snapshot()
        assert (
            msgspec.json.decode(msgspec.json.encode(snapshot), type=prepared(list[StoredMemory])) == snapshot
        )
        if self.stores and self.verbatim:
            assert any("Ünïcödé 👩‍👩‍👧" in memory.text for memory in snapshot)
        for query in ("記憶", "", "\x00", "\ud800", "what about 'DROP TABLE'? " * 50):
            found = system.retrieve(query, 3, None)
            assert len(found.items) <= 3 or getattr(system, "every_item", False)
            assert msgspec.json.encode(found)
        system.close()


def _comparable(found: Retrieval) -> list[tuple[str, str, float | None]]:
    return [
        (item.memory_id, item.text, None if item.score is None else round(item.score, 6))
        for item in found.items
    ]


def _content(memory: StoredMemory) -> str:
    """Return the content of a memory without ids, which may have any digits."""
    content: Any = {"text": memory.text, "status": memory.status, "metadata": memory.metadata}
    return re.sub(r"number \d+", "", msgspec.json.encode(content).decode())


# A guard that refuses connections to anything but this machine, and reports the attempts.

_CONNECTING = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_guards: list[list[str]] = []
_lock = threading.Lock()
_installed = False


class LeftLoopback(ConnectionRefusedError):
    """A connection to another machine was refused because `only_loopback` is in force."""


@contextmanager
def only_loopback() -> Iterator[list[str]]:
    """Refuse every connection and name lookup that leaves this machine; give a list of those that were tried.

    It covers all threads of this process and Python's own sockets, used by any library. Libraries often
    swallow the error, so assert that the list is empty. Connections made by compiled code or by other processes are
    not seen.
    """
    global _installed
    attempts: list[str] = []
    with _lock:
        if not _installed:
            sys.addaudithook(_audit)  # an audit hook cannot be removed: without guards it does nothing
            _installed = True
        _guards.append(attempts)
    try:
        yield attempts
    finally:
        with _lock:
            _guards.remove(attempts)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _guards:
        return
    if event in _CONNECTING:
        address = arguments[1]
        target = address[0] if isinstance(address, tuple) and address else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        target = arguments[0]
    else:
        return
    # A path is a Unix socket; None is an address given earlier or the machine itself.
    if target is None or _is_loopback(target):
        return
    for attempts in _guards:
        attempts.append(f"{event} {os.fsdecode(target)}")
    raise LeftLoopback(f"{event} to {target!r} would leave this machine")


def _is_loopback(host: Any) -> bool:
    name = os.fsdecode(host) if isinstance(host, (str, bytes)) else ""
    if name in ("", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
