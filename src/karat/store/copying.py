"""Copies headers and records from one store to another, as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.errors import StoreBusy
from karat.store.columns import with_cells
from karat.store.handles import Chunks
from karat.store.lease import Held, holder_of, new_lease

if TYPE_CHECKING:
    from karat.store import Store


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
        raise StoreBusy(
            f"{id} is being worked on by {holder.who} since {holder.since}: copy it when it is finished"
        )
    there = [row for row in target.backend.headers(id_prefix=id) if row.id == id]
    if there and there[0].finished is not None:
        return
    if there:
        number = there[0].number
        held = Held.take(target.backend, number)
    else:
        lease = new_lease(target.backend.now())
        unfinished = header._replace(number=0, finished=None)
        inserted = target.backend.insert_header(unfinished, source.parents(id), lease)
        assert inserted is not None
        number, held = inserted, Held(target.backend, inserted, lease)
    try:
        chunks = Chunks(0, source.backend.extent(header.number))
        for start, stop in chunks:
            held.check()
            rows = chunks.saw(source.backend.scan(header.number, start, stop))
            if rows:
                target.backend.append(number, with_cells(header.kind, rows), held.owner)
        target.backend.update_header(number, header.payload, header.finished, held.owner)
    finally:
        held.release()
