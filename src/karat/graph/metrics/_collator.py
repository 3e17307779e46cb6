"""`MetricCollatorPostProcessor`: the report of aggregator metrics over the unit-metric results of a run.

Records that failed, or never reached their unit metrics, have no result. They are counted as missing: each metric
reports `n` and `of`. If an aggregator fails, its error takes the place of its result, and the others are unaffected.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from karat.aggregators import aggregators
from karat.documents import Place
from karat.errors import FAILURES, KaratError, RequestError, did_you_mean
from karat.graph._postprocess import GraphPostProcessor
from karat.graph._reading import Section
from karat.graph.metrics._aggregator import AggregatorMetricRegistry, BaseAggregatorMetric, folding
from karat.graph.metrics._unit import SUFFIX, UnitMetricResult, UnitMetrics
from karat.registry import parameters_of
from karat.serialization import encode

if TYPE_CHECKING:
    from karat.graph._task import GraphTask

ENTRY_KEYS = ("name", "params", "unit_metrics_results", "metadata")
MOST_COLUMNS = 200

Record = Mapping[str, Any] | None
"""An output record; None for an attempt that failed or was not made yet."""


class _Fold:
    """The results of one field, folded: for one aggregator, or once for several that fold alike."""

    def __init__(self, metric: BaseAggregatorMetric, metadata: Mapping[str, str]) -> None:
        self.metric = metric
        self.metadata = metadata
        self.state: Any = metric.start()
        self.error: str | None = None
        self.uncounted = 0

    def add(self, results: Sequence[UnitMetricResult | None], records: Sequence[Record]) -> None:
        """Add the results of the attempts at one record, None for each that is missing.

        After the first error nothing more is added.
        """
        if self.error is None:
            given: Sequence[Any] = results
            if self.metadata:
                given = [self._with_record_fields(*each) for each in zip(results, records, strict=True)]
            try:
                self.state = self.metric.add_attempts(self.state, given)
            except FAILURES as error:
                self.error = f"{type(error).__name__}: {error}"

    def _with_record_fields(self, result: UnitMetricResult | None, record: Record) -> Any:
        """A result with the fields of its record that `metadata` names."""
        more = {key: (record or {}).get(source) for key, source in self.metadata.items()}
        if result is not None:
            return UnitMetricResult(
                result.correct, result.golden, result.predicted, {**result.metadata, **more}
            )
        return {"metadata": more} if record is not None and self.metric.locates_missing else None

    def add_missing(self, count: int, attempts: int = 1) -> None:
        """Count records without any output, of which each has so many attempts."""
        while count and self.error is None:
            several = min(count, attempts)
            try:
                self.state = self.metric.add_attempts(self.state, [None] * several)
            except FAILURES:
                self.uncounted = count  # this metric cannot add a record of which nothing is known
                return
            count -= several


class _Field:
    """A field of the records that holds unit-metric results."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.given = 0
        self.missing = 0
        self.invalid = 0
        self.first_invalid = ""
        self.is_column = False
        """Whether any record has it."""
        self.results: list[UnitMetricResult | None] = []
        """Those of the attempts that are being added."""
        self.folds: list[_Fold] = []
        self._shared: dict[Hashable, _Fold] = {}

    def fold(self, metric: BaseAggregatorMetric, metadata: Mapping[str, str]) -> _Fold:
        """The fold of a metric: that of another which folds alike, if there is one."""
        key = None if metadata else metric.state_key()
        if key is not None and key in self._shared:
            return self._shared[key]
        fold = _Fold(metric, metadata)
        self.folds.append(fold)
        if key is not None:
            self._shared[key] = fold
        return fold


class _Aggregated:
    """One aggregator over one field."""

    def __init__(self, metric: BaseAggregatorMetric, field: _Field, fold: _Fold) -> None:
        self.metric = metric
        self.field = field
        self.fold = fold
        self.error: str | None = None

    def finish(self, without_output: int) -> Any:
        """The metric's values, with `n` and `of` added where the metric itself does not count missing records."""
        field, fold = self.field, self.fold
        self.error = fold.error or self.error
        if self.error is None:
            try:
                result = self.metric.finish(fold.state)
                if not isinstance(result, Mapping):
                    raise TypeError(f"it returned {type(result).__name__}, not a mapping of names to values")
                # What cannot be stored is its failure and nobody else's.
                result = msgspec.json.decode(encode(result))
                missing = field.missing + field.invalid + without_output
                if missing and "of" not in result:
                    return {**result, "n": field.given, "of": field.given + missing}
                return {**result, "missing": fold.uncounted} if fold.uncounted else result
            except FAILURES as error:
                self.error = f"{type(error).__name__}: {error}"
        return {"error": self.error}


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
        self._entries = [
            (entry, _metric(entry), field)
            for entry in self.aggregator_metrics_map
            for field in fields_of(entry)
        ]
        self.start({})

    def start(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        self._count = 0
        self._judged = 0
        self._invalid = 0
        self._absent = 0
        self._columns: dict[str, None] = {}
        self._names: list[str] = []
        """Those of the latest record, which most of them share."""
        self._fields: dict[str, _Field] = {}
        self._aggregated: dict[str, _Aggregated] = {}
        keys = result_keys([(entry, field) for entry, _, field in self._entries])
        for key, (entry, metric, name) in zip(keys, self._entries, strict=True):
            field = self._fields.setdefault(name, _Field(name))
            fold = field.fold(metric, dict(entry.get("metadata") or {}))
            self._aggregated[key] = _Aggregated(metric, field, fold)

    def add(self, record: dict[str, Any]) -> None:
        self.add_attempts((record,))

    def add_attempts(self, records: Sequence[Record]) -> None:
        """Take in the attempts at one example, None for one without a record: intervals cluster them."""
        fields = self._fields.values()
        for record in records:
            if record is None:
                self._absent += 1
                for field in fields:
                    field.results.append(None)
                continue
            self._count += 1
            if (names := list(record)) != self._names:
                self._names = names
                if len(self._columns) < MOST_COLUMNS:
                    self._columns.update(dict.fromkeys(names))
            judged, invalid = not fields, False
            for field in fields:
                given, result = record.get(field.name), None
                if given is None:
                    field.missing += 1
                    field.is_column |= field.name in record
                else:
                    try:
                        result = (
                            given
                            if isinstance(given, UnitMetricResult)
                            else UnitMetricResult.from_dict(given)
                        )
                        field.given += 1
                        judged = True
                    except (ValueError, TypeError) as error:
                        field.invalid += 1
                        field.first_invalid = field.first_invalid or f"record {self._count}: {error}"
                        invalid = True
                field.results.append(result)
            if judged:
                self._judged += 1
            elif invalid:
                self._invalid += 1
        for field in fields:
            results, field.results = field.results, []
            for fold in field.folds:
                fold.add(results, records)

    def finish(self) -> list[dict[str, Any]]:
        failed = int(self._metadata.get("failed_records", 0))
        unjudged = self._count - self._judged - self._invalid
        skipped = int(self._metadata.get("skipped_records", 0)) + unjudged
        pending = int(self._metadata.get("pending_records", 0))
        attempts = int(self._metadata.get("attempts", 1))
        summary: dict[str, Any] = {
            "total_records": self._judged + self._invalid + failed + skipped + pending,
            "evaluated_records": self._judged,
            "failed_records": failed,
            "skipped_records": skipped,
            **({"invalid_records": self._invalid} if self._invalid else {}),
            **({"pending_records": pending} if pending else {}),
            **({"attempts": attempts} if attempts > 1 else {}),
            "timestamp": datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
        }
        if not self._count:
            summary["status"] = "partial" if failed or pending else "no_data"
            if failed:
                summary["error"] = f"all {failed} records failed: nothing could be evaluated"
            return [{"evaluation_summary": summary, "results": {}}]
        without_output = failed + pending
        for fold in [fold for field in self._fields.values() for fold in field.folds]:
            fold.add_missing(without_output - self._absent, attempts)
        results = {}
        for key, aggregated in self._aggregated.items():
            aggregated.error = self._absent_column(aggregated)
            results[key] = aggregated.finish(without_output)
        summary["status"], broken = self._status(without_output > 0), self._broken()
        errors = [each.error for each in self._aggregated.values()]
        if results and all(errors):
            summary["status"] = "fatal_error"
            summary["error"] = "; ".join(dict.fromkeys(map(str, errors)))
        if broken:
            summary["invalid_results"] = broken
        return [{"evaluation_summary": summary, "results": results}]

    def _absent_column(self, aggregated: _Aggregated) -> str | None:
        """The error of an aggregator that reads what no record has; None for one that reads what there is."""
        field, columns = aggregated.field, list(self._columns)
        missing = [] if field.given or field.invalid or field.is_column else [field.name]
        if len(columns) < MOST_COLUMNS:
            missing += [name for name in aggregated.fold.metadata.values() if name not in self._columns]
        return (
            f"KeyError: {missing[0]!r} not found in output columns: {did_you_mean(missing[0], columns)};"
            f" available columns: {', '.join(columns)}"
            if missing
            else None
        )

    def _status(self, absent: bool) -> str:
        absent = absent or any(field.missing for field in self._fields.values())
        spoiled = absent or any(each.error for each in self._aggregated.values()) or self._broken()
        return "partial" if spoiled else "success"

    def _broken(self) -> dict[str, Any]:
        fields = [field for field in self._fields.values() if field.invalid]
        return {field.name: {"count": field.invalid, "first": field.first_invalid} for field in fields}

    @classmethod
    def wants(
        cls, section: Section, params: Mapping[str, Any]
    ) -> tuple[list[tuple[Place, str]], list[tuple[Place, str]]]:
        """The output fields with results, and those that `metadata` names, each with its place.

        Errors in the map are reported.
        """
        found: list[tuple[Place, str]] = []
        beside: list[tuple[Place, str]] = []
        inner = section.section("params")
        inner.known(("aggregator_metrics_map", "use_previous_output", "filter"))
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
            metadata = entry.section("metadata")
            sources = {key: metadata.text(key, needed=True) for key in metadata.given}
            beside += [((*metadata.place, key), source) for key, source in sources.items() if source]
            given = entry.mapping("params")
            for key in ("golden_key", "predicted_key"):
                if key in given and given[key] is None:
                    entry.problem("is null: give the name of a field, or leave it out", "params", key)
            if name:
                try:
                    metric = AggregatorMetricRegistry.get_metric(name, **given)
                except KaratError as error:
                    entry.problems.caught((*entry.place, "name"), error)
                    continue
                if getattr(metric, "pooled", False):
                    entry.problems.note(
                        (*entry.place, "params", "k"),
                        "treats all results as attempts at one problem: set problem_key to separate problems",
                    )
        if section.flag("use_previous_output", bool(params.get("use_previous_output", False))):
            return [], []  # what the processor before it gives is known only then
        return found, beside


def idle_key(entry: object) -> Any:
    """The `key` of an entry whose metric accepts it for compatibility and makes nothing of it; None without one."""
    params = entry.get("params") if isinstance(entry, Mapping) else None
    key = params.get("key") if isinstance(params, Mapping) else None
    if (
        key is None
        or not isinstance(entry, Mapping)
        or not AggregatorMetricRegistry.has_metric(str(entry.get("name")))
    ):
        return None
    metric = AggregatorMetricRegistry.get_metric_class(str(entry["name"]))
    return key if str(metric.__module__).startswith("karat.") else None


def _metric(entry: Mapping[str, Any]) -> BaseAggregatorMetric:
    return folding(AggregatorMetricRegistry.get_metric(str(entry["name"]), **dict(entry.get("params") or {})))


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


def stored_metrics(task: GraphTask) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The unit metrics of a graph as evaluators of its output, and the aggregators of its reports over them."""
    judged = _unit_metric_fields(task)
    read: dict[str, list[dict[str, str]]] = {name: [{}] for name in judged}
    """The metadata of the results of each field: more than one where entries name different fields by one key."""
    folded: dict[tuple[str, str, bool], tuple[str, dict[str, Any], list[str]]] = {}
    for processor in task.graph.processors:
        read |= {name: [{}] for _, name in processor.wants if name not in read}
        named = processor.params.get("aggregator_metrics_map") if processor.wants else None
        for entry in named or ():
            params, metadata = dict(entry.get("params") or {}), dict(entry.get("metadata") or {})
            always_own = bool(metadata) or _is_pooled(str(entry["name"]), params)
            for field in fields_of(entry):
                # Where `correct` marks a mistake, the aggregators of karat would count the others, unlike the report.
                own = always_own or not judged.get(field, True)
                place = (str(entry["name"]), json.dumps(params, sort_keys=True, default=str), own)
                of = folded.setdefault(place, (place[0], params, []))[2]
                fitting = (
                    at
                    for at, have in enumerate(read[field])
                    if all(have.get(key, source) == source for key, source in metadata.items())
                )
                at = next(fitting, len(read[field]))
                read[field][at:] = read[field][at:] or [{}]
                read[field][at].update(metadata)
                of.append(_evaluator_key(field, at + 1))
    evaluators: list[dict[str, Any]] = [
        {
            "name": "from_output",
            "params": {"field": field, **({"metadata": metadata} if metadata else {})},
            **({"key": _evaluator_key(field, number)} if number > 1 else {}),
            "pass_fail": True,
            **({} if judged.get(field, True) else {"higher_is_better": False}),
        }
        for field, several in read.items()
        for number, metadata in enumerate(several, 1)
    ]
    keys: dict[str, int] = {}
    entries = []
    for (_, _, own), (name, params, of) in folded.items():
        keys[name] = number = keys.get(name, 0) + 1
        key = name if number == 1 else f"{name}-{number}"
        made = {"name": f"metric:{name}", "params": params} if own else _aggregator(name, params)
        entries.append({**made, "key": key, "of": list(dict.fromkeys(of))})
    return evaluators, entries


def _evaluator_key(field: str, number: int) -> str:
    return field if number == 1 else f"{field}-{number}"


def _unit_metric_fields(task: GraphTask) -> dict[str, bool]:
    """The output fields that hold results of its unit metrics, each with whether a higher score is better."""
    judged: dict[str, bool] = {}
    for node in task.plan.nodes.values():
        if isinstance(call := getattr(node, "call", None), UnitMetrics):
            judged |= call.fields
    if task.output.is_whole_state:
        return judged
    fields = task.output.fields or {}
    return {name: judged[source] for name, source in fields.items() if source in judged}


def _is_pooled(name: str, params: dict[str, Any]) -> bool:
    """Whether a metric takes all results for attempts at one problem, which the aggregator of its name does not."""
    return bool(getattr(AggregatorMetricRegistry.get_metric(name, **params), "pooled", False))


def _aggregator(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """The aggregator of a metric's name where there is one that takes its parameters, else the metric itself."""
    own = {
        key: value for key, value in params.items() if key != "key"
    }  # what was compared, not what is folded
    reads_values = (
        name == "step_efficiency"
    )  # of golden and predicted, which the aggregator of its name does not
    if not reads_values and aggregators.has(name) and set(own) <= set(parameters_of(aggregators.get(name))):
        if name in ("precision", "recall", "f1_score"):  # the average of the report
            own.setdefault("average", "seed")
        return {"name": name, "params": own}
    return {"name": f"metric:{name}", "params": params}
