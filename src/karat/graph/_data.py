"""The data of a graph task: `data_config`, checked with its lines and made into a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from karat.datasets import (
    JOINER,
    Dataset,
    file_rows,
    kind_of_source,
    rows_dataset,
    source_file,
    source_problems,
    source_rows,
)
from karat.documents import Place
from karat.errors import RequestError, did_you_mean, nearest
from karat.graph._lookup import TaskPlace
from karat.graph._reading import Section

ELSEWHERE = {"hf": "the Hugging Face hub", "servicenow": "ServiceNow"}
"""Sinks of SyGra that are no files."""
SINKS = ("json", "jsonl", "csv", "parquet", "disk")
SINK_KEYS = ("type", "file_path", "file_format", "file_type", "encoding", "alias")


class Sink:
    """A file that gets the output records too."""

    def __init__(self, path: Path, format: str) -> None:
        self.path = path
        self.format = format


def check_data(section: Section, place: TaskPlace) -> list[Sink]:
    """Report the errors of a `data_config` and return its sinks."""
    section.known(("source", "sink", "id_column", "examples"))
    section.text("id_column")
    source = _source(section.given)
    if source is not None:
        steps = ("source",) if "source" in section else ()
        for inside, sentence in source_problems(source, place.load):
            section.problem(sentence, *steps, *inside)
    sinks = section.given.get("sink")
    if sinks is None:
        return []
    entries = section.sections("sink") if isinstance(sinks, list) else [section.section("sink")]
    return [sink for entry in entries if (sink := _sink(entry)) is not None]


def _sink(section: Section) -> Sink | None:
    kind = section.text("type", "disk") or "disk"
    if kind in ELSEWHERE:
        section.problem(
            f"not supported: writing to {ELSEWHERE[kind]}; leave the sink out and upload the output file",
            "type",
        )
        return None
    section.known(SINK_KEYS)
    section.without_effect("alias", "encoding", instead="every sink gets all records, in UTF-8")
    if kind not in SINKS:
        section.problem(f"must be one of {', '.join(SINKS)}, not {kind!r}", "type")
        return None
    path = section.text("file_path", needed=True)
    if path is None:
        return None
    form = section.text("file_format") or section.text("file_type") or kind
    if form == "disk":
        form = Path(path).suffix.lstrip(".")
    if form not in SINKS[:-1]:
        section.problem(f"must be one of {', '.join(SINKS[:-1])}, not {form!r}", "file_path")
        return None
    return Sink(Path(path).expanduser(), form)


def _source(data: dict[str, Any]) -> Any:
    if data.get("source") is not None:
        return data["source"]
    return {"type": "examples", "examples": data["examples"]} if data.get("examples") is not None else None


def task_dataset(
    data: dict[str, Any], place: TaskPlace, golden: list[str], *, file: str | None, count: int | None
) -> Dataset:
    """The dataset of a task: from its source, from a file that replaces the source, or `count` empty records."""
    name = place.name
    id_column = data.get("id_column")
    if file is not None:
        path = Path(file)
        return rows_dataset(
            file_rows(path),
            name=path.stem,
            id_column=id_column,
            golden=golden,
            metadata={"source": path.name},
        )
    source = _source(data)
    if source is None:
        if count is None:
            raise RequestError(
                f"task {name} has no data source: set --num_records, or a file with --data FILE"
            )
        rows: Iterator[dict[str, Any]] = ({"id": str(number)} for number in range(1, count + 1))
        return rows_dataset(rows, name=name, id_column=None, golden=golden, metadata={})
    metadata: dict[str, Any] = {"data_config": data}
    pinned = _pinned(source, metadata)
    rows = source_rows(pinned, place.folder, place.load)
    if isinstance(source, list) and id_column and JOINER not in id_column:
        primary = next((each["alias"] for each in source if each["join_type"] == "primary"), None)
        id_column = f"{primary}{JOINER}{id_column}" if primary else id_column
    # the ids of one source tell nothing of another's
    several = isinstance(source, list) and any(each["join_type"] in ("cross", "vstack") for each in source)
    return rows_dataset(
        rows, name=name, id_column=id_column, golden=golden, metadata=metadata, repeats=several
    )


def missing_files(data: dict[str, Any], place: TaskPlace) -> list[tuple[Place, str]]:
    """The files of a `data_config` that are not there: where they are named, and a sentence each."""
    source = _source(data)
    several = isinstance(source, list)
    found: list[tuple[Place, str]] = []
    for at, each in enumerate(source if several else [source]):
        if not isinstance(each, Mapping) or kind_of_source(each) != "disk":
            continue
        if not isinstance(each.get("file_path"), str) or not each["file_path"]:
            continue
        path = source_file(each["file_path"], place.folder)
        if not path.exists():
            names = _beside(path)
            near = f": {did_you_mean(path.name, names)}" if nearest(path.name, names) else ""
            steps: Place = ("data_config", "source", *([at] if several else []), "file_path")
            found.append((steps, f"{path} does not exist{near}"))
    return found


def _beside(path: Path) -> list[str]:
    return [entry.name for entry in path.parent.iterdir() if entry.is_file()] if path.parent.is_dir() else []


def local_rows(data: dict[str, Any], place: TaskPlace, file: str | None) -> Dataset | None:
    """The data of a task where it is at hand, to look at; None where it is elsewhere."""
    source = _source(data)
    sources = source if isinstance(source, list) else [source]
    if file is None and any(each is None or kind_of_source(each) == "hf" for each in sources):
        return None
    return task_dataset(data, place, [], file=file, count=None)


def _pinned(source: Any, metadata: dict[str, Any]) -> Any:
    """The source with the revisions of hub datasets as they are now, which are kept with the dataset."""
    if isinstance(source, list):
        return [_pinned(each, metadata) for each in source]
    if kind_of_source(source) != "hf":
        return source
    from karat.datasets import resolved_revision

    revision = resolved_revision(source)
    if revision is None:
        return source
    revisions = metadata.setdefault("revisions", {})
    name = source["repo_id"]
    if revisions.get(name, revision) != revision:  # another source has another revision of it
        name = f"{name}@{source.get('revision') or 'main'}"
    revisions[name] = revision
    return {**source, "revision": revision}
