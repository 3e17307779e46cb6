"""On what machine a figure was measured, and small tools for measuring."""

from __future__ import annotations

import compileall
import os
import platform
import resource
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def machine() -> str:
    """One line: processor, cores, memory, Python."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    try:
        memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):
        memory = "? GiB"
    return f"{name}, {os.cpu_count()} cores, {memory}, Python {platform.python_version()}, {sys.platform}"


def peak_megabytes() -> float:
    """The largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def cpu_seconds() -> float:
    """Processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def write_bytecode(checkout: Path = CHECKOUT) -> None:
    """Compile the sources, as an installer does: processes that are started would compile them again and again."""
    compileall.compile_dir(checkout / "src", quiet=1)
