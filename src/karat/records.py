"""The nouns of karat, as frozen msgspec structs.

Everything that is stored is one of these, as JSON, and carries the version of its format. Whether an item
succeeded, failed or was skipped is a tag (`Ok`, `Failed`, `Skipped`), never guessed from other fields.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, overload

import msgspec

from karat.errors import UnknownName, did_you_mean, plural

Value: TypeAlias = Any
"""An input, an expected value or an output: JSON, or the type that the task or the evaluator annotates."""

JSON: TypeAlias = Any
"""A decoded JSON value of unknown shape, which is checked step by step."""

FORMAT = 2
"""Version of the stored records. A reader of a newer karat understands every older one."""

T = TypeVar("T")

Status = Literal["running", "interrupted", "success", "partial", "no_data", "fatal_error"]
"""`interrupted` is never stored: a stage stored as `running` is interrupted if no process works on it."""


class Example(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input, and optionally the expected output."""

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


OUTPUT_FAILED = "output failed"
"""The reason of a result that was skipped because there is no output to judge."""


class Skipped(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="status", tag="skipped"):
    """An item that was not computed, with the reason. Not applicable spoils nothing; anything else does."""

    reason: str
    applicable: bool = True
    failed_outputs: tuple[str, ...] = ()
    """Of a comparison: the ids of the runs whose output failed, so that there was nothing to judge."""
    status: ClassVar[str] = "skipped"


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one or many model calls. `cost` is None where a price is unknown."""

    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    cached_calls: int = 0
    cost: float | None = None
    reasoning_tokens: int = 0
    """Reasoning tokens; part of `output_tokens`."""
    cached_input_tokens: int = 0
    """Input tokens that the provider read from its cache; part of `input_tokens`."""
    cache_write_tokens: int = 0
    """Input tokens that the provider wrote to its cache; part of `input_tokens`."""
    audio_tokens: int = 0
    served: dict[str, int] = {}
    """Calls by the model version that the provider says it served."""
    image_tokens: int = 0


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


NOT_QUEUED = 0.0
"""No waiting. msgspec leaves a field out where it is the very object of the default, which another 0.0 is not."""


SUMMARY = "summary"
"""The key in the metadata of an output under which the texts are that `Task.summarize` gives."""


class Output(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The output of the task for one (example, attempt, unit), or its failure."""

    format: int
    example: str
    outcome: Ok[Any] | Failed | Skipped
    unit: str = ""
    attempt: int = 1
    try_number: int = 1
    seconds: float = 0.0
    """From the start to the end of the work, waiting included."""
    queue_seconds: float = NOT_QUEUED
    """Of these, the seconds in which its model calls waited for a slot, a rate limit or a retry."""
    trace: list[Call] = []
    code: str | None = None
    """The code fingerprint, where it is not the run's own (`accept_code_change`)."""
    metadata: dict[str, Any] = {}

    @property
    def service_seconds(self) -> float:
        """The time of the task itself, without waiting for a slot, a rate limit or a retry."""
        return max(0.0, self.seconds - self.queue_seconds)

    @property
    def value(self) -> Any:
        """The value that the task returned; None unless ok."""
        return self.outcome.value if isinstance(self.outcome, Ok) else None

    @property
    def summary(self) -> dict[str, str]:
        """Texts that tables show in place of `input`, `expected` and `output`; see `Task.summarize`."""
        return summary_of(self.metadata)


def summary_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The summary in the metadata of an output; empty where there is none."""
    found = metadata.get(SUMMARY)
    return (
        {name: text for name, text in found.items() if isinstance(text, str)}
        if isinstance(found, dict)
        else {}
    )


class Result(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An evaluator's judgment of one output: `score` is a float, conventionally 0 to 1, or None."""

    key: str
    score: float | None = None
    value: Any = None
    comment: str = ""
    metadata: dict[str, Any] = {}
    error: str | None = None
    """Set when the evaluator could not judge; such a result is stored as failed and has no score."""

    def __post_init__(self) -> None:
        score = self.score
        if score is None or (type(score) is float and score - score == 0):
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
    """One stored result: the item it belongs to, and its outcome."""

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
    """From the start to the end of the work, waiting included."""
    queue_seconds: float = NOT_QUEUED
    """Of these, the seconds in which its model calls waited for a slot, a rate limit or a retry."""
    trace: list[Call] = []
    reused_from: str | None = None
    """The evaluation this was copied from."""

    @property
    def service_seconds(self) -> float:
        """The time of the evaluator itself, without waiting for a slot, a rate limit or a retry."""
        return max(0.0, self.seconds - self.queue_seconds)

    @property
    def result(self) -> Result | None:
        """The result of the evaluator; None unless ok."""
        return self.outcome.value if isinstance(self.outcome, Ok) else None

    @property
    def score(self) -> float | None:
        """The score; None unless ok and scored."""
        return self.outcome.value.score if isinstance(self.outcome, Ok) else None


POINTS = {"first": 1.0, "tie": 0.5, "second": 0.0}
"""The share of a win that the output shown first gets."""


def order_verdicts(metadata: Mapping[str, Any]) -> tuple[float, ...]:
    """The verdict of a judge in each of two orders, as `POINTS`; empty where the metadata of its result have none."""
    orders = metadata.get("orders")
    if not isinstance(orders, list) or len(orders) != 2:
        return ()
    shown = [each.get("position") for each in orders if isinstance(each, Mapping)]
    found = [POINTS[each] for each in shown if isinstance(each, str) and each in POINTS]
    return tuple(found) if len(found) == 2 else ()


WITH_MISSING = "limits_with_missing"
"""In the metadata of an estimate that is not a mean: its limits allowing for the missing items."""
MISSING_ATTEMPTS = "missing_attempts"
"""In the metadata of an estimate over problems: the missing attempts; a problem may have a value without them."""


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A number with its interval and its denominator: over `n` of `of` items, and what it is about."""

    value: float | None
    low: float | None = None
    """The lower limit of the interval; None where none can be given."""
    high: float | None = None
    """The upper limit of the interval; None where none can be given."""
    n: int = 0
    of: int = 0
    method: str = ""
    confidence: float = 0.95
    lowest: float | None = None
    """The value if every missing item were as low as possible."""
    highest: float | None = None
    """The value if every missing item were as high as possible."""
    metadata: dict[str, Any] = {}
    """Further facts: design effect, number of clusters, standard error."""
    evaluator: str = ""
    """The key of the evaluator whose results it summarises."""
    aggregator: str = ""
    """The key of the aggregator that computed it."""
    name: str = ""
    """What the aggregator calls it, where it computes several numbers: `macro_f1`, `q95`."""
    run: str | None = None
    """The id of the run it is about; None where it is about several."""
    group: dict[str, str] | None = None
    """The part of the items it is about: `{"topic": "Music"}`, `{"class": "spam"}`."""

    def about(
        self,
        *,
        name: str | None = None,
        run: str | None = None,
        group: Mapping[str, str] | None = None,
        evaluator: str | None = None,
        aggregator: str | None = None,
    ) -> Estimate:
        """Return a copy that says what it is about; groups are added to those it has."""
        given = {"name": name, "run": run, "evaluator": evaluator, "aggregator": aggregator}
        changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
        if group:
            changes["group"] = {**(self.group or {}), **group}
        return msgspec.structs.replace(self, **changes)

    def better(self, lower_is_better: Collection[str]) -> Literal["higher", "lower"] | None:
        """The better direction of this number; None where it has none.

        It is that of its evaluator (`lower_is_better` are evaluator keys), unless its metadata has `better`.
        """
        if "better" in self.metadata:
            stated = self.metadata["better"]
            return stated if stated in ("higher", "lower") else None
        return "lower" if self.evaluator in lower_is_better else "higher"

    @property
    def missing(self) -> int:
        """The number of missing items; of an estimate over problems, that of missing attempts where it is known."""
        return int(self.metadata.get(MISSING_ATTEMPTS, 0)) or self.of - self.n

    @property
    def metric(self) -> str:
        """The aggregator and its own name for the number, for people: `classification macro_f1`."""
        return metric_text(self)

    @property
    def label(self) -> str:
        """Evaluator, metric and group, for people: `exact_match accuracy, topic=Music`."""
        return label_text(self)

    def __str__(self) -> str:
        return format_estimate(self)


class AggregateTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """A table that an aggregator computes, such as a confusion matrix."""

    value: Any
    name: str = ""
    evaluator: str = ""
    aggregator: str = ""
    run: str | None = None
    group: dict[str, str] | None = None

    @property
    def label(self) -> str:
        """Evaluator, aggregator, name and group, for people."""
        return label_text(self)


class AggregatorFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An aggregator that raised an error; the others are not affected."""

    error: Failure
    evaluator: str = ""
    aggregator: str = ""
    run: str | None = None

    @property
    def label(self) -> str:
        """Evaluator and aggregator, for people."""
        aggregator = "default" if self.aggregator == "headline" else self.aggregator
        return f"{self.evaluator} {aggregator}".strip()


def metric_text(part: Estimate | AggregateTable) -> str:
    """The aggregator and its own name for a number or table."""
    if part.name in ("", part.aggregator):
        k = part.metadata.get("k") if isinstance(part, Estimate) else None  # of pass@k and its like
        return part.aggregator if k is None else f"{part.aggregator} k={k}"
    return f"{part.aggregator} {part.name}".strip()


def group_text(group: Mapping[str, str] | None) -> str:
    """A group for people: `topic=Music, class=spam`."""
    return ", ".join(f"{field}={value}" for field, value in (group or {}).items())


def label_text(part: Estimate | AggregateTable) -> str:
    """Return the label of an estimate or a table, without its run."""
    group = group_text(part.group)
    return f"{part.evaluator} {metric_text(part)}".strip() + (f", {group}" if group else "")


class Estimates(Sequence[Estimate]):
    """The estimates of an aggregation: a sequence that can be searched.

    `estimates.get(evaluator=…, aggregator=…, name=…, run=…, group=…)` returns the one estimate that matches;
    `estimates["accuracy"]` looks a name up among aggregators, evaluators and names, where one estimate has it.
    """

    __slots__ = ("_estimates",)

    def __init__(self, estimates: Iterable[Estimate] = ()) -> None:
        self._estimates = list(estimates)

    def __len__(self) -> int:
        return len(self._estimates)

    @overload
    def __getitem__(self, index: int | str) -> Estimate: ...
    @overload
    def __getitem__(self, index: slice) -> Estimates: ...
    def __getitem__(self, index: int | str | slice) -> Estimate | Estimates:
        if isinstance(index, str):
            for field in ("aggregator", "evaluator", "name"):
                if any(getattr(each, field) == index for each in self._estimates):
                    return self._main_estimate(
                        [e for e in self._estimates if getattr(e, field) == index], index
                    )
            known = {
                getattr(e, field) for e in self._estimates for field in ("aggregator", "evaluator", "name")
            }
            raise UnknownName(f"no estimate is called {index!r}: {did_you_mean(index, known - {''})}")
        if isinstance(index, slice):
            return Estimates(self._estimates[index])
        return self._estimates[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Estimates) and self._estimates == other._estimates

    __hash__ = None  # type: ignore[assignment]  # a list inside

    def __repr__(self) -> str:
        lines = "".join(f"\n  {each.label}: {each}" for each in self._estimates[:20])
        more = f"\n  … {len(self) - 20} more" if len(self) > 20 else ""
        return f"<{plural(len(self), 'estimate')}{lines}{more}>"

    def select(
        self,
        *,
        evaluator: str | None = None,
        aggregator: str | None = None,
        name: str | None = None,
        run: str | None = None,
        group: Mapping[str, str] | None = None,
    ) -> Estimates:
        """Return all estimates that match what is given."""
        wanted = {"evaluator": evaluator, "aggregator": aggregator, "name": name, "run": run}
        wanted = {field: value for field, value in wanted.items() if value is not None}
        return Estimates(
            each
            for each in self._estimates
            if all(getattr(each, field) == value for field, value in wanted.items())
            and (group is None or (each.group or {}) == dict(group))
        )

    def get(
        self,
        *,
        evaluator: str | None = None,
        aggregator: str | None = None,
        name: str | None = None,
        run: str | None = None,
        group: Mapping[str, str] | None = None,
    ) -> Estimate:
        """Return the one estimate that matches; without `name` and `group`, the main number over all items."""
        for field, value in (
            ("evaluator", evaluator),
            ("aggregator", aggregator),
            ("name", name),
            ("run", run),
        ):
            known = {getattr(each, field) or "" for each in self._estimates}
            if value is not None and value not in known:
                raise UnknownName(
                    f"no estimate has the {field} {value!r}: {did_you_mean(value, known - {''})}"
                )
        found = self.select(evaluator=evaluator, aggregator=aggregator, name=name, run=run, group=group)
        asked = ", ".join(str(each) for each in (evaluator, aggregator, name, run, group) if each is not None)
        return self._main_estimate(list(found), asked or "estimates")

    def _main_estimate(self, found: list[Estimate], asked: str) -> Estimate:
        """The one of several that is an aggregator's main number over all items."""
        if len(found) > 1:
            found = [each for each in found if each.group is None] or found
        if len(found) > 1:
            found = [each for each in found if not each.name] or found
        if len(found) == 1:
            return found[0]
        if not found:
            raise UnknownName(f"no estimate matches {asked}: the aggregation has {self._known()}")
        fields = [
            f"{field} ({', '.join(sorted(values)[:6])}{', …' if len(values) > 6 else ''})"
            for field in ("evaluator", "aggregator", "name", "run", "group")
            if len(values := {str(getattr(each, field) or "none") for each in found}) > 1
        ]
        raise UnknownName(
            f"{len(found)} estimates match {asked!r}: select one with get(), by {' or '.join(fields) or 'index'}"
        )

    def _known(self) -> str:
        labels = [each.label for each in self._estimates]
        return ", ".join(labels[:6]) + (f" and {len(labels) - 6} more" if len(labels) > 6 else "") or "none"


def interval_text(estimate: Estimate, digits: int = 3, *, signed: bool = False) -> str:
    """The interval for people: `[0.82, 0.86]`; a side without a limit says so; empty without any."""
    low, high = estimate.low, estimate.high
    if low is None and high is None:
        return ""
    sign = "+" if signed else ""
    lower = "no lower limit" if low is None else f"{low:{sign}.{digits}f}"
    upper = "no upper limit" if high is None else f"{high:{sign}.{digits}f}"
    return f"[{lower}, {upper}]"


def missing_span(estimate: Estimate, digits: int = 3, *, signed: bool = False) -> str:
    """Between which values missing items could move the value: `0.80–0.85`; empty without any."""
    if not estimate.missing or estimate.lowest is None or estimate.highest is None:
        return ""
    sign = "+" if signed else ""
    dash = " to " if signed or estimate.lowest < 0 or estimate.highest < 0 else "–"
    return f"{estimate.lowest:{sign}.{digits}f}{dash}{estimate.highest:{sign}.{digits}f}"


def missing_text(estimate: Estimate, digits: int = 3, *, signed: bool = False) -> str:
    """Return the range allowing for missing items: `0.80–0.85 allowing for the 50 missing`; empty without any.

    What the bounds assume (`bounds_assume` in the metadata) follows them.
    """
    span = missing_span(estimate, digits, signed=signed)
    if not span:
        return ""
    assumed, attempts = estimate.metadata.get("bounds_assume"), MISSING_ATTEMPTS in estimate.metadata
    what = f"{estimate.missing:,} missing{' attempts' if attempts else ''}"
    return f"{span} allowing for the {what}" + (f" if {assumed}" if assumed else "")


def format_estimate(estimate: Estimate, digits: int = 3) -> str:
    """`0.84 [0.82, 0.86], n 950 of 1000; 0.80–0.85 allowing for the 50 missing`."""
    if estimate.value is None:
        return f"none, n {estimate.n} of {estimate.of}"
    interval, missing = interval_text(estimate, digits), missing_text(estimate, digits)
    text = f"{estimate.value:.{digits}f}" + (f" {interval}" if interval else "")
    return f"{text}, n {estimate.n} of {estimate.of}" + (f"; {missing}" if missing else "")


class Counts(msgspec.Struct, frozen=True, omit_defaults=False):
    """The items of a run or an evaluation. The four kinds add up to the total."""

    ok: int = 0
    failed: int = 0
    skipped: int = 0
    pending: int = 0
    not_applicable: int = 0
    """Those of `skipped` that the evaluator declared not applicable."""
    reused: int = 0
    """Those of `ok` that were copied from earlier evaluations."""

    @property
    def total(self) -> int:
        """The number of items."""
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


HUMAN = "human"
"""The name of the evaluator of an evaluation that holds a person's labels."""
AUDIT = "judge_audit"
"""The metadata of runs and evaluations that an audit of a judge made."""


UsualMetric = Literal["accuracy", "mean"]
"""The aggregator of scores that is used where none is named."""


class EvaluatorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """An evaluator as an evaluation names it."""

    key: str
    name: str
    params: dict[str, Any] = {}
    fingerprint: str = ""
    kind: Literal["single", "pair", "joint"] = "single"
    both_orders: bool = False
    """Whether it compares each pair of runs in both orders."""
    bounds: tuple[float | None, float | None] | None = None
    """The lowest and the highest score it gives, as it declares them; None on a side without a limit."""
    higher_is_better: bool = True
    pass_fail: bool = False
    """Whether it declares that each score is 0 or 1."""

    @property
    def usual_metric(self) -> UsualMetric:
        """The metric of its scores where none is named. It depends on what the evaluator declares, not on the scores.

        Where lower is better it is the mean: a share of failures is not an accuracy.
        """
        return "accuracy" if self.pass_fail and self.higher_is_better else "mean"


def groups_of(kind: str, both_orders: bool, runs: int) -> Iterator[tuple[int, ...]]:
    """Return the indices of the runs that an evaluator sees together."""
    if kind == "single":
        return ((index,) for index in range(runs))
    if kind == "joint":
        return iter([tuple(range(runs))])
    return iter((permutations if both_orders else combinations)(range(runs), 2))


class AggregatorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """An aggregator as an aggregation names it."""

    key: str
    name: str
    params: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """The key, for people: `default` for what is computed where no aggregator is named, stored as `headline`."""
        return "default" if self.name == "headline" else self.key


class DatasetHeader(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The header of a dataset: everything but its examples."""

    format: int
    id: str
    name: str
    version: int = 1
    count: int = 0
    created: float = 0.0
    source: str = ""
    labels: list[str] = []
    metadata: dict[str, Any] = {}


class RunHeader(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The header of a run: everything but its outputs."""

    format: int
    id: str
    dataset: str
    task: str
    configuration: str
    """Fingerprint of everything configured."""
    code: str | None = None
    """Fingerprint of the code; None where it cannot be known."""
    accepted_code: list[str] = []
    """Fingerprints of other code that continued it, by --accept-code-change."""
    source: str = ""
    """The file of the task's code: a task of the same name in another file is another task."""
    replicate: int = 1
    attempts: int = 1
    offset: int = 0
    limit: int | None = None
    units: list[tuple[int, int]] = []
    """Numbers of units of the selected examples, as `(units, examples in a row)`; empty where each has one output."""
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
    """The header of an evaluation: everything but its results."""

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
    """An aggregation: small, so its estimates and tables live in the header.

    `compare` and `rank` store theirs too: `made_by` names the function, `settings` what it was called with, and `runs`
    the runs it is about.
    """

    format: int
    id: str
    configuration: str
    evaluations: list[str] = []
    runs: list[str] = []
    aggregators: list[AggregatorSpec] = []
    made_by: str = "aggregate"
    settings: dict[str, Any] = {}
    estimates: list[Estimate] = []
    tables: list[AggregateTable] = []
    failures: list[AggregatorFailure] = []
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


def usage_of(trace: Iterable[Call]) -> dict[str, Usage]:
    """Usage per model of the calls of a trace."""
    total: dict[str, Usage] = {}
    for call in trace:
        usage = call.usage
        if usage is not None:
            served = call.metadata.get("served_model")
            if served:
                usage = msgspec.structs.replace(usage, served={served: max(1, usage.calls)})
            have = total.get(call.name)
            total[call.name] = usage if have is None else _sum(have, usage)
    return total


def add_usage(total: Mapping[str, Usage], more: Mapping[str, Usage]) -> dict[str, Usage]:
    """Usage per model, added up. An unknown cost makes the sum unknown: it is never taken as zero."""
    out = dict(total)
    for model, usage in more.items():
        have = out.get(model)
        out[model] = usage if have is None else _sum(have, usage)
    return out


def _sum(one: Usage, two: Usage) -> Usage:
    # By position, which is cheaper than by name: this is done for every item of a stage.
    served = one.served
    if two.served:
        served = dict(served)
        for name, calls in two.served.items():
            served[name] = served.get(name, 0) + calls
    return Usage(
        one.input_tokens + two.input_tokens,
        one.output_tokens + two.output_tokens,
        one.calls + two.calls,
        one.cached_calls + two.cached_calls,
        None if one.cost is None or two.cost is None else one.cost + two.cost,
        one.reasoning_tokens + two.reasoning_tokens,
        one.cached_input_tokens + two.cached_input_tokens,
        one.cache_write_tokens + two.cache_write_tokens,
        one.audio_tokens + two.audio_tokens,
        served,
        one.image_tokens + two.image_tokens,
    )
