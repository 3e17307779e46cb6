"""One judgment: what is asked of an evaluator about one item, and what came of it as a row."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from karat.errors import NotApplicable, RequestError
from karat.evaluators.base import Evaluator, Kind, as_result, kind_of, resolve_evaluator
from karat.execution.failures import STOPPING, failure_of
from karat.execution.lifecycle import defaults
from karat.keys import code_fingerprint, fingerprint, result_item
from karat.models._recording import CacheMode, recording
from karat.records import (
    FORMAT,
    EvaluatorSpec,
    Example,
    Failed,
    Failure,
    ItemResult,
    Ok,
    Output,
    Result,
    Skipped,
    Usage,
    usage_of,
)
from karat.serialization import encode
from karat.store.backend import FAILED, NOT_APPLICABLE, OK, REUSED, SKIPPED, Row

if TYPE_CHECKING:
    from karat.models._budget import Budget

VERDICTS = {"win": 1.0, "tie": 0.5, "loss": 0.0}


class Judgment(NamedTuple):
    """One item of an evaluation."""

    position: int
    example: Example
    evaluator: int
    runs: tuple[int, ...]
    """Places of the runs in the evaluation's header, in the order they are shown."""
    outputs: tuple[Output, ...]
    try_number: int
    reuse: bytes | None


class Begun(NamedTuple):
    """A judgment that is asked for, and what is asked of models for it."""

    judgment: Judgment
    calls: recording


class Judged(NamedTuple):
    """What came of it."""

    row: Row
    failed: Failure | None
    usage: dict[str, Usage]


class Judge:
    """An evaluator in an evaluation: its spec, how it is called, and whether its results may be copied."""

    def __init__(self, place: int, given: Any) -> None:
        name, params, evaluator = resolve_evaluator(given)
        self.place = place
        self.evaluator = evaluator
        self.kind: Kind = kind_of(evaluator)
        self.key: str = evaluator.key
        code = _code_of(evaluator)
        configuration = evaluator.configuration() if hasattr(evaluator, "configuration") else params
        self.known = code is not None
        print_ = fingerprint(name=name, configuration=configuration, code=code, environment=defaults())
        self.spec = EvaluatorSpec(self.key, name, _described(params), print_ if self.known else "", self.kind)
        # A comparison is never cheap enough to be made twice: amending depends on finding it again.
        self.reuse = self.known and (self.kind != "single" or bool(getattr(evaluator, "reuse", True)))
        self.both_orders = self.kind == "pair" and bool(getattr(evaluator, "both_orders", False))
        self.batched = self.kind == "single" and bool(getattr(evaluator, "batched", False))
        self.is_async = self._is_async()

    def _is_async(self) -> bool:
        if self.kind == "pair":
            return inspect.iscoroutinefunction(self.evaluator.compare)
        if self.kind == "joint":
            return inspect.iscoroutinefunction(self.evaluator.evaluate_runs)
        return bool(getattr(self.evaluator, "is_async", False))

    async def ask_async(self, judgment: Judgment) -> Result:
        """Asks on the event loop."""
        example, outputs = judgment.example, judgment.outputs
        if self.kind == "pair":
            return verdict(await self.evaluator.compare(example, *outputs), self.key)
        if self.kind == "joint":
            return as_result(await self.evaluator.evaluate_runs(example, list(outputs)), self.key)
        return as_result(await self.evaluator.evaluate_async(**arguments(judgment)), self.key)

    def ask(self, judgment: Judgment) -> Result:
        """Asks in a thread."""
        example, outputs = judgment.example, judgment.outputs
        if self.kind == "pair":
            return verdict(self.evaluator.compare(example, *outputs), self.key)
        if self.kind == "joint":
            return as_result(self.evaluator.evaluate_runs(example, list(outputs)), self.key)
        return as_result(self.evaluator.evaluate(**arguments(judgment)), self.key)

    def ask_many(self, judgments: Sequence[Judgment]) -> list[Result | BaseException]:
        """Asks for many at once. What it raises, or too few or too many answers, is the failure of each."""
        try:
            given = list(self.evaluator.evaluate_many([arguments(judgment) for judgment in judgments]))
            if len(given) != len(judgments):
                raise ValueError(f"evaluator {self.key!r} gave {len(given)} results for {len(judgments)}")
        except STOPPING:
            raise
        except BaseException as error:
            return [error] * len(judgments)
        return [self._one_of_many(each) for each in given]

    def _one_of_many(self, given: Any) -> Result | BaseException:
        if isinstance(given, BaseException):
            return given
        try:
            return as_result(given, self.key)
        except (TypeError, ValueError) as error:
            return error


def arguments(judgment: Judgment) -> dict[str, Any]:
    """The keyword arguments of `evaluate`."""
    example, output = judgment.example, judgment.outputs[0]
    return {
        "outputs": output.value,
        "reference_outputs": example.expected,
        "inputs": example.input,
        "example": example,
        "output": output,
    }


def verdict(given: Any, key: str) -> Result:
    """What a comparison returned: win, loss or tie for the first, or 1, 0 and 0.5, or a Result with either."""
    if isinstance(given, str):
        if given not in VERDICTS:
            raise ValueError(f"evaluator {key!r} compared to {given!r}: it says win, loss or tie")
        return Result(key, VERDICTS[given], given)
    result = as_result(given, key)
    if result.error is not None:
        return result
    if result.score is None and result.value in VERDICTS:
        return msgspec.structs.replace(result, score=VERDICTS[result.value])
    if result.score is None or not 0 <= result.score <= 1:
        raise ValueError(f"evaluator {key!r} compared to {given!r}: it says win, loss or tie, or 0 to 1")
    if result.value not in VERDICTS:
        word = "win" if result.score > 0.5 else "loss" if result.score < 0.5 else "tie"
        return msgspec.structs.replace(result, value=word)
    return result


class Judging:
    """The judgments of one evaluation, for an engine: calls evaluators, makes rows."""

    def __init__(
        self, judges: Sequence[Judge], run_ids: Sequence[str], *, is_async: bool, replicate: int
    ) -> None:
        self.judges = judges
        self.run_ids = run_ids
        self.is_async = is_async
        self.replicate = replicate
        self.cache: CacheMode = "use"
        self.budget: Budget | None = None
        self._ids: dict[tuple[int, ...], tuple[str, ...]] = {}

    def begun(self, judgment: Judgment) -> Begun:
        """A judgment on its way to an engine."""
        return Begun(judgment, self._recording(judgment, f"{judgment.runs}\n{judgment.outputs[0].unit}"))

    def _recording(self, judgment: Judgment, scope: str) -> recording:
        judge, first = self.judges[judgment.evaluator], judgment.outputs[0]
        scope = f"{judge.spec.fingerprint or judge.key}\n{scope}"
        return recording(
            judgment.example.id, first.attempt, self.replicate, self.cache, self.budget, scope, stored=True
        )

    async def call_async(self, begun: Begun) -> Judged:
        judgment = begun.judgment
        with begun.calls as calls:
            start = time.perf_counter()
            try:
                result: Result | BaseException = await self.judges[judgment.evaluator].ask_async(judgment)
            except STOPPING:
                raise
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                result = error
            except BaseException as error:
                result = error
        return self.judged(judgment, result, time.perf_counter() - start, list(calls))

    def call(self, begun: Begun) -> Judged:
        judgment = begun.judgment
        with begun.calls as calls:
            start = time.perf_counter()
            try:
                result: Result | BaseException = self.judges[judgment.evaluator].ask(judgment)
            except STOPPING:
                raise
            except BaseException as error:
                result = error
        return self.judged(judgment, result, time.perf_counter() - start, list(calls))

    def call_many(self, judgments: Sequence[Judgment]) -> list[Judged]:
        """Judgments of one evaluator that takes many at once. What it asks of models stays with the first of them."""
        first, last = judgments[0], judgments[-1]
        with self._recording(first, f"{len(judgments)} up to {last.position}") as calls:
            start = time.perf_counter()
            results = self.judges[first.evaluator].ask_many(judgments)
            each = (time.perf_counter() - start) / len(judgments)
        traces = [list(calls), *([] for _ in judgments[1:])]
        return [
            self.judged(judgment, result, each, trace)
            for judgment, result, trace in zip(judgments, results, traces, strict=True)
        ]

    def timed_out(self, begun: Begun, seconds: float) -> Judged:
        error = TimeoutError(f"no judgment within {seconds:g} s")
        return self.judged(begun.judgment, error, seconds, begun.calls.end())

    def judged(
        self, judgment: Judgment, result: Result | BaseException, seconds: float, trace: list[Any]
    ) -> Judged:
        """What an evaluator gave or raised, as a row."""
        outcome, status = _outcome(result)
        row = self.row(judgment, outcome, status, seconds=seconds, trace=trace)
        failed = outcome.error if isinstance(outcome, Failed) else None
        return Judged(row, failed, usage_of(trace) if trace else {})

    def row(
        self,
        judgment: Judgment,
        outcome: Ok[Result] | Failed | Skipped,
        status: int,
        *,
        seconds: float = 0.0,
        trace: list[Any] | None = None,
        reused_from: str | None = None,
    ) -> Row:
        """A judgment's outcome as it is stored."""
        first = judgment.outputs[0]
        record = ItemResult(
            format=FORMAT,
            example=judgment.example.id,
            key=self.judges[judgment.evaluator].key,
            runs=self._shown(judgment.runs),
            outcome=outcome,
            unit=first.unit,
            attempt=first.attempt,
            try_number=judgment.try_number,
            seconds=round(seconds, 6),
            trace=trace or [],
            reused_from=reused_from,
        )
        try:
            payload = encode(record)
        except RequestError as error:
            status = FAILED
            payload = encode(msgspec.structs.replace(record, outcome=Failed(failure_of(error)), trace=[]))
        item = result_item(judgment.evaluator, judgment.runs, first.attempt, first.unit)
        reuse = judgment.reuse if status in (OK, REUSED) else None
        return Row(judgment.position, item, judgment.try_number, status, reuse, payload)

    def _shown(self, places: tuple[int, ...]) -> tuple[str, ...]:
        ids = self._ids.get(places)
        if ids is None:
            ids = self._ids[places] = tuple(self.run_ids[place] for place in places)
        return ids

    def skipped(self, judgment: Judgment) -> Row | None:
        """A row for an item whose output failed or was skipped; None when there is something to judge."""
        if len(judgment.outputs) == 1 and isinstance(judgment.outputs[0].outcome, Ok):
            return None
        for place, output in zip(judgment.runs, judgment.outputs, strict=True):
            if not isinstance(output.outcome, Ok):
                which = f" in run {self.run_ids[place]}" if len(judgment.runs) > 1 else ""
                return self.row(judgment, Skipped(f"output {output.outcome.status}{which}"), SKIPPED)
        return None


def _outcome(result: Result | BaseException) -> tuple[Ok[Result] | Failed | Skipped, int]:
    if isinstance(result, Result):
        if result.error is not None:
            return Failed(Failure("EvaluatorError", result.error, metadata=result.metadata)), FAILED
        return Ok(result), OK
    if isinstance(result, NotApplicable):
        applicable = result.applicable
        status = SKIPPED if applicable else NOT_APPLICABLE
        return Skipped(str(result) or "not applicable", applicable=applicable), status
    return Failed(failure_of(result)), FAILED


def _code_of(evaluator: Any) -> str | None:
    function = getattr(evaluator, "function", None)
    if function is not None:
        return code_fingerprint(function)
    # An object that does not say what it was built with is told apart by what it holds.
    own = getattr(type(evaluator), "configuration", Evaluator.configuration) is not Evaluator.configuration
    return code_fingerprint(type(evaluator) if own or hasattr(evaluator, "params") else evaluator)


def _described(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as the header keeps them: what has no JSON is named by its type."""
    out = {}
    for name, value in params.items():
        try:
            encode(value)
            out[name] = value
        except RequestError:
            out[name] = f"<{type(value).__module__}.{type(value).__qualname__}>"
    return out
