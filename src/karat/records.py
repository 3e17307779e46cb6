"""The nouns of karat, as frozen msgspec structs.

Everything that is stored is one of these, as JSON, and carries the version of its format. Whether an item
succeeded, failed or was skipped is a tag (`Ok`, `Failed`, `Skipped`), never guessed from other fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

FORMAT = 1
"""Version of the stored records. A reader of a newer karat understands every older one."""

T = TypeVar("T")

Status = Literal["running", "interrupted", "success", "partial", "no_data", "fatal_error"]
"""`interrupted` is never stored: it is what is stored as `running` and nobody works on."""


class Example(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing to be asked, and perhaps what is expected."""

    id: str
    input: Any
    expected: Any = None
    metadata: dict[str, Any] = {}


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an item failed: the error's type, its message, and where it was raised."""

    type: str
    message: str
    where: str = ""
    """The innermost lines of the traceback, for a person."""
    metadata: dict[str, Any] = {}


class Ok(msgspec.Struct, Generic[T], frozen=True, tag_field="status", tag="ok"):
    """An item that succeeded, with what it gave."""

    value: T
    status: ClassVar[str] = "ok"


class Failed(msgspec.Struct, frozen=True, tag_field="status", tag="failed"):
    """An item that failed, with its error."""

    error: Failure
    status: ClassVar[str] = "failed"


class Skipped(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="status", tag="skipped"):
    """An item that was not computed, with the reason. Not applicable spoils nothing; anything else does."""

    reason: str
    applicable: bool = True
    status: ClassVar[str] = "skipped"


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one or many model calls. `cost` is None where a price is unknown."""

    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    cached_calls: int = 0
    cost: float | None = None


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model or tool call that a task or a judge made through karat, as its trace keeps it."""

    kind: str
    """`model` or `tool`."""
    name: str
    input: Any = None
    output: Any = None
    error: str | None = None
    seconds: float = 0.0
    """Of a tool, how long it ran; of a model, its own time for the reply, also when that comes from the cache."""
    cached: bool = False
    usage: Usage | None = None
    metadata: dict[str, Any] = {}
    service_seconds: float = 0.0
    """Time on the wire, with failed attempts; of a cached reply, what it took when it was made."""
    queue_seconds: float = 0.0
    """Time spent waiting for a place, a rate limit or the next attempt."""


class Output(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the task gave for one (example, attempt, unit), or its failure."""

    format: int
    example: str
    outcome: Ok[Any] | Failed | Skipped
    unit: str = ""
    attempt: int = 1
    try_number: int = 1
    seconds: float = 0.0
    trace: list[Call] = []
    code: str | None = None
    """The code fingerprint, where it is not the run's own (`accept_code_change`)."""
    metadata: dict[str, Any] = {}

    @property
    def value(self) -> Any:
        """What the task gave; None unless ok."""
        return self.outcome.value if isinstance(self.outcome, Ok) else None


class Result(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What an evaluator says about one output: `score` is a float, conventionally 0 to 1, or None."""

    key: str
    score: float | None = None
    value: Any = None
    comment: str = ""
    metadata: dict[str, Any] = {}
    error: str | None = None
    """Set when the evaluator could not judge; such a result is stored as failed and has no score."""

    def __post_init__(self) -> None:
        score = self.score
        if score is None or type(score) is float:
            if score is not None and not math.isfinite(score):
                raise ValueError(f"score of {self.key!r} is {score}: NaN and infinities are not scores")
            return
        if not isinstance(score, (int, float)):
            raise TypeError(f"score of {self.key!r} is {type(score).__name__}, not a number")
        msgspec.structs.force_setattr(self, "score", float(score))
        if not math.isfinite(float(score)):
            raise ValueError(f"score of {self.key!r} is {score}: NaN and infinities are not scores")

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON-able values."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class ItemResult(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One stored result: the item it belongs to, and what came of it."""

    format: int
    example: str
    key: str
    """The evaluator's key in this evaluation."""
    runs: tuple[str, ...]
    """The run judged; two for a comparison, in the order they were shown; all for a joint evaluator."""
    outcome: Ok[Result] | Failed | Skipped
    unit: str = ""
    attempt: int = 1
    try_number: int = 1
    seconds: float = 0.0
    trace: list[Call] = []
    reused_from: str | None = None
    """The evaluation this was copied from."""

    @property
    def result(self) -> Result | None:
        """What the evaluator said; None unless ok."""
        return self.outcome.value if isinstance(self.outcome, Ok) else None

    @property
    def score(self) -> float | None:
        """The score; None unless ok and scored."""
        return self.outcome.value.score if isinstance(self.outcome, Ok) else None


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A number with its interval and its denominator: over `n` of `of` items."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    of: int = 0
    method: str = ""
    confidence: float = 0.95
    lowest: float | None = None
    """What the value would be had every missing item been as bad as possible."""
    highest: float | None = None
    """… and as good as possible."""
    metadata: dict[str, Any] = {}
    """What belongs beside it: design effect, number of clusters, standard error."""

    def __str__(self) -> str:
        return format_estimate(self)


def format_estimate(estimate: Estimate, digits: int = 3) -> str:
    """`0.84 [0.82, 0.86], n 950 of 1000; between 0.80 and 0.85 whatever the 50 were`."""
    if estimate.value is None:
        return f"none, n {estimate.n} of {estimate.of}"
    text = f"{estimate.value:.{digits}f}"
    if estimate.low is not None and estimate.high is not None:
        text += f" [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
    text += f", n {estimate.n} of {estimate.of}"
    missing = estimate.of - estimate.n
    if missing and estimate.lowest is not None and estimate.highest is not None:
        text += (
            f"; between {estimate.lowest:.{digits}f} and {estimate.highest:.{digits}f}"
            f" whatever the {missing} {'was' if missing == 1 else 'were'}"
        )
    return text


class Counts(msgspec.Struct, frozen=True, omit_defaults=False):
    """The items of a run or an evaluation. The four kinds add up to the total."""

    ok: int = 0
    failed: int = 0
    skipped: int = 0
    pending: int = 0
    not_applicable: int = 0
    """Those of `skipped` that the evaluator said are not its business."""
    reused: int = 0
    """Those of `ok` that were copied from earlier evaluations."""

    @property
    def total(self) -> int:
        """How many items there are."""
        return self.ok + self.failed + self.skipped + self.pending

    @property
    def status(self) -> Status:
        """The status these counts amount to."""
        if self.total == self.not_applicable:
            return "no_data"
        if self.failed or self.pending or self.skipped > self.not_applicable:
            return "partial"
        return "success"

    def to_dict(self) -> dict[str, int]:
        """The counts and their total."""
        return {"total": self.total, **msgspec.structs.asdict(self)}


class EvaluatorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """An evaluator as an evaluation names it."""

    key: str
    name: str
    params: dict[str, Any] = {}
    fingerprint: str = ""
    kind: Literal["single", "pair", "joint"] = "single"


class AggregatorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """An aggregator as an aggregation names it."""

    key: str
    name: str
    params: dict[str, Any] = {}


class DatasetHeader(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is known of a dataset beside its examples."""

    format: int
    id: str
    name: str
    version: int = 1
    count: int = 0
    created: float = 0.0
    source: str = ""
    metadata: dict[str, Any] = {}


class RunHeader(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is known of a run beside its outputs."""

    format: int
    id: str
    dataset: str
    task: str
    configuration: str
    """Fingerprint of everything configured."""
    code: str | None = None
    """Fingerprint of the code; None where it cannot be known."""
    replicate: int = 1
    attempts: int = 1
    offset: int = 0
    limit: int | None = None
    parameters: dict[str, Any] = {}
    labels: list[str] = []
    metadata: dict[str, Any] = {}
    description: str = ""
    environment: dict[str, Any] = {}
    created: float = 0.0
    finished: float | None = None
    status: Status = "running"
    counts: Counts = Counts()
    usage: dict[str, Usage] = {}
    error: str | None = None


class EvaluationHeader(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is known of an evaluation beside its results."""

    format: int
    id: str
    dataset: str
    runs: list[str]
    evaluators: list[EvaluatorSpec]
    configuration: str
    amends: list[str] = []
    replicate: int = 1
    labels: list[str] = []
    metadata: dict[str, Any] = {}
    description: str = ""
    environment: dict[str, Any] = {}
    created: float = 0.0
    finished: float | None = None
    status: Status = "running"
    counts: Counts = Counts()
    usage: dict[str, Usage] = {}
    error: str | None = None


class AggregationHeader(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An aggregation: small, so its estimates and tables live in the header."""

    format: int
    id: str
    evaluations: list[str]
    aggregators: list[AggregatorSpec]
    configuration: str
    estimates: dict[str, Estimate] = {}
    tables: dict[str, Any] = {}
    failures: dict[str, Failure] = {}
    """Aggregators that raised; the others stand."""
    labels: list[str] = []
    metadata: dict[str, Any] = {}
    description: str = ""
    environment: dict[str, Any] = {}
    created: float = 0.0
    finished: float | None = None
    status: Status = "running"
    counts: Counts = Counts()
    error: str | None = None


Header = DatasetHeader | RunHeader | EvaluationHeader | AggregationHeader


def to_builtins(value: Any) -> Any:
    """Any record as JSON-able dicts and lists."""
    return msgspec.to_builtins(value)


def usage_of(trace: Iterable[Call]) -> dict[str, Usage]:
    """Usage per model of the calls of a trace."""
    total: dict[str, Usage] = {}
    for call in trace:
        if call.usage is not None:
            total = add_usage(total, {call.name: call.usage})
    return total


def add_usage(total: Mapping[str, Usage], more: Mapping[str, Usage]) -> dict[str, Usage]:
    """Usage per model, added up. An unknown cost makes the sum unknown: it is never taken as zero."""
    out = dict(total)
    for model, usage in more.items():
        have = out.get(model)
        if have is None:
            out[model] = usage
            continue
        cost = None if have.cost is None or usage.cost is None else have.cost + usage.cost
        out[model] = Usage(
            input_tokens=have.input_tokens + usage.input_tokens,
            output_tokens=have.output_tokens + usage.output_tokens,
            calls=have.calls + usage.calls,
            cached_calls=have.cached_calls + usage.cached_calls,
            cost=cost,
        )
    return out
