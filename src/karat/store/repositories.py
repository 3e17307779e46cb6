"""Four typed repositories, written once over the backend interface: datasets, runs, evaluations, aggregations."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from karat.errors import RequestError, StoreBusy, StoreError, UnknownName, did_you_mean, option, wording
from karat.keys import Decision, Previous, Wanted, decide
from karat.records import (
    AUDIT,
    FORMAT,
    HUMAN,
    AggregationHeader,
    Counts,
    DatasetHeader,
    EvaluationHeader,
    Example,
    ItemResult,
    Output,
    RunHeader,
)
from karat.serialization import encode, prepared
from karat.store import lease as leases
from karat.store.backend import (
    FAILED,
    NOT_APPLICABLE,
    OK,
    REUSED,
    SKIPPED,
    Backend,
    HeaderRow,
    RecordDecoder,
    StoredRow,
    latest,
    restore_from_copy,
)
from karat.store.columns import with_cells
from karat.store.handles import Aggregation, Chunks, Evaluation, Run, StoredDataset, check_complete
from karat.store.lease import Held, holder_of, let_go, taking_lease
from karat.store.run_labels import check_labels

if TYPE_CHECKING:
    from karat.store import Store


__all__ = [
    "Aggregations",
    "Datasets",
    "Evaluations",
    "Runs",
    "count_items",
    "example_decoder",
    "find",
    "labelled",
    "latest",
    "of_users",
    "output_decoder",
    "result_decoder",
]

H = TypeVar("H", RunHeader, EvaluationHeader, AggregationHeader, DatasetHeader)
B = TypeVar("B")

SHORTEST_PREFIX = 6
"""Of an id: shorter ones would be unique by chance today and mean something else tomorrow."""

BATCH_ROWS, BATCH_BYTES = 2000, 4 << 20


class Repository(Generic[H, B]):
    """The headers of one kind, and the handles made from them."""

    kind: str
    header_type: type[H]
    handle_type: type[B]

    def __init__(self, store: Store) -> None:
        self.store: Store = store
        self._backend: Backend = store.backend
        self._decoder: RecordDecoder[H] = RecordDecoder(self.header_type)

    def _handle(self, row: HeaderRow) -> B:
        header = self._decoder.decode(row.payload)
        if (header.id, getattr(header, "configuration", "")) != (row.id, row.configuration):
            raise StoreError(
                f"{self.kind} {row.id} in {self._backend.url} is not what its header says: {restore_from_copy()}"
            )
        return self.handle_type(self.store, row.number, header)  # type: ignore[call-arg]  # every handle is made so

    def disagreeing(self) -> list[str]:
        """Return headers whose stored id or configuration differs from their content, which has a checksum."""
        found = []
        for row in self._rows():
            try:
                self._handle(row)
            except StoreError:
                found.append(f"the header of {row.id} disagrees with what it is stored under")
        return found

    def _rows(self, **conditions: Any) -> list[HeaderRow]:
        return self._backend.headers(self.kind, **conditions)

    def list(self) -> list[B]:
        """List all objects, oldest first."""
        return [self._handle(row) for row in self._rows()]

    def get(self, id: str) -> B:
        """Find an object by id, label, unique prefix of an id, or `latest`."""
        rows = self._rows(id_prefix=id)
        row = None
        if not any(each.id == id for each in rows):
            row = (
                find(id, of_users(self._rows())) if id == "latest" else labelled(self.store, id, self._rows())
            )
        row = row or find(id, rows)
        if row is None:
            known = [row.id for row in self._rows()]
            if id == "latest":
                stage = {"evaluation": "evaluate", "aggregation": "aggregate"}.get(self.kind, "run")
                raise UnknownName(
                    f"there is no {self.kind} in {self._backend.url} yet:"
                    f" {wording(f'karat {stage}', f'karat.{stage}')} creates the first"
                )
            raise UnknownName(f"no {self.kind} {id!r} in {self._backend.url}: {did_you_mean(id, known)}")
        return self._handle(row)

    def _insert(
        self, header: H, parents: Sequence[str], *, leased: bool, siblings: int | None = None
    ) -> tuple[int, Held | None] | None:
        asked = leases.clock()
        row = HeaderRow(
            0,
            self.kind,
            header.id,
            getattr(header, "configuration", ""),
            header.created,
            getattr(header, "finished", None),
            encode(header),
        )
        with taking_lease(self._backend.now()) if leased else nullcontext() as lease:
            number = self._backend.insert_header(row, parents, lease, siblings)
            if number is None:
                return None
            return number, Held(self._backend, number, lease, asked) if lease else None

    def save(self, number: int, header: H, held: Held | None = None) -> H:
        """Replace the content of a header and return it; with its lease, raise when another process has taken over.

        With a lease, labels, metadata and a description that others have given or taken meanwhile stay so.
        """
        finished, owner = getattr(header, "finished", None), held.owner if held else None
        try:
            while True:
                row = self._backend.header(number) if held is not None else None
                if row is not None:
                    header = _with_additions(header, self._decoder.decode(row.payload))
                saved = self._backend.update_header(
                    number, encode(header), finished, owner, row.payload if row is not None else None
                )
                if saved or row is None or self._backend.header(number) == row:
                    break
        except StoreError:
            let_go(self._backend, number)
            raise
        if held is not None and not saved:
            held.lost = True
            held.check()
        elif held is not None and finished is not None:
            held.let_go()
        return header

    def describe(
        self,
        handle: B,
        *,
        labels: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        description: str = "",
        save: bool = True,
    ) -> str:
        """Add labels, metadata and a description to something that exists.

        Existing values are not replaced: the returned sentence names those that were not added. Without `save`, only
        the handle is changed, for a stage that writes its header anyway.
        """
        header: Any = handle.header  # type: ignore[attr-defined]  # every handle has one
        there: Sequence[str] = header.labels
        added: tuple[str, ...] = tuple(label for label in dict.fromkeys(labels) if label not in there)
        more = {name: value for name, value in (metadata or {}).items() if name not in header.metadata}
        refused = [
            f"metadata {name!r} stays {header.metadata[name]!r}"
            for name, value in (metadata or {}).items()
            if name not in more and header.metadata[name] != value
        ]
        described = getattr(header, "description", None) == "" and bool(description)
        if description and not described and description != getattr(header, "description", None):
            refused.append(f"its description stays {getattr(header, 'description', None)!r}")

        def change(stored: Any) -> Any:
            given = {"description": description} if described else {}
            return msgspec.structs.replace(
                stored,
                labels=[*stored.labels, *(label for label in added if label not in stored.labels)],
                metadata={**more, **stored.metadata},
                **given,
            )

        if added or more or described:
            self._change(handle, change, save)
        if not refused:
            return ""
        return f"{', '.join(refused)} ({option('new', True)} makes another {self.kind} with what was given)"

    def remove_labels(self, handle: B, labels: Sequence[str]) -> None:
        """Take labels off something; those it does not have are ignored."""

        def change(stored: Any) -> Any:
            return msgspec.structs.replace(
                stored, labels=[each for each in stored.labels if each not in labels]
            )

        header: Any = handle.header  # type: ignore[attr-defined]  # every handle has one
        if any(label in labels for label in header.labels):
            self._change(handle, change)

    def _change(self, handle: B, change: Callable[[Any], Any], save: bool = True) -> None:
        """Change a header as it is stored now: a stage may have finished since the handle was made."""
        number: int = handle.number  # type: ignore[attr-defined]  # every handle has one
        row = self._backend.header(number) if save else None
        while row is not None:
            changed = encode(change(self._decoder.decode(row.payload)))
            if self._backend.update_header(number, changed, row.finished, None, row.payload):
                break
            row = self._backend.header(number)
        handle.header = change(handle.header)  # type: ignore[attr-defined]  # as above


def _with_additions(header: H, stored: H) -> H:
    """A header that a stage writes, with what others may change while it works."""
    additions: Any = {"labels": stored.labels, "metadata": {**stored.metadata, **header.metadata}}
    if hasattr(stored, "description"):
        additions["description"] = stored.description
    return msgspec.structs.replace(header, **additions)


class _Labels(msgspec.Struct):
    labels: list[str] = []


_labels_of = RecordDecoder(_Labels).decode


def labelled(store: Store, label: str, rows: Sequence[HeaderRow]) -> HeaderRow | None:
    """The header that has a label; None where none has it. Refused where several have it."""
    try:
        quoted = msgspec.json.encode(label)
    except UnicodeEncodeError:  # half a surrogate pair: nothing that is stored has it
        return None
    found = [row for row in rows if quoted in row.payload and label in _labels_of(row.payload).labels]
    if len(found) > 1:
        kind, ids = found[0].kind, ", ".join(row.id for row in found[:-6:-1])
        move = wording(store.command("tag", "ID", label, "--move"), f"store.tag(ID, [{label!r}], move=True)")
        raise RequestError(
            f"{len(found)} {kind}s have the label {label!r}: {ids}{', …' if len(found) > 5 else ''}; name one by"
            f" its id, or move the label: {move}"
        )
    return found[0] if found else None


class _Evaluator(msgspec.Struct):
    name: str = ""


class _Evaluators(msgspec.Struct):
    evaluators: list[_Evaluator] = []
    metadata: dict[str, Any] = {}


_evaluators_of = RecordDecoder(_Evaluators).decode


def of_users(rows: Sequence[HeaderRow]) -> list[HeaderRow]:
    """The headers that `latest` may mean: neither people's labels, nor what an audit of a judge ran and judged."""
    return [row for row in rows if not _is_labels(row) and not _is_audit(row)]


def _is_audit(row: HeaderRow) -> bool:
    if row.kind not in ("run", "evaluation") or f'"{AUDIT}"'.encode() not in row.payload:
        return False
    return _evaluators_of(row.payload).metadata.get(AUDIT) is True


def _is_labels(row: HeaderRow) -> bool:
    if row.kind != "evaluation" or f'"{HUMAN}"'.encode() not in row.payload:  # most headers need no decoding
        return False
    return {each.name for each in _evaluators_of(row.payload).evaluators} == {HUMAN}


def find(id: str, rows: Sequence[HeaderRow]) -> HeaderRow | None:
    """The header with an id, with a unique prefix of an id, or the `latest`; None where there is none."""
    if id == "latest":
        return rows[-1] if rows else None
    exact = [row for row in rows if row.id == id]
    if exact or not rows:
        return exact[0] if exact else None
    if len(id) < SHORTEST_PREFIX:
        raise RequestError(
            f"{id!r} is too short for a prefix of an id: give at least {SHORTEST_PREFIX} characters"
        )
    if len(rows) > 1:
        raise RequestError(f"{id!r} is not unique: {', '.join(row.id for row in rows[:5])}")
    return rows[0]


class Datasets(Repository[DatasetHeader, StoredDataset]):
    """Datasets by content; a name is a list of versions."""

    kind = "dataset"
    header_type = DatasetHeader
    handle_type = StoredDataset

    def _rows(self, **conditions: Any) -> list[HeaderRow]:
        # One that is still being written, or whose writer died, is not there yet.
        return [row for row in super()._rows(**conditions) if row.finished is not None]

    def list(self) -> list[StoredDataset]:
        """List all datasets, oldest first, each with its name and version."""
        return [self._with_version(self._handle(row)) for row in self._rows()]

    def put(self, dataset: Any, *, labels: Sequence[str] = ()) -> StoredDataset:
        """Store a dataset unless its content exists, and return the stored one with these labels added."""
        check_labels(labels)
        labels = [*getattr(dataset, "labels", ()), *labels]
        if isinstance(dataset, StoredDataset) and dataset.store is self.store:
            stored = dataset
        else:
            if not self._rows(id_prefix=dataset.id):
                self._write(dataset)
            version = self._backend.name_dataset(dataset.name, dataset.id)
            stored = self._named(dataset.name, version, dataset.id)
        if labels:
            self.describe(stored, labels=labels)
        return stored

    def _with_version(self, stored: StoredDataset) -> StoredDataset:
        """A dataset under the name it was stored by first, or another one it has, with the version it has there."""
        names = self._backend.named(dataset=stored.id)
        for name, version, _ in [each for each in names if each[0] == stored.header.name] or names[:1]:
            stored.name, stored.version = name, version
        return stored

    def _write(self, dataset: Any) -> None:
        header = DatasetHeader(
            format=FORMAT,
            id=dataset.id,
            name=dataset.name,
            count=len(dataset),
            created=time.time(),
            source=getattr(dataset, "source", ""),
            labels=list(getattr(dataset, "labels", ())),
            metadata=getattr(dataset, "metadata", {}),
        )
        inserted = self._insert(header, (), leased=False)
        assert inserted is not None
        number, _ = inserted
        batch, size = list[StoredRow](), 0
        for position, (_, payload) in enumerate(dataset.encoded()):
            batch.append(StoredRow(position, "", 1, OK, None, payload))
            size += len(payload)
            if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
                self._backend.append(number, batch)
                batch, size = [], 0
        if batch:
            self._backend.append(number, batch)
        self._backend.update_header(number, encode(header), time.time())

    def get(self, id: str) -> StoredDataset:
        """Find a dataset by id, name (its newest version), `name@version`, or a unique prefix of an id."""
        if not any(row.id == id for row in self._rows(id_prefix=id)):
            named = self.by_name(id)
            if named is not None:
                return named
        try:
            stored = super().get(id)
        except UnknownName:
            names = sorted({name for name, _, _ in self._backend.named()})
            raise UnknownName(
                f"no dataset {id!r} in {self._backend.url}: {did_you_mean(id, names)}"
            ) from None
        return self._with_version(stored)

    def by_name(self, text: str) -> StoredDataset | None:
        """The newest version of a name, or `name@version`; None where nothing has that name."""
        versions = self._backend.named(name=text)
        if versions:
            return self._named(*versions[-1])
        name, at, number = text.rpartition("@")
        versions = self._backend.named(name=name) if at and re.fullmatch("[0-9]+", number) else []
        for version in versions:
            if str(version[1]) == number:
                return self._named(*version)
        if versions:
            known = ", ".join(str(version) for _, version, _ in versions[-20:])
            raise UnknownName(f"dataset {name!r} has no version {number}: it has {known}")
        return None

    def _named(self, name: str, version: int, id: str) -> StoredDataset:
        stored = super().get(id)
        stored.name, stored.version = name, version
        return stored


class Staged(Repository[H, B]):
    """Base of the repositories of runs and evaluations, which are opened, appended to and closed."""

    def open(self, header: H, wanted: Wanted, parents: Sequence[str]) -> tuple[B, Decision, Held | None]:
        """Find or create what is wanted, by the table of cases; with a lease where there is work to do."""
        while True:
            rows = self._rows(configuration=wanted.configuration)
            decision = decide(wanted, [self._previous(row) for row in rows])
            if decision.action != "create":
                row = next(row for row in rows if row.id == decision.id)
                held = None if decision.action == "return" else Held.take(self._backend, row.number)
                return self._handle(row), decision, held
            new = msgspec.structs.replace(
                header,
                id=f"{self._short}-{os.urandom(5).hex()}",
                replicate=decision.replicate,
                created=time.time(),
            )
            inserted = self._insert(new, parents, leased=True, siblings=len(rows))
            if inserted is not None:
                number, held = inserted
                return self.handle_type(self.store, number, new), decision, held  # type: ignore[call-arg]  # as above
            # Another process made one at the same moment: look again.

    _short: str

    def _previous(self, row: HeaderRow) -> Previous:
        header: Any = self._decoder.decode(row.payload)
        return Previous(
            id=row.id,
            code=self._code(header),
            replicate=header.replicate,
            finished=row.finished is not None,
            failed=header.counts.failed,
            total=header.counts.total,
            created=row.created,
            accepted=getattr(header, "accepted_code", ()),
            source=getattr(header, "source", ""),
            holder=None if row.finished is not None else holder_of(self._backend, row.number),
        )

    def _code(self, header: Any) -> str | None:
        """Return what a continuation must share beside the configuration; None if it is unknown."""
        return header.code  # type: ignore[no-any-return]  # of a run

    def count(self, number: int, total: int) -> Counts:
        """The counts of what is stored; what is not there of the total is pending."""
        by_status = self._backend.counts(number)
        return count_items(by_status, max(0, total - sum(by_status.values())))


class Runs(Staged[RunHeader, Run]):
    """Runs and their outputs."""

    kind = "run"
    header_type = RunHeader
    handle_type = Run
    _short = "run"


class Evaluations(Staged[EvaluationHeader, Evaluation]):
    """Evaluations and their results."""

    kind = "evaluation"
    header_type = EvaluationHeader
    handle_type = Evaluation
    _short = "eval"

    def _code(self, header: Any) -> str | None:
        # The code of its evaluators is in the configuration; what matters is only that all of it is known.
        return "known" if all(spec.fingerprint for spec in header.evaluators) else None


class _Formatted(msgspec.Struct):
    format: int


class Aggregations(Repository[AggregationHeader, Aggregation]):
    """Aggregations: small, all in the header."""

    kind = "aggregation"
    header_type = AggregationHeader
    handle_type = Aggregation

    def _handle(self, row: HeaderRow) -> Aggregation:
        if RecordDecoder(_Formatted).decode(row.payload).format >= 2:
            return super()._handle(row)
        header = RecordDecoder(dict[str, Any]).decode(row.payload)
        try:
            evaluations = [self.store.evaluations.get(each).header for each in header["evaluations"]]
            keys = {spec.key for each in evaluations for spec in each.evaluators}
            runs = dict.fromkeys(run for each in evaluations for run in each.runs)
            upgraded = msgspec.convert(upgrade_aggregation(header, keys, runs), prepared(AggregationHeader))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{row.id} is not an aggregation of format 1: {error!r}") from error
        return Aggregation(self.store, row.number, upgraded)

    def add(self, header: AggregationHeader) -> Aggregation:
        """Store an aggregation under a new id; its evaluations and runs are its parents."""
        header = msgspec.structs.replace(header, id=f"agg-{os.urandom(5).hex()}")
        inserted = self._insert(header, [*header.evaluations, *header.runs], leased=False)
        assert inserted is not None
        self._backend.ensure_readable(inserted[0])
        return Aggregation(self.store, inserted[0], header)


def count_items(by_status: Mapping[int, int], pending: int) -> Counts:
    """Counts from how many items of each status there are."""
    reused = by_status.get(REUSED, 0)
    not_applicable = by_status.get(NOT_APPLICABLE, 0)
    return Counts(
        ok=by_status.get(OK, 0) + reused,
        failed=by_status.get(FAILED, 0),
        skipped=by_status.get(SKIPPED, 0) + not_applicable,
        pending=pending,
        not_applicable=not_applicable,
        reused=reused,
    )


output_decoder = RecordDecoder(Output)
result_decoder = RecordDecoder(ItemResult)
example_decoder = RecordDecoder(Example)


def copy_header(source: Store, target: Store, id: str) -> None:
    """Copy one dataset, run, evaluation or aggregation; its parents have to be in the target already.

    Its header is written as unfinished and with a lease, then its records, then the final header: another process
    sees nothing, something in progress, or the whole.
    """
    (header,) = [row for row in source.backend.headers(id_prefix=id) if row.id == id]
    if header.kind == "dataset":
        target.datasets.put(source.datasets.get(id))
        return
    holder = holder_of(source.backend, header.number)
    if holder is not None:
        raise StoreBusy(f"{id} is in use by {holder.who} since {holder.since}: copy it when it is finished")
    there = [row for row in target.backend.headers(id_prefix=id) if row.id == id]
    if there and there[0].finished is not None:
        return
    if there:
        number = there[0].number
        held = Held.take(target.backend, number)
    else:
        unfinished = header._replace(number=0, finished=None)
        with taking_lease(target.backend.now()) as lease:
            inserted = target.backend.insert_header(unfinished, source.parents(id), lease)
            assert inserted is not None
            number, held = inserted, Held(target.backend, inserted, lease)
    try:
        chunks, found = Chunks(0, source.backend.extent(header.number)), 0
        for start, stop in chunks:
            held.check()
            rows = chunks.saw(source.backend.scan(header.number, start, stop))
            found += len(rows)
            if rows:
                target.backend.append(number, with_cells(header.kind, rows), held.owner)
        copied = source.get(id)
        if isinstance(copied, (Run, Evaluation)):
            check_complete(copied, found)
        target.backend.update_header(number, header.payload, header.finished, held.owner)
        target.backend.ensure_readable(number)
    finally:
        held.release()


_OF_FAILURES = ("evaluator", "aggregator", "run")


def upgrade_aggregation(
    header: dict[str, Any], evaluators: Collection[str], runs: Collection[str]
) -> dict[str, Any]:
    """Return a format 1 header of an aggregation in format 2."""
    aggregators = [spec["key"] for spec in header.get("aggregators", [])]

    def about(name: str) -> dict[str, Any]:
        parts = _parts(name, evaluators, aggregators, runs)
        return {field: value for field, value in parts.items() if value not in ("", None)}

    estimates = [{**each, **about(name)} for name, each in header.get("estimates", {}).items()]
    tables = [{"value": value, **about(name)} for name, value in header.get("tables", {}).items()]
    failures = [
        {"error": error, **{field: value for field, value in about(name).items() if field in _OF_FAILURES}}
        for name, error in header.get("failures", {}).items()
    ]
    changed: dict[str, Any] = {"format": 2, "estimates": estimates, "tables": tables, "failures": failures}
    return {**header, **changed}


def _parts(
    name: str, evaluators: Collection[str], aggregators: Collection[str], runs: Collection[str]
) -> dict[str, Any]:
    """Split a format 1 name into evaluator, aggregator, run, estimate name and group."""
    evaluator, aggregator, rest = "", name, ""
    for key in sorted(aggregators, key=len, reverse=True):
        found = re.match(rf"(.+?)-{re.escape(key)}(?=$|[@.])", name)
        known = [
            each for each in evaluators if re.match(rf"{re.escape(each)}-{re.escape(key)}(?=$|[@.])", name)
        ]
        if known or (found and not evaluators):
            evaluator = max(known, key=len) if known else found.group(1) if found else ""
            aggregator, rest = key, name[len(evaluator) + len(key) + 1 :]
            break
    run = next(iter(runs)) if len(runs) == 1 else None
    if rest.startswith("@"):
        run, _, rest = rest[1:].partition(".")
    rest = rest.removeprefix(".")
    group: dict[str, str] = {}
    for pattern in (r"(?:(.*?)\.)?by\.([^=]*)=(.*)$", r"(?:(.*)\.)?(class|value)=(.*)$"):
        found = re.match(pattern, rest, re.DOTALL)
        if found:
            rest = found.group(1) or ""
            group = {found.group(2): found.group(3), **group}
    return {
        "evaluator": evaluator,
        "aggregator": aggregator,
        "name": rest,
        "run": run,
        "group": group or None,
    }
