"""Download the weights of the embedded model, verify them and print their path.

karat models pull
"""

from __future__ import annotations

import argparse
import time

from karat.cli.parser import Parser
from karat.cli.terminal import Terminal


def add_arguments(parser: Parser) -> None:
    """Declare the model."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", default="smollm2-135m", help="the model (default: smollm2-135m)"
    )


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Download the weights."""
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
