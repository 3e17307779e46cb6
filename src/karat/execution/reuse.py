"""Items of an evaluation that need no work: the output failed, or the result is copied from an earlier evaluation.

Earlier results come from the evaluations that are amended, or from anywhere in the store by reuse key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from karat.execution.judgments import EvaluatorWork, Judgment, PreparedEvaluator
from karat.records import ItemResult, Ok
from karat.store.backend import REUSED, Backend, Row
from karat.store.handles import Evaluation
from karat.store.repositories import latest, result_decoder


class _Place(NamedTuple):
    """Where a result belongs, independent of the evaluation that holds it."""

    position: int
    key: str
    runs: tuple[str, ...]
    attempt: int
    unit: str


class Reuse:
    """Finds results that can be copied into one evaluation."""

    def __init__(
        self,
        backend: Backend,
        evaluators: Sequence[PreparedEvaluator],
        run_ids: Sequence[str],
        amended: Sequence[Evaluation],
    ) -> None:
        self._backend = backend
        self._evaluators = evaluators
        self._run_ids = run_ids
        self._amended = amended

    def split(self, work: EvaluatorWork, chunk: list[Judgment]) -> tuple[list[Row], list[Judgment]]:
        """Rows for items that are skipped or copied, and the judgments that remain to be made."""
        rows: list[Row] = []
        remaining: list[Judgment] = []
        amended = self._amended_results(chunk) if self._amended and chunk else {}
        for judgment in chunk:
            skipped = work.skipped(judgment)
            if skipped is not None:
                rows.append(skipped)
                continue
            found = self._from_amended(judgment, amended) if amended else None
            if found is not None:
                rows.append(_copied(work, *found))
            else:
                remaining.append(judgment)
        # `refresh` asks models again, so results that came from the old replies are not copied.
        keys = [j.reuse for j in remaining if j.reuse is not None and work.stage.options.cache != "refresh"]
        known = self._backend.reusable(keys) if keys else {}
        if not known:
            return rows, remaining
        left = []
        for judgment in remaining:
            hit = known.get(judgment.reuse) if judgment.reuse is not None else None
            if hit is None:
                left.append(judgment)
                continue
            parent = self._backend.header(hit[0])
            rows.append(_copied(work, judgment, result_decoder.decode(hit[1]), parent.id if parent else ""))
        return rows, left

    def _amended_results(self, chunk: list[Judgment]) -> dict[_Place, tuple[ItemResult, str]]:
        """Results of the amended evaluations for these positions, where the evaluator is the same."""
        prints = {each.key: each.spec.fingerprint for each in self._evaluators}
        start, stop = chunk[0].position, chunk[-1].position + 1
        found: dict[_Place, tuple[ItemResult, str]] = {}
        for evaluation in self._amended:
            same = {s.key for s in evaluation.header.evaluators if prints.get(s.key) == s.fingerprint}
            for row in latest(self._backend.scan(evaluation.number, start, stop)):
                old = result_decoder.decode(row.payload)
                if old.key in same and isinstance(old.outcome, Ok):
                    place = _Place(row.position, old.key, old.runs, old.attempt, old.unit)
                    found.setdefault(place, (old, evaluation.id))
        return found

    def _from_amended(
        self, judgment: Judgment, amended: dict[_Place, tuple[ItemResult, str]]
    ) -> tuple[Judgment, ItemResult, str] | None:
        """An earlier result of the same item; a pair judged in the opposite order keeps that order."""
        evaluator, first = self._evaluators[judgment.evaluator], judgment.outputs[0]
        orders = [judgment.runs]
        # Not after an earlier try in this order: the failed or skipped item would stay beside the copied one.
        if evaluator.kind == "pair" and not evaluator.both_orders and judgment.try_number == 1:
            orders.append(judgment.runs[::-1])
        for order in orders:
            runs = tuple(self._run_ids[place] for place in order)
            hit = amended.get(_Place(judgment.position, evaluator.key, runs, first.attempt, first.unit))
            if hit is not None:
                if order != judgment.runs:
                    judgment = msgspec.structs.replace(
                        judgment, runs=order, outputs=judgment.outputs[::-1], reuse=None
                    )
                return judgment, *hit
        return None


def _copied(work: EvaluatorWork, judgment: Judgment, old: ItemResult, source: str) -> Row:
    return work.row(
        judgment,
        old.outcome,
        REUSED,
        seconds=old.seconds,
        queue=old.queue_seconds,
        reused_from=old.reused_from or source,
    )
