"""A key that an object has twice is an error with its line: the last value would win silently."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.datasets import Dataset
from karat.datasets.readers.json import may_repeat_keys, repeated_key
from karat.errors import DataError
from karat.tasks import RecordedOutputs

TWICE = [
    '{"question": "a", "question": "b"}',
    '{"question" : "a", "question" : "b"}',
    '{"question": "a", "question"\t: "b", "x": 1}',
    '{"question": {"deep": [{"a": 1, "b": 2, "a": 3}]}}',
    '{"question": "a \\": b", "question": ": c"}',
    '{"question": "a", "\\u0071uestion": "b"}',
]


@pytest.mark.parametrize("row", TWICE)
def test_a_row_with_a_duplicate_key_is_refused_with_its_line(tmp_path, row):
    lines = tmp_path / "d.jsonl"
    lines.write_text('{"question": "1"}\n' + row + "\n")
    with pytest.raises(DataError, match=r"line 2.*duplicate key"):
        Dataset.from_file(lines, input="question")
    partial = Dataset.from_file(lines, input="question", skip_bad_rows=True)
    assert (len(partial), [bad.line for bad in partial.skipped]) == (1, [2])
    assert [example.input for example in partial] == ["1"]  # also when the rows are read again
    array = tmp_path / "d.json"
    array.write_text('[{"question": "1"},\n' + row + "]\n")
    with pytest.raises(DataError, match=r"line 2.*duplicate key"):
        Dataset.from_file(array, input="question")


def test_the_column_is_that_of_the_second_key(tmp_path, refuses):
    file = tmp_path / "d.jsonl"
    file.write_text('{"a": "a", "b": 1, "a": 2}\n')
    with refuses(DataError):
        Dataset.from_file(file)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(alphabet='a":\\ ,{}é', max_size=6),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(alphabet='a":\\ b', max_size=3), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    st.sampled_from([None, (",", ":"), (" , ", " : "), (",", "\t:")]),
)
def test_text_without_duplicate_keys_is_accepted(value, separators):
    text = json.dumps(value, separators=separators)
    assert not may_repeat_keys(text.encode(), value) or repeated_key(text) is None


@given(
    st.dictionaries(st.text(alphabet='a":\\ b', max_size=3), st.integers(), min_size=1, max_size=4),
    st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : "), (",", "\t:")]),
    st.data(),
)
def test_every_duplicate_key_is_found(value, separators, data):
    name = data.draw(st.sampled_from(sorted(value)))
    comma, colon = separators
    text = json.dumps(value, separators=separators)
    again = f"{json.dumps(name)}{data.draw(st.sampled_from([colon, ':', ' :']))}7"
    twice = data.draw(st.sampled_from([f"{text[:-1]}{comma}{again}}}", f"{{{again}{comma}{text[1:]}"]))
    nested = f'{{"deep": [{twice}]}}'
    for each in (twice, nested):
        assert may_repeat_keys(each.encode(), json.loads(each))
        assert repeated_key(each) is not None


def test_recorded_outputs_refuse_them(tmp_path, refuses):
    file = tmp_path / "outputs.jsonl"
    file.write_text('{"id": 1, "output": 1}\n{"id": 2, "output": 1, "output": 2}\n')
    with refuses(DataError):
        RecordedOutputs(file)


def test_a_duplicate_key_among_many_is_found_in_linear_time(limited):
    names = [f'"k{at}": 1' for at in range(60_000)]
    limited()
    assert repeated_key("{" + ", ".join([*names, '"k59999": 2']) + "}") is not None
