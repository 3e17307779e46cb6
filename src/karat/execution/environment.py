"""The surroundings of a run: versions, platform, git commit, and the variables that choose default models."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from karat import __version__

DEFAULTS = ("KARAT_MODEL", "KARAT_JUDGE_MODEL", "OPENAI_MODEL", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")
"""Variables that change what a task or judge asks for; none of them holds a secret."""


def environment() -> dict[str, Any]:
    """Versions of karat and Python, the platform, and the git commit if there is one: recorded with each run."""
    out: dict[str, Any] = {
        "karat": __version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
    }
    commit = git_commit(Path.cwd())
    if commit:
        out["git_commit"] = commit
    return out


def defaults() -> dict[str, str]:
    """The variables of DEFAULTS that are set: part of the configuration fingerprint."""
    return {name: os.environ[name] for name in DEFAULTS if os.environ.get(name)}


def git_commit(folder: Path) -> str | None:
    """The checked-out commit, read from git's files because starting git takes longer than the rest of `open`."""
    for place in (folder, *folder.parents):
        head = place / ".git" / "HEAD"
        if not head.is_file():
            continue
        try:
            text = head.read_text().strip()
            if not text.startswith("ref: "):
                return text
            ref = text[5:]
            loose = place / ".git" / ref
            if loose.is_file():
                return loose.read_text().strip()
            for line in (place / ".git" / "packed-refs").read_text().splitlines():
                if line.endswith(" " + ref):
                    return line.split()[0]
        except OSError:
            return None
        return None
    return None
