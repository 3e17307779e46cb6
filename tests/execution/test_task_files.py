"""Which file a task is in: two files are two tasks, and one file is one task from wherever it is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import karat
from karat.cli import main
from karat.errors import CodeChanged, StoreError
from karat.tasks import Context, Task

STOPS = """
from pathlib import Path

import karat
from karat.errors import StoreError


{decorated}
def answer(number):
    if number >= 2 and not Path({go!r}).exists():
        raise StoreError("the disk is gone")
    return number
{rest}
"""
SCRIPT = """
if __name__ == "__main__":
    rows = [{"id": str(n), "input": n} for n in range(5)]
    print(karat.run(answer, karat.Dataset.from_examples(rows, name="five"), store=STORE, concurrency=1).id)
"""
VERSIONED = "def versioned(f):\n    f.version = '1'\n    return f\n\n\n@versioned"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[karat.Store]:
    with karat.open_store(tmp_path / "shared.db") as opened:
        yield opened


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


def five() -> karat.Dataset:
    return karat.Dataset.from_examples([{"id": str(n), "input": n} for n in range(5)], name="five")


def write(file: Path, go: Path, rest: str = "", decorated: str = "") -> str:
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(STOPS.format(go=str(go), rest=rest, decorated=decorated))
    return f"{file}:answer"


def interrupted(task: str, store: karat.Store) -> karat.Run:
    with pytest.raises(StoreError, match="disk"):
        karat.run(task, five(), store=store, concurrency=1)
    return store.runs.get("latest")


@pytest.mark.parametrize("decorated", ["", VERSIONED])
@pytest.mark.parametrize("names", [("a.py", "b.py"), ("a/answer.py", "b/answer.py")])
def test_an_unfinished_run_does_not_refuse_a_function_of_that_name_in_another_file(
    store: karat.Store, tmp_path: Path, go: Path, names: tuple[str, str], decorated: str
) -> None:
    first, second = (write(tmp_path / name, go, f"# {name}\nX = {name!r}", decorated) for name in names)
    one, two = interrupted(first, store), interrupted(second, store)
    assert one.id != two.id
    go.touch()
    for task, before in ((first, one), (second, two)):
        run = karat.run(task, five(), store=store)
        assert (run.id, run.status, run.counts.ok) == (before.id, "success", 5)
    # A finished one is not taken for the other after a change of code either.
    third = karat.run(
        write(tmp_path / "c.py", go, "X = 'c'", decorated), five(), store=store, accept_code_change=True
    )
    assert third.id not in (one.id, two.id)
    assert third.notice == ""
    assert len(set(karat.store.run_labels.run_labels([one.header, two.header]).values())) == 2


class Repeat(Task):
    """Repeats the input."""

    name = "repeat"

    def call(self, example: karat.Example, context: Context) -> str:
        return str(example.input) * 2

    def configuration(self) -> dict[str, int]:
        return {"times": 2}


class Shout(Repeat):
    """The same configuration, and another name."""

    name = "shout"


def test_tasks_whose_configurations_leave_out_their_names_are_apart(store: karat.Store) -> None:
    runs = [karat.run(task, five(), store=store) for task in (Repeat(), Shout(), Repeat())]
    assert runs[0].id == runs[2].id != runs[1].id
    assert runs[1].notice == ""


@pytest.mark.parametrize("decorated", ["", VERSIONED])
def test_a_project_that_was_moved_continues_its_runs(
    store: karat.Store, tmp_path: Path, go: Path, decorated: str
) -> None:
    before = interrupted(write(tmp_path / "here" / "answer.py", go, "", decorated), store)
    (tmp_path / "here").rename(tmp_path / "there")
    go.touch()
    run = karat.run(f"{tmp_path}/there/answer.py:answer", five(), store=store)
    assert (run.id, run.counts.ok) == (before.id, 5)


def test_code_that_was_changed_after_the_project_was_moved_is_refused(
    store: karat.Store, tmp_path: Path, go: Path
) -> None:
    interrupted(write(tmp_path / "here" / "answer.py", go), store)
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(CodeChanged):
        karat.run(write(tmp_path / "there" / "answer.py", go, "X = 2"), five(), store=store)


@pytest.mark.parametrize("decorated", ["", VERSIONED])
def test_the_command_line_a_script_and_an_import_continue_one_run(
    store: karat.Store, tmp_path: Path, go: Path, decorated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "answer_of_all.py"
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    write(file, go, SCRIPT.replace("STORE", repr(url)), decorated)
    before = interrupted(f"{file}:answer", store)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "five.jsonl").write_text("".join(f'{{"id": "{n}", "number": {n}}}\n' for n in range(5)))
    script = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert "disk" in script.stderr
    imported = "import answer_of_all as a, karat, sys; " + SCRIPT.split(":\n", 1)[1].replace(
        "    ", ""
    ).strip().replace("\n", "; ").replace("answer,", "a.answer,").replace("STORE", repr(url))
    go.touch()
    done = subprocess.run([sys.executable, "-c", imported], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == before.id, done.stderr
    assert len(list(store.runs.list())) == 1
    assert main(["run", "answer_of_all.py:answer", "--data", "five", "--store", url]) == 0
    assert len(list(store.runs.list())) == 1


CELL = """
import karat

def answer(number):
    return number * {times}

rows = [{{"id": str(n), "input": n}} for n in range(5)]
run = karat.run(answer, karat.Dataset.from_examples(rows, name="five"), store={store!r}, {more})
"""


def run_cell(notebook: Path, code: str, named_by: str) -> None:
    """Run a cell in a kernel of Jupyter that is told its notebook."""
    from jupyter_client.manager import start_new_kernel

    told = {"JPY_SESSION_NAME": str(notebook)} if named_by == "jupyter" else {}
    manager, client = start_new_kernel(cwd=str(notebook.parent), env={**os.environ, **told})
    try:
        if named_by == "vscode":
            code = f"__vsc_ipynb_file__ = {str(notebook)!r}\n{code}"
        reply = client.execute_interactive(code, timeout=60, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok", reply["content"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("named_by", ["jupyter", "vscode"])
def test_functions_of_one_name_in_two_notebooks_are_two_tasks(
    store: karat.Store, tmp_path: Path, named_by: str
) -> None:
    one, two = tmp_path / "one.ipynb", tmp_path / "two.ipynb"
    for times, notebook in enumerate((one, two), 1):
        notebook.touch()
        cell = CELL.format(times=times, store=store.url, more="accept_code_change=True")
        run_cell(notebook, cell, named_by)
    first, second = store.runs.list()
    assert [output.value for output in second.outputs()] == [0, 2, 4, 6, 8]
    # A change of the code is one of the same task, as in a file.
    run_cell(two, CELL.format(times=3, store=store.url, more="accept_code_change=True"), named_by)
    assert [run.id for run in store.runs.list()] == [first.id, second.id]
