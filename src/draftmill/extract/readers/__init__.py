"""Rows of files in every common form, with exact values, in a stable order, in memory that does not grow.

    for chunk in chunks(source.pick("sample"), columns):      # the same for any number of workers
        reader = ChunkReader(chunk)
        for number, row in reader: ...                        # row: plain JSON, or a Reject

JSON Lines (also under other names), JSON arrays and objects, csv, tsv and Parquet, as they are or in
.gz and .zst. Rows are parsed as they stand: no schema is guessed, no key is filled in, no number rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from draftmill.errors import DataError
from draftmill.extract.readers import documents, examine, files, lines, tables
from draftmill.extract.readers.items import BLANK, Blank, Chunk, Item, Reject
from draftmill.extract.source import Source, listed

__all__ = ["BLANK", "Blank", "Chunk", "ChunkReader", "Item", "Reject", "chunks", "read"]

CHUNK_BYTES = 8 << 20
_READERS = {
    "lines": lines.read_lines,
    "json": documents.read_document,
    "csv": tables.read_csv,
    "tsv": tables.read_csv,
    "parquet": tables.read_parquet,
}


def chunks(source: Source, columns: frozenset[str] | None = None) -> list[Chunk]:
    """The source cut into parts, by file name and then by place; the workers' number has no influence.

    `columns`: the top-level keys that will be looked at, None for all; Parquet reads no others.
    Raises DataError for what is missing, empty, or no data.
    """
    found = []
    for shown, path in _located(source):
        kind, compression = examine.examine(path, shown)
        chunk = Chunk(shown, path, kind, compression, rows=source.rows, columns=columns)
        found += _cut(chunk)
    return found


def _located(source: Source) -> list[tuple[str, str]]:
    """(name to show, path) of the files of a source, sorted by name."""
    if source.hub:
        from draftmill.extract.hub import download

        return download(source)
    return [(path, path) for path in files.resolve(listed(source.files or source.sample))]


def _cut(chunk: Chunk) -> list[Chunk]:
    if chunk.rows is not None or chunk.compression or chunk.kind not in ("lines", "parquet"):
        return [chunk]
    edges = _row_groups(chunk) if chunk.kind == "parquet" else _byte_edges(Path(chunk.path).stat().st_size)
    return [_part(chunk, start, stop) for start, stop in pairwise(edges)]


def _part(chunk: Chunk, start: int, stop: int) -> Chunk:
    return Chunk(chunk.file, chunk.path, chunk.kind, "", start, stop, None, chunk.columns)


def _byte_edges(size: int) -> list[int]:
    return [*range(0, size, CHUNK_BYTES), size]


def _row_groups(chunk: Chunk) -> list[int]:
    """Edges between row groups so that a part has about CHUNK_BYTES of packed data."""
    edges, weight = [0], 0
    with tables.open_parquet(chunk.path, chunk.file) as table:
        for group in range(table.num_row_groups):
            columns = table.metadata.row_group(group)
            weight += sum(columns.column(i).total_compressed_size for i in range(columns.num_columns))
            if weight >= CHUNK_BYTES or group + 1 == table.num_row_groups:
                edges, weight = [*edges, group + 1], 0
    return edges


class ChunkReader:
    """The rows of a chunk: an iterable of (number, row or Reject), to be gone through once.

    Numbers count from 1 within the chunk. Afterwards `count` is how many lines (or rows) the chunk has,
    so that a row's number in its file is its number here plus the `count` of the file's earlier chunks.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.chunk, self.count = chunk, 0

    def batches(self) -> Iterator[tuple[int, list[Any]]]:
        """(number of the first, rows) in lists; a Reject for what cannot be read, BLANK for a line without a row."""
        for rows in _batches(self.chunk):
            first, self.count = self.count + 1, self.count + len(rows)
            yield first, rows

    def __iter__(self) -> Iterator[tuple[int, Any | Reject]]:
        for first, rows in self.batches():
            for number, row in enumerate(rows, first):
                if row is not BLANK:
                    yield number, row


def _batches(chunk: Chunk) -> Iterator[list[Any]]:
    if chunk.rows is None or chunk.kind == "json":
        return _READERS[chunk.kind](chunk)
    # `rows` of a file that is no JSON document: the document is the list of what stands in it.
    found = [row for rows in _READERS[chunk.kind](chunk) for row in rows if row is not BLANK]
    for row in found:
        if isinstance(row, Reject):
            message = f"`source.rows` needs the whole file, and a row of it is bad: {row.detail}"
            raise DataError(message, file=chunk.file, fix="mend that row, or leave `rows` out")
    return iter([documents.select(chunk.rows, found)])


def read(source: Source, columns: frozenset[str] | None = None) -> Iterator[Item]:
    """All rows and rejects of a source in order, in this process."""
    file, before = "", 0
    for chunk in chunks(source, columns):
        before = before if chunk.file == file else 0
        reader, file = ChunkReader(chunk), chunk.file
        for number, value in reader:
            yield Item(file, before + number, value)
        before += reader.count
