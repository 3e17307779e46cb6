"""What the extras for memory systems install: mem0 and langmem together, and no torch."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytest.importorskip("mem0")
pytest.importorskip("langmem")


def required_by(name: str, extras: frozenset[str] = frozenset()) -> dict[str, Requirement]:
    """Every package that a package needs here, by name, with its own requirements."""
    found: dict[str, Requirement] = {}
    pending = [(name, extras)]
    seen = set()
    while pending:
        package, wanted = pending.pop()
        if (package, wanted) in seen:
            continue
        seen.add((package, wanted))
        try:
            listed = requires(package) or []
        except PackageNotFoundError:
            continue
        for text in listed:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                found[canonicalize_name(requirement.name)] = requirement
                pending.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("extra", "module"), [("mem0", "mem0"), ("langmem", "langmem"), ("graphiti", "graphiti_core")]
)
def test_an_extra_brings_no_torch(extra, module):
    pytest.importorskip(module)
    packages: dict[str, Requirement] = {}
    for text in PROJECT["optional-dependencies"][extra]:
        packages |= required_by(Requirement(text).name)
    assert len(packages) > 20
    assert not {"torch", "tensorflow", "sentence-transformers"} & packages.keys()


def test_all_extras_but_graphiti_are_installed_together_for_the_tests():
    extras = PROJECT["optional-dependencies"]
    assert Requirement(extras["test"][0]).extras == extras.keys() - {"test", "graphiti"}
