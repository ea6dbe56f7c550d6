"""What is in a file: its form and packing, or the reason why it is no data."""

from __future__ import annotations

from pathlib import Path

from draftmill.errors import DataError
from draftmill.extract.readers import files, lines
from draftmill.extract.readers.items import Compression, Kind

HEAD = 1 << 12


def examine(path: str, shown: str) -> tuple[Kind, Compression]:
    """What is in a file, by its name and its first bytes. Raises DataError for what is no data."""
    head = _first_bytes(path, shown)
    compression: Compression = "gz" if head[:2] == b"\x1f\x8b" else "zst" if head[:4] == b"\x28\xb5\x2f\xfd" else ""
    if compression:
        head = next(files.blocks(path, shown, compression), b"")[:HEAD]
    _refuse(head, shown)
    _check_suffix(path, shown, compression, head)
    if head[:4] == b"PAR1" and not compression:
        return "parquet", ""
    kind = files.KINDS.get(files.inner_suffix(Path(path)), "json")
    if kind == "parquet":
        raise DataError("is named like Parquet but does not begin with PAR1", file=shown, found=repr(head[:8]))
    if kind == "lines" and _not_lines(head):
        return "json", compression
    if kind == "json" and lines.holds_lines(path, shown, compression):
        kind = "lines"
    return kind, compression


def _not_lines(head: bytes) -> bool:
    """Whether a file named like JSON Lines is laid out otherwise: documents over several lines, an array, commas."""
    first, end, _ = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")
    return bool(end) and (first.strip() in (b"[", b"{", b"[{") or first.rstrip().endswith((b"},", b"],")))


def _first_bytes(path: str, shown: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(HEAD)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", file=shown) from None


def _check_suffix(path: str, shown: str, compression: Compression, head: bytes) -> None:
    suffix = Path(path).suffix.lower()
    named = files.COMPRESSIONS.get(suffix, compression)
    if named != compression:
        kind = f"packed as .{compression}" if compression else "not packed at all"
        fix = f"name it by what it is, such as {Path(path).stem}{f'.{compression}' if compression else ''}, or pack it"
        raise DataError(f"is named {suffix} but is {kind}", file=shown, found=f"it begins with {head[:24]!r}", fix=fix)


def _refuse(head: bytes, shown: str) -> None:
    text = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not head:
        raise DataError("the file is empty (0 bytes)", file=shown, fix="download it again, or leave it out")
    if text.startswith(b"version https://git-lfs.github.com/spec/"):
        fix = "run `git lfs pull` in that checkout, or download the file itself"
        raise DataError("is a Git LFS pointer, not the data", file=shown, fix=fix)
    if text.startswith((b"<!doctype html", b"<html")):
        fix = "download the raw file (a 'resolve' or 'raw' address), not the page that shows it"
        raise DataError("is an HTML page, not the data", file=shown, fix=fix)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError("is UTF-16 text; only UTF-8 is read", file=shown, fix="convert it with iconv -t UTF-8")
