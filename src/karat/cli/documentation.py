"""Generate docs/cli.md from the help of every command: `python -m karat.cli.documentation`."""

from __future__ import annotations

import importlib
import sys

from karat.cli.commands import COMMANDS
from karat.cli.parser import command_parser, overview_text

HEAD = """# The command line

`karat COMMAND` and `python -m karat COMMAND` are equivalent. Commands print results to stdout, and progress and notices
to stderr. With `--json` they print one JSON document instead; errors are a document too (`{"error": {…}}`).

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | finished with failures (or nothing could be measured), or a gate failed |
| 2 | the request was wrong: an invalid configuration, an unknown name, a bad file, a store that cannot be opened |
| 3 | stopped, resumable with the same command: rejected credentials, budget reached, store failure, store in use |
| 4 | a gate is undecided: too few examples, or too many missing |
| 70 | a bug in karat; `KARAT_TRACEBACK=1` shows where |
| 130 | interrupted (Ctrl-C), resumable with the same command |

This page is generated from the help of the commands: `python -m karat.cli.documentation > docs/cli.md`.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD, _section("karat", overview_text())]
    for name, command in COMMANDS.items():
        module = importlib.import_module(command.module)
        parts.append(_section(f"karat {name}", command_parser(name, module).format_help()))
    return "\n".join(parts)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}```\n"


if __name__ == "__main__":
    sys.stdout.write(page())
