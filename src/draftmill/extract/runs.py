"""Runs: batches of candidates, in memory while there are few, else in Arrow files, sorted by id.

A run is read twice: its keys to find duplicates, then its rows from the lowest id to the highest, in small pieces,
merged with the others. So memory stays the same whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
KEYS = ("id", "dedup", "content", "tie")
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


@dataclass(frozen=True, slots=True)
class Run:
    """A batch of candidates: in memory, in the order of the source, or in a file, in the order of ids."""

    rows: int
    nbytes: int
    batch: pa.RecordBatch | None
    file: Path | None = None

    @staticmethod
    def of(candidates: Candidates) -> Run:
        """A run in memory."""
        batch = batch_of(candidates)
        return Run(len(batch), batch.nbytes, batch)

    def spilled(self, path: Path) -> Run:
        """The same run in a file."""
        assert self.batch is not None
        return spill([ordered(self.batch)[0]], path)

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the order that they are kept in."""
        return _batches(self.file) if self.file else iter([self.batch])

    def key_pieces(self) -> Iterator[pa.RecordBatch]:
        """The keys of all rows, in the order that they are kept in."""
        return _batches(_keys_of(self.file)) if self.file else (batch.select(KEYS) for batch in self.pieces())

    def row(self, place: int) -> dict[str, Any]:
        """One row as plain values."""
        for piece in self.pieces():
            if place < len(piece):
                found: dict[str, Any] = piece.slice(place, 1).to_pylist()[0]
                return found
            place -= len(piece)
        raise IndexError(place)

    def delete(self) -> None:
        """Give back the space of its files."""
        if self.file is not None:
            self.file.unlink()
            _keys_of(self.file).unlink()


def spill(batches: Iterable[pa.RecordBatch], path: Path) -> Run:
    """A run in files, of rows that come in the order of ids. The keys have their own: a reader reads all columns."""
    rows = nbytes = 0
    with _writer(path, SCHEMA) as pieces, _writer(_keys_of(path), KEYS_SCHEMA) as keys:
        for batch in batches:
            step = max(1, PIECE_BYTES * len(batch) // max(1, batch.nbytes))
            for start in range(0, len(batch), step):
                pieces.write_batch(batch.slice(start, step))
            keys.write_batch(batch.select(KEYS))
            rows, nbytes = rows + len(batch), nbytes + batch.nbytes
    return Run(rows, nbytes, None, path)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    # Not a memory map, whose pages would count as this process's memory.
    with pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


@contextmanager
def _writer(path: Path, schema: pa.Schema) -> Iterator[pa.ipc.RecordBatchFileWriter]:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        yield writer


def _keys_of(path: Path) -> Path:
    return path.with_suffix(".keys")


def ordered(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
    """The batch in the order of its ids, and for each of its rows the place where it was."""
    order = pc.sort_indices(batch["id"])
    return batch.take(order), order.to_numpy()
