"""All parts of a dataset to its rows: which of equal rows stays, ids, and the order of the output.

The index of all candidates is in memory, in columns of fixed size (about 100 bytes a row and its id).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from draftmill.errors import DataError
from draftmill.extract.mapping import Part

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reduced:
    """The rows that stay, in the order of the output, and what the others were."""

    ids: pa.Array
    places: Integers
    """For each row that stays, its place in the index."""
    duplicates: list[tuple[str, str]]
    """(id, id of the row that stays in its place), sorted."""
    most_frequent: int
    """Rows with the most frequent duplicate key,"""
    example: int
    """and the place of one of them."""
    repeated_ids: int


class Index:
    """The candidates of all parts, as columns."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.ids = pa.array([name for part in parts for name in part.ids], pa.large_string())
        self.contents = _hashes(parts, "contents")
        self.dedups = _hashes(parts, "dedups")
        self.groups = _hashes(parts, "groups")
        counts = [len(part.ids) for part in parts]
        self.part = np.repeat(np.arange(len(parts)), counts)
        lengths = [np.array(part.lengths, dtype=np.int64).reshape(-1, 4) for part in parts]
        self.lengths = np.concatenate(lengths) if lengths else np.zeros((0, 4), np.int64)
        sizes = [np.maximum(each, 0).sum(axis=1) for each in lengths]
        starts = [np.concatenate(([0], np.cumsum(each)[:-1])) for each in sizes if len(each)]
        self.offset = np.concatenate(starts).astype(np.int64) if starts else np.zeros(0, np.int64)

    def reduce(self) -> Reduced:
        """Drop duplicates (the lowest content hash stays), number repeated ids, and sort by id."""
        rank = _ranks(self.ids)
        order = np.lexsort((rank, *_words(self.contents), *_words(self.dedups)))
        dedup = self.dedups[order]
        has_key = np.any(dedup, axis=1)
        same = np.zeros(len(order), bool)
        same[1:] = np.all(dedup[1:] == dedup[:-1], axis=1) & has_key[1:]
        first = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
        stays = order[~same]
        stays = stays[np.lexsort((*_words(self.contents[stays]), rank[stays]))]
        ids, repeated, stays = _number(self.ids.take(pa.array(stays)), stays)
        duplicates = zip(self._names(order[same]), self._names(order[first[same]]), strict=True)
        keyed = first[has_key]
        counts = np.bincount(keyed) if len(keyed) else np.zeros(1, np.int64)
        example = int(order[counts.argmax()]) if len(order) else -1
        return Reduced(ids, stays, sorted(duplicates), int(counts.max()), example, repeated)

    def _names(self, places: Integers) -> list[str]:
        names: list[str] = self.ids.take(pa.array(places)).to_pylist()
        return names


def _hashes(parts: Sequence[Part], name: str) -> npt.NDArray[np.uint8]:
    joined = b"".join(getattr(part, name) for part in parts)
    return np.frombuffer(joined, np.uint8).reshape(-1, 16)


def _words(hashes: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The two halves, the less significant one first, as lexsort wants its keys."""
    words = np.ascontiguousarray(hashes).view(">u8").astype(np.uint64).reshape(-1, 2)
    return words[:, 1], words[:, 0]


def _ranks(ids: pa.Array) -> Integers:
    """The rank of each id among the distinct ids, in the order of their UTF-8."""
    ranks: Integers = pc.rank(ids, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
    return ranks


def _number(ids: pa.Array, places: Integers) -> tuple[pa.Array, int, Integers]:
    """Sorted ids made unique: the second row with an id gets `~2`, and so on; the number of rows so changed."""
    if len(ids) < 2 or not pc.any(same := pc.equal(ids[1:], ids[:-1])).as_py():
        return ids, 0, places
    names, seen = ids.to_pylist(), 1
    for i, repeated in enumerate(same.to_pylist(), 1):
        seen = seen + 1 if repeated else 1
        if repeated:
            names[i] = f"{names[i]}~{seen}"
    ids = pa.array(names, pa.large_string())
    order = pc.sort_indices(ids)
    if len(pc.unique(ids)) < len(ids):
        raise DataError("ids that repeat cannot be told apart by a number: other ids end the same way", key="schema.id")
    return ids.take(order), pc.sum(same).as_py(), places[order.to_numpy()]
