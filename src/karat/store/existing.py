"""Opening a store that has to be there already: reading must not leave an empty file behind."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from karat.errors import RequestError
from karat.store import DEFAULT_URL, Store, open_store


def open_existing(url: str | None) -> Store:
    """As `open_store`, but an SQLite file that does not exist is refused instead of made."""
    path = store_file(url)
    if path is not None and not path.exists():
        source = "--store" if url else "KARAT_STORE" if os.environ.get("KARAT_STORE") else "the default"
        raise RequestError(
            f"there is no store {path} ({source}): karat run makes one, or name another with --store URL"
        )
    return open_store(url or None)


def store_file(url: str | None) -> Path | None:
    """The file of the SQLite store that a URL, or no URL, means; None for other kinds."""
    text = url or os.environ.get("KARAT_STORE") or DEFAULT_URL
    scheme, separator, _ = text.partition("://")
    if not separator:
        return Path(text)
    if scheme != "sqlite":
        return None
    parts = urlsplit(text)
    return Path(unquote(parts.path)[1:] if not parts.netloc else unquote(parts.netloc + parts.path))
