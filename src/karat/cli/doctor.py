"""Check the installation: packages, the store, the model cache, the embedded model and plug-ins.

The command changes nothing and calls no model. It reads the store and reports which API keys are set, without printing
them.

    karat doctor
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from karat.cli.parser import Parser
from karat.cli.terminal import Terminal
from karat.errors import plural
from karat.formatting import Block, Paragraph, Table, clean
from karat.layout import Styled

VARIABLES = (
    "KARAT_STORE",
    "KARAT_MODEL",
    "KARAT_JUDGE_MODEL",
    "KARAT_MODELS",
    "KARAT_CACHE",
    "KARAT_MODEL_PATH",
    "KARAT_PLUGINS",
    "OPENAI_BASE_URL",
    "OPENAI_MODEL",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
)
PURPOSES = {
    "postgres": "stores on a PostgreSQL server",
    "parquet": "reading and writing Parquet",
    "dataframes": "rows as pandas and Polars data frames",
    "text": "bleu, chrf and rouge",
    "local": "the embedded model and embeddings",
    "hf": "datasets from the Hugging Face hub",
    "agentevals": "evaluators of the package agentevals",
    "mem0": "the memory system mem0",
    "langmem": "the memory system langmem",
    "graphiti": "the memory system graphiti",
}


def add_arguments(parser: Parser) -> None:
    """Declare nothing: the general options are enough."""


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Run all checks, and print them."""
    from karat import __version__

    checks: list[dict[str, Any]] = [
        {"what": "karat", "state": "ok", "found": __version__},
        {
            "what": "python",
            "state": "ok",
            "found": f"{platform.python_version()} on {sys.platform} {platform.machine()}",
        },
        *_packages(),
        _try_check("store", lambda: _store(given.store)),
        _try_check("model cache", _cache),
        _try_check("embedded model", _local_model),
        _try_check("plug-ins", _plugins),
    ]
    variables = {name: "set" for name in VARIABLES if os.environ.get(name)}
    broken = [check for check in checks if check["state"] == "broken"]
    document = {"ok": not broken, "checks": checks, "variables": variables}
    terminal.show(document, lambda: _blocks(document))
    return 1 if broken else 0


def _packages() -> list[dict[str, Any]]:
    """karat's own dependencies, then each extra."""
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in metadata.requires("karat") or []:
        name = _name(line)
        extra = line.partition("extra ==")[2].strip(" '\"")
        if not extra:
            required.append(name)
        elif extra in PURPOSES:
            extras.setdefault(extra, []).append(name)
    missing = [name for name in required if _version(name) is None]
    found = ", ".join(f"{name} {_version(name)}" for name in required if name not in missing)
    checks = [{"what": "packages", "state": "broken" if missing else "ok", "found": found}]
    if missing:
        checks[0] |= {
            "found": f"missing: {', '.join(missing)}",
            "remedy": "pip install --force-reinstall karat",
        }
    for extra, names in extras.items():
        checks.append(_extra(extra, names))
    return checks


def _extra(extra: str, names: list[str]) -> dict[str, Any]:
    missing = [name for name in names if _version(name) is None]
    found = ", ".join(f"{name} {_version(name)}" for name in names if name not in missing)
    check = {
        "what": f"extra {extra}",
        "state": "missing" if missing else "ok",
        "found": found,
        "for": PURPOSES[extra],
    }
    if missing:
        check |= {"found": f"without {', '.join(missing)}", "remedy": f"pip install 'karat[{extra}]'"}
    return check


def _name(requirement: str) -> str:
    import re

    return re.split(r"[\s\[<>=!~;(]", requirement, maxsplit=1)[0]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _try_check(what: str, look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a check; an exception in a check is the result `broken`."""
    try:
        return {"what": what, "state": "ok", **look()}
    except Exception as error:
        return {"what": what, "state": "broken", "found": f"{type(error).__name__}: {error}"}


def _store(url: str | None) -> dict[str, Any]:
    from karat.errors import RequestError
    from karat.store import open_store, store_file
    from karat.store.backend import NoStoreYet

    path = store_file(url)
    if path is not None and not path.exists():
        folder = path.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise RequestError(f"cannot create {path}: {folder} is not a writable folder")
        return {"found": f"{path} does not exist yet: the first run creates it"}
    try:
        store = open_store(url, read_only=True)
    except NoStoreYet as none_yet:
        return {"found": str(none_yet)}
    with store:
        problems = store.verify()
        if problems:
            remedy = "restore it from a backup, or export the readable records"
            return {"state": "broken", "found": f"{store.url}: {'; '.join(problems[:3])}", "remedy": remedy}
        kinds = ("datasets", "runs", "evaluations", "aggregations")
        counted = ", ".join(plural(len(getattr(store, kind).list()), kind[:-1]) for kind in kinds)
        return {"found": f"{store.url}: {counted}; integrity check and checksums OK"}


def _cache() -> dict[str, Any]:
    from karat.models import cache_stats

    stats = cache_stats()
    replies = plural(stats["entries"], "reply", "replies")
    return {"found": f"{stats['path']}: {replies}, {plural(stats['bytes'], 'byte')}"}


def _local_model() -> dict[str, Any]:
    from karat.models import available

    local = next(each for each in available() if each["kind"] == "local")
    if local["ready"]:
        return {"found": f"{local['spec']} is ready"}
    return {"state": "missing", "found": f"{local['spec']} is not ready", "remedy": local["needs"]}


def _plugins() -> dict[str, Any]:
    from karat.registry import PLUGIN_GROUP

    if os.environ.get("KARAT_PLUGINS") == "0":
        return {"found": "off (KARAT_PLUGINS=0)"}
    names, broken = [], []
    for point in metadata.entry_points(group=PLUGIN_GROUP):
        try:
            point.load()
            names.append(point.name)
        except Exception as error:
            broken.append(f"{point.name}: {error}")
    if broken:
        return {"state": "broken", "found": "; ".join(broken), "remedy": "upgrade or uninstall the plug-in"}
    return {"found": ", ".join(names) or "none installed"}


STYLES = {"ok": "good", "missing": "warning", "broken": "bad"}


def _blocks(document: dict[str, Any]) -> list[Block]:
    rows = []
    for check in document["checks"]:
        purpose = f" (for {check['for']})" if check.get("for") and check["state"] != "ok" else ""
        state = Styled(check["state"], STYLES.get(check["state"], ""))
        rows.append([state, check["what"], f"{clean(check['found'], 110)}{purpose}", check.get("remedy", "")])
    blocks: list[Block] = [Table(["state", "check", "found", "fix"], rows, lines=6)]
    if document["variables"]:
        blocks.append(Paragraph(f"set in the environment: {', '.join(document['variables'])}"))
    return blocks
