"""Chunks of a source to runs of candidates: the part of extract that several processes share."""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from draftmill.console import excerpt
from draftmill.extract.coverage import Probe, probes
from draftmill.extract.outcome import Candidates, Rejected, UnknownRole, Work
from draftmill.extract.readers import Blank, Chunk, ChunkReader, Reject
from draftmill.extract.relate import Relations
from draftmill.extract.rows import Engine
from draftmill.extract.schema import Schema
from draftmill.extract.texts import blank, text_of
from draftmill.extract.turns import elements_of

if TYPE_CHECKING:
    from draftmill.extract.runs import Run

RUN_BYTES = 4 << 20


@dataclass(slots=True)
class Part:
    """What came of one chunk."""

    chunk: Chunk
    lines: int = 0
    """Lines (or rows) of the chunk, blank ones included."""
    rows: int = 0
    """Rows and rejects; with `steps`, a row that becomes several counts so often."""
    filtered: Counter[str] = field(default_factory=Counter)
    rejects: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    unseen: frozenset[str] = frozenset()
    """Keys of declared paths that have matched nothing yet."""
    runs: list[Run] = field(default_factory=list)


class Mapper:
    """Does the work on chunks for one dataset; one per process.

    `memory`: bytes of runs that may stay in memory; the rest, and the rejects, go to files in `folder`.
    """

    def __init__(self, schema: Schema, folder: Path, memory: int, relations: Relations | None = None) -> None:
        self.schema, self.folder, self.memory, self.relations = schema, folder, memory, relations
        self.engine = Engine(schema, relations.partner if relations else None)
        self.unseen: list[Probe] = probes(schema)
        self.runs = 0

    @staticmethod
    def of(schema: Schema, folder: Path, memory: int) -> Mapper:
        """The mapper of a process, with the relations of rows that are in `folder`, if any."""
        file = folder / "relations.sqlite"
        return Mapper(schema, folder, memory, Relations(schema, file) if file.exists() else None)

    def __call__(self, number: int, chunk: Chunk, limit: int | None = None) -> Part:
        """Work on chunk `number`, or its first `limit` rows; its rejects are in `<number>.rejects`."""
        collecting = gc.isenabled()
        gc.disable()  # rows have no cycles, and looking for some in them costs a fifth of the time
        try:
            return self._work(number, chunk, limit)
        finally:
            if collecting:
                gc.enable()

    def _work(self, number: int, chunk: Chunk, limit: int | None) -> Part:
        part, work, reader = Part(chunk), Work(arrow=chunk.arrow), ChunkReader(chunk)
        candidates = Candidates()
        path = self.folder / f"{number}.rejects"
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as rejects:
            for first, rows in reader.batches():
                if limit is not None:
                    rows, limit = rows[:limit], max(0, limit - len(rows))
                self._rows(number, first, rows, part, work, candidates, rejects)
                if candidates.size >= RUN_BYTES:
                    self._flush(part, candidates)
                    candidates = Candidates()
                if limit == 0:
                    break
        self._flush(part, candidates)
        part.lines, part.notes = reader.count, work.notes
        part.unseen = frozenset(probe.key for probe in self.unseen)
        return part

    def _rows(
        self, number: int, first: int, rows: list[Any], part: Part, work: Work, candidates: Candidates, rejects: TextIO
    ) -> None:
        """Work on rows that begin at line `first` of the chunk."""
        prepare, convert, relations = self.engine.prepare, self.engine.convert, self.relations
        passed, before = 0, len(candidates.rows)
        for line, row in enumerate(rows, first):
            if type(row) is Blank:
                continue
            part.rows += 1
            try:
                if type(row) is Reject:
                    raise Rejected(row.reason, row.detail)
                dropped = prepare(row, work)
                if dropped is None and relations and not relations.is_last(number, line, row):
                    dropped = "last_of"
                if dropped is not None:
                    part.filtered[dropped] += 1
                    continue
                convert(row, work, candidates)
                passed += 1
            except Rejected as rejected:
                self._reject(line, row, rejected, part, rejects)
                if type(row) is Reject:
                    continue
            if self.unseen:
                self.unseen = [probe for probe in self.unseen if not probe(row)]
        part.rows += len(candidates.rows) - before - passed  # `steps` makes several of one

    def _flush(self, part: Part, candidates: Candidates) -> None:
        if not candidates.rows:
            return
        from draftmill.extract.runs import Run

        run = Run.of(candidates)
        self.memory -= run.nbytes
        self.runs += 1
        part.runs.append(run if self.memory >= 0 else run.spilled(self.folder / f"{os.getpid()}.{self.runs}.run"))

    def _reject(self, line: int, row: Any, rejected: Rejected, part: Part, rejects: TextIO) -> None:
        """Count a reject and write its line: where the row is, why, and an excerpt of its declared text only."""
        reason = rejected.reason
        if reason == "no_user_turn" and type(row) is not dict:
            reason = "row_is_a_list" if type(row) is list else "row_is_no_object"
        part.rejects[reason] += 1
        entry: dict[str, Any] = {"line": line, "reason": reason}
        if isinstance(rejected, UnknownRole):
            entry["label"] = excerpt(rejected.detail)
        if type(row) is not Reject:
            if self.schema.id and (row_id := self.schema.id.one(row)) is not None:
                entry["id"] = excerpt(str(row_id), 200)
            entry["excerpt"] = excerpt(first_text(self.schema, row), 120)
        rejects.write(json.dumps(entry, ensure_ascii=False) + "\n")


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
