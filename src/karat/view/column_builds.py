"""Columns that a store lacks, made in the background while the viewer answers.

A store of an earlier karat has no columns, and no store has those of its datasets. Reading a million records takes
several seconds, so a request does not wait for them: one thread builds what was asked for, in order, with its own
connection, and stores it in the user's cache. Until then, a request that needs columns gets the progress instead.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from karat.errors import KaratError, UnknownName
from karat.store import Store, open_store
from karat.store.columns import cached_segments, example_columns
from karat.store.handles import Evaluation, Run, StoredDataset

PATIENCE = 0.3
"""Seconds that the first request waits: those of a small store are made by then."""


class NotBuiltYet(KaratError):
    """An answer that needs columns which are being made."""

    def __init__(self, building: list[dict[str, Any]]) -> None:
        super().__init__("the columns that this needs are still being built: try again in a second")
        self.building = building


class _Stopped(Exception):
    """The viewer was closed."""


class _Job:
    """The columns of one thing."""

    def __init__(self, what: Run | Evaluation | StoredDataset) -> None:
        self.id = what.id
        self.kind = "dataset" if isinstance(what, StoredDataset) else what.kind
        self.share = 0.0
        self.finished = threading.Event()
        self.waited = False
        self.awaited = False
        """Whether a request was told to ask again."""
        self.error: Exception | None = None


class ColumnBuilder:
    """A builder of columns in a thread, which starts when columns are first needed."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self.built = 0
        """How many of them a request was told to wait for: it changes when a page has more to show."""

    def need(self, what: Run | Evaluation | StoredDataset) -> None:
        """Return when the columns are made; raise `NotBuiltYet` while they are not, or what went wrong."""
        with self._lock:
            job = self._jobs.get(what.id)
            if job is None:
                job = self._jobs[what.id] = _Job(what)
                self._waiting.put(job)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="columns", daemon=True)
                    self._thread.start()
            patient, job.waited = not job.waited, True
        if patient:
            job.finished.wait(PATIENCE)
        with self._lock:
            if job.finished.is_set():
                self._jobs.pop(
                    what.id, None
                )  # requested again, they are gone from the cache: build them again
            else:
                job.awaited = True
        if job.awaited and not job.finished.is_set():
            raise NotBuiltYet(self.progress())
        if job.error is not None:
            raise job.error

    def progress(self) -> list[dict[str, Any]]:
        """Return the builds in progress and those that wait, with the share that is done."""
        with self._lock:
            return [
                {"id": job.id, "kind": job.kind, "share": round(job.share, 3)}
                for job in self._jobs.values()
                if not job.finished.is_set()
            ]

    def close(self) -> None:
        """Stop, in the middle of a thing if need be."""
        self._closed.set()
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(5.0)

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None and not self._closed.is_set():
            try:
                with open_store(self._url, read_only=True) as store:
                    self._build(store, job)
            except _Stopped:
                return
            except Exception as error:
                job.error = error
            with self._lock:
                self.built += job.awaited
                job.finished.set()

    def _build(self, store: Store, job: _Job) -> None:
        def report(share: float) -> None:
            job.share = share
            if self._closed.is_set():
                raise _Stopped

        if job.kind == "dataset":
            example_columns(store.datasets.get(job.id), report)
            return
        handle = store.get(job.id)
        if not isinstance(handle, Run | Evaluation):
            raise UnknownName(f"{job.id} is neither a run nor an evaluation")
        for _ in cached_segments(handle, report):
            pass
