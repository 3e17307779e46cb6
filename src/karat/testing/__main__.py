"""`python -m karat.testing`: a fake provider in a process of its own; it prints its base URL."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys

from karat.errors import RequestError
from karat.testing._fake_provider import FakeProvider


def main() -> None:
    """Read the options and serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m karat.testing", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each response")
    parser.add_argument(
        "--answer", default=None, help="text of every reply (default: an echo of the request)"
    )
    parser.add_argument(
        "--rates", type=json.loads, default=None, help='as JSON, such as {"429": 0.3, "drop": 0.05}'
    )
    parser.add_argument("--seed", type=int, default=0, help="which requests fail")
    parser.add_argument(
        "--options", type=json.loads, default=None, help="all of FakeProvider's options, as JSON"
    )
    given = parser.parse_args()
    options = {
        "port": given.port,
        "latency": given.latency,
        "answers": given.answer,
        "rates": given.rates,
        "seed": given.seed,
    }
    try:
        provider = FakeProvider(**{**options, **(given.options or {})})
    except RequestError as error:
        parser.error(str(error))

    def tell() -> None:
        sys.stdout.write(provider.url + "\n")
        sys.stdout.flush()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(provider.serve(tell))


if __name__ == "__main__":
    main()
