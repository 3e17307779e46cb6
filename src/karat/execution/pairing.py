"""What is shown to a judge together: which runs, whose outputs, and the content they are known by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

from karat.execution.judging import Judge
from karat.keys import content_hash, reuse_key
from karat.records import Example, Ok, Output
from karat.store.backend import Row
from karat.store.repositories import latest, output_decoder


class Hashes:
    """Content hashes of an example and its outputs, made when first needed."""

    def __init__(self, example: Example) -> None:
        self._example = example
        self._of_example: str | None = None
        self._of_outputs: dict[int, str] = {}

    def reuse_key(self, judge: Judge, outputs: tuple[Output, ...]) -> bytes | None:
        if not all(isinstance(output.outcome, Ok) for output in outputs):
            return None
        if self._of_example is None:
            self._of_example = content_hash(self._example)
        return reuse_key(judge.spec.fingerprint, self._of_example, [self._output(o) for o in outputs])

    def _output(self, output: Output) -> str:
        found = self._of_outputs.get(id(output))
        if found is None:
            # The trace is part of what trajectory evaluators and judges look at.
            calls = [[call.kind, call.name, call.input, call.output, call.error] for call in output.trace]
            found = self._of_outputs[id(output)] = content_hash([output.value, calls])
        return found


def outputs_of(rows: Sequence[Row]) -> dict[int, list[Output]]:
    """The current outputs of a run, by position."""
    found: dict[int, list[Output]] = {}
    decode = output_decoder.decode
    for row in latest(rows):
        output = decode(row.payload)
        here = found.get(row.position)
        if here is None:
            found[row.position] = [output]
        else:
            here.append(output)
    return found


def shared(outputs: Sequence[list[Output] | None]) -> list[tuple[Output, ...]]:
    """The outputs of several runs for one example, attempt against attempt and unit against unit."""
    first = outputs[0]
    if first is None:
        return []
    if len(outputs) == 1:
        return [(output,) for output in first]
    others = [{(output.attempt, output.unit): output for output in other or ()} for other in outputs[1:]]
    keys = [(output.attempt, output.unit) for output in first]
    return [
        (output, *(other[key] for other in others))
        for output, key in zip(first, keys, strict=True)
        if all(key in other for other in others)
    ]


def places_of(judge: Judge, runs: int) -> Iterator[tuple[int, ...]]:
    """Which runs are shown to a judge together, by their places."""
    if judge.kind == "single":
        return ((place,) for place in range(runs))
    if judge.kind == "joint":
        return iter([tuple(range(runs))])
    return iter((permutations if judge.both_orders else combinations)(range(runs), 2))
