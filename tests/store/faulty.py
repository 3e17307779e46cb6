"""A backend whose nth write fails: before the commit, or after the commit but before it is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from karat.errors import StoreError
from karat.store.backend import Backend

WRITES = frozenset(
    {"append", "insert_header", "update_header", "delete", "name_dataset", "take_lease", "release"}
)


class FaultyBackend:
    """Passes everything on to a backend and raises at one write, counted from 1; `fail_at=0` never does."""

    def __init__(self, backend: Backend, *, made: bool = False) -> None:
        self._backend = backend
        self._made = made
        self.fail_at = 0
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return self._counted(found) if name in WRITES else found

    def _counted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.writes += 1
            fails = self.writes == self.fail_at
            if not fails or self._made:
                result = write(*arguments, **options)
            if fails:
                raise StoreError("a write failed: disk I/O error")
            return result

        return counted
