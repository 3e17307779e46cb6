"""What of an evaluation need not be computed: the output failed, or it was judged before.

Judged before means in one of the evaluations that are amended, or anywhere in the store from exactly the same things.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from karat.execution.judging import Judge, Judging, Judgment
from karat.records import ItemResult, Ok
from karat.store.backend import REUSED, Backend, Row
from karat.store.handles import Evaluation
from karat.store.repositories import latest, result_decoder


class _Place(NamedTuple):
    """Where a result of an amended evaluation belongs, in words that do not depend on that evaluation."""

    position: int
    key: str
    runs: tuple[str, ...]
    attempt: int
    unit: str


class Known:
    """What is known already about the items of one evaluation."""

    def __init__(
        self, backend: Backend, judges: Sequence[Judge], run_ids: Sequence[str], amended: Sequence[Evaluation]
    ) -> None:
        self._backend = backend
        self._judges = judges
        self._run_ids = run_ids
        self._amended = amended

    def taken_out(self, judging: Judging, chunk: list[Judgment]) -> tuple[list[Row], list[Judgment]]:
        """Rows for what is skipped or was computed before, and the judgments that remain."""
        rows: list[Row] = []
        remaining: list[Judgment] = []
        amended = self._amended_results(chunk) if self._amended and chunk else {}
        for judgment in chunk:
            skipped = judging.skipped(judgment)
            if skipped is not None:
                rows.append(skipped)
                continue
            found = self._from_amended(judgment, amended) if amended else None
            if found is not None:
                rows.append(_copied(judging, *found))
            else:
                remaining.append(judgment)
        # Who asks for new answers of models does not want the judgments made from the old ones.
        keys = [j.reuse for j in remaining if j.reuse is not None and judging.cache != "refresh"]
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
            rows.append(
                _copied(judging, judgment, result_decoder.decode(hit[1]), parent.id if parent else "")
            )
        return rows, left

    def _amended_results(self, chunk: list[Judgment]) -> dict[_Place, tuple[ItemResult, str]]:
        """Results of the amended evaluations in this range of positions, where the evaluator is the same."""
        prints = {judge.key: judge.spec.fingerprint for judge in self._judges}
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
        """An earlier judgment of the same item; a pair judged the other way round stays the other way round."""
        judge, first = self._judges[judgment.evaluator], judgment.outputs[0]
        orders = [judgment.runs]
        # Not where this order was tried before: the item that failed or was skipped would stay beside the other.
        if judge.kind == "pair" and not judge.both_orders and judgment.try_number == 1:
            orders.append(judgment.runs[::-1])
        for order in orders:
            runs = tuple(self._run_ids[place] for place in order)
            hit = amended.get(_Place(judgment.position, judge.key, runs, first.attempt, first.unit))
            if hit is not None:
                if order != judgment.runs:
                    judgment = judgment._replace(runs=order, outputs=judgment.outputs[::-1], reuse=None)
                return judgment, *hit
        return None


def _copied(judging: Judging, judgment: Judgment, old: ItemResult, source: str) -> Row:
    return judging.row(
        judgment, old.outcome, REUSED, seconds=old.seconds, reused_from=old.reused_from or source
    )
