"""The failures of model calls, as types that say whether a retry may help.

`CredentialsRefused` and `BudgetReached` (in `karat.errors`) stop a stage; everything here is the failure of
one call, and so of one item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from karat.errors import CredentialsRefused, KaratError, RequestError, Stopped

if TYPE_CHECKING:
    from karat.models.providers import Tokens

LONGEST_MESSAGE = 600
"""Characters kept of what a provider says: its text is untrusted, and a page of HTML does not help."""

LONGEST_RAW = 100_000
"""Characters kept of an answer that did not fit."""


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed request, and the wait before the next."""

    error: str
    message: str
    seconds: float = 0.0
    waited: float = 0.0
    status: int | None = None


class ModelFailure(KaratError):
    """A call without a usable answer; `attempts` lists every request that was made for it."""

    exit_code = 1
    retried: ClassVar[bool] = False
    most: int | None = None
    """How often this kind is asked again, where that is less than the limit for all kinds."""
    charged: bool = False
    """Whether the provider may charge for it: it answered uselessly, or perhaps answered and nothing arrived."""

    def __init__(
        self, message: str, *, status: int | None = None, wait: float | None = None, raw: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.wait = wait
        """Seconds the provider asked us to wait."""
        self.raw = raw if raw is None else raw[:LONGEST_RAW]
        """The answer as it came, where there was one."""
        self.attempts: list[Attempt] = []
        self.tokens: Tokens | None = None
        """What the provider counted for an answer that cannot be used."""
        self.lost = self.charged
        """Whether a charge may be missing from the counts."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of a stored failure: the attempts and the raw answer."""
        out: dict[str, Any] = {}
        if self.attempts:
            out["attempts"] = [msgspec.to_builtins(attempt) for attempt in self.attempts]
        if self.raw is not None:
            out["raw"] = self.raw
        return out


class ConnectionRefused(ModelFailure):
    """No server answers at that address."""

    retried = True
    most = 3


class CertificateRejected(ConnectionRefused):
    """The server's certificate is not accepted, and will not be when it is asked again."""

    most = 0


class ConnectionDropped(ModelFailure):
    """The connection ended before an answer came."""

    retried = True
    charged = True


class TimedOut(ModelFailure):
    """No answer within the time allowed."""

    retried = True
    most = 2
    charged = True


class RateLimited(ModelFailure):
    """429: too many requests or tokens for now."""

    retried = True


class ServerFailed(ModelFailure):
    """408, 409 or 5xx: the provider could not answer now."""

    retried = True


class BrokenBody(ModelFailure):
    """The response body is truncated or does not follow the wire format."""

    retried = True
    most = 5
    charged = True


class InvalidText(ModelFailure):
    """The reply holds a lone surrogate, which is not text: it can be neither stored nor shown."""

    charged = True


class BadRequest(ModelFailure):
    """4xx: the request is wrong, and stays wrong when it is sent again."""


class ParameterRefused(Stopped, RequestError):
    """The model does not accept a parameter. It would refuse it for every record: the stage stops, nothing fails."""

    exit_code = 2


class ContextTooLong(BadRequest):
    """The messages do not fit into what the model can read."""


class ContentFiltered(ModelFailure):
    """The provider withheld the answer, or refused the question."""

    charged = True


class Refused(ContentFiltered):
    """The model, or a classifier of its provider, refused to answer; `raw` is its reply."""


class IncompleteAnswer(ModelFailure):
    """The model paused in the middle of its turn: the text so far is not an answer."""

    charged = True
    paused: dict[str, Any] | None = None
    """The body of the paused turn. The service sends it back so that the model continues."""


class EmptyAnswer(ModelFailure):
    """The reply has neither text nor tool calls."""

    charged = True


class SchemaMismatch(ModelFailure):
    """Neither the reply nor its repair fits the schema; `raw` is the text of the last one."""

    charged = True
    problem = ""
    """What does not fit, without who was asked: that may be an address, which is no business of a model's."""


class QuotaExhausted(CredentialsRefused):
    """The account behind the key has no credit left: no call of this stage can succeed."""


def one_line(text: str, limit: int = LONGEST_MESSAGE) -> str:
    """A provider's text as one bounded, printable line."""
    printable = "".join(c if c.isprintable() else " " for c in text[: limit * 4])
    line = " ".join(printable.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
