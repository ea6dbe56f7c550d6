"""rows.parquet: the rows that stay, merged from all runs in the order of their ids, one stretch at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from draftmill.errors import DataError
from draftmill.extract import runs
from draftmill.extract.reducing import Reduced
from draftmill.extract.runs import Run, Runs, ordered
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
STRETCH_BYTES = 3 << 20
SAMPLE, PHASE = 64, 27
"""One of so many ids is looked at to divide a dataset into stretches."""


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

    with parquet_writer(path, SCHEMA, **OPTIONS) as writer:
        for group in _ahead(_groups(stretches())):
            hashes = {name: _hex(group[name]) for name in ("group", "dedup")}
            columns = [hashes.get(name, group[name]) for name in SCHEMA.names]
            writer.write_table(pa.table(columns, schema=SCHEMA).combine_chunks(), row_group_size=GROUP_ROWS)
    return repeated


def _stretches(reduced: Reduced, limit: int) -> Iterator[pa.Table]:
    """The rows that stay in the order of their ids, cut between different ids."""
    streams = [_Stream(reduced.runs, run, alive) for run, alive in zip(reduced.runs.runs, reduced.alive, strict=True)]
    for edge in [*_edges(reduced.runs, limit), None]:
        pieces = [piece for stream in streams for piece in stream.below(edge)]
        if pieces:
            yield _sorted(pa.Table.from_batches(pieces), in_order=len(streams) == 1)


def _edges(runs: Runs, limit: int) -> list[str]:
    """Ids that divide the rows into stretches of about `limit` bytes."""
    count = 1 + runs.nbytes // limit
    if count == 1:
        return []
    sample: list[str] = []
    for number, run in enumerate(runs.runs):
        # Runs are sorted: the same places in each of them would leave wide gaps between the ids that are looked at.
        sample += runs.keys(run)["id"].to_pylist()[number * PHASE % SAMPLE :: SAMPLE]
    sample.sort()
    return sorted(set(sample[:: max(1, len(sample) // count)][1:]))


class _Stream:
    """The rows of a run that are alive, from the lowest id to the highest, taken in stretches."""

    def __init__(self, runs: Runs, run: Run, alive: npt.NDArray[np.bool_]) -> None:
        self._pieces, self._alive = runs.pieces(run), alive
        if run.batch is not None:
            batch, order = ordered(run.batch)
            self._pieces, self._alive = iter([batch]), alive[order]
        self._next()

    def _next(self) -> None:
        self._piece = next(self._pieces, None)
        self._ids = self._piece["id"].to_pylist() if self._piece is not None else []
        self._start = 0

    def below(self, edge: str | None) -> Iterator[pa.RecordBatch]:
        """The next rows, those with ids lower than `edge` (None: all the rest)."""
        while self._piece is not None:
            end = len(self._ids) if edge is None else bisect_left(self._ids, edge, self._start)
            if end > self._start:
                count = end - self._start
                rows, alive = self._piece.slice(self._start, count), self._alive[:count]
                yield rows if alive.all() else rows.filter(pa.array(alive))
                self._start, self._alive = end, self._alive[count:]
            if end < len(self._ids):
                return
            self._next()


def _sorted(table: pa.Table, in_order: bool) -> pa.Table:
    """By id; rows with one id by content and tie."""
    table = table.combine_chunks()
    if not in_order:
        table = table.take(pc.sort_indices(table["id"]))
    if not _repeats(table["id"].combine_chunks()).any():
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
    array = hashes.combine_chunks()
    if array.null_count:
        return pa.array([None if value is None else value.hex() for value in array.to_pylist()], pa.string())
    data = array.buffers()[1].slice(16 * array.offset, 16 * len(array))
    ends = np.arange(len(array) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(array), pa.py_buffer(ends), pa.py_buffer(memoryview(data).hex().encode()))
