"""The files of a graph run: its output records and the reports of its post-processors, exported from the store.

The store has everything; the files are for people and other tools. `output_<time>.json` (or `.jsonl`) has the
output of every record that succeeded, in the order of the data. `failed_<time>` has the ids, nodes and errors of the
records that failed. A report has the name of its processor instead of `output`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from karat import paths
from karat.datasets import check_writable, fewer_collections, record_file, whole_file
from karat.errors import FAILURES, RequestError, Stopped
from karat.graph._configuration import Sink
from karat.graph._postprocess import Processor, as_report
from karat.graph._task import GraphTask
from karat.graph.nodes._models import COERCED
from karat.records import Failed, Ok
from karat.serialization import encode

if TYPE_CHECKING:
    from karat import Run

FORMATS = ("json", "jsonl")


class Written(msgspec.Struct):
    """The files of a run."""

    output: Path
    reports: dict[str, Path] = {}
    failed: Path | None = None
    sinks: list[Path] = []
    errors: dict[str, str] = {}
    """Processors and sinks that raised, with what they raised; the reports of processors say so too."""
    statuses: dict[str, str] = {}
    """What the reports' evaluation summaries say of themselves."""
    left_out: int = 0
    """Records that succeeded and that the generator left out."""
    notes: list[str] = []
    """What should not pass in silence: fields that nodes were to set, and records that lack them."""

    def paths(self) -> list[Path]:
        """The paths of all files."""
        return [self.output, *self.reports.values(), *([self.failed] if self.failed else []), *self.sinks]


def write_files(
    run: Run,
    task: GraphTask,
    folder: str | Path,
    *,
    run_name: str = "",
    format: str = "json",
    with_time: bool = True,
) -> Written:
    """Write the output and report files of a run into a folder."""
    names = _Names(Path(folder).expanduser(), run_name, format, with_time)
    try:
        with fewer_collections():
            return _Export(run, task, names).write()
    except OSError as error:
        kept = f"{run.id} is stored: repeat the command to write them"
        raise Stopped(f"the files cannot be written: {error}; {kept}") from error


def prepare_files(task: GraphTask, folder: str | Path, *, run_name: str = "", format: str = "json") -> None:
    """Check before the run that the output files can be written."""
    names = _Names(Path(folder).expanduser(), run_name, format, with_time=False)
    for path in (names.path("output", format), *(sink.path for sink in task.graph.sinks)):
        check_writable(path)


class _SinkFile:
    """An open sink. Its errors are reported with it and do not affect the other files."""

    def __init__(self, sink: Sink) -> None:
        self.path = sink.path
        self.error: str | None = None
        self._open = ExitStack()
        self._file: Any = None
        self._with_guard(lambda: self._begin(sink))

    def _begin(self, sink: Sink) -> None:
        self._file = self._open.enter_context(record_file(sink.path, sink.format, stored=True))

    def add(self, record: object) -> None:
        if self.error is None:
            self._with_guard(lambda: self._file.add(record))

    def __enter__(self) -> _SinkFile:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self._drop(error)
        elif self.error is None:
            self._with_guard(self._open.close)

    def _with_guard(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            self._drop(error)

    def _drop(self, error: BaseException) -> None:
        with suppress(BaseException):  # what comes back is the same error again
            self._open.__exit__(type(error), error, error.__traceback__)


class _Names:
    """The file names of one export. None of them exists yet, unless the names have no timestamp."""

    def __init__(self, folder: Path, run_name: str, format: str, with_time: bool) -> None:
        if run_name and (
            os.path.basename(run_name) != run_name or run_name in (".", "..") or "\0" in run_name
        ):
            raise RequestError(f"run name {run_name!r} cannot be part of a file name")
        if format not in FORMATS:
            raise RequestError(f"output format {format!r} is not one of {', '.join(FORMATS)}")
        self._folder = folder
        self._before = f"{run_name}_" if run_name else ""
        self.with_time = with_time
        self.format = format
        self._after = ""
        stamp = datetime.now().strftime("_%Y-%m-%d_%H-%M-%S") if with_time else ""
        number = 1
        self._after = stamp
        while with_time and self.path("output", format).exists():
            number += 1
            self._after = f"{stamp}-{number}"

    def path(self, word: str, format: str = "json") -> Path:
        """The file whose name has this word instead of `output`."""
        return self._folder / f"{self._before}{word}{self._after}.{format}"


class _Export:
    def __init__(self, run: Any, task: GraphTask, names: _Names) -> None:
        self.run = run
        self.task = task
        self.names = names
        self.processors = task.graph.processors
        self.sinks: list[Sink] = task.graph.sinks
        self.written = Written(names.path("output", names.format))
        self.left_out = 0
        self._attempts: int = run.header.attempts
        self._coerced: Counter[tuple[str, str]] = Counter()
        self._owed = _required_fields(task)
        self._unset = dict.fromkeys(self._owed, 0)

    def write(self) -> Written:
        """Write the files in one pass over the outputs, and one more for each processor that needs a list."""
        reports = [_Report(p, self._metadata(p)) for p in self.processors]
        streaming = [r for r in reports if r.processor.streams and not r.processor.use_previous]
        for report in streaming:
            report.begin()
        self._stream(streaming)
        previous: list[Any] | None = None
        for report in reports:
            report.metadata["skipped_records"] += self.left_out
            if report in streaming:
                result = report.end()
            elif report.processor.use_previous and previous is not None:
                result = report.report_on(previous)
            else:
                result = report.report_on(report.kept(self._records()))
            previous = self._write_report(report, result)
        self._note_left_out()
        self._note_unset()
        self._note_coerced()
        return self.written

    def _note_left_out(self) -> None:
        if self.left_out:
            note = f"the generator left out {self.left_out:,} of {self.run.counts.ok:,} records"
            self.written.left_out = self.left_out
            self.written.notes.append(f"{note}, which are neither written nor evaluated")

    def _note_coerced(self) -> None:
        for (field, kind), count in self._coerced.items():
            answers = "1 answer" if count == 1 else f"{count:,} answers"
            self.written.notes.append(f"field {field!r} was text in {answers} and was read as {kind}")

    def _note_unset(self) -> None:
        written = self.run.counts.ok - self.left_out
        for field, count in self._unset.items():
            if count:
                note = f"output field {field!r} is null in {count:,} of {written:,} records"
                self.written.notes.append(f"{note} (from: {self._owed[field]})")

    def _metadata(self, processor: Processor) -> dict[str, Any]:
        counts = self.run.counts
        return {
            "output_file": str(self.written.output),
            "params": processor.params,
            "task": self.task.name,
            "run": self.run.id,
            "total_records": counts.total,
            "failed_records": counts.total - counts.ok - counts.pending,
            "pending_records": counts.pending,
            "skipped_records": 0,
            "attempts": self._attempts,
        }

    def _records(self) -> Iterator[dict[str, Any]]:
        for output in self.run.outputs():
            if isinstance(output.outcome, Ok) and output.outcome.value is not None:
                yield output.outcome.value

    def _stream(self, streaming: list[_Report]) -> None:
        with ExitStack() as files:
            out = files.enter_context(record_file(self.written.output, self.names.format, stored=True))
            sinks = [files.enter_context(_SinkFile(sink)) for sink in self.sinks]
            failures: Any = None
            group = _Group(streaming, self._attempts)
            for output in self.run.outputs():
                outcome = output.outcome
                for call in output.trace:
                    if COERCED in call.metadata:
                        self._coerced.update(call.metadata[COERCED].items())
                if isinstance(outcome, Failed):
                    if failures is None:
                        self.written.failed = self.names.path("failed", self.names.format)
                        failures = files.enter_context(record_file(self.written.failed, self.names.format))
                    failures.add(_failure(output))
                    group.add(output.example, None)
                    continue
                record = outcome.value if isinstance(outcome, Ok) else None
                if record is None:
                    self.left_out += 1
                    group.leave_out(output.example)
                    continue
                out.add(record)
                if isinstance(record, dict) and None in map(record.get, self._owed):
                    for field in self._owed:
                        self._unset[field] += record.get(field) is None
                for sink in sinks:
                    sink.add(record)
                group.add(output.example, record)
            group.end()
        if self.written.failed is None and not self.names.with_time:
            self.names.path("failed", self.names.format).unlink(missing_ok=True)  # of an earlier export
        for sink in sinks:
            if sink.error is None:
                self.written.sinks.append(sink.path)
            else:
                self.written.errors[str(sink.path)] = sink.error

    def _write_report(self, report: _Report, result: list[Any]) -> list[Any]:
        name = report.processor.name
        encoded, result = report.encoded(result)
        path = self.written.reports[name] = self.names.path(name)
        if report.error is not None:
            self.written.errors[name] = report.error
        for item in result[:1]:
            summary = item.get("evaluation_summary") if isinstance(item, dict) else None
            if isinstance(summary, dict) and isinstance(summary.get("status"), str):
                self.written.statuses[name] = summary["status"]
        with whole_file(path) as file:
            file.write(msgspec.json.format(encoded, indent=2))
            file.write(b"\n")
        return result


class _Group:
    """The attempts at one example, which the reports get together."""

    def __init__(self, reports: list[_Report], attempts: int) -> None:
        self._reports = reports
        self._attempts = attempts
        self._example: str | None = None
        self._records: list[Any] = []
        self._left_out = 0

    def add(self, example: str, record: dict[str, Any] | None) -> None:
        """An output record of an example; None for one that failed."""
        if example != self._example:
            self.end()
            self._example = example
        self._records.append(record)

    def leave_out(self, example: str) -> None:
        """An attempt whose record the generator left out."""
        if example != self._example:
            self.end()
            self._example = example
        self._left_out += 1

    def end(self) -> None:
        """All records of the example were added; attempts without an output are pending."""
        records, self._records = self._records, []
        pending = self._attempts - len(records) - self._left_out
        self._left_out = 0
        if records.count(None) < len(records):  # else nothing is known of it: it counts at the end
            if pending > 0:
                records += [None] * pending
            for report in self._reports:
                report.add(records)


class _Report:
    """A running post-processor. An exception becomes its report and does not affect the other reports."""

    def __init__(self, processor: Processor, metadata: dict[str, Any]) -> None:
        self.processor = processor
        self.metadata = metadata
        self.error: str | None = None
        self._made: Any = None
        self._add: Callable[[list[Any]], None] = self._add_each

    def begin(self) -> None:
        self._with_guard(self._begin)

    def _begin(self) -> None:
        self._made = self.processor.make()
        self._made.start(self.metadata)
        self._add = self._made.add_attempts if self.processor.takes_attempts else self._add_each

    def _add_each(self, records: list[Any]) -> None:
        for record in records:
            if record is not None:
                self._made.add(record)

    def add(self, records: list[Any]) -> None:
        """Add the records of one example, None for an attempt that has none."""
        if self.error is not None:
            return
        try:
            if (keep := self.processor.keep) is not None:
                every = len(records)
                records = [each for each in records if each is None or keep(each)]
                self.metadata["skipped_records"] += every - len(records)
                if records.count(None) == len(records):  # they count at the end
                    return
            self._add(records)
        except Stopped:
            raise
        except FAILURES as error:
            self.error = f"{type(error).__name__}: {error}"

    def end(self) -> list[Any]:
        given = self._with_guard(lambda: as_report(self._made.finish(), self.processor.name))
        return self._broken() if given is None else given

    def kept(self, records: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the records that pass the filter."""
        keep = self.processor.keep
        if keep is None:
            return list(records)
        out: list[dict[str, Any]] = []
        for record in records:
            if self._with_guard(lambda record=record: keep(record)):
                out.append(record)
            else:
                self.metadata["skipped_records"] += 1
        return out

    def encoded(self, result: list[Any]) -> tuple[bytes, list[Any]]:
        """The report as it is written. A report that JSON cannot represent is an error."""
        data = self._with_guard(lambda: encode(result))
        if data is None:
            result = self._broken()
            data = encode(result)
        return data, result

    def report_on(self, data: list[Any]) -> list[Any]:
        """Return the report on a list of records."""
        made = self._with_guard(self.processor.make)
        if self.error is not None:
            return self._broken()
        given = self._with_guard(lambda: as_report(self._process(made, data), self.processor.name))
        return self._broken() if given is None else given

    def _process(self, made: Any, data: list[Any]) -> Any:
        if callable(getattr(made, "process", None)):
            return self.processor.process(made, data, self.metadata)
        made.start(self.metadata)
        for record in data:
            made.add(record)
        return made.finish()

    def _with_guard(self, work: Any) -> Any:
        if self.error is not None:
            return None
        try:
            return work()
        except Stopped:
            raise
        except FAILURES as error:
            self.error = f"{type(error).__name__}: {error}"
            return None

    def _broken(self) -> list[Any]:
        summary = {
            "total_records": self.metadata["total_records"],
            "status": "fatal_error",
            "error": self.error,
        }
        return [{"evaluation_summary": summary, "results": {}}]


def _required_fields(task: GraphTask) -> dict[str, str]:
    """The output fields that a node was to set, or that lie inside a variable, each with what it is taken from."""
    keys = task.plan.output_keys()
    if task.output.is_whole_state:
        return {key: key for key in keys}
    fields = (task.output.fields or {}).items()
    return {name: source for name, source in fields if source in keys or len(paths.parse(source).steps) > 1}


def _failure(output: Any) -> dict[str, Any]:
    """A failed record as it is written to the file of failures."""
    error = output.outcome.error
    node = error.metadata.get("node")
    message = error.message.removeprefix(f"node {node}: ") if node else f"{error.type}: {error.message}"
    out = {"id": output.example, "node": node, "error": message}
    if output.attempt > 1:
        out["attempt"] = output.attempt
    return out
