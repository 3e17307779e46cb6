"""Images and sounds in rows become addresses that a prompt can hold."""

from __future__ import annotations

import base64
import io
import json
import wave

import pytest

import karat
from karat.datasets.readers.hub import hub_rows
from karat.datasets.sources import source_rows
from karat.datasets.transformations import CreateAudioUrlTransform, CreateImageUrlTransform
from karat.errors import DataError, RequestError
from karat.registry import load_object

PNG = b"\x89PNG\r\n\x1a\n" + b"rest"


def one(transform, row, **params):
    [out] = transform().transform([row], params)
    return out


def content(address):
    head, _, data = address.partition(";base64,")
    return head, base64.b64decode(data)


def test_an_image_may_be_a_file_bytes_or_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(PNG)
    row = {
        "file": "a.png",
        "bytes": PNG,
        "both": {"bytes": PNG, "path": None},
        "several": [PNG, "a.png"],
        "n": 1,
    }
    out = one(CreateImageUrlTransform, row)
    for address in (out["file"], out["bytes"], out["both"], *out["several"]):
        assert content(address) == ("data:image/png", PNG)
    assert out["n"] == 1
    assert row["file"] == "a.png"
    json.dumps(out)


def test_an_image_of_pillow_is_written_as_png():
    class Picture:  # what `datasets` gives for a column of images
        mode, size = "RGB", (1, 1)

        def save(self, file, format):
            file.write(PNG + format.encode())

    assert content(one(CreateImageUrlTransform, {"image": Picture()})["image"]) == (
        "data:image/png",
        PNG + b"PNG",
    )


@pytest.mark.parametrize("value", ["https://example.org/a.png", "data:image/png;base64,AA==", None])
def test_addresses_and_nothing_stay_as_they_are(value):
    assert one(CreateImageUrlTransform, {"image": value}, fields=["image"]) == {"image": value}


def test_a_text_that_only_looks_like_a_file_stays_unless_its_field_is_named(tmp_path, monkeypatch, refuses):
    monkeypatch.chdir(tmp_path)
    assert one(CreateImageUrlTransform, {"text": "see fig.png"}) == {"text": "see fig.png"}
    with refuses(DataError):
        one(CreateImageUrlTransform, {"text": "see fig.png"}, fields=["text"])
    (tmp_path / "not.png").write_text("secret")
    with refuses(DataError):
        one(CreateImageUrlTransform, {"image": "not.png"})
    with refuses(DataError):
        one(CreateImageUrlTransform, {"image": 3}, fields=["image"])
    with refuses(RequestError):
        one(CreateImageUrlTransform, {"image": 3}, fields="image")


@pytest.mark.parametrize(
    ("start", "form"),
    [
        (b"RIFF\0\0\0\0WAVE", "wav"),
        (b"ID3\x04", "mpeg"),
        (b"\xff\xfb\x90", "mpeg"),
        (b"\xff\xf1\x50", "aac"),
        (b"OggS", "ogg"),
        (b"fLaC", "flac"),
        (b"\0\0\0\x20ftypM4A ", "mp4"),
        (b"FORM\0\0\0\0AIFF", "aiff"),
    ],
)
def test_a_sound_is_recognised_by_its_first_bytes(start, form):
    assert content(one(CreateAudioUrlTransform, {"audio": start})["audio"]) == (f"data:audio/{form}", start)


@pytest.mark.parametrize(("array", "channels"), [([0.0, 1.0, -1.0], 1), ([[0.0, 1.0], [0.5, -2.0]], 2)])
def test_samples_become_a_wav_file(array, channels):
    row = {"audio": {"array": array, "sampling_rate": 16_000, "path": "gone.flac"}}
    out = one(CreateAudioUrlTransform, row, output_fields={"audio": "address"})
    assert out["audio"] == row["audio"]
    head, data = content(out["address"])
    assert head == "data:audio/wav"
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (channels, 16_000, 2)
        frames = file.readframes(file.getnframes())
    assert len(frames) == 2 * sum(len(each) if isinstance(each, list) else 1 for each in array)


@pytest.mark.parametrize("name", ["image_url", "karat.datasets.transformations.CreateImageUrlTransform"])
def test_by_name_in_a_source(tmp_path, name):
    source = {"examples": [{"id": 1, "image": {"bytes": PNG}}], "transformations": [{"transform": name}]}
    [row] = source_rows(source, tmp_path, load_object)
    assert row["image"].startswith("data:image/png;base64,")


def sound():
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(bytes(160))
    return file.getvalue()


@pytest.fixture
def hub_file(tmp_path):
    """A Parquet file with images and sounds as `datasets` writes it."""
    pyarrow = pytest.importorskip("pyarrow")
    media = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    row = {
        "id": "1",
        "audio": {"bytes": sound(), "path": "a.wav"},
        "images": [{"bytes": PNG, "path": None}, {"bytes": PNG, "path": "b.png"}],
        "other": {"bytes": b"\x00\x01", "path": "x.bin"},
    }
    schema = {"id": pyarrow.string(), "audio": media, "images": pyarrow.list_(media), "other": media}
    features = {
        "id": {"dtype": "string", "_type": "Value"},
        "audio": {"_type": "Audio"},
        "images": {"feature": {"_type": "Image"}, "_type": "List"},
        "other": {
            name: {"dtype": kind, "_type": "Value"}
            for name, kind in {"bytes": "binary", "path": "string"}.items()
        },
    }
    table = pyarrow.Table.from_pylist([row], schema=pyarrow.schema(schema))
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    (tmp_path / "data").mkdir()
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "data" / "train.parquet")
    return tmp_path / "data" / "train.parquet"


def check_media(row):
    assert content(row["audio"]) == ("data:audio/wav", sound())
    assert [content(each) for each in row["images"]] == [("data:image/png", PNG)] * 2
    assert row["other"]["path"] == "x.bin", "content of another kind stays what it is"


def test_a_parquet_file_of_images_and_sounds_gives_addresses(hub_file):
    [example] = karat.Dataset.from_file(hub_file)
    check_media(example.input)


@pytest.mark.parametrize("streaming", [False, True])
def test_images_and_sounds_of_the_hub_are_not_decoded(hub_file, monkeypatch, tmp_path, streaming):
    """Which needs Pillow, and torch for sounds."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    pytest.importorskip("datasets", reason="the extra `hf` is not installed")
    [row] = hub_rows({"repo_id": str(hub_file.parent), "split": "train", "streaming": streaming})
    check_media(row)
