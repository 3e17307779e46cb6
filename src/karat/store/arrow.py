"""Rows as Arrow arrays, made from the stored JSON without decoding it to Python objects.

A record is read as the bytes that the store checks against its checksum. msgspec finds the fields in them and gives
each as a view (`msgspec.Raw`); the views of a column are joined to one buffer, and Arrow reads that as text, numbers
or booleans, or keeps it as JSON text. Examples, outputs and results are joined by NumPy indices. What does become
Python objects: items that failed or were skipped, whose error text is put together from several fields, and the model
calls of a trace, whose costs are added up.

The scores, seconds and costs come from the records, not from the columns of the store: the records have to be read
anyway, and the columns of a run that is going on may be of a later moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from karat.errors import MissingDependency, StoreError
from karat.records import ItemResult, Output, Usage, usage_of
from karat.serialization import encode
from karat.store.backend import OK, REUSED, RecordDecoder, StoredRow, latest, restore_from_copy
from karat.store.columns import cost_of, item_name
from karat.store.rows import error_text, expected_comparisons, metadata_of, place_name
from karat.store.run_labels import run_labels

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import polars
    import pyarrow
    from numpy.typing import NDArray

    from karat.store.handles import Evaluation, Run, StoredDataset

    Indices = NDArray[np.int64]
    """Places in an array; −1 for none."""

ARROW_ROWS = 8192
"""Positions, or records of a list, that become one batch of arrays."""
ARROW_BYTES = 32 << 20
"""… and fewer of them where records are large."""

NULL = msgspec.Raw(b"null")
EMPTY_OBJECT = msgspec.Raw(b"{}")
EMPTY_TEXT = msgspec.Raw(b'""')
ONE = msgspec.Raw(b"1")
ZERO = msgspec.Raw(b"0.0")


# JSON text as arrays -------------------------------------------------------------


class Json(NamedTuple):
    """A column of JSON texts: a binary array, null for `null`."""

    texts: pyarrow.Array


def _joined(views: Sequence[msgspec.Raw]) -> Json:
    """Copy the views of a column to one Arrow array."""
    import numpy as np
    import pyarrow

    offsets = np.zeros(len(views) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, views), np.int64, len(views)), out=offsets[1:])
    text = b"".join(views)
    if len(text) > np.iinfo(np.int32).max:
        raise StoreError(
            "records at neighbouring positions have more than 2 GiB of text together: export JSONL"
        )
    first = np.frombuffer(text, np.uint8)[offsets[:-1]] if text else np.zeros(0, np.uint8)
    known = first != ord("n")
    bits = None if known.all() else pyarrow.py_buffer(np.packbits(known, bitorder="little"))
    buffers = [bits, pyarrow.py_buffer(offsets.astype(np.int32)), pyarrow.py_buffer(text)]
    return Json(pyarrow.Array.from_buffers(pyarrow.binary(), len(views), buffers))


NOTHING, TEXT, NUMBER, BOOLEAN, JSON = "nothing", "text", "number", "boolean", "json"
_KINDS = {ord('"'): TEXT, ord("t"): BOOLEAN, ord("f"): BOOLEAN, **dict.fromkeys(b"-0123456789", NUMBER)}


def _kind(column: Json) -> str:
    """Return the kind of a column: nothing, texts, numbers or booleans; JSON for anything else, and for a mixture."""
    found = _first_bytes(column.texts.drop_null())
    kinds = {_KINDS.get(byte, JSON) for byte in set(found.tobytes())}
    return kinds.pop() if len(kinds) == 1 else JSON if kinds else NOTHING


def _first_bytes(texts: pyarrow.Array) -> NDArray[np.uint8]:
    """The first byte of each text; none of them is null or empty."""
    text, starts, _ = _parts(texts)
    return text[starts]


def _parts(texts: pyarrow.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]:
    """The buffer of a binary array, and where its texts start and end in it."""
    import numpy as np

    _, offsets, text = texts.buffers()
    if not len(texts):
        return np.zeros(0, np.uint8), np.zeros(0, np.int32), np.zeros(0, np.int32)
    places = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(text, np.uint8), places[:-1], places[1:]


def _converted(column: Json, kind: str) -> pyarrow.Array:
    """A column as an array of its kind. Numbers that no array holds exactly raise `ArrowInvalid`."""
    import pyarrow
    from pyarrow import compute

    texts = column.texts
    if kind == NOTHING:
        return pyarrow.nulls(len(texts))
    if kind == BOOLEAN:
        return compute.equal(texts, b"true")
    if kind == NUMBER:
        return _numbers(texts)
    try:
        if kind == JSON:
            return texts.cast(pyarrow.string())
        return _unescape(texts) if (_parts(texts)[0] == ord("\\")).any() else _unquote(texts)
    except pyarrow.ArrowInvalid as error:
        raise _wrong("text", "valid Unicode") from error


def _unquote(texts: pyarrow.Array) -> pyarrow.Array:
    import pyarrow
    from pyarrow import compute

    return compute.binary_slice(texts, 1, -1).cast(pyarrow.string())


def _unescape(texts: pyarrow.Array) -> pyarrow.Array:
    """The texts that JSON strings stand for, as Arrow's own JSON reader reads them."""
    import pyarrow
    from pyarrow import compute, json

    null = {"null_handling": "replace", "null_replacement": b"null"}
    lines = compute.binary_join_element_wise(b'{"text":', texts, b"}\n", b"", **null)
    text = lines.buffers()[2]
    read = json.ReadOptions(use_threads=False, block_size=text.size + 1)
    parse = json.ParseOptions(explicit_schema=pyarrow.schema([("text", pyarrow.string())]))
    return json.read_json(pyarrow.BufferReader(text), read, parse).column(0).combine_chunks()


EXACT = 2**53
"""The largest integer up to which a float64 is equal to every integer."""


def _numbers(texts: pyarrow.Array) -> pyarrow.Array:
    """Integers as int64; where one of them is a float, all as float64."""
    import pyarrow
    from pyarrow import compute

    written = texts.cast(pyarrow.string())
    floats = compute.match_substring_regex(written, "[.eE]")
    if not compute.any(floats).as_py():
        return written.cast(pyarrow.int64())
    whole = written.filter(compute.invert(floats)).cast(pyarrow.int64()).to_numpy()
    if ((whole > EXACT) | (whole < -EXACT)).any():
        raise pyarrow.ArrowInvalid("an integer is outside of the range that a float64 represents exactly")
    return written.cast(pyarrow.float64())


def _column(chunks: Sequence[Json | pyarrow.Array]) -> tuple[str, pyarrow.ChunkedArray]:
    """Concatenate the chunks of a column, with a type that fits all chunks; its kind, and the column.

    Chunks of JSON wait as JSON until all are there: what looks like texts may turn out to be a mixture.
    """
    import pyarrow

    if not isinstance(chunks[0], Json):
        return TEXT, pyarrow.chunked_array(
            _same_type([each for each in chunks if not isinstance(each, Json)])
        )
    made: list[Json] = [each for each in chunks if isinstance(each, Json)]
    kinds = {_kind(each) for each in made} - {NOTHING}
    kind = kinds.pop() if len(kinds) == 1 else JSON if kinds else NOTHING
    if kind == NUMBER:
        with suppress(pyarrow.ArrowInvalid):
            return kind, pyarrow.chunked_array(_same_type([_converted(each, kind) for each in made]))
        kind = JSON
    return kind, pyarrow.chunked_array(_same_type([_converted(each, kind) for each in made]))


def _same_type(arrays: Sequence[pyarrow.Array]) -> list[pyarrow.Array]:
    import pyarrow

    types = {each.type for each in arrays if each.type != pyarrow.null()}
    whole = pyarrow.float64() if len(types) > 1 else next(iter(types), pyarrow.null())
    return [each.cast(whole) for each in arrays]


# The stored records, as views ----------------------------------------------------


class _Example(msgspec.Struct, gc=False):
    id: msgspec.Raw
    input: msgspec.Raw
    expected: msgspec.Raw = NULL
    metadata: msgspec.Raw = EMPTY_OBJECT


class _Given(msgspec.Struct, tag_field="status", tag="ok", gc=False):
    value: msgspec.Raw


class _Paid(msgspec.Struct):
    """A model call with what its cost is made of."""

    name: str
    usage: Usage | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        return {}


class _Output(msgspec.Struct):
    """An output, with an outcome that is ok."""

    outcome: _Given
    try_number: msgspec.Raw = ONE
    seconds: msgspec.Raw = ZERO
    queue_seconds: msgspec.Raw = ZERO
    trace: list[_Paid] = []
    metadata: msgspec.Raw = EMPTY_OBJECT


class _Result(msgspec.Struct, gc=False):
    score: msgspec.Raw = NULL
    value: msgspec.Raw = NULL
    comment: msgspec.Raw = EMPTY_TEXT


class _Judged(msgspec.Struct, tag_field="status", tag="ok", gc=False):
    value: _Result


class _ItemResult(msgspec.Struct, gc=False):
    """A result, with an outcome that is ok."""

    outcome: _Judged


Column: TypeAlias = "Json | pyarrow.Array"
Batch: TypeAlias = dict[str, Column]


class _Views:
    """Views by the name of their column, to become arrays of a stated type."""

    def __init__(self, **views: Sequence[msgspec.Raw]) -> None:
        self._views = views

    def json(self, name: str) -> Json:
        return _joined(self._views[name])

    def objects(self, name: str) -> Json:
        """JSON objects."""
        return self._checked(name, b"{", "an object")

    def texts(self, name: str) -> pyarrow.Array:
        return _converted(self._checked(name, b'"', "text"), TEXT)

    def numbers(self, name: str, type_: str) -> pyarrow.Array:
        """Numbers of an Arrow type."""
        import pyarrow

        try:
            return self.json(name).texts.cast(pyarrow.string()).cast(type_)
        except pyarrow.ArrowInvalid as error:
            raise _wrong(name, "a number") from error

    def _checked(self, name: str, first: bytes, what: str) -> Json:
        found = self.json(name)
        if found.texts.null_count or not (_first_bytes(found.texts) == first[0]).all():
            raise _wrong(name, what)
        return found


def _wrong(name: str, what: str) -> StoreError:
    return StoreError(f"the store has a record whose {name} is not {what}; {restore_from_copy()}")


# Batches of rows -----------------------------------------------------------------


def example_batches(dataset: StoredDataset) -> Iterator[Batch]:
    """The examples of a dataset, some thousands at a time."""
    from karat.store.handles import Chunks

    chunks, waiting = Chunks(0, len(dataset)), _Waiting(0)
    for start, stop in chunks:
        waiting.examples += chunks.saw(dataset.scan(start, stop))
        if waiting.is_full():
            yield _examples(waiting.examples)
            waiting = _Waiting(0)
    if waiting.examples:
        yield _examples(waiting.examples)


def _examples(rows: Sequence[StoredRow]) -> Batch:
    decode = RecordDecoder(_Example).decode
    records = [decode(row[5]) for row in rows]
    views = _Views(
        id=[each.id for each in records],
        input=[each.input for each in records],
        expected=[each.expected for each in records],
        metadata=[each.metadata for each in records],
    )
    return {
        "id": views.texts("id"),
        "input": views.json("input"),
        "expected": views.json("expected"),
        "metadata": views.objects("metadata"),
    }


class _Waiting:
    """Records of neighbouring positions that will be one batch."""

    def __init__(self, runs: int) -> None:
        self.examples: list[StoredRow] = []
        self.outputs: list[list[StoredRow]] = [[] for _ in range(runs)]
        self.results: list[StoredRow] = []
        self._measured = [0] * (runs + 2)
        self._bytes = 0

    def is_full(self) -> bool:
        for place, rows in enumerate((self.examples, self.results, *self.outputs)):
            self._bytes += sum([len(row[5]) for row in rows[self._measured[place] :]])
            self._measured[place] = len(rows)
        return len(self.examples) >= ARROW_ROWS or self._bytes >= ARROW_BYTES


def row_batches(handle: Run | Evaluation) -> Iterator[Batch]:
    """The rows of a run or an evaluation, as `rows()` gives them, some thousands at a time."""
    return _Reader(handle).batches()


_STATUSES = ("ok", "failed", "skipped", "pending")
_PENDING = 3


def _outputs(rows: Sequence[StoredRow]) -> Batch:
    """The fields of outputs; after the last one, those of an item without an output."""
    import numpy as np
    import pyarrow

    decode, decode_whole = RecordDecoder(_Output).decode, RecordDecoder(Output).decode
    made: dict[str, list[msgspec.Raw]] = {
        name: [] for name in ("output", "output_metadata", "try_number", "seconds", "queue")
    }
    values, metadata, tries, seconds, queue = made.values()
    errors: list[str | None] = [None] * (len(rows) + 1)
    costs: list[float | None] = [None] * (len(rows) + 1)
    statuses = np.zeros(len(rows) + 1, np.int8)
    for place, row in enumerate(rows):
        if row[3] in (OK, REUSED):
            record = decode(row[5])
            values.append(record.outcome.value)
            metadata.append(record.metadata)
            tries.append(record.try_number)
            seconds.append(record.seconds)
            queue.append(record.queue_seconds)
            trace: Sequence[Any] = record.trace
        else:
            whole = decode_whole(row[5])
            values.append(NULL)
            metadata.append(msgspec.Raw(encode(metadata_of(whole))))
            tries.append(msgspec.Raw(b"%d" % whole.try_number))
            seconds.append(msgspec.Raw(encode(whole.seconds)))
            queue.append(msgspec.Raw(encode(whole.queue_seconds)))
            trace = whole.trace
            errors[place] = error_text(whole.outcome)
            statuses[place] = _STATUSES.index(whole.outcome.status)
        if trace:
            costs[place] = cost_of(usage_of(trace).values())
    statuses[-1] = _PENDING
    for field, pending in zip(made.values(), (NULL, EMPTY_OBJECT, ONE, NULL, NULL), strict=True):
        field.append(pending)
    views = _Views(**made)
    spent, waited = views.numbers("seconds", "float64"), views.numbers("queue", "float64")
    service = np.maximum(0.0, spent.to_numpy(zero_copy_only=False) - waited.to_numpy(zero_copy_only=False))
    return {
        "status": pyarrow.array(_STATUSES).take(pyarrow.array(statuses)),
        "output": views.json("output"),
        "error": pyarrow.array(errors, pyarrow.string()),
        "output_metadata": views.objects("output_metadata"),
        "service_seconds": pyarrow.array(service, from_pandas=True),
        "queue_seconds": waited,
        "cost": pyarrow.array(costs, pyarrow.float64()),
        "try_number": views.numbers("try_number", "int64"),
    }


def _results(rows: Sequence[StoredRow]) -> Batch:
    """The fields of results; after the last one, those of an item without a result."""
    import pyarrow

    decode, decode_whole = RecordDecoder(_ItemResult).decode, RecordDecoder(ItemResult).decode
    none = _Result()
    errors: list[str | None] = [None] * (len(rows) + 1)
    results: list[_Result] = []
    for place, row in enumerate(rows):
        if row[3] in (OK, REUSED):
            results.append(decode(row[5]).outcome.value)
        else:
            results.append(none)
            errors[place] = error_text(decode_whole(row[5]).outcome)
    results.append(none)
    views = _Views(
        score=[each.score for each in results],
        value=[each.value for each in results],
        comment=[each.comment for each in results],
    )
    return {
        "score": views.numbers("score", "float64"),
        "value": views.json("value"),
        "comment": views.texts("comment"),
        "error": pyarrow.array(errors, pyarrow.string()),
    }


class _Taker:
    """A selector of the elements at some positions; −1 gives null."""

    def __init__(self, places: Indices) -> None:
        import numpy as np
        import pyarrow

        self._count = len(places)
        self._in_order = bool((places == np.arange(len(places))).all())
        self._places = pyarrow.array(places, mask=places < 0)

    def __call__(self, column: Column) -> Column:
        if isinstance(column, Json):
            return Json(self._taken(column.texts))
        return self._taken(column)

    def _taken(self, array: pyarrow.Array) -> pyarrow.Array:
        return array if self._in_order and len(array) == self._count else array.take(self._places)


class _Names(dict[tuple[int, str], int]):
    """Pairs of attempt and unit, numbered."""

    def __missing__(self, name: tuple[int, str]) -> int:
        found = self[name] = len(self)
        return found


class _Items(NamedTuple):
    """The items of some records, by places in lists of what is different."""

    positions: Indices
    names: Indices
    """The place of attempt and unit in `_Names`."""
    items: Indices
    """The place of the item in the list of all items."""


class _Reader:
    """A reader that joins the records of a run, or of an evaluation and its runs, to rows."""

    def __init__(self, handle: Run | Evaluation) -> None:
        from karat.store.handles import Run

        if isinstance(handle, Run):
            self._runs: list[Run] = [handle]
            self._evaluation = None
            self._keys: list[str] = []
            self._single: list[int] = []
            self._expected: list[tuple[int, tuple[int, ...]]] = []
            self._ordered: list[bool] = []
        else:
            self._runs, self._evaluation = handle.runs, handle
            self._keys = [spec.key for spec in handle.header.evaluators]
            self._single = [
                place for place, spec in enumerate(handle.header.evaluators) if spec.kind == "single"
            ]
            self._expected = expected_comparisons(handle)
            self._ordered = [spec.both_orders for spec in handle.header.evaluators]
        self._data = self._runs[0].dataset
        self._selections = [run.selection(len(self._data)) for run in self._runs]
        labels = run_labels([run.header for run in self._runs])
        self._labels = [labels[run.id] for run in self._runs]
        self._names = _Names()
        self._items_by_kind: dict[str, dict[str, int]] = {"run": {}, "evaluation": {}}
        """The items of the runs and of the evaluation, numbered …"""
        self._item_names: dict[str, list[int]] = {"run": [], "evaluation": []}
        """… and of each, the number of its attempt and unit."""
        self._result_runs: list[tuple[int, tuple[int, ...]]] = []
        """Of each item of the evaluation, the places of its evaluator and of its runs."""

    def batches(self) -> Iterator[Batch]:
        """Yield the rows, in dataset order."""
        from karat.store.handles import Chunks, check_complete

        backend = self._data.store.backend
        handles: list[Run | Evaluation] = [
            *self._runs,
            *([self._evaluation] if self._evaluation is not None else []),
        ]
        read = {each.id: 0 for each in handles}
        chunks = Chunks(
            min(each.start for each in self._selections), max(each.stop for each in self._selections)
        )
        waiting = _Waiting(len(self._runs))
        for start, stop in chunks:
            for run, outputs in zip(self._runs, waiting.outputs, strict=True):
                before = len(outputs)
                outputs += latest(chunks.saw(backend.scan(run.number, start, stop)))
                read[run.id] += len(outputs) - before
            if self._evaluation is not None:
                found = chunks.saw(backend.scan(self._evaluation.number, start, stop))
                before = len(waiting.results)
                waiting.results += latest(found)
                read[self._evaluation.id] += len(waiting.results) - before
            waiting.examples += chunks.saw(self._data.scan(start, stop))
            if waiting.is_full():
                yield from self._batch(waiting)
                waiting = _Waiting(len(self._runs))
        if waiting.examples:
            yield from self._batch(waiting)
        for handle in handles:
            check_complete(handle, read[handle.id])

    def _batch(self, waiting: _Waiting) -> Iterator[Batch]:
        """The rows of some examples; nothing where they have none."""
        import numpy as np
        import pyarrow

        joined = self._joined(waiting)
        main = joined.main
        if not len(main):
            return
        examples, outputs = (
            _examples(waiting.examples),
            _outputs([row for rows in waiting.outputs for row in rows]),
        )
        names = list(self._names)
        attempts = pyarrow.array([attempt for attempt, _ in names], pyarrow.int64())
        units = pyarrow.array([unit for _, unit in names], pyarrow.string())
        of_run = _Taker(joined.run[main])
        of_output = _Taker(joined.output[main])
        of_name = _Taker(joined.name[main])
        of_example = _Taker(joined.example[main])
        ids = pyarrow.array([run.id for run in self._runs])
        labels = pyarrow.array(self._labels)
        batch: Batch = {name: of_example(column) for name, column in examples.items()}
        batch |= {"run": of_run(ids), "run_label": of_run(labels)}
        batch |= {"attempt": of_name(attempts), "unit": of_name(units)}
        batch |= {name: of_output(column) for name, column in outputs.items()}
        if self._evaluation is None:
            yield batch
            return
        results = _results(waiting.results)
        for evaluator, places in joined.results.items():
            of_result = _Taker(places)
            batch |= {f"{self._keys[evaluator]}.{name}": of_result(each) for name, each in results.items()}
            for place, others in joined.others.get(evaluator, {}).items():
                shown, from_output = np.where(others < 0, -1, joined.run[others]), joined.output[others]
                of_other, of_its_run = _Taker(np.where(others < 0, -1, from_output)), _Taker(shown)
                batch |= {f"{place}.run": of_its_run(ids), f"{place}.run_label": of_its_run(labels)}
                batch |= {
                    f"{place}.{name}": of_other(outputs[name]) for name in ("status", "output", "error")
                }
        yield batch

    def _joined(self, waiting: _Waiting) -> _Joined:
        """Return the places of the fields of each row."""
        import numpy as np

        positions = np.fromiter((row[0] for row in waiting.examples), np.int64, len(waiting.examples))
        count = sum(map(len, waiting.outputs))
        parts: list[tuple[Indices, ...]] = []
        offset = 0
        for run, rows in enumerate(waiting.outputs):
            have = self._items(rows, "run")
            example = _places(positions, have.positions)
            kept = np.flatnonzero(example >= 0)
            order = np.arange(len(rows))
            parts.append(_same(example[kept], run, offset + order[kept], have.names[kept], order[kept]))
            parts += self._missing(run, positions, example[kept], have.names[kept], count, len(rows))
            offset += len(rows)
        example, its_run, output, name, order = (np.concatenate(each) for each in zip(*parts, strict=True))
        sorted_ = np.lexsort((order, its_run, example))
        base = _Base(example[sorted_], its_run[sorted_], output[sorted_], name[sorted_])
        if self._evaluation is None:
            return _Joined(*base, np.arange(len(sorted_)), {}, {})
        found = self._items(waiting.results, "evaluation")
        return self._with_results(base, positions, found)

    def _missing(
        self, run: int, positions: Indices, example: Indices, names: Indices, output: int, order: int
    ) -> Iterator[tuple[Indices, ...]]:
        """The attempts of selected examples that have no output."""
        import numpy as np

        selection = self._selections[run]
        selected = np.flatnonzero((positions >= selection.start) & (positions < selection.stop))
        attempts = np.array([attempt for attempt, _ in self._names], np.int64)[names]
        for attempt in range(1, self._runs[run].header.attempts + 1):
            have = np.zeros(len(positions), bool)
            have[example[attempts == attempt]] = True
            without = selected[~have[selected]]
            if len(without):
                yield _same(without, run, output, self._names[attempt, ""], order + attempt)

    def _items(self, rows: Sequence[StoredRow], kind: str) -> _Items:
        import numpy as np

        known = self._items_by_kind[kind]
        for item in {row[1] for row in rows} - known.keys():
            try:
                evaluator, runs, attempt, unit = item_name(item, kind)
                if kind != "run" and not (evaluator < len(self._keys) and max(runs) < len(self._runs)):
                    raise ValueError(item)
            except ValueError as error:
                raise _wrong("item", "known") from error
            known[item] = len(known)
            self._item_names[kind].append(self._names[attempt, unit])
            if kind != "run":
                self._result_runs.append((evaluator, runs))
        items = np.fromiter((known[row[1]] for row in rows), np.int64, len(rows))
        names = np.array(self._item_names[kind], np.int64)[items]
        return _Items(np.fromiter((row[0] for row in rows), np.int64, len(rows)), names, items)

    def _with_results(self, base: _Base, positions: Indices, found: _Items) -> _Joined:
        """Add the rows' results, and the rows of comparisons."""
        import numpy as np

        rows, count = len(base.example), len(found.positions)
        runs, names = len(self._runs), max(1, len(self._names))
        keys = (base.example * runs + base.run) * names + base.name
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        example = _places(positions, found.positions)
        evaluators = np.array([evaluator for evaluator, _ in self._result_runs], np.int64)[found.items]

        def row_of(some: Indices, run: Any) -> Indices:
            """The row of the output that results are about; −1 for none."""
            at = _places(keys, (example[some] * runs + run) * names + found.names[some])
            return np.where((at < 0) | (example[some] < 0), -1, order[at])

        first_runs = np.array([shown[0] for _, shown in self._result_runs], np.int64)[found.items]
        results: dict[int, Indices] = {}
        for evaluator in self._single:
            some = np.flatnonzero(evaluators == evaluator)
            at = row_of(some, first_runs[some])
            results[evaluator] = np.full(rows, count)
            results[evaluator][at[at >= 0]] = some[at >= 0]
        main = np.arange(rows if self._single else 0)
        compared = np.flatnonzero(~np.isin(evaluators, self._single))
        pending = list(self._pending(base, keys, order, example, found))
        if not len(compared) and not pending:
            return _Joined(*base, main, results if self._single else {}, {})
        groups = [*(shown for _, shown in self._result_runs), *(group for _, group in self._expected)]
        most = max(map(len, groups))
        shown_rows = np.full((len(compared), most), -1)
        for item in set(found.items[compared].tolist()):
            here = np.flatnonzero(found.items[compared] == item)
            for place, run in enumerate(self._result_runs[item][1]):
                shown_rows[here, place] = row_of(compared[here], run)
        absent = np.argsort(shown_rows < 0, axis=1, kind="stable")  # outputs that are missing go to the end
        shown_rows = np.take_along_axis(shown_rows, absent, axis=1)
        kept = shown_rows[:, 0] >= 0
        compared, shown_rows = compared[kept], shown_rows[kept]
        compared_by = evaluators[compared]
        for evaluator, unjudged in pending:
            wide = np.pad(unjudged, ((0, 0), (0, most - unjudged.shape[1])), constant_values=-1)
            compared, shown_rows = (
                np.append(compared, [count] * len(wide)),
                np.append(shown_rows, wide, axis=0),
            )
            compared_by = np.append(compared_by, [evaluator] * len(wide))
        # Of each example the rows of single outputs come first, then the comparisons.
        main = np.concatenate([main, shown_rows[:, 0]])
        singles = len(main) - len(compared)
        later = np.repeat([0, 1], [singles, len(compared)])
        final = np.lexsort((np.arange(len(main)), later, base.example[main]))
        pad = np.full(len(compared), -1)
        results = {key: np.concatenate([places[:singles], pad])[final] for key, places in results.items()}
        others: dict[int, dict[str, Indices]] = {}
        whole = np.concatenate([np.full(singles, -1), np.arange(len(compared))])[final]
        at = np.flatnonzero(whole >= 0)
        its_evaluator = compared_by[whole[at]]
        for evaluator in dict.fromkeys(its_evaluator.tolist()):
            places = np.full(len(main), -1)
            mine = at[its_evaluator == evaluator]
            places[mine] = compared[whole[mine]]
            results[evaluator] = places
        for number in range(1, most):
            column = np.full(len(main), -1)
            column[at] = shown_rows[whole[at], number]
            with_other = np.flatnonzero(column >= 0)
            if len(with_other):
                evaluator = int(its_evaluator[np.searchsorted(at, with_other[0])])
                others.setdefault(evaluator, {})[place_name(number + 1)] = column
        return _Joined(*base, main[final], results, others)

    def _pending(
        self, base: _Base, keys: Indices, order: Indices, example: Indices, found: _Items
    ) -> Iterator[tuple[int, Indices]]:
        """Return, for each evaluator and group of runs, the rows of the outputs that are still to be compared."""
        import numpy as np

        runs, names = len(self._runs), max(1, len(self._names))
        for evaluator, group in self._expected:
            both = self._ordered[evaluator]
            same = [
                item
                for item, (by, shown) in enumerate(self._result_runs)
                if by == evaluator and (shown == group if both else set(shown) == set(group))
            ]
            judged = np.isin(found.items, same)
            first = np.flatnonzero(base.run == group[0])
            place = base.example[first] * names + base.name[first]
            first = first[~np.isin(place, example[judged] * names + found.names[judged])]
            at = [
                _places(keys, (base.example[first] * runs + run) * names + base.name[first])
                for run in group[1:]
            ]
            rows = np.stack([first, *(np.where(each < 0, -1, order[each]) for each in at)], axis=1)
            rows = rows[(rows >= 0).all(axis=1)]
            if len(rows):
                yield evaluator, rows


class _Base(NamedTuple):
    """The outputs and the pending items: places of their fields."""

    example: Indices
    run: Indices
    output: Indices
    name: Indices


class _Joined(NamedTuple):
    """The rows: places of their fields."""

    example: Indices
    run: Indices
    output: Indices
    name: Indices
    main: Indices
    """The place of each row in the four arrays above."""
    results: dict[int, Indices]
    """By evaluator, the place of each row's result; −1 where the row has none."""
    others: dict[int, dict[str, Indices]]
    """The outputs that were compared with the first, as places in the four arrays: by the evaluator whose rows have
    them first, and by the name of the place."""


def _places(known: Indices, wanted: Indices) -> Indices:
    """The places of values in a sorted array; −1 for those that it does not have."""
    import numpy as np

    if not len(known):
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, at, -1)


def _same(example: Indices, *others: Any) -> tuple[Indices, ...]:
    """Arrays as long as the first."""
    import numpy as np

    return example, *(np.broadcast_to(np.asarray(each, np.int64), example.shape) for each in others)


# Tables --------------------------------------------------------------------------


def table_of_batches(batches: Iterable[Batch]) -> tuple[pyarrow.Table, list[str]]:
    """Batches as one table, and the names of its columns that are JSON text.

    A column of numbers, of texts or of booleans has their type; any other is JSON text.
    """
    import pyarrow

    parts: dict[str, list[Column]] = {}
    sizes: list[int] = []
    for batch in batches:
        for name in batch:
            parts.setdefault(name, [_nulls(batch[name], size) for size in sizes])
        sizes.append(_length(next(iter(batch.values()))))
        for name, chunks in parts.items():
            chunks.append(batch[name] if name in batch else _nulls(chunks[0], sizes[-1]))
    columns: dict[str, pyarrow.ChunkedArray] = {}
    nested: list[str] = []
    for name in list(parts):
        kind, columns[name] = _column(parts.pop(name))
        if kind == JSON:
            nested.append(name)
    return pyarrow.table(columns), nested


def _length(column: Column) -> int:
    return len(column.texts if isinstance(column, Json) else column)


def _nulls(like: Column, count: int) -> Column:
    import pyarrow

    if isinstance(like, Json):
        return Json(pyarrow.nulls(count, pyarrow.binary()))
    return pyarrow.nulls(count, like.type)


def record_batches(records: Iterable[Mapping[str, Any]]) -> Iterator[Batch]:
    """Dicts of JSON values as batches, for the few that are not stored as records."""
    known = list(records)
    names = dict.fromkeys(name for record in known for name in record)
    for start in range(0, len(known) if names else 0, ARROW_ROWS):
        some = known[start : start + ARROW_ROWS]
        yield {name: _joined([msgspec.Raw(encode(record.get(name))) for record in some]) for name in names}


def table_with(batch: Batch, columns: Mapping[str, str | None]) -> pyarrow.Table:
    """A batch as a table with these columns: each of an Arrow type, or of JSON text where that is None."""
    import pyarrow

    count = _length(next(iter(batch.values())))
    arrays: dict[str, pyarrow.Array] = {}
    for name, type_ in columns.items():
        column = batch.get(name)
        if column is None:
            arrays[name] = pyarrow.nulls(count, type_ or "string")
        elif not isinstance(column, Json):
            arrays[name] = column.cast(type_ or "string")
        elif type_ is None:
            arrays[name] = _converted(column, JSON)
        else:
            arrays[name] = _converted(column, _kind(column)).cast(type_)
    return pyarrow.table(arrays)


def _library(name: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingDependency(name, extra, f"a {name} table") from None


def _table(batches: Iterable[Batch]) -> tuple[pyarrow.Table, list[str]]:
    _library("pyarrow", "parquet")
    return table_of_batches(batches)


def to_arrow(batches: Iterable[Batch]) -> pyarrow.Table:
    """An Arrow table of some batches."""
    return _table(batches)[0]


def to_polars(batches: Iterable[Batch]) -> polars.DataFrame:
    """A Polars data frame of some batches."""
    library = _library("polars", "dataframes")
    frame: polars.DataFrame = library.from_arrow(to_arrow(batches))
    return frame


def to_pandas(batches: Iterable[Batch]) -> pandas.DataFrame:
    """A pandas data frame of some batches."""
    library = _library("pandas", "dataframes")
    table, nested = _table(batches)
    objects = {name: table.column(name) for name in nested}
    kept = table.drop_columns(nested) if nested else table
    names = table.column_names
    del table
    frame: pandas.DataFrame = kept.to_pandas(split_blocks=True, self_destruct=True)
    del kept
    decode = msgspec.json.decode
    for name in nested:
        texts = objects.pop(name)
        values = [
            None if text is None else decode(text) for chunk in texts.chunks for text in chunk.to_pylist()
        ]
        frame[name] = library.Series(values, dtype=object, index=frame.index)
    return frame[names]
