"""Names that a package imports when they are first used, so that importing the package costs next to nothing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def load(package: str, where: Mapping[str, str], name: str) -> Any:
    """What a package's `__getattr__` returns: the name from the module that `where` gives for it."""
    module = where.get(name)
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{package}.{module}"), name)
