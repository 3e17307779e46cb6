"""Tasks written for SyGra: their dotted names, and the imports in their Python files.

`_imports` has the table of names and makes `import` follow it, `_task_modules` keeps the modules of one task apart
from those of another. An installed `sygra` is left alone.
"""

from __future__ import annotations

from karat.graph.sygra._imports import TableFinder

__all__ = ["TableFinder"]
