"""rows.parquet: the rows that stay, merged from all runs in the order of their ids, one stretch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from draftmill.errors import DataError
from draftmill.extract import runs
from draftmill.extract.reducing import Reduced
from draftmill.extract.runs import Stream
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
Item = TypeVar("Item")
GROUP_ROWS, GROUP_BYTES = 10_000, 2 << 20
"""Where a row group ends: it depends on the rows only."""
STRETCH_BYTES = 3 << 20


def write(reduced: Reduced, path: Path, limit: int = STRETCH_BYTES) -> int:
    """Write the rows that stay to `path`; the number of rows whose id another row had already.

    `limit`: about how many bytes of rows are in memory at a time; it changes nothing in the file.
    """
    repeated = 0

    def stretches() -> Iterator[pa.Table]:
        nonlocal repeated
        for table in _stretches(reduced, limit):
            ids, count = _numbered(table["id"].combine_chunks())
            repeated += count
            yield table.set_column(0, SCHEMA.field("id"), ids) if count else table

    # Texts that all differ gain nothing from dictionaries and statistics.
    with parquet_writer(path, SCHEMA, use_dictionary=False, write_statistics=False) as writer:
        for group in _ahead(_groups(stretches())):
            hashes = {name: _hex(group[name]) for name in ("group", "dedup")}
            columns = [hashes.get(name, group[name]) for name in SCHEMA.names]
            writer.write_table(pa.table(columns, schema=SCHEMA).combine_chunks(), row_group_size=GROUP_ROWS)
    return repeated


def _stretches(reduced: Reduced, limit: int) -> Iterator[pa.Table]:
    """The rows that stay in the order of their ids, cut between different ids."""
    with ExitStack() as stack:
        streams = [
            stack.enter_context(closing(Stream(run, alive)))
            for run, alive in zip(reduced.runs, reduced.alive, strict=True)
        ]
        for edge in [*_edges(reduced, limit), None]:
            batches = [batch for stream in streams for batch in stream.below(edge)]
            if batches:
                yield _sorted(pa.Table.from_batches(batches, runs.SCHEMA))


def _edges(reduced: Reduced, limit: int) -> list[str]:
    """Ids that divide the rows into stretches of about `limit` bytes."""
    count = 1 + sum(run.nbytes for run in reduced.runs) // limit
    if count == 1:
        return []
    sample: list[str] = sorted(
        name for run in reduced.runs for name in run.select(["id"])["id"].to_pylist()[:: runs.SAMPLE]
    )
    return sorted(set(sample[:: max(1, len(sample) // count)][1:]))


def _sorted(table: pa.Table) -> pa.Table:
    """By id; rows with one id by content and tie."""
    table = table.take(pc.sort_indices(table["id"]))
    ids = table["id"].combine_chunks()
    if not _repeats(ids).any():
        return table
    order = pc.sort_indices(table, [("id", "ascending"), ("content", "ascending"), ("tie", "ascending")])
    return table.take(order)


def _repeats(ids: pa.Array) -> Any:
    """For each of sorted ids, whether it is that of the one before."""
    same = np.zeros(len(ids), bool)
    same[1:] = pc.equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    return same


def _numbered(ids: pa.Array) -> tuple[pa.Array, int]:
    """Sorted ids made unique, `x` `x (2)` `x (3)`, and how many were changed. Raises DataError if they collide."""
    same = _repeats(ids)
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


def _full(table: pa.Table) -> int | None:
    """How many rows the first row group takes; None if there are too few yet."""
    sizes = np.cumsum(pc.binary_length(table["conversation"]).to_numpy())
    count = min(int(np.searchsorted(sizes, GROUP_BYTES)) + 1, GROUP_ROWS)
    return count if count <= len(table) else None


def _hex(hashes: pa.ChunkedArray) -> pa.Array:
    """16-byte hashes, or nulls, as hexadecimal texts."""
    return pa.array([None if value is None else value.hex() for value in hashes.to_pylist()], pa.string())
