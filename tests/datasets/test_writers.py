"""Files that appear whole or not at all, and what is left of those that a killed process was writing."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from karat.datasets import check_writable, whole_file
from karat.datasets.writers import guarded, unguarded
from karat.errors import RequestError

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


def write(path: Path, content: bytes = b"mine") -> None:
    with whole_file(path) as file:
        file.write(content)


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "karat.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE rows (number)")
    yield path
    connection.close()


@pytest.mark.parametrize(
    "name", ["karat.db", "karat.db-wal", "karat.db-shm", "karat.db-journal", "link", "hard"]
)
def test_a_database_and_its_logs_are_not_written_over(database, name, refuses):
    os.symlink("karat.db-wal", database.parent / "link")
    os.link(database, database.parent / "hard")
    content = {each: each.read_bytes() for each in database.parent.iterdir()}
    with refuses(RequestError):
        write(database.parent / name)
    with pytest.raises(RequestError):
        check_writable(database.parent / name)
    assert {each: each.read_bytes() for each in database.parent.iterdir()} == content


def test_a_database_created_during_the_export_is_not_overwritten(tmp_path):
    path = tmp_path / "rows.jsonl"

    def slowly() -> None:
        with whole_file(path) as file:
            file.write(b"mine")
            with sqlite3.connect(path) as connection:
                connection.execute("CREATE TABLE rows (number)")

    with pytest.raises(RequestError):
        slowly()
    assert os.listdir(tmp_path) == ["rows.jsonl"]
    assert path.read_bytes().startswith(b"SQLite")


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target.jsonl"
    for name, to in {"one": "two", "two": "folder/target.jsonl"}.items():
        os.symlink(to, tmp_path / name)
    for content in (b"new", b"again"):
        check_writable(tmp_path / "one")
        write(tmp_path / "one", content)
        assert target.read_bytes() == content
        assert (tmp_path / "one").is_symlink()
    assert os.listdir(tmp_path / "folder") == ["target.jsonl"]


def test_links_that_lead_to_themselves_are_refused(tmp_path):
    os.symlink("b", tmp_path / "a")
    os.symlink("a", tmp_path / "b")
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path / "a")
    with pytest.raises(RequestError):
        check_writable(tmp_path / "a")


def test_a_fifo_is_written_into(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    check_writable(path)
    write(path)
    reader.join(10)
    assert found == [b"mine"]
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert os.listdir(tmp_path) == ["fifo"]


def test_a_device_is_written_into(tmp_path):
    path = tmp_path / "device"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        path.write_bytes(b"")
    except OSError:
        pytest.skip("devices cannot be made here")
    check_writable(path)
    write(path)
    assert stat.S_ISCHR(path.stat().st_mode)


@pytest.mark.parametrize("to", ["pipe", "file"])
def test_an_open_descriptor_is_written_into(tmp_path, to):
    """`/dev/stdout` leads to `/proc/self/fd/1`; what the shell has appended to stays."""
    code = "import sys; from pathlib import Path; from karat.datasets import *\n"
    code += (
        "path = Path(sys.argv[1]); check_writable(path)\nwith whole_file(path) as file: file.write(b'mine')"
    )
    os.symlink("/proc/self/fd/1", tmp_path / "stdout")
    command = [sys.executable, "-c", code, str(tmp_path / "stdout")]
    if to == "pipe":
        done = subprocess.run(command, capture_output=True, check=False)
        assert (done.stdout, done.stderr) == (b"mine", b"")
    else:
        log = tmp_path / "log"
        log.write_bytes(b"before ")
        with log.open("ab") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, check=False)
        assert (log.read_bytes(), done.stderr) == (b"before mine", b"")
        assert sorted(os.listdir(tmp_path)) == ["log", "stdout"]


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        write(tmp_path)
    with pytest.raises(RequestError):
        check_writable(tmp_path)


@pytest.mark.parametrize(
    "sign", ["=", "+", "-", "@", "\t", "\r", "\n", *"\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212"]
)
@pytest.mark.parametrize(
    "before", ["", *"\0\x0b\x9f\ufeff\u200b\xa0\xad\u2003\u202f\u3000\u202e\u2066\u2028\ufe0f", "'", "''"]
)
def test_formulas_are_text_and_can_be_read_back(before, sign):
    cell = guarded(f"{before}{sign}1+1")
    assert cell == f"'{before}{sign}1+1"
    assert unguarded(cell) == f"{before}{sign}1+1"


@pytest.mark.parametrize("text", ["", "a=1", " - a list", "'quoted'", "'", "\ufeffa", "\0"])
def test_other_text_in_a_table_stays_as_it_is(text):
    assert guarded(text) == text
    assert unguarded(text) == text
