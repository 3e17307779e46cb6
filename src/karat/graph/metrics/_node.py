"""`UnitMetrics`: the lambda node that compares a prediction with what is expected, by any number of unit metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from karat.errors import CannotJudge, RequestError, did_you_mean
from karat.graph.metrics._unit import BaseUnitMetric, UnitMetricRegistry, UnitMetricResult, verdict

SUFFIX = "_result"
"""`exact_match_result`: the older name of a metric's field, used where the configuration asks for it."""

KEY = "text"
"""Under which a metric of the task's own finds a bare value, unless its `key` says otherwise."""

ENTRY_KEYS = ("name", "params", "field")


class UnitMetrics:
    """Judge each record and keep the results in its state, one field for each metric.

    A metric's field is its name, or `<name>_result` if `output_keys` or the output map uses that name, or `field` of
    its entry. A value that is not an object is judged directly and shown under the metric's `key`; a metric defined by
    the task gets it as an object with that key, or with the key `text`.
    """

    def __init__(
        self,
        golden_key: str,
        predicted_key: str,
        unit_metrics_map: Sequence[Mapping[str, Any]],
        output_keys: Iterable[str] | None = None,
    ) -> None:
        self.golden_key = golden_key
        self.predicted_key = predicted_key
        if (
            not isinstance(unit_metrics_map, Sequence)
            or isinstance(unit_metrics_map, str)
            or not unit_metrics_map
        ):
            raise RequestError("unit_metrics_map must be a list of {name, params} with at least one of them")
        asked = set(output_keys or ())
        self._judges: list[tuple[list[str], BaseUnitMetric, str | None]] = []
        self.fields: dict[str, None] = {}
        """The fields it sets."""
        for entry in unit_metrics_map:
            self._add(entry, asked)

    def _add(self, entry: Mapping[str, Any], asked: set[str]) -> None:
        if not isinstance(entry, Mapping) or "name" not in entry:
            raise RequestError(f"unit_metrics_map: {entry!r:.80} needs a name")
        for key in entry:
            if key not in ENTRY_KEYS:
                raise RequestError(
                    f"unit_metrics_map: unknown key {key!r}: {did_you_mean(str(key), ENTRY_KEYS)}"
                )
        given = entry.get("params") or {}
        if not isinstance(given, Mapping):
            raise RequestError(f"unit_metrics_map: params of {entry['name']!r:.40} must be a mapping")
        name, params = str(entry["name"]), {str(key): value for key, value in given.items()}
        metric = UnitMetricRegistry.get_metric(name, **params)
        if entry.get("field"):
            fields = [str(entry["field"])]
        else:
            fields = [field for field in (name, name + SUFFIX) if field in asked] or [name]
        for field in fields:
            if field in self.fields:
                raise RequestError(
                    f"unit_metrics_map: {field!r} is set by two metrics: give one of them field: NAME"
                )
            self.fields[field] = None
        within = params.get("key")
        if not (isinstance(within, str) and within):  # karat's own compare a bare value as it is
            within = None if type(metric).__module__.startswith("karat.") else KEY
        self._judges.append((fields, metric, within))

    def metrics(self) -> Iterator[BaseUnitMetric]:
        """The metrics, in their order."""
        return (metric for _, metric, _ in self._judges)

    def __call__(self, state: dict[str, Any]) -> dict[str, Any]:
        try:
            golden, predicted = state[self.golden_key], state[self.predicted_key]
        except KeyError as error:
            missing = str(error.args[0])
            raise CannotJudge(
                f"the record has no {missing!r}: {did_you_mean(missing, map(str, state))}"
            ) from None
        for fields, metric, key in self._judges:
            if key is None:
                results = metric.evaluate([golden], [predicted])
            else:
                results = metric.evaluate([_under(key, golden)], [_under(key, predicted)])
            result = _as_dict(results, metric)
            for field in fields:
                state[field] = result
        return state

    @staticmethod
    def apply(lambda_node_dict: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """The same as a plain function of the node's keys; the metrics are made anew at each call."""
        keys = ("golden_key", "predicted_key", "unit_metrics_map", "output_keys")
        return UnitMetrics(**{key: lambda_node_dict[key] for key in keys if key in lambda_node_dict})(state)


def _under(key: str, value: Any) -> Any:
    """`{"text": "Paris"}` of `"Paris"`, so that a result looks the same however the record holds its answer."""
    return value if isinstance(value, (Mapping, list)) or value is None else {key: value}


def _as_dict(results: Any, metric: BaseUnitMetric) -> dict[str, Any]:
    who = metric.get_metric_name()
    if not isinstance(results, list) or len(results) != 1:
        raise CannotJudge(f"{who} did not return a list with one result")
    result = results[0]
    if isinstance(result, UnitMetricResult):
        result = result.to_dict()
    elif isinstance(result, dict):
        result = {**result, "correct": verdict(result.get("correct"))}
    if not isinstance(result, dict) or not isinstance(result["correct"], bool):
        raise CannotJudge(f"{who} returned {result!r:.80}, not a result that is correct or not")
    return result
