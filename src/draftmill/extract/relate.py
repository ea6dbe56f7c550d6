"""What a row has to do with other rows: `join` and `last_of`, by one pass over the source before the work.

Partner rows and the places of last rows are kept in a small SQLite file, so memory does not grow and every
worker can read it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftmill.extract.literals import dumps, loads
from draftmill.extract.outcome import Rejected, Work
from draftmill.extract.readers import Chunk, ChunkReader, Reject
from draftmill.extract.rows import decoder, join_key, pruner, selector
from draftmill.extract.schema import Schema

_TABLES = """
CREATE TABLE partner (key TEXT PRIMARY KEY, row BLOB) WITHOUT ROWID;
CREATE TABLE candidate (key TEXT, partner TEXT, number INTEGER, line INTEGER);
"""
_LAST = """
CREATE TABLE last (key TEXT PRIMARY KEY, number INTEGER, line INTEGER) WITHOUT ROWID;
INSERT OR REPLACE INTO last SELECT key, number, line FROM candidate
WHERE partner IS NULL OR partner IN (SELECT key FROM partner) ORDER BY number, line;
"""


class Relations:
    """Looks up the partner of a row, and whether it is the last of its group."""

    def __init__(self, schema: Schema, file: Path) -> None:
        self.last_of = schema.last_of
        self.database = sqlite3.connect(file)

    def partner(self, key: str) -> Any:
        """The partner row under the JSON of a key's value, or None."""
        found = self.database.execute("SELECT row FROM partner WHERE key = ?", (key,)).fetchone()
        return None if found is None else loads(found[0].decode())

    def is_last(self, number: int, line: int, row: Any) -> bool:
        """Whether the row at `line` of chunk `number` is the last of its group, or has no group."""
        key = join_key(self.last_of, row) if self.last_of else None
        if key is None:
            return True
        found = self.database.execute("SELECT number, line FROM last WHERE key = ?", (key,)).fetchone()
        return bool(found == (number, line))


def relate(schema: Schema, chunks: Sequence[Chunk], file: Path) -> None:
    """Read the source once and note partners and last rows in `file`. Of several partners the last row counts."""
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as database:
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _TABLES)
        for number, chunk in enumerate(chunks):
            _read(schema, number, chunk, database)
        database.executescript(_LAST)
    database.close()


def _read(schema: Schema, number: int, chunk: Chunk, database: sqlite3.Connection) -> None:
    decode, prune, join, work = decoder(schema), pruner(schema), schema.join, Work(arrow=chunk.arrow)
    # Whether a row has a partner is not known yet: every row counts as joined here.
    drops = selector(schema, lambda key: {})
    for line, row in ChunkReader(chunk):
        if isinstance(row, Reject):
            continue
        if join and work.arrow:
            prune({join.name: row})  # as a partner, seen from the row that it is joined to
        try:
            decode(row, work)
        except Rejected:
            continue
        if join and join.rows(row):
            if (key := join_key(join.on, row)) is not None:
                database.execute("INSERT OR REPLACE INTO partner VALUES (?, ?)", (key, dumps(row)))
        elif schema.last_of and drops(row) is None and (key := join_key(schema.last_of, row)) is not None:
            partner = join_key(join.on, row) if join else None
            database.execute("INSERT INTO candidate VALUES (?, ?, ?, ?)", (key, partner, number, line))
