"""The base of judges that give each numbered item of a list a label, such as each memory of a snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from karat.errors import CannotJudge
from karat.evaluators.judges._base import Case, JudgeEvaluator
from karat.evaluators.judges._core import JudgeContextOverflow, Ledger, Question, Vote, decide
from karat.evaluators.judges._replies import Contract
from karat.records import Result

MOST_ITEMS = 20
"""Items in one request: a reply about more is likely to be cut off or to skip some."""

ASSUMED_CONTEXT = 100_000
"""Tokens that are assumed to fit if the context of the judge is not known: hosted models have 128,000 and more."""

BYTES_PER_TOKEN = 3
"""For cutting a text: English has about 4 bytes to a token, and text with many digits has fewer."""

_PIECE = re.compile(r"[A-Za-z]+|\d|[^\sA-Za-z\d]")

SMALLEST_ROOM = 64
"""Tokens that have to be left for the material beside the items."""

Part = str | Sequence[str]
"""Material beside the items: a text, or a list of lines that may be divided among several requests."""


class ItemVerdict(msgspec.Struct, frozen=True):
    """The label of one item, and why."""

    id: int
    """The number of the item, from 1."""
    label: str
    reasoning: str = ""


class _Request(msgspec.Struct, frozen=True):
    """The items and the material of one request."""

    numbers: tuple[int, ...]
    texts: tuple[tuple[str, str], ...]
    """Texts of the divided parts, each with the name of its part."""


class ItemJudge(JudgeEvaluator):
    """Base of judges that label items. A subclass overrides `judge_output`, which calls `label_items`.

    The items are shown as a numbered list in a part named `items`. A reply has to label each number exactly once: a
    number that is not in the list, or one that is missing, is sent back and is an error in the end. So counts are made
    from the numbers, and never taken from what the judge says that it counted.

    What does not fit into the context of the judge is divided: items among requests, and parts that are lists of lines
    among several requests about the same items, whose labels `merged` unites. An item or a part that cannot be divided
    and does not fit is a JudgeContextOverflow.
    """

    labels: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, judge: Any = None, prompt: str | None = None) -> None:
        super().__init__(judge=judge, prompt=prompt)

    async def judge_output(self, output: object) -> Result:
        """Judge the output of a task."""
        raise NotImplementedError

    async def _judge(self, case: Case) -> Result:
        return await self.judge_output(case.outputs)

    def merged(self, labels: Sequence[str]) -> str:
        """The label of an item from its labels in several requests, each with a part of the material.

        The label that comes first in `labels` wins, as "covered" wins over "missing".
        """
        return min(labels, key=self.labels.index)

    async def label_items(
        self, items: Sequence[str], parts: Mapping[str, Part]
    ) -> tuple[list[ItemVerdict], dict[str, Any]]:
        """The verdict on each item in order, and the metadata of the result. `parts` are shown beside the items."""
        ledger, all_votes = Ledger(), []
        found: dict[int, list[ItemVerdict]] = {number: [] for number in range(1, len(items) + 1)}
        waiting = list(self._requests(items, parts))
        while waiting:
            request = waiting.pop(0)
            question = self._question(request, items, parts)
            votes = await self.judge.ask(question, ledger)
            if any(isinstance(vote, JudgeContextOverflow) for vote in votes) and (halves := _halves(request)):
                waiting[:0] = halves
                continue
            for place, number in enumerate(request.numbers):
                found[number].append(self._majority_label(number, place, votes))
            all_votes += votes
        case = Case(None, None, None, None, None, None)
        metadata = self._metadata(case, ledger, all_votes)
        metadata.pop("votes", None)  # one list could not show which votes belong to which request
        return [self._unite_verdicts(verdicts) for verdicts in found.values()], metadata

    def _question(self, request: _Request, items: Sequence[str], parts: Mapping[str, Part]) -> Question:
        shown: dict[str, str] = {}
        for name, part in parts.items():
            if isinstance(part, str):
                shown[name] = part
            else:
                texts = [text for of, text in request.texts if of == name]
                shown[name] = "\n".join(texts) or "(none)"
        shown["items"] = "\n".join(f"{number}. {items[number - 1]}" for number in request.numbers)
        return self._ask(Contract("verdicts", request.numbers, labels=self.labels), shown)

    def _requests(self, items: Sequence[str], parts: Mapping[str, Part]) -> Iterator[_Request]:
        """Divide items and texts among requests that fit into the context of the judge."""
        context = self.judge.context_tokens or ASSUMED_CONTEXT
        texts = [(name, text) for name, part in parts.items() if not isinstance(part, str) for text in part]
        empty = self._question(_Request((), ()), items, parts)
        fixed = sum(_tokens(message["content"]) for message in empty.messages(self.judge.fingerprint))
        room = context - fixed
        # Either all texts fit beside the items, or half of the room is left for a part of them.
        most = max(room // 2, room - sum(_tokens(text) + 2 for _, text in texts))
        start = 0
        while start < len(items):
            end = start + 1
            while end < min(len(items), start + MOST_ITEMS) and self._size(items[start : end + 1]) <= most:
                end += 1
            left = max(room - self._size(items[start:end]), SMALLEST_ROOM)
            numbers = tuple(range(start + 1, end + 1))
            yield from (_Request(numbers, window) for window in _windows(texts, left))
            start = end

    def _size(self, items: Sequence[str]) -> int:
        """About how many tokens some items and the reply about them have."""
        contract = Contract("verdicts", tuple(range(len(items))), labels=self.labels)
        reply = max(self.judge.reply_limit(model, contract) for model in self.settings.models)
        return reply + sum(_tokens(item) + 4 for item in items)

    def _unite_verdicts(self, verdicts: Sequence[ItemVerdict]) -> ItemVerdict:
        if len(verdicts) == 1:
            return verdicts[0]
        label = self.merged([verdict.label for verdict in verdicts])
        reason = next((each.reasoning for each in verdicts if each.label == label), verdicts[0].reasoning)
        return ItemVerdict(verdicts[0].id, label, reason)

    def _majority_label(self, number: int, place: int, votes: Sequence[Any]) -> ItemVerdict:
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


def _tokens(text: str) -> int:
    """About how many tokens a text has, rather too many: five letters, a digit, or a byte or two of anything else."""
    out = 1 + text.count("\n")
    for piece in _PIECE.findall(text):
        out += (len(piece) + 4) // 5 if piece.isascii() else (len(piece.encode("utf-8", "replace")) + 1) // 2
    return out


def _windows(texts: Sequence[tuple[str, str]], room: int) -> Iterator[tuple[tuple[str, str], ...]]:
    """The texts in windows of at most `room` tokens; a text that is longer is cut into pieces."""
    here: list[tuple[str, str]] = []
    used = 0
    for name, text in texts:
        for piece in _pieces(text, (room - 2) * BYTES_PER_TOKEN):
            size = _tokens(piece) + 2
            if here and used + size > room:
                yield tuple(here)
                here, used = [], 0
            here.append((name, piece))
            used += size
    yield tuple(here)


def _pieces(text: str, most: int) -> Iterator[str]:
    """A text in pieces of at most `most` bytes, cut between words where there are any."""
    while len(text.encode("utf-8", "surrogatepass")) > most:
        part = text.encode("utf-8", "surrogatepass")[:most].decode("utf-8", "ignore")
        cut = part.rfind(" ")
        cut = cut if cut > len(part) // 2 else len(part)
        cut = max(cut, 1)
        yield text[:cut]
        text = text[cut:].lstrip()
    yield text


def _halves(request: _Request) -> list[_Request]:
    """Two requests instead of one that does not fit; none if nothing is left to divide."""
    texts = request.texts
    if len(texts) == 1 and len(texts[0][1]) > SMALLEST_ROOM * BYTES_PER_TOKEN:
        name, text = texts[0]
        texts = tuple(
            (name, piece) for piece in _pieces(text, len(text.encode("utf-8", "surrogatepass")) // 2 + 1)
        )
    if len(texts) > 1:
        middle = len(texts) // 2
        return [_Request(request.numbers, texts[:middle]), _Request(request.numbers, texts[middle:])]
    if len(request.numbers) > 1:
        middle = len(request.numbers) // 2
        return [
            _Request(request.numbers[:middle], request.texts),
            _Request(request.numbers[middle:], request.texts),
        ]
    return []
