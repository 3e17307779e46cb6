"""Running tasks that were written for SyGra: their dotted names, and the imports in their Python files.

`names.py` is the table, `imports.py` makes `import` follow it, `own_imports.py` keeps apart the modules of one task and
those of another. None touches an installed `sygra`.
"""

from __future__ import annotations

from karat.graph.compat.imports import task_imports
from karat.graph.compat.names import own_name
from karat.graph.compat.own_imports import current_modules

__all__ = ["current_modules", "own_name", "task_imports"]
