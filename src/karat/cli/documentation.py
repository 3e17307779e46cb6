"""docs/cli.md: the help of every command, as it is. `python -m karat.cli.documentation` prints it."""

from __future__ import annotations

import importlib
import sys

from karat.cli.commands import COMMANDS
from karat.cli.parser import command_parser, overview_text

HEAD = """# The command line

`karat COMMAND` and `python -m karat COMMAND` are the same. Text for people goes to stdout, progress and notices to
stderr; `--json` prints one JSON document instead, errors included (`{"error": {…}}`).

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | finished with failures, nothing could be measured, or a gate failed |
| 2 | the request was wrong: a bad configuration, an unknown name, a bad file, a store that cannot be opened |
| 3 | stopped, the same command continues: credentials, budget, a store that fails on the way, another process at it |
| 4 | a gate is undecided: too few examples, or too many missing |
| 70 | a bug in karat; `KARAT_TRACEBACK=1` shows where |
| 130 | interrupted (Ctrl-C), the same command continues |

This page is made from the commands' own help: `python -m karat.cli.documentation > docs/cli.md`.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, _section("karat", overview_text())]
    for name, command in COMMANDS.items():
        module = importlib.import_module(command.module)
        parts.append(_section(f"karat {name}", command_parser(name, module).format_help()))
    return "\n".join(parts)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}```\n"


if __name__ == "__main__":
    sys.stdout.write(page())
