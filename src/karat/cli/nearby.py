"""What there is to run in a folder that has nearly the name of something that cannot be run."""

from __future__ import annotations

from pathlib import Path

from karat.errors import nearest

RUNNABLE = (".yaml", ".yml", ".py")
MOST = 1000
"""Entries of a folder that are looked at."""


def near(text: str) -> str | None:
    """The experiment, task folder or Python file of the same folder whose name, with or without ending, is nearest."""
    file, _, function = text.partition(":")
    folder = Path(file).parent
    names: dict[str, Path] = {}
    try:
        for _, each in zip(range(MOST), folder.iterdir(), strict=False):
            if _runs(each):
                names[each.name] = each
                names.setdefault(each.stem, each)
    except OSError:
        return None
    close = nearest(Path(file).name, names, 1)
    if not close:
        return None
    found = names[close[0]]
    return f"{found}:{function or 'FUNCTION'}" if found.suffix == ".py" else str(found)


def _runs(path: Path) -> bool:
    if path.is_dir():
        return any((path / name).is_file() for name in ("experiment.yaml", "graph_config.yaml"))
    return path.suffix in RUNNABLE and not path.name.startswith("__")
