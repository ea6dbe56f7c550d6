"""Runs: batches of candidates, in memory while there are few, else in files, sorted by id.

A run is read twice: its keys to find duplicates, then its rows from the lowest id to the highest, a stretch at a
time, merged with the others. So memory stays the same whatever the number of rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from draftmill.extract.outcome import Candidates
from draftmill.extract.signature import SIZE, signatures

HASH = pa.binary(16)
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
KEYS = ("id", "content", "dedup", "tie")
KEYS_SCHEMA = pa.schema([SCHEMA.field(name) for name in KEYS])
PIECE_BYTES = 1 << 16


def batch_of(candidates: Candidates) -> pa.RecordBatch:
    """Candidates as a batch of SCHEMA, in their own order."""
    ids, contents, dedups, groups, conversations, tools, metas, users = zip(*candidates.rows, strict=True)
    packed = pa.py_buffer(np.ascontiguousarray(signatures(users), "<u4"))
    ties = [xxh3_64_intdigest(group + (meta or b"")) for group, meta in zip(groups, metas, strict=True)]
    columns = [
        pa.array(ids, pa.string()),
        _text(conversations),
        _text(tools),
        pa.array(groups, HASH),
        pa.array(dedups, HASH),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(SIZE), len(ids), [None, packed]),
        _text(metas),
        pa.array(contents, HASH),
        pa.array(ties, pa.uint64()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def _text(values: Sequence[bytes | None]) -> pa.Array:
    """JSON, which is known to be UTF-8, as an array: one copy into memory of the right size."""
    there = [value or b"" for value in values]
    ends = np.zeros(len(there) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, there), np.int32, len(there)), out=ends[1:])
    valid = None
    if None in values:
        valid = pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))
    return pa.StringArray.from_buffers(len(there), pa.py_buffer(ends), pa.py_buffer(b"".join(there)), valid)


Place = tuple[int, int]
"""Where something is in a file: start and length."""


@dataclass(frozen=True, slots=True)
class Run:
    """A batch of candidates: in memory, in the order of the source, or in a file, in the order of ids.

    In the file the keys of all rows come first, then the rows in pieces.
    """

    rows: int
    nbytes: int
    batch: pa.RecordBatch | None
    file: Path | None = None
    keys: Place = (0, 0)
    pieces: tuple[Place, ...] = ()

    @staticmethod
    def of(candidates: Candidates) -> Run:
        """A run in memory."""
        batch = batch_of(candidates)
        return Run(len(batch), batch.nbytes, batch)

    def spilled(self, path: Path) -> Run:
        """The same run at the end of a file."""
        assert self.batch is not None
        batch, _ = ordered(self.batch)
        step = max(1, PIECE_BYTES * self.rows // max(1, self.nbytes))
        with open(path, "ab") as file:
            keys = _append(file, batch.select(KEYS))
            pieces = tuple(_append(file, batch.slice(start, step)) for start in range(0, self.rows, step))
        return Run(self.rows, self.nbytes, None, path, keys, pieces)


def _append(file: IO[bytes], batch: pa.RecordBatch) -> Place:
    data = batch.serialize()
    start = file.tell()
    file.write(data)
    return start, data.size


def ordered(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
    """The batch in the order of its ids, and for each of its rows the place where it was."""
    order = pc.sort_indices(batch["id"])
    return batch.take(order), order.to_numpy()


class Runs:
    """The runs of a dataset, read from where they are."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self.nbytes = runs, sum(run.nbytes for run in runs)
        paths = {run.file for run in runs if run.file}
        self._files = {path: open(path, "rb") for path in paths}  # noqa: SIM115 - `close` closes them

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def keys(self, run: Run) -> pa.RecordBatch:
        """The keys of all rows, in the order that they are kept in."""
        return run.batch.select(KEYS) if run.batch else self._read(run, run.keys, KEYS_SCHEMA)

    def pieces(self, run: Run) -> Iterator[pa.RecordBatch]:
        """The rows, in the order that they are kept in."""
        return iter([run.batch]) if run.batch else (self._read(run, place, SCHEMA) for place in run.pieces)

    def _read(self, run: Run, place: Place, schema: pa.Schema) -> pa.RecordBatch:
        assert run.file is not None
        start, length = place
        data = os.pread(self._files[run.file].fileno(), length, start)
        return pa.ipc.read_record_batch(pa.py_buffer(data), schema)

    def row(self, number: int, place: int) -> dict[str, Any]:
        """One row of a run as plain values."""
        for piece in self.pieces(self.runs[number]):
            if place < len(piece):
                found: dict[str, Any] = piece.slice(place, 1).to_pylist()[0]
                return found
            place -= len(piece)
        raise IndexError(place)
