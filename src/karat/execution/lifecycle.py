"""How a run or an evaluation is opened, begun and closed: what the two stages share around their work."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from karat import __version__
from karat.errors import Stopped, StoreBusy
from karat.records import Counts, Usage
from karat.store.handles import Evaluation, Run
from karat.store.lease import Held
from karat.store.repositories import Evaluations, Runs

T = TypeVar("T")

WAIT_SECONDS = 0.5


async def open_or_wait(open_: Callable[[], T], wait: bool) -> T:
    """Opens; with `wait`, tries again until the process that holds it lets go."""
    while True:
        try:
            return open_()
        except StoreBusy:
            if not wait:
                raise
            await asyncio.sleep(WAIT_SECONDS)


def begin(repository: Runs | Evaluations, handle: Run | Evaluation, total: int, action: str) -> Counts:
    """Says in the header that work is under way and how much of it there is; returns what is there."""
    counts = Counts(pending=total) if action == "create" else repository.count(handle.number, total)
    if action != "create" or handle.counts != counts:  # a new one was made with what is said here
        _say(repository, handle, None, counts=counts, status="running", finished=None, error=None)
    return counts


def close(
    repository: Runs | Evaluations,
    handle: Run | Evaluation,
    held: Held,
    total: int,
    usage: dict[str, Usage],
    error: BaseException | None,
    **changes: Any,
) -> None:
    """Counts what is stored and says so in the header: finished, or stopped and to be continued.

    It is said only while the lease is held: who took it over says what became of it.
    """
    finished = None
    try:
        counts = repository.count(handle.number, total)
        stopped = str(error) if isinstance(error, Stopped) else None
        status = counts.status if error is None else "fatal_error" if stopped else "running"
        _say(
            repository,
            handle,
            held,
            counts=counts,
            usage=usage,
            error=stopped,
            status=status,
            finished=time.time() if error is None else None,
            **changes,
        )
        finished = handle.header.finished
    except Stopped:
        if error is None:
            raise
    finally:
        if finished is None:  # or it was given back with the last word of its header
            held.release()


def counting_abandoned(metadata: dict[str, Any], abandoned: int) -> dict[str, Any]:
    """Metadata that also says how many threads could not be stopped when their time was up."""
    if not abandoned:
        return metadata
    return {**metadata, "abandoned_threads": metadata.get("abandoned_threads", 0) + abandoned}


def _say(repository: Any, handle: Any, held: Held | None, **changes: Any) -> None:
    header = msgspec.structs.replace(handle.header, **changes)
    repository.save(handle.number, header, held)
    handle.header = header


DEFAULTS = ("KARAT_MODEL", "KARAT_JUDGE_MODEL", "OPENAI_MODEL", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")
"""Variables that change what a task or judge asks; none of them is a secret."""


def environment() -> dict[str, Any]:
    """For the record: which karat, which Python, where, and at which commit."""
    out: dict[str, Any] = {
        "karat": __version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
    }
    commit = git_commit(Path.cwd())
    if commit:
        out["git_commit"] = commit
    return out


def defaults() -> dict[str, str]:
    """The defaults that are set: part of the configuration."""
    return {name: os.environ[name] for name in DEFAULTS if os.environ.get(name)}


def git_commit(folder: Path) -> str | None:
    """The commit checked out here, read from git's files: starting git would cost more than the rest."""
    for place in (folder, *folder.parents):
        head = place / ".git" / "HEAD"
        if not head.is_file():
            continue
        try:
            text = head.read_text().strip()
            if not text.startswith("ref: "):
                return text
            ref = text[5:]
            loose = place / ".git" / ref
            if loose.is_file():
                return loose.read_text().strip()
            for line in (place / ".git" / "packed-refs").read_text().splitlines():
                if line.endswith(" " + ref):
                    return line.split()[0]
        except OSError:
            return None
        return None
    return None
