"""What a fake provider does with a request: which answer, which failure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from karat.errors import RequestError, did_you_mean

WAYS = ("drop", "truncate")
"""Ways to fail without a status."""

Answers = str | Callable[[dict[str, Any]], Any] | Mapping[str, Any] | Iterable[Any] | None
"""One text; a function of the request body; texts by last user message; texts by request number; None: an echo.

An answer is a text, or `{text, tool_calls, finish_reason, usage, raw}`, of which `raw` is sent as it is.
"""


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """A way to fail: with a status, by dropping the connection, or by cutting the body short."""

    status: int | None = None
    message: str = "injected failure"
    code: str = "injected"
    headers: dict[str, str] = {}
    drop: bool = False
    truncate: bool = False
    body: str | None = None
    """Sent instead of an error body, or, without a status, instead of an answer."""


class Script:
    """Answers and failures, decided from the request alone: the same requests fail however they are ordered."""

    def __init__(
        self,
        answers: Answers = None,
        rates: Mapping[str, float] | None = None,
        failures: Mapping[int, Failing | int] | None = None,
        seed: int = 0,
    ) -> None:
        self.answers = (
            answers
            if answers is None or isinstance(answers, (str, Mapping)) or callable(answers)
            else list(answers)
        )
        self.rates = _checked_rates(rates or {})
        self.failures = dict(_checked_failure(*each) for each in (failures or {}).items())
        self.seed = seed

    def failure(self, number: int, body: bytes, asked: int) -> Failing | None:
        """The failure of request `number`, whose body is asked for the `asked`-th time; None for an answer."""
        if number in self.failures:
            return self.failures[number]
        if not self.rates:
            return None
        digest = hashlib.blake2b(body, digest_size=8, key=f"{self.seed}:{asked}".encode()).digest()
        draw = int.from_bytes(digest, "big") / 2**64
        for way, rate in self.rates.items():
            if draw < rate:
                return _way(way)
            draw -= rate
        return None

    def answer(self, number: int, body: dict[str, Any]) -> Any:
        """The answer to a request."""
        answers = self.answers
        if answers is None:
            return last_user_text(body)
        if isinstance(answers, str):
            return answers
        if callable(answers):
            return answers(body)
        if isinstance(answers, Mapping):
            text = last_user_text(body)
            return answers[text] if text in answers else answers.get("", text)
        listed: Any = answers
        return listed[min(number, len(listed)) - 1]


def _way(name: str) -> Failing:
    if name in WAYS:
        return Failing(drop=name == "drop", truncate=name == "truncate")
    return Failing(status=int(name))


def _checked_rates(rates: Mapping[Any, float]) -> dict[str, float]:
    """The shares by way; one that cannot be meant would otherwise be a test that tests nothing."""
    for way, rate in rates.items():
        if str(way) not in WAYS and not _is_status(way):
            raise RequestError(
                f"rates cannot fail by {way!r}: {did_you_mean(str(way), WAYS)}, or a status from 300 to 599"
            )
        if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not 0 <= rate <= 1:
            raise RequestError(f"rates[{way!r}] is {rate!r}: a share from 0 to 1 is expected")
    if sum(rates.values()) > 1 + 1e-9:
        raise RequestError(
            f"rates add up to {sum(rates.values()):g}: at most 1, which is every request, is expected"
        )
    return {str(way): rate for way, rate in rates.items()}


def _checked_failure(number: Any, way: Any) -> tuple[int, Failing]:
    """The request number, which JSON has as a text, and how it fails."""
    if isinstance(number, bool) or not str(number).isdecimal() or int(number) < 1:
        raise RequestError(f"failures has the request number {number!r}: they are counted from 1")
    if isinstance(way, Failing):
        return int(number), way
    if not isinstance(way, int) or not _is_status(way):
        raise RequestError(
            f"failures[{number}] is {way!r}: a status from 300 to 599, or Failing(…), is expected"
        )
    return int(number), Failing(status=way)


def _is_status(way: Any) -> bool:
    return not isinstance(way, bool) and str(way).isdecimal() and 300 <= int(way) <= 599


def last_user_text(body: Mapping[str, Any]) -> str:
    """The text of the last user message of a request."""
    for message in reversed(body.get("messages") or []):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            return "".join(part.get("text") or "" for part in content or () if isinstance(part, dict))
    return ""
