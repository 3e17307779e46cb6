"""How long the outputs of a run took: the task's own time, and apart from it the time its model calls waited."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from karat.store.handles import CHUNK, Run
from karat.store.repositories import latest

Spread = dict[str, float]
"""`mean`, `median`, `p95` and `max`, in seconds; empty without outputs."""


class Latency(msgspec.Struct, frozen=True):
    """The seconds of outputs; those that failed took time too."""

    service: Spread = {}
    """Without waiting."""
    queue: Spread = {}
    """Waiting for a slot, a rate limit or a retry."""


class _Timed(msgspec.Struct):
    """The fields of an output that say how long it took; decoding skips the rest."""

    seconds: float = 0.0
    queue_seconds: float = 0.0


def latency_of(run: Run) -> Latency:
    """Read how long the outputs of a run took."""
    decode, backend = msgspec.json.Decoder(_Timed).decode, run.store.backend
    service: list[float] = []
    queue: list[float] = []
    for start in range(0, backend.extent(run.number), CHUNK):
        for row in latest(backend.scan(run.number, start, start + CHUNK)):
            timed = decode(row.payload)
            service.append(max(0.0, timed.seconds - timed.queue_seconds))
            queue.append(timed.queue_seconds)
    return Latency(_spread(service), _spread(queue))


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return {}
    ordered = sorted(values)
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
