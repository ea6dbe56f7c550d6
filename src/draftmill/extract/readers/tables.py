"""csv, tsv and Parquet."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from draftmill.errors import DataError
from draftmill.extract.readers import files
from draftmill.extract.readers.items import Chunk, Reject

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_SEPARATOR = re.compile(r"(?<=\w)[;\t|](?=\w)")
_DAMAGED = re.compile("[\ud800-\udfff]")
CSV_BATCH = 256
BATCH_BYTES = 8 << 20


def read_csv(chunk: Chunk) -> Iterator[list[Any]]:
    """The rows of a csv or tsv file after its header, in batches: {column: text}, or a Reject."""
    csv.field_size_limit(files.LONGEST_LINE)
    table = csv.reader(_texts(chunk), delimiter="\t" if chunk.kind == "tsv" else ",", strict=True)
    try:
        filled = (cells for cells in table if cells)
        header = next(filled, [])
        _refuse_twice(header, "the header has two columns", chunk)
        if len(header) == 1 and chunk.kind == "csv" and (sign := _SEPARATOR.search(header[0])):
            name = "tabs" if sign[0] == "\t" else f"'{sign[0]}'"
            fix = "name it .tsv" if sign[0] == "\t" else "write it again with commas"
            raise DataError(f"its columns are separated by {name}, not by commas", file=chunk.file, fix=fix)
        while rows := [_csv_row(header, cells) for cells in islice(filled, CSV_BATCH)]:
            yield rows
    except csv.Error as error:
        fix = "a cell with quotes or line ends stands in quotes, and quotes in it are doubled"
        raise DataError(f"is not well-formed csv at line {table.line_num}: {error}", file=chunk.file, fix=fix) from None


def _refuse_twice(names: list[str], told: str, chunk: Chunk) -> None:
    """Raise DataError if two columns have one name: which one is meant, nobody can say."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{told} named '{twice[0]}'", file=chunk.file, fix="give each column a name of its own")


def _csv_row(header: list[str], cells: list[str]) -> dict[str, str] | Reject:
    if len(cells) != len(header):
        return Reject("csv_cells", f"{len(cells)} cells where the header has {len(header)}")
    if _DAMAGED.search("".join(cells)):
        return Reject("invalid_utf8", "the row is not UTF-8")
    return dict(zip(header, cells, strict=True))


def _texts(chunk: Chunk) -> Iterator[str]:
    """The lines of a file with their ends; a quoted cell may hold line ends."""
    rest, first = b"", True
    for block in files.blocks(chunk.path, chunk.file, chunk.compression):
        *lines, rest = (rest + (block.removeprefix(b"\xef\xbb\xbf") if first else block)).split(b"\n")
        first = False
        for line in lines:
            yield line.decode("utf-8", "surrogateescape") + "\n"
    if rest:
        yield rest.decode("utf-8", "surrogateescape")


# -- Parquet ---------------------------------------------------------------------------------------


def open_parquet(path: str, shown: str) -> pq.ParquetFile:
    """The file, its footer read. Raises DataError where it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"cannot be read as Parquet: {error}", file=shown, fix="download it again") from None


def read_parquet(chunk: Chunk) -> Iterator[list[Any]]:
    """The rows of some row groups, in batches; only the wanted columns are read."""
    import pyarrow as pa

    number = 0
    with open_parquet(chunk.path, chunk.file) as table:
        groups = list(range(chunk.start, table.num_row_groups if chunk.stop is None else chunk.stop))
        names = [name for name in table.schema_arrow.names if chunk.columns is None or name in chunk.columns]
        _refuse_twice(names, "the file has two columns", chunk)
        plain = {name: converter(table.schema_arrow.field(name).type) for name in names}
        size = _batch_rows(table, groups)
        try:
            for batch in table.iter_batches(size, row_groups=groups, columns=names, use_threads=False):
                # A column called a.b is read together with the part b of a column a.
                yield _readable(batch.select(names), plain)
                number += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(
                f"is damaged after row {number} of this part: {error}", file=chunk.file, fix="download it again"
            ) from None


def _batch_rows(table: pq.ParquetFile, groups: list[int]) -> int:
    """Rows of about BATCH_BYTES unpacked, so that memory does not grow with a row group."""
    metadata = [table.metadata.row_group(group) for group in groups]
    rows = sum(group.num_rows for group in metadata)
    weight = sum(group.total_byte_size for group in metadata)
    return max(1, min(4096, int(rows * BATCH_BYTES / max(weight, 1))))


def _readable(batch: pa.RecordBatch, plain: dict[str, Callable[[Any], Any] | None]) -> list[Any]:
    """The rows of a batch; one by one, with rejects, where a value has no Python form."""
    try:
        return _rows(batch, plain)
    except (ValueError, OverflowError):
        pass
    found: list[Any] = []
    for index in range(batch.num_rows):
        try:
            found += _rows(batch.slice(index, 1), plain)
        except UnicodeDecodeError:
            found.append(Reject("invalid_utf8", "a text of the row is not UTF-8"))
        except (ValueError, OverflowError):
            found.append(Reject("bad_value", "a value of the row, such as a date, is out of range"))
    return found


def _rows(batch: pa.RecordBatch, plain: dict[str, Callable[[Any], Any] | None]) -> list[dict[str, Any]]:
    if not plain:
        return [{} for _ in range(batch.num_rows)]
    names, columns = batch.schema.names, []
    for name, column in zip(names, batch.columns, strict=True):
        values, convert = column.to_pylist(), plain[name]
        columns.append(values if convert is None else [None if value is None else convert(value) for value in values])
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What turns a value of an Arrow type into plain JSON, or None where it is that already."""
    import pyarrow as pa
    import pyarrow.types as t

    if isinstance(kind, pa.BaseExtensionType):
        return str if kind.extension_name == "arrow.uuid" else converter(kind.storage_type)
    if t.is_dictionary(kind):
        return converter(kind.value_type)
    if any(of(kind) for of in (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)):
        inner = converter(kind.value_type)
        return inner and (lambda items: [None if item is None else inner(item) for item in items])
    if t.is_struct(kind):
        return _struct_converter({field.name: converter(field.type) for field in kind})
    if t.is_map(kind):
        value = converter(kind.item_type) or (lambda item: item)
        return lambda pairs: {str(key): None if item is None else value(item) for key, item in pairs}
    if t.is_floating(kind):
        return lambda number: number if number - number == 0 else None
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind):
        return lambda data: data.decode("utf-8", "backslashreplace")
    if t.is_temporal(kind) and not t.is_duration(kind):
        return lambda moment: moment.isoformat()
    return str if t.is_decimal(kind) or t.is_duration(kind) else None


def _struct_converter(fields: dict[str, Callable[[Any], Any] | None]) -> Callable[[Any], Any] | None:
    needed = {name: convert for name, convert in fields.items() if convert}

    def run(value: dict[str, Any]) -> dict[str, Any]:
        for name, convert in needed.items():
            if value[name] is not None:
                value[name] = convert(value[name])
        return value

    return run if needed else None
