"""`MetricCollatorPostProcessor`: the report of aggregator metrics over the unit-metric results of a run.

Records that failed have no result and are counted as missing, never left out: each metric says over how many of how
many it speaks. An aggregator that fails is reported in its place, and the others stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from karat.aggregators.metrics import AggregatorMetricRegistry
from karat.documents import Place
from karat.errors import KaratError, RequestError, did_you_mean
from karat.evaluators.unit import UnitMetricResult
from karat.tasks.graph.postprocess import GraphPostProcessor
from karat.tasks.graph.reading import Section
from karat.tasks.graph.unit_metrics import SUFFIX

ENTRY_KEYS = ("name", "params", "unit_metrics_results", "metadata")
MOST_COLUMNS = 200


class _Fold:
    """One aggregator over one field."""

    def __init__(self, entry: Mapping[str, Any], field: str) -> None:
        self.name = str(entry["name"])
        self.field = field
        self.metadata: dict[str, str] = dict(entry.get("metadata") or {})
        self.metric = AggregatorMetricRegistry.get_metric(self.name, **dict(entry.get("params") or {}))
        self.folds = all(callable(getattr(self.metric, step, None)) for step in ("start", "add", "finish"))
        self.error: str | None = None
        self.given = 0
        self.missing = 0
        self.untold = 0
        self.state: Any = self.metric.start() if self.folds else []

    def add(self, result: UnitMetricResult | None, record: Mapping[str, Any]) -> None:
        """Takes in the result of a record, or that there is none; the first error is the last word."""
        if self.error is not None:
            return
        self.given += result is not None
        self.missing += result is None
        if self.metadata and result is not None:
            more = {key: record.get(source) for key, source in self.metadata.items()}
            result = UnitMetricResult(
                result.correct, result.golden, result.predicted, {**result.metadata, **more}
            )
        try:
            if self.folds:
                self.state = self.metric.add(self.state, result)
            elif result is not None:
                self.state.append(result)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def add_missing(self, count: int) -> None:
        """Counts records that have no output at all."""
        self.missing += count
        for at in range(count if self.folds and self.error is None else 0):
            try:
                self.state = self.metric.add(self.state, None)
            except Exception:
                self.untold = count - at  # it needs to know more of a record than that there is none
                return

    def finish(self) -> Any:
        """What it amounts to; a metric that is only told of results does not know how many there are not."""
        if self.error is None:
            try:
                result = self.metric.finish(self.state) if self.folds else self.metric.calculate(self.state)
                if self.missing and isinstance(result, Mapping) and "of" not in result:
                    return {**result, "n": self.given, "of": self.given + self.missing}
                return {**result, "missing": self.untold} if self.untold else result
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"
        return {"error": self.error}


class _Field:
    """A field of the records that holds unit-metric results."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen = 0
        self.invalid = 0
        self.first_invalid = ""
        self.folds: list[_Fold] = []

    def add(self, record: Mapping[str, Any], number: int) -> None:
        """Takes in a record."""
        given = record.get(self.name)
        result: UnitMetricResult | None = None
        if self.name in record:
            self.seen += 1
        if given is not None:
            try:
                result = given if isinstance(given, UnitMetricResult) else UnitMetricResult.from_dict(given)
            except (ValueError, TypeError) as error:
                self.invalid += 1
                self.first_invalid = self.first_invalid or f"record {number}: {error}"
        for fold in self.folds:
            fold.add(result, record)


class MetricCollatorPostProcessor(GraphPostProcessor):
    """Aggregates unit-metric results; `aggregator_metrics_map` lists `{name, params, unit_metrics_results}`.

    A result's key is `field-aggregator`. For fields by their older name (`exact_match_result`) it is the aggregator's
    name alone, unless two results would then have the same one.
    """

    def __init__(
        self, aggregator_metrics_map: Sequence[Mapping[str, Any]] | None = None, **rest: Any
    ) -> None:
        super().__init__()
        unknown = [key for key in rest if key != "use_previous_output"]
        if unknown:
            raise RequestError(
                f"MetricCollatorPostProcessor has no parameter {unknown[0]!r}:"
                f" {did_you_mean(unknown[0], ['aggregator_metrics_map'])}"
            )
        self.aggregator_metrics_map = list(aggregator_metrics_map or [])
        self.start({})

    def start(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        self._count = 0
        self._columns: dict[str, None] = {}
        self._fields: dict[str, _Field] = {}
        self._folds: dict[str, _Fold] = {}
        entries = [(entry, field) for entry in self.aggregator_metrics_map for field in fields_of(entry)]
        for key, (entry, field) in zip(result_keys(entries), entries, strict=True):
            fold = self._folds[key] = _Fold(entry, field)
            self._fields.setdefault(field, _Field(field)).folds.append(fold)

    def add(self, record: dict[str, Any]) -> None:
        self._count += 1
        if len(self._columns) < MOST_COLUMNS:
            self._columns.update(dict.fromkeys(record))
        for field in self._fields.values():
            field.add(record, self._count)

    def finish(self) -> list[dict[str, Any]]:
        failed = int(self._metadata.get("failed_records", 0))
        skipped = int(self._metadata.get("skipped_records", 0))
        pending = int(self._metadata.get("pending_records", 0))
        summary: dict[str, Any] = {
            "total_records": self._count + failed + skipped + pending,
            "evaluated_records": self._count,
            "failed_records": failed,
            "skipped_records": skipped,
            **({"pending_records": pending} if pending else {}),
            "timestamp": datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
        }
        if not self._count:
            summary["status"] = "fatal_error" if failed else "no_data"
            if failed:
                summary["error"] = f"all {failed} records failed: nothing could be evaluated"
            return [{"evaluation_summary": summary, "results": {}}]
        results = {key: self._result(fold, failed + pending) for key, fold in self._folds.items()}
        summary["status"], broken = self._status(failed + pending), self._broken()
        if results and all(fold.error for fold in self._folds.values()):
            summary["status"] = "fatal_error"
            summary["error"] = "; ".join(dict.fromkeys(str(fold.error) for fold in self._folds.values()))
        if broken:
            summary["invalid_results"] = broken
        return [{"evaluation_summary": summary, "results": results}]

    def _result(self, fold: _Fold, absent: int) -> Any:
        if not self._fields[fold.field].seen and fold.error is None:
            columns = list(self._columns)
            fold.error = (
                f"KeyError: {fold.field!r} not found in output columns: {did_you_mean(fold.field, columns)};"
                f" available columns: {', '.join(columns)}"
            )
        fold.add_missing(absent)
        return fold.finish()

    def _status(self, absent: int) -> str:
        spoiled = absent or any(f.error for f in self._folds.values()) or self._broken()
        return "partial" if spoiled else "success"

    def _broken(self) -> dict[str, Any]:
        fields = [field for field in self._fields.values() if field.invalid]
        return {field.name: {"count": field.invalid, "first": field.first_invalid} for field in fields}

    @classmethod
    def wants(cls, section: Section, params: Mapping[str, Any]) -> list[tuple[Place, str]]:
        """The output fields it needs, each with its place; mistakes in the map are told."""
        found: list[tuple[Place, str]] = []
        inner = section.section("params")
        inner.known(("aggregator_metrics_map", "use_previous_output"))
        if not inner.items("aggregator_metrics_map"):
            inner.problem("needs aggregator_metrics_map: a list of {name, params, unit_metrics_results}")
        for entry in inner.sections("aggregator_metrics_map"):
            entry.known(ENTRY_KEYS)
            name = entry.text("name", needed=True)
            fields = entry.texts("unit_metrics_results")
            if not fields:
                entry.problem("needs unit_metrics_results: the output fields it is computed from")
            places = [(*entry.place, "unit_metrics_results", at) for at in range(len(fields))]
            found += zip(places, fields, strict=True)
            if name:
                try:
                    AggregatorMetricRegistry.get_metric(name, **entry.mapping("params"))
                except KaratError as error:
                    entry.problems.caught((*entry.place, "name"), error)
        if section.flag("use_previous_output", bool(params.get("use_previous_output", False))):
            return []  # what the processor before it gives is known only then
        return found


def fields_of(entry: Mapping[str, Any]) -> list[str]:
    """The fields that an entry of the map names."""
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise RequestError(f"aggregator_metrics_map: {entry!r:.80} needs a name")
    fields = entry.get("unit_metrics_results") or []
    return [fields] if isinstance(fields, str) else [str(field) for field in fields]


def result_keys(entries: Sequence[tuple[Mapping[str, Any], str]]) -> list[str]:
    """The key of each result, each different from all others."""
    short = [
        str(entry["name"]) if field.endswith(SUFFIX) else f"{field}-{entry['name']}"
        for entry, field in entries
    ]
    keys = [
        key if short.count(key) == 1 else f"{field}-{entry['name']}"
        for key, (entry, field) in zip(short, entries, strict=True)
    ]
    seen: dict[str, int] = {}
    out = []
    for key in keys:
        seen[key] = number = seen.get(key, 0) + 1
        out.append(key if number == 1 else f"{key}-{number}")
    return out
