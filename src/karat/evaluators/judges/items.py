"""The base of judges that give each numbered item of a list a label, such as each memory of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from karat.errors import CannotJudge
from karat.evaluators.judges._base import Case, JudgeEvaluator
from karat.evaluators.judges._core import Ledger, Vote, decide
from karat.evaluators.judges._replies import Contract
from karat.records import Result

MOST_ITEMS = 20
"""Items in one request: a reply about more is likely to be cut off or to skip some."""


class ItemVerdict(msgspec.Struct, frozen=True):
    """The label of one item, and why."""

    id: int
    """The number of the item, from 1."""
    label: str
    reasoning: str = ""


class ItemJudge(JudgeEvaluator):
    """Base of judges that label items. A subclass overrides `judge_output`, which calls `label_items`.

    The items are shown as a numbered list in a part named `items`. A reply has to label each number exactly once: a
    number that is not in the list, or one that is missing, is sent back and is an error in the end. So counts are made
    from the numbers, and never taken from what the judge says that it counted.
    """

    labels: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, judge: Any = None, prompt: str | None = None) -> None:
        super().__init__(judge=judge, prompt=prompt)

    async def judge_output(self, output: Any) -> Result:
        """Judge the output of a task."""
        raise NotImplementedError

    async def _judge(self, case: Case) -> Result:
        return await self.judge_output(case.outputs)

    async def label_items(
        self, items: Sequence[str], parts: Mapping[str, str]
    ) -> tuple[list[ItemVerdict], dict[str, Any]]:
        """The verdict on each item in order, and the metadata of the result. `parts` are shown beside the items."""
        ledger, verdicts, all_votes = Ledger(), [], []
        for start in range(0, len(items), MOST_ITEMS):
            numbers = range(start + 1, min(start + MOST_ITEMS, len(items)) + 1)
            listed = "\n".join(f"{number}. {items[number - 1]}" for number in numbers)
            contract = Contract("verdicts", tuple(numbers), labels=self.labels)
            question = self._ask(contract, {**parts, "items": listed})
            votes = await self.judge.ask(question, ledger)
            verdicts += [self._decided(number, place, votes) for place, number in enumerate(numbers)]
            all_votes += votes
        case = Case(None, None, None, None, None, None)
        metadata = self._metadata(case, ledger, all_votes)
        metadata.pop("votes", None)  # one list could not show which votes belong to which request
        return verdicts, metadata

    def _decided(self, number: int, place: int, votes: Sequence[Any]) -> ItemVerdict:
        """The label that most votes give an item."""
        settings = self.settings
        cast = [
            msgspec.structs.replace(vote, value=vote.value[place]["label"])
            if isinstance(vote, Vote)
            else vote
            for vote in votes
        ]
        decision = decide(cast, self.judge.votes, settings.majority)
        if decision.value is None:
            raise CannotJudge(f"{self.key}: the votes on item {number} do not decide: {decision.counts}")
        reasons = [
            vote.value[place]["analysis"]
            for vote in votes
            if isinstance(vote, Vote) and vote.value[place]["label"] == decision.value
        ]
        return ItemVerdict(number, decision.value, reasons[0] if reasons else "")
