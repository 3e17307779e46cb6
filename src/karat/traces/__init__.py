"""Trajectories: any format of an agent's trace → steps with structured tool calls.

`normalize(anything)` reads chat messages, exports and spans; see docs/trajectories.md for the list.
"""

from __future__ import annotations

from karat.traces.detection import (
    Format,
    list_formats,
    normalize,
    normalize_trajectory,
    register_format,
    unregister_format,
)
from karat.traces.steps import Step, ToolCall, ToolResult, TraceError, Trajectory, Unused

__all__ = [
    "Format",
    "Step",
    "ToolCall",
    "ToolResult",
    "TraceError",
    "Trajectory",
    "Unused",
    "list_formats",
    "normalize",
    "normalize_trajectory",
    "register_format",
    "unregister_format",
]
