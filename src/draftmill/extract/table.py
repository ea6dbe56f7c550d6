"""rows.parquet: the payload of the rows that stay, read back from the scratch files in the order of the output."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from draftmill.extract.reducing import Index, Reduced
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
"""Where a row group ends: it depends on the rows only."""
MAX_OPEN_FILES = 256
_FIELDS = ("conversation", "tools", "meta", "signature")
Payload = tuple[bytes | None, ...]
"""Conversation, tools, meta (JSON) and signature of a row."""


class Payloads:
    """Reads the payload of a place of the index from `<part>.payload` in `folder`."""

    def __init__(self, index: Index, folder: Path) -> None:
        self.index, self.folder = index, folder
        self._files: OrderedDict[int, int] = OrderedDict()

    def __getitem__(self, place: int) -> Payload:
        lengths = self.index.lengths[place].tolist()
        size = sum(length for length in lengths if length > 0)
        data = os.pread(self._file(int(self.index.part[place])), size, int(self.index.offset[place]))
        fields, at = [], 0
        for length in lengths:
            fields.append(None if length < 0 else data[at : at + length])
            at += max(length, 0)
        return tuple(fields)

    def _file(self, part: int) -> int:
        if part in self._files:
            self._files.move_to_end(part)
            return self._files[part]
        if len(self._files) == MAX_OPEN_FILES:
            os.close(self._files.popitem(last=False)[1])
        self._files[part] = os.open(self.folder / f"{part}.payload", os.O_RDONLY)
        return self._files[part]

    def close(self) -> None:
        """Close all files."""
        while self._files:
            os.close(self._files.popitem()[1])


def write(index: Index, reduced: Reduced, payloads: Payloads, path: Path) -> None:
    """Write the rows that stay to `path`."""
    with parquet_writer(path, SCHEMA) as writer:
        for start, rows in _groups(reduced, payloads):
            places = reduced.places[start : start + len(rows)]
            columns = dict(zip(_FIELDS, zip(*rows, strict=True), strict=True)) | {
                "id": reduced.ids[start : start + len(rows)].cast(pa.string()),
                "group": _hexes(index.groups[places]),
                "dedup": _hexes(index.dedups[places]),
            }
            arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
            writer.write_batch(pa.record_batch(arrays, schema=SCHEMA), row_group_size=GROUP_ROWS)


def _groups(reduced: Reduced, payloads: Payloads) -> Iterator[tuple[int, list[Payload]]]:
    """(place of the first row, payloads) of row groups of limited size."""
    start, rows, size = 0, [], 0
    for place in reduced.places.tolist():
        rows.append(row := payloads[place])
        size += len(row[0] or b"")
        if len(rows) == GROUP_ROWS or size >= GROUP_BYTES:
            yield start, rows
            start, rows, size = start + len(rows), [], 0
    if rows:
        yield start, rows


def _hexes(hashes: npt.NDArray[np.uint8]) -> list[str | None]:
    """16-byte hashes as hexadecimal texts; zeros, which stand for no hash, as None."""
    data = hashes.tobytes().hex()
    texts = (data[at : at + 32] for at in range(0, len(data), 32))
    return [text if text.strip("0") else None for text in texts]
