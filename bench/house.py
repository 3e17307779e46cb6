"""The size and the order of the code: files, lines, shards, cycles, and the way of one example through it.

    python bench/house.py            # this tree
    python bench/house.py PATH       # another one: the folder that has src/karat

The way is that of `karat run experiment.yaml` with three examples in a fresh store: the functions of karat that are
called (bodies of modules and classes, lambdas and comprehensions left out), their modules, and how often the next
function called lies in another folder.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

EXPERIMENT = """
dataset: [{input: a, expected: A}, {input: b, expected: B}, {input: c, expected: C}]
task: task.py:shout
evaluators: [exact_match]
aggregators: [accuracy]
concurrency: 1
"""

TRACE = """
import json, sys, threading
from pathlib import Path

root = str(Path(sys.argv[1]) / "src" / "karat")
called, folders = set(), []

def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and code.co_name[0] != "<" and code.co_filename.startswith(root):
        called.add((code.co_filename, code.co_qualname))
        folder = str(Path(code.co_filename).parent)
        folders.append(folder)

from karat.cli import main

threading.setprofile(profile)
sys.setprofile(profile)
code = main(["run", "experiment.yaml", "--quiet", "--json"])
sys.setprofile(None)
changes = sum(a != b for a, b in zip(folders, folders[1:]))
print(json.dumps([len(called), len({file for file, _ in called}), changes, len(folders)]), file=sys.stderr)
"""


def modules(source: Path) -> dict[str, Path]:
    found = {}
    for path in source.rglob("*.py"):
        parts = ("karat", *path.relative_to(source).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


NAMED = {("registry", "karat.graph.metrics"), ("keys", "karat.models")}
"""Names in strings that do not count: the plug-in that karat ships, and a text that tasks are searched for."""


def named(tree: ast.AST, known: dict[str, Path], room: str) -> set[str]:
    """The modules of karat whose full names a module has in strings, as registries and lazy exports do."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {str(text) for text in texts if text in known and (room, text) not in NAMED}


def imported(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """The modules of karat that a module imports, lazily or not; not under TYPE_CHECKING."""
    found: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
                continue
            pending.append(node)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "karat":
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found.add(full if full in known else str(node.module))
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "karat"}
    return found


def cycles(rooms: dict[str, set[str]]) -> list[list[str]]:
    """Groups of rooms that depend on each other."""

    def reach(room: str) -> set[str]:
        seen: set[str] = set()
        pending = [room]
        while pending:
            new = rooms.get(pending.pop(), set()) - seen
            seen |= new
            pending += new
        return seen

    reached = {room: reach(room) for room in rooms}
    return sorted(
        {tuple(sorted(o for o in reached[r] if r in reached.get(o, ()))) for r in rooms if r in reached[r]}
    )


def annotated(known: dict[str, Path], *names: str) -> int:
    """Parameters annotated with one of these names alone, of public functions outside internal rooms and modules."""
    internal = {"execution", "analysis", "reporting", "store", "experiments", "cli", "view"}
    count = 0
    for name, path in known.items():
        if set(name.split(".")[1:]) & internal and name.split(".")[1] in internal - {"execution", "analysis"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
                arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                count += sum(
                    isinstance(a.annotation, ast.Name) and a.annotation.id in names for a in arguments
                )
    return count


ADDED = (
    *("karat.memory", "karat.cli.memory", "karat.testing._memory_conformance"),
    *("karat.view", "karat.cli.view"),
    *("karat.evaluators.judges", "karat.analysis.judge", "karat.cli.judge"),
)
"""Prefixes of the modules of memory systems, the viewer and judges, which the first measured tree did not have."""


def way(tree: Path) -> list[int]:
    """Functions, modules, changes of folder and calls of `karat run experiment.yaml` with three examples."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "experiment.yaml").write_text(EXPERIMENT)
        Path(folder, "task.py").write_text("def shout(text):\n    return text.upper()\n")
        Path(folder, "trace.py").write_text(TRACE)
        environment = {
            "PYTHONPATH": str(tree / "src"),
            "PATH": "",
            "HOME": folder,
            "KARAT_CACHE": f"{folder}/c.db",
        }
        done = subprocess.run(
            [sys.executable, "trace.py", str(tree)],
            cwd=folder, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stderr.splitlines()[-1])


def main() -> None:
    tree = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    source = tree / "src" / "karat"
    known = modules(source)
    users: dict[str, set[str]] = defaultdict(set)
    rooms: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        room = name.split(".")[1] if "." in name else "__init__"
        tree_of_module = ast.parse(path.read_text())
        imports = imported(tree_of_module, known)
        for target in imports:
            users[target].add(name)
        for target in imports | named(tree_of_module, known, room):
            other = target.split(".")[1] if "." in target else "__init__"
            if other != room:
                rooms[room].add(other)
    lengths = sorted(len(path.read_text().splitlines()) for path in known.values())
    alone = [
        name for name, path in known.items() if len(users[name] - {name}) == 1 and path.name != "__init__.py"
    ]
    functions, files, changes, calls = way(tree)
    older = [path for name, path in known.items() if not name.startswith(ADDED)]
    older_lines = sum(len(path.read_text().splitlines()) for path in older)
    print(f"files                         {len(known)}, {len(older)} without memory, viewer and judges")
    print(f"lines                         {sum(lengths):,}, {older_lines:,} without them")
    print(f"median lines of a file        {lengths[len(lengths) // 2]}")
    print(f"modules with one importer     {len(alone)}")
    print(f"functions on the way          {functions} in {files} modules")
    print(f"changes of folder on the way  {changes} in {calls:,} calls")
    print(f"cycles between rooms          {[list(each) for each in cycles(rooms)] or 'none'}")
    aliases = annotated(known, "Value", "JSON")
    print(
        f"bare Any parameters           {annotated(known, 'Any')}, and {aliases} of its aliases Value and JSON"
    )


if __name__ == "__main__":
    main()
