"""Judges of a criterion in words: of answers, and of an agent's trajectory."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

import msgspec

from karat.errors import CannotJudge, RequestError
from karat.evaluators._base import register_evaluator
from karat.evaluators.judges._base import (
    SCALE,
    UNDECIDED,
    AnswerOptions,
    Case,
    JudgeEvaluator,
    JudgeOptions,
    as_text,
    render_steps,
    trajectory_of,
)
from karat.evaluators.judges._core import (
    JudgeFailure,
    Ledger,
    Prompt,
    Vote,
    decide,
    is_decided,
    part_of,
    prompt_of,
)
from karat.evaluators.judges._replies import Contract
from karat.evaluators.judges._settings import JudgeLike
from karat.models._limits import gather_or_cancel
from karat.records import Result

Criteria = str | Sequence[str] | Mapping[str, str]
"""One criterion, several in order, or several by name."""

CORRECT = "The answer is correct and complete, and it answers the question that was asked."
TRAJECTORY = "The agent completes the task, by sensible steps and without harmful or needless actions."


class Verdict(msgspec.Struct, frozen=True):
    """The decision of the votes on one criterion."""

    score: float | None
    verdict: str
    """`pass`, `fail`, `undecided`, or the choice."""
    share: float
    spread: float
    value: Any
    votes: list[Any]

    def described(self) -> dict[str, Any]:
        """For the metadata of a result."""
        out = {"score": self.score, "verdict": self.verdict, "share": self.share, "spread": self.spread}
        cast = [vote for vote in self.votes if isinstance(vote, Vote)]
        return {**out, "value": self.value, "reasoning": cast[0].analysis if cast else ""}


class CriterionOptions(JudgeOptions, total=False):
    """Keyword arguments of a judge of criteria: the kind of verdict, and how it becomes a score."""

    scale: Mapping[Any, str] | int | None
    choices: Sequence[Any] | Mapping[str, float] | None
    pass_mark: float
    together: bool


class AnswerCriterionOptions(CriterionOptions, AnswerOptions, total=False):
    """Keyword arguments of a judge of answers by criteria."""


class _CriterionJudge(JudgeEvaluator):
    """Base of judges of criteria: the kinds of verdict, several criteria, votes."""

    pass_fail = True

    def __init__(
        self,
        config: JudgeLike | None,
        criterion: Criteria,
        continuous: bool,
        *,
        scale: Mapping[Any, str] | int | None = None,
        choices: Sequence[Any] | Mapping[str, float] | None = None,
        pass_mark: float = 0.5,
        together: bool = False,
        **options: Unpack[AnswerOptions],
    ) -> None:
        super().__init__(config, **options)
        if not isinstance(continuous, bool) or not isinstance(together, bool):
            raise RequestError(f"{self.name}: continuous and together must be true or false")
        self.criteria = _criteria(self.name, criterion)
        self.continuous = continuous or scale is not None
        self.scale = _scale(self.name, scale)
        self.choices = _choices(self.name, choices)
        if self.choices and self.continuous:
            raise RequestError(
                f"{self.name}: choices have scores of their own: leave continuous and scale out"
            )
        if isinstance(pass_mark, bool) or not isinstance(pass_mark, (int, float)) or not 0 < pass_mark <= 1:
            raise RequestError(
                f"{self.name}: pass_mark must be a number above 0 and up to 1, not {pass_mark!r}"
            )
        self.pass_mark = float(pass_mark)
        self.pass_fail = (
            len(self.criteria) == 1 and not self.continuous and set(self.choices.values()) <= {0.0, 1.0}
        )
        self.together = together and len(self.criteria) > 1
        if self.together and self.choices:
            raise RequestError(f"{self.name}: together is for pass and graded criteria, not for choices")
        self._several: Prompt = prompt_of(self.name, options.get("prompt"), "criteria")
        given = {
            "criterion": criterion if isinstance(criterion, str) else dict(self.criteria),
            "continuous": continuous or None,
            "scale": {str(number): text for number, text in self.scale.items()}
            if scale is not None
            else None,
            "choices": self.choices or None,
            "pass_mark": None if pass_mark == 0.5 else pass_mark,
            "together": together or None,
        }
        self.params.update({name: value for name, value in given.items() if value is not None})

    def prompts(self) -> list[Prompt]:
        return [self._several if self.together else self.prompt]

    def contract(self) -> Contract:
        """Return the contract of a reply on one criterion."""
        if self.choices:
            return Contract("choice", tuple(self.choices), recover=True)
        return Contract("score", tuple(self.scale)) if self.continuous else Contract("pass")

    async def _parts(self, case: Case) -> dict[str, str]:
        raise NotImplementedError

    async def _judge(self, case: Case) -> Result:
        parts = await self._parts(case)
        ledger = Ledger()
        if self.together:
            verdicts = await self._all_at_once(parts, ledger)
        else:
            names = list(self.criteria)
            judged = await gather_or_cancel(self._one(self.criteria[name], parts, ledger) for name in names)
            verdicts = dict(zip(names, judged, strict=True))
        if len(verdicts) == 1:
            return self._single(case, ledger, next(iter(verdicts.values())))
        return self._combine_verdicts(case, ledger, verdicts)

    async def _one(self, criterion: str, parts: dict[str, str], ledger: Ledger) -> Verdict:
        """The votes on one criterion."""
        scale = self.scale if self.continuous else None
        question = self._ask(self.contract(), parts, criterion=criterion, scale=scale)
        planned = self.judge.votes
        stop = None if self.continuous else is_decided(self.settings.majority, planned)
        votes = await self.judge.ask(question, ledger, stop)
        return self._verdict(votes, planned)

    def _verdict(self, votes: list[Vote | JudgeFailure], planned: int) -> Verdict:
        if self.continuous:
            return self._average_grades(votes)
        decision = decide(votes, planned, self.settings.majority)
        if self.choices:
            score = None if decision.value is None else self.choices[decision.value]
            word = UNDECIDED if decision.value is None else str(decision.value)
            return Verdict(score, word, decision.share, decision.spread, word, list(votes))
        cast = [vote for vote in votes if isinstance(vote, Vote)]
        passed = sum(vote.value is True and vote.consistent is not False for vote in cast) / len(cast)
        word = UNDECIDED if decision.value is None else "pass" if decision.value else "fail"
        score = None if decision.value is None else float(decision.value)
        return Verdict(score, word, passed, decision.spread, word, list(votes))

    def _average_grades(self, votes: list[Vote | JudgeFailure]) -> Verdict:
        """Average graded votes; a failed vote is an error, because no grade can replace it."""
        for vote in votes:
            if isinstance(vote, JudgeFailure):
                raise vote
        cast = [vote for vote in votes if isinstance(vote, Vote)]
        valid = [vote.value for vote in cast if vote.consistent is not False]
        low, high = min(self.scale), max(self.scale)
        shares = [(value - low) / (high - low) for value in valid]
        passed = sum(share >= self.pass_mark for share in shares)
        spread = max(shares) - min(shares) if shares else 0.0
        against = len(shares) - passed
        # Grades just above and just below the mark differ little; a jury that is split over half of the scale does not
        # know.
        if not shares or (
            spread > 0.5 and abs(passed - against) <= len(cast) * (2 * self.settings.majority - 1)
        ):
            return Verdict(None, UNDECIDED, passed / max(1, len(cast)), spread, UNDECIDED, list(votes))
        score = statistics.fmean(shares)
        word = "pass" if score >= self.pass_mark else "fail"
        return Verdict(score, word, passed / len(cast), spread, statistics.median(valid), list(votes))

    async def _all_at_once(self, parts: dict[str, str], ledger: Ledger) -> dict[str, Verdict]:
        """Judge all criteria in one call per vote; the votes of each criterion are counted separately."""
        names = tuple(self.criteria)
        scale = self.scale if self.continuous else None
        contract = Contract("verdicts", names, scale=tuple(self.scale) if scale else ())
        text = "\n".join(f"- {name}: {criterion}" for name, criterion in self.criteria.items())
        question = self._ask(contract, parts, criterion=text, scale=scale, prompt=self._several)
        votes = await self.judge.ask(question, ledger)
        out = {}
        for place, name in enumerate(names):
            mine = [self._part(vote, place) for vote in votes]
            out[name] = self._verdict(mine, self.judge.votes)
        return out

    def _part(self, vote: Vote | JudgeFailure, place: int) -> Vote | JudgeFailure:
        if isinstance(vote, JudgeFailure):
            return vote
        part = vote.value[place]
        value = part["score"] if self.continuous else part["pass"]
        return part_of(vote, place, value, analysis=part["analysis"] or vote.analysis)

    def _single(self, case: Case, ledger: Ledger, found: Verdict) -> Result:
        described = found.described()
        del described["reasoning"], described["score"]
        metadata = self._metadata(case, ledger, found.votes, **described)
        return Result(self.key, found.score, found.value, _comment(found), metadata)

    def _combine_verdicts(self, case: Case, ledger: Ledger, verdicts: dict[str, Verdict]) -> Result:
        scores = [verdict.score for verdict in verdicts.values()]
        known = [score for score in scores if score is not None]
        score = statistics.fmean(known) if len(known) == len(scores) else None
        votes = [vote for verdict in verdicts.values() for vote in verdict.votes]
        words = {name: verdict.verdict for name, verdict in verdicts.items()}
        overall = UNDECIDED if score is None else "pass" if score >= self.pass_mark else "fail"
        metadata = self._metadata(
            case,
            ledger,
            votes[:1] if self.together else votes,
            criteria={name: verdict.described() for name, verdict in verdicts.items()},
            verdict=overall,
        )
        comment = ", ".join(f"{name}: {word}" for name, word in words.items())
        return Result(self.key, score, UNDECIDED if score is None else words, comment, metadata)


def _comment(found: Verdict) -> str:
    cast = [vote for vote in found.votes if isinstance(vote, Vote)]
    reasoning = " ".join(cast[0].analysis.split()) if cast else ""
    several = f" ({found.share:.0%} of {len(found.votes)} votes pass)" if len(found.votes) > 1 else ""
    return f"{found.verdict}{several}: {reasoning[:300]}".rstrip(": ")


@register_evaluator("llm_judge")
class LLMJudge(_CriterionJudge):
    """Judge an answer by a criterion in words: pass or fail, a graded score, or one of several choices.

    `criterion` is a text, or several as `{name: text}`, each asked in a call of its own (`together: true`: in one).
    `continuous` asks for a score on anchored integers, by default 0 to 5, mapped to 0–1; `choices` are names with their
    scores. The reference and the context are shown to the judge where there are any.
    """

    name: ClassVar[str] = "llm_judge"
    template: ClassVar[str] = "criterion"
    example: ClassVar[Mapping[str, Any]] = {
        "params": {"criterion": "The answer names the capital of France."},
        "inputs": "What is the capital of France?",
        "outputs": "Paris",
        "reply": {"analysis": "Paris is the capital of France, and the answer names it.", "pass": True},
        "score": 1.0,
    }

    def __init__(
        self,
        config: JudgeLike | None = None,
        criterion: Criteria = CORRECT,
        *,
        continuous: bool = False,
        use_reference: bool = True,
        **options: Unpack[AnswerCriterionOptions],
    ) -> None:
        super().__init__(config, criterion, continuous, **options)
        if not isinstance(use_reference, bool):
            raise RequestError(f"{self.name}: use_reference must be true or false")
        self.use_reference = use_reference
        if not use_reference:
            self.params["use_reference"] = False

    async def _parts(self, case: Case) -> dict[str, str]:
        return self._material(case, self.use_reference)


@register_evaluator("llm_trajectory_judge")
class LLMTrajectoryJudge(_CriterionJudge):
    """Judge the steps of an agent without a reference: pass or fail, or with `continuous` a score from 0 to 1.

    The trajectory is the output in any format that `karat.traces.normalize` reads; where the output is only text, the
    recorded model and tool calls of the run are shown before it.
    """

    name: ClassVar[str] = "llm_trajectory_judge"
    template: ClassVar[str] = "trajectory"
    options = CriterionOptions
    example: ClassVar[Mapping[str, Any]] = {
        "params": {},
        "inputs": "Book the cheapest flight to Oslo.",
        "outputs": [
            {"role": "assistant", "tool_calls": [{"name": "search_flights", "args": {"to": "Oslo"}}]},
            {"role": "assistant", "content": "I booked flight 7 for $80."},
        ],
        "reply": {"analysis": "No step books a flight: the last message only claims it.", "pass": False},
        "score": 0.0,
    }

    def __init__(
        self,
        config: JudgeLike | None = None,
        continuous: bool = False,
        criterion: Criteria = TRAJECTORY,
        **options: Unpack[CriterionOptions],
    ) -> None:
        super().__init__(config, criterion, continuous, **options)

    async def _parts(self, case: Case) -> dict[str, str]:
        steps = trajectory_of(self.key, case, self._configured_value(case, "answer"))
        if not steps:
            raise CannotJudge(f"{self.key}: the trajectory has no step")
        task = self._question_text(case)
        rendered = "\n\n".join(render_steps(steps))
        return {**({"task": task} if task else {}), "steps": rendered}


def _criteria(who: str, given: Any) -> dict[str, str]:
    if isinstance(given, str):
        given = {"criterion": given}
    elif isinstance(given, Sequence):
        given = {f"criterion {number}": text for number, text in enumerate(given, 1)}
    if not isinstance(given, Mapping) or not given:
        raise RequestError(f"{who}: criterion must be a text, a list of texts or {{name: text}}")
    out = {}
    for name, text in given.items():
        if not isinstance(name, str) or not isinstance(text, str) or not text.strip():
            raise RequestError(f"{who}: criterion {name!r} must be non-empty text")
        out[name] = text.strip()
    return out


def _scale(who: str, given: Any) -> dict[int, str]:
    """The anchors of a graded score: `{0: "…", 5: "…"}`, or the highest number of the default kind."""
    if given is None:
        return dict(SCALE)
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= 100:
        return {
            number: "worst" if number == 0 else "best" if number == given else ""
            for number in range(given + 1)
        }
    if not isinstance(given, Mapping) or len(given) < 2:
        raise RequestError(f"{who}: scale must have at least two integers with the meaning of each")
    out = {}
    for number, text in given.items():
        try:
            out[int(str(number))] = as_text(text)
        except ValueError:
            raise RequestError(f"{who}: scale has {number!r}, which is not a whole number") from None
    return dict(sorted(out.items()))


def _choices(who: str, given: Any) -> dict[str, float]:
    """Choices with their scores; a plain list is scored evenly from the first (1) to the last (0)."""
    from karat.evaluators.judges._core import choice_name

    if given is None:
        return {}
    if isinstance(given, Mapping):
        pairs = [(choice_name(who, name), score) for name, score in given.items()]
    elif isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 1:
        pairs = [(choice_name(who, name), 1 - place / (len(given) - 1)) for place, name in enumerate(given)]
    else:
        pairs = []
    if len(pairs) < 2 or len(dict(pairs)) != len(pairs):
        raise RequestError(f"{who}: choices must be two or more different names, with scores or in order")
    for name, score in pairs:
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:
            raise RequestError(
                f"{who}: the score of choice {name!r} must be a number from 0 to 1, not {score!r}"
            )
    return {name: float(score) for name, score in pairs}
