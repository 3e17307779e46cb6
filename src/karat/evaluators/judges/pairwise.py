"""The pairwise judge: which of two answers is better, asked in both orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import msgspec

from karat.errors import CannotJudge, KaratError, NotApplicable, RequestError
from karat.evaluators._base import register_evaluator
from karat.evaluators.judges._base import Case, JudgeEvaluator, ReferenceOptions
from karat.evaluators.judges._core import STOPS, Ledger, decide, is_decided
from karat.evaluators.judges._replies import Contract
from karat.evaluators.judges._settings import JudgeLike
from karat.models._limits import gather_or_cancel
from karat.paths import MISSING
from karat.records import Example, Output, Result
from karat.serialization import to_json_value
from karat.sync import run_plain

BETTER = "The better answer is the one that is more correct, more complete and more useful for the question."
CHOICES = ("first", "second", "tie")


@register_evaluator("pairwise_judge")
class PairwiseJudge(JudgeEvaluator):
    """Decide which of two runs' answers is better by a criterion. Both orders are asked; if they disagree it is a tie.

    `metadata` says which position won in each order, so that position bias can be measured. Used with `karat rank`, or
    directly: `PairwiseJudge(judge=…).compare_values(question, first, second)`.
    """

    name: ClassVar[str] = "pairwise_judge"
    template: ClassVar[str] = "pairwise"
    options = ReferenceOptions

    def __init__(
        self,
        config: JudgeLike | None = None,
        criterion: str = BETTER,
        *,
        both_orders: bool = True,
        use_reference: bool = True,
        **options: Unpack[ReferenceOptions],
    ) -> None:
        super().__init__(config, **options)
        if not isinstance(criterion, str) or not criterion.strip():
            raise RequestError(f"{self.name}: criterion must be non-empty text")
        if not isinstance(both_orders, bool) or not isinstance(use_reference, bool):
            raise RequestError(f"{self.name}: both_orders and use_reference must be true or false")
        self.criterion, self.use_reference = criterion.strip(), use_reference
        # Both orders are one comparison here, not two items of the stage, which `both_orders` of an evaluator means.
        self._orders = (False, True) if both_orders else (False,)
        if criterion != BETTER:
            self.params["criterion"] = criterion
        if not both_orders:
            self.params["both_orders"] = False
        if not use_reference:
            self.params["use_reference"] = False

    async def compare(self, example: Example, first: Output, second: Output) -> Result:
        """Win, tie or loss of the first."""
        try:
            base = Case(
                to_json_value(first.value, "the first output"),
                to_json_value(example.expected, "the reference"),
                to_json_value(example.input, "the input"),
                MISSING,
                example,
                first,
            )
            other = msgspec.structs.replace(
                base, outputs=to_json_value(second.value, "the second output"), output=second
            )
            return await self._compare_answers(base, other)
        except (KaratError, NotApplicable, *STOPS):
            raise
        except Exception as error:
            raise CannotJudge(f"{self.key}: {type(error).__name__}: {error}") from error

    def compare_values(
        self, inputs: object, first: object, second: object, reference: object = None
    ) -> Result:
        """Compare two answers without a store."""
        from karat.records import FORMAT, Ok

        example = Example("", inputs, reference)
        outputs = [Output(format=FORMAT, example="", outcome=Ok(value)) for value in (first, second)]
        return run_plain(self.compare(example, *outputs))

    async def _compare_answers(self, first: Case, second: Case) -> Result:
        ledger = Ledger()
        shared = {"question": self._question_text(first)}
        reference = self._reference_text(first) if self.use_reference else None
        if reference is not None:
            shared["reference"] = reference
        shared = {name: text for name, text in shared.items() if text}
        answers = [self._answer_text(first), self._answer_text(second)]
        asked = await gather_or_cancel(
            self._order(shared, answers, swapped, ledger) for swapped in self._orders
        )
        orders = [
            {"shown_first": "second" if swapped else "first", "position": position}
            for (position, _), swapped in zip(asked, self._orders, strict=True)
        ]
        winners = [
            _winner(position, swapped) for (position, _), swapped in zip(asked, self._orders, strict=True)
        ]
        votes = [vote for _, each in asked for vote in each]
        agree = len(set(winners)) == 1
        word = {"first": "win", "second": "loss"}.get(winners[0] or "", "tie") if agree else "tie"
        if any(winner is None for winner in winners):
            word = "tie"
        positions = [position for position, _ in asked]
        bias = None
        if (
            len(positions) == 2
            and not agree
            and positions[0] == positions[1]
            and positions[0] in ("first", "second")
        ):
            bias = positions[0]
        metadata = self._metadata(
            first, ledger, votes, orders=orders, agree=agree, position_bias=bias, verdict=word
        )
        explanation = (
            f"{word}: the orders disagree"
            if not agree
            else f"{word} in {len(winners)} order{'s' if len(winners) > 1 else ''}"
        )
        return Result(self.key, {"win": 1.0, "tie": 0.5, "loss": 0.0}[word], word, explanation, metadata)

    async def _order(
        self, shared: Mapping[str, str], answers: list[str], swapped: bool, ledger: Ledger
    ) -> tuple[str | None, list[Any]]:
        """Return the position that wins in one order of the answers; None if the votes are split."""
        shown = answers[::-1] if swapped else answers
        parts = {**shared, "first": shown[0], "second": shown[1]}
        question = self._ask(Contract("choice", CHOICES), parts, criterion=self.criterion)
        planned = self.judge.votes
        votes = await self.judge.ask(question, ledger, is_decided(self.settings.majority, planned))
        return decide(votes, planned, self.settings.majority).value, list(votes)


def _winner(position: str | None, swapped: bool) -> str | None:
    if position is None or position == "tie" or not swapped:
        return position
    return "second" if position == "first" else "first"
