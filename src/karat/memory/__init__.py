"""Memory systems by name: where a plug-in registers one that can be measured."""

from __future__ import annotations

from typing import Any

from karat.registry import Registry

memory_systems: Registry[Any] = Registry("memory system")
