"""All parts of a dataset to its rows: which of equal rows stays, ids, order, and the table that is written.

The index of all candidates is in memory, in columns of fixed size (about 80 bytes a row); the payload is read
back from the scratch files row by row, in the order of the output.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from draftmill.errors import DataError
from draftmill.extract.mapping import Part
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
GROUP_ROWS, GROUP_BYTES = 10_000, 16 << 20
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


def write(index: Index, reduced: Reduced, folder: Path, path: Path) -> None:
    """Write the rows that stay, reading each one's payload from `<part>.payload` in `folder`."""
    with parquet_writer(path, SCHEMA) as writer:
        for start, rows in _groups(index, reduced, folder):
            places = reduced.places[start : start + len(rows)]
            columns = [
                pa.array(column, SCHEMA.field(name).type)
                for name, column in zip(_FIELDS, zip(*rows, strict=True), strict=True)
            ]
            conversation, tools, meta, signatures = columns
            ids = reduced.ids[start : start + len(rows)].cast(pa.string())
            group, dedup = _hexes(index.groups[places], False), _hexes(index.dedups[places], True)
            arrays = [ids, conversation, tools, group, dedup, signatures, meta]
            writer.write_batch(pa.record_batch(arrays, schema=SCHEMA), row_group_size=GROUP_ROWS)


_FIELDS = ("conversation", "tools", "meta", "signature")
Payload = tuple[bytes | None, ...]


def _groups(index: Index, reduced: Reduced, folder: Path) -> Iterator[tuple[int, list[Payload]]]:
    """(place of the first row, payloads) of row groups of limited size."""
    files: dict[int, int] = {}
    start, rows, size = 0, [], 0
    try:
        for place in reduced.places:
            row = _payload(index, int(place), folder, files)
            rows.append(row)
            size += len(row[0] or b"")
            if len(rows) == GROUP_ROWS or size >= GROUP_BYTES:
                yield start, rows
                start, rows, size = start + len(rows), [], 0
        if rows:
            yield start, rows
    finally:
        for file in files.values():
            os.close(file)


def _payload(index: Index, place: int, folder: Path, files: dict[int, int]) -> Payload:
    part, lengths = int(index.part[place]), index.lengths[place].tolist()
    if part not in files:
        files[part] = os.open(folder / f"{part}.payload", os.O_RDONLY)
    data = os.pread(files[part], sum(length for length in lengths if length > 0), int(index.offset[place]))
    fields, at = [], 0
    for length in lengths:
        fields.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    return tuple(fields)


def text_of_most_frequent(index: Index, reduced: Reduced, folder: Path) -> str:
    """The first user turn of a row with the most frequent duplicate key."""
    files: dict[int, int] = {}
    conversation = _payload(index, reduced.example, folder, files)[0]
    os.close(files.popitem()[1])
    return next((turn["content"] for turn in json.loads(conversation or b"[]") if turn["role"] == "user"), "")


def _hexes(hashes: npt.NDArray[np.uint8], nullable: bool) -> pa.Array:
    """16-byte hashes as hexadecimal texts; zeros are null where that is allowed."""
    texts = [bytes(value).hex() if value.any() or not nullable else None for value in hashes]
    return pa.array(texts, pa.string())
