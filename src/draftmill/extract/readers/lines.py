"""JSON Lines, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from draftmill.extract.literals import LONG_DIGITS
from draftmill.extract.readers import files
from draftmill.extract.readers.items import Chunk, Compression, Reject
from draftmill.extract.readers.values import has_long_number, parse, parse_all

LONGEST_FIRST_LINE = 1 << 25
_BOM = b"\xef\xbb\xbf"
_SEAM = LONG_DIGITS - 1


def read_lines(chunk: Chunk) -> Iterator[list[Any]]:
    """The values of the chunk's lines, in batches: a value, a Reject or BLANK for every line."""
    if chunk.compression:
        pieces = files.blocks(chunk.path, chunk.file, chunk.compression)
    else:
        pieces = files.range_blocks(chunk.path, chunk.start, chunk.stop)
    for lines, long_number in _split(pieces, chunk.start == 0, files.LONGEST_LINE):
        if None in lines:
            yield [_too_long() if line is None else parse(line) for line in lines]
        else:
            yield parse_all(lines, long_number)


def _too_long() -> Reject:
    return Reject("line_too_long", f"more than {files.LONGEST_LINE >> 20} MiB without a line end")


def holds_lines(path: str, shown: str, compression: Compression) -> bool:
    """Whether the first line of a file is complete JSON, and another line follows."""
    pieces = files.blocks(path, shown, compression)
    split = _split(pieces, True, LONGEST_FIRST_LINE)
    found = (line for lines, _ in split for line in lines if line is None or line.strip())
    first, second = next(found, None), next(found, None)
    return first is not None and second is not None and not isinstance(parse(first), Reject)


def _split(pieces: Iterable[bytes], from_start: bool, limit: int) -> Iterator[tuple[list[Any], bool]]:
    """For every block with a line end: the lines that end in it, and whether a number in them may be long.

    A line longer than `limit` is None; what begins in the block and does not end there comes with the next.
    """
    begun: list[bytes] = []
    size, long_number, seam = 0, False, b""
    for piece in pieces:
        if from_start:
            piece, from_start = piece.removeprefix(_BOM), False
        long_here = has_long_number(piece)
        # A number may stand across the end of a block.
        long_number = long_number or long_here or has_long_number(seam + piece[:_SEAM])
        seam = (seam + piece[-_SEAM:])[-_SEAM:]
        lines: list[Any] = piece.split(b"\n")
        size += len(lines[0])
        if size <= limit:
            begun.append(lines[0])
        else:
            begun.clear()
        if len(lines) == 1:
            continue
        lines[0] = b"".join(begun) if size <= limit else None
        begun, size = [last := lines.pop()], len(last)
        yield lines, long_number
        long_number = long_here
    if size:
        yield [b"".join(begun) if size <= limit else None], long_number
