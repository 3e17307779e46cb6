"""Exception types, and the texts that error messages share: near names, articles, the place of an error.

A message has the problem, the place and the fix, in one sentence. The fix is in the words of the caller: `option` and
`wording` write `--new` for the command line and `new=True` for Python. `exit_code` is the exit code of the command
line.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pathlib import Path  # takes a tenth of `karat --help`

P = ParamSpec("P")
T = TypeVar("T")


class KaratError(Exception):
    """Base class of karat's exceptions."""

    exit_code = 2


class RequestError(KaratError):
    """The request was wrong: an invalid configuration, an unknown name, a bad file. No work was started."""


class UnknownName(RequestError, LookupError):
    """A name that is not registered or stored."""


class ConfigError(RequestError):
    """An invalid configuration; the message lists all errors, one per line."""

    def __init__(self, problems: Iterable[str], where: str = "") -> None:
        self.problems = list(problems)
        self.where = where
        head = f"{where}: " if where else ""
        if len(self.problems) == 1:
            super().__init__(head + self.problems[0])
        else:
            lines = "\n".join(f"  {problem}" for problem in self.problems)
            super().__init__(f"{head}{len(self.problems)} errors\n{lines}")


class DataError(RequestError):
    """A dataset that cannot be read."""


class UnsupportedType(RequestError):
    """A value that cannot be stored; the message has the fix."""


class TookTooLong(RequestError):
    """An answer that was given up because it took too long; the message says how to ask for less."""


class MissingDependency(RequestError):
    """A required optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: pip install 'karat[{extra}]'")


class CannotJudge(KaratError):
    """An evaluator cannot judge this item: no reference, a missing key, a value it cannot read.

    Evaluators raise it instead of returning a score; the stage stores a failed result.
    """

    exit_code = 1


FAILURES: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""Exceptions caught from user code. `sys.exit()` is included because it would end karat silently."""


class NotApplicable(Exception):
    """Raised by an evaluator for an item that it does not apply to: the result is skipped, not missing."""

    applicable: bool = False
    """True in a subclass: the evaluator applies to the item, and the skipped result counts as missing."""


class Stopped(KaratError):
    """A stage cannot continue; finished items are stored and the same command resumes it."""

    exit_code = 3


class StoreError(Stopped):
    """The store cannot be read or written."""


class DiskFull(Stopped):
    """An output cannot be written because its file system, or a quota of it, is full; the store is untouched."""


class CacheError(Stopped):
    """The cache of replies cannot be used, so no answer could be kept."""


class StoreRefused(RequestError):
    """The store cannot be used: not a karat store, a newer schema, or no permission."""


class StoreBusy(Stopped):
    """Another process is using the same item."""


class CodeChanged(RequestError):
    """The code of an unfinished run has changed since it started."""


class CredentialsRefused(Stopped):
    """A provider rejected the API key."""


class BudgetReached(Stopped):
    """The next call could exceed the budget."""


class Aborted(KaratError):
    """An item failed and `abort_on_error` is set."""

    exit_code = 1


_for_command_line = False


@contextmanager
def for_command_line() -> Iterator[None]:
    """Write the messages made in this block for a person at the command line, not for a caller in Python.

    Process-wide, because a stage makes its messages in other threads too.
    """
    global _for_command_line
    before, _for_command_line = _for_command_line, True
    try:
        yield
    finally:
        _for_command_line = before


def wording(command_line: str, python: str) -> str:
    """The text for the command line or that for Python, whichever called."""
    return command_line if _for_command_line else python


def option(name: str, value: str | int | bool | None = None) -> str:
    """An option in a message: `--limit N` for the command line, `limit=N` for Python; `--new` and `new=True`.

    A value in capitals stands for one that the caller chooses. Without a value, the option is only named.
    """
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is True:
        return wording(flag, name if value is None else f"{name}=True")
    chosen = isinstance(value, str) and value.isupper()
    return wording(f"{flag} {value}", f"{name}={value if chosen else repr(value)}")


def wait_or_new() -> str:
    """Name the options for a run or an evaluation that another process holds."""
    return f"{option('wait', True)} or {option('new', True)}"


def refuse_nul(path: object) -> None:
    """Raise RequestError for a path or an address with a NUL, of which the system says only `embedded null byte`."""
    if "\0" in str(path):
        raise RequestError(f"{str(path)!r} cannot be used: a path or an address cannot contain NUL")


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names closest to a mistyped one."""
    known = list(known)
    lowered = {k.lower(): k for k in reversed(known)}
    import difflib  # only for messages

    close = difflib.get_close_matches(name.lower(), lowered, n=limit, cutoff=0.65)
    return [lowered[c] for c in close]


def near_file(path: Path, beside: Iterable[str]) -> str:
    """`: did you mean 'qa.jsonl'?` for a file that does not exist, by the names beside it; nothing where none is near.

    An ending in common is no likeness.
    """
    stems: dict[str, list[str]] = {}
    for name in sorted(beside):
        stems.setdefault(f"{os.path.splitext(name)[0]}.", []).append(
            name
        )  # the dot: short names differ by a letter
    close = [name for stem in nearest(f"{path.stem}.", stems) for name in stems[stem]]
    close.sort(key=lambda name: os.path.splitext(name)[1] != path.suffix)  # the same ending first
    return (
        f": did you mean {' or '.join(repr(str(path.parent / name)) for name in close[:2])}?" if close else ""
    )


MOST_KNOWN = 30
"""Names that an error message lists where none is near the unknown one."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause for an error message: the nearest known names, or all of them when few."""
    known = sorted(known)
    close = nearest(name, known)
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    if not known:
        return "none are known"
    shown = ", ".join(known[:MOST_KNOWN])
    return f"known: {shown}{', …' if len(known) > MOST_KNOWN else ''}"


def field_name(name: object) -> str:
    """The name of a field in a list of names: quoted where it could not be told from the list."""
    text = str(name)[:40]
    return text if text and text == text.strip() and "," not in text else repr(text)


def with_article(noun: str) -> str:
    """A noun with its article: "an int", "a list"."""
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def plural(count: int, noun: str, several: str = "") -> str:
    """`1 example`, `3 examples`; `several` is a plural without `s`, such as `replies`."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def clip(value: object, limit: int = 60) -> str:
    """A value quoted for a message: short, on one line, control characters escaped."""
    if isinstance(value, str):
        return repr(value if len(value) <= limit else value[:limit] + "…")
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits, a value that contains itself, a foreign `repr`
        return f"{with_article(type(value).__name__)} too large to show"
    return text if len(text) <= limit else text[:limit] + "…"


def unknown_metadata(field: str, known: Collection[str]) -> str:
    """A metadata field that no example has."""
    near = did_you_mean(field, known) if known else "the examples have no metadata"
    return f"no example has the metadata field {field!r}: {near}"


def unknown_key(name: str, known: Collection[str]) -> str:
    """An unknown key of a mapping: the nearest known key, or the place of parameters where the mapping has one."""
    if "params" in known and not nearest(name, known):
        return f"unknown key: write parameters as params: {{{name}: …}}; {did_you_mean(name, known)}"
    return f"unknown key: {did_you_mean(name, known)}"


def where_raised(error: BaseException) -> str:
    """The innermost frames of an error outside karat, the user's own first: file name, line, function.

    Frames of the modules that start threads and run coroutines are left out: they are the same for every error.
    """
    import traceback

    karat, libraries, machinery = _library_folders()
    left_out = (karat, *machinery)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(left_out)]
    frames.reverse()
    own = [f for f in frames if not f.filename.startswith(libraries) and "site-packages" not in f.filename]
    shown = own[:2] + [frame for frame in frames if frame not in own[:2]][: 3 - len(own[:2])]
    return " < ".join(f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in shown)


@functools.cache
def _library_folders() -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The folder of karat, those of Python's library and of packages, and what in the library calls other code."""
    import sysconfig

    schemes = ("stdlib", "platstdlib", "purelib", "platlib")
    karat = os.path.dirname(os.path.realpath(__file__))
    library = sysconfig.get_path("stdlib")
    machinery = (os.path.join("asyncio", ""), os.path.join("concurrent", "futures", ""), "threading.py")
    return (
        karat,
        ("<frozen", *{sysconfig.get_path(name) for name in schemes}),
        tuple(os.path.join(library, each) for each in machinery),
    )


def message_of(error: BaseException) -> str:
    """The message of an exception; that it cannot be read where `__str__`, which is user code, raises."""
    try:
        return str(error)
    except Exception as broken:
        return f"(its message cannot be read: {type(broken).__name__})"


def is_cancelled() -> bool:
    """Whether the current asyncio task is being cancelled: user code may also raise CancelledError by itself."""
    import asyncio

    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False  # in a thread
    return task is not None and task.cancelling() > 0


def for_thread(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose thread a coroutine waits for: StopIteration becomes a RuntimeError, as it does in coroutines.

    A future refuses StopIteration, and what waits for it would wait for ever (CPython 3.11).
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration").with_traceback(
                error.__traceback__
            ) from error

    return call


def failed_import(what: object, error: BaseException) -> RequestError:
    """The error for a module whose import raised, with the line of the user's own code that did."""
    # A syntax error names its line.
    place = "" if isinstance(error, SyntaxError) else where_raised(error).partition(" ")[0]
    return RequestError(
        f"importing {what} failed{f' at {place}' if place else ''}: {type(error).__name__}: {error}"
    )
