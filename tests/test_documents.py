"""YAML files: syntax errors are reported with their line."""

from pathlib import Path

import pytest

from karat.documents import read_document
from karat.errors import ConfigError


@pytest.mark.parametrize("character", ["\x00", "\x07", "\ufffe"])
def test_a_control_character_is_reported_with_its_line(tmp_path: Path, character: str) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(f"name: x\nnumber: 1  # {character}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"line 2: .*U\+{ord(character):04X}"):
        read_document(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:\n  b: 1\n c: 2\n", "line 3, column 2: inconsistent indentation"),
        ("a:\n  - b\n - c\n", "line 3, column 2: inconsistent indentation"),
        ("a:\n\tb: 1\n", "line 2, column 1: indent with spaces, not a tab"),
        (
            "a: b\n  c: 1\n",
            "line 2, column 4: unexpected colon",
        ),
        ('a: "b\nc: 1\n', "line 1, column 4: unclosed quotation mark"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: a second document (---)"),
        (f"a: 1\nb: {'9' * 5000}\n", "line 2, column 4: a number too long"),
        (f"a: 1\nb: {'[' * 3000}{']' * 3000}\n", "line 2, column 64: nested too deeply"),
        (
            "a: 1\nb:\n" + "".join(f"{' ' * n}c:\n" for n in range(1, 900)),
            "line 62, column 61: nested too deeply",
        ),
        ("a: @b\n", "line 1, column 4: found character '@' that cannot start any token: quote the value"),
    ],
)
def test_what_is_no_yaml_is_reported_in_words_of_the_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    assert caught.value.problems[0].startswith(said)
