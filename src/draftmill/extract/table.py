"""rows.parquet: the rows that stay, in the order of their ids, which are made unique."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from draftmill.errors import DataError
from draftmill.extract import runs
from draftmill.extract.merging import STRETCH_BYTES, repeats, stretches
from draftmill.extract.reducing import Reduced
from draftmill.extract.signature import SIZE
from draftmill.files import parquet_writer

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("conversation", pa.string()),
        ("tools", pa.string()),
        ("group", pa.string()),
        ("dedup", pa.string()),
        ("signature", pa.binary(SIZE)),
        ("meta", pa.string()),
    ]
)
OPTIONS: dict[str, Any] = {
    # Signatures are as random as their hashes are good.
    "compression": {name: "none" if name == "signature" else "zstd" for name in SCHEMA.names},
    # Texts that all differ gain nothing from dictionaries and statistics.
    "use_dictionary": False,
    "write_statistics": False,
}
Item = TypeVar("Item")
GROUP_ROWS, GROUP_BYTES = 10_000, 2 << 20
"""Where a row group ends: it depends on the rows only."""


def write(reduced: Reduced, path: Path, limit: int = STRETCH_BYTES) -> int:
    """Write the rows that stay to `path`; the number of rows whose id another row had already.

    `limit`: about how many bytes of rows are in memory at a time; it changes nothing in the file.
    """
    repeated = 0

    def numbered() -> Iterator[pa.Table]:
        nonlocal repeated
        for table in stretches(reduced, limit):
            ids, count = _numbered(table["id"].combine_chunks())
            repeated += count
            yield table.set_column(0, SCHEMA.field("id"), ids) if count else table

    with parquet_writer(path, SCHEMA, **OPTIONS) as writer:
        for group in _ahead(map(_written, _groups(numbered()))):
            writer.write_table(group, row_group_size=GROUP_ROWS)
    return repeated


def _numbered(ids: pa.Array) -> tuple[pa.Array, int]:
    """Sorted ids made unique, `x` `x (2)` `x (3)`, and how many were changed. Raises DataError if they collide."""
    same = repeats(ids)
    if not same.any():
        return ids, 0
    names, number = ids.to_pylist(), 1
    for place, repeated in enumerate(same.tolist()):
        number = number + 1 if repeated else 1
        if repeated:
            names[place] = f"{names[place]} ({number})"
    if len(set(names)) < len(names):
        raise DataError("repeated ids get a number, and one with that number is there already", key="schema.id")
    return pa.array(names, pa.string()), int(same.sum())


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, divided into row groups."""
    pending = runs.SCHEMA.empty_table()
    for table in tables:
        pending = pa.concat_tables([pending, table])
        while (count := _full(pending)) is not None:
            yield pending.slice(0, count)
            pending = pending.slice(count)
    if len(pending):
        yield pending


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, each made in another thread while the one before it is being written."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item


def _written(group: pa.Table) -> pa.Table:
    """The columns of the file."""
    hashes = {name: _hex(group[name]) for name in ("group", "dedup")}
    return pa.table([hashes.get(name, group[name]) for name in SCHEMA.names], schema=SCHEMA).combine_chunks()


def _full(table: pa.Table) -> int | None:
    """How many rows the first row group takes; None if there are too few yet."""
    sizes = np.cumsum(pc.binary_length(table["conversation"]).to_numpy())
    count = min(int(np.searchsorted(sizes, GROUP_BYTES)) + 1, GROUP_ROWS)
    return count if count <= len(table) else None


def _hex(hashes: pa.ChunkedArray) -> pa.Array:
    """16-byte hashes, or nulls, as hexadecimal texts."""
    array = hashes.combine_chunks()
    if array.null_count:
        return pa.array([None if value is None else value.hex() for value in array.to_pylist()], pa.string())
    data = array.buffers()[1].slice(16 * array.offset, 16 * len(array))
    ends = np.arange(len(array) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(array), pa.py_buffer(ends), pa.py_buffer(memoryview(data).hex().encode()))
