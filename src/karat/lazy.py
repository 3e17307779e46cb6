"""Names that a package imports when they are first used, so that importing the package costs next to nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def exports(
    package: str, modules: Mapping[str, str], *others: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package, which binds them where no type checker looks.

    `modules` has the names of each module, separated by spaces. A module is named relative to the package, or in full
    where it begins with `karat.`; the names of `.` are modules themselves. `others` are names that the package defines.
    The package keeps each value, so a name is looked up once. A type checker reads imports under TYPE_CHECKING instead,
    and reports a name that is not among them, which it could not where it sees a `__getattr__`.
    """
    where = {name: module for module, names in modules.items() for name in names.split()}
    public = sorted([*where, *others])

    def get(name: str) -> Any:
        module = where.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if module == ".":
            value = importlib.import_module(f"{package}.{name}")
        else:
            full = module if module.startswith("karat.") else f"{package}.{module}"
            value = getattr(importlib.import_module(full), name)
        setattr(sys.modules[package], name, value)
        return value

    return public, get, lambda: public
