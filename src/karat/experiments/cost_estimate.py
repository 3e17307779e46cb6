"""Estimate the tokens, cost and time of a plan and its judges, without model calls or from a sample.

Without a sample, the size of the prompts in bytes gives the input tokens, and a reply has 0 to `max_tokens` tokens. The
prompts of a judge are those that it would send about an output of assumed length. With a sample, karat runs and judges
that many records; their replies are cached, so the run does not pay for them again. All estimates state their error.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from karat.errors import FAILURES, NotApplicable, RequestError, Stopped, for_thread, wording
from karat.evaluators.judges._base import JudgeEvaluator
from karat.execution.judgments import Judgment, PreparedEvaluator, asks_no_model
from karat.experiments.plan import Plan, PlannedRun
from karat.models import Endpoint, Limits, Model, Reply
from karat.models._prices import MESSAGE_TOKENS
from karat.models.providers import Tokens
from karat.records import FORMAT, Call, Example, Ok, Output, groups_of
from karat.tasks.function import Context, Task
from karat.tasks.prompt import PromptTask

COUNTED = 500
"""Records whose prompts are measured; the rest are assumed to be similar."""

JUDGED = 20
"""Records for which the prompts of judges are measured."""

ASSUMED = 400
"""Bytes of an output that nobody has seen yet, where the dataset has no reference to go by."""

BYTES_PER_TOKEN = (5.5, 4.0, 2.5)
"""High, typical and low: English prose has about 4, code and other languages fewer."""

_TIME_FROM_LIMITS = "; time from the rate limits and the input tokens alone"

_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Quantiles of Student's t for 95 %, by degrees of freedom from 1."""


class Range(msgspec.Struct, frozen=True):
    """An expected value between limits; an unknown limit is None."""

    value: float | None
    low: float | None
    high: float | None


FREE = Range(0.0, 0.0, 0.0)


class RunEstimate(msgspec.Struct, frozen=True):
    """The estimated usage of one run, or of one evaluator that judges its outputs."""

    task: str
    model: str | None
    items: int
    input_tokens: Range
    output_tokens: Range
    cost: Range
    seconds: float | None
    basis: str
    """The method and its accuracy."""
    evaluator: str | None = None
    """The key of the evaluator; None for the run itself."""


def estimate_plan(
    plan: Plan, store: Any = None, *, sample: int = 0, batch: bool = False
) -> list[RunEstimate]:
    """An estimate for each run of a plan and for each judge of its outputs, from `sample` records that are run.

    With `batch`, at the prices of the providers' batch APIs; the sample is run by plain calls.
    """
    if isinstance(plan.dataset, str):
        if store is None:
            raise RequestError("an estimate needs the dataset: name a file, or a store that has it")
        dataset: Iterable[Example] = store.datasets.get(plan.dataset)
        count = len(dataset)  # type: ignore[arg-type]  # a stored dataset has a length
    else:
        dataset, count = plan.dataset, len(plan.dataset)
    offset, limit = plan.options.get("offset") or 0, plan.options.get("limit")
    left = max(0, count - offset)
    items = (left if limit is None else min(left, limit)) * (plan.options.get("attempts") or 1)
    examples = list(islice(iter(dataset), offset, offset + max(COUNTED, sample)))
    concurrency = plan.options.get("concurrency") or 100
    prepared = [PreparedEvaluator(index, each) for index, each in enumerate(plan.evaluators)]
    judges = [each for each in prepared if _may_ask(each.evaluator)]
    if sample:
        made = asyncio.run(
            _estimate_from_sample(plan.runs, judges, examples[:sample], items, concurrency, batch)
        )
        return [_as_batch(each) for each in made] if batch else made
    out: list[RunEstimate] = []
    for planned in plan.runs:
        out.append(_count_requests(planned, examples, items, batch))
        for each in judges:
            if each.kind == "single":
                out.append(asyncio.run(_counted_judge([planned], each, examples[:JUDGED], items, batch)))
    for each in judges:
        if each.kind != "single" and (groups := _groups(each, len(plan.runs))):
            compared = items * len(groups)
            out.append(asyncio.run(_counted_judge(plan.runs, each, examples[:JUDGED], compared, batch)))
    return [_as_batch(each) for each in out] if batch else out


def _as_batch(estimate: RunEstimate) -> RunEstimate:
    """An estimate for a batch: limits do not make its time, the provider does."""
    basis = f"{estimate.basis}; at the batch price; a batch ends within a day"
    return msgspec.structs.replace(estimate, seconds=None, basis=basis)


def _endpoint_of(model: Model, batch: bool) -> Endpoint:
    """Return the endpoint of a model, with its price there."""
    return model.in_batch if batch else model.endpoint


def _groups(prepared: PreparedEvaluator, runs: int) -> list[tuple[int, ...]]:
    """The runs that an evaluator sees together, by index; none where it compares and there is one run."""
    return [group for group in groups_of(prepared.kind, prepared.both_orders, runs) if group]


def _may_ask(evaluator: Any) -> bool:
    return isinstance(evaluator, JudgeEvaluator) or not asks_no_model(evaluator)


def _run_five() -> str:
    return f"use {wording('--estimate 5', 'sample=5')} to run five records"


def _count_requests(planned: PlannedRun, examples: list[Example], items: int, batch: bool) -> RunEstimate:
    task = planned.task
    if not isinstance(task, PromptTask):
        raise RequestError(f"task {task.name!r} is code, so its model calls are unknown: {_run_five()}")
    sizes = [task.prompt_size(example.input) for example in examples]
    mean = sum(size for size, _ in sizes) / len(sizes) if sizes else 0.0
    has_media = any(media for _, media in sizes)
    low, value, high = (items * mean / each for each in BYTES_PER_TOKEN)
    high += items * MESSAGE_TOKENS * (len(task.messages) + 1)  # what a chat template may add
    most, price = task.answer_tokens, _endpoint_of(task.model, batch).price_at_tier
    output = Range(None, 0.0, None if most is None else float(items * most))
    cost = Range(None, None, None)
    if price is not None:
        upper = None
        if output.high is not None and not has_media:
            upper = (high * price.dearest_input + output.high * price.dearest_output) / 1e6
        cost = Range(None, low * (price.input if price.cache_read is None else price.cache_read) / 1e6, upper)
        if price.free:
            cost = FREE
    basis = "input tokens from prompt size, at 2.5 to 5.5 bytes per token, and a chat template"
    if most is None:
        basis += f"; max_tokens is not set, and the model's own limit is unknown: {_run_five()}"
    else:
        basis += f"; output from 0 to {most:,} tokens per item"
    if has_media:
        basis += f"; the tokens of images, audio and files are unknown: {_run_five()}"
    seconds = max(_limit_seconds(task.model.endpoint.limits, items, value), default=None)
    if seconds is not None:
        basis += _TIME_FROM_LIMITS
    tokens = Range(None, low, None) if has_media else Range(value, low, high)
    return RunEstimate(task.name, task.model.spec, items, tokens, output, cost, seconds, basis)


# ---------------------------------------------------------------- judges without a call


class _Recorder:
    """Stands in for a judge's model: notes the size of each request, and gives the shortest valid reply."""

    def __init__(self, model: Model, batch: bool) -> None:
        self.spec, self.endpoint, self.identity = model.spec, _endpoint_of(model, batch), model.identity
        self.requests: list[tuple[int, int, int]] = []

    async def generate(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Reply:
        size = sum(len(str(message["content"]).encode()) for message in messages)
        self.requests.append((size, len(messages), int(options["max_tokens"])))
        return Reply(text=json.dumps(_instance(options["schema"].schema)))


def _instance(schema: Mapping[str, Any]) -> Any:
    """A value that fits the schema of a judge's reply."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema["type"]
    if kind == "object":
        return {name: _instance(each) for name, each in schema["properties"].items()}
    if kind == "array":
        item = schema["items"]
        named = [(name, each["enum"]) for name, each in item.get("properties", {}).items() if "enum" in each]
        if not named or named[0][0] not in ("id", "criterion"):
            return [_instance(item)]
        name, values = named[0]
        return [{**_instance(item), name: value} for value in values]
    return {"string": "x", "boolean": True, "integer": 1}[kind]


async def _counted_judge(
    runs: Sequence[PlannedRun], prepared: PreparedEvaluator, examples: list[Example], items: int, batch: bool
) -> RunEstimate:
    """The requests that a judge would make about outputs of three lengths: short, assumed and longest."""
    judge, name = prepared.evaluator, _name_of(runs)
    unknown = Range(None, None, None)
    if not isinstance(judge, JudgeEvaluator) or prepared.kind == "joint":
        basis = f"it is code, so its model calls are unknown: {_run_five()}"
        return RunEstimate(name, None, items, unknown, unknown, unknown, None, basis, prepared.key)
    spec = ", ".join(judge.settings.names)
    limits = [each.task.answer_tokens if isinstance(each.task, PromptTask) else None for each in runs]
    known = [limit for limit in limits if limit is not None]
    most = max(known) if len(known) == len(limits) else None
    lengths = [1, None, None if most is None else 4 * most]
    found: list[_PerItem] = []
    for place, length in enumerate(lengths):
        if place == 2 and length is None:
            continue
        try:
            found.append(await _dry_run(prepared, examples, length, BYTES_PER_TOKEN[place], batch))
        except FAILURES as error:
            basis = f"its prompts are unknown before there are outputs ({error}): {_run_five()}"
            return RunEstimate(name, spec, items, unknown, unknown, unknown, None, basis, prepared.key)
    low, typical, *rest = found
    high = rest[0] if rest else None
    input_tokens = Range(
        items * typical.input, items * low.input, None if high is None else items * high.input
    )
    output_tokens = Range(None, 0.0, None if high is None else items * high.output)
    cost = unknown
    if low.lowest_cost is not None:
        upper = None if high is None or high.highest_cost is None else items * high.highest_cost
        cost = Range(None, items * low.lowest_cost, upper)
    prices = [_endpoint_of(model, batch).price_at_tier for model in judge.settings.models]
    if all(price is not None and price.free for price in prices):
        cost = FREE
    seconds = None if typical.seconds is None else items * typical.seconds
    basis = (
        f"requests of the judge about outputs of 1 to {4 * most:,} bytes" if most else "requests of the judge"
    )
    basis += ", at 2.5 to 5.5 bytes per token; replies from 0 to max_tokens tokens; no repairs"
    if most is None:
        basis += f"; the longest output of the task is unknown: {_run_five()}"
    if seconds is not None:
        basis += _TIME_FROM_LIMITS
    return RunEstimate(name, spec, items, input_tokens, output_tokens, cost, seconds, basis, prepared.key)


def _name_of(runs: Sequence[PlannedRun]) -> str:
    """Name what a judge judges: the outputs of a task, or runs against each other."""
    return runs[0].task.name if len(runs) == 1 else f"{len(runs)} runs against each other"


class _PerItem(msgspec.Struct, frozen=True):
    """A judge's use per item. Costs are None if a price is unknown; seconds are None without a rate limit."""

    input: float
    output: float
    """The most tokens of its replies."""
    lowest_cost: float | None
    highest_cost: float | None
    seconds: float | None


async def _dry_run(
    prepared: PreparedEvaluator,
    examples: list[Example],
    length: int | None,
    bytes_per_token: float,
    batch: bool,
) -> _PerItem:
    """Return what a judge uses for an item with an output of this length (None: the length of the reference)."""
    judge: JudgeEvaluator = prepared.evaluator
    recorders = [_Recorder(model, batch) for model in judge.settings.models]
    dry = copy.copy(judge)
    dry.settings = msgspec.structs.replace(judge.settings, models=tuple(recorders))
    dry._judge_core = None
    for example in examples:
        text = "word " * ((length if length is not None else _assumed_output(example)) // 5 + 1)
        output = Output(format=FORMAT, example=example.id, outcome=Ok(text))
        with contextlib.suppress(NotApplicable):  # it asks nothing about this one
            if prepared.kind == "pair":
                await dry.compare(example, output, output)  # type: ignore[attr-defined]  # it is one that compares
                continue
            await dry.evaluate_async(
                outputs=text,
                reference_outputs=example.expected,
                inputs=example.input,
                example=example,
                output=output,
            )
    count = len(examples) or 1
    lowest: float | None = 0.0
    highest: float | None = 0.0
    inputs, outputs, seconds = 0.0, 0.0, []
    for each in recorders:
        read = sum(size for size, _, _ in each.requests) / bytes_per_token / count
        if bytes_per_token == BYTES_PER_TOKEN[-1]:  # the upper limit
            read += sum(MESSAGE_TOKENS * (messages + 1) for _, messages, _ in each.requests) / count
        written = sum(limit for _, _, limit in each.requests) / count
        inputs, outputs = inputs + read, outputs + written
        seconds += _limit_seconds(each.endpoint.limits, len(each.requests) / count, read)
        price = each.endpoint.price_at_tier
        if price is None or lowest is None or highest is None:
            lowest = highest = None
        else:
            lowest += read * (price.input if price.cache_read is None else price.cache_read) / 1e6
            highest += (read * price.dearest_input + written * price.dearest_output) / 1e6
    return _PerItem(inputs, outputs, lowest, highest, max(seconds, default=None))


def _assumed_output(example: Example) -> int:
    expected = example.expected
    return len(expected.encode()) if isinstance(expected, str) and expected else ASSUMED


# ---------------------------------------------------------------- a sample of records


async def _estimate_from_sample(
    runs: Sequence[PlannedRun],
    judges: Sequence[PreparedEvaluator],
    examples: list[Example],
    items: int,
    concurrency: int,
    batch: bool,
) -> list[RunEstimate]:
    from karat.models import recording

    gate = asyncio.Semaphore(concurrency)

    async def run(task: Task, example: Example) -> tuple[list[Call], Any]:
        made: Any = None
        async with gate:
            with recording(example.id) as calls:
                try:
                    made = await _work(task, example)
                except Stopped:
                    raise
                except FAILURES:
                    pass  # its usage until the failure counts
            return list(calls), made

    async def judge(
        prepared: PreparedEvaluator, group: tuple[int, ...], example: Example, outputs: tuple[Output, ...]
    ) -> list[Call]:
        judgment = Judgment(0, example, prepared.index, group, outputs, 1, None)
        # The place of the judgment in the cache is the one that the evaluation gives it.
        scope = f"{prepared.spec.fingerprint or prepared.key}\n{group}\n{outputs[0].unit}"
        ids = tuple(f"run {index + 1}" for index in group)
        async with gate:
            with recording(example.id, scope=scope) as calls:
                try:
                    if prepared.is_async:
                        await prepared.ask_async(judgment, ids)
                    else:
                        await asyncio.to_thread(for_thread(prepared.ask), judgment, ids)
                except Stopped:
                    raise
                except FAILURES:
                    pass  # its usage until the failure counts
            return list(calls)

    out: list[RunEstimate] = []
    outputs: list[dict[str, Output]] = []
    """Of each run, by the example."""

    async def judged_by(prepared: PreparedEvaluator, groups: list[tuple[int, ...]]) -> None:
        work = [
            judge(prepared, group, example, tuple(outputs[index][example.id] for index in group))
            for group in groups
            for example in examples
            if all(example.id in outputs[index] for index in group)
        ]
        judged = await asyncio.gather(*work)
        if judged and not any(judged):
            return  # it asks no model
        model = ", ".join(dict.fromkeys(c.name for calls in judged for c in calls if c.kind == "model"))
        name = _name_of([runs[index] for index in groups[0]] if len(groups) == 1 else runs)
        estimate = _from_traces(name, model or None, judged, items * len(groups), concurrency, batch)
        out.append(msgspec.structs.replace(estimate, evaluator=prepared.key))

    for number, planned in enumerate(runs):
        done = await asyncio.gather(*(run(planned.task, example) for example in examples))
        traces = [calls for calls, _ in done]
        out.append(_from_traces(planned.task.name, planned.model, traces, items, concurrency, batch))
        outputs.append(
            {
                example.id: Output(format=FORMAT, example=example.id, outcome=Ok(made), trace=calls)
                for example, (calls, made) in zip(examples, done, strict=True)
                if made is not None
            }
        )
        for prepared in judges:
            if prepared.kind == "single":
                await judged_by(prepared, [(number,)])
    for prepared in judges:
        if prepared.kind != "single" and (groups := _groups(prepared, len(runs))):
            await judged_by(prepared, groups)
    return out


def _from_traces(
    name: str,
    model: str | None,
    traces: Sequence[Sequence[Call]],
    items: int,
    concurrency: int,
    batch: bool,
) -> RunEstimate:
    calls = [[call for call in trace if call.kind == "model"] for trace in traces]
    counted = calls if all(_is_counted(call) for each in calls for call in each) else []
    tokens_in = [sum(call.usage.input_tokens for call in each if call.usage) for each in counted]
    tokens_out = [sum(call.usage.output_tokens for call in each if call.usage) for each in counted]
    costs = [_cost(each, batch) for each in calls]
    known = [cost for cost in costs if cost is not None]
    cost = _extrapolate(known, items) if known and len(known) == len(costs) else Range(None, None, None)
    failed = sum(any(call.error for call in each) for each in calls)
    basis = f"{len(traces)} records run, 95 % interval of their mean"
    basis += f"; {failed} had a failed call" if failed else ""
    basis += "" if counted or not calls else "; the provider does not count tokens"
    if len(traces) < 2:
        basis = "1 record run: the error is unknown" if traces else "no record returned an output to judge"
    return RunEstimate(
        name,
        model,
        items,
        _extrapolate(tokens_in, items),
        _extrapolate(tokens_out, items),
        cost,
        _seconds(calls, items, concurrency),
        basis,
    )


def _cost(calls: Sequence[Call], batch: bool) -> float | None:
    """Return the list price of a record's calls, including cache hits; None if a price is unknown."""
    total = 0.0
    for call in calls:
        usage = call.usage
        if usage is None or usage.cost is None or not _is_counted(call):
            return None
        if not call.cached and not batch:
            total += usage.cost
            continue
        model = _model(call.name)
        price = None if model is None else _endpoint_of(model, batch).price
        if price is None:
            return None
        # A trace keeps the audio and image tokens of prompt and answer together: the dearer of the two is taken.
        tokens = Tokens(
            input=usage.input_tokens,
            output=usage.output_tokens,
            cache_read=usage.cached_input_tokens,
            cache_write=usage.cache_write_tokens,
            tier=call.metadata.get("service_tier", ""),
            web_searches=call.metadata.get("web_searches", 0),
        )
        heard, seen = usage.audio_tokens, usage.image_tokens
        costs = [
            price.cost(msgspec.structs.replace(tokens, audio_input=heard, image_input=seen)),
            price.cost(msgspec.structs.replace(tokens, audio_output=heard, image_output=seen)),
        ]
        known = [cost for cost in costs if cost is not None]
        if not known:
            return None
        total += max(known)
    return total


def _is_counted(call: Call) -> bool:
    """Whether the tokens of a call are known: every answer has some."""
    return bool(call.error or (call.usage and (call.usage.input_tokens or call.usage.output_tokens)))


def _model(spec: str) -> Model | None:
    from karat import models

    try:
        return models.get(spec)
    except RequestError:
        return None


async def _work(task: Task, example: Example) -> Any:
    """The output of a record; None for a task whose records have several, which no judge is estimated for."""
    context = Context(run="estimate", example=example, attempt=1, replicate=1, parameters={})
    if task.is_async:
        made = await task.call_async(example, context)
    else:
        made = await asyncio.to_thread(for_thread(task.call), example, context)
    if hasattr(made, "__aiter__"):
        async for _ in made:
            pass
        return None
    return None if task.units_declared else made


def _extrapolate(values: list[Any], items: int) -> Range:
    n = len(values)
    if not n:
        return Range(None, None, None)
    mean = sum(values) / n
    if n < 2:
        return Range(items * mean, None, None)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    error = spread * (_T[n - 2] if n - 2 < len(_T) else 2.1)
    return Range(items * mean, max(0.0, items * (mean - error)), items * (mean + error))


def _seconds(
    calls: list[list[Call]],
    items: int,
    concurrency: int,
) -> float | None:
    """The duration under the configured limits of the models that were asked."""
    if not calls:
        return None
    n = len(calls)
    service = sum(call.service_seconds for each in calls for call in each)
    found = [items * service / n / concurrency]
    for spec in dict.fromkeys(call.name for each in calls for call in each):
        model = _model(spec)
        if model is None:
            continue
        limits = model.endpoint.limits
        mine = [call for each in calls for call in each if call.name == spec]
        used = sum(call.usage.input_tokens + call.usage.output_tokens for call in mine if call.usage)
        found.append(
            items * sum(call.service_seconds for call in mine) / n / min(concurrency, limits.concurrency)
        )
        found += _limit_seconds(limits, items * len(mine) / n, items * used / n)
    return max(found)


def _limit_seconds(limits: Limits, requests: float, tokens: float) -> list[float]:
    """The seconds that each configured rate limit alone makes of a number of requests and tokens."""
    rates = ((requests, limits.requests_per_minute), (tokens, limits.tokens_per_minute))
    return [60 * count / rate for count, rate in rates if rate]


def estimate_text(estimates: list[RunEstimate]) -> str:
    """Format the estimates as text."""
    lines = []
    for each in estimates:
        head = each.task if each.evaluator is None else f"{each.evaluator}, judging {each.task}"
        head += (f" with {each.model}" if each.model else "") + f": {each.items:,} items"
        lines += [
            head,
            f"  input tokens   {_show_amount(each.input_tokens)}",
            f"  output tokens  {_show_amount(each.output_tokens)}",
            f"  cost           {_show_amount(each.cost, '$', 4)}",
        ]
        known = each.seconds is not None
        time = f"about {each.seconds:,.0f} s under the configured limits" if known else "unknown"
        lines.append(f"  time           {time}")
        lines.append(f"  ({each.basis})")
    if len(estimates) > 1:
        lines.append(f"total cost       {_show_amount(_total([each.cost for each in estimates]), '$', 4)}")
    return "\n".join(lines)


def _total(costs: Sequence[Range]) -> Range:
    """The sum of costs; a limit is unknown where one of them is."""

    def added(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return Range(
        added([cost.value for cost in costs]),
        added([cost.low for cost in costs]),
        added([cost.high for cost in costs]),
    )


def _show_amount(given: Range, unit: str = "", digits: int = 0) -> str:
    def number(value: float) -> str:
        return f"{unit}{value:,.{digits}f}"

    if given == FREE:
        return number(0.0)
    parts = [] if given.value is None else [f"about {number(given.value)}"]
    if given.high is not None:
        parts.append(f"{'at most' if not given.low else f'{number(given.low)} to'} {number(given.high)}")
    elif given.low:
        parts.append(f"at least {number(given.low)}")
    return ", ".join(parts) or "unknown"
