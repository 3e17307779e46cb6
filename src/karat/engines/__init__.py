"""Where a stage's work happens."""

from karat.registry import Registry

engines: Registry[object] = Registry("engine")
