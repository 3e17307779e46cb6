"""What starting costs: `import karat` over a bare interpreter, and `karat --help`.

python bench/startup.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from machine import machine, write_bytecode


def milliseconds(command: list[str], rounds: int) -> float:
    """The median wall time of a command, after one that warms the file cache."""
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        taken.append(1000 * (time.perf_counter() - start))
    return sorted(taken[1:])[rounds // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(machine())
    write_bytecode()
    bare = milliseconds([sys.executable, "-c", "pass"], rounds)
    imported = milliseconds([sys.executable, "-c", "import karat"], rounds)
    command = str(Path(sys.executable).with_name("karat"))
    help_ = milliseconds([command, "--help"], rounds)
    print(f"bare interpreter        {bare:6.1f} ms")
    print(f"import karat           +{imported - bare:6.1f} ms  (wanted: at most 60)")
    print(f"karat --help            {help_:6.1f} ms  (wanted: at most 250)")


if __name__ == "__main__":
    main()
