"""Runs to one sequence of rows in the order of their ids, one stretch at a time.

A stretch holds the rows between two ids, whichever run they are in. Of every run that is being merged one piece is in
memory, so many runs are first merged into fewer, larger ones: however many rows there are, memory stays the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from draftmill.extract.reducing import Reduced
from draftmill.extract.runs import Run, ordered, spill

FAN = 64
"""How many runs are merged at a time."""
STRETCH_BYTES = 3 << 20
SAMPLE, PHASE = 64, 27
"""One of so many ids is looked at to divide the rows into stretches."""
Alive = npt.NDArray[np.bool_]
Source = tuple[Run, Alive]
"""A run, and which of its rows stay."""


def stretches(reduced: Reduced, limit: int = STRETCH_BYTES) -> Iterator[pa.Table]:
    """The rows that stay in the order of their ids, cut between different ids, about `limit` bytes at a time.

    Larger runs go to files too; those that they are made of are deleted, since both would fill a disk.
    """
    sources: list[Source] = list(zip(reduced.runs, reduced.alive, strict=True))
    numbers = count()
    while len(sources) > FAN:
        # The oldest, which are the smallest, and no more of them than must be.
        some = min(FAN, len(sources) - FAN + 1)
        sources = [*sources[some:], _joined(sources[:some], reduced.folder / f"{next(numbers)}.merged", limit)]
    yield from _merged(sources, limit)


def _joined(sources: Sequence[Source], path: Path, limit: int) -> Source:
    """Several runs as one, without the rows that do not stay."""
    run = spill((batch for table in _merged(sources, limit) for batch in table.to_batches()), path)
    for old, _ in sources:
        old.delete()
    return run, np.ones(run.rows, bool)


def _merged(sources: Sequence[Source], limit: int) -> Iterator[pa.Table]:
    streams = [_Stream(run, alive) for run, alive in sources]
    for edge in [*_edges([run for run, _ in sources], limit), None]:
        pieces = [piece for stream in streams for piece in stream.below(edge)]
        if pieces:
            yield _sorted(pa.Table.from_batches(pieces), in_order=len(streams) == 1)


def _edges(runs: Sequence[Run], limit: int) -> list[str]:
    """Ids that divide the rows into stretches of about `limit` bytes."""
    stretches = 1 + sum(run.nbytes for run in runs) // limit
    if stretches == 1:
        return []
    sample: list[str] = []
    for number, run in enumerate(runs):
        # Runs are sorted: the same places in each of them would leave wide gaps between the ids that are looked at.
        ids = chain.from_iterable(keys["id"].to_pylist() for keys in run.key_pieces())
        sample += islice(ids, number * PHASE % SAMPLE, None, SAMPLE)
    sample.sort()
    return sorted(set(sample[:: max(1, len(sample) // stretches)][1:]))


class _Stream:
    """The rows of a run that are alive, from the lowest id to the highest, taken in stretches."""

    def __init__(self, run: Run, alive: Alive) -> None:
        self._pieces, self._alive = run.pieces(), alive
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
    if not repeats(table["id"].combine_chunks()).any():
        return table
    order = pc.sort_indices(table, [("id", "ascending"), ("content", "ascending"), ("tie", "ascending")])
    return table.take(order)


def repeats(ids: pa.Array) -> npt.NDArray[np.bool_]:
    """For each of sorted ids, whether it is that of the one before."""
    same = np.zeros(len(ids), bool)
    same[1:] = pc.equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    return same
