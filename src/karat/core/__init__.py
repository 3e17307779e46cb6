"""`sygra.core…` with only the package name changed: every module of `compat`'s table under `karat.core` too.

Nothing stands here. A module such as `karat.core.eval.metrics.unit_metrics.base_unit_metric` is made when it is
imported, of the parts that the table names; a name that the table lacks is an ImportError as usual.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

from karat.graph.compat.names import TABLE


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules under this package, and the packages they are in."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        inside = any(name.startswith(f"{_theirs(fullname)}.") for name in TABLE)
        if not inside and _theirs(fullname) not in TABLE:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin="karat", is_package=inside)

    def exec_module(self, module: ModuleType) -> None:
        for entry, ours in TABLE.get(_theirs(module.__name__), {}).items():
            theirs, _, other = entry.partition("=")
            setattr(module, theirs, getattr(importlib.import_module(ours), other or theirs))


def _theirs(name: str) -> str:
    return "sygra" + name.removeprefix("karat")


sys.meta_path.append(_Finder())
