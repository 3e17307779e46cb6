"""The core of all judges: send a question with fenced material to the judge's models and read their votes.

A vote takes at most three requests: the first, and retries with a repair, a larger token limit or the schema in the
prompt. After that it is an error. A failed vote is never a 0 and never left out: see `decide`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from karat.errors import CannotJudge, RequestError, Stopped, did_you_mean
from karat.evaluators.judges._replies import Contract, Malformed, is_copied, refuses, reply_schema_text
from karat.evaluators.judges._settings import LENGTH_FACTOR, MAX_TOKENS, JudgeSettings
from karat.models._limits import gather_or_cancel
from karat.records import Usage, add_usage

if TYPE_CHECKING:
    from karat.models import Reply

# Fences around untrusted text: a marker that the text cannot know, made from a secret key and the text itself.
#
# The marker is a keyed hash of the judge's fingerprint and all parts of the material. The key lies beside the reply
# cache, so repeating a judgment sends the same request and finds the kept reply; and no two texts share a marker.

_log = logging.getLogger("karat.judges")

KEY_BYTES = 32
_keys: dict[Path, bytes] = {}
_lock = threading.Lock()


def key_path() -> Path:
    """The file with the key: `judge.key` beside the reply cache."""
    from karat import models

    return models.cache_path().with_name("judge.key")


def fence_key() -> bytes:
    """The key of this user's fences; made on first use, readable by the owner alone."""
    path = key_path()
    with _lock:
        if path not in _keys:
            _keys[path] = _read(path) or _make(path)
        return _keys[path]


def _read(path: Path) -> bytes | None:
    try:
        text = path.read_text(encoding="ascii").strip()
        key = bytes.fromhex(text)
    except (OSError, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None


def _make(path: Path) -> bytes:
    """Write a new key; concurrent processes all use the key that was linked first."""
    key = secrets.token_bytes(KEY_BYTES)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(key.hex() + "\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            found = _read(path)
            if found is None:  # damaged: it protects nothing
                os.replace(draft, path)
                return key
            return found
        return key
    except OSError as error:
        _log.warning("%s cannot be written (%s): judgments of this process are not found again", path, error)
        return key
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def fence(fingerprint: str, parts: Mapping[str, str]) -> tuple[str, str]:
    """The material between its markers, and the marker."""
    digest = hashlib.blake2b(digest_size=8, key=fence_key())
    for text in (fingerprint, *(each for pair in parts.items() for each in pair)):
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    marker = digest.hexdigest()
    blocks = [
        f"[{marker} begin {name}]\n{_without(marker, text)}\n[{marker} end {name}]"
        for name, text in parts.items()
    ]
    return "\n\n".join(blocks), marker


def _without(marker: str, text: str) -> str:
    """A text in which the marker, in any case, is replaced; the regex is ten times as slow as the look before it."""
    if marker not in text.lower():
        return text
    return re.sub(re.escape(marker), "(marker removed)", text, flags=re.IGNORECASE)


T = TypeVar("T")

MOST_REQUESTS = 3
"""Requests for one vote: repairs, larger limits and fallbacks count, retries of HTTP failures do not."""

LONGEST_REPEATED = 8000
"""Characters of a malformed reply that are sent back with the request to repair it."""


class JudgeFailure(CannotJudge):
    """A judge that gave no usable verdict; each class is counted for itself, because failures are not random."""

    kind: ClassVar[str] = "failed"

    def __init__(self, message: str, *, requests: int = 0, raw: str | None = None, model: str = "") -> None:
        super().__init__(message)
        self.requests = requests
        self.raw = raw
        self.model = model

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that is stored beside the message."""
        out: dict[str, Any] = {"judge_failure": self.kind, "requests": self.requests, "model": self.model}
        if self.raw is not None:
            out["raw"] = self.raw[:LONGEST_REPEATED]
        return out


class JudgeMalformed(JudgeFailure):
    """The replies do not keep the contract, also after repairs."""

    kind = "malformed"


class JudgeTruncated(JudgeFailure):
    """The reply was cut off by max_tokens, also with the larger limit."""

    kind = "length"


class JudgeRefused(JudgeFailure):
    """The model refuses to judge."""

    kind = "refused"


class JudgeFiltered(JudgeFailure):
    """The provider withheld the reply."""

    kind = "filtered"


class JudgeEmpty(JudgeFailure):
    """The reply is empty, also without the provider's own structured output."""

    kind = "empty"


class JudgeContextOverflow(JudgeFailure):
    """The material does not fit into the context of the judge."""

    kind = "context"


class Question(msgspec.Struct, frozen=True):
    """One question to the judge: instructions that are the same for all texts, and the material of this one."""

    prompt: Prompt
    contract: Contract
    slots: dict[str, str]
    parts: dict[str, str]
    """The material by name. It is untrusted, and goes between markers."""

    def messages(self, fingerprint: str, in_words: bool = False) -> list[dict[str, str]]:
        """The conversation; the marker comes after all static instructions."""
        instructions = self.prompt.fill(self.contract, **self.slots)
        if in_words:
            instructions += "\n\n" + reply_schema_text(self.contract)
        material, marker = fence(fingerprint, self.parts)
        return [
            {"role": "system", "content": instructions},
            {"role": "user", "content": f"code: {marker}\n\n{material}"},
        ]


class Vote(msgspec.Struct, frozen=True):
    """One verdict of one model."""

    value: Any
    """What the contract's field says."""
    analysis: str
    model: str
    served_model: str
    requests: int
    usage: Usage
    reply: dict[str, Any]
    """Where the raw reply is: its number among the model calls of this judgment, and the hash of its text."""
    cached: bool = False
    consistent: bool | None = None
    """Whether the analysis supports the verdict; None where that was not checked."""
    parts: tuple[bool | None, ...] = ()
    """The same for each claim, requirement or criterion, where a vote is about several."""
    probabilities: dict[str, float] = {}
    """How probable each verdict was to the model, from the probabilities of tokens; empty where that is unknown."""


class Ledger:
    """The expenses of one judgment: request numbers, summed usage, and the models that were served."""

    def __init__(self) -> None:
        self.requests = 0
        self.usage = Usage(cost=0.0)
        self.served: dict[str, None] = {}
        self.prompts: dict[str, None] = {}

    def begin(self) -> int:
        """The number of the next request."""
        self.requests += 1
        return self.requests

    def add(self, reply: Reply) -> None:
        """Count a reply."""
        self.usage = add_usage({"": self.usage}, {"": reply.usage})[""]
        if reply.served_model:
            self.served[reply.served_model] = None


class Judge:
    """A judge that asks the models of its settings."""

    def __init__(self, settings: JudgeSettings, fingerprint: str) -> None:
        self.settings = settings
        self.fingerprint = fingerprint
        """What the markers depend on beside the material."""

    async def ask(
        self, question: Question, ledger: Ledger, decided: Callable[[Sequence[Any]], bool] | None = None
    ) -> list[Vote | JudgeFailure]:
        """All votes on a question, in order: each model's samples. `decided` ends an early-stopping poll."""
        settings = self.settings
        ledger.prompts[question.prompt.identity] = None
        plan = [(model, number) for number in range(1, settings.samples + 1) for model in settings.models]
        if settings.early_stop and decided is not None:
            votes: list[Vote | JudgeFailure] = []
            for model, number in plan:
                votes.append(await self._vote_or_failure(model, number, question, ledger))
                if decided(votes):
                    break
            return votes
        return await gather_or_cancel(
            self._vote_or_failure(model, number, question, ledger) for model, number in plan
        )

    async def ask_once(
        self,
        question: Question,
        ledger: Ledger,
        number: int = 1,
        most: int = MOST_REQUESTS,
        *,
        check: bool = True,
    ) -> Vote:
        """Cast one vote: the first vote of the first model, or the vote at another place in the order of votes.

        `check=False` skips the consistency check of the vote and overrides the settings.
        """
        ledger.prompts[question.prompt.identity] = None
        models = self.settings.models
        model, sample = models[(number - 1) % len(models)], (number - 1) // len(models) + 1
        return await self._vote(model, sample, question, ledger, most, check)

    @property
    def votes(self) -> int:
        """The number of votes on a question."""
        return self.settings.samples * len(self.settings.models)

    async def _vote_or_failure(
        self, model: Any, number: int, question: Question, ledger: Ledger
    ) -> Vote | JudgeFailure:
        try:
            return await self._vote(model, number, question, ledger)
        except JudgeFailure as failure:
            return failure

    async def _vote(
        self,
        model: Any,
        number: int,
        question: Question,
        ledger: Ledger,
        most: int = MOST_REQUESTS,
        check: bool = True,
    ) -> Vote:
        """Ask for one vote; its sample number is part of the cache key of each of its requests."""
        from karat.models._recording import sample

        token = sample.set(number)
        try:
            return await self._ask_for_vote(model, question, ledger, most, check)
        finally:
            sample.reset(token)

    async def _ask_for_vote(
        self, model: Any, question: Question, ledger: Ledger, most: int, check: bool
    ) -> Vote:
        """Ask for one vote in at most `most` requests."""
        from karat import models

        requests = 0
        limit, longer, in_words = self.reply_limit(model, question.contract), False, False
        messages = question.messages(self.fingerprint)
        reply_text, problem = "", ""
        place: dict[str, Any] = {"model": model.spec}
        while requests < most:
            requests += 1
            place["requests"] = requests
            call = ledger.begin()
            try:
                reply = await self._generate(model, messages, question.contract, limit, in_words)
            except models.ContextTooLong as error:
                raise JudgeContextOverflow(
                    f"the material is too long for the judge: {error}", **place
                ) from None
            except models.ContentFiltered as error:
                if isinstance(error, models.Refused) or refuses(error.raw or ""):
                    raise JudgeRefused(f"the judge refuses: {error}", raw=error.raw, **place) from None
                raise JudgeFiltered(str(error), raw=error.raw, **place) from None
            except models.EmptyAnswer as error:
                if "max_tokens" in str(error) and not longer:  # thinking has used it up
                    limit, longer = limit * LENGTH_FACTOR, True
                elif not in_words:
                    in_words = True
                    messages = question.messages(self.fingerprint, in_words=True)
                else:
                    raise JudgeEmpty(str(error), **place) from None
                problem = str(error)
                continue
            ledger.add(reply)
            reply_text = reply.text
            try:
                read = question.contract.read(reply_text)
                if is_copied(read["analysis"], question.parts):
                    raise Malformed("the verdict is copied from the material: judge the material yourself")
            except Malformed as error:
                problem = str(error)
                if reply.finish_reason in ("length", "max_tokens"):
                    context = getattr(model, "context_tokens", None)
                    if (
                        context is not None
                        and reply.usage.input_tokens + reply.usage.output_tokens >= context
                    ):
                        raise JudgeContextOverflow(
                            f"{model.spec}: the context of {context:,} tokens was full before the reply was complete",
                            raw=reply_text,
                            **place,
                        ) from None
                    if longer:
                        raise JudgeTruncated(
                            f"{model.spec}: the reply is cut off at {limit} tokens: raise max_tokens of the judge",
                            raw=reply_text,
                            **place,
                        ) from None
                    limit, longer = limit * LENGTH_FACTOR, True
                    continue
                messages = [
                    *question.messages(self.fingerprint, in_words=in_words),
                    *_repair(reply_text, problem),
                ]
                continue
            refusal = next(filter(refuses, (read["analysis"], reply_text)), None)
            if refusal is not None:
                raise JudgeRefused(
                    f"{model.spec} refuses to judge: {refusal.strip()[:200]}",
                    raw=reply_text,
                    **place,
                )
            vote = Vote(
                value=read[question.contract.field],
                analysis=read["analysis"],
                model=model.spec,
                served_model=reply.served_model,
                requests=requests,
                usage=reply.usage,
                reply={"call": call, "hash": hashlib.blake2b(reply_text.encode(), digest_size=8).hexdigest()},
                cached=reply.cached,
                probabilities=question.contract.probabilities(reply.logprobs, read[question.contract.field]),
            )
            if check and self.settings.check_consistency and requests < most:
                return await self._check_vote(model, question, vote, ledger)
            return vote
        if refuses(reply_text):
            raise JudgeRefused(
                f"{model.spec} refuses to judge: {reply_text.strip()[:200]}", raw=reply_text, **place
            )
        if not reply_text:
            raise JudgeEmpty(problem, **place)
        raise JudgeMalformed(
            f"{model.spec}: no usable verdict in {requests} requests: {problem}", raw=reply_text, **place
        )

    def reply_limit(self, model: object, contract: Contract) -> int:
        """The first limit of a reply in tokens: that of the settings, else one that has room for every entry."""
        return self.settings.max_tokens or contract.reply_tokens(MAX_TOKENS, _follows_grammar(model))

    @property
    def context_tokens(self) -> int | None:
        """The smallest context of the models that vote; None if none is known."""
        known = [getattr(model, "context_tokens", None) for model in self.settings.models]
        return min((each for each in known if each is not None), default=None)

    async def _generate(
        self, model: Any, messages: list[dict[str, str]], contract: Contract, limit: int, in_words: bool
    ) -> Any:
        from karat.models._structured import UncheckedSchema

        options: dict[str, Any] = {"max_tokens": limit, **self.settings.options}
        if not in_words:
            options["schema"] = UncheckedSchema(contract.schema(bounded=_follows_grammar(model)))
        return await model.generate(messages, **options)

    async def _check_vote(self, model: Any, question: Question, vote: Vote, ledger: Ledger) -> Vote:
        """The vote, with whether another reading of its analysis gives the same verdict, or the same for each part."""
        from karat import models

        if question.contract.field in ("claims", "verdicts"):
            if not vote.value:
                return vote
            check = _parts_check(question, vote)
        else:
            check = _whole_check(question, vote)
        ledger.prompts[check.prompt.identity] = None
        call = ledger.begin()
        read: Any = None
        try:
            reply = await self._generate(
                model,
                check.messages(self.fingerprint),
                check.contract,
                self.reply_limit(model, check.contract),
                False,
            )
            ledger.add(reply)
            read = check.contract.read(reply.text)[check.contract.field]
        except (Malformed, models.ContentFiltered, models.EmptyAnswer, models.ContextTooLong):
            pass  # its consistency is unknown, so the vote counts
        consistent: bool | None = None
        parts: tuple[bool | None, ...] = ()
        if check.contract.field == "choice":
            own = str(vote.value) if not isinstance(vote.value, bool) else "pass" if vote.value else "fail"
            consistent = None if read in (None, "unclear") else read == own
        elif read is not None:
            verdicts = [{0: False, 2: True}.get(each["score"]) for each in read]
            own_parts = [_holds(each) for each in vote.value]
            parts = tuple(
                None if one is None or other is None else one == other
                for one, other in zip(verdicts, own_parts, strict=True)
            )
            consistent = False if False in parts else True if True in parts else None
        return msgspec.structs.replace(
            vote,
            consistent=consistent,
            parts=parts,
            requests=vote.requests + 1,
            reply={**vote.reply, "consistency_call": call},
        )


def _follows_grammar(model: Any) -> bool:
    return bool(getattr(model, "follows_grammar", False))


def _whole_check(question: Question, vote: Vote) -> Question:
    """Return the verdict that the analysis of a vote supports."""
    values = (
        ["pass", "fail"]
        if question.contract.field == "pass"
        else [str(each) for each in question.contract.values]
    )
    about = [
        "\nWhat was judged:",
        question.slots.get("criterion", ""),
        question.slots.get("scale", ""),
    ]
    return Question(
        shipped("consistency"),
        Contract("choice", (*values, "unclear"), recover=question.contract.field == "pass"),
        {"choices": ", ".join([*values, "unclear"]), "criterion": "\n".join(about)},
        {"analysis": vote.analysis},
    )


def _parts_check(question: Question, vote: Vote) -> Question:
    """Return which of several statements (claims, requirements, criteria) the analysis of a vote supports."""
    numbers = tuple(str(number) for number in range(1, len(vote.value) + 1))
    statements, notes = [], [vote.analysis]
    for number, part in zip(numbers, vote.value, strict=True):
        if "claim" in part:
            text = f"The source supports: {part['claim']}"
        elif "satisfied" in part:
            required = dict(zip(question.contract.values, question.contract.texts, strict=False))
            text = f"The requirement is satisfied: {required.get(part['id'], part['id'])}"
            notes.append(f"{number}: {part['evidence']}")
        else:
            text = f"The criterion {part['criterion']!r} is satisfied."
            notes.append(f"{number}: {part['analysis']}")
        statements.append(f"{number}. {text}")
    scale = {
        0: "the text concludes that it does not hold",
        1: "unclear",
        2: "the text concludes that it holds",
    }
    return Question(
        shipped("consistency_parts"),
        Contract("verdicts", numbers, scale=tuple(scale)),
        {"criterion": "", "scale": scale_text(scale)},
        {"statements": "\n".join(statements), "analysis": "\n".join(note for note in notes if note)},
    )


def _holds(part: Mapping[str, Any]) -> bool | None:
    """Whether a part of a vote is positive; None for a grade, which is neither, and for an undecided claim."""
    for name in ("supported", "satisfied", "pass"):
        if name in part:
            verdict: bool | None = part[name]
            return verdict
    return None


def part_of(vote: Vote, place: int, value: object, **changes: Any) -> Vote:
    """A vote on one part of what a vote is about; it contradicts its analysis only where that part does."""
    consistent = vote.parts[place] if place < len(vote.parts) else None
    return msgspec.structs.replace(vote, value=value, consistent=consistent, parts=(), **changes)


def _repair(reply: str, problem: str) -> list[dict[str, str]]:
    return [
        {"role": "assistant", "content": reply[:LONGEST_REPEATED]},
        {
            "role": "user",
            "content": f"This reply cannot be used: {problem}. Judge the same material again by the same instructions"
            " and reply with one JSON object in the form asked for, and nothing else.",
        },
    ]


# ---------------------------------------------------------------- from votes to a verdict


class Decision(msgspec.Struct, frozen=True):
    """The outcome of a vote: the value with a majority, or None if there is no majority."""

    value: Any
    share: float
    """The share of the winning value among all votes; of pass, for pass and fail."""
    spread: float
    """How far the votes differ: 0 where all agree, 1 where they are split evenly (or span the whole scale)."""
    counts: dict[str, int]
    abstained: int


def decide(votes: Sequence[Vote | JudgeFailure], planned: int, majority: float) -> Decision:
    """Return the value that more than `majority` of all planned votes have.

    A failed vote is neither dropped nor counted for a value. If the other votes have a majority without it, they
    decide; otherwise the failure is raised. A vote that contradicts its own analysis is an abstention.
    """
    failures = [vote for vote in votes if isinstance(vote, JudgeFailure)]
    cast = [vote for vote in votes if isinstance(vote, Vote)]
    valid = [vote.value for vote in cast if vote.consistent is not False]
    counts = Counter(map(_hashable, valid))
    total = max(planned, len(votes))
    best, most = (counts.most_common(1) or [(None, 0)])[0]
    won = most > majority * total
    if failures and not won:
        raise failures[0]
    considered = len(cast)
    share = most / considered if considered else 0.0
    return Decision(
        value=best if won else None,
        share=share,
        spread=split(counts, considered),
        counts={_name(value): count for value, count in counts.items()},
        abstained=len(cast) - len(valid),
    )


def is_decided(majority: float, planned: int) -> Callable[[Sequence[Any]], bool]:
    """Return a test of whether the remaining votes can no longer change the decision."""

    def decided(votes: Sequence[Vote | JudgeFailure]) -> bool:
        counts = Counter(
            _hashable(vote.value) for vote in votes if isinstance(vote, Vote) and vote.consistent is not False
        )
        most = max(counts.values(), default=0)
        return most > majority * planned or most + planned - len(votes) <= majority * planned

    return decided


def split(counts: Mapping[Any, int], total: int) -> float:
    """1 − Σ shares², scaled so that an even split of two values is 1."""
    if not total:
        return 0.0
    return min(1.0, 2.0 * (1.0 - sum((count / total) ** 2 for count in counts.values())))


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, bool, float)) else msgspec.json.encode(value).decode()


def _name(value: Any) -> str:
    return {True: "pass", False: "fail"}[value] if isinstance(value, bool) else str(value)


STOPS = (Stopped, asyncio.CancelledError, KeyboardInterrupt)


def choice_name(who: str, value: object) -> str:
    """A choice as text: `True` is what YAML made of yes, `False` of no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, (int, float)):
        return f"{value:g}"
    raise RequestError(f"{who}: a choice must be text, not {value!r}: put it in quotes")


# Prompt templates: versioned files, filled with trusted settings only. Judged text never enters a template.


SLOTS = ("criterion", "scale", "choices", "common", "examples", "reply")
MATERIAL = ("question", "answer", "reference", "context", "input", "output", "expected")
_SLOT = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Prompt(msgspec.Struct, frozen=True):
    """A template with its version; `identity` is what the fingerprint holds."""

    name: str
    version: str
    text: str

    @property
    def identity(self) -> str:
        """Name, version and hash of the text: `criterion/1 3f2a…`."""
        digest = hashlib.blake2b((self.text + _common().text).encode(), digest_size=6).hexdigest()
        return f"{self.name}/{self.version} {digest}"

    def fill(self, contract: Contract, **slots: str) -> str:
        """The instructions: everything that is the same for all judged texts."""
        values = {"common": _common().text.strip(), "reply": reply_instructions(contract), **slots}
        text = _SLOT.sub(lambda match: values.get(match[1], ""), self.text)
        return re.sub(r"\n{3,}", "\n\n", text).strip()


@lru_cache(maxsize=64)
def shipped(name: str) -> Prompt:
    """A template that comes with karat."""
    text = files("karat.evaluators.judges").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")
    head, _, body = text.partition("\n---\n")
    return Prompt(name, head.removeprefix("version:").strip(), body.strip() + "\n")


def _common() -> Prompt:
    return shipped("common")


def prompt_of(who: str, given: str | None, name: str) -> Prompt:
    """The user's own template, as text or as a path, or the shipped one.

    The rules for reading the material and the form of the reply are added where a template leaves them out.
    """
    if given is None:
        return shipped(name)
    if not isinstance(given, str) or not given.strip():
        raise RequestError(f"{who}: prompt must be a text or the path of a file")
    text, label = given, "own"
    if "\n" not in given and len(given) < 500 and given.strip().endswith((".md", ".txt")):
        path = Path(given).expanduser()
        try:
            text, label = path.read_text(encoding="utf-8"), path.stem
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"{who}: the prompt {given} cannot be read: {type(error).__name__}") from None
    version, head, body = "own", *_split(text)
    if head:
        version, text = head, body
    for slot in _SLOT.findall(text):
        if slot in MATERIAL:
            raise RequestError(
                f"{who}: the prompt has {{{{{slot}}}}}: judged text is added after the prompt, between markers;"
                f" write 'the {slot}' instead"
            )
        if slot not in SLOTS:
            raise RequestError(f"{who}: the prompt has {{{{{slot}}}}}: {did_you_mean(slot, SLOTS)}")
    for slot in ("common", "reply"):
        if slot not in _SLOT.findall(text):
            text += f"\n\n{{{{{slot}}}}}"
    return Prompt(label, version, text)


def _split(text: str) -> tuple[str, str]:
    head, line, body = text.partition("\n---\n")
    return (
        (head.removeprefix("version:").strip(), body) if line and head.startswith("version:") else ("", text)
    )


def reply_instructions(contract: Contract) -> str:
    """The form of the reply in words; providers that can be held to a schema are held to it as well."""
    shape: dict[str, Any] = {"analysis": "what decides, in a few sentences"}
    if contract.field == "pass":
        form = '{"analysis": "…", "pass": true or false}'
        rest = '"pass" is true if the criterion is satisfied and false otherwise.'
    elif contract.field == "score":
        form = '{"analysis": "…", "score": ' + " or ".join(map(str, contract.values)) + "}"
        rest = '"score" is a whole number of the scale above.'
    elif contract.field == "choice":
        form = (
            '{"analysis": "…", "choice": '
            + " or ".join(json.dumps(c, ensure_ascii=False) for c in contract.values)
            + "}"
        )
        rest = '"choice" is exactly one of the choices.'
    elif contract.field == "claims":
        form = '{"analysis": "…", "claims": [{"claim": "…", "supported": true or false}, …]}'
        rest = '"claims" has one entry for each claim; it is [] if there is none.'
    elif contract.labels:
        labels = " or ".join(json.dumps(label, ensure_ascii=False) for label in contract.labels)
        form = '{"analysis": "…", "verdicts": [{"analysis": "…", "id": 1, "label": ' + labels + "}, …]}"
        numbers = ", ".join(map(str, contract.values))
        rest = f'"verdicts" has exactly one entry for each of the items {numbers}; "id" is the number of the item.'
    elif contract.evidence:
        form = (
            '{"analysis": "…", "verdicts": [{"evidence": "…", "id": 1, "quote": "…", "satisfied": true or false,'
            ' "steps": [2, 3]}, …]}'
        )
        rest = '"verdicts" has exactly one entry for each requirement.'
    else:
        verdict = (
            '"score": ' + " or ".join(map(str, contract.scale)) if contract.scale else '"pass": true or false'
        )
        form = '{"analysis": "…", "verdicts": [{"analysis": "…", "criterion": "…", ' + verdict + "}, …]}"
        rest = f'"verdicts" has exactly one entry for each criterion: {", ".join(map(str, contract.values))}.'
    return (
        f'Reply with one JSON object and nothing else, in this form:\n{form}\n"analysis" says {shape["analysis"]}.'
        f" {rest}"
    )


def scale_text(anchors: Mapping[int, str]) -> str:
    """The anchored integers of a graded score."""
    return "\nScale:\n" + "\n".join(f"{number}: {text}" for number, text in anchors.items()) + "\n"


def examples_text(examples: Sequence[Mapping[str, Any]], field: str) -> str:
    """Worked examples that the user wrote; they are part of the instructions."""
    if not examples:
        return ""
    lines = ["\nExamples of verdicts:"]
    for number, example in enumerate(examples, 1):
        lines.append(f"Example {number}:")
        for name, value in example.items():
            if name not in ("analysis", field):
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
                lines.append(f"{name}: {text}")
        reply = {"analysis": example.get("analysis", ""), field: example.get(field)}
        lines.append(f"Reply: {json.dumps(reply, ensure_ascii=False, default=str)}")
    return "\n".join(lines) + "\n"
