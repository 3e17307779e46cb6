"""Open a local web viewer on runs, their rows, comparisons, slices, failures and costs.

Without an ID, it shows all runs; with one, the rows of that run; with two, their comparison; with --by, slices of the
runs. The server listens on 127.0.0.1 only, reads the store and never writes to it. Ctrl-C stops it.

    karat view
    karat view run-1a2b
    karat view run-1a2b run-3c4d --where changed:worse
    karat view run-1a2b run-3c4d --example q17
    karat view run-1a2b run-3c4d --by topic
"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from karat.cli.parser import Parser, UsageError, integer
from karat.cli.terminal import Terminal

if TYPE_CHECKING:
    from karat.store.handles import Run
    from karat.view.data import Viewer
    from karat.view.server import Server


def add_arguments(parser: Parser) -> None:
    """Declare the runs, the port and whether to open a browser."""
    parser.add_argument(
        "ids", metavar="ID", nargs="*", help="a run, or two runs to compare (default: all runs)"
    )
    parser.option("--where", metavar="FILTER", help="only rows that match, such as 'changed:worse'")
    parser.option(
        "--sort", metavar="FIELD", help="the rows with the lowest value first; --sort=-FIELD: the highest"
    )
    parser.option("--metric", metavar="KEY", help="compare or slice by this evaluator")
    parser.option("--example", metavar="ID", help="open this example beside the rows")
    parser.option(
        "--attempt",
        type=integer(1),
        default=1,
        metavar="N",
        help="attempt of the example to open (default: 1)",
    )
    parser.option("--unit", metavar="NAME", help="unit of the example to open")
    parser.option("--by", metavar="FIELD", help="slice by this metadata field")
    parser.option(
        "--port", type=integer(0), default=0, metavar="PORT", help="port to listen on (default: a free one)"
    )
    parser.option("--no-browser", action="store_true", help="print the URL without opening a browser")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Serve until interrupted."""
    from urllib.parse import quote

    from karat.store import open_store, store_file
    from karat.view import find_run

    if len(given.ids) > 2 and not given.by:
        raise UsageError("karat view takes at most two runs: name one to see its rows, two to compare them")
    _refuse_options(given)
    if given.port > 65535:
        raise UsageError(f"--port {given.port} is not a port: give a number up to 65535")
    path = store_file(given.store)
    if path is not None and not path.exists():
        raise UsageError(f"there is no store {path}: karat run creates one, or name another with --store URL")
    page = "/"
    with open_store(given.store or None, read_only=True) as store:
        place = store.url
        found = [find_run(store, each) for each in given.ids]
        key = _key(found[-1], given) if given.example is not None else None
    runs = [quote(each.id, safe="") for each in found]
    if given.by:
        page = f"/s/{','.join(runs)}"
    elif runs:
        page = f"/r/{runs[0]}" if len(runs) == 1 else f"/c/{runs[0]}..{runs[1]}"
    options = {
        "filter": given.where,
        "sort": given.sort,
        "evaluator": given.metric,
        "by": given.by,
        "key": key,
    }
    options["open"] = key and "1"  # a narrow window shows the rows or the item
    query = {name: value for name, value in options.items() if value}
    try:
        asyncio.run(
            _serve(
                given.store or None, place, given.port, page, query, terminal, browser=not given.no_browser
            )
        )
    except KeyboardInterrupt:
        return 0
    return 0


def _refuse_options(given: argparse.Namespace) -> None:
    """Refuse options that the page has no use for."""
    for option, value in (("--where", given.where), ("--sort", given.sort), ("--example", given.example)):
        if value is not None and (given.by or not given.ids):
            raise UsageError(f"{option} applies to rows: name one or two runs, and remove --by")
    if given.example is None and (given.attempt > 1 or given.unit):
        raise UsageError("--attempt and --unit need --example ID")
    if given.by and not given.ids:
        raise UsageError("--by needs the runs to slice: karat view RUN… --by FIELD")
    if given.metric and not given.by and len(given.ids) != 2:
        raise UsageError("--metric applies to a comparison or to slices: name two runs, or add --by FIELD")


def _key(run: Run, given: argparse.Namespace) -> str:
    """The row of an example, as addresses name it."""
    from karat.cli.show import find_example
    from karat.view import write_key

    return write_key(find_example(run.dataset, given.example)[0], given.attempt, given.unit or "")


async def _serve(
    store: str | None,
    place: str,
    port: int,
    page: str,
    query: dict[str, str],
    terminal: Terminal,
    *,
    browser: bool,
) -> None:
    from karat.view.server import Server

    def make_viewer() -> Viewer:
        from karat.view.data import Viewer

        return Viewer(store)

    _share_heap()
    server = Server(make_viewer)
    try:
        await server.start(port)
    except OSError as error:
        raise UsageError(
            f"cannot listen on port {port}: {error.strerror}; leave --port out to use a free one"
        ) from error
    try:
        url = server.url(page, **query)
        terminal.show({"url": url, "store": place}, f"{url}\n(Ctrl-C stops the viewer of {place})")
        if browser:
            _open(server, url)
        await asyncio.Event().wait()
    finally:
        await server.stop()


def _share_heap() -> None:
    """Let all threads of this process share one heap: glibc gives each its own, which keeps what it frees."""
    import contextlib
    import ctypes
    import sys

    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX; another C library ignores it


def _open(server: Server, url: str) -> None:
    """Open the page in a browser where there is a terminal and a display."""
    import os
    import sys
    import webbrowser

    if sys.stdout.isatty() and (sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY")):
        webbrowser.open(url)
