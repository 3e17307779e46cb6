"""How long the outputs of a run took: the task's own time, and apart from it the time its model calls waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from karat.store.columns import load_columns
from karat.store.handles import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Spread = dict[str, float]
"""`mean`, `median`, `p95` and `max`, in seconds; empty without outputs."""


class Latency(msgspec.Struct, frozen=True):
    """The seconds of outputs; those that failed took time too."""

    service: Spread = {}
    """Without waiting."""
    queue: Spread = {}
    """Waiting for a slot, a rate limit or a retry."""


def latency_of(run: Run) -> Latency:
    """Read how long the outputs of a run took."""
    columns = load_columns(run, ("seconds", "queue"))
    return Latency(_spread(columns.service_seconds), _spread(columns.queue))


def _spread(values: NDArray[np.float64]) -> Spread:
    import numpy as np

    if not len(values):
        return {}
    ordered = np.sort(values).tolist()
    return {
        "mean": sum(ordered) / len(ordered),
        "median": _quantile(ordered, 0.5),
        "p95": _quantile(ordered, 0.95),
        "max": ordered[-1],
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile by linear interpolation between the values beside it, as NumPy has it."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def seconds_text(seconds: float) -> str:
    """Seconds for people."""
    return "<0.001" if 0 < seconds < 0.001 else f"{seconds:.3f}"
