"""Output of commands: one text or JSON document on stdout; progress, notices and errors on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

if TYPE_CHECKING:
    from karat.errors import KaratError
    from karat.execution.progress import Listener, Progress
    from karat.formatting import Block
    from karat.layout import Layout

LONGEST_ERROR = 4000


class Terminal:
    """The output streams of a command, with the settings of --json and --quiet."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self._out = _tolerant(sys.stdout)
        self._err = _tolerant(sys.stderr)
        if as_json:
            sys.stdout = self._err  # text printed by a task must not end up in the document
        self.listener: Listener | None = None if quiet else self.progress
        """The listener for the progress of stages; None with --quiet."""
        self._line: Any = None
        self._last: Progress | None = None

    @property
    def width(self) -> int | None:
        """The columns of stdout; None where it is not a terminal."""
        if not self._out.isatty():
            return None
        import shutil

        return max(20, shutil.get_terminal_size().columns)

    @property
    def layout(self) -> Layout:
        """The width and the colours of stdout; full width where it is not a terminal."""
        from karat.layout import Layout, wants_colour

        return Layout(self.width, wants_colour(os.environ, self._out.isatty()))

    def show(self, document: Any, text: str | Sequence[Block] | Callable[[], str | Sequence[Block]]) -> None:
        """Print the result of a command: the document with --json, else the text or blocks, laid out to fit."""
        if self.as_json:
            import json

            import msgspec

            # ASCII, so that nothing in it can steer the terminal it is shown on.
            self.write(json.dumps(msgspec.to_builtins(document), indent=2, allow_nan=False) + "\n")
        else:
            shown = text() if callable(text) else text
            if not isinstance(shown, str):
                from karat.formatting import as_text

                shown = as_text(shown, self.layout)
            self.write(shown.rstrip("\n") + "\n")

    def done(self, document: Any, text: str) -> None:
        """Confirm what a command wrote elsewhere: the document with --json, else the text, and nothing with --quiet."""
        if self.as_json or not self.quiet:
            self.show(document, text)

    def write(self, text: str) -> None:
        """Write to stdout. If the reader has closed the pipe, continue without output: the work is stored."""
        with self.writing():
            self._out.write(text)
            self._out.flush()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Continue without output where the reader of stdout has gone; raise DiskFull where it cannot be written."""
        try:
            yield
        except BrokenPipeError:
            self.reader_gone()
        except OSError as error:
            from karat.errors import DiskFull

            self.reader_gone()
            self.as_json = False  # there is no place for a document any more
            raise DiskFull(
                f"cannot write to stdout: {error.strerror}; what was computed is stored"
            ) from error

    @property
    def binary(self) -> BinaryIO:
        """Return stdout as a stream of bytes."""
        return self._out.buffer

    def reader_gone(self) -> None:
        """Redirect stdout to the null device after a broken pipe."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._out.fileno())
        os.close(nowhere)

    def notice(self, text: str) -> None:
        """Print a notice on stderr."""
        if not self.quiet and text:
            if self._line is not None:
                self._line.end()
            self._say(text)

    def ask(self, question: str) -> None:
        """Write a question on stderr, without a line break after it."""
        self._err.write(question)
        self._err.flush()

    def progress(self, progress: Progress) -> None:
        """Show the progress of a stage, and remember it."""
        self._last = progress
        if not self.quiet:
            if self._line is None:
                from karat.execution.progress import ProgressLine

                self._line = ProgressLine(self._err)
            self._line(progress)

    def fail(self, error: KaratError, go_on: str | None = None, *, new: bool = False) -> None:
        """Print an error that the user can fix. With `new`, the same command would begin again."""
        message = str(error)
        if new:
            message = message.replace("the same command", "the same command without --new")
        about = {"type": type(error).__name__, "message": message, "exit_code": error.exit_code}
        problems = getattr(error, "problems", None)
        if problems is not None:
            about["problems"] = problems
        if go_on:
            about["go_on"] = go_on
        self._complain(about, message + (f"\nto continue: {go_on}" if go_on else ""))

    def interrupted(self, go_on: str) -> None:
        """Print the interrupt message; finished items are stored."""
        last = self._last
        far = f" at {last.done:,} of {last.total:,} ({last.what})" if last is not None else ""
        message = f"interrupted{far}; finished items are stored"
        about = {"type": "Interrupted", "message": message, "exit_code": 130, "go_on": go_on}
        self._complain(about, f"{message}\nto continue: {go_on}")

    def bug(self, error: Exception, exit_code: int) -> None:
        """Print an error that is a bug in karat."""
        message = (
            f"{type(error).__name__}: {error}: this is a bug in karat"
            " (please report it; KARAT_TRACEBACK=1 shows the traceback)"
        )
        self._complain({"type": type(error).__name__, "message": message, "exit_code": exit_code}, message)

    def close(self) -> None:
        """End the progress line, restore stdout and flush."""
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
            start = "" if shown[0].startswith("karat ") else "karat: "  # a usage error names its command
            self._err.write(f"{start}{shown[0]}\n" + "".join(f"{line}\n" for line in shown[1:]))
            self._err.flush()
        except BrokenPipeError:
            return


def _tolerant(stream: TextIO) -> TextIO:
    """A stream that replaces characters outside its encoding with question marks."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None and (getattr(stream, "encoding", "") or "").lower() not in ("utf-8", "utf8"):
        reconfigure(errors="replace")
    return stream
