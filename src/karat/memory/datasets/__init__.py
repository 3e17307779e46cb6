"""Readers of memory benchmarks: each gives `Sample`s, one at a time."""

from __future__ import annotations

from typing import Any

from karat.registry import Registry

memory_datasets: Registry[Any] = Registry("memory dataset type")
"""Readers by dataset type: a function of a path that yields `Sample`s."""
