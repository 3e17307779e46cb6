"""Tasks written for SyGra: their dotted names, and the imports in their Python files.

`_imports` has the table of names and makes `import` follow it, `_task_modules` has a private package for the modules of
each task. An installed `sygra` is left alone.
"""

from __future__ import annotations

from karat.graph.sygra._imports import TableFinder, without_karat

__all__ = ["TableFinder", "without_karat"]
