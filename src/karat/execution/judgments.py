"""One item of an evaluation: the arguments of its evaluator, and the outcome as a row."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from karat.errors import NotApplicable, RequestError
from karat.evaluators._base import (
    Evaluator,
    Kind,
    RunOutput,
    as_result,
    checked_bounds,
    kind_of,
    resolve_evaluator,
)
from karat.evaluators._pairwise import joint_result
from karat.execution.arguments import EvaluatorLike
from karat.execution.engines import STOPPING, failure_of, item_failure
from karat.execution.pipeline import JUDGE_DEFAULTS, Done, Stage, defaults
from karat.keys import code_fingerprint, fingerprint, may_ask_models, result_item
from karat.models._recording import recording
from karat.records import (
    FORMAT,
    NOT_QUEUED,
    OUTPUT_FAILED,
    Call,
    EvaluatorSpec,
    Example,
    Failed,
    Failure,
    ItemResult,
    Ok,
    Output,
    Result,
    Skipped,
    usage_of,
)
from karat.redaction import of_environment, without_secrets
from karat.registry import qualified_name
from karat.serialization import encode, encode_record
from karat.store.backend import FAILED, NOT_APPLICABLE, OK, REUSED, SKIPPED, StoredRow
from karat.store.columns import cells_of_result

VERDICTS = {"win": 1.0, "tie": 0.5, "loss": 0.0}


class Judgment(msgspec.Struct, frozen=True):
    """One item of an evaluation."""

    position: int
    example: Example
    evaluator: int
    """Index of the evaluator in the evaluation's header."""
    runs: tuple[int, ...]
    """Indices of the runs in the evaluation's header, in the order in which they are shown."""
    outputs: tuple[Output, ...]
    try_number: int
    reuse: bytes | None
    calls: recording | None = None
    """Records model calls; set when the item goes to an engine."""


class PreparedEvaluator:
    """An evaluator in an evaluation: its spec, how it is called, and whether its results may be copied."""

    def __init__(self, index: int, given: EvaluatorLike) -> None:
        name, params, evaluator = resolve_evaluator(given)
        self.index = index
        self.evaluator = evaluator
        self.kind: Kind = kind_of(evaluator)
        self.key: str = evaluator.key
        bounds = checked_bounds(getattr(evaluator, "bounds", None), f"evaluator {self.key!r}")
        configuration = evaluator.configuration() if hasattr(evaluator, "configuration") else params
        code = _code_of(evaluator)
        self.known = code is not None
        variables = {} if asks_no_model(evaluator) else defaults(evaluator, JUDGE_DEFAULTS)
        print_ = fingerprint(name=name, configuration=configuration, code=code, environment=variables)
        # A comparison is never cheap enough to be made twice: amending depends on finding it again.
        self.reuse = self.known and (self.kind != "single" or bool(getattr(evaluator, "reuse", True)))
        self.both_orders = self.kind == "pair" and bool(getattr(evaluator, "both_orders", False))
        self.spec = EvaluatorSpec(
            self.key,
            name,
            _header_parameters(params) if params else {},
            print_ if self.known else "",
            self.kind,
            self.both_orders,
            bounds,
            bool(getattr(evaluator, "higher_is_better", True)),
            bool(getattr(evaluator, "pass_fail", False)),
        )
        self.batched = self.kind == "single" and bool(getattr(evaluator, "batched", False))
        if self.kind == "single":
            self.is_async = bool(getattr(evaluator, "is_async", False))
        else:
            method = evaluator.compare if self.kind == "pair" else evaluator.evaluate_runs
            self.is_async = inspect.iscoroutinefunction(method)

    async def ask_async(self, judgment: Judgment, runs: tuple[str, ...]) -> Result:
        """Evaluate on the event loop. `runs` are the ids of the judgment's runs."""
        if self.kind == "single":
            return as_result(await self.evaluator.evaluate_async(**arguments(judgment)), self.key)
        outputs = [with_run(*each) for each in zip(judgment.outputs, runs, strict=True)]
        if self.kind == "pair":
            return verdict(await self.evaluator.compare(judgment.example, *outputs), self.key)
        given = await self.evaluator.evaluate_runs(judgment.example, outputs)
        return joint_result(given, self.key, runs, self.spec.higher_is_better)

    def ask(self, judgment: Judgment, runs: tuple[str, ...]) -> Result:
        """Evaluate in a thread. `runs` are the ids of the judgment's runs."""
        if self.kind == "single":
            return as_result(self.evaluator.evaluate(**arguments(judgment)), self.key)
        outputs = [with_run(*each) for each in zip(judgment.outputs, runs, strict=True)]
        if self.kind == "pair":
            return verdict(self.evaluator.compare(judgment.example, *outputs), self.key)
        given = self.evaluator.evaluate_runs(judgment.example, outputs)
        return joint_result(given, self.key, runs, self.spec.higher_is_better)

    def ask_many(self, judgments: Sequence[Judgment]) -> list[Result | BaseException]:
        """Evaluate many items in one call. An exception, or a wrong number of results, fails every item."""
        try:
            given = list(self.evaluator.evaluate_many([arguments(judgment) for judgment in judgments]))
            if len(given) != len(judgments):
                count = f"{len(given)} {'result' if len(given) == 1 else 'results'}"
                raise ValueError(f"evaluator {self.key!r} returned {count} for {len(judgments)} items")
        except STOPPING:
            raise
        except BaseException as error:
            return [error] * len(judgments)
        results: list[Result | BaseException] = []
        for each in given:
            if isinstance(each, BaseException) or (type(each) is Result and each.key == self.key):
                results.append(each)
                continue
            try:
                results.append(as_result(each, self.key))
            except (TypeError, ValueError) as error:
                results.append(error)
        return results


def arguments(judgment: Judgment) -> dict[str, Any]:
    """The keyword arguments of `evaluate`."""
    example, output = judgment.example, judgment.outputs[0]
    outcome = output.outcome
    return {
        "outputs": outcome.value if isinstance(outcome, Ok) else None,
        "reference_outputs": example.expected,
        "inputs": example.input,
        "example": example,
        "output": output,
    }


def with_run(output: Output, run: str) -> RunOutput:
    """An output with the id of its run."""
    return RunOutput(**{name: getattr(output, name) for name in output.__struct_fields__}, run=run)


def verdict(given: object, key: str) -> Result:
    """The result of a comparison from win, loss or tie of the first, from 1, 0 or 0.5, or from a Result with either."""
    if isinstance(given, str):
        if given not in VERDICTS:
            raise ValueError(f"evaluator {key!r} returned {given!r}: a comparison returns win, loss or tie")
        return Result(key, VERDICTS[given], given)
    result = as_result(given, key)
    if result.error is not None:
        return result
    if result.score is None and result.value in VERDICTS:
        return msgspec.structs.replace(result, score=VERDICTS[result.value])
    if result.score is None or not 0 <= result.score <= 1:
        raise ValueError(
            f"evaluator {key!r} returned {given!r}: a comparison returns win, loss or tie, or 0 to 1"
        )
    if result.value not in VERDICTS:
        word = "win" if result.score > 0.5 else "loss" if result.score < 0.5 else "tie"
        return msgspec.structs.replace(result, value=word)
    return result


class EvaluatorWork:
    """The work on the items of an evaluation: calls evaluators, makes rows."""

    def __init__(
        self,
        evaluators: Sequence[PreparedEvaluator],
        run_ids: Sequence[str],
        stage: Stage,
        *,
        is_async: bool = False,
    ) -> None:
        self.evaluators = evaluators
        self.run_ids = run_ids
        self.is_async = is_async
        self.stage = stage
        self._ids: dict[tuple[int, ...], tuple[str, ...]] = {}

    def started(self, judgment: Judgment) -> Judgment:
        """A judgment on its way to an engine, with a record for its model calls."""
        calls = self.record_calls(judgment, f"{judgment.runs}\n{judgment.outputs[0].unit}")
        return msgspec.structs.replace(judgment, calls=calls)

    def record_calls(self, judgment: Judgment, scope: str) -> recording:
        """The record of model calls for a judgment."""
        evaluator, first = self.evaluators[judgment.evaluator], judgment.outputs[0]
        scope = f"{evaluator.spec.fingerprint or evaluator.key}\n{scope}"
        return self.stage.recording(judgment.example.id, first.attempt, scope)

    async def call_async(self, judgment: Judgment) -> Done:
        assert judgment.calls is not None
        with judgment.calls as calls:
            start = time.perf_counter()
            try:
                result: Result | Failure | NotApplicable = await self.evaluators[
                    judgment.evaluator
                ].ask_async(judgment, self._shown_places(judgment.runs))
            except BaseException as error:
                result = _not_judged(error)
        return self._done(judgment, result, time.perf_counter() - start, calls)

    def call(self, judgment: Judgment) -> Done:
        assert judgment.calls is not None
        with judgment.calls as calls:
            start = time.perf_counter()
            try:
                result: Result | Failure | NotApplicable = self.evaluators[judgment.evaluator].ask(
                    judgment, self._shown_places(judgment.runs)
                )
            except BaseException as error:
                result = _not_judged(error)
        return self._done(judgment, result, time.perf_counter() - start, calls)

    def timed_out(self, judgment: Judgment, seconds: float) -> Done:
        assert judgment.calls is not None
        failure = Failure("TimeoutError", f"no judgment within {seconds:g} s")
        judgment.calls.end()
        return self._done(judgment, failure, seconds, judgment.calls)

    def _done(
        self,
        judgment: Judgment,
        result: Result | Failure | NotApplicable,
        seconds: float,
        calls: recording,
    ) -> Done:
        outcome, status = _outcome(result)
        trace = list(calls)
        queue = calls.queue_seconds() if trace else NOT_QUEUED
        row = self.row(judgment, outcome, status, seconds=round(seconds, 6), queue=queue, trace=trace)
        usage = usage_of(trace) if trace else None
        if isinstance(outcome, Failed):
            return Done((row,), 1, (judgment.example.id, outcome.error), usage)
        return Done((row,), 0, None, usage)

    def row(
        self,
        judgment: Judgment,
        outcome: Ok[Result] | Failed | Skipped,
        status: int,
        *,
        seconds: float = 0.0,
        queue: float = NOT_QUEUED,
        trace: list[Call] | None = None,
        reused_from: str | None = None,
    ) -> StoredRow:
        """Encode the outcome of a judgment as a row of the store."""
        first = judgment.outputs[0]
        record = ItemResult(
            format=FORMAT,
            example=judgment.example.id,
            key=self.evaluators[judgment.evaluator].key,
            runs=self._shown_places(judgment.runs),
            outcome=outcome,
            unit=first.unit,
            attempt=first.attempt,
            try_number=judgment.try_number,
            seconds=seconds,
            queue_seconds=queue,
            trace=trace or [],
            reused_from=reused_from,
        )
        try:
            if trace or not isinstance(outcome, Ok) or type(result := outcome.value) is not Result:
                payload = encode(record)
            else:
                payload = encode_record(record, result.value, result.metadata)
        except RequestError as error:
            status, outcome, trace = FAILED, Failed(failure_of(error)), None
            payload = encode(msgspec.structs.replace(record, outcome=outcome, trace=[]))
        item = result_item(judgment.evaluator, judgment.runs, first.attempt, first.unit)
        reuse = judgment.reuse if status in (OK, REUSED) else None
        cells = cells_of_result(outcome, seconds, queue, trace)
        return StoredRow(judgment.position, item, judgment.try_number, status, reuse, payload, cells)

    def _shown_places(self, places: tuple[int, ...]) -> tuple[str, ...]:
        ids = self._ids.get(places)
        if ids is None:
            ids = self._ids[places] = tuple(self.run_ids[place] for place in places)
        return ids

    def skipped(self, judgment: Judgment) -> StoredRow | None:
        """A row for an item whose output failed or was skipped; None when there is something to judge."""
        if len(judgment.outputs) == 1 and isinstance(judgment.outputs[0].outcome, Ok):
            return None
        shown = list(zip(self._shown_places(judgment.runs), judgment.outputs, strict=True))
        for run, output in shown:
            if not isinstance(output.outcome, Ok):
                reason = OUTPUT_FAILED if isinstance(output.outcome, Failed) else "output skipped"
                if len(shown) == 1:
                    return self.row(judgment, Skipped(reason), SKIPPED)
                failed = tuple(each for each, other in shown if isinstance(other.outcome, Failed))
                skip = Skipped(f"{reason} in run {run}", failed_outputs=failed)
                return self.row(judgment, skip, SKIPPED)
        return None


class BatchWork(msgspec.Struct):
    """The same for evaluators that take many items at once: the engine's item is a list of judgments."""

    each: EvaluatorWork
    is_async: bool = False

    async def call_async(self, judgments: Sequence[Judgment]) -> Done:
        return self.call(judgments)

    def timed_out(self, judgments: Sequence[Judgment], seconds: float) -> Done:
        raise AssertionError("a batch has no timeout")

    def call(self, judgments: Sequence[Judgment]) -> Done:
        """Evaluate items with one evaluator. Its model calls are stored with the first item."""
        work = self.each
        first, last = judgments[0], judgments[-1]
        with work.record_calls(first, f"{len(judgments)} up to {last.position}") as calls:
            start = time.perf_counter()
            results = work.evaluators[first.evaluator].ask_many(judgments)
            each = round((time.perf_counter() - start) / len(judgments), 6)
        trace = list(calls)
        usage = usage_of(trace) if trace else None
        rows: list[StoredRow] = []
        failed, failure = 0, None
        for judgment, result in zip(judgments, results, strict=True):
            outcome, status = _outcome(result if isinstance(result, Result) else _not_judged(result))
            rows.append(work.row(judgment, outcome, status, seconds=each, trace=trace))
            trace = []
            if isinstance(outcome, Failed):
                failed, failure = failed + 1, failure or (judgment.example.id, outcome.error)
        return Done(rows, failed, failure, usage)


def _not_judged(error: BaseException) -> Failure | NotApplicable:
    return error if isinstance(error, NotApplicable) else item_failure(error)


def _outcome(result: Result | Failure | NotApplicable) -> tuple[Ok[Result] | Failed | Skipped, int]:
    if isinstance(result, Result):
        if result.error is not None:
            message = of_environment().in_text(result.error)
            return Failed(Failure("EvaluatorError", message, metadata=result.metadata)), FAILED
        return Ok(result), OK
    if isinstance(result, NotApplicable):
        applicable = result.applicable
        status = SKIPPED if applicable else NOT_APPLICABLE
        return Skipped(str(result) or "not applicable", applicable=applicable), status
    return Failed(result), FAILED


def _code_of(evaluator: Any) -> str | None:
    function = getattr(evaluator, "function", None)
    if function is not None:
        return code_fingerprint(function)
    # An object without declared parameters is identified by its attributes.
    own = getattr(type(evaluator), "configuration", Evaluator.configuration) is not Evaluator.configuration
    return code_fingerprint(type(evaluator) if own or hasattr(evaluator, "params") else evaluator)


def asks_no_model(evaluator: object) -> bool:
    """Whether it computes: a model that the environment names cannot change its results."""
    function = getattr(evaluator, "function", None)
    if function is not None:
        return not may_ask_models(function)
    own = type(evaluator).__module__.startswith("karat.evaluators.")
    return own and not any(hasattr(evaluator, name) for name in ("metric", "embedder", "_embedder"))


def _header_parameters(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters for the header: a secret is left out, a value without a JSON form is replaced by its type."""
    out = {}
    for name, value in without_secrets(params).items():
        try:
            encode(value)
            out[name] = value
        except RequestError:
            out[name] = f"<{qualified_name(type(value))}>"
    return out
