"""What a command says: one text or one JSON document on stdout; progress, notices and errors on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

if TYPE_CHECKING:
    from karat.errors import KaratError
    from karat.execution.progress import Progress

LONGEST_ERROR = 4000


class Terminal:
    """The two streams of a command, and how it was asked to speak."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self._out = _tolerant(sys.stdout)
        self._err = _tolerant(sys.stderr)
        if as_json:
            sys.stdout = self._err  # what a task prints must not stand in the document
        self._line: Any = None
        self._last: Progress | None = None

    def show(self, document: Any, text: str | Callable[[], str]) -> None:
        """The answer of a command: the document where JSON was asked for, else the text."""
        if self.as_json:
            # ASCII, so that nothing in it can steer the terminal it is shown on.
            self.write(json.dumps(_plain(document), indent=2, allow_nan=False) + "\n")
        else:
            self.write((text() if callable(text) else text).rstrip("\n") + "\n")

    def write(self, text: str) -> None:
        """Text on stdout. When its reader has gone, the command goes on without one: its work is kept."""
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            self.reader_gone()

    @property
    def binary(self) -> BinaryIO:
        """stdout for bytes."""
        return self._out.buffer

    def reader_gone(self) -> None:
        """Lets stdout lead nowhere, so that nothing fails on it any more."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._out.fileno())
        os.close(nowhere)

    def notice(self, text: str) -> None:
        """A word beside the answer."""
        if not self.quiet and text:
            self._say(text)

    def ask(self, question: str) -> None:
        """Write a question on stderr, without a line break after it."""
        self._err.write(question)
        self._err.flush()

    def progress(self, progress: Progress) -> None:
        """Shows how far a stage is, on a terminal, and remembers it."""
        self._last = progress
        if not self.quiet:
            if self._line is None:
                from karat.execution.progress import ProgressLine

                self._line = ProgressLine(self._err)
            self._line(progress)

    def fail(self, error: KaratError, go_on: str | None = None) -> None:
        """An error that a person can act on."""
        about = {"type": type(error).__name__, "message": str(error), "exit_code": error.exit_code}
        problems = getattr(error, "problems", None)
        if problems is not None:
            about["problems"] = problems
        if go_on:
            about["go_on"] = go_on
        self._complain(about, str(error) + (f"\nto go on: {go_on}" if go_on else ""))

    def interrupted(self, go_on: str) -> None:
        """Ctrl-C: what is finished is kept."""
        last = self._last
        far = f" at {last.done:,} of {last.total:,} ({last.what})" if last is not None else ""
        message = f"interrupted{far}; everything finished is kept"
        about = {"type": "Interrupted", "message": message, "exit_code": 130, "go_on": go_on}
        self._complain(about, f"{message}\nto go on: {go_on}")

    def bug(self, error: Exception, exit_code: int) -> None:
        """An error that is nobody's but karat's."""
        message = (
            f"{type(error).__name__}: {error}: this is a bug in karat"
            " (KARAT_TRACEBACK=1 shows where; please report it)"
        )
        self._complain({"type": type(error).__name__, "message": message, "exit_code": exit_code}, message)

    def close(self) -> None:
        """Leaves the streams in order."""
        if self._line is not None:
            self._line.end()
        if self.as_json:
            sys.stdout = self._out
        for stream in (self._out, self._err):
            try:
                stream.flush()
            except (BrokenPipeError, ValueError):
                continue

    def _complain(self, about: dict[str, Any], text: str) -> None:
        if self._line is not None:
            self._line.end()
        if self.as_json:
            self.show({"error": about}, "")
        else:
            self._say(text)

    def _say(self, text: str) -> None:
        from karat.formatting import clean

        lines = text[:LONGEST_ERROR].splitlines() or [""]
        shown = [clean(line, 1000) for line in lines]
        try:
            self._err.write(f"karat: {shown[0]}\n" + "".join(f"{line}\n" for line in shown[1:]))
            self._err.flush()
        except BrokenPipeError:
            return


def _tolerant(stream: TextIO) -> TextIO:
    """A stream that writes what its encoding has no sign for as a question mark, instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None and (getattr(stream, "encoding", "") or "").lower() not in ("utf-8", "utf8"):
        reconfigure(errors="replace")
    return stream


def _plain(document: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(document)
