"""Files on disk: which ones a source means, what is in them, and their bytes in blocks."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import zstandard

from draftmill.errors import DataError, nearest
from draftmill.extract.readers.items import Compression, Kind

BLOCK = 1 << 16
LONGEST_LINE = 1 << 27
ZST_PIECE = 1 << 11
"""Bytes unpacked at a time: four of them may become 128 kB, so this becomes 64 MiB at most."""
KINDS: dict[str, Kind] = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
COMPRESSIONS: dict[str, Compression] = {".gz": "gz", ".zst": "zst", ".zstd": "zst"}
_GLOB = re.compile(r"[*?\[]")


def resolve(patterns: list[str]) -> list[str]:
    """The files that paths, globs and folders mean, sorted, each once. Raises DataError where one means none."""
    found = {os.fspath(path) for pattern in patterns for path in _resolve(pattern)}
    return sorted(found)


def _resolve(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = [p for p in path.rglob("*") if p.is_file() and is_data(p.relative_to(path).as_posix())]
        if not inside:
            raise DataError(
                f"the folder holds no data file ({', '.join(KINDS)}; .gz, .zst)", file=path, fix="name its files"
            )
        return inside
    if _GLOB.search(pattern):
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        matched = [p for p in anchor.glob(os.fspath(path.relative_to(anchor))) if p.is_file()]
        if matched:
            return matched
    raise _absent(path)


def _absent(path: Path) -> DataError:
    folder = path.parent
    if _GLOB.search(path.as_posix()):
        return DataError("no file matches", file=path, fix="check `source.files`, relative to the project's root")
    if not folder.is_dir():
        fix = "paths are relative to the project's folder"
        return DataError("there is no such file, nor its folder", file=path, fix=fix)
    if path.is_symlink():
        return DataError("is a link that leads nowhere", file=path, fix="point it at the data, or name the data itself")
    if path.exists():
        return DataError("is neither a file nor a folder", file=path, fix="write what it gives into a file first")
    names = [entry.name for entry in folder.iterdir()]
    close = nearest(path.name, names)
    return DataError("there is no such file", file=path, fix=f"did you mean {folder / close}?" if close else None)


def is_data(name: str) -> bool:
    """Whether a file found in a folder is taken for data: a known suffix, nothing hidden."""
    path = Path(name)
    return inner_suffix(path) in KINDS and not any(part.startswith((".", "_")) for part in path.parts)


def inner_suffix(path: Path) -> str:
    """The suffix, in lower case, of what a compressed file holds, or of the file itself."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix


def blocks(path: str, shown: str, compression: Compression) -> Iterator[bytes]:
    """The bytes of a file, unpacked, in blocks. Raises DataError where it is damaged."""
    try:
        with open(path, "rb") as file:
            if compression == "zst":
                yield from _unpack_zst(file)
            elif compression == "gz":
                with gzip.open(file) as unpacked:
                    yield from _pieces(unpacked, BLOCK)
            else:
                yield from _pieces(file, BLOCK)
    except EOFError:
        raise DataError(f"the .{compression} file ends in the middle: download it again", file=shown) from None
    except (zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise DataError(f"the .{compression} file is damaged: {error}", file=shown) from None


def _pieces(file: IO[bytes] | gzip.GzipFile, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece


def _unpack_zst(file: IO[bytes]) -> Iterator[bytes]:
    unpacked, size = [], 0
    for data in _unpack_frames(file):
        unpacked.append(data)
        size += len(data)
        if size >= BLOCK:
            yield b"".join(unpacked)
            unpacked, size = [], 0
    yield b"".join(unpacked)


def _unpack_frames(file: IO[bytes]) -> Iterator[bytes]:
    # The package's own stream reader takes a cut file for a complete one.
    unpacker = None
    for rest in _pieces(file, ZST_PIECE):
        while rest:
            unpacker = unpacker or zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            if data := unpacker.decompress(rest):
                yield data
            rest = unpacker.unused_data if unpacker.eof else b""
            unpacker = None if unpacker.eof else unpacker
    if unpacker is not None:
        raise EOFError


def range_blocks(path: str, start: int, stop: int | None) -> Iterator[bytes]:
    """The lines of a file that begin at byte `start` or later and before `stop`, in blocks."""
    with open(path, "rb") as file:
        if start:
            file.seek(start - 1)
            file.readline(LONGEST_LINE)
        left = (os.fstat(file.fileno()).st_size if stop is None else stop) - file.tell()
        last = b""
        while left > 0 and (block := file.read(min(BLOCK, left))):
            yield block
            left, last = left - len(block), block
        if last and not last.endswith(b"\n"):
            yield from _line_end(file)


def _line_end(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.readline(BLOCK):
        yield piece
        if piece.endswith(b"\n"):
            return
