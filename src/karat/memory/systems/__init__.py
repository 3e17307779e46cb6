"""Built-in memory systems, controls, and adapters to memory libraries and services. Importing registers them."""

from __future__ import annotations

from karat.memory.systems import (
    _baselines,
    _graphiti,
    _langgraph,
    _mem0,
    _reflecting,
    _search,
    _services,
)

__all__ = [
    "_baselines",
    "_graphiti",
    "_langgraph",
    "_mem0",
    "_reflecting",
    "_search",
    "_services",
]
