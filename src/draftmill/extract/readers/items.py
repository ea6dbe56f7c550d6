"""What readers give: chunks of files, rows in them, and rows that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["lines", "json", "csv", "tsv", "parquet"]
Compression = Literal["", "gz", "zst"]


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that cannot be read: a `reason` to count by, and a `detail` for a person.

    It holds nothing of the row itself: what cannot be parsed cannot be cut down to the declared columns.
    """

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a file that one worker reads; how files are cut depends on their contents only.

    `file` is the name to show, `path` where it lies. `start` and `stop` are bytes of an uncompressed
    file of lines (its lines that begin there), or row groups of a Parquet file; 0 and None: all of it.
    """

    file: str
    path: str
    kind: Kind
    compression: Compression = ""
    start: int = 0
    stop: int | None = None
    rows: str | None = None
    columns: frozenset[str] | None = None

    @property
    def arrow(self) -> bool:
        """Whether the rows come from Arrow, which fills missing keys of objects with null."""
        return self.kind == "parquet"

    @property
    def unit(self) -> str:
        """What rows are counted by: 'line' where a row is a line of the file, else 'row'."""
        return "line" if self.kind == "lines" and self.rows is None else "row"


@dataclass(frozen=True, slots=True)
class Item:
    """A row or a reject, and its place: the line or row `number`, from 1, in the file shown as `file`."""

    file: str
    number: int
    value: Any | Reject


class Blank:
    """The type of BLANK, a line without a row, which only counts."""

    __slots__ = ()


BLANK = Blank()
