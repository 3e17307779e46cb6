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
    "text",
    [
        "a:\n  b: 1\n c: 2\n",
        "a:\n  - b\n - c\n",
        "a:\n\tb: 1\n",
        "a: b\n  c: 1\n",
        'a: "b\nc: 1\n',
        "a: 1\n---\nb: 2\n",
        f"a: 1\nb: {'9' * 5000}\n",
        f"a: 1\nb: 0x{'f' * 5000}\n",
        f"a: 1\nb: !!int '0{'7' * 5000}'\n",
        f"a: 1\nb: !!int '0b{'1' * 20000}'\n",
        f"a: 1\nb: !!int '9{'_999' * 1500}'\n",
        f"a: 1\nb: {'[' * 3000}{']' * 3000}\n",
        "a: 1\nb:\n" + "".join(f"{' ' * n}c:\n" for n in range(1, 900)),
        "a: @b\n",
    ],
)
def test_invalid_yaml_is_reported_with_its_line(tmp_path: Path, text: str, says) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    says(caught.value.problems[0])


def test_the_longest_integers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(f"a: {'9' * 4299}\nb: 0x{'f' * 3571}\n", encoding="utf-8")
    read = read_document(path).value
    assert (read["a"], read["b"]) == (10**4299 - 1, 16**3571 - 1)
    assert str(read["b"])


MANY = "".join(f"k{n}: &a{n} 1\n" for n in range(30_000))
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 50))


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: !!timestamp nope\n",
        "a: 1\nb: !!timestamp 2001-01-01\n",
        "a: 1\nb: !!bool abc\n",
        "a: 1\nb: !!binary aGVsbG8=\n",
        "a: 1\nb: !!set {c, d}\n",
        "a: 1\nb: !!python/object/apply:os.system ['true']\n",
        "a: 1\n~: 2\n",
        'a: 1\nb: "\\Uffffffff"\n',
        MANY,
        BOMB,
    ],
    ids=lambda text: text[5:].partition("\n")[0][:30] if text not in (MANY, BOMB) else text[:2],
)
def test_tags_and_keys_that_mean_nothing_in_a_configuration(tmp_path: Path, text: str, says) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    says(caught.value.problems[0])


def test_tags_of_json_are_read(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text("a: !!str 1\nb: !!float 2\nc: !!bool true\nd: !!null ''\ne: !!int 3\nf: !!seq []\n")
    assert read_document(path).value == {"a": "1", "b": 2.0, "c": True, "d": None, "e": 3, "f": []}
