"""The command line. `main` finds the command, runs it and returns an exit code.

0 success · 1 finished with failures, or a gate failed · 2 the request was wrong · 3 stopped, resumable · 4 a gate is
undecided · 130 interrupted, resumable.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from karat.cli.terminal import Terminal

# What else a command needs is imported by the functions, where a signal is caught.

__all__ = ["main"]

INTERRUPTED = 130
BUG = 70
"""The exit code for a bug in karat: `EX_SOFTWARE` of sysexits.h."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: that of this process) and return its exit code.

    Without `argv` an interrupt ends the process.
    """
    if argv is not None:
        return _exit_code(list(argv))
    try:
        from karat.process import catch_ending_signals

        _open_standard_files()
        sys.unraisablehook = _unraisable
        # Until the process has ended: a signal after the handlers were restored would kill it.
        catch_ending_signals()
        try:
            code = _exit_code(sys.argv[1:], ends_process=True)
        except KeyboardInterrupt:
            code = INTERRUPTED
        if code == INTERRUPTED:
            _end_process(code)
        import atexit

        # What is left takes no decision, and Python restores the default action of signals before its end.
        atexit.register(_ignore_signals)
    except KeyboardInterrupt:
        _end_process(INTERRUPTED)
    return code


def _open_standard_files() -> None:
    """Open those that the caller closed (`>&-`). Another file would get their number, and what is meant for them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """End the process where an interrupt was raised in a callback, from which it does not reach its caller."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.stderr.write("karat: interrupted; finished items are stored\n")
        _end_process(INTERRUPTED)
    sys.__unraisablehook__(unraisable)


def _exit_code(given: list[str], ends_process: bool = False) -> int:
    from karat.cli.terminal import Terminal
    from karat.errors import Aborted, KaratError, RequestError, Stopped, clip, for_command_line

    terminal = Terminal(as_json="--json" in given, quiet="--quiet" in given)
    try:
        with for_command_line():
            return _run(given, terminal)
    except KaratError as error:
        if _was_interrupted(error):
            return _interrupt(given, terminal, ends_process)
        resumable = isinstance(error, (Aborted, Stopped))
        terminal.fail(error, _same_command(given) if resumable else None, new="--new" in given)
        return error.exit_code
    except KeyboardInterrupt:
        return _interrupt(given, terminal, ends_process)
    except Exception as error:
        if _was_interrupted(error):
            return _interrupt(given, terminal, ends_process)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            terminal.fail(RequestError(f"the name of a file is too long: {clip(str(error.filename), 60)}"))
            return RequestError.exit_code
        if os.environ.get("KARAT_TRACEBACK"):
            import traceback

            traceback.print_exc()
        terminal.bug(error, BUG)
        return BUG
    finally:
        terminal.close()


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether an error was raised while an interrupt was handled: a library may make an ImportError of it."""
    seen: list[Any] = []
    while error is not None and error not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def _interrupt(given: list[str], terminal: Terminal, ends_process: bool) -> int:
    if ends_process:
        _ignore_signals()  # the stage is over: what follows is short, and an exception in it could go anywhere
    try:
        command = _same_command(given)
    except Exception:  # an interrupted import leaves modules behind that cannot be imported again
        command = "repeat the command"
    terminal.interrupted(command)
    return INTERRUPTED


def _run(given: list[str], terminal: Terminal) -> int:
    import importlib

    from karat.cli.parser import COMMANDS, command_parser, find_command, help_width, overview

    if given[:1] == ["help"]:
        given = [*given[1:], "--help"]
    name, rest = find_command(given)
    if name is None:
        return overview(rest, terminal)
    module = importlib.import_module(COMMANDS[name].module)
    parser = command_parser(name, module)
    if "-h" in rest or "--help" in rest:
        terminal.write(parser.help_text(help_width(terminal)))
        return 0
    return int(module.execute(parser.read(rest), terminal))


def _same_command(given: list[str]) -> str:
    """The command that continues this one: the same words without --new and without passwords."""
    import re
    import shlex

    from karat.store import safe_url

    def safe(url: str) -> str:
        try:
            return safe_url(url)
        except Exception:  # its driver was being imported when an interrupt came
            return f"{url.partition('://')[0] if '://' in url else 'postgresql'}://***"

    words = [
        re.sub(r"\w+://\S*", lambda url: safe(url[0]), safe(each) if "://" not in each else each)
        for each in given
        if each != "--new"
    ]
    return shlex.join(["karat", *words])


PATIENCE_SECONDS = 2.0
"""Time limit for exit handlers, such as writing the last replies to the cache."""


def _end_process(code: int) -> NoReturn:
    """End this process without waiting for threads and tasks that ignore cancellation, or for further signals."""
    _ignore_signals()
    import atexit
    import threading

    last = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    last.start()
    last.join(PATIENCE_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ignore_signals() -> None:
    """Ignore the signals that end a process; one that came before may interrupt this, so it is tried again."""
    for _ in range(10):
        with suppress(KeyboardInterrupt):
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                if hasattr(signal, name):
                    signal.signal(getattr(signal, name), signal.SIG_IGN)
            return
