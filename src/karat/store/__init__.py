"""Stores: `open_store(url)` returns the four repositories over memory, SQLite or PostgreSQL."""

from __future__ import annotations

import inspect
import os
import queue
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from karat.errors import (
    RequestError,
    StoreBusy,
    StoreError,
    UnknownName,
    did_you_mean,
    nearest,
    option,
    wording,
)
from karat.registry import Registry
from karat.store.backend import Backend, HeaderRow, NoStoreYet
from karat.store.run_labels import check_labels

if TYPE_CHECKING:
    from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset

DEFAULT_URL = "sqlite:///karat.db"

NEWEST = 3
"""Of each kind, shown where a name is not known."""

stores: Registry[Any] = Registry("store")
"""Kinds of stores by the scheme of their URL: each part takes the URL and gives a Backend."""


class Store:
    """The four repositories over one backend."""

    def __init__(self, backend: Backend) -> None:
        from karat.store.repositories import Aggregations, Datasets, Evaluations, Runs

        self.backend = backend
        self.datasets = Datasets(self)
        self.runs = Runs(self)
        self.evaluations = Evaluations(self)
        self.aggregations = Aggregations(self)

    @property
    def url(self) -> str:
        """The URL of the store, without secrets."""
        return self.backend.url

    def command(self, *words: str) -> str:
        """A command line about this store, to print in a message: it works as it is, but for a masked password."""
        import shlex  # only for messages

        place = [] if _is_default(self.url) else ["--store", self.url]
        return shlex.join(["karat", *words, *place])

    def get(self, id: str) -> StoredDataset | Run | Evaluation | Aggregation:
        """Find an object by id, label, unique prefix of an id, or `latest` (a run); a dataset also by its name.

        A label that things of several kinds have means the run, else the evaluation, the aggregation, the dataset.
        """
        from karat.store.repositories import find, labelled

        rows, row = self._rows(id_prefix=id), None
        if not any(each.id == id for each in rows):
            named = self.datasets.by_name(id)
            if named is not None:
                return named
            if id == "latest":
                return self.runs.get(id)
            every = self._rows()
            for kind in ("run", "evaluation", "aggregation", "dataset"):
                row = row or labelled(self, id, [each for each in every if each.kind == kind])
        row = row or find(id, rows)
        if row is None:
            raise UnknownName(f"nothing called {id!r} in {self.url}: {self._near(id)}")
        kinds = {r.kind: r for r in (self.runs, self.evaluations, self.aggregations, self.datasets)}
        return kinds[row.kind].get(row.id)

    def _near(self, id: str) -> str:
        """The known names nearest to an unknown one; where none is near, the newest few of each kind."""
        known: dict[str, list[str]] = {
            "dataset": list(dict.fromkeys(name for name, _, _ in self.backend.named()))
        }
        for row in self._rows():
            known.setdefault(row.kind, []).extend([] if row.kind == "dataset" else [row.id])
        every = [name for names in known.values() for name in names]
        every += [label for label in self._labels() if label not in every]
        if not every:
            return f"the store is empty: {wording('karat run', 'karat.run')} creates the first run"
        every.append("latest")
        of_task = [run.id for run in self.runs.list() if run.header.task == id]
        if of_task:
            some = f"{', '.join(of_task[: -NEWEST - 1 : -1])}{', …' if len(of_task) > NEWEST else ''}"
            label = wording(self.command("tag", of_task[-1], id), f"store.tag({of_task[-1]!r}, [{id!r}])")
            return f"it is the task of {some}: name a run by its id, or give it a label: {label}"
        if nearest(id, every):
            return did_you_mean(id, every)
        newest = [
            f"{kind}s {', '.join(names[: -NEWEST - 1 : -1])}{', …' if len(names) > NEWEST else ''}"
            for kind, names in known.items()
            if names
        ]
        every_one = wording(f"{self.command('ls')} lists all", "store.runs.list() lists all runs")
        return f"there are {'; '.join(newest)} ({every_one})"

    def _labels(self) -> list[str]:
        every = (self.runs, self.evaluations, self.aggregations, self.datasets)
        return list(
            dict.fromkeys(label for each in every for handle in each.list() for label in handle.labels)
        )

    def _rows(self, id_prefix: str | None = None) -> list[HeaderRow]:
        rows = self.backend.headers(id_prefix=id_prefix)
        return [row for row in rows if row.kind != "dataset" or row.finished is not None]

    def parents(self, id: str) -> list[str]:
        """The ids of what something was made from."""
        return self.backend.links(child=id)

    def children(self, id: str) -> list[str]:
        """The ids of what was made from it."""
        return self.backend.links(parent=id)

    def descendants(self, id: str) -> list[str]:
        """Everything made from it, and from that, nearest first."""
        found: dict[str, None] = {}
        front = [id]
        while front:
            front = [child for each in front for child in self.children(each) if child not in found]
            found.update(dict.fromkeys(front))
        return list(found)

    def tag(
        self, id: str, labels: Sequence[str] = (), *, remove: Sequence[str] = (), move: bool = False
    ) -> Any:
        """Add labels to a dataset, run, evaluation or aggregation, or remove some, and return it.

        With `move`, others of the same kind lose the labels, so that these mean this one alone.
        """
        check_labels(labels)
        found = self.get(id)
        repository = self._repository(found)
        if move:
            for other in repository.list():
                if other.id != found.id:
                    repository.remove_labels(other, labels)
        repository.describe(found, labels=labels)
        repository.remove_labels(found, remove)
        return found

    def _repository(self, handle: Any) -> Any:
        kinds = {r.kind: r for r in (self.runs, self.evaluations, self.aggregations)}
        return kinds.get(getattr(handle, "kind", ""), self.datasets)

    def copy(self, id: str, other: str | os.PathLike[str] | Store) -> Any:
        """Copy something, with everything it was made from, to another store, and return it as that store has it.

        Ids stay the same, and what the other store has already is not copied again. A copy that was interrupted is
        completed by the next one.
        """
        from karat.store.repositories import copy_header

        target = open_store(other)
        found = self.get(id)
        order: dict[str, None] = {}

        def visit(each: str) -> None:
            for parent in self.parents(each):
                visit(parent)
            order[each] = None

        visit(found.id)
        for each in order:
            copy_header(self, target, each)
        return target.get(found.id)

    def remove(self, *ids: str, cascade: bool = False) -> list[str]:
        """Delete things, all or none, and return their ids; refused as `removable` says."""
        doomed = self.removable(*ids, cascade=cascade)
        left = self.backend.delete(doomed)
        if left:
            raise _made_from(doomed[-1], left)
        return doomed

    def removable(self, *ids: str, cascade: bool = False) -> list[str]:
        """The ids of what `remove` would delete, children first.

        Refused while a process works on one of them and, without `cascade`, while others depend on one.
        """
        from karat.store.lease import holder_of

        targets = list(dict.fromkeys(self.get(each).id for each in ids))
        below: list[str] = []
        for target in targets:
            children = self.descendants(target)
            left = [each for each in children if each not in targets]
            if left and not cascade:
                raise _made_from(target, left)
            below += reversed(children)
        doomed = list(dict.fromkeys([*below, *targets]))
        for each in doomed:
            for row in self.backend.headers(id_prefix=each):
                holder = holder_of(self.backend, row.number) if row.id == each else None
                if holder is not None:
                    raise StoreBusy(
                        f"{each} cannot be removed: it is held by {holder.who} since {holder.since}"
                    )
        return doomed

    def verify(self) -> list[str]:
        """Read everything and return the problems: those of `check`, and content that does not match its checksum."""
        problems = self.check()
        try:
            problems += self.backend.damaged()
            for repository in (self.datasets, self.runs, self.evaluations, self.aggregations):
                problems += repository.disagreeing()
            return problems
        except StoreError as error:
            return problems or [str(error)]

    def check(self) -> list[str]:
        """The problems that an integrity check of the structure finds; empty when there are none."""
        problems = self.backend.check()
        if problems:
            return problems
        expected: list[tuple[int, str, int, str]] = []
        try:
            for dataset in self.datasets.list():
                expected.append((dataset.number, f"dataset {dataset.id}", len(dataset), "examples"))
            for handle in (*self.runs.list(), *self.evaluations.list()):
                if handle.header.finished is not None:
                    done = handle.counts.total - handle.counts.pending
                    expected.append((handle.number, f"{handle.kind} {handle.id}", done, "records"))
        except StoreError:
            return []  # a header has damaged content, which `verify` reports
        for number, name, stated, what in expected:
            try:
                have = sum(self.backend.counts(number).values())
            except StoreError as error:
                problems.append(str(error))
                continue
            if have < stated:
                problems.append(f"{name} has {have:,} of its {stated:,} {what}")
        return problems

    def close(self) -> None:
        """Close connections and files."""
        self.backend.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<store {self.url}>"


def _made_from(id: str, below: list[str]) -> RequestError:
    return RequestError(
        f"{id} cannot be removed: {', '.join(below)} {'depends' if len(below) == 1 else 'depend'} on it;"
        f" {option('cascade', True)} removes all"
    )


def open_store(url: str | os.PathLike[str] | Store | None = None, *, read_only: bool = False) -> Store:
    """A store by its URL: `memory://`, `sqlite:///path`, `postgresql://…`; a plain path is an SQLite file.

    Without one, `KARAT_STORE` or `sqlite:///karat.db` in the working folder. With `read_only`, the store has to exist,
    nothing in it can be changed, and a store of an older schema is read without an upgrade.
    """
    if isinstance(url, Store):
        return url
    factory, text = _factory(url)
    if read_only and "read_only" in inspect.signature(factory).parameters:
        return Store(factory(text, read_only=True))
    return Store(factory(text))


def _factory(url: str | os.PathLike[str] | None) -> tuple[Any, str]:
    """Return the function that opens a store, and its whole URL."""
    if url is not None and not isinstance(url, (str, os.PathLike)):
        raise RequestError(
            f"{url!r:.60} is not a store: give a URL such as {DEFAULT_URL}, a path, or open_store(…)"
        )
    text = os.fspath(url) if url is not None else os.environ.get("KARAT_STORE") or DEFAULT_URL
    scheme, separator, _ = text.partition("://")
    _refuse_misread(text)
    if not separator:
        scheme, text = "sqlite", f"sqlite:///{quote(os.fsencode(text))}"
    if not stores.has(scheme):
        raise RequestError(f"unknown kind of store {scheme!r}: {did_you_mean(scheme, stores.list())}")
    return stores.get(scheme), text


def check_store(url: str | None) -> None:
    """Raise what opening a store to write would raise, without making or changing one."""
    factory, text = _factory(url)
    if "read_only" not in inspect.signature(factory).parameters:
        return
    path = store_file(text)
    if path is None:
        with suppress(NoStoreYet):
            factory(text, read_only=True).close()
        return
    _read_sqlite_url(text)
    if path.exists():
        factory(text, read_only=True).close()
    from karat.store.sqlite import refuse_unwritable

    refuse_unwritable(path)


def open_existing(url: str | None) -> Store:
    """As `open_store`, but raise where there is no SQLite file yet: reading must not leave an empty one behind."""
    path = store_file(url)
    if path is not None and not path.exists():
        source = option("store") if url else "KARAT_STORE" if os.environ.get("KARAT_STORE") else "the default"
        raise RequestError(
            f"there is no store {path} ({source}): {wording('karat run', 'karat.run')} creates one, or name another"
            f" with {option('store', 'URL')}"
        )
    return open_store(url or None)


def store_file(url: str | None) -> Path | None:
    """The file of the SQLite store that a URL, or no URL, means; None for other kinds."""
    text = url or os.environ.get("KARAT_STORE") or DEFAULT_URL
    _refuse_misread(text)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return Path(text)
    return Path(_sqlite_path(text)) if scheme == "sqlite" else None


def _is_default(url: str) -> bool:
    """Whether a command finds a store without --store; nothing finds one in the memory of this process."""
    if url == "memory://":
        return True
    path, usual = store_file(url), store_file(None)
    if path is None or usual is None:
        return path is usual and url == safe_url(os.environ["KARAT_STORE"])
    return path.absolute() == usual.absolute()


def _sqlite_path(url: str) -> str:
    # Not `urlsplit`: to it, what follows a # is no part of the path.
    place = url.partition("://")[2].partition("?")[0]
    return os.fsdecode(unquote_to_bytes(place.removeprefix("/")))


class ReadPool:
    """A few read-only connections to one store, for threads that read at the same time."""

    def __init__(self, url: str | os.PathLike[str] | Store | None = None, *, size: int = 4) -> None:
        self._url = url
        self._free: queue.LifoQueue[Store | None] = queue.LifoQueue()
        self._opened: list[Store] = []
        self.generation = 0
        """How many times the file was found replaced; what was read before is of another store."""
        for _ in range(1 if isinstance(url, Store) else size):
            self._free.put(None)

    @contextmanager
    def store(self) -> Iterator[Store]:
        """A store that no other thread uses; waits until one is free. Connections are made when needed."""
        found = self._free.get()
        try:
            if found is not None and found is not self._url and found.backend.is_replaced():
                found = None  # it stays open until the end: what was read from it may still use it
                self.generation += 1
            if found is None:
                found = open_store(self._url, read_only=True)
                self._opened.append(found)
            yield found
        finally:
            self._free.put(found)

    def close(self) -> None:
        """Close the connections; a store that was given stays open."""
        for store in self._opened:
            if store is not self._url:
                store.close()


_KEYWORDS = re.compile(
    r"\s*(host|hostaddr|port|user|dbname|password|passfile|service|sslmode)\s*=\s*\S", re.IGNORECASE
)
"""How a list of libpq's connection options begins: `host=localhost dbname=results`."""
_ASSIGNMENT = re.compile(r"\s*\w+\s*=")
_MISTYPED = re.compile(r"\s*postgres(ql)?(:/?|/+)[^/].*@", re.IGNORECASE)
"""The URL of a server with a slip in its beginning, which would be taken for the path of a file and shown."""
_WITHOUT_SLASHES = re.compile("(?:sqlite|file|memory):", re.IGNORECASE)
_SECRETS = re.compile(
    r"\b((?:password|passfile|sslpassword|sslkey|oauth_client_secret|scram_client_key)\s*=\s*)"
    r"(?:'(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)+)",
    re.IGNORECASE,
)


def _is_options(text: str) -> bool:
    """Whether a text is a list of connection options; of the many that libpq has, a secret one counts anywhere."""
    return bool(_KEYWORDS.match(text) or (_ASSIGNMENT.match(text) and _SECRETS.search(text)))


def _refuse_misread(text: str) -> None:
    """Raise where a text means a server or a folder, and would be taken for the path of a file."""
    right = "write a URL, postgresql://user:password@host:5432/database"
    if _is_options(text):
        raise RequestError(f"{safe_url(text)!r} is a list of connection options: {right}")
    if "://" not in text and (_MISTYPED.match(text) or re.match("postgres(ql)?:", text, re.IGNORECASE)):
        raise RequestError(f"the store looks like a misspelt PostgreSQL URL: {right}")
    if "\0" in text or ("://" in text and "%00" in text):
        raise RequestError("the address of the store has a NUL character: remove it")
    if "://" not in text and _WITHOUT_SLASHES.match(text):
        scheme, _, path = text.partition(":")
        path = path.lstrip("/") if scheme.lower() == "sqlite" else path
        right = "memory://" if scheme.lower() == "memory" else f"sqlite:///{path or 'karat.db'}"
        raise RequestError(
            f"the store {text!r} is not a URL: write {right}, or ./{text} for a file of that name"
        )
    scheme, _, path = text.rpartition("://")
    if path.strip("/") and path.endswith("/") and scheme in ("", "sqlite"):
        raise RequestError(f"the store {text} is a folder: name a file in it, such as {text}karat.db")


def safe_url(url: str) -> str:
    """Return a URL without the password, which may be written in any form."""
    scheme, separator, rest = url.partition("://")
    if _is_options(url):
        return re.sub(r"://\S*@", "://***@", _SECRETS.sub(r"\1***", url))
    if not separator and _MISTYPED.match(url):
        return "postgresql://***"
    if scheme in ("postgresql", "postgres"):
        try:
            from karat.store.postgres import without_password
        except ImportError:
            return f"{scheme}://***"
        return without_password(url)
    return f"{scheme}://***" if separator and "@" in rest and scheme != "sqlite" else url


@stores.register("memory")
def _memory(_: str) -> Backend:
    from karat.store.sqlite import SqliteBackend

    return SqliteBackend(None)


@stores.register("sqlite")
def _sqlite(url: str, *, read_only: bool = False) -> Backend:
    from karat.store.sqlite import SqliteBackend

    path, synchronous = _read_sqlite_url(url)
    return SqliteBackend(path, synchronous=synchronous, read_only=read_only)


def _read_sqlite_url(url: str) -> tuple[Path, str]:
    """The file, and the mode of `synchronous`."""
    path = _sqlite_path(url)
    if not path:
        raise RequestError(f"{url} names no file: write sqlite:///karat.db")
    options = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    synchronous = options.pop("synchronous", "normal").upper()
    if options or synchronous not in ("NORMAL", "FULL", "EXTRA"):
        raise RequestError(f"{url}: the only option is synchronous=normal, full or extra")
    return Path(path), synchronous


@stores.register("postgresql", "postgres")
def _postgresql(url: str, *, read_only: bool = False) -> Backend:
    from karat.store.postgres import PostgresBackend

    return PostgresBackend(url, read_only=read_only)
