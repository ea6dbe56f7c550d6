"""Which of equal rows stays: the one with the lowest content hash.

Keys are looked at in buckets by duplicate key, so that memory does not grow with the number of rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from draftmill.extract.runs import KEYS, Run

BUCKET_ROWS = 150_000
Words = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Reduced:
    """What stays of the runs."""

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


def reduce(runs: Sequence[Run], counts: Sequence[int], duplicates: Path) -> Reduced:
    """Find duplicates; their lines of rejects.jsonl go to the file `duplicates`. `counts`: rows of each run."""
    reduced = Reduced(runs, [np.ones(count, bool) for count in counts])
    buckets = 1 + sum(counts) // BUCKET_ROWS
    with open(duplicates, "w", encoding="utf-8") as file:
        for bucket in range(buckets):
            keys = [_keys(run.select(KEYS), number, bucket, buckets) for number, run in enumerate(runs)]
            if any(map(len, keys)):
                _reduce(pa.concat_tables(keys).combine_chunks(), reduced, file)
    return reduced


def _keys(table: pa.Table, run: int, bucket: int, buckets: int) -> pa.Table:
    """The rows of a run whose duplicate key falls into a bucket, with run and row."""
    places = pa.array(np.arange(len(table)))
    table = table.append_column("row", places).append_column("run", pa.array(np.full(len(table), run)))
    table = table.filter(pc.is_valid(table["dedup"]))
    if buckets == 1:
        return table
    top = _words(table["dedup"])[1] >> np.uint64(48)
    return table.filter(pa.array(top * np.uint64(buckets) >> np.uint64(16) == bucket))


def _words(hashes: Any) -> tuple[Words, Words]:
    """The halves of 16-byte hashes, the less significant one first, as lexsort wants its keys."""
    data = b"".join(hashes.to_pylist())
    words = np.frombuffer(data, ">u8").astype(np.uint64).reshape(-1, 2)
    return words[:, 1], words[:, 0]


def _reduce(keys: pa.Table, reduced: Reduced, file: Any) -> None:
    dedup = _words(keys["dedup"])
    # Rows of one content and tie that differ in their id are ordered by it.
    ids = pc.rank(keys["id"].combine_chunks(), tiebreaker="dense").to_numpy(zero_copy_only=False)
    order = np.lexsort((keys["tie"].to_numpy(), ids, *_words(keys["content"]), *dedup))
    low, high = (half[order] for half in dedup)
    same = np.zeros(len(order), bool)
    same[1:] = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    frequency = np.bincount(first)
    run, row = keys["run"].to_numpy(), keys["row"].to_numpy()
    if (most := int(frequency.max())) > reduced.most_frequent:
        example = order[frequency.argmax()]
        reduced.most_frequent, reduced.example = most, (int(run[example]), int(row[example]))
    dropped = order[same]
    reduced.duplicates += len(dropped)
    for number, alive in enumerate(reduced.alive):
        alive[row[dropped][run[dropped] == number]] = False
    names, kept = (keys["id"].take(pa.array(places)).to_pylist() for places in (dropped, order[first[same]]))
    for name, other in zip(names, kept, strict=True):
        file.write(json.dumps({"reason": "duplicate", "id": name, "of": other}, ensure_ascii=False) + "\n")
