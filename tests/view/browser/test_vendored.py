"""The files of others in the front end are those of their packages, and the front end is small."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zipfile
from pathlib import Path

import karat.view

STATIC = Path(karat.view.__file__).parent / "static"
VENDOR = STATIC / "vendor"


def test_vendored_files_are_unmodified():
    listed = json.loads((VENDOR / "vendored.json").read_text(encoding="utf-8"))["packages"]
    known = {name: each["sha256"] for package in listed for name, each in package["files"].items()}
    assert known
    for name, digest in known.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    ours = {path.name for path in VENDOR.glob("*.d.mts")} | {"vendored.json"}
    assert {path.name for path in VENDOR.iterdir()} == set(known) | ours
    for package in listed:
        assert package["version"]
        assert package["license"]
        assert f"{package['name']}.LICENSE.txt" in package["files"]


def test_the_vendored_modules_have_less_than_6_kb_compressed():
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in VENDOR.glob("*.mjs")) < 6_000


def test_the_front_end_adds_at_most_100_kb_to_the_wheel():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in STATIC.rglob("*"):
            if path.is_file():
                archive.write(path, path.relative_to(STATIC))
    assert len(packed.getvalue()) <= 100_000


def test_nothing_is_parsed_as_html_and_nothing_is_fetched_from_elsewhere():
    for path in [
        *STATIC.glob("*.js"),
        *STATIC.glob("pages/*.js"),
        STATIC / "index.html",
        STATIC / "view.css",
    ]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML\s*=|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        )
        assert not re.search(r"https?://|url\(|@import\b", text), path.name
        assert not re.search(r"\son\w+=\"", text), path.name
