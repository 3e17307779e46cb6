"""Rows of Parquet files, a row group at a time. Needs the extra `parquet`.

Values become JSON by the rules of karat.serialization: dates, times and decimals as text, binary columns as UTF-8
text or a data URI. Images and sounds as the package `datasets` writes them become `data:` addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from karat.datasets.readers.rows import MAX_ROW, BadRow, Rows, too_large
from karat.datasets.transformations import addressed_media
from karat.errors import DataError, MissingDependency, UnsupportedType, clip
from karat.serialization import to_json_value

_BATCH = 1024

MAX_GROUP = 2 << 30
"""Bytes of a row group when it is decompressed: a file of a few kilobytes may hold one that no memory can."""

MAX_EXPANSION = 1000
"""How much larger than the file the rows of more than MAX_GROUP bytes may be: a dictionary stores a value once that
every row may refer to."""

SUSPICIOUS = 64 << 20
"""Bytes of rows after which the size of all rows is computed if the file is much smaller: 2 GiB take 30 s to read."""
SUSPICIOUS_EXPANSION = 32


def read_parquet(file: BinaryIO, source: str) -> Rows:
    """Every row as an object keyed by the columns."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependency("pyarrow", "parquet", "reading Parquet files") from None
    try:
        table = pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source} is not an intact Parquet file: {_first_line(error)}") from error
    with table:
        _refuse_double_columns(table.schema_arrow.names, source)
        media = {field.name for field in table.schema_arrow if _has_media(field.type)}
        number = read = 0
        size_of_file = file.seek(0, 2)
        most = max(MAX_GROUP, MAX_EXPANSION * size_of_file)
        suspicious = max(SUSPICIOUS, SUSPICIOUS_EXPANSION * size_of_file)
        # A batch could also span row groups; one group after the other keeps only one of them in memory.
        for group in range(table.num_row_groups):
            size = table.metadata.row_group(group).total_byte_size
            if size > MAX_GROUP:
                raise DataError(
                    f"{source} row {number + 1} and on: a row group has {size >> 20:,} MiB uncompressed; at most"
                    f" {MAX_GROUP >> 20:,} are read: write the file with smaller row groups"
                )
            try:
                rows = _batch_size(table, group)
                for batch in table.iter_batches(batch_size=rows, row_groups=[group], use_threads=False):
                    for part in _parts(batch):
                        size = _bytes(part)
                        read += size
                        if part.num_rows == 1 and size > MAX_ROW:
                            raise DataError(f"{source} row {number + 1}: {too_large()}")
                        if read > suspicious:
                            suspicious, read = most, max(read, _size_of_rows(file, table.metadata, most))
                        if read > most:
                            raise DataError(
                                f"{source} row {number + 1}: the rows have more than {MAX_EXPANSION:,} times the size"
                                " of the file: write it as JSONL if this is intended"
                            )
                        for row in part.to_pylist():
                            number += 1
                            yield number, _row(row, number, media)
            except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
                raise DataError(f"{source} row {number + 1} and on: {_first_line(error)}") from error


def _size_of_rows(file: BinaryIO, metadata: Any, most: int) -> int:
    """The bytes of all rows, or more than `most`, without making them: each value of a dictionary is read once."""
    import pyarrow.parquet

    columns = (metadata.schema.column(index) for index in range(metadata.num_columns))
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    size = 0
    with pyarrow.parquet.ParquetFile(file, read_dictionary=texts) as table:
        for batch in table.iter_batches(batch_size=_BATCH, use_threads=False):
            size += _bytes(batch)
            if size > most:
                break
    return size


def _batch_size(table: Any, group: int) -> int:
    """Return how many rows to convert at once: as many as fit into MAX_ROW at the size of the first ones.

    The size in the metadata is no guide: a dictionary stores a value once that a thousand rows may refer to.
    """
    for batch in table.iter_batches(batch_size=1, row_groups=[group], use_threads=False):
        return max(1, min(_BATCH, MAX_ROW // max(1, int(batch.nbytes))))
    return _BATCH


def _parts(batch: Any) -> Iterator[Any]:
    """A batch or, where its rows are larger than the first ones were, each of its rows."""
    if _bytes(batch) <= MAX_ROW:
        yield batch
        return
    for index in range(batch.num_rows):
        yield batch.slice(index, 1)


def _bytes(batch: Any) -> int:
    """The size of the rows of a batch: of a dictionary as often as they refer to its values."""
    return sum(map(_column_bytes, batch.columns))


def _column_bytes(column: Any) -> int:
    import pyarrow
    import pyarrow.compute

    if isinstance(column, (pyarrow.ListArray, pyarrow.LargeListArray)):
        return _column_bytes(column.flatten())
    if isinstance(column, pyarrow.StructArray):
        return sum(map(_column_bytes, column.flatten()))
    if not pyarrow.types.is_dictionary(column.type):
        return int(column.nbytes)
    try:
        lengths = pyarrow.compute.binary_length(column.dictionary)
    except pyarrow.ArrowException:  # values that are not text are small
        return int(column.dictionary_decode().nbytes)
    return int(column.indices.nbytes) + int(pyarrow.compute.sum(lengths.take(column.indices)).as_py() or 0)


def _has_media(kind: Any) -> bool:
    """Whether a column may have images or sounds, which the package `datasets` writes as `{bytes, path}`."""
    if getattr(kind, "value_type", None) is not None:  # of a list
        return _has_media(kind.value_type)
    children = [kind.field(index) for index in range(kind.num_fields)]
    return {child.name for child in children} == {"bytes", "path"} or any(
        _has_media(child.type) for child in children
    )


def _row(row: dict[str, Any], number: int, media: set[str]) -> Any:
    for name in media:
        row[name] = addressed_media(row[name])
    try:
        return to_json_value(row)
    except UnsupportedType as error:
        return BadRow(number, None, str(error))


def _refuse_double_columns(names: list[str], source: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{source}: two columns are named {clip(twice[0], 80)}: give each its own name")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
