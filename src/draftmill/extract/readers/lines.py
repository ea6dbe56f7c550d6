"""JSON Lines, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from draftmill.extract.readers import files
from draftmill.extract.readers.items import BLANK, Chunk, Compression, Reject
from draftmill.extract.readers.values import has_long_number, parse

LONGEST_FIRST_LINE = 1 << 25
_BOM = b"\xef\xbb\xbf"


def read_lines(chunk: Chunk) -> Iterator[tuple[int, Any | Reject]]:
    """(line number in the chunk, value, Reject or BLANK) of every line."""
    if chunk.compression:
        pieces = files.blocks(chunk.path, chunk.file, chunk.compression)
    else:
        pieces = files.range_blocks(chunk.path, chunk.start, chunk.stop)
    for number, (line, suspicious) in enumerate(_split(pieces, chunk.start == 0), 1):
        if line is None:
            yield number, Reject("line_too_long", f"more than {files.LONGEST_LINE >> 20} MiB without a line end")
        elif not line or line.isspace():
            yield number, BLANK
        else:
            yield number, parse(line, suspicious)


def holds_lines(path: str, shown: str, compression: Compression) -> bool:
    """Whether the first line of a file is complete JSON, and another line follows."""
    pieces = files.blocks(path, shown, compression)
    found = (line for line, _ in _split(pieces, True, LONGEST_FIRST_LINE) if line is None or line.strip())
    first, second = next(found, None), next(found, None)
    return first is not None and second is not None and not isinstance(parse(first), Reject)


def _split(pieces: Iterable[bytes], from_start: bool, limit: int | None = None) -> Iterator[tuple[bytes | None, bool]]:
    """The lines, each with whether it may have a long number; None for a line that is too long to keep."""
    limit = limit or files.LONGEST_LINE
    begun: list[bytes] = []
    size, first = 0, from_start
    for piece in pieces:
        if first:
            piece, first = piece.removeprefix(_BOM), False
        head, newline, rest = piece.partition(b"\n")
        size += len(head)
        if size <= limit:
            begun.append(head)
        else:
            begun.clear()
        if not newline:
            continue
        yield (b"".join(begun), True) if size <= limit else (None, False)
        *whole, last = rest.split(b"\n")
        suspicious = has_long_number(piece)
        for line in whole:
            yield line, suspicious
        begun, size = [last], len(last)
    if size:
        yield (b"".join(begun), True) if size <= limit else (None, False)
