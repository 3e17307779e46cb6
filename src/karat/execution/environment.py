"""The surroundings of a run: versions, platform, git commit, and the variables that choose default models."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from karat import __version__

DEFAULTS = ("KARAT_MODEL", "OPENAI_MODEL", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")
"""Variables that change what code asks which takes its models from the environment; none of them holds a secret."""

JUDGE_DEFAULTS = ("KARAT_JUDGE_MODEL", *DEFAULTS)
"""The same for evaluators: a judge variable never belongs to a run."""


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


def defaults(part: object, names: tuple[str, ...] = DEFAULTS) -> dict[str, str]:
    """The variables that are set, for the fingerprint of a task or an evaluator; none where it names its models."""
    if getattr(part, "names_models", False):
        return {}
    return {name: os.environ[name] for name in names if os.environ.get(name)}


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
