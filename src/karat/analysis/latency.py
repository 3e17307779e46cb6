"""How long the outputs of a run took: the task's own time, and apart from it the time its model calls waited."""

from __future__ import annotations

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
    median, p95 = np.quantile(values, (0.5, 0.95)).tolist()
    return {"mean": float(values.mean()), "median": median, "p95": p95, "max": float(values.max())}


def seconds_text(seconds: float) -> str:
    """Seconds for people."""
    return "<0.001" if 0 < seconds < 0.001 else f"{seconds:.3f}"
