"""List the available models and their requirements, or test them with one call.

A model name is PROVIDER/NAME (openai/…, anthropic/…, local/…), NAME@http://host:port/v1 for any
OpenAI-compatible server, or a name defined in models.yaml.

    karat models
    karat models --check local/smollm2-135m
    karat models --prices
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Callable
from typing import Any

from karat.cli.parser import Parser, UsageError, positive
from karat.cli.terminal import Terminal
from karat.errors import plural
from karat.formatting import Block, Details, Heading, Paragraph, Table

ACTIONS = ("stats", "clear")
DAY = 86_400
READY = {True: "yes", False: "no", None: "not asked"}


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of a subcommand; without one, --check and --prices."""
    command = parser.name.removeprefix("models").strip()
    parser.set_defaults(command=command)
    if command:
        parser.description = inspect.getdoc(SUBCOMMANDS[command])
    if command == "pull":
        parser.add_argument(
            "name",
            metavar="NAME",
            nargs="?",
            default="smollm2-135m",
            help="the model (default: smollm2-135m)",
        )
    elif command == "cache":
        parser.add_argument("action", metavar="stats|clear", help="show the size of the cache, or clear it")
        parser.option("--model", metavar="MODEL", help="clear only replies of this model")
        parser.option(
            "--older-than", type=positive, metavar="DAYS", help="clear only replies older than DAYS days"
        )
    else:
        parser.option(
            "--check",
            nargs="*",
            default=None,
            metavar="MODEL",
            help="test these models, or all ready models, with one call each",
        )
        parser.option(
            "--prices", action="store_true", help="list the price of each model, its source and its age"
        )


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Run a subcommand; without one, list the models and with --check call them."""
    if given.command:
        return SUBCOMMANDS[given.command](given, terminal)
    from karat.models import available, get, price_date

    if given.prices:
        return _show_prices(terminal)
    for spec in given.check or ():
        get(spec)  # raises for an unknown name, or a URL with a key in it, before the first call
    found = available()
    document: dict[str, Any] = {"models": found, "prices": price_date()}
    if given.check is not None:
        ready = [each["spec"] for each in found if each["ready"] and not each["spec"].endswith("/NAME")]
        document["checks"] = [_check_model(spec, terminal) for spec in given.check or ready]
    terminal.show(document, lambda: _blocks(document))
    return 0 if all(check["ok"] for check in document.get("checks", [])) else 1


def _show_prices(terminal: Terminal) -> int:
    from datetime import UTC, date, datetime

    import msgspec

    from karat.models import price_list

    today = datetime.now(UTC).date()
    rows = []
    for model, price, day in price_list():
        try:
            age = (today - date.fromisoformat(day)).days
        except ValueError:
            age = None
        rows.append({"model": model, "date": day, "age_days": age, **msgspec.to_builtins(price)})
    document = {"unit": "US dollars per million tokens", "prices": rows}
    terminal.show(document, lambda: _price_blocks(rows))
    return 0


def _price_blocks(rows: list[dict[str, Any]]) -> list[Block]:
    lines = []
    for each in rows:
        age = "" if each["age_days"] is None else f" ({each['age_days']} days)"
        cached, batch = each.get("cache_read"), each.get("batch")
        lines.append(
            [
                each["model"],
                f"{each['input']:g}",
                f"{each['output']:g}",
                "" if cached is None else f"{cached:g}",
                "" if batch is None else f"{batch:.0%}",
                each["date"] + age,
                each.get("source", ""),
            ]
        )
    head = ["model", "input", "output", "cached", "batch", "as of", "source"]
    return [
        Heading("US dollars per million tokens"),
        Table(head, lines, [1, 2, 3, 4], cell=70, drop=[6, 4, 3]),
    ]


def _check_model(spec: str, terminal: Terminal) -> Any:
    from karat.models import check

    terminal.notice(f"calling {spec} …")
    return check(spec)


def _blocks(document: dict[str, Any]) -> list[Block]:
    rows = [[each["spec"], each["kind"], READY[each["ready"]], each["needs"]] for each in document["models"]]
    checks = [
        (
            "ok" if check["ok"] else "no",
            [
                f"{check['spec']}: replied in {check['seconds']:.2f} s: {check['answer']}"
                if check["ok"]
                else f"{check['spec']}: {check['error']}"
            ],
        )
        for check in document.get("checks", [])
    ]
    blocks: list[Block] = [Table(["model", "kind", "ready", "needs"], rows, cell=120)]
    blocks.append(Paragraph(f"prices as of {document['prices']}"))
    return [*blocks, *([Details("", checks)] if checks else [])]


def _pull(given: argparse.Namespace, terminal: Terminal) -> int:
    """Download the weights of the embedded model, verify them and print their path.

    karat models pull
    """
    from karat.execution.progress import Progress
    from karat.formatting import clean
    from karat.models import pull

    progress = Progress("pull", 0, started=time.monotonic())

    def tell(done: int, total: int) -> None:
        progress.done, progress.total = done, total
        terminal.progress(progress)

    name = given.name.removeprefix("local/")
    path = pull(name, tell)
    terminal.show(
        {"model": f"local/{name}", "path": str(path)}, f"local/{clean(name, 80)} is at {clean(path)}"
    )
    return 0


def _cache(given: argparse.Namespace, terminal: Terminal) -> int:
    """Show the size of the cache of model replies (stats), or clear it (clear).

    karat models cache stats
    karat models cache clear --model openai/gpt-4o-mini --older-than 30
    """
    from karat.errors import did_you_mean
    from karat.models import cache_clear, cache_stats

    if given.action not in ACTIONS:
        raise UsageError(
            f"karat models cache: unknown action {given.action!r}: {did_you_mean(given.action, ACTIONS)}"
        )
    if given.action == "stats":
        if given.model is not None or given.older_than is not None:
            raise UsageError("--model and --older-than apply to karat models cache clear only")
        stats = cache_stats()
        terminal.show(stats, lambda: _cache_blocks(stats))
        return 0
    older = given.older_than * DAY if given.older_than is not None else None
    gone = cache_clear(given.model, older)
    terminal.done({"cleared": gone}, f"cleared {plural(gone, 'reply', 'replies')}")
    return 0


def _cache_blocks(stats: dict[str, Any]) -> list[Block]:
    replies = plural(stats["entries"], "reply", "replies")
    head = f"{stats['path']}: {replies}, {plural(stats['bytes'], 'byte')}"
    if stats["oldest"] is not None:
        head += f", the oldest from {time.strftime('%Y-%m-%d', time.localtime(stats['oldest']))}"
    rows = [[name, f"{count:,}"] for name, count in stats["models"].items()]
    return [Paragraph(head), Table(["model", "replies"], rows, [1], cell=80)]


SUBCOMMANDS: dict[str, Callable[[argparse.Namespace, Terminal], int]] = {"pull": _pull, "cache": _cache}
"""Their docstrings are the help."""
