"""The command line. `main` finds the command, runs it and returns an exit code.

0 success · 1 finished with failures, or a gate failed · 2 the request was wrong · 3 stopped, resumable · 4 a gate is
undecided · 130 interrupted, resumable.
"""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from karat.cli.parser import COMMANDS, command_parser, find_command, help_width, overview
from karat.cli.terminal import Terminal
from karat.errors import Aborted, KaratError, Stopped

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
    from karat.process import ending_signals

    try:
        with ending_signals():
            code = _exit_code(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        _end_process(code)
    return code


def _exit_code(given: list[str]) -> int:
    terminal = Terminal(as_json="--json" in given, quiet="--quiet" in given)
    try:
        return _run(given, terminal)
    except KaratError as error:
        resumable = isinstance(error, (Aborted, Stopped))
        terminal.fail(error, _same_command(given) if resumable else None, new="--new" in given)
        return error.exit_code
    except KeyboardInterrupt:
        terminal.interrupted(_same_command(given))
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("KARAT_TRACEBACK"):
            import traceback

            traceback.print_exc()
        terminal.bug(error, BUG)
        return BUG
    finally:
        terminal.close()


def _run(given: list[str], terminal: Terminal) -> int:
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

    words = [
        re.sub(r"\w+://\S*", lambda url: safe_url(url[0]), safe_url(each) if "://" not in each else each)
        for each in given
        if each != "--new"
    ]
    return shlex.join(["karat", *words])


PATIENCE_SECONDS = 2.0
"""Time limit for exit handlers, such as writing the last replies to the cache."""


def _end_process(code: int) -> NoReturn:
    """End this process without waiting for threads and tasks that ignore cancellation."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    last = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    last.start()
    last.join(PATIENCE_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
