"""What a run depends on beside its task: versions, platform, the commit, and defaults from the environment."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from karat import __version__

DEFAULTS = ("KARAT_MODEL", "KARAT_JUDGE_MODEL", "OPENAI_MODEL", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")
"""Variables that change what a task or judge asks; none of them is a secret."""


def environment() -> dict[str, Any]:
    """For the record: which karat, which Python, where, and at which commit."""
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
    """The defaults that are set: part of the configuration."""
    return {name: os.environ[name] for name in DEFAULTS if os.environ.get(name)}


def git_commit(folder: Path) -> str | None:
    """The commit checked out here, read from git's files: starting git would cost more than the rest."""
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
