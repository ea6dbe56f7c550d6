"""JSON files that are no lines: arrays and documents one after the other, each read by itself (arrays.py), and
what `rows` picks out of a document, as a whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

from draftmill import paths
from draftmill.errors import DataError
from draftmill.extract.readers import files
from draftmill.extract.readers.arrays import documents, elements
from draftmill.extract.readers.items import Chunk, Reject
from draftmill.extract.readers.values import parse

_MORE = "after document"
"""What orjson says of a text that is a document, and more."""


def read_document(chunk: Chunk) -> Iterator[list[Any]]:
    """The rows of a JSON file, in batches: an array's elements, the documents in it, or the matches of `rows`."""
    if chunk.rows is None and _begins_array(chunk):
        yield from elements(chunk)
        return
    text = b"".join(files.blocks(chunk.path, chunk.file, chunk.compression))
    value = parse(text.removeprefix(codecs.BOM_UTF8))
    if isinstance(value, Reject) and chunk.rows is None and _MORE in value.detail:
        yield from documents(chunk)
        return
    if isinstance(value, Reject):
        raise DataError(f"is not JSON: {value.detail}", file=chunk.file, fix=_fix(text))
    yield [value] if chunk.rows is None else select(chunk.rows, value)


def select(rows: str, document: Any) -> list[Any]:
    """The rows that a `source.rows` path finds in a document."""
    return paths.compile("$[*]" if rows == "*" else rows)(document)


def _fix(text: bytes) -> str:
    begun = text.lstrip()[:1]
    return (
        "mend it, or download it again"
        if begun in (b"{", b"[")
        else "only JSON, JSON Lines, csv, tsv and Parquet are read (.gz, .zst)"
    )


def _begins_array(chunk: Chunk) -> bool:
    for block in files.blocks(chunk.path, chunk.file, chunk.compression):
        if begun := block.removeprefix(codecs.BOM_UTF8).lstrip():
            return begun[:1] == b"["
    return False
