"""The public names, and what importing them costs."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import karat.stats


def test_every_public_name_can_be_had() -> None:
    for name in dir(karat.stats):
        assert getattr(karat.stats, name) is not None


def test_no_name_is_hidden_by_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(karat.stats.__path__)}
    assert not modules & set(dir(karat.stats))


def test_an_unknown_name_is_an_attribute_error() -> None:
    misspelt = "wilsom"
    with pytest.raises(AttributeError, match=misspelt):
        getattr(karat.stats, misspelt)


def test_importing_and_the_simple_intervals_need_no_numpy() -> None:
    program = (
        "import sys, karat.stats\n"
        "karat.stats.wilson(3, 5); karat.stats.mean_interval([1, 2, 4]); karat.stats.holm([0.1])\n"
        "sys.exit('numpy' in sys.modules or 'scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
