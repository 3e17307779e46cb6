"""The rows of a run as columns: outputs, results and metadata side by side, to be filtered, sorted and sliced."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from karat.aggregators._base import labels_of
from karat.analysis import filters
from karat.analysis.scores import (
    ScoreArrays,
    Scores,
    Source,
    listed_items,
    read_scores,
    sources_of,
    usual_estimate,
)
from karat.analysis.text_search import search
from karat.errors import did_you_mean
from karat.execution.expected_items import Together
from karat.records import Estimate, EvaluatorSpec, UsualMetric
from karat.store.backend import FAILED, NOT_APPLICABLE, OK, REUSED, SKIPPED
from karat.store.columns import (
    MOST_FIELDS,
    ExampleColumns,
    Field,
    ItemColumns,
    ItemName,
    distinct,
    example_columns,
    load_columns,
)
from karat.store.handles import Evaluation, Run
from karat.store.rows import Row, rows_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

PENDING = 5
"""The status of an item that is not stored yet; the others are those of the rows."""

STATUS_NAMES = {
    OK: "ok",
    FAILED: "failed",
    SKIPPED: "skipped",
    NOT_APPLICABLE: "skipped",
    REUSED: "ok",
    PENDING: "pending",
}
_STATUSES = [STATUS_NAMES[code] for code in range(PENDING + 1)]

RESULT_TEXTS = ("value", "comment", "error")
"""What is read from the records of a result: `KEY.comment`."""

TEXT_SECONDS = 10.0
"""How long a search in the records may take."""


def named_positions(examples: ExampleColumns, condition: filters.Condition) -> Mask:
    """The positions whose example id satisfies a condition."""
    if condition.op in ("=", "!="):  # the index of ids answers
        found = np.zeros(len(examples), bool)
        position = examples.position(condition.value)
        if position is not None:
            found[position] = True
        return ~found if condition.op == "!=" else found
    return np.fromiter((filters.holds(condition, (id,)) for id in examples.ids()), bool, len(examples))


def slice_labels(alternatives: Sequence[Any]) -> list[str]:
    """The slices that a value of a metadata field belongs to, as `karat aggregate --by` names them."""
    return labels_of(list(alternatives) if len(alternatives) != 1 else alternatives[0])


def comparing_sources(run: Run) -> dict[str, Source]:
    """For each evaluator that compares runs, the newest evaluation that compares this one with others."""
    return {
        spec.key: Source(evaluation, spec)
        for evaluation in run.store.evaluations.list()
        if run.id in evaluation.header.runs
        for spec in evaluation.header.evaluators
        if spec.kind != "single"
    }


def estimate_of(
    table: RunTable, key: str, inside: Mask | None = None, form: UsualMetric | None = None
) -> Estimate:
    """The usual metric of an evaluator, or the one given, over the rows of a run, or some of them.

    Items that the evaluator does not apply to are not missing.
    """
    judged, positions = table.results[key], table.positions
    scores, statuses = judged.scores, judged.statuses
    if inside is None:
        unlisted = max(0, Together([table.run], len(table.run.dataset)).total() - len(table))
    else:
        positions, scores, statuses, unlisted = positions[inside], scores[inside], statuses[inside], 0
    of = int((statuses != NOT_APPLICABLE).sum()) + unlisted
    return usual_estimate(judged.spec, positions, scores, of, form=form).about(run=table.run.id)


def metadata_slices(
    table: RunTable, key: str, most_values: int, most_fields: int, form: UsualMetric
) -> list[Estimate]:
    """`accuracy` or `mean` of a run by the metadata fields with 2 to so many values, those with the fewest first."""
    few: list[tuple[int, str]] = []
    for name, field in table.examples.fields.items():
        values = (
            {label for each in field.values for label in slice_labels(each)}
            if field.codes is not None
            else ()
        )
        if 2 <= len(values) <= most_values:
            few.append((len(values), name))
    out = []
    for _, name in sorted(few, key=lambda each: each[0])[:most_fields]:
        field = table.examples.fields[name]
        assert field.codes is not None
        codes = field.codes[table.positions]
        members: dict[str, list[int]] = {}
        for code, value in enumerate(field.values):
            for label in slice_labels(value):
                members.setdefault(label, []).append(code)
        for label, mine in sorted(members.items()):
            inside = np.isin(codes, mine)
            if inside.any():
                out.append(estimate_of(table, key, inside, form).about(group={name: label}))
    return out


class Results:
    """The results of a run by one evaluator, aligned with the rows of the run."""

    def __init__(
        self,
        spec: EvaluatorSpec,
        evaluation: Evaluation,
        scores: Floats,
        statuses: NDArray[np.int8],
        kinds: Sequence[str],
        kind_codes: NDArray[Any],
    ) -> None:
        self.kinds = kinds
        self.kind_codes = kind_codes
        """The kinds of failures and reasons of skips; empty where there are none."""
        self.spec = spec
        self.evaluation = evaluation
        self.statuses = statuses
        # Most evaluators give few different scores: a number of two bytes for each takes a quarter of the memory.
        values = np.append(distinct(scores[~np.isnan(scores)]), np.nan)
        few = len(values) < 1 << 15
        self._values: Floats = values if few else scores
        self._codes: NDArray[np.int16] | None = None
        if few:
            self._codes = np.empty(len(scores), np.int16)
            for start in range(0, len(scores), 1 << 16):  # in parts, for less memory; NaN is the last
                part = scores[start : start + (1 << 16)]
                self._codes[start : start + (1 << 16)] = np.searchsorted(values, part)

    @property
    def scores(self) -> Floats:
        """The score of each row, NaN for none."""
        return self._values if self._codes is None else self._values[self._codes]


class _LazyResults(Mapping[str, Results]):
    """Results by evaluator, each loaded when it is first asked for."""

    def __init__(self, keys: Sequence[str], load: Callable[[str], Results]) -> None:
        self._keys = keys
        self._load = load
        self._loaded: dict[str, Results] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> Results:
        if key not in self._keys:
            raise KeyError(key)
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = self._load(key)
            return self._loaded[key]

    def is_loaded(self, key: str) -> bool:
        """Whether they are in memory."""
        return key in self._loaded

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class RunTable:
    """The rows of a run: one for each example, attempt and unit, pending ones too, in dataset order."""

    def __init__(
        self,
        run: Run,
        sources: Mapping[str, Source] | Sequence[Evaluation],
        examples: Callable[[], ExampleColumns] | None = None,
        columns: ItemColumns | None = None,
    ) -> None:
        """Read the results of each evaluator from `sources`; for a list of evaluations, the newest result counts.

        `columns` are those of the outputs, where they are not to be loaded.
        """
        self.run = run
        if not isinstance(sources, Mapping):
            sources = {key: by_run[run.id] for key, by_run in sources_of([run], sources).items()}
        self._sources = sources
        columns = load_columns(run) if columns is None else columns
        self.kinds = columns.kinds
        self._place(columns)
        self.results = _LazyResults(list(sources), self._load)
        """The results by each evaluator, loaded when they are first needed."""
        self._make_examples = examples or (lambda: example_columns(run.dataset))
        self._examples: ExampleColumns | None = None
        self._every: NDArray[np.int32] | None = None
        self.orders: OrderedDict[Any, Any] = OrderedDict()
        """Rows that were filtered and sorted, for whoever shows them page by page."""
        self.text_seconds = TEXT_SECONDS
        """How long a search in the records may take."""

    def _place(self, columns: ItemColumns) -> None:
        """Take the columns of the outputs, and add the rows of attempts that have none."""
        listed = listed_items(self.run, columns)
        self.names, self.positions, self.codes = listed.names, listed.positions, listed.codes
        pending = listed.stored < 0
        complete = not pending.any()

        def taken(values: NDArray[Any], default: float) -> NDArray[Any]:
            if complete:
                return values
            found = values[np.maximum(listed.stored, 0)] if len(values) else np.full(len(pending), default)
            return np.where(pending, default, found).astype(values.dtype)

        self.statuses = taken(columns.statuses, PENDING)
        self.seconds, self.costs = taken(columns.service_seconds, np.nan), taken(columns.costs, np.nan)
        tokens = columns.input_tokens  # a column without tokens takes no memory
        if columns.output_tokens.strides != (0,):
            tokens = tokens + columns.output_tokens
        self.tokens = taken(tokens, 0)
        self.tries = taken(columns.tries, 1)
        self.kind_codes = taken(columns.kind_codes, 0)
        if len(columns.kinds) < 1 << 15 and self.kind_codes.strides != (0,):
            self.kind_codes = self.kind_codes.astype(np.int16)
        if len(self.names) < 1 << 7:
            self.codes = self.codes.astype(np.int8)
        count = len(self.positions)
        self._first = int(self.positions[0]) if count else 0
        self._dense = (
            len(self.names) == 1 and count > 0 and int(self.positions[-1]) - self._first == count - 1
        )

    def _load(self, key: str) -> Results:
        """The results by one evaluator, aligned with the rows."""
        source = self._sources[key]
        header = source.evaluation.header
        index = next(i for i, spec in enumerate(header.evaluators) if spec.key == key)
        mine = (header.runs.index(self.run.id),)
        columns = load_columns(
            source.evaluation,
            ("scores", "kind_codes"),
            only=lambda item: item.evaluator == index and item.runs == mine,
        )
        places = {name: place for place, name in enumerate(self.names)}
        table = np.array(
            [places.get((item.attempt, item.unit), -1) for item in columns.items] or [-1], np.int64
        )
        rows = self.rows_of(columns.positions, table[columns.codes] if len(columns) else columns.codes)
        known = rows >= 0
        scores = np.full(len(self), np.nan)
        statuses = np.full(len(self), PENDING, np.int8)
        scores[rows[known]] = columns.scores[known]
        statuses[rows[known]] = columns.statuses[known]
        kinds: NDArray[Any] = np.zeros(0, np.int32)
        if len(columns.kinds) > 1:
            kinds = np.zeros(len(self), np.int16 if len(columns.kinds) < 1 << 15 else np.int32)
            kinds[rows[known]] = columns.kind_codes[known]
        return Results(source.spec, source.evaluation, scores, statuses, columns.kinds, kinds)

    def scores_by(self, key: str) -> Scores:
        """The scores by one evaluator, as comparisons take them; those that no row has shown yet are not kept."""
        if not self.results.is_loaded(key):
            return read_scores([(self.run, self._sources[key])])[0]
        judged = self.results[key]
        applies: Any = judged.statuses != NOT_APPLICABLE
        positions = self.positions.astype(np.int32, copy=False)
        codes: NDArray[np.int32] = (
            np.broadcast_to(np.int32(0), (len(self),))
            if len(self.names) == 1
            else self.codes.astype(np.int32, copy=False)
        )
        excluded = positions[~applies], codes[~applies]
        if not len(excluded[0]):
            applies = slice(None)  # all of them, without a copy
        arrays = ScoreArrays(positions[applies], codes[applies], judged.scores[applies], excluded)
        made = Scores(self.run, self._sources[key], list(self.names), arrays)
        made.unlisted = max(0, Together([self.run], len(self.run.dataset)).total() - len(self))
        return made

    def failing(self) -> Mask:
        """The rows whose output, or a result, failed or was skipped because of a failure."""
        bad = (FAILED, SKIPPED)
        mask = np.isin(self.statuses, bad)
        for evaluation in {each.evaluation.id: each.evaluation for each in self._sources.values()}.values():
            header = evaluation.header
            keys = {key for key, source in self._sources.items() if source.evaluation.id == evaluation.id}
            places = {place for place, spec in enumerate(header.evaluators) if spec.key in keys}
            mine = (header.runs.index(self.run.id),)
            wanted = partial(_is_of, places, mine)
            columns = load_columns(evaluation, (), only=wanted, statuses=bad)
            names = {name: place for place, name in enumerate(self.names)}
            table = np.array(
                [names.get((item.attempt, item.unit), -1) for item in columns.items] or [-1], np.int64
            )
            rows = self.rows_of(columns.positions, table[columns.codes] if len(columns) else columns.codes)
            mask[rows[rows >= 0]] = True
        return mask

    def rows_of(self, positions: NDArray[Any], codes: NDArray[Any]) -> NDArray[np.int64]:
        """The rows of items, given by position and place in `names`; −1 for one that is not there."""
        if self._dense:
            rows = positions.astype(np.int64) - self._first
            return np.where((rows >= 0) & (rows < len(self)) & (codes == 0), rows, -1)
        names = max(1, len(self.names))
        mine = self.positions.astype(np.int64) * names + self.codes
        wanted = positions.astype(np.int64) * names + codes
        if len(mine) > 1 and not (np.diff(mine) > 0).all():
            order = np.argsort(mine, kind="stable")
        else:
            order = np.arange(len(mine))
        at = np.searchsorted(mine[order], wanted)
        at = np.minimum(at, max(0, len(mine) - 1))
        found = order[at] if len(mine) else np.full(len(wanted), -1)
        return np.where(mine[found] == wanted, found, -1) if len(mine) else found

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def every_row(self) -> NDArray[np.int32]:
        """The numbers of all rows; one array for every comparison with this run."""
        if self._every is None:
            self._every = np.arange(len(self), dtype=np.int32)
        return self._every

    @property
    def sources(self) -> dict[str, Evaluation]:
        """The evaluation that has the results by each evaluator."""
        return {key: source.evaluation for key, source in self._sources.items()}

    @property
    def examples(self) -> ExampleColumns:
        """The ids and the metadata of the dataset; made when they are first needed."""
        if self._examples is None:
            self._examples = self._make_examples()
        return self._examples

    def name(self, row: int) -> tuple[int, int, str]:
        """The position, the attempt and the unit of a row."""
        attempt, unit = self.names[self.codes[row]]
        return int(self.positions[row]), attempt, unit

    def row_of(self, position: int, attempt: int, unit: str) -> int | None:
        """Return the row of an item."""
        if (attempt, unit) not in self.names:
            return None
        code = self.names.index((attempt, unit))
        found = int(self.rows_of(np.array([position]), np.array([code]))[0])
        return found if 0 <= found < len(self) else None

    # As the columns of a filter ----------------------------------------------------

    def numbers(self, field: str) -> Sequence[Floats] | None:
        if field == "score":
            return [each.scores for each in self.results.values()]
        if field == "seconds":
            return [self.seconds]
        if field == "cost":
            return [self.costs]
        if field == "tokens":
            return [self.tokens.astype(np.float64)]
        if field == "try":
            return [self.tries.astype(np.float64)]
        key = field.removesuffix(".score")
        if key in self.results and field not in filters.FIELDS:
            return [self.results[key].scores]
        if (
            field not in filters.FIELDS
            and field.rpartition(".")[0] not in self.results
            and field != "failure"
        ):
            values = self.examples.fields.get(field.removeprefix("metadata."))
            if values is not None and values.numbers is not None:
                return [values.numbers[self.positions]]
        return None

    def labels(self, field: str) -> tuple[NDArray[Any], Sequence[Sequence[Any]]] | None:
        if field == "status":
            return self.statuses, [(name,) for name in _STATUSES]
        if field == "attempt":
            return self.codes, [(attempt,) for attempt, _ in self.names]
        if field == "unit":
            return self.codes, [(unit,) for _, unit in self.names]
        if field == "run":
            return np.zeros(len(self), np.int8), [(self.run.id, *self.run.header.labels)]
        if field == "result":
            packed = np.zeros(len(self), np.int64)
            for each in self.results.values():
                packed |= np.left_shift(1, each.statuses.astype(np.int64))
            combinations, codes = np.unique(packed, return_inverse=True)
            return codes, [
                [_STATUSES[code] for code in range(PENDING + 1) if bits >> code & 1]
                for bits in combinations.tolist()
            ]
        if field == "id":
            return None
        if field == "changed":
            raise filters.FilterError("changed is a field of a comparison: open two runs")
        if field == "failure":
            return self.kind_codes, [(kind or None,) for kind in self.kinds]
        key, _, part = field.rpartition(".")
        if part == "status" and key in self.results:
            names: list[tuple[str, ...]] = [(name,) for name in _STATUSES]
            names[NOT_APPLICABLE] = ("skipped", "not applicable")  # no estimate counts these as missing
            return self.results[key].statuses, names
        if part == "failure" and key in self.results:
            mine = self.results[key]
            kinds: NDArray[Any] = mine.kind_codes if len(mine.kind_codes) else np.zeros(len(self), np.int8)
            return kinds, [(kind or None,) for kind in mine.kinds]
        if part in ("status", "failure") and (comparing := comparing_sources(self.run).get(key)):
            return self._comparison_statuses(comparing, part)
        if field.startswith("slice.") and field not in self.examples.fields:
            sliced = self._metadata(field.removeprefix("slice."))
            if sliced is not None and sliced.codes is not None:
                return sliced.codes[self.positions], [slice_labels(each) for each in sliced.values]
        if field in filters.FIELDS:
            return None  # not a field of the metadata that has the same name
        values = self.examples.fields.get(field.removeprefix("metadata."))
        if values is not None:
            if values.codes is None:
                raise filters.FilterError(
                    f"{field} has too many different values to filter by: search for a text"
                )
            return values.codes[self.positions], values.values
        return None

    def _comparison_statuses(self, source: Source, part: str) -> tuple[NDArray[Any], list[list[str]]]:
        """The statuses, or the kinds of failures, of the comparisons of each row with other runs: it has several."""
        header = source.evaluation.header
        index, mine = header.evaluators.index(source.spec), header.runs.index(self.run.id)
        columns = load_columns(
            source.evaluation,
            ("kind_codes",),
            only=lambda item: item.evaluator == index and mine in item.runs,
        )
        places = {name: place for place, name in enumerate(self.names)}
        table = np.array(
            [places.get((item.attempt, item.unit), -1) for item in columns.items] or [-1], np.int64
        )
        rows = self.rows_of(columns.positions, table[columns.codes] if len(columns) else columns.codes)
        values = columns.statuses if part == "status" else columns.kind_codes
        names = _STATUSES if part == "status" else columns.kinds
        there = rows >= 0 if part == "status" else (rows >= 0) & (values > 0)
        several: dict[int, set[str]] = {}
        for row, value in zip(rows[there].tolist(), values[there].tolist(), strict=True):
            several.setdefault(row, set()).add(names[value])
        known: dict[frozenset[str], int] = {frozenset(): 0}
        codes = np.zeros(len(self), np.int32)
        for row, found in several.items():
            codes[row] = known.setdefault(frozenset(found), len(known))
        return codes, [sorted(each) for each in known]

    def fields(self) -> Iterable[str]:
        return [*self.results, *self.examples.fields]

    def has_further_fields(self) -> bool:
        return len(self.examples.fields) >= MOST_FIELDS

    def named(self, condition: filters.Condition) -> Mask:
        return named_positions(self.examples, condition)[self.positions]

    def is_text(self, condition: filters.Condition) -> bool:
        """Whether only the records can answer a condition."""
        field = condition.field
        key, _, part = field.rpartition(".")
        if field in filters.TEXTS or (key in self.results and part in RESULT_TEXTS):
            return True
        values = self._metadata(field)
        if values is None or values.codes is not None:
            return False
        return values.numbers is None or condition.op == "~"

    def searched(self, leaf: filters.Condition | filters.TextSearch, within: Mask | None) -> Mask:
        """The rows whose records satisfy a condition; gives up after `text_seconds`."""
        return search(self, leaf, within)

    def _metadata(self, field: str) -> Field | None:
        """The column of a field of the metadata; None where the field is another."""
        named = field in filters.FIELDS or field in self.results or field == "failure"
        if named or field.rpartition(".")[0] in self.results:
            return None
        return self.examples.fields.get(field.removeprefix("metadata."))

    # Choosing and ordering -----------------------------------------------------------

    def order(self, sort: str, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows sorted by a field (`-score` descending); those without a value come last."""
        descending, field = sort.startswith("-"), sort.removeprefix("-")
        if field in ("", "position"):
            return chosen[::-1] if descending else chosen
        if field == "score" and self.results:
            field = next(iter(self.results))  # the first evaluator's
        numbers = self.numbers(field)
        if numbers:
            keys = numbers[0][chosen]
        elif field == "id":
            keys = self.examples.ranks()[self.positions[chosen]].astype(np.float64)
        elif (found := self.labels(field)) is not None:
            codes, values = found
            ranked = sorted(range(len(values)), key=lambda code: tuple(map(filters.as_text, values[code])))
            rank = np.empty(len(values))
            rank[ranked] = np.arange(len(values))
            keys = rank[codes[chosen]]
        else:
            known = [*filters.FIELDS, *self.fields()]
            raise filters.FilterError(f"cannot sort by {field!r}: {did_you_mean(field, known)}")
        return chosen[np.argsort(-keys if descending else keys, kind="stable")]

    def counts(self, chosen: NDArray[np.int64] | None = None) -> dict[str, int]:
        """Count the rows of each status."""
        statuses = self.statuses if chosen is None else self.statuses[chosen]
        found = dict.fromkeys(filters.STATUSES, 0)
        for code, count in enumerate(np.bincount(statuses, minlength=PENDING + 1).tolist()):
            found[_STATUSES[code]] += count
        return found


def joined_rows(table: RunTable, page: NDArray[Any]) -> dict[int, Row]:
    """The joined rows of some rows of a table."""
    found: dict[int, Row] = {}
    positions = distinct(np.sort(table.positions[page])).tolist() if len(page) else []
    wanted = {table.name(row): row for row in page.tolist()}
    for position, row in rows_at(table.run, positions, table.sources):
        place = wanted.get((position, row.attempt, row.unit))
        if place is not None:
            found[place] = row
    return found


def _is_of(evaluators: set[int], runs: tuple[int, ...], item: ItemName) -> bool:
    return item.evaluator in evaluators and item.runs == runs


class ComparedTable:
    """The rows of two runs over one dataset, item by item; `key` is the evaluator whose scores are compared."""

    def __init__(self, first: RunTable, second: RunTable, key: str | None) -> None:
        self.first = first
        self.second = second
        self.key = key
        self.orders: OrderedDict[Any, Any] = OrderedDict()
        self.difference: Any = None
        self.forest: Any = None
        """What was computed of the whole comparison, for whoever shows it."""
        self._align()
        differences = self.differences
        higher = first.results[key].spec.higher_is_better if key else True
        better = differences > 0 if higher else differences < 0
        changes = np.full(len(self), filters.CHANGES.index("same"), np.int8)
        changes[better] = filters.CHANGES.index("better")
        changes[~better & (differences != 0)] = filters.CHANGES.index("worse")
        changes[np.isnan(differences)] = filters.CHANGES.index("missing")
        if (
            key
        ):  # as in a comparison: an item that the evaluator does not apply to in either run is not counted
            for table, rows in ((first, self.first_rows), (second, self.second_rows)):
                statuses = self._taken(table.results[key].statuses, rows, PENDING)
                changes[statuses == NOT_APPLICABLE] = filters.CHANGES.index("not applicable")
        self.changes = changes

    def _align(self) -> None:
        self.first_rows: NDArray[Any]
        self.second_rows: NDArray[Any]
        a, b = self.first, self.second
        same = len(a) == len(b) and a.names == b.names
        if same and np.array_equal(a.positions, b.positions) and np.array_equal(a.codes, b.codes):
            self.first_rows = self.second_rows = a.every_row
            self.positions = a.positions
            return
        places = {name: place for place, name in enumerate(b.names)}
        table = np.array([places.get(name, -1) for name in a.names] or [-1], np.int64)
        codes = table[a.codes] if len(a) else np.zeros(0, np.int64)
        there = np.full(len(a), -1, np.int64)
        there[codes >= 0] = b.rows_of(a.positions[codes >= 0], codes[codes >= 0])
        alone = np.setdiff1d(np.arange(len(b)), there[there >= 0])
        self.first_rows = np.concatenate([np.arange(len(a)), np.full(len(alone), -1)])
        self.second_rows = np.concatenate([there, alone])
        self.positions = np.concatenate([a.positions, b.positions[alone]])
        order = np.argsort(self.positions, kind="stable")
        self.first_rows, self.second_rows = self.first_rows[order], self.second_rows[order]
        self.positions = self.positions[order]

    @property
    def differences(self) -> Floats:
        """The second score of each row minus the first; made when they are asked for, to keep less in memory."""
        return self.second_scores - self.first_scores

    @property
    def first_scores(self) -> Floats:
        """The scores of the first run, NaN for none; made when they are asked for, to keep less in memory."""
        return self._side(self.first, self.first_rows)

    @property
    def second_scores(self) -> Floats:
        """The scores of the second run."""
        return self._side(self.second, self.second_rows)

    def _side(self, table: RunTable, rows: NDArray[Any]) -> Floats:
        if not self.key:
            return np.full(len(self), np.nan)
        return self._taken(table.results[self.key].scores, rows, np.nan)

    def _taken(self, values: NDArray[Any], rows: NDArray[Any], default: Any) -> NDArray[Any]:
        if self.first_rows is self.second_rows:
            return values
        taken = values[np.maximum(rows, 0)] if len(values) else np.full(len(rows), default)
        return np.where(rows >= 0, taken, default)

    def __len__(self) -> int:
        return len(self.first_rows)

    @property
    def examples(self) -> ExampleColumns:
        """The ids and the metadata of the dataset."""
        return self.first.examples

    def name(self, row: int) -> tuple[int, int, str]:
        """The position, the attempt and the unit of a row."""
        mine = int(self.first_rows[row])
        return self.first.name(mine) if mine >= 0 else self.second.name(int(self.second_rows[row]))

    def row_of(self, position: int, attempt: int, unit: str) -> int | None:
        """Return the row of an item."""
        for table, rows in ((self.first, self.first_rows), (self.second, self.second_rows)):
            mine = table.row_of(position, attempt, unit)
            if mine is not None:
                found = np.flatnonzero(rows == mine)
                if len(found):
                    return int(found[0])
        return None

    def change(self, row: int) -> str:
        """`better`, `worse`, `same`, `missing` or `not applicable`."""
        return filters.CHANGES[self.changes[row]]

    def counts(self, chosen: NDArray[Any] | None = None) -> dict[str, int]:
        """Count the rows that are better, worse, the same, missing and not applicable."""
        changes = self.changes if chosen is None else self.changes[chosen]
        counts = np.bincount(changes, minlength=len(filters.CHANGES)).tolist()
        return dict(zip(filters.CHANGES, counts, strict=True))

    # A field is that of the second run, unless it begins with `first.`; metadata are of both.

    def _column(self, field: str) -> tuple[RunTable, NDArray[Any], str]:
        if field.startswith("first."):
            return self.first, self.first_rows, field.removeprefix("first.")
        return self.second, self.second_rows, field.removeprefix("second.")

    def numbers(self, field: str) -> Sequence[Floats] | None:
        """Return the numeric columns for a filter; `score` is that of the compared evaluator in the second run."""
        if field == "difference":
            return [self.differences]
        if field == "first":
            return [self.first_scores]
        if field in ("second", "score"):
            return [self.second_scores]
        table, rows, name = self._column(field)
        found = table.numbers(name)
        return None if found is None else [self._taken(each, rows, np.nan) for each in found]

    def labels(self, field: str) -> tuple[NDArray[Any], Sequence[Sequence[Any]]] | None:
        """Return the text columns for a filter."""
        if field == "changed":
            return self.changes, [(name,) for name in filters.CHANGES]
        table, rows, name = self._column(field)
        if name not in filters.FIELDS and name not in table.results:
            values = self.examples.fields.get(name.removeprefix("metadata."))
            if values is not None and values.codes is not None:
                return values.codes[self.positions], values.values
        found = table.labels(name)
        if found is None:
            return None
        codes, alternatives = found
        return self._taken(codes, rows, len(alternatives)), [*alternatives, (None,)]

    def fields(self) -> Iterable[str]:
        """The names of evaluators and metadata fields."""
        return ["difference", "first", "second", *self.second.fields()]

    def has_further_fields(self) -> bool:
        """Whether the metadata may have fields without a column."""
        return self.second.has_further_fields()

    def is_text(self, condition: filters.Condition) -> bool:
        """Whether only the records can answer a condition."""
        if condition.field in ("changed", "difference", "first", "second"):
            return False
        table, _, name = self._column(condition.field)
        return table.is_text(msgspec.structs.replace(condition, field=name))

    def searched(self, leaf: filters.Condition | filters.TextSearch, within: Mask | None) -> Mask:
        """The rows whose records satisfy a condition: for no field, and for a field of the example, of either run."""
        sides = [(self.first, self.first_rows), (self.second, self.second_rows)]
        if isinstance(leaf, filters.Condition):
            table, rows, name = self._column(leaf.field)
            if leaf.field not in ("input", "expected") and table._metadata(leaf.field) is None:
                sides = [(table, rows)]
            leaf = msgspec.structs.replace(leaf, field=name)
        found = np.zeros(len(self), bool)
        for table, rows in sides:
            inside = None
            if within is not None:
                inside = np.zeros(len(table), bool)
                inside[rows[within & (rows >= 0)]] = True
            found |= self._taken(table.searched(leaf, inside), rows, False)
        return found

    def named(self, condition: filters.Condition) -> Mask:
        """The rows whose example id satisfies a condition."""
        return named_positions(self.examples, condition)[self.positions]

    def order(self, sort: str, chosen: NDArray[Any]) -> NDArray[Any]:
        """Rows sorted by a field (`-difference` descending); those without a value come last."""
        descending, field = sort.startswith("-"), sort.removeprefix("-")
        if field in ("", "position"):
            return chosen[::-1] if descending else chosen
        numbers = self.numbers(field)
        if not numbers:
            known = ["difference", "first", "second", "seconds", "cost", "tokens", "position"]
            raise filters.FilterError(f"cannot sort by {field!r}: {did_you_mean(field, known)}")
        keys = numbers[0][chosen]
        return chosen[np.argsort(-keys if descending else keys, kind="stable")]
