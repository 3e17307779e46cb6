"""Estimate the tokens, cost and time of a plan, without model calls or from a sample.

Without a sample, the size of the prompts in bytes gives the input tokens, and the output has 0 to `max_tokens` tokens.
With a sample, karat runs that many records; their replies are cached, so the run does not pay for them again. Both
estimates state their error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec

from karat.errors import FAILURES, RequestError, Stopped
from karat.experiments.plan import Plan, PlannedRun
from karat.records import Call, Example
from karat.tasks.base import Context, Task
from karat.tasks.prompt import PromptTask

COUNTED = 500
"""Records whose prompts are measured; the rest are assumed to be similar."""

BYTES_PER_TOKEN = (5.5, 4.0, 2.5)
"""High, typical and low: English prose has about 4, code and other languages fewer."""

_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Quantiles of Student's t for 95 %, by degrees of freedom from 1."""


class Range(msgspec.Struct, frozen=True):
    """An expected value between limits; an unknown limit is None."""

    value: float | None
    low: float | None
    high: float | None


class RunEstimate(msgspec.Struct, frozen=True):
    """The estimated usage of one run."""

    task: str
    model: str | None
    items: int
    input_tokens: Range
    output_tokens: Range
    cost: Range
    seconds: float | None
    basis: str
    """The method and its accuracy."""


def estimate_plan(plan: Plan, store: Any = None, *, sample: int = 0) -> list[RunEstimate]:
    """An estimate for each run of a plan, from `sample` records that are run."""
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
    out = []
    for planned in plan.runs:
        if sample:
            out.append(asyncio.run(_sampled(planned, examples[:sample], items, concurrency)))
        else:
            out.append(_counted(planned, examples, items))
    return out


def _counted(planned: PlannedRun, examples: list[Example], items: int) -> RunEstimate:
    task = planned.task
    if not isinstance(task, PromptTask):
        raise RequestError(
            f"task {task.name!r} is code, so its model calls are unknown: use --estimate 5 to run five records"
        )
    sizes = [task.prompt_size(example.input) for example in examples]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    low, value, high = (items * mean / each for each in BYTES_PER_TOKEN)
    most, price = task.max_tokens, task.model.endpoint.price
    output = Range(None, 0.0, None if most is None else float(items * most))
    cost = Range(None, None, None)
    if price is not None:
        upper = None
        if output.high is not None:
            upper = (high * price.dearest_input + output.high * price.dearest_output) / 1e6
        cost = Range(None, low * (price.cache_read or price.input) / 1e6, upper)
    basis = "input tokens from prompt size, at 2.5 to 5.5 bytes per token; output from 0 to max_tokens tokens"
    if most is None:
        basis += ", which is not set: use --estimate 5 to run five records"
    return RunEstimate(task.name, task.model.spec, items, Range(value, low, high), output, cost, None, basis)


async def _sampled(planned: PlannedRun, examples: list[Example], items: int, concurrency: int) -> RunEstimate:
    from karat.models import recording

    task = planned.task
    gate = asyncio.Semaphore(concurrency)

    async def one(example: Example) -> list[Call]:
        async with gate:
            with recording(example.id) as calls:
                try:
                    await _work(task, example)
                except Stopped:
                    raise
                except FAILURES:
                    pass  # its usage until the failure counts
            return list(calls)

    traces = await asyncio.gather(*(one(example) for example in examples))
    calls = [[call for call in trace if call.kind == "model"] for trace in traces]
    tokens_in = [sum(call.usage.input_tokens for call in each if call.usage) for each in calls]
    tokens_out = [sum(call.usage.output_tokens for call in each if call.usage) for each in calls]
    service = [sum(call.service_seconds for call in each) for each in calls]
    price = _price(task)
    cost = Range(None, None, None)
    if price is not None:
        paid = [
            (i * price.input + o * price.output) / 1e6 for i, o in zip(tokens_in, tokens_out, strict=True)
        ]
        cost = _extrapolated(paid, items)
    failed = sum(any(call.error for call in each) for each in calls)
    basis = f"{len(examples)} records run, 95 % interval of their mean"
    basis += f"; {failed} had a failed call" if failed else ""
    if len(examples) < 2:
        basis = "1 record run: the error is unknown"
    return RunEstimate(
        task.name,
        planned.model,
        items,
        _extrapolated(tokens_in, items),
        _extrapolated(tokens_out, items),
        cost,
        _seconds(task, service, calls, tokens_in, tokens_out, items, concurrency),
        basis,
    )


async def _work(task: Task, example: Example) -> None:
    context = Context(run="estimate", example=example, attempt=1, replicate=1, parameters={})
    if task.is_async:
        made = await task.call_async(example, context)
    else:
        made = await asyncio.to_thread(task.call, example, context)
    if hasattr(made, "__aiter__"):
        async for _ in made:
            pass


def _price(task: Task) -> Any:
    return task.model.endpoint.price if isinstance(task, PromptTask) else None


def _extrapolated(values: list[Any], items: int) -> Range:
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
    task: Task,
    service: list[float],
    calls: list[list[Call]],
    tokens_in: list[int],
    tokens_out: list[int],
    items: int,
    concurrency: int,
) -> float | None:
    """The duration of the run under the configured limits."""
    if not service:
        return None
    n = len(service)
    found = [items * sum(service) / n / concurrency]
    if isinstance(task, PromptTask):
        limits = task.model.endpoint.limits
        found.append(items * sum(service) / n / min(concurrency, limits.concurrency))
        if limits.requests_per_minute:
            found.append(items * sum(map(len, calls)) / n / limits.requests_per_minute * 60)
        if limits.tokens_per_minute:
            found.append(items * (sum(tokens_in) + sum(tokens_out)) / n / limits.tokens_per_minute * 60)
    return max(found)


def estimate_text(estimates: list[RunEstimate]) -> str:
    """Format the estimates as text."""
    lines = []
    for each in estimates:
        head = f"{each.task}" + (f" with {each.model}" if each.model else "") + f": {each.items:,} items"
        lines += [
            head,
            f"  input tokens   {_shown(each.input_tokens)}",
            f"  output tokens  {_shown(each.output_tokens)}",
            f"  cost           {_shown(each.cost, '$', 4)}",
        ]
        if each.seconds is not None:
            lines.append(f"  time           about {each.seconds:,.0f} s under the configured limits")
        lines.append(f"  ({each.basis})")
    return "\n".join(lines)


def _shown(given: Range, unit: str = "", digits: int = 0) -> str:
    def number(value: float) -> str:
        return f"{unit}{value:,.{digits}f}"

    if given.value is None and given.low is None and given.high is None:
        return "unknown"
    parts = [] if given.value is None else [f"about {number(given.value)}"]
    if given.high is not None:
        parts.append(f"{'at most' if not given.low else f'{number(given.low)} to'} {number(given.high)}")
    elif given.low:
        parts.append(f"at least {number(given.low)}")
    return ", ".join(parts)
