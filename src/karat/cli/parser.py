"""The argument parser: one-sentence error messages with suggestions, and the layout of the help.

The help is laid out here because argparse changes its layout between Python versions, and docs/cli.md is generated
from it.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from karat.cli.commands import COMMANDS, UsageError
from karat.cli.terminal import Terminal
from karat.errors import did_you_mean

WIDTH = 100
LEFT = 30


class Parser(argparse.ArgumentParser):
    """The arguments of one command."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(
            prog=f"karat {name}", usage="", description=description, add_help=False, allow_abbrev=False
        )
        self.name = name
        self.own = self.add_argument_group("options")
        self._given: Sequence[str] = ()

    def option(self, *names: str, **settings: Any) -> None:
        """Add an option of this command."""
        self.own.add_argument(*names, **settings)

    def read(self, given: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments of a command line."""
        self._given = given
        arguments, unknown = self.parse_known_intermixed_args(given)
        for word in unknown:
            if word.startswith("-") and word != "-":
                self._unknown_option(word.partition("=")[0])
        if unknown:
            inside = [name for name in COMMANDS if name.startswith(f"{self.name} ")]
            near = (
                f": {did_you_mean(f'{self.name} {unknown[0]}', inside)}"
                if inside
                else f": see {self.prog} --help"
            )
            raise UsageError(f"{self.prog}: unexpected argument {unknown[0]!r}{near}")
        return arguments

    def _as_given(self, names: str) -> str:
        """The name of an option as the user wrote it."""
        written = [word.partition("=")[0] for word in self._given]
        return next((name for name in names.split("/") if name in written), names.split("/")[-1])

    def _unknown_option(self, word: str) -> NoReturn:
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        raise UsageError(f"{self.prog}: unknown option {word}: {did_you_mean(word, known)}")

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as one sentence."""
        message = re.sub(r"^argument ([^:]*): ", lambda match: self._as_given(match.group(1)) + ": ", message)
        message = message.replace(": expected one argument", " needs a value")
        message = message.replace(": expected at least one argument", " needs a value")
        missing = re.match(r"the following arguments are required: (.*)", message)
        if missing:
            raise UsageError(f"{self.prog} needs {missing.group(1)}: see {self.prog} --help")
        raise UsageError(f"{self.prog}: {message}")

    def format_help(self) -> str:
        return self.help_text()

    def help_text(self, width: int = WIDTH) -> str:
        """The help, at most so many columns wide; examples are not wrapped."""
        positionals = [action for action in self._actions if not action.option_strings]
        places = " ".join(_place(action) for action in positionals)
        usage = f"karat {self.name} {places} [OPTIONS]".replace("  ", " ")
        parts = [usage, "", *_paragraphs(self.description or "", width)]
        if positionals:
            parts += [
                "",
                "arguments:",
                *_rows(((_place(action).strip("[]"), action.help) for action in positionals), width),
            ]
        inside = [(name, each.summary) for name, each in COMMANDS.items() if name.startswith(f"{self.name} ")]
        if inside:
            parts += ["", "subcommands:", *_rows(inside, width)]
        for group in (self.own, *(g for g in self._action_groups if g is not self.own)):
            actions = [action for action in group._group_actions if action.option_strings]
            if actions:
                rows = _rows(((_option(action), action.help) for action in actions), width)
                parts += ["", f"{group.title}:", *rows]
        return "\n".join(parts) + "\n"


def command_parser(name: str, module: ModuleType) -> Parser:
    """The parser of a command: the options of its module and the general options."""
    parser = Parser(name, module.__doc__ or "")
    module.add_arguments(parser)
    group = parser.add_argument_group("general options")
    add_general_options(group)
    return parser


def add_general_options(group: Any) -> None:
    """Add the general options."""
    group.add_argument(
        "--store",
        metavar="URL",
        help="sqlite:///path, postgresql://… or memory:// (default: KARAT_STORE, else sqlite:///karat.db)",
    )
    group.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    group.add_argument("--quiet", action="store_true", help="do not print progress and notices")
    group.add_argument("-h", "--help", action="store_true", help="show this help")


def overview(given: Sequence[str], terminal: Terminal) -> int:
    """Handle `karat` without a command: print the help or the version, or raise an error."""
    from karat import __version__

    for word in given:
        if word in ("-h", "--help"):
            terminal.write(overview_text(help_width(terminal)))
            return 0
        if word == "--version":
            terminal.show({"karat": __version__}, f"karat {__version__}")
            return 0
        if word.startswith("-") and word not in ("--json", "--quiet", "--store"):
            known = ["--help", "--json", "--quiet", "--store", "--version"]
            raise UsageError(f"unknown option {word}: {did_you_mean(word, known)}")
    raise UsageError(f"name a command: {', '.join(COMMANDS)}; see karat --help")


def help_width(terminal: Terminal) -> int:
    """The width of the help on a terminal."""
    return min(WIDTH, terminal.width or WIDTH)


def overview_text(width: int = WIDTH) -> str:
    """The help of `karat` itself."""
    from karat import __doc__ as about

    parts = ["karat COMMAND [OPTIONS]", "", *textwrap.wrap(about or "", width), "", "commands:"]
    parts += _rows(((name, command.summary) for name, command in COMMANDS.items()), width)
    general = Parser("", "")
    add_general_options(general.own)
    general.option("--version", action="store_true", help="show the version")
    options = ((_option(action), action.help) for action in general.own._group_actions)
    parts += ["", "options:", *_rows(options, width)]
    parts += ["", "Run karat COMMAND --help for the help of a command."]
    return "\n".join(parts) + "\n"


def _place(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    return {"*": f"[{name}…]", "+": f"{name}…", "?": f"[{name}]"}.get(str(action.nargs), name)


def _option(action: argparse.Action) -> str:
    value = ""
    if action.nargs != 0:
        name = str(
            action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
        )
        value = " " + {"*": f"[{name}…]", "?": f"[{name}]", "+": f"{name}…"}.get(str(action.nargs), name)
    return ", ".join(action.option_strings) + value


def _rows(rows: Iterable[tuple[str, str | None]], width: int) -> list[str]:
    """Two columns; a left cell that is too wide gets its own line."""
    lines: list[str] = []
    for left, right in rows:
        wrapped = textwrap.wrap(right or "", max(20, width - LEFT))
        if len(left) > LEFT - 4:
            lines.append(f"  {left}")
        else:
            lines.append(f"  {left}".ljust(LEFT) + (wrapped.pop(0) if wrapped else ""))
        lines += [" " * LEFT + line for line in wrapped]
    return [line.rstrip() for line in lines]


def _paragraphs(text: str, width: int) -> list[str]:
    """Wrap the paragraphs of a docstring; keep indented lines and commands, which are examples."""
    out: list[str] = []
    for paragraph in textwrap.dedent(text).strip().split("\n\n"):
        if out:
            out.append("")
        lines = paragraph.split("\n")
        if paragraph.startswith("    "):
            out += lines
        elif all(line.startswith("karat ") for line in lines):
            # ruff format removes the indentation of examples that directly follow the summary line.
            out += [f"    {line}" for line in lines]
        else:
            out += textwrap.wrap(" ".join(paragraph.split()), width)
    return out
