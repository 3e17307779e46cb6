"""List the available models and their requirements, or test them with one call.

A model name is PROVIDER/NAME (openai/…, anthropic/…, local/…), NAME@http://host:port/v1 for any
OpenAI-compatible server, or a name defined in models.yaml.

    karat models
    karat models --check local/smollm2-135m
    karat models --prices
"""

from __future__ import annotations

import argparse
from typing import Any

from karat.cli.parser import Parser
from karat.cli.terminal import Terminal


def add_arguments(parser: Parser) -> None:
    """Declare --check and --prices."""
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
    """List the models; with --check, call them."""
    from karat.models import available, get, price_date

    if given.prices:
        return _show_prices(terminal)
    for spec in given.check or ():
        get(spec)  # raises for an unknown name, or a URL with a key in it, before the first call
    found = available()
    document: dict[str, Any] = {"models": found, "prices": price_date()}
    if given.check is not None:
        ready = [each["spec"] for each in found if each["ready"] and not each["spec"].endswith("/NAME")]
        document["checks"] = [_checked(spec, terminal) for spec in given.check or ready]
    terminal.show(document, lambda: _text(document))
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
    terminal.show(document, lambda: _prices_text(rows))
    return 0


def _prices_text(rows: list[dict[str, Any]]) -> str:
    from karat.formatting import clean, table

    lines = [["model", "input", "output", "cached", "batch", "as of", "source"]]
    for each in rows:
        age = "" if each["age_days"] is None else f" ({each['age_days']} days)"
        cached, batch = each.get("cache_read"), each.get("batch")
        lines.append(
            [
                clean(each["model"], 60),
                f"{each['input']:g}",
                f"{each['output']:g}",
                "" if cached is None else f"{cached:g}",
                "" if batch is None else f"{batch:.0%}",
                clean(each["date"], 20) + age,
                clean(each.get("source", ""), 70),
            ]
        )
    return "US dollars per million tokens\n" + table(lines)


def _checked(spec: str, terminal: Terminal) -> Any:
    from karat.models import check

    terminal.notice(f"calling {spec} …")
    return check(spec)


def _text(document: dict[str, Any]) -> str:
    from karat.formatting import clean, table

    rows = [["model", "kind", "ready", "needs"]]
    for each in document["models"]:
        ready = "yes" if each["ready"] else "no"
        rows.append([clean(each["spec"], 60), clean(each["kind"], 20), ready, clean(each["needs"], 120)])
    lines = [table(rows), "", f"prices as of {clean(document['prices'], 20)}"]
    for check in document.get("checks", []):
        said = (
            f"replied in {check['seconds']:.2f} s: {clean(check['answer'], 80)}"
            if check["ok"]
            else clean(check["error"])
        )
        lines.append(f"{'ok ' if check['ok'] else 'no '} {clean(check['spec'], 60)}: {said}")
    return "\n".join(lines)
