"""Chunks of a source to candidates: the part of extract that runs in several processes.

A chunk's payload (conversation, tools, meta, signature of each candidate) and rejects go to files in a
scratch folder; what comes back is an index of fixed size per row, and counters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from draftmill.console import excerpt
from draftmill.extract.coverage import Probe, probes
from draftmill.extract.outcome import Candidate, Rejected, UnknownRole, Work
from draftmill.extract.readers import Chunk, ChunkReader, Reject
from draftmill.extract.relate import Relations
from draftmill.extract.rows import Engine
from draftmill.extract.schema import Schema
from draftmill.extract.signature import signature
from draftmill.extract.texts import blank, text_of
from draftmill.extract.turns import elements_of


@dataclass(slots=True)
class Part:
    """What came of one chunk. Lists have one entry per candidate; lengths are bytes, -1 for null."""

    chunk: Chunk
    lines: int = 0
    """Lines (or rows) of the chunk, rejects of the reader included."""
    rows: int = 0
    """Rows and rejects; with `steps`, a row that becomes several counts so often."""
    filtered: Counter[str] = field(default_factory=Counter)
    rejects: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    unseen: frozenset[str] = frozenset()
    """Keys of declared paths that have matched nothing yet."""
    ids: list[str] = field(default_factory=list)
    contents: bytearray = field(default_factory=bytearray)
    dedups: bytearray = field(default_factory=bytearray)
    groups: bytearray = field(default_factory=bytearray)
    lengths: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Of conversation, tools, meta and signature, which follow one another in the payload file."""


class Mapper:
    """Does the work on chunks for one dataset; one per process."""

    def __init__(self, schema: Schema, folder: Path, relations: Relations | None = None) -> None:
        self.schema, self.folder, self.relations = schema, folder, relations
        self.engine = Engine(schema, relations.partner if relations else None)
        self.unseen: list[Probe] = probes(schema)

    def __call__(self, number: int, chunk: Chunk, limit: int | None = None) -> Part:
        """Work on chunk `number` (its first `limit` rows); its files are `<number>.payload` and `<number>.rejects`."""
        part, work = Part(chunk), Work(arrow=chunk.arrow)
        reader = ChunkReader(chunk)
        with (
            open(self.folder / f"{number}.payload", "wb", buffering=1 << 20) as payload,
            open(self.folder / f"{number}.rejects", "w", encoding="utf-8", errors="backslashreplace") as rejects,
        ):
            for line, row in islice(reader, limit):
                part.rows += 1
                try:
                    self._row(number, line, row, part, work, payload)
                except Rejected as rejected:
                    part.rejects[rejected.reason] += 1
                    rejects.write(json.dumps(self._reject(line, row, rejected), ensure_ascii=False) + "\n")
                if self.unseen and not isinstance(row, Reject):
                    self.unseen = [probe for probe in self.unseen if not probe(row)]
        part.lines, part.notes = reader.count, work.notes
        part.unseen = frozenset(probe.key for probe in self.unseen)
        return part

    def _row(self, number: int, line: int, row: Any, part: Part, work: Work, payload: Any) -> None:
        if isinstance(row, Reject):
            raise Rejected(row.reason, row.detail)
        dropped = self.engine.prepare(row, work)
        if dropped is None and self.relations and not self.relations.is_last(number, line, row):
            dropped = "last_of"
        if dropped is not None:
            part.filtered[dropped] += 1
            return
        candidates = self.engine.convert(row, work)
        part.rows += len(candidates) - 1
        for candidate in candidates:
            _store(candidate, part, payload)

    def _reject(self, line: int, row: Any, rejected: Rejected) -> dict[str, Any]:
        """The line of rejects.jsonl: where the row is, why, and an excerpt of its declared text only."""
        entry: dict[str, Any] = {"line": line, "reason": rejected.reason}
        if isinstance(row, Reject):
            return entry
        if isinstance(rejected, UnknownRole):
            entry["label"] = excerpt(rejected.detail)
        if self.schema.id and (row_id := self.schema.id.one(row)) is not None:
            entry["id"] = excerpt(str(row_id), 200)
        return entry | {"excerpt": excerpt(first_text(self.schema, row), 120)}


def first_text(schema: Schema, row: Any) -> str:
    """The first text that the declared paths find in a row, for excerpts; "" if there is none."""
    is_blank = blank(schema.empty)
    for block in schema.blocks:
        find = text_of(block.text, "drop", is_blank)
        for element in elements_of(block)(row):
            try:
                text = element if type(element) is str else find(element)
            except Rejected:
                continue
            if not is_blank(text):
                return text
    return ""


def _store(candidate: Candidate, part: Part, payload: Any) -> None:
    part.ids.append(candidate.content.hex() if candidate.id is None else candidate.id)
    part.contents += candidate.content
    part.dedups += candidate.dedup or bytes(16)
    part.groups += candidate.group
    fields: Iterable[bytes | None] = (
        candidate.conversation,
        candidate.tools,
        candidate.meta,
        signature(candidate.user_text),
    )
    part.lengths.append(tuple(-1 if value is None else len(value) for value in fields))  # type: ignore[arg-type]
    payload.writelines(value for value in fields if value is not None)
