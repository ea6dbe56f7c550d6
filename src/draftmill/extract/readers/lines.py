"""JSON Lines, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from draftmill.extract.readers import files
from draftmill.extract.readers.items import Chunk, Compression, Reject
from draftmill.extract.readers.values import has_long_number, parse, parse_all

LONGEST_FIRST_LINE = 1 << 25
_BOM = b"\xef\xbb\xbf"


def read_lines(chunk: Chunk) -> Iterator[list[Any]]:
    """The values of the chunk's lines, in batches: a value, a Reject or BLANK for every line."""
    if chunk.compression:
        pieces = files.blocks(chunk.path, chunk.file, chunk.compression)
    else:
        pieces = files.range_blocks(chunk.path, chunk.start, chunk.stop)
    for first, rest, long_number in _split(pieces, chunk.start == 0, files.LONGEST_LINE):
        # Two blocks may share the first line, and a number in it.
        yield [_too_long()] if first is None else parse_all([first], has_long_number(first))
        if rest:
            yield parse_all(rest, long_number)


def _too_long() -> Reject:
    return Reject("line_too_long", f"more than {files.LONGEST_LINE >> 20} MiB without a line end")


def holds_lines(path: str, shown: str, compression: Compression) -> bool:
    """Whether the first line of a file is complete JSON, and another line follows."""
    pieces = files.blocks(path, shown, compression)
    split = _split(pieces, True, LONGEST_FIRST_LINE)
    found = (line for first, rest, _ in split for line in (first, *rest) if line is None or line.strip())
    first, second = next(found, None), next(found, None)
    return first is not None and second is not None and not isinstance(parse(first), Reject)


def _split(pieces: Iterable[bytes], from_start: bool, limit: int) -> Iterator[tuple[bytes | None, list[bytes], bool]]:
    """For every block with a line end: the line that ends first, the other lines, whether these may have a long number.

    A line longer than `limit` is None; what begins in the block and does not end there comes with the next.
    """
    begun: list[bytes] = []
    size = 0
    for piece in pieces:
        if from_start:
            piece, from_start = piece.removeprefix(_BOM), False
        head, newline, rest = piece.partition(b"\n")
        size += len(head)
        if size <= limit:
            begun.append(head)
        else:
            begun.clear()
        if not newline:
            continue
        *whole, last = rest.split(b"\n")
        yield b"".join(begun) if size <= limit else None, whole, has_long_number(piece)
        begun, size = [last], len(last)
    if size:
        yield b"".join(begun) if size <= limit else None, [], False
