"""The data of the viewer's pages, as JSON-able documents, read from a store through read-only connections."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import msgspec
import numpy as np

import karat
from karat.analysis import filters
from karat.analysis.comparison import Found, find_differences
from karat.analysis.outcomes import latency_of, placed_kinds
from karat.analysis.scores import Source, sources_of
from karat.analysis.stored_analyses import is_analysis, is_outdated
from karat.analysis.tables import (
    PENDING,
    ComparedTable,
    RunTable,
    comparing_sources,
    estimate_of,
    joined_rows,
    slice_labels,
)
from karat.analysis.text_diff import Piece, word_diff
from karat.errors import RequestError, TookTooLong, UnknownName, did_you_mean, plural, unknown_metadata
from karat.records import MISSING_ATTEMPTS, Estimate
from karat.reporting import marks
from karat.stats._exact import array_total
from karat.store import ReadPool, Store
from karat.store.columns import (
    ExampleColumns,
    ItemColumns,
    StatusCounts,
    cost_of,
    empty_columns,
    example_columns,
    flat_fields,
    made_elsewhere,
)
from karat.store.handles import Evaluation, Run
from karat.store.rows import Row
from karat.store.run_labels import brief_settings, run_labels
from karat.store.sql import check_time_limit
from karat.view import Download, escaped, find_pair, find_run, quoted, read_key, write_key
from karat.view.column_builds import ColumnBuilder, NotBuiltYet
from karat.view.items import LONGEST_TEXT, ItemPage, compared_calls, item_of, output_text, shown_text

MOST_RUNS = 200
"""Runs that the first page shows."""
MOST_TABLES = 4
"""Runs whose columns are kept in memory."""
LIVE_SHARE = 10
"""The columns of a live run are loaded again only after so many times as long as loading them took."""
MOST_TOGETHER = 400_000
"""Rows, times evaluators, whose differences are found before a comparison is shown: about 0.7 s of CPU."""
MOST_DRAWN_ROWS = 4_000_000
"""Rows, times evaluators, whose differences one plot shows: it comes after the rows."""
CONFIDENCE = 0.95
MOST_GROUPS = 200
FEW = 20
"""Values of a metadata field that slices are shown by where none was chosen."""
LONGEST_SETTING = 80
"""Characters of a setting beside a run, from where it differs from those of the others."""
SAMPLED = 200
"""Examples that are read to learn the fields of the metadata."""


class Viewer:
    """The data of the pages. Its methods may be called from several threads at once."""

    def __init__(self, store: str | Store | None = None) -> None:
        self.pool = ReadPool(store)
        self._lock = threading.RLock()
        self._comparing = threading.RLock()
        self._tables: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._examples: OrderedDict[str, ExampleColumns] = OrderedDict()
        self._live: dict[tuple[int, str], StatusCounts] = {}
        self._made: dict[tuple[Any, ...], tuple[float, float]] = {}
        self.builder = None if isinstance(store, Store) else ColumnBuilder(store)
        with self.pool.store() as opened:
            self.url = opened.url

    def close(self) -> None:
        """Stop making columns, and close the connections."""
        if self.builder is not None:
            self.builder.close()
        self.pool.close()

    @contextmanager
    def _reading(self) -> Iterator[Store]:
        """A store to read from; columns that it lacks are made in the background, those of a given store here."""
        elsewhere = nullcontext() if self.builder is None else made_elsewhere(self.builder.need)
        with elsewhere, self.pool.store() as store:
            yield store

    # Runs --------------------------------------------------------------------------------

    def changes(self) -> dict[str, Any]:
        """The version of the store, whether something in it is going on, and the columns that are being built."""
        builder = self.builder
        with self._reading() as store:
            return {
                "version": store.backend.version(),
                "live": store.backend.is_live(),
                "building": [] if builder is None else builder.progress(),
                "built": 0 if builder is None else builder.built,
            }

    def runs(self, limit: int = MOST_RUNS) -> dict[str, Any]:
        """The runs by dataset, newest first."""
        with self._reading() as store:
            version = store.backend.version()
            runs = store.runs.list()
            shown = runs[-limit:]
            evaluations, aggregations = store.evaluations.list(), store.aggregations.list()
            by_dataset: dict[str, list[Run]] = {}
            for run in reversed(shown):
                by_dataset.setdefault(run.header.dataset, []).append(run)
            datasets = []
            for id, mine in by_dataset.items():
                data = mine[0].dataset
                documents = self._described(mine, evaluations, aggregations)
                datasets.append(
                    {
                        "id": id,
                        "label": data.label,
                        "examples": len(data),
                        "runs": documents,
                        "forest": _forest(documents),
                    }
                )
            return {
                "store": store.url,
                "karat": karat.__version__,
                "version": version,
                "more": max(0, len(runs) - len(shown)),
                "datasets": datasets,
            }

    def _described(
        self,
        runs: Sequence[Run],
        evaluations: Sequence[Evaluation],
        aggregations: Sequence[Any],
        labels: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Documents of runs; without `labels`, each has the label that tells it from the others."""
        headers = [run.header for run in runs]
        labels, apart = labels or run_labels(headers), brief_settings(headers, LONGEST_SETTING)
        out = []
        for run, settings in zip(runs, apart, strict=True):
            header = run.header
            mine = [each for each in evaluations if run.id in each.header.runs]
            status = run.status
            usage = header.usage.values()
            out.append(
                {
                    "id": run.id,
                    "label": labels[run.id],
                    "task": header.task,
                    "dataset": run.dataset.label,
                    "dataset_id": header.dataset,
                    "status": status,
                    "live": status == "running",
                    "created": header.created,
                    "finished": header.finished,
                    "counts": self._counts(run),
                    "cost": cost_of(usage),
                    "tokens": {
                        "input": sum(each.input_tokens for each in usage),
                        "output": sum(each.output_tokens for each in usage),
                    },
                    "settings": settings,
                    "labels": header.labels,
                    "description": header.description,
                    "evaluators": [
                        {
                            "key": key,
                            "name": source.spec.name,
                            "kind": source.spec.kind,
                            "higher_is_better": source.spec.higher_is_better,
                            "bounds": source.spec.bounds,
                            "evaluation": source.evaluation.id,
                        }
                        for key, source in _sources(run, mine).items()
                    ],
                    "estimates": _stored_estimates(run, mine, aggregations),
                }
            )
        return out

    def _counts(self, run: Run) -> dict[str, int]:
        """The counts of a run; of one that is not finished, of what is stored now."""
        counts = run.counts
        if run.header.finished is None:
            with self._lock:
                done = self._live.setdefault((self.pool.generation, run.id), StatusCounts()).update(run)
            total = max(counts.total, sum(done))
            counts = msgspec.structs.replace(
                counts,
                ok=done[0] + done[4],
                failed=done[1],
                skipped=done[2] + done[3],
                pending=total - sum(done),
            )
        found = counts.to_dict()
        return {name: found[name] for name in ("total", "ok", "failed", "skipped", "pending")}

    def run(self, name: str) -> dict[str, Any]:
        """Describe one run, with the fields that can filter its rows."""
        with self._reading() as store:
            run = find_run(store, name)
            evaluations = store.evaluations.list()
            # The label that the list of runs shows.
            beside = [each.header for each in store.runs.list() if each.header.dataset == run.header.dataset]
            labels = run_labels([run.header, *(each for each in beside[-MOST_RUNS:] if each.id != run.id)])
            (document,) = self._described([run], evaluations, store.aggregations.list(), labels)
            estimates = document["estimates"]
            if not estimates:
                with suppress(NotBuiltYet):  # they come with the columns
                    estimates = self._means(self._table(store, run))
            return {
                "run": document,
                "version": store.backend.version(),
                "rows": document["counts"]["total"],
                "fields": _fields(run),
                "evaluators": document["evaluators"],
                "estimates": estimates,
            }

    def _means(self, table: RunTable) -> list[dict[str, Any]]:
        """The usual metric of each evaluator, where nothing has aggregated the results."""
        return [_estimate(estimate_of(table, key)) for key in table.results]

    # Tables --------------------------------------------------------------------------------

    def _table(self, store: Store, run: Run, columns: ItemColumns | None = None) -> RunTable:
        evaluations = [each for each in store.evaluations.list() if run.id in each.header.runs]
        sources = _sources(run, evaluations)
        return self._kept_table(run, sources) if columns is None else RunTable(run, sources, columns=columns)

    def _kept_table(self, run: Run, sources: Mapping[str, Source]) -> RunTable:
        """The columns of a run's rows; those of the runs that were asked for last are kept."""
        state = (
            run.id,
            *((key, source.evaluation.id, _state(source.evaluation)) for key, source in sources.items()),
            _state(run),
            repr(run.header.labels),  # conclusions name the run
            self.pool.generation,
        )
        with self._lock:
            table = self._tables.get(state)
            if table is None:
                earlier = [each for each in self._tables if each[0] == run.id and _ids(each) == _ids(state)]
                for old in earlier:  # an earlier state of a live run
                    made, took = self._made.get(old, (0.0, 0.0))
                    if run.header.finished is None and time.monotonic() - made < LIVE_SHARE * took:
                        kept: RunTable = self._tables[old]
                        return kept
                    del self._tables[old]
                    self._made.pop(old, None)
                while len(self._tables) >= MOST_TABLES:
                    self._made.pop(self._tables.popitem(last=False)[0], None)
                start = time.monotonic()
                table = self._tables[state] = RunTable(run, sources, lambda: self._columns_of(run))
                self._made[state] = (time.monotonic(), time.monotonic() - start)
            self._tables.move_to_end(state)
            return table

    def _columns_of(self, run: Run) -> ExampleColumns:
        with self._lock:
            found = self._examples.get(run.header.dataset)
            if found is None:
                while len(self._examples) >= 2:
                    self._examples.popitem(last=False)
                found = self._examples[run.header.dataset] = example_columns(run.dataset)
            return found

    # Rows ------------------------------------------------------------------------------------

    def rows(
        self,
        name: str,
        *,
        start: int = 0,
        count: int = 100,
        where: str = "",
        sort: str = "",
        around: str | None = None,
        example: str | None = None,
    ) -> dict[str, Any]:
        """A page of the rows of a run; while its columns are built, of all rows in dataset order."""
        parsed = filters.parse(where)
        with self._reading() as store:
            run = find_run(store, name)
            building: list[dict[str, Any]] = []
            try:
                table = self._table(store, run)
            except NotBuiltYet as error:
                if parsed.text or sort or example or run.header.units:
                    raise
                building, table = error.building, self._table(store, run, empty_columns(run))
            chosen = self._chosen(table, parsed, sort)
            start = _start(table, chosen, start, count, around, example)
            page = chosen[start : start + count]
            rows = joined_rows(table, page)
            return {
                "total": len(table),
                "matching": len(chosen),
                "start": start,
                "rows": [
                    _row_document(table, int(row), start + place, rows.get(int(row)))
                    for place, row in enumerate(page)
                ],
                "version": store.backend.version(),
                "counts": self._counts(run)
                if building
                else table.counts(None if len(chosen) == len(table) else chosen),
                "building": building,
            }

    def _chosen(self, table: Any, parsed: filters.Filter, sort: str) -> Any:
        """The rows that a filter selects, in the order that is asked for; the last few answers are kept."""
        key = (parsed.text, sort)
        kept: OrderedDict[tuple[str, str], Any] = table.orders
        with self._lock:
            if key in kept:
                kept.move_to_end(key)
                return kept[key]
        everything = isinstance(parsed.expression, filters.All) and not parsed.expression.parts
        chosen = np.arange(len(table)) if everything else np.flatnonzero(parsed.mask(table))
        chosen = table.order(sort, chosen).astype(np.int32)
        with self._lock:
            kept[key] = chosen
            while len(kept) > 2:
                kept.popitem(last=False)
            for (
                other
            ) in self._tables.values():  # four bytes for each row: those of one page at a time are enough
                if other is not table:
                    other.orders.clear()
        return chosen

    def item(self, name: str, key: str) -> dict[str, Any]:
        """Return one item with all its stored data."""
        with self._reading() as store:
            run = find_run(store, name)
            found = self._item(store, run, key).document()
            return {**found, "diff": _diff(found["example"]["expected"], _answer(found["output"]))}

    def _item(self, store: Store, run: Run, key: str) -> ItemPage:
        position, attempt, unit = read_key(key)
        evaluations = [each for each in store.evaluations.list() if run.id in each.header.runs]
        sources = {key: source.evaluation for key, source in _sources(run, evaluations).items()}
        return item_of(run, position, attempt, unit, sources, evaluations)

    def steps(self, name: str, key: str, start: int, count: int) -> dict[str, Any]:
        """Further steps of a trajectory."""
        with self._reading() as store:
            return self._item(store, find_run(store, name), key).steps_document(start, count)

    def field(self, name: str, key: str, field: str) -> Download:
        """A whole field, to be downloaded."""
        with self._reading() as store:
            return self._item(store, find_run(store, name), key).download(field)

    # Comparisons -------------------------------------------------------------------------------

    def _compared(
        self, store: Store, first: str, second: str, evaluator: str | None
    ) -> tuple[ComparedTable, list[str]]:
        runs = find_pair(store, first, second)
        if runs[0].id == runs[1].id:
            raise RequestError(f"both are {runs[0].id}: a comparison needs two different runs")
        if runs[0].header.dataset != runs[1].header.dataset:
            raise RequestError(
                "the runs have different datasets: karat compare compares the examples that they share"
            )
        wanted = {run.id for run in runs}
        evaluations = [each for each in store.evaluations.list() if wanted & set(each.header.runs)]
        sources = sources_of(runs, evaluations)
        shared = [key for key, by_run in sources.items() if wanted <= set(by_run)]
        if evaluator is not None and evaluator not in shared:
            raise UnknownName(
                f"no evaluator {evaluator!r} has judged both runs: {did_you_mean(evaluator, shared)}"
            )
        tables = [
            self._kept_table(
                run, {key: by_run[run.id] for key, by_run in sources.items() if run.id in by_run}
            )
            for run in runs
        ]
        return self._pair(tables[0], tables[1], evaluator or (shared[0] if shared else None)), shared

    def _pair(self, first: RunTable, second: RunTable, key: str | None) -> ComparedTable:
        """Two runs side by side by one evaluator; what is known of them is kept with their columns."""
        state = ("pair", id(first), id(second), key)
        with self._lock:
            kept: ComparedTable | None = self._tables.get(state)
            if kept is None:
                kept = self._tables[state] = ComparedTable(first, second, key)
            return kept

    def comparison(self, first: str, second: str, evaluator: str | None = None) -> dict[str, Any]:
        """Two runs: how much the second is better or worse, and what differs between them."""
        with self._reading() as store:
            table, shared = self._compared(store, first, second, evaluator)
            runs = [table.first.run, table.second.run]
            documents = self._described(runs, store.evaluations.list(), store.aggregations.list())
            higher = table.key is None or table.first.results[table.key].spec.higher_is_better
            found = self._difference(store, table, shared)
            if table.key is None:
                found["conclusion"] = "No evaluator has judged both runs."
            settings = brief_settings([run.header for run in runs], LONGEST_TEXT)
            names = dict.fromkeys([*settings[0], *settings[1]])
            return {
                "runs": documents,
                "evaluators": shared,
                "evaluator": table.key,
                "higher_is_better": higher,
                "counts": table.counts(),
                **found,
                "differs": [
                    {
                        "name": name,
                        "first": settings[0].get(name, ""),
                        "second": settings[1].get(name, ""),
                    }
                    for name in names
                ],
                "fields": _fields(runs[0]),
                "version": store.backend.version(),
            }

    def differences(self, first: str, second: str) -> dict[str, Any]:
        """The differences by every evaluator that has judged both runs, as a plot; None where one says it all."""
        with self._reading() as store:
            table, shared = self._compared(store, first, second, None)
            keys = shared[: max(1, MOST_DRAWN_ROWS // max(1, len(table)))]
            found = self._found(store, table, keys)
            shown = [each for each in found.differences if each.compared.difference.value is not None]
            plot = None
            if len(shown) > 1:
                plot = marks.differences("Paired differences", shown, {}, found.confidence, by_metric=True)
            left_out = len(keys) - len(shown)
            return {
                "plot": plot,
                "metrics": len(shared),
                "left_out": left_out,
                "beyond": len(shared) - len(keys),
            }

    def _found(self, store: Store, table: ComparedTable, keys: Sequence[str]) -> Found:
        """The differences by some evaluators, adjusted for their number."""
        # The table of the first evaluator keeps those of all.
        kept = self._pair(table.first, table.second, keys[0]) if keys else table
        with self._comparing:  # the page asks for the differences by one and by all at once
            known: dict[int, Found] = kept.difference or {}
            found = known.get(len(keys))
            if found is None:
                sides = (table.first, table.second)

                def scores(key: str) -> list[Any]:
                    check_time_limit()
                    return [side.scores_by(key) for side in sides]

                try:
                    found = find_differences(store, [side.run for side in sides], keys, scores)
                except TookTooLong:
                    raise
                except RequestError as error:  # nothing in common
                    found = Found([], [str(error)], CONFIDENCE)
                kept.difference = {**known, len(keys): found}
            return found

    def _difference(self, store: Store, table: ComparedTable, shared: Sequence[str]) -> dict[str, Any]:
        together = len(table) * len(shared) <= MOST_TOGETHER
        found = self._found(store, table, shared if together else [table.key or ""])
        mine = [each for each in found.differences if each.evaluator == table.key]
        if not mine:
            return {
                "difference": None, "first": None, "second": None, "p_value": None, "adjusted_p_value": None,
                "metrics": 0, "alone": False, "conclusion": "; ".join(found.notes), "notes": [], "plot": None,
            }  # fmt: skip
        each = mine[0]
        difference = each.compared.difference.about(
            evaluator=each.evaluator, aggregator="difference", name=each.aggregator, run=each.run
        )
        others = len(shared) - len(found.differences)
        alone = (
            []
            if together or not others
            else [
                f"By {table.key} alone, not adjusted for the {plural(others, 'other metric')}: karat compare adjusts."
            ]
        )
        return {
            "difference": _estimate(difference),
            "first": _estimate(each.compared.first),
            "second": _estimate(each.compared.second),
            "p_value": each.compared.p_value,
            "adjusted_p_value": each.adjusted_p_value,
            "metrics": sum(other.compared.p_value is not None for other in found.differences),
            "alone": not together,
            "conclusion": each.conclusion,
            "notes": [*found.notes, *([each.note] if each.note else []), *alone],
            "plot": marks.differences("Paired difference", [each], {}, found.confidence, by_metric=True),
        }

    def compared_rows(
        self,
        first: str,
        second: str,
        evaluator: str | None = None,
        *,
        start: int = 0,
        count: int = 100,
        where: str = "",
        sort: str = "",
        around: str | None = None,
        example: str | None = None,
    ) -> dict[str, Any]:
        """Return a page of the rows of a comparison."""
        parsed = filters.parse(where)
        with self._reading() as store:
            table, _ = self._compared(store, first, second, evaluator)
            chosen = self._chosen(table, parsed, sort)
            start = _start(table, chosen, start, count, around, example)
            page, differences = chosen[start : start + count], table.differences
            sides = [
                joined_rows(side, places[places >= 0])
                for side, places in (
                    (table.first, table.first_rows[page]),
                    (table.second, table.second_rows[page]),
                )
            ]
            rows = []
            for place, row in enumerate(page.tolist()):
                a, b = int(table.first_rows[row]), int(table.second_rows[row])
                one, other = sides[0].get(a), sides[1].get(b)
                position, attempt, unit = table.name(row)
                known = one or other
                rows.append(
                    {
                        "key": write_key(position, attempt, unit),
                        "index": start + place,
                        "position": position,
                        "id": known.id if known else "",
                        "attempt": attempt,
                        "unit": unit,
                        "input": shown_text(known.shown("input")) if known else "",
                        "expected": shown_text(known.shown("expected")) if known else "",
                        "changed": table.change(row),
                        "difference": _number(differences[row]),
                        "first": _side(one, table.key),
                        "second": _side(other, table.key),
                    }
                )
            return {
                "total": len(table),
                "matching": len(chosen),
                "start": start,
                "rows": rows,
                "counts": table.counts(None if len(chosen) == len(table) else chosen),
                "version": store.backend.version(),
            }

    def compared_item(
        self, first: str, second: str, key: str, evaluator: str | None = None
    ) -> dict[str, Any]:
        """Return one item of two runs side by side."""
        with self._reading() as store:
            table, _ = self._compared(store, first, second, evaluator)
            position, attempt, unit = read_key(key)
            row = table.row_of(position, attempt, unit)
            items = [self._item(store, side.run, key) for side in (table.first, table.second)]
            one, other = (item.document() for item in items)
            return {
                "key": key,
                "example": one["example"],
                "first": one,
                "second": other,
                "diff": _diff(_answer(one["output"]), _answer(other["output"])),
                "changed": None if row is None else table.change(row),
                "calls": compared_calls(items[0], items[1]),
            }

    # Slices, failures, performance --------------------------------------------------------------

    def slices(self, names: Sequence[str], by: str | None, evaluator: str | None) -> dict[str, Any]:
        """Scores by the values of a metadata field, and what each contributes to a difference."""
        with self._reading() as store:
            runs = [find_run(store, name) for name in names]
            if len({run.header.dataset for run in runs}) > 1:
                raise RequestError("the runs have different datasets: slices need one dataset")
            evaluations = store.evaluations.list()
            wanted = {run.id for run in runs}
            mine = [each for each in evaluations if wanted & set(each.header.runs)]
            sources = sources_of(runs, mine)
            keys = [key for key, by_run in sources.items() if wanted <= set(by_run)]
            if evaluator is not None and evaluator not in keys:
                raise UnknownName(
                    f"no evaluator {evaluator!r} has judged these runs: {did_you_mean(evaluator, keys)}"
                )
            key = evaluator or (keys[0] if keys else None)
            fields = _fields(runs[0])
            stored = _stored_groups(runs, mine, store.aggregations.list(), key)
            fields += [name for name in stored if name not in fields]
            field = by or next(iter(stored), None) if fields == list(stored) else by
            document: dict[str, Any] = {
                "runs": self._described(runs, mine, store.aggregations.list()),
                "fields": fields,
                "by": field,
                "evaluators": keys,
                "evaluator": key,
                "higher_is_better": True,
                "groups": [],
                "difference": None,
                "plot": None,
            }
            if key is None or not (fields or by):
                return document
            if field in stored:
                labels = {run["id"]: run["label"] for run in document["runs"]}
                groups = stored[field]
                return {**document, "groups": groups, "plot": _slice_plot(groups, labels, key, field)}
            tables = [
                self._kept_table(
                    run, {k: by_run[run.id] for k, by_run in sources.items() if run.id in by_run}
                )
                for run in runs
            ]
            document["by"] = field = field or _default_field(tables[0], fields)
            document["higher_is_better"] = tables[0].results[key].spec.higher_is_better
            groups, difference = _slices(tables, key, field)
            labels = {run["id"]: run["label"] for run in document["runs"]}
            plot = _slice_plot(groups, labels, key, field)
            return {**document, "groups": groups, "difference": difference, "plot": plot}

    def failures(self, name: str) -> dict[str, Any]:
        """The failures of a run's outputs and of its newest results, by kind."""
        with self._reading() as store:
            run = find_run(store, name)
            evaluations = [each for each in store.evaluations.list() if run.id in each.header.runs]
            # The label that the list of runs shows.
            beside = [each.header for each in store.runs.list() if each.header.dataset == run.header.dataset]
            labels = run_labels([run.header, *(each for each in beside[-MOST_RUNS:] if each.id != run.id)])
            (document,) = self._described([run], evaluations, store.aggregations.list(), labels)
            newest = {**_sources(run, evaluations), **comparing_sources(run)}
            handles = {source.evaluation.id: source.evaluation for source in newest.values()}
            kinds = placed_kinds(run)
            for handle in handles.values():  # it may have results by other evaluators that are not the newest
                kinds += [
                    placed
                    for placed in placed_kinds(handle, runs=[run.id])
                    if placed.kind.what in newest and newest[placed.kind.what].evaluation.id == handle.id
                ]
            out: list[dict[str, Any]] = []
            for kind, places in sorted(
                kinds, key=lambda each: (each.kind.status != "failed", -each.kind.count)
            ):
                if kind.what == "output":
                    where = f"status:{kind.status}"
                else:
                    where = f"{quoted(kind.what + '.status')}:{kind.status}"
                if kind.type != "others":
                    field = "failure" if kind.what == "output" else f"{kind.what}.failure"
                    where += f' {quoted(field)}="{escaped(kind.type)}"'
                examples = [
                    {
                        "example": each["example"],
                        "attempt": each.get("attempt", 1),
                        "message": each.get("message", ""),
                        "where": each.get("where", ""),
                        "key": write_key(place.position, place.attempt, place.unit),
                    }
                    for each, place in zip(kind.examples, places, strict=True)
                ]
                out.append(
                    {
                        "where": kind.where,
                        "what": kind.what,
                        "status": kind.status,
                        "type": kind.type,
                        "count": kind.count,
                        "filter": where,
                        "examples": examples,
                    }
                )
            # Skips have a section of their own: most follow from a failed output.
            bars: list[tuple[str, int, marks.About]] = [
                (f"{each['type']} · {each['what']}", each["count"], {"filter": each["filter"]})
                for each in out
                if each["status"] == "failed"
            ]
            plot = marks.bars("Failures by kind", bars[:MOST_DRAWN]) if bars else None
            return {"run": document, "kinds": out, "plot": plot}

    def performance(self, names: Sequence[str], evaluator: str | None) -> dict[str, Any]:
        """Cost and quality of runs: cost, tokens and times beside the estimates."""
        with self._reading() as store:
            runs = [find_run(store, name) for name in names]
            evaluations, aggregations = store.evaluations.list(), store.aggregations.list()
            documents = self._described(runs, evaluations, aggregations)
            out = []
            for run, document in zip(runs, documents, strict=True):
                latency, done = latency_of(run), document["counts"]["ok"] + document["counts"]["failed"]
                cost = document["cost"]
                out.append(
                    {
                        "run": document,
                        "cost": cost,
                        "cost_per_item": cost / done if cost is not None and done else None,
                        "tokens": document["tokens"],
                        "seconds": latency.service,
                        "queue_seconds": latency.queue,
                        "estimates": document["estimates"] or self._means(self._table(store, run)),
                    }
                )
            keys = list(
                dict.fromkeys(e["evaluator"] for each in out for e in each["estimates"] if e["evaluator"])
            )
            return {
                "runs": out,
                "evaluators": keys,
                "evaluator": evaluator or (keys[0] if keys else None),
                "plot": _performance_plot(out, evaluator or (keys[0] if keys else None)),
            }


def _sources(run: Run, evaluations: Sequence[Evaluation]) -> dict[str, Source]:
    mine = [each for each in evaluations if run.id in each.header.runs]
    return {key: by_run[run.id] for key, by_run in sources_of([run], mine).items()}


def _state(handle: Run | Evaluation) -> Any:
    """A state that changes when records are added."""
    finished = handle.header.finished
    if finished is not None:
        return finished
    return handle.store.backend.last_segment(handle.number)


def _ids(state: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each[:2] if isinstance(each, tuple) else None for each in state[1:])


def _start(table: Any, chosen: Any, start: int, count: int, around: str | None, example: str | None) -> int:
    """Return where a page starts: at a number, or so that a row or an example is in its middle."""
    if around is None and example is None:
        return min(start, len(chosen))
    if around is not None:
        row = table.row_of(*read_key(around))
        rows = [] if row is None else [row]
    else:
        position = table.examples.position(example or "")
        if position is None:
            raise UnknownName(f"there is no example {example!r} in the dataset")
        rows = np.flatnonzero(table.positions == position).tolist()
    places = np.flatnonzero(np.isin(chosen, rows))
    if not len(places):
        if around is not None and rows:  # the item is open beside a list that a filter left it out of
            return (
                int(np.argmax(chosen > rows[0])) if len(chosen) else 0
            )  # the first page where none is later
        raise UnknownName(f"the row {around or example!r} is not among those that the filter selects")
    return max(0, int(places[0]) - count // 2)


def _row_document(table: RunTable, row: int, index: int, joined: Row | None) -> dict[str, Any]:
    position, attempt, unit = table.name(row)
    document: dict[str, Any] = {
        "key": write_key(position, attempt, unit),
        "index": index,
        "position": position,
        "attempt": attempt,
        "unit": unit,
    }
    if joined is None:
        return {**document, "id": "", "status": "pending", "results": {}}
    return {
        **document,
        "id": joined.id,
        "status": joined.status,
        "error": shown_text(joined.error) if joined.error else "",
        "input": shown_text(joined.shown("input")),
        "expected": shown_text(joined.shown("expected")),
        "output": output_text(joined.shown("output")),
        "seconds": joined.service_seconds,
        "cost": joined.cost,
        "tokens": None if table.statuses[row] == PENDING else int(table.tokens[row]),
        "try": joined.try_number,
        "results": {
            key: {
                "status": judged.status,
                "score": judged.score,
                "comment": shown_text(judged.comment),
                "error": shown_text(judged.error) if judged.error else "",
            }
            for key, judged in joined.results.items()
        },
    }


def _side(row: Row | None, key: str | None) -> dict[str, Any]:
    if row is None:
        return {
            "status": "pending",
            "output": "",
            "error": "",
            "score": None,
            "comment": "",
            "seconds": None,
            "cost": None,
        }
    judged = row.results.get(key or "")
    return {
        "status": row.status,
        "output": output_text(row.shown("output")),
        "error": shown_text(row.error) if row.error else "",
        "score": judged.score if judged else None,
        "comment": shown_text(judged.comment) if judged else "",
        "seconds": row.service_seconds,
        "cost": row.cost,
    }


def _fields(run: Run) -> list[str]:
    """The fields of the metadata that the first examples have."""
    found: dict[str, None] = {}
    for place, example in enumerate(run.dataset):
        found.update(dict.fromkeys(name for name, _ in flat_fields(example.metadata)))
        if place >= SAMPLED:
            break
    return list(found)[:SAMPLED]


def _stored_estimates(
    run: Run, evaluations: Sequence[Evaluation], aggregations: Sequence[Any]
) -> list[dict[str, Any]]:
    """The newest stored estimates of a run over all items, of the results that its rows show."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    shown = {key: source.evaluation.id for key, source in _sources(run, evaluations).items()}
    for aggregation in _current(evaluations, aggregations):
        members = aggregation.header.evaluations
        for each in aggregation.estimates:
            if shown.get(each.evaluator, members[0]) not in members:
                continue  # of an earlier evaluation by the same evaluator
            if each.run == run.id and not each.group:
                found.setdefault((each.evaluator, each.aggregator, each.name), _estimate(each))
    return list(found.values())


def _current(evaluations: Iterable[Evaluation], aggregations: Sequence[Any]) -> Iterator[Any]:
    """The aggregations of some evaluations, newest first, without those that were made before an evaluation changed."""
    mine = {each.id: each for each in evaluations}
    for aggregation in reversed(aggregations):
        of_these = not is_analysis(aggregation) and mine.keys() & set(aggregation.header.evaluations)
        if of_these and not is_outdated(aggregation, mine):
            yield aggregation


def _stored_groups(
    runs: Sequence[Run], evaluations: Iterable[Evaluation], aggregations: Sequence[Any], key: str | None
) -> dict[str, list[dict[str, Any]]]:
    """The groups that the newest stored aggregations have by what is no metadata of examples, by field."""
    known = set(_fields(runs[0]))
    found: dict[str, dict[str, dict[str, Estimate]]] = {}
    for aggregation in _current(evaluations, aggregations):
        for each in aggregation.estimates:
            grouped = each.group or {}
            if each.evaluator == key and each.run and len(grouped) == 1 and not each.name:
                ((field, value),) = grouped.items()
                if field not in known:
                    found.setdefault(field, {}).setdefault(str(value), {}).setdefault(each.run, each)
    ids = [run.id for run in runs]
    out: dict[str, list[dict[str, Any]]] = {}
    for field, values in found.items():
        whole = {value: by_run for value, by_run in values.items() if set(ids) <= by_run.keys()}
        total = sum(by_run[ids[0]].of for by_run in whole.values())
        groups = [
            {
                "value": value,
                "of": by_run[ids[0]].of,
                "share": by_run[ids[0]].of / max(1, total),
                "filter": "",
                "runs": [{"run": run, **_figures(by_run[run])} for run in ids],
                "difference": None,
                "contribution": None,
            }
            for value, by_run in whole.items()
        ]
        if groups:
            out[field] = groups[:MOST_GROUPS]
    return out


def _figures(estimate: Estimate) -> dict[str, Any]:
    return {name: getattr(estimate, name) for name in ("value", "low", "high", "n", "of")}


def _estimate(estimate: Estimate) -> dict[str, Any]:
    fields = (
        "evaluator",
        "aggregator",
        "name",
        "run",
        "group",
        "value",
        "low",
        "high",
        "n",
        "of",
        "lowest",
        "highest",
    )
    found = {name: getattr(estimate, name) for name in (*fields, "method", "confidence")}
    found |= {name: estimate.metadata[name] for name in (MISSING_ATTEMPTS,) if name in estimate.metadata}
    return {**msgspec.to_builtins(found), "label": estimate.label}


def _number(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number


def _default_field(table: RunTable, fields: Sequence[str]) -> str:
    """The first metadata field with few values; without one, the first field."""
    for field in fields:
        check_time_limit()
        found = table.labels(field)
        if found is None or not len(found[0]):
            continue
        used = np.flatnonzero(np.bincount(found[0], minlength=len(found[1])))
        if 2 <= len({label for code in used[: FEW + 1] for label in slice_labels(found[1][code])}) <= FEW:
            return field
    return fields[0]


def _slices(tables: Sequence[RunTable], key: str, field: str) -> tuple[list[dict[str, Any]], float | None]:
    found = tables[0].labels(field)
    if found is None:
        raise filters.FilterError(unknown_metadata(field, tables[0].examples.fields))
    codes_of = [labels for labels in (table.labels(field) for table in tables) if labels is not None]
    members: dict[str, list[int]] = {}
    for code, value in enumerate(found[1]):
        for label in slice_labels(value):
            members.setdefault(label, []).append(code)
    pair = ComparedTable(tables[0], tables[1], key) if len(tables) == 2 else None
    changed = pair.differences if pair is not None else np.zeros(0)
    compared = ~np.isnan(changed) if pair is not None else None
    total = int(compared.sum()) if compared is not None else 0
    sizes = np.bincount(codes_of[0][0], minlength=len(found[1]))
    ranked = sorted(members, key=lambda label: (-int(sizes[members[label]].sum()), label))
    groups = []
    for label in ranked[:MOST_GROUPS]:
        size = int(sizes[members[label]].sum())
        if not size:
            continue
        runs = []
        for table, (codes, _) in zip(tables, codes_of, strict=True):
            check_time_limit()
            inside = np.isin(codes, members[label])
            runs.append({"run": table.run.id, **_figures(estimate_of(table, key, inside))})
        group: dict[str, Any] = {
            "value": label,
            "of": size,
            "share": size / max(1, len(tables[0])),
            "filter": _slice_filter(field, label, found[1], set(members[label])),
            "runs": runs,
            "difference": None,
            "contribution": None,
        }
        if pair is not None and compared is not None and total:
            paired = pair.labels(field)
            assert paired is not None
            inside = np.isin(paired[0], members[label]) & compared
            if inside.any():
                differences = changed[inside]
                change = array_total(differences)
                group["difference"] = change / len(differences)
                group["contribution"] = change / total
        groups.append(group)
    whole = array_total(changed[compared]) / total if pair is not None and total else None
    return groups, whole


def _slice_filter(field: str, label: str, values: Sequence[Sequence[Any]], members: set[int]) -> str:
    """A filter that selects exactly the values of a slice: by the value, else by the name of the slice."""
    plain = f"{quoted(field)}:none" if label == "(none)" else f'{quoted(field)}="{escaped(label)}"'
    if len(plain) <= filters.LONGEST:
        (condition,) = filters.parse(plain).conditions
        if {code for code, value in enumerate(values) if filters.holds(condition, value)} == members:
            return plain
    return f'{quoted(f"slice.{field}")}="{escaped(label)}"'


def _answer(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of an output that is compared: the last answer of a trajectory."""
    found: Mapping[str, Any] = output["answer"] if output.get("trajectory") else output["value"]
    return found


def _diff(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Piece] | None:
    """Compare two fields of a kind word by word; None if either is missing or cut."""
    if first["kind"] != second["kind"] or first["kind"] == "none" or first["cut"] or second["cut"]:
        return None
    return word_diff(first["text"], second["text"])


MOST_DRAWN = 40
"""Rows of a plot."""
MOST_RUNS_DRAWN = 15
"""Runs in the plot above the list of runs: the list should not be far below."""


def _plotted(document: Mapping[str, Any]) -> Estimate:
    value, low, high, lowest, highest = map(document.get, ("value", "low", "high", "lowest", "highest"))
    metadata = {name: document[name] for name in (MISSING_ATTEMPTS,) if name in document}
    n, of = document["n"], document["of"]
    return Estimate(value, low, high, n, of, lowest=lowest, highest=highest, metadata=metadata)


def _forest(runs: Sequence[Mapping[str, Any]]) -> marks.Plot | None:
    """The first number that most runs of a dataset have."""
    found: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for run in runs:
        seen: set[str] = set()
        for each in run["estimates"]:
            if not each["group"] and each["evaluator"] and each["label"] not in seen:
                seen.add(each["label"])
                found.setdefault(each["label"], []).append((run, each))
    if not found:
        return None
    label = max(found, key=lambda name: len(found[name]))
    rows = [
        marks.PlotRow(run["label"], _plotted(each), about={"run": run["id"], "evaluator": each["evaluator"]})
        for run, each in found[label][:MOST_RUNS_DRAWN]
    ]
    more = len(found[label]) - len(rows)
    return marks.forest(
        f"{label}, the newest {len(rows)} of {len(found[label])} runs" if more else label, rows
    )


def _slice_plot(
    groups: Sequence[Mapping[str, Any]], labels: Mapping[str, str], key: str, field: str
) -> marks.Plot | None:
    rows: list[marks.PlotRow] = []
    for group in groups:
        if len(rows) + len(group["runs"]) > MOST_DRAWN:
            break
        if len(group["runs"]) > 1:
            rows.append(marks.PlotRow(f"{field} {group['value']}"))
        for each in group["runs"]:
            name = labels[each["run"]] if len(group["runs"]) > 1 else str(group["value"])
            about = {"run": each["run"], "filter": group["filter"]}
            rows.append(marks.PlotRow(name, _plotted(each), about=about))
    return marks.forest(f"{key} by {field}", rows) if rows else None


def _performance_plot(runs: Sequence[Mapping[str, Any]], key: str | None) -> marks.Plot | None:
    """Quality over cost, or over time where a cost is unknown."""
    found = []
    for each in runs:
        estimates = [e for e in each["estimates"] if e["evaluator"] == key and not e["group"]]
        if estimates:
            found.append((each, estimates[0]))
    if len(found) < 2:
        return None
    priced = all(each["cost"] is not None for each, _ in found)
    specs = [spec for each, _ in found for spec in each["run"]["evaluators"] if spec["key"] == key]
    higher = all(spec["higher_is_better"] for spec in specs)
    points = [
        marks.Point(
            each["run"]["label"],
            each["cost"] if priced else each["seconds"].get("median", 0.0),
            _plotted(estimate),
            {"run": each["run"]["id"]},
        )
        for each, estimate in found
    ]
    return marks.scatter(
        f"Quality over {'cost' if priced else 'time'}",
        points,
        "dollars for the run" if priced else "median seconds for an output",
        f"{found[0][1]['label']}, {'higher' if higher else 'lower'} is better; {marks.FRONTIER}",
        higher_is_better=higher,
    )
