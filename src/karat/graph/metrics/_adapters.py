"""Each kind used as the other: `unit:NAME` among evaluators, `evaluator:NAME` among unit metrics."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from karat.errors import CannotJudge, RequestError
from karat.evaluators import Evaluator, Item, ParameterCheck, build_evaluator, clip, evaluators
from karat.graph.metrics._unit import (
    BaseUnitMetric,
    UnitMetricRegistry,
    UnitMetricResult,
    check_lengths,
    unit_metrics,
)
from karat.records import Result

LONGEST_LABEL = 1000
"""Bytes of JSON up to which golden and predicted values are kept with a result, for the confusion matrix."""


class UnitMetricEvaluator(Evaluator):
    """A unit metric as an evaluator: the reference is golden, the output is predicted, correct scores 1."""

    reuse = False

    def __init__(self, metric: BaseUnitMetric, name: str, params: dict[str, Any]) -> None:
        super().__init__(f"unit:{name}")
        self.metric = metric
        self.bounds = type(metric).bounds
        self.higher_is_better = type(metric).higher_is_better
        # a metric that others wrote may wait on something, and a batch is judged where nothing may wait
        self.batched = type(metric).__module__.startswith("karat.")
        self.params = {"metric": name, **params}

    def evaluate(
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        return self._result(self._judged([reference_outputs], [outputs])[0])

    def evaluate_many(self, items: Sequence[Item]) -> list[Result | Exception]:
        """Judge all items in one call, or one by one if the call fails."""
        try:
            golden = [item.get("reference_outputs") for item in items]
            judged = self._judged(golden, [item.get("outputs") for item in items])
            return [self._result(each) for each in judged]
        except Exception:
            return super().evaluate_many(items)

    def _judged(self, golden: list[Any], predicted: list[Any]) -> list[UnitMetricResult]:
        results = self.metric.evaluate(golden, predicted)
        if not isinstance(results, list) or len(results) != len(golden):
            raise CannotJudge(f"{self.key} gave no list of {len(golden)} results")
        return results

    def _result(self, judged: Any) -> Result:
        if not isinstance(judged, UnitMetricResult) or not isinstance(judged.correct, bool):
            raise CannotJudge(
                f"{self.key} gave {clip(judged)}, not a UnitMetricResult that is correct or not"
            )
        plain = judged.to_dict()
        metadata = plain["metadata"]
        if metadata.get("error"):
            raise CannotJudge(f"{self.key}: {str(metadata['error'])[:200]}")
        comment = f"the prediction {clip(judged.predicted)} against the golden {clip(judged.golden)}"
        comment = f"{'correct' if judged.correct else 'wrong'}: {comment}"
        reason = str(metadata.get("reason") or _measured(metadata))[:200]
        if reason:
            comment += f"; {reason}"
        for name in ("golden", "predicted"):
            if len(msgspec.json.encode(plain[name])) <= LONGEST_LABEL:
                metadata.setdefault(name, plain[name])
        return Result(self.key, float(judged.correct), judged.correct, comment, metadata)


def _measured(metadata: Mapping[str, Any]) -> str:
    """What the metric measured, beside what it allows, from the metadata of the metrics that measure."""
    for name, bound, words in _MEASURES:
        measure, allowed = metadata.get(name), metadata.get(bound)
        if isinstance(measure, (int, float)) and isinstance(allowed, (int, float)):
            return f"the {name.replace('_', ' in ')} is {measure:.6g}, {words} {allowed:.6g}"
    return ""


_MEASURES = (
    ("distance", "tolerance", "allowed is"),
    ("similarity", "threshold", "needed is"),
    ("difference_percent", "tolerance_percent", "allowed is"),
    ("difference", "scroll_threshold", "allowed is"),
)


class EvaluatorMetric(BaseUnitMetric):
    """An evaluator as a unit metric: correct when its score is `threshold` or more."""

    def __init__(self, evaluator: Any, name: str, threshold: float, params: dict[str, Any]) -> None:
        self.evaluator = evaluator
        self.evaluator_name = name
        self.threshold = threshold
        super().__init__(threshold=threshold, **params)

    def get_metric_name(self) -> str:
        return f"evaluator:{self.evaluator_name}"

    def evaluate(self, golden: list[Any], predicted: list[Any]) -> list[UnitMetricResult]:
        name = self.get_metric_name()
        check_lengths(golden, predicted, name)
        items: list[Item] = [
            {"outputs": given, "reference_outputs": expected}
            for expected, given in zip(golden, predicted, strict=True)
        ]
        results = []
        for at, (item, judged) in enumerate(zip(items, self._judged(items), strict=True)):
            if isinstance(judged, Exception):
                raise CannotJudge(f"{name}: predicted[{at}] could not be judged: {judged}") from judged
            if judged.error is not None or judged.score is None:
                raise CannotJudge(f"{name}: predicted[{at}] got no score: {judged.error or judged.comment}")
            metadata = {
                "validator": name,
                "score": judged.score,
                "threshold": self.threshold,
                "comment": judged.comment,
                **{key: value for key, value in judged.metadata.items() if key not in ("score", "threshold")},
            }
            correct = judged.score >= self.threshold
            results.append(UnitMetricResult(correct, item["reference_outputs"], item["outputs"], metadata))
        return results

    def _judged(self, items: list[Item]) -> list[Result | Exception]:
        if not getattr(self.evaluator, "is_async", False):
            many = getattr(self.evaluator, "evaluate_many", None)
            given = many(items) if callable(many) else [self.evaluator.evaluate(**item) for item in items]
            return list(given)

        async def all_of_them() -> list[Any]:
            calls = (self.evaluator.evaluate_async(**item) for item in items)
            return list(await asyncio.gather(*calls, return_exceptions=True))

        # in a thread of its own, for the caller may be inside an event loop
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(asyncio.run, all_of_them()).result()


class _Adapter:
    """What a prefixed name resolves to: callable with the parameters of the part behind it."""

    builds_evaluator = True

    def __init__(self, part: Any, name: str, extra: Sequence[inspect.Parameter] = ()) -> None:
        self.name = name
        self.__doc__ = inspect.getdoc(part)
        self.__module__ = getattr(part, "__module__", type(part).__module__)
        self.__qualname__ = getattr(part, "__qualname__", type(part).__qualname__)
        try:
            own = list(inspect.signature(part).parameters.values())
        except (TypeError, ValueError):
            own = [inspect.Parameter("params", inspect.Parameter.VAR_KEYWORD)]
        named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in extra]
        at = next((at for at, p in enumerate(own) if p.kind is p.VAR_KEYWORD), len(own))
        own = [p for p in own if p.name not in {each.name for each in named}]
        self.__signature__ = inspect.Signature([*own[:at], *named, *own[at:]])


class _AsEvaluator(_Adapter):
    @property
    def example(self) -> dict[str, Any]:
        """The first pair of the metric's own example, as an evaluator is given it."""
        own = getattr(unit_metrics.get(self.name), "example", None)
        if not own:
            return {}
        return {
            "params": own["params"],
            "outputs": own["predicted"][0],
            "reference_outputs": own["golden"][0],
            "score": float(own["correct"][0]),
        }

    def __call__(self, **params: Any) -> UnitMetricEvaluator:
        return UnitMetricEvaluator(UnitMetricRegistry.get_metric(self.name, **params), self.name, params)


class _AsUnitMetric(_Adapter):
    def __call__(self, threshold: float = 1.0, **params: Any) -> EvaluatorMetric:
        bound = ParameterCheck(f"evaluator:{self.name}").number("threshold", threshold, 0.0, 1.0)
        built = build_evaluator(self.name, params)
        several = callable(getattr(built, "compare", None)) or callable(getattr(built, "evaluate_runs", None))
        if several or not callable(getattr(built, "evaluate", None)):
            raise RequestError(f"evaluator {self.name!r} judges no single outputs, so it is no unit metric")
        return EvaluatorMetric(built, self.name, bound, params)


def _as_evaluator(name: str) -> Any:
    return _AsEvaluator(unit_metrics.get(name), name)


def _as_unit_metric(name: str) -> Any:
    threshold = inspect.Parameter(
        "threshold", inspect.Parameter.KEYWORD_ONLY, default=1.0, annotation="float"
    )
    return _AsUnitMetric(evaluators.get(name), name, [threshold])


evaluators.prefix("unit", _as_evaluator)
unit_metrics.prefix("evaluator", _as_unit_metric)
