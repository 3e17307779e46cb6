"""The grammar of the command line: the table of commands, the argument parser, shared options, and the help.

Errors are one sentence with a suggestion. The help is laid out here because argparse changes its layout between Python
versions, and docs/cli.md is generated from it.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from karat.cli.terminal import Terminal
from karat.errors import RequestError, did_you_mean, nearest

if TYPE_CHECKING:
    from karat.analysis.gates import Limit

# The table of commands, and how to find the command in a command line.

WITH_VALUE = ("--store",)
"""General options that take a value and may precede the command name."""


class UsageError(RequestError):
    """A command line that cannot be read."""


class Command(NamedTuple):
    """A command: its module has `add_arguments(parser)` and `execute(arguments, terminal)`."""

    module: str
    summary: str


COMMANDS = {
    "init": Command("karat.cli.init", "write a small working evaluation to start from"),
    "run": Command("karat.cli.run", "run an experiment, or a task over a dataset"),
    "evaluate": Command("karat.cli.evaluate", "evaluate the outputs of one or more runs"),
    "aggregate": Command("karat.cli.aggregate", "aggregate the results of evaluations into estimates"),
    "compare": Command("karat.cli.compare", "compare runs with a baseline, example by example"),
    "rank": Command("karat.cli.rank", "rank runs from best to worst"),
    "report": Command("karat.cli.report", "write a report on runs, evaluations or aggregations"),
    "view": Command("karat.cli.view", "open a local web viewer on the results"),
    "judge": Command("karat.cli.judge", "correct, measure and audit judges"),
    "judge correct": Command("karat.cli.judge", "correct or confirm one decision of a judge"),
    "judge sample": Command("karat.cli.judge", "write a sheet of outputs for a person to label"),
    "judge import": Command("karat.cli.judge", "import human labels from a file"),
    "judge alignment": Command("karat.cli.judge", "measure how well a judge agrees with human labels"),
    "judge compare": Command("karat.cli.judge", "evaluate the same outputs with two judges"),
    "judge audit": Command(
        "karat.cli.judge", "measure the error rates of a judge and its resistance to attacks"
    ),
    "graph": Command("karat.cli.graph", "draw the graph of a task"),
    "memory": Command("karat.cli.memory", "evaluate a memory system on dialogues and questions"),
    "ls": Command("karat.cli.ls", "list the contents of the store"),
    "show": Command(
        "karat.cli.show", "show a dataset, run, evaluation or aggregation, one example, or the failures"
    ),
    "tag": Command("karat.cli.tag", "label a dataset, run, evaluation or aggregation"),
    "export": Command("karat.cli.export", "write records as JSON, JSONL, CSV or Parquet"),
    "rm": Command("karat.cli.rm", "remove datasets, runs, evaluations or aggregations"),
    "evaluators": Command("karat.cli.evaluators", "list the evaluators, or describe one"),
    "models": Command("karat.cli.models", "list the available models and their requirements"),
    "models pull": Command("karat.cli.models", "download the weights of the embedded model"),
    "models cache": Command("karat.cli.models", "show or clear the cache of model replies"),
    "doctor": Command("karat.cli.doctor", "check the installation, the store and the models"),
}
"""In the order of `karat --help`. A name of two words is a subcommand."""


def find_command(given: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return `(command, its arguments)`; options before the command name are passed to the command."""
    before: list[str] = []
    words = iter(enumerate(given))
    for place, word in words:
        if not word.startswith("-"):
            if word not in COMMANDS:
                raise UsageError(f"unknown command {word!r}: {did_you_mean(word, [*COMMANDS, 'help'])}")
            rest = list(given[place + 1 :])
            if rest and f"{word} {rest[0]}" in COMMANDS:
                word = f"{word} {rest.pop(0)}"
            return word, [*before, *rest]
        before.append(word)
        if word in WITH_VALUE:
            before += [value for _, value in [next(words, (0, ""))] if value]
    return None, before


WIDTH = 100
LEFT = 30


class Parser(argparse.ArgumentParser):
    """The arguments of one command."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(
            prog=f"karat {name}",
            usage="",
            description=description,
            add_help=False,
            allow_abbrev=False,
            # argparse makes one for every argument, to check it, and loads `shutil` for the width.
            formatter_class=lambda prog: argparse.HelpFormatter(prog, width=WIDTH),
        )
        self.name = name
        self.own = self.add_argument_group("options")
        self._given: Sequence[str] = ()
        self.unsupported: dict[str, str] = {}
        """Options of other tools that users may know, and why this command has none of them."""

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
        if word in self.unsupported:
            raise UsageError(f"{self.prog}: {word} is not supported: {self.unsupported[word]}")
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        first = word.split("-")[:3]
        alike = [name for name in known if len(first) == 3 and name.split("-")[:3] == first]
        if alike and not nearest(word, known):  # --fail-under and --fail-if-worse
            raise UsageError(f"{self.prog}: unknown option {word}: did you mean {alike[0]}?")
        raise UsageError(f"{self.prog}: unknown option {word}: {did_you_mean(word, known)}")

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as one sentence."""
        message = re.sub(r"^argument ([^:]*): ", lambda match: self._as_given(match.group(1)) + ": ", message)
        needy = re.fullmatch(r"(--[\w-]+): expected one argument", message)
        after = (
            self._given[self._given.index(needy[1]) + 1 :][:1] if needy and needy[1] in self._given else []
        )
        if needy and after and re.match(r"-\w", after[0]):  # argparse takes -FIELD for an option
            raise UsageError(f"{self.prog}: {needy[1]} needs a value: write {needy[1]}={after[0]}")
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
    group.add_argument(
        "--quiet", action="store_true", help="do not print progress, notices and confirmations"
    )
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


# docs/cli.md, made of the help of every command.

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

`latest` is the latest run. Where a command needs an evaluation (`aggregate`, `judge`), it is the latest evaluation, for
`judge` the latest with a judge. People's labels and what an audit ran are never meant. A notice has the id.

This page is generated from the help of the commands, by `karat.cli.parser.page`.
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


# Options that several commands share, and their value types.


def integer(least: int) -> Callable[[str], int]:
    """Return a reader of integers that are at least `least`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return read


def positive(text: str) -> float:
    """Read a number above 0."""
    number = _number(text)
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def fraction(text: str) -> float:
    """Read a number from 0 to 1."""
    number = _number(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return number


def share(text: str) -> float:
    """A number between 0 and 1, and neither of them."""
    number = positive(text)
    if number >= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1, such as 0.95")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def part(text: str) -> Any:
    """A name, or JSON with name, params, key and what else a file may say of it; the stages reject unknown keys."""
    if not text.lstrip().startswith("{"):
        return text
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None


def parameter(text: str) -> tuple[str, Any]:
    """Read `name=value`; the value is JSON if it parses as JSON, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form name=value")
    import json

    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def add_part_option(parser: Parser, short: str, long: str, help: str) -> None:
    """Add the option that names evaluators or aggregators."""
    help = f"{help}; repeatable"
    parser.option(short, long, action="append", default=[], type=part, metavar="NAME|JSON", help=help)


def add_parameter_option(parser: Parser, of: str) -> None:
    """Add the option that sets the parameters of a task or a memory system."""
    help = f"a parameter of {of}; repeatable"
    parser.option("--param", action="append", default=[], type=parameter, metavar="K=V", help=help)


def add_threshold_option(parser: Parser) -> None:
    """Add the gate of one run."""
    parser.option(
        "--fail-under",
        action="append",
        default=[],
        metavar="METRIC:VALUE",
        help="a gate: fail if the metric is below VALUE (above it, where lower is better); repeatable",
    )


def read_thresholds(texts: Sequence[str]) -> list[Limit]:
    """The thresholds of --fail-under; one that cannot be read is refused before anything runs."""
    if not texts:
        return []
    from karat.analysis.gates import read_threshold

    return [read_threshold(text) for text in texts]


def add_confidence_option(parser: Parser, of: str = "the intervals") -> None:
    """Add the option for the confidence level."""
    help = f"confidence level of {of} (default: 0.95)"
    parser.option("--confidence", type=share, default=0.95, metavar="C", help=help)


def add_stage_options(parser: Parser) -> None:
    """Add the options of all stages."""
    parser.option(
        "--label",
        action="append",
        default=[],
        metavar="TEXT",
        help="a label to store with the result; repeatable",
    )
    parser.option(
        "--description", default=None, metavar="TEXT", help="a description to store with the result"
    )
    parser.option("--new", action="store_true", help="start again even if the same work is already stored")


def add_call_options(parser: Parser) -> None:
    """Add the options of commands that share work with other processes and call models."""
    parser.option("--wait", action="store_true", help="wait if another process is doing the same work")
    parser.option("--no-cache", action="store_true", help="do not read or write the cache of model replies")
    parser.option("--refresh", action="store_true", help="call models again and replace the cached replies")
    parser.option(
        "--budget",
        type=positive,
        metavar="DOLLARS",
        help="stop before model calls cost more than this; resumable",
    )


def add_work_options(parser: Parser) -> None:
    """Add the options of the stages that call tasks or judges."""
    parser.option(
        "--concurrency", type=integer(1), metavar="N", help="number of items at a time (default: 100)"
    )
    parser.option("--timeout", type=positive, metavar="SECONDS", help="timeout of one item")
    parser.option("--abort-on-error", action="store_true", default=None, help="stop at the first failure")
    parser.option(
        "--retry-failed", action="store_true", help="retry failed items; earlier failures stay in the history"
    )
    add_call_options(parser)
    parser.option(
        "--batch",
        action="store_true",
        help="use the batch API of OpenAI or Anthropic: half the price, replies within a day",
    )


def cache_mode(given: argparse.Namespace) -> str:
    """The cache mode of --no-cache and --refresh."""
    if given.no_cache and given.refresh:
        raise UsageError("--no-cache and --refresh contradict each other: remove one of them")
    return "off" if given.no_cache else "refresh" if given.refresh else "use"


def import_from_here() -> None:
    """Make modules of the working folder importable; last on the path, so they never hide installed ones."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
