"""Judges of retrieval-augmented answers: context relevance, groundedness, answer relevance, answer correctness."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from karat.errors import CannotJudge
from karat.evaluators._base import register_evaluator
from karat.evaluators.judges._base import (
    SCALE,
    UNDECIDED,
    Case,
    ContextOptions,
    JudgeEvaluator,
    ReferenceOptions,
)
from karat.evaluators.judges._core import JudgeFailure, Ledger, Prompt, Vote, part_of, shipped, split
from karat.evaluators.judges._replies import Contract
from karat.evaluators.judges._settings import JudgeLike
from karat.models._limits import gather_or_cancel
from karat.records import Result

LONGEST_STATEMENT = 1500
"""Characters of an answer that are split into claims at once: a list of claims has to fit into one reply."""

MOST_CLAIMS = 20
"""Claims that are checked at once."""

MOST_PASSAGES = 1_000
"""Passages of one item, each of which is a request: more are data at a wrong path, not what was retrieved."""

RELEVANCE = {
    0: "not at all: about something else",
    1: "hardly: the same subject, nothing that helps",
    2: "a little: touches the question",
    3: "partly: helps with a part of the question",
    4: "largely: only a minor part is missing",
    5: "completely",
}

_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+")


class _Relevance(JudgeEvaluator):
    """A graded score of one text against the question."""

    options = ContextOptions

    def __init__(self, config: JudgeLike | None = None, **options: Unpack[ContextOptions]) -> None:
        super().__init__(config, **options)

    async def _average_grades(
        self, parts: Mapping[str, str], ledger: Ledger
    ) -> tuple[float | None, float, list[Any]]:
        """Return mean and spread of the votes, mapped to 0–1. A failed vote is an error: no grade can replace it.

        A vote that contradicts its own analysis is an abstention; the mean is None where all abstain.
        """
        question = self._ask(Contract("score", tuple(SCALE)), parts, scale=RELEVANCE)
        votes = await self.judge.ask(question, ledger)
        for vote in votes:
            if isinstance(vote, JudgeFailure):
                raise vote
        cast = [vote for vote in votes if isinstance(vote, Vote) and vote.consistent is not False]
        shares = [vote.value / max(SCALE) for vote in cast]
        if not shares:
            return None, 0.0, list(votes)
        return sum(shares) / len(shares), max(shares) - min(shares), list(votes)

    def _needed_question(self, case: Case) -> str:
        question = self._question_text(case)
        if not question.strip():
            raise CannotJudge(
                f"{self.key}: there is no question: give inputs or inputs[{self.question_key!r}]"
            )
        return question


@register_evaluator("context_relevance")
class ContextRelevanceEvaluator(_Relevance):
    """The relevance of the retrieved passages to the question: the mean over all passages, each judged alone.

    The passages come from `context=`, the input's field `context_key`, or a path such as `context: output.documents`.
    """

    name: ClassVar[str] = "context_relevance"
    template: ClassVar[str] = "context_relevance"
    example: ClassVar[Mapping[str, Any]] = {
        "params": {},
        "inputs": {"question": "Who wrote Emma?", "context": ["Emma is a novel by Jane Austen."]},
        "outputs": None,
        "reply": {"analysis": "The passage names the author.", "score": 5},
        "score": 1.0,
    }

    async def _judge(self, case: Case) -> Result:
        question, passages = self._needed_question(case), self._needed_passages(case)
        ledger = Ledger()
        if not passages:
            return self._not_applicable(case, "no passage was retrieved", ledger, passages=[])
        if len(passages) > MOST_PASSAGES:
            raise CannotJudge(
                f"{self.key}: the context has {len(passages):,} passages, each of which is a request; at most"
                f" {MOST_PASSAGES:,} are judged: give the path of those that were retrieved"
            )
        judged = await gather_or_cancel(
            self._average_grades({"question": question, "passage": passage}, ledger) for passage in passages
        )
        found = [
            {"passage": number, "score": score, "spread": spread, "reasoning": votes[0].analysis}
            for number, (score, spread, votes) in enumerate(judged, 1)
        ]
        scores = [each[0] for each in judged if each[0] is not None]
        votes = [vote for each in judged for vote in each[2]]
        metadata = self._metadata(case, ledger, votes, passages=found)
        if len(scores) < len(judged):
            undecided = len(judged) - len(scores)
            comment = f"undecided on {undecided} of {len(judged)} passages"
            return Result(self.key, None, UNDECIDED, comment, metadata)
        score = sum(scores) / len(scores)
        useful = sum(each >= 0.5 for each in scores)
        return Result(self.key, score, useful, f"{useful} of {len(passages)} passages are relevant", metadata)


@register_evaluator("answer_relevance")
class AnswerRelevanceEvaluator(_Relevance):
    """The degree to which the answer addresses the question, right or wrong."""

    name: ClassVar[str] = "answer_relevance"
    template: ClassVar[str] = "answer_relevance"
    example: ClassVar[Mapping[str, Any]] = {
        "params": {},
        "inputs": {"question": "Who wrote Emma?"},
        "outputs": "Jane Austen.",
        "reply": {"analysis": "The answer names an author, which was asked for.", "score": 5},
        "score": 1.0,
    }

    async def _judge(self, case: Case) -> Result:
        parts = {"question": self._needed_question(case), "answer": self._answer_text(case)}
        ledger = Ledger()
        score, spread, votes = await self._average_grades(parts, ledger)
        metadata = self._metadata(case, ledger, votes, spread=spread)
        if score is None:
            return Result(self.key, None, UNDECIDED, "every vote contradicts its own analysis", metadata)
        return Result(self.key, score, None, f"{score:.2f}: {metadata['reasoning'][:300]}", metadata)


class _Claims(JudgeEvaluator):
    """The steps that split a text into claims and check each against a source."""

    template: ClassVar[str] = "claims"

    def prompts(self) -> list[Prompt]:
        return [self.prompt, shipped("verify_claims")]

    async def _check_claims(
        self, statement: str, source: str | None, question: str, ledger: Ledger
    ) -> tuple[list[dict[str, Any]], list[Any]]:
        """The claims of a statement with whether the source supports them; no source supports nothing."""
        pieces = _pieces(statement)
        found = await gather_or_cancel(self._piece(piece, source, question, ledger) for piece in pieces)
        claims = [claim for each, _ in found for claim in each]
        return claims, [vote for _, votes in found for vote in votes]

    async def _piece(
        self, statement: str, source: str | None, question: str, ledger: Ledger
    ) -> tuple[list[dict[str, Any]], list[Any]]:
        parts = {"question": question} if question else {}
        parts |= {"source": source or "(nothing was retrieved)", "statement": statement}
        first = await self.judge.ask_once(self._ask(Contract("claims"), parts), ledger)
        claims: list[dict[str, Any]] = first.value
        votes: list[list[bool | None]] = [[_verdict_on(first, place)] for place in range(len(claims))]
        cast: list[Any] = [first]
        if claims and source is not None and self.judge.votes > 1:
            for start in range(0, len(claims), MOST_CLAIMS):
                batch = claims[start : start + MOST_CLAIMS]
                more = await gather_or_cancel(
                    self._again(batch, source, ledger, number) for number in range(2, self.judge.votes + 1)
                )
                cast += more
                for vote in more:
                    for place in range(len(vote.value)):
                        votes[start + place].append(_verdict_on(vote, place))
        out = []
        for claim, supported in zip(claims, votes, strict=True):
            entry = {"claim": claim["claim"], "supported": _majority(supported, self.settings.majority)}
            if source is None:
                entry["supported"] = False
            elif len(supported) > 1:
                entry["share"] = sum(vote is True for vote in supported) / len(supported)
                entry["spread"] = split(
                    Counter(vote for vote in supported if vote is not None), len(supported)
                )
            out.append(entry)
        return out, cast

    async def _again(self, claims: list[dict[str, Any]], source: str, ledger: Ledger, number: int) -> Vote:
        """Another vote on claims that are listed already, so that all votes are about the same ones."""
        listed = "\n".join(f"{place}. {claim['claim']}" for place, claim in enumerate(claims, 1))
        question = self._ask(
            Contract("claims", count=len(claims), texts=tuple(claim["claim"] for claim in claims)),
            {"source": source, "claims": listed},
            prompt=shipped("verify_claims"),
        )
        return await self.judge.ask_once(question, ledger, number)


def _verdict_on(vote: Vote, place: int) -> bool | None:
    """Return a vote's verdict on a claim; None if the vote contradicts itself or its own analysis."""
    verdict: bool | None = vote.value[place]["supported"]
    return None if part_of(vote, place, None).consistent is False else verdict


def _majority(votes: Sequence[bool | None], majority: float) -> bool | None:
    """The verdict of more than `majority` of all votes; abstentions count for neither side."""
    for value in (True, False):
        if sum(vote is value for vote in votes) > majority * len(votes):
            return value
    return None


def _pieces(statement: str) -> list[str]:
    """Split a text into pieces of whole sentences; a sentence longer than the limit is a separate piece."""
    if len(statement) <= LONGEST_STATEMENT:
        return [statement]
    pieces: list[str] = []
    here = ""
    for sentence in _SENTENCE.split(statement):
        if here and len(here) + len(sentence) + 1 > LONGEST_STATEMENT:
            pieces.append(here)
            here = ""
        here = f"{here} {sentence}" if here else sentence
        while len(here) > 4 * LONGEST_STATEMENT:  # no sentence ends anywhere: cut between words
            cut = here.rfind(" ", 0, LONGEST_STATEMENT) or LONGEST_STATEMENT
            cut = cut if cut > 0 else LONGEST_STATEMENT
            pieces.append(here[:cut])
            here = here[cut:].lstrip()
    return [*pieces, here] if here.strip() else pieces


@register_evaluator("groundedness")
class GroundednessEvaluator(_Claims):
    """The share of the answer's claims that the context supports.

    An answer without claims that can be checked is not applicable; an empty list of passages supports nothing; a
    missing context is an error.
    """

    name: ClassVar[str] = "groundedness"
    example: ClassVar[Mapping[str, Any]] = {
        "params": {},
        "inputs": {"question": "Who wrote Emma, and when?", "context": ["Emma is a novel by Jane Austen."]},
        "outputs": "Jane Austen wrote Emma in 1900.",
        "reply": {
            "analysis": "The author is in the context, the year is not.",
            "claims": [
                {"claim": "Jane Austen wrote Emma.", "supported": True},
                {"claim": "Emma was written in 1900.", "supported": False},
            ],
        },
        "score": 0.5,
    }

    options = ContextOptions

    def __init__(self, config: JudgeLike | None = None, **options: Unpack[ContextOptions]) -> None:
        super().__init__(config, **options)

    async def _judge(self, case: Case) -> Result:
        answer, passages, ledger = self._answer_text(case), self._needed_passages(case), Ledger()
        claims: list[dict[str, Any]] = []
        votes: list[Any] = []
        if answer.strip():
            source = (
                "\n\n".join(f"Passage {n}:\n{text}" for n, text in enumerate(passages, 1))
                if passages
                else None
            )
            claims, votes = await self._check_claims(answer, source, self._question_text(case), ledger)
        if not claims:
            return self._not_applicable(
                case, "the answer makes no claim that can be checked", ledger, claims=[]
            )
        return self._score_claims(case, ledger, votes, claims)

    def _score_claims(
        self, case: Case, ledger: Ledger, votes: list[Any], claims: list[dict[str, Any]]
    ) -> Result:
        metadata = self._metadata(case, ledger, votes, claims=claims)
        open_ = sum(claim["supported"] is None for claim in claims)
        supported = sum(claim["supported"] is True for claim in claims)
        if open_:
            comment = f"{supported} of {len(claims)} claims are supported, {open_} undecided"
            return Result(self.key, None, UNDECIDED, comment, metadata)
        comment = f"{supported} of {len(claims)} claims are supported by the context"
        return Result(self.key, claims_score(claims), supported, comment, metadata)


@register_evaluator("answer_correctness")
class AnswerCorrectnessEvaluator(_Claims):
    """Claims of the answer against the reference and of the reference against the answer: precision, recall and F1."""

    name: ClassVar[str] = "answer_correctness"
    needs_reference = True
    example: ClassVar[Mapping[str, Any]] = {
        "params": {},
        "inputs": "Who wrote Emma?",
        "outputs": "Jane Austen wrote Emma.",
        "reference_outputs": "Jane Austen.",
        "reply": {
            "analysis": "Both name Jane Austen.",
            "claims": [{"claim": "Jane Austen wrote Emma.", "supported": True}],
        },
        "score": 1.0,
    }

    options = ReferenceOptions

    def __init__(self, config: JudgeLike | None = None, **options: Unpack[ReferenceOptions]) -> None:
        super().__init__(config, **options)
        if options.get("reference") is not None:
            self.needs_reference = False

    async def _judge(self, case: Case) -> Result:
        reference = self._reference_text(case)
        if reference is None or not reference.strip():
            raise CannotJudge(f"{self.key}: there is no reference to compare with")
        answer, question, ledger = self._answer_text(case), self._question_text(case), Ledger()
        if not answer.strip():
            return self._not_applicable(case, "there is no answer", ledger, claims=[])
        asked = f"Question: {question}\n" if question else ""
        (claims, votes), (wanted, more) = await gather_or_cancel(
            [
                self._check_claims(answer, f"{asked}Answer: {reference}", question, ledger),
                self._check_claims(reference, f"{asked}Answer: {answer}", question, ledger),
            ]
        )
        if not claims:
            return self._not_applicable(
                case, "the answer makes no claim that can be checked", ledger, claims=[]
            )
        if not wanted:
            raise CannotJudge(f"{self.key}: the reference makes no claim that can be checked")
        metadata = self._metadata(case, ledger, [*votes, *more], claims=claims, reference_claims=wanted)
        f1 = claims_score(claims, wanted)
        if f1 is None:
            return Result(self.key, None, UNDECIDED, "the votes on a claim are split", metadata)
        precision, recall = _share(claims), _share(wanted)
        metadata |= {"precision": precision, "recall": recall, "f1": f1}
        return Result(
            self.key, f1, None, f"precision {precision:.2f}, recall {recall:.2f}, F1 {f1:.2f}", metadata
        )


def claims_score(
    claims: Sequence[Mapping[str, Any]], reference_claims: Sequence[Mapping[str, Any]] | None = None
) -> float | None:
    """The share of supported claims; with claims of a reference, F1 of both shares. None while one is undecided."""
    if any(claim["supported"] is None for claim in [*claims, *(reference_claims or ())]):
        return None
    precision = _share(claims)
    if reference_claims is None:
        return precision
    recall = _share(reference_claims)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _share(claims: Sequence[Mapping[str, Any]]) -> float:
    return sum(bool(claim["supported"]) for claim in claims) / len(claims)


def rag_triad(
    config: JudgeLike | None = None, **options: Unpack[ContextOptions]
) -> dict[str, JudgeEvaluator]:
    """The three judges of a retrieval-augmented answer, by name."""
    return {
        "context_relevance": ContextRelevanceEvaluator(config, **options),
        "groundedness": GroundednessEvaluator(config, **options),
        "answer_relevance": AnswerRelevanceEvaluator(config, **options),
    }
