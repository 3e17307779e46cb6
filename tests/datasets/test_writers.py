"""Files that appear whole or not at all, and what is left of those that a killed process was writing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from karat.datasets import whole_file

WRITING = """
import sys
from pathlib import Path
from karat.datasets import whole_file

with whole_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


def writing(path: Path) -> subprocess.Popen[str]:
    """A process that has written half of a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    return process


def test_the_next_file_removes_what_a_killed_process_left(tmp_path):
    path = tmp_path / "rows.jsonl"
    killed, alive = writing(path), writing(path)
    killed.kill()
    killed.communicate()
    assert len(os.listdir(tmp_path)) == 2
    with whole_file(path) as file:
        file.write(b"mine")
    assert path.read_bytes() == b"mine"
    assert len(os.listdir(tmp_path)) == 2, "the file of the process that is still at work stays"
    alive.communicate("")
    assert alive.returncode == 0
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"half"]


def test_files_of_others_and_new_empty_ones_stay(tmp_path):
    path = tmp_path / "rows.jsonl"
    names = [".rows.jsonl.notes", ".other.jsonl.abc.unfinished", ".rows.jsonl.new.unfinished"]
    for name in names:
        (tmp_path / name).write_bytes(b"" if "new" in name else b"text")
    old = tmp_path / ".rows.jsonl.old.unfinished"
    old.touch()
    os.utime(old, (0, 0))
    with whole_file(path) as file:
        file.write(b"mine")
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "rows.jsonl"])
