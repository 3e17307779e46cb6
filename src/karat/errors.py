"""What can go wrong, as types.

A message names the thing, the place and the remedy, in one sentence a person can act on.
`exit_code` is what the command line returns when the error reaches it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KaratError(Exception):
    """Anything karat raises on purpose."""

    exit_code = 2


class RequestError(KaratError):
    """The request was wrong: a bad configuration, an unknown name, a bad file. Nothing was started."""


class UnknownName(RequestError, LookupError):
    """A name under which nothing is known."""


class ConfigError(RequestError):
    """A configuration with one or more mistakes; all of them are listed, one to a line."""

    def __init__(self, problems: Iterable[str], where: str = "") -> None:
        self.problems = list(problems)
        head = f"{where}: " if where else ""
        if len(self.problems) == 1:
            super().__init__(head + self.problems[0])
        else:
            lines = "\n".join(f"  {problem}" for problem in self.problems)
            super().__init__(f"{head}{len(self.problems)} mistakes\n{lines}")


class DataError(RequestError):
    """A dataset that cannot be read as it stands."""


class UnsupportedType(RequestError):
    """A value that cannot be stored; the message says what can be done about it."""


class MissingDependency(RequestError):
    """An optional package is needed for this and is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: pip install 'karat[{extra}]'")


class CannotJudge(KaratError):
    """An evaluator cannot judge this item: no reference, a missing key, a value it cannot read.

    karat's evaluators raise it, they never return a score instead; the stage keeps it as a failed item.
    """

    exit_code = 1


FAILURES: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""What code that is not karat's may raise and be told for: also `sys.exit()`, which would end karat in silence."""


class NotApplicable(Exception):
    """Raised by an evaluator to say that an item is not its business: a skip that spoils nothing."""

    applicable: bool = False
    """True in a subclass: the item was its business, and the skip counts as a result that is missing."""


class Stopped(KaratError):
    """A stage cannot go on; everything finished is kept and the same command continues it."""

    exit_code = 3


class StoreError(Stopped):
    """The store cannot be read or written."""


class StoreRefused(RequestError):
    """The store is not one this karat may touch (foreign file, newer schema, no permission)."""


class StoreBusy(Stopped):
    """Another live process holds what was asked for."""


class CodeChanged(RequestError):
    """An unfinished run was made with other code than the one it would be continued with."""


class CredentialsRefused(Stopped):
    """A provider refused the key: no call of this stage can succeed."""


class BudgetReached(Stopped):
    """The next call could exceed the budget."""


class Aborted(KaratError):
    """`abort_on_error` was asked for and an item failed."""

    exit_code = 1


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names closest to a mistyped one."""
    known = list(known)
    lowered = {k.lower(): k for k in reversed(known)}
    close = difflib.get_close_matches(name.lower(), lowered, n=limit, cutoff=0.55)
    return [lowered[c] for c in close]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause for an error message: the nearest known names, or all of them when few."""
    known = sorted(known)
    close = nearest(name, known)
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    if not known:
        return "none is known"
    shown = ", ".join(known[:12])
    return f"known: {shown}{', …' if len(known) > 12 else ''}"
