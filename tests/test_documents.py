"""YAML files: what makes one unreadable is told with its line."""

from pathlib import Path

import pytest

from karat.documents import read_document
from karat.errors import ConfigError


@pytest.mark.parametrize("character", ["\x00", "\x07", "\ufffe"])
def test_a_control_character_is_told_with_its_line(tmp_path: Path, character: str) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(f"name: x\nnumber: 1  # {character}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"line 2: a control character .*U\+{ord(character):04X}"):
        read_document(path)
