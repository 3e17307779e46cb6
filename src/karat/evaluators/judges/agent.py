"""The agent as judge: one verdict with evidence for each requirement, read from the steps of a trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

import msgspec

from karat.errors import CannotJudge, RequestError
from karat.evaluators._base import register_evaluator
from karat.evaluators.judges._base import (
    UNDECIDED,
    Case,
    JudgeEvaluator,
    JudgeOptions,
    render_steps,
    trajectory_of,
)
from karat.evaluators.judges._core import (
    MOST_REQUESTS,
    JudgeFailure,
    JudgeMalformed,
    Ledger,
    Prompt,
    Vote,
    decide,
    shipped,
)
from karat.evaluators.judges._replies import Contract
from karat.evaluators.judges._settings import JudgeLike
from karat.models._limits import gather_or_cancel
from karat.records import Result

WINDOW = 40_000
"""Characters of steps that are read at once; a longer trajectory is read in windows."""

MOST_REQUIREMENTS = 200


@register_evaluator("agent_as_judge")
class AgentAsJudgeEvaluator(JudgeEvaluator):
    """Judge a trajectory against each requirement: the score is the share that is satisfied, with evidence for each.

    Requirements come from `requirements`, or from the input's field `requirements_key`. Cited steps are checked to
    exist and quotes to stand in them (`evidence_verified`). A long trajectory is read in windows of `window` characters
    that collect evidence; a last call decides over all of it.
    """

    name: ClassVar[str] = "agent_as_judge"
    template: ClassVar[str] = "agent"
    options = JudgeOptions
    example: ClassVar[Mapping[str, Any]] = {
        "params": {"requirements": ["A flight was searched.", "The itinerary was emailed to the user."]},
        "inputs": "Find a flight to Oslo and email it to me.",
        "outputs": [
            {"role": "assistant", "tool_calls": [{"name": "search_flights", "args": {"to": "Oslo"}}]},
            {"role": "assistant", "content": "Flight 7 costs $80. I will email it to you."},
        ],
        "reply": {
            "analysis": "The search is there; the email is only announced.",
            "verdicts": [
                {
                    "evidence": "a search call",
                    "id": 1,
                    "quote": "search_flights",
                    "satisfied": True,
                    "steps": [1],
                },
                {
                    "evidence": "only announced",
                    "id": 2,
                    "quote": "I will email",
                    "satisfied": False,
                    "steps": [2],
                },
            ],
        },
        "score": 0.5,
    }

    def __init__(
        self,
        config: JudgeLike | None = None,
        requirements: Sequence[str] | None = None,
        *,
        requirements_key: str = "requirements",
        window: int = WINDOW,
        **options: Unpack[JudgeOptions],
    ) -> None:
        super().__init__(config, **options)
        self.requirements = None if requirements is None else _requirements(self.name, requirements)
        if not isinstance(requirements_key, str) or not requirements_key:
            raise RequestError(f"{self.name}: requirements_key must be the name of a field of the input")
        if isinstance(window, bool) or not isinstance(window, int) or window < 200:
            raise RequestError(f"{self.name}: window must be a whole number of 200 characters or more")
        self.requirements_key, self.window = requirements_key, window
        if self.requirements is not None:
            self.params["requirements"] = self.requirements
        if requirements_key != "requirements":
            self.params["requirements_key"] = requirements_key
        if window != WINDOW:
            self.params["window"] = window

    def prompts(self) -> list[Prompt]:
        return [self.prompt, shipped("agent_window"), shipped("agent_final")]

    async def _judge(self, case: Case) -> Result:
        requirements = self._requirements_of(case)
        steps = trajectory_of(self.key, case, self._configured_value(case, "answer"))
        if not steps:
            raise CannotJudge(f"{self.key}: the trajectory has no step")
        rendered = render_steps(steps)
        ledger = Ledger()
        windows = _windows(rendered, self.window)
        task = self._question_text(case)
        ids = tuple(range(1, len(requirements) + 1))
        votes: list[list[dict[str, Any]] | JudgeFailure]
        if len(windows) == 1:
            parts = {**({"task": task} if task else {}), "steps": windows[0]}
            votes, cast = await self._votes(requirements, ids, parts, self.prompt, ledger)
        else:
            findings = await self._collect(requirements, ids, task, windows, ledger)
            parts = {**({"task": task} if task else {}), "findings": findings}
            votes, cast = await self._votes(requirements, ids, parts, shipped("agent_final"), ledger)
        plain = [_plain(text) for text in rendered]
        verdicts = [self._verdict(number, requirements[number - 1], votes, cast, plain) for number in ids]
        metadata = self._metadata(
            case,
            ledger,
            cast,
            verdicts=verdicts,
            steps_shown=len(steps),
            steps_total=len(steps),
            windows=len(windows),
        )
        return self.scored(verdicts, metadata)

    def scored(self, verdicts: list[dict[str, Any]], metadata: dict[str, Any]) -> Result:
        """The share of requirements that are satisfied; None while one is undecided."""
        satisfied = sum(verdict["satisfied"] is True for verdict in verdicts)
        missing = [verdict["requirement"] for verdict in verdicts if verdict["satisfied"] is False]
        if any(verdict["satisfied"] is None for verdict in verdicts):
            return Result(self.key, None, UNDECIDED, "the votes on a requirement are split", metadata)
        comment = f"{satisfied} of {len(verdicts)} requirements are satisfied"
        if missing:
            comment += f"; not: {'; '.join(text[:80] for text in missing[:3])}"
        return Result(self.key, satisfied / len(verdicts), satisfied, comment, metadata)

    def _requirements_of(self, case: Case) -> list[str]:
        if self.requirements is not None:
            return self.requirements
        found = case.inputs.get(self.requirements_key) if isinstance(case.inputs, dict) else None
        if found is None and case.example is not None:
            found = case.example.metadata.get(self.requirements_key)
        if found is None:
            raise CannotJudge(
                f"{self.key}: there are no requirements: give requirements=[…] or inputs[{self.requirements_key!r}]"
            )
        try:
            return _requirements(self.key, found)
        except RequestError as error:
            raise CannotJudge(str(error)) from None

    def _question_text(self, case: Case) -> str:
        if isinstance(case.inputs, dict) and self.question_key not in case.inputs:
            rest = {name: value for name, value in case.inputs.items() if name != self.requirements_key}
            case = msgspec.structs.replace(case, inputs=rest or None)
        return super()._question_text(case)

    async def _votes(
        self,
        requirements: list[str],
        ids: tuple[int, ...],
        parts: Mapping[str, str],
        prompt: Prompt,
        ledger: Ledger,
    ) -> tuple[list[list[dict[str, Any]] | JudgeFailure], list[Any]]:
        """The verdicts of every vote; requirements that a reply leaves out are asked about again."""

        async def one(number: int) -> tuple[list[dict[str, Any]] | JudgeFailure, Any]:
            found: dict[int, dict[str, Any]] = {}
            first: Any = None
            left = MOST_REQUESTS
            while left > 0:
                open_ = tuple(each for each in ids if each not in found)
                listed = "\n".join(f"{each}. {requirements[each - 1]}" for each in open_)
                question = self._ask(
                    Contract(
                        "verdicts",
                        open_,
                        evidence=True,
                        texts=tuple(requirements[each - 1] for each in open_),
                    ),
                    {"requirements": listed, **parts},
                    prompt=prompt,
                )
                try:
                    vote = await self.judge.ask_once(question, ledger, number, left)
                except JudgeFailure as failure:
                    return failure, failure
                first = first or vote
                left -= vote.requests
                for place, verdict in enumerate(vote.value):
                    if verdict["id"] in open_:
                        agrees = vote.parts[place] if vote.parts else None
                        found[verdict["id"]] = {**verdict, "consistent": agrees}
                if len(found) == len(ids):
                    return [found[each] for each in ids], first
            missing = next(each for each in ids if each not in found)
            incomplete = JudgeMalformed(
                f"{self.key}: the judge returned no verdict on requirement {missing}, even after a retry",
                requests=MOST_REQUESTS,
                model=self.settings.names[(number - 1) % len(self.settings.names)],
            )
            return incomplete, incomplete

        both = await gather_or_cancel(one(number) for number in range(1, self.judge.votes + 1))
        return [found for found, _ in both], [vote for _, vote in both]

    async def _collect(
        self, requirements: list[str], ids: tuple[int, ...], task: str, windows: list[str], ledger: Ledger
    ) -> str:
        """Collect what each window shows for each requirement: the text from which the last call decides."""
        listed = "\n".join(f"{each}. {requirements[each - 1]}" for each in ids)

        async def one(window: str) -> Vote:
            parts = {**({"task": task} if task else {}), "requirements": listed, "steps": window}
            question = self._ask(
                Contract("verdicts", ids, evidence=True), parts, prompt=shipped("agent_window")
            )
            return await self.judge.ask_once(question, ledger, check=False)

        votes = await gather_or_cancel(one(window) for window in windows)
        lines = []
        for place, vote in enumerate(votes, 1):
            lines.append(f"Part {place} of {len(windows)}:")
            for entry in vote.value:
                steps = ", ".join(map(str, entry["steps"])) or "none"
                lines.append(
                    f'Requirement {entry["id"]}: {entry["evidence"]} (steps: {steps}; quote: "{entry["quote"]}")'
                )
        return "\n".join(lines)

    def _verdict(
        self,
        number: int,
        requirement: str,
        votes: Sequence[list[dict[str, Any]] | JudgeFailure],
        cast: Sequence[Any],
        plain: Sequence[str],
    ) -> dict[str, Any]:
        """Decide one requirement by majority, with the evidence of the first vote for the decision."""
        mine: list[Any] = [
            vote
            if isinstance(vote, JudgeFailure)
            else msgspec.structs.replace(
                _vote_of(each),
                value=vote[number - 1]["satisfied"],
                consistent=vote[number - 1]["consistent"],
                parts=(),
            )
            for vote, each in zip(votes, cast, strict=True)
        ]
        decision = decide(mine, self.judge.votes, self.settings.majority)
        entries = [vote[number - 1] for vote in votes if not isinstance(vote, JudgeFailure)]
        shown = next((entry for entry in entries if entry["satisfied"] == decision.value), entries[0])
        out = {
            "requirement": requirement,
            "satisfied": decision.value,
            "evidence": shown["evidence"],
            "steps": shown["steps"],
            "quote": shown["quote"],
            "evidence_verified": verified(shown, plain),
        }
        if len(votes) > 1:
            out["share"] = sum(entry["satisfied"] for entry in entries) / len(entries)
            out["spread"] = decision.spread
        return out


def _vote_of(vote: Any) -> Vote:
    assert isinstance(vote, Vote)
    return vote


def verified(entry: Mapping[str, Any], plain: Sequence[str]) -> bool | None:
    """Whether the cited steps exist and one of them contains the quote; None if nothing is quoted."""
    steps, quote = set(entry["steps"]), _plain(entry["quote"])
    if not steps and not quote:
        return None
    if any(not 1 <= step <= len(plain) for step in steps):
        return False
    if not quote:
        return None
    places = [plain[step - 1] for step in steps] or plain
    return any(quote in text for text in places)


def _plain(text: str) -> str:
    """A text without case and runs of whitespace, in which quotes are looked for."""
    return " ".join(text.split()).casefold()


def _windows(rendered: Sequence[str], size: int) -> list[str]:
    """The steps in windows of whole steps; a step longer than a window is split, and nothing is left out."""
    windows: list[str] = []
    here = ""
    for text in rendered:
        pieces = [text]
        if len(text) > size:
            head = text.partition("\n")[0]
            body = text[len(head) + 1 :]
            cuts = [body[start : start + size] for start in range(0, len(body), size)]
            pieces = [f"{head} part {n} of {len(cuts)}\n{cut}" for n, cut in enumerate(cuts, 1)]
        for piece in pieces:
            if here and len(here) + len(piece) + 2 > size:
                windows.append(here)
                here = ""
            here = f"{here}\n\n{piece}" if here else piece
    return [*windows, here] if here else windows


def _requirements(who: str, given: Any) -> list[str]:
    if isinstance(given, str):
        given = [line for line in given.splitlines() if line.strip()]
    if not isinstance(given, Sequence) or not given or len(given) > MOST_REQUIREMENTS:
        raise RequestError(f"{who}: requirements must be a list of 1 to {MOST_REQUIREMENTS} texts")
    out = []
    for number, each in enumerate(given, 1):
        text = each.get("requirement", each.get("criteria")) if isinstance(each, Mapping) else each
        if not isinstance(text, str) or not text.strip():
            raise RequestError(f"{who}: requirement {number} must be non-empty text")
        out.append(text.strip())
    return out
