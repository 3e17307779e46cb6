"""The sync versions of async functions: errors about arguments name the called function."""

from __future__ import annotations

import pytest

import karat


def test_a_misspelt_argument_names_the_function_and_the_nearest_one() -> None:
    with pytest.raises(
        TypeError, match=r"^run\(\) got an unexpected .*'concurency': did you mean 'concurrency'\?$"
    ):
        karat.run(len, [], concurency=3)  # type: ignore[call-arg]  # wrong on purpose


def test_a_missing_argument_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"^run\(\) missing 1 required positional argument: 'dataset'$"):
        karat.run(len)  # type: ignore[call-arg]  # wrong on purpose
