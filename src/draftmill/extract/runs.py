"""Runs: tables of candidates, in memory while there are few, else in files, sorted by id.

A run is read twice: its keys (content, dedup, tie) to find duplicates, then its rows from the lowest id to the
highest, a stretch at a time, merged with the others. So memory stays the same whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from draftmill.extract.outcome import Candidates
from draftmill.extract.signature import SIZE, signatures

HASH = pa.binary(16)
KEYS = ("id", "content", "dedup", "tie")
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("conversation", pa.string()),
        ("tools", pa.string()),
        ("group", HASH),
        ("dedup", HASH),
        ("signature", pa.binary(SIZE)),
        ("meta", pa.string()),
        ("content", HASH),
        ("tie", pa.uint64()),
    ]
)
"""`tie` orders rows of equal id and content; rows equal in that too are written alike."""
BATCH_BYTES = 1 << 16
SAMPLE = 64
"""One of so many ids is looked at to divide a dataset into stretches."""


def table_of(candidates: Candidates) -> pa.Table:
    """Candidates as a table of SCHEMA, in their own order."""
    packed = signatures(candidates.users).astype("<u4").tobytes()
    ties = [
        xxh3_64_intdigest(group + (meta or b""))
        for group, meta in zip(candidates.groups, candidates.metas, strict=True)
    ]
    columns: dict[str, Sequence[Any]] = {
        "id": candidates.ids,
        "conversation": candidates.conversations,
        "tools": candidates.tools,
        "group": candidates.groups,
        "dedup": candidates.dedups,
        "signature": [packed[at : at + SIZE] for at in range(0, len(packed), SIZE)],
        "meta": candidates.metas,
        "content": candidates.contents,
        "tie": ties,
    }
    return pa.table([_array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The JSON texts come as bytes that are known to be UTF-8: they need not be checked again."""
    if kind == pa.string() and not any(type(value) is str for value in values[:1]):
        return pa.array(values, pa.binary()).view(kind)
    return pa.array(values, kind)


class Run:
    """A table of candidates, in memory (in the order of the source) or in a file (in the order of ids)."""

    def __init__(self, table: pa.Table | None, path: Path | None = None) -> None:
        self.table, self.path = table, path
        self.nbytes: int = path.stat().st_size if path else table.nbytes if table else 0

    def spilled(self, path: Path) -> Run:
        """The same run with its rows in a file."""
        assert self.table is not None
        table = self.table.take(pc.sort_indices(self.table["id"])).combine_chunks()
        rows = max(1, BATCH_BYTES * len(table) // max(1, table.nbytes))
        with pa.ipc.new_file(path, SCHEMA) as writer:
            writer.write_table(table, max_chunksize=rows)
        pa.default_memory_pool().release_unused()
        return Run(None, path)

    def select(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all rows."""
        if self.table is not None:
            return self.table.select(columns)
        fields = sorted(SCHEMA.get_field_index(name) for name in columns)
        with pa.OSFile(str(self.path)) as file:
            return (
                pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields)).read_all().select(columns)
            )

    def row(self, place: int) -> dict[str, Any]:
        """One row as plain values."""
        found: dict[str, Any] = self.select(SCHEMA.names).slice(place, 1).to_pylist()[0]
        return found


class Stream:
    """The rows of a run that are alive, from the lowest id to the highest, taken in stretches."""

    def __init__(self, run: Run, alive: npt.NDArray[np.bool_]) -> None:
        self._file = None if run.path is None else pa.OSFile(str(run.path))
        if self._file is not None:
            reader = pa.ipc.open_file(self._file)
            self._batches: Iterator[pa.RecordBatch] = map(reader.get_batch, range(reader.num_record_batches))
        else:
            assert run.table is not None
            order = pc.sort_indices(run.table["id"])
            self._batches, alive = iter(run.table.take(order).to_batches()), alive[order.to_numpy()]
        self._alive, self._place = alive, 0
        self._batch: pa.RecordBatch | None = next(self._batches, None)

    def below(self, limit: str | None) -> list[pa.RecordBatch]:
        """The next rows, those with ids lower than `limit` (None: all the rest)."""
        found = []
        while self._batch is not None:
            batch = self._batch
            count = len(batch) if limit is None else pc.sum(pc.less(batch["id"], limit)).as_py() or 0
            if count:
                mask = pa.array(self._alive[self._place : self._place + count])
                found.append(batch.slice(0, count).filter(mask))
                self._place += count
            if count < len(batch):
                self._batch = batch.slice(count)
                break
            self._batch = next(self._batches, None)
        return found

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
