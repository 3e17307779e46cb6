"""Files that karat keeps for itself: the folder of its caches, and SQLite files in WAL mode."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


def cache_folder() -> Path:
    """The folder for files that can be fetched or computed again: `$XDG_CACHE_HOME/karat`, usually ~/.cache/karat."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "karat"


def write_ahead(connection: sqlite3.Connection, seconds: float) -> str:
    """Ask for WAL mode and return the mode that SQLite chose.

    Of two processes that ask at the same moment SQLite refuses one without waiting, so this function waits.
    """
    import sqlite3

    deadline = time.monotonic() + seconds
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
