"""Running tasks that were written for SyGra: their dotted names, and the imports in their Python files.

`names.py` is the table, `imports.py` makes `import` follow it. Neither touches an installed `sygra`.
"""

from __future__ import annotations

from karat.compat.imports import current_modules, task_imports
from karat.compat.names import own_name

__all__ = ["current_modules", "own_name", "task_imports"]
