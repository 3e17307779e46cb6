"""The five files of an output directory, and the manifest beside them in `.karat/manifest.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from karat.datasets import unwritable, whole_file
from karat.errors import DataError, RequestError, option, plural
from karat.memory._system import question_unit, session_unit, summary_of_unit, units_of
from karat.records import Example
from karat.serialization import encode, prepared
from karat.tasks import Context, Task

SESSIONS, QUESTIONS = "pipeline_sessions.jsonl", "pipeline_qa.jsonl"
SESSION_RECORDS, QA_RECORDS = "session_records.jsonl", "qa_records.jsonl"
METRICS = "aggregate_metrics.json"
FIVE = (SESSIONS, QUESTIONS, SESSION_RECORDS, QA_RECORDS, METRICS)
MANIFEST = Path(".karat") / "manifest.json"
STATE = Path(".karat") / "state"
FORMAT = 1

LONGEST_LINE = 512 * 1024 * 1024
LARGEST_MANIFEST = 16 * 1024 * 1024


class LineWriter:
    """A JSONL file that appears when it is complete, with the hash of its bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.lines = 0

    def write(self, record: object) -> None:
        """Add a line."""
        line = encode(record) + b"\n"
        self._hash.update(line)
        self._file.write(line)
        self.lines += 1

    @property
    def digest(self) -> str:
        """The hash of the lines so far."""
        return self._hash.hexdigest()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into a sentence that names the directory."""
    try:
        yield
    except OSError as error:
        raise unwritable(error.filename or folder, error) from error


def write_document(path: Path, document: object) -> None:
    """Write a JSON document that replaces the file when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")


class _About(msgspec.Struct, frozen=True):
    name: str = ""
    samples: int = 0
    notes: list[str] = []


class _Missing(msgspec.Struct):
    sessions: int
    questions: int
    of_sessions: int
    of_questions: int


class _Step(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    n: int
    cost: float | None
    p50_seconds: float | None
    p95_seconds: float | None


class _Manifest(msgspec.Struct):
    """The parts of a manifest that are read again, to find a damaged one; it is used as it is."""

    baseline: str
    asked_for: str | None = None
    run: str | None = None
    dataset: _About = _About()
    models: dict[str, dict[str, Any] | None] = {}
    pipeline: dict[str, str] = {}
    missing: _Missing | None = None
    efficiency: dict[str, _Step] = {}


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of an output directory; None without one."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > LARGEST_MANIFEST:
            raise DataError(f"{path} is too large for a manifest: remove it or restore the original")
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise RequestError(
            f"{path} cannot be read: a part of its path is a file: give another {option('output_dir')}"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}: remove it or restore the original") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"{path} is not a manifest of this version: remove it or restore the original")
    try:
        msgspec.convert(found, prepared(_Manifest))
    except msgspec.ValidationError as error:
        raise DataError(f"{path} is damaged: {error}: remove it or restore the original") from error
    return found


def file_digest(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_folder(
    folder: Path, identity: Mapping[str, Any], dataset: str, samples: int
) -> dict[str, Any] | None:
    """The manifest of this very run, if the directory has one; a directory of another run is refused.

    `dataset` and `samples` say in the refusal what an id does not.
    """
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is a file: give {option('output_dir')} a directory")
    manifest = read_manifest(folder)
    if manifest is None:
        found = [name for name in FIVE if (folder / name).exists()]
        if found:
            raise RequestError(
                f"{folder} has a {found[0]} and no {MANIFEST}: give another {option('output_dir')},"
                f" or {option('eval_only', True)} to judge it"
            )
        return None
    before = manifest.get("identity")
    if before != identity:
        known = before if isinstance(before, dict) else {}
        changed = list(_differences(known, identity))
        if known.get("baseline") != identity["baseline"]:  # its parameters and its code differ too
            changed = [("baseline", known.get("baseline"), identity["baseline"])]
        about = manifest.get("dataset") or {}
        named = (
            f"{about.get('name')} ({plural(about.get('samples', 0), 'sample')})",
            f"{dataset} ({plural(samples, 'sample')})",
        )
        if named[0] != named[1]:
            changed = [
                (name, *named) if name == "dataset" else (name, old, new) for name, old, new in changed
            ]
        changes = ", ".join(f"{name} {_short(old)} and not {_short(new)}" for name, old, new in changed[:3])
        raise RequestError(
            f"{folder} belongs to another run ({changes}): give another {option('output_dir')}"
        )
    return manifest


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The names and values of what differs, inside of objects as well."""
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            yield from _differences({**dict.fromkeys(value), **before}, {**dict.fromkeys(before), **value})
        elif before != value:
            yield name, before, value


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"


# ---------------------------------------------------------------- reading pipeline files


class _Stored(msgspec.Struct):
    memory_id: str
    text: str
    status: str = "active"
    source: str = ""


class _Change(msgspec.Struct):
    op: str
    text: str
    metadata: dict[str, Any] = {}


class _Point(msgspec.Struct):
    memory_id: str
    memory_content: str
    original_memories: list[str] | None = None


class _Gold(msgspec.Struct):
    cumulative_gold_memories: list[_Point]
    session_new_memories: list[_Point]
    session_update_memories: list[_Point]
    session_interference_memories: list[_Point]


class _Said(msgspec.Struct):
    speaker: str
    text: str
    time: str | None = None


class _SessionLine(msgspec.Struct):
    """The keys of a session that stage 2 reads; other keys are kept unchanged."""

    sample_id: str
    sample_uuid: str
    session_id: str
    memory_snapshot: list[_Stored]
    memory_delta: list[_Change]
    gold_state: _Gold
    dialogue: list[_Said] | None = None
    """An extra key of karat. Without it correctness cannot be judged, and everything else can."""


class _Found(msgspec.Struct):
    memory_id: str
    text: str
    turn_ids: list[str] = []


class _Retrieval(msgspec.Struct):
    query: str
    top_k: int
    items: list[_Found]
    raw_trace: dict[str, Any] = {}


class _QuestionLine(msgspec.Struct):
    """The keys of a question that stage 2 reads."""

    sample_id: str
    sample_uuid: str
    question: str
    gold_answer: str
    gold_evidence_memory_ids: list[str]
    gold_evidence_contents: list[str]
    question_type_abbrev: str
    retrieval: _Retrieval
    generated_answer: str | None
    cited_memories: list[str]
    gold_answers: list[str] = []
    rubric: list[str] = []
    choices: list[str] = []
    answerable: bool = True
    gold_evidence_turn_ids: list[list[str]] = []
    question_index: int | None = None
    session_id: str | None = None
    """The session after which it was asked: an extra key of karat."""
    context: dict[str, Any] = {}


class _Place(msgspec.Struct, frozen=True):
    file: str
    offset: int
    length: int


class PipelineFiles(Task):
    """The records of stage 1 from their files, as a task: so that stage 2 works without dataset and memory system."""

    units_declared = True
    names_models = True

    def __init__(self, folder: Path, manifest: Mapping[str, Any] | None, baseline: str | None) -> None:
        self.folder = folder
        self.manifest = manifest
        self._samples: dict[str, dict[str, _Place]] = {}
        self._baselines: dict[str, str] = {}
        self._digests: dict[str, str] = {}
        self._uuids: dict[str, str] = {}
        self._questions: dict[str, list[dict[str, Any]]] = {}
        self._top_k: int | None = None
        self._read(SESSIONS, self._add_session)
        self._read(QUESTIONS, self._add_question)
        self._check_manifest()
        self.name = self._baseline(baseline)
        self.counts = {SESSIONS: 0, QUESTIONS: 0}
        for places in self._samples.values():
            for place in places.values():
                self.counts[place.file] += 1
        if not self._samples and manifest is None:  # a manifest says how many sessions failed
            raise DataError(f"{folder}: {SESSIONS} has no session: there is nothing to judge")

    def _read(self, name: str, add: Any) -> None:
        path, digest = self.folder / name, hashlib.sha256()
        try:
            with path.open("rb") as file:
                offset, number = 0, 0
                while line := file.readline(LONGEST_LINE + 1):
                    number += 1
                    if len(line) > LONGEST_LINE:
                        raise DataError(f"{path}:{number}: the line is longer than {LONGEST_LINE >> 20} MiB")
                    digest.update(line)
                    if line.strip():
                        try:
                            add(line, _Place(name, offset, len(line)))
                        except DataError as error:
                            raise DataError(f"{path}:{number}: {error}") from error
                        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                            raise DataError(
                                f"{path}:{number}: {error}: restore the file, or write it again without"
                                f" {option('eval_only', True)}"
                            ) from error
                    offset += len(line)
        except FileNotFoundError:
            raise DataError(
                f"{path} does not exist: {option('eval_only', True)} needs the files of stage 1"
            ) from None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        self._digests[name] = digest.hexdigest()

    def _add_session(self, line: bytes, place: _Place) -> None:
        record = _session_decoder.decode(line)
        units = self._samples.setdefault(record.sample_id, {})
        unit = session_unit(record.session_id)
        if unit in units:
            raise DataError(f"session {record.session_id!r} of sample {record.sample_id!r} occurs twice")
        if self._uuids.setdefault(record.sample_id, record.sample_uuid) != record.sample_uuid:
            raise DataError(f"sample {record.sample_id!r} has two uuids: these are lines of two runs")
        units[unit] = place
        for each in record.memory_snapshot:
            self._note_baseline(each.source)
        for change in record.memory_delta:
            self._note_baseline(change.metadata.get("baseline"))

    def _add_question(self, line: bytes, place: _Place) -> None:
        record = _question_decoder.decode(line)
        units = self._samples.get(record.sample_id)
        if units is None or self._uuids[record.sample_id] != record.sample_uuid:
            raise DataError(
                f"{SESSIONS} has no sample {record.sample_id!r} with this uuid: these are files of two runs"
            )
        asked = self._questions.setdefault(record.sample_id, [])
        index = len(asked) if record.question_index is None else record.question_index
        unit = question_unit(index)
        if record.session_id is not None and session_unit(record.session_id) not in units:
            raise DataError(
                f"{SESSIONS} has no session {record.session_id!r} of sample {record.sample_id!r}, after which the"
                " question was asked: lines are missing, or these are files of two runs"
            )
        if unit in units:
            raise DataError(f"question {index} of sample {record.sample_id!r} occurs twice")
        units[unit] = place
        asked.append({"index": index, "question": record.question})
        self._note_baseline(record.retrieval.raw_trace.get("baseline"))
        top_k = record.retrieval.top_k
        if self._top_k not in (None, top_k):
            raise DataError(f"lines of two runs are mixed: top_k {self._top_k} and {top_k}")
        self._top_k = top_k

    def _note_baseline(self, name: Any) -> None:
        if isinstance(name, str) and name:
            self._baselines[name] = name
            if len(self._baselines) > 1:
                both = " and ".join(map(repr, self._baselines))
                raise DataError(f"lines of two runs are mixed: {both}")

    def _check_manifest(self) -> None:
        """Refuse files that are not those that the manifest was written with."""
        for name, digest in ((self.manifest or {}).get("pipeline") or {}).items():
            if self._digests.get(name) != digest:
                raise DataError(
                    f"{self.folder / name} is not the file of the run in {MANIFEST}: files of two runs,"
                    " or changed since; restore it, or remove the manifest to judge the files as they are"
                )

    def _baseline(self, asked: str | None) -> str:
        named = (self.manifest or {}).get("baseline")
        found = next(iter(self._baselines), None)
        if named and found and named != found:
            raise DataError(
                f"{self.folder}: the files are from {found!r}, but the manifest is from {named!r}"
            )
        known = named or found
        names = {known, (self.manifest or {}).get("asked_for")}
        if asked is not None and known is not None and asked not in names:
            raise RequestError(
                f"{self.folder} has the files of {known!r}, not of {asked!r}: give that {option('baseline')}"
            )
        return known or asked or "unknown"

    # The task -------------------------------------------------------------------

    def examples(self) -> Iterator[Example]:
        """One example for each sample, with the names of its units."""
        for sample, units in self._samples.items():
            sessions = [unit.removeprefix("session/") for unit in units if unit.startswith("session/")]
            given = {
                "sessions": [{"session_id": session} for session in sessions],
                "questions": self._questions.get(sample, []),
            }
            yield Example(sample, given, None, {"uuid": self._uuids[sample]})

    def units(self, example: Example) -> list[str]:
        return units_of(example)

    def summarize(self, example: Example, unit: str, output: Mapping[str, Any] | None) -> dict[str, str]:
        return summary_of_unit(example, unit, output)

    def call_units(self, example: Example, context: Context) -> Iterator[tuple[str, Any]]:
        with (
            (self.folder / SESSIONS).open("rb") as sessions,
            (self.folder / QUESTIONS).open("rb") as questions,
        ):
            files = {SESSIONS: sessions, QUESTIONS: questions}
            for unit in units_of(example):
                if unit not in context.done:
                    place = self._samples[example.id][unit]
                    files[place.file].seek(place.offset)
                    yield unit, msgspec.json.decode(files[place.file].read(place.length))

    def configuration(self) -> Any:
        out: dict[str, Any] = {"task": self.name, "kind": "memory", "recorded": self._digests}
        for name in ("version", "system", "control", "shared_settings", "seed", "snapshots"):
            if self.manifest is not None and name in self.manifest:
                out[name] = self.manifest[name]
        if self._top_k is not None:  # all that files without a manifest say of what compared systems share
            out.setdefault("shared_settings", {"top_k": self._top_k})
        return out

    def code(self) -> str | None:
        return "recorded"


_session_decoder = msgspec.json.Decoder(prepared(_SessionLine))
_question_decoder = msgspec.json.Decoder(prepared(_QuestionLine))
