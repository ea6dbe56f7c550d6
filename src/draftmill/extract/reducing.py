"""Which of equal rows stays: the one with the lowest content hash.

Keys are looked at in buckets by duplicate key, so that memory does not grow with the number of rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from draftmill.extract.runs import Run

BUCKET_ROWS = 150_000
Words = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Reduced:
    """What stays of the runs."""

    folder: Path
    """For files while the work lasts; duplicates.jsonl there lists the others, as rejects.jsonl does."""
    runs: Sequence[Run]
    alive: list[npt.NDArray[np.bool_]]
    """For each run, which of its rows stay."""
    duplicates: int = 0
    most_frequent: int = 0
    """Rows with the most frequent duplicate key,"""
    example: tuple[int, int] = (0, 0)
    """and one of them: run and row."""

    @property
    def kept(self) -> int:
        """Rows that stay."""
        return sum(int(alive.sum()) for alive in self.alive)


def reduce(runs: Sequence[Run], folder: Path) -> Reduced:
    """Find duplicates; their lines of rejects.jsonl go to duplicates.jsonl in `folder`."""
    reduced = Reduced(folder, runs, [np.ones(run.rows, bool) for run in runs])
    buckets = 1 + sum(run.rows for run in runs) // BUCKET_ROWS
    with open(folder / "duplicates.jsonl", "w", encoding="utf-8") as file:
        for bucket in range(buckets):
            _reduce(list(_repeated(reduced, bucket, buckets)), reduced, file)
    return reduced


def _repeated(reduced: Reduced, bucket: int, buckets: int) -> Iterator[pa.Table]:
    """The keys, with run and row, of the rows of a bucket whose duplicate key may stand in another row too."""
    found = [_bucket(_keys(run)["dedup"].combine_chunks(), bucket, buckets) for run in reduced.runs]
    tops = np.sort(np.concatenate([top for _, top in found])) if found else np.zeros(0, np.uint64)
    reduced.most_frequent = max(reduced.most_frequent, int(len(tops) > 0))
    twice = tops[1:][tops[1:] == tops[:-1]]
    if not len(twice):
        return
    for number, (rows, top) in enumerate(found):
        rows = rows[np.isin(top, twice)]
        keys = _keys(reduced.runs[number]).take(pa.array(rows))
        yield keys.append_column("row", pa.array(rows)).append_column("run", pa.array(np.full(len(rows), number)))


def _keys(run: Run) -> pa.Table:
    return pa.Table.from_batches(run.key_pieces()).combine_chunks()


def _bucket(dedup: pa.Array, bucket: int, buckets: int) -> tuple[npt.NDArray[np.int64], Words]:
    """(rows, first words) of the duplicate keys that fall into a bucket."""
    chosen = dedup.is_valid().to_numpy(zero_copy_only=False)
    top = _words(dedup)[0] if chosen.any() else np.zeros(len(dedup), np.uint64)
    if buckets > 1:
        chosen &= (top >> np.uint64(48)) * np.uint64(buckets) >> np.uint64(16) == bucket
    return np.flatnonzero(chosen), top[chosen]


def _words(hashes: pa.Array) -> tuple[Words, Words]:
    """The halves of 16-byte hashes, anything for null."""
    data = np.frombuffer(hashes.buffers()[1], ">u8").reshape(-1, 2)[hashes.offset :][: len(hashes)]
    return data[:, 0].astype(np.uint64), data[:, 1].astype(np.uint64)


def _reduce(tables: list[pa.Table], reduced: Reduced, file: IO[str]) -> None:
    if not tables:
        return
    keys = pa.concat_tables(tables).combine_chunks()
    columns: dict[str, Any] = {name: keys[name].combine_chunks() for name in keys.column_names}
    high, low = _words(columns["dedup"])
    content_high, content_low = _words(columns["content"])
    # Rows of one content and tie that differ in their id are ordered by it.
    ids = pc.rank(columns["id"], tiebreaker="dense").to_numpy(zero_copy_only=False)
    order = np.lexsort((columns["tie"].to_numpy(), ids, content_low, content_high, low, high))
    high, low = high[order], low[order]
    same = np.zeros(len(order), bool)
    same[1:] = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    frequency = np.bincount(first)
    run, row = columns["run"].to_numpy(), columns["row"].to_numpy()
    if (most := int(frequency.max())) > reduced.most_frequent:
        example = order[frequency.argmax()]
        reduced.most_frequent, reduced.example = most, (int(run[example]), int(row[example]))
    dropped = order[same]
    reduced.duplicates += len(dropped)
    for number, alive in enumerate(reduced.alive):
        alive[row[dropped][run[dropped] == number]] = False
    names, kept = (columns["id"].take(pa.array(places)).to_pylist() for places in (dropped, order[first[same]]))
    for name, other in zip(names, kept, strict=True):
        file.write(json.dumps({"reason": "duplicate", "id": name, "of": other}, ensure_ascii=False) + "\n")
