"""Names that a package imports when they are first used, so that importing the package costs next to nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any


def load(package: str, where: Mapping[str, str], name: str) -> Any:
    """What a package's `__getattr__` returns: the name from the module that `where` gives for it.

    A module is named relative to the package, or in full where it begins with `karat.`. The package keeps the value,
    so each name is looked up once.
    """
    module = where.get(name)
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    full = module if module.startswith("karat.") else f"{package}.{module}"
    value = getattr(importlib.import_module(full), name)
    setattr(sys.modules[package], name, value)
    return value
