"""The stage: a source and its schema to rows.parquet, metrics.json and rejects.jsonl.

    chunks --(Mapper, run.workers processes)--> parts --(Index)--> rows that stay --> build/extract/<dataset>/

The order of files, the size of chunks and the number of workers change no byte of the output.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftmill.config import params
from draftmill.console import progress, say
from draftmill.errors import DataError, DraftmillError
from draftmill.extract.coverage import columns, of_pattern, probes
from draftmill.extract.declaration import Declaration, load
from draftmill.extract.mapping import Mapper, Part
from draftmill.extract.readers import Chunk, chunks
from draftmill.extract.relate import relate
from draftmill.extract.schema import Schema
from draftmill.extract.sharing import shared
from draftmill.files import record_run, replacing, write_metrics
from draftmill.lineage import of_source
from draftmill.paths import PatternTimeout
from draftmill.pipeline import address
from draftmill.workspace import keep, output, scratch

if TYPE_CHECKING:
    from draftmill.extract.reducing import Reduced

MEMORY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a whole source came to. Rows end in exactly one of kept, filtered, rejected, duplicate."""

    schema: Schema
    parts: Sequence[Part]
    reduced: Reduced
    folder: Path
    """Where the rejects of the parts are, and duplicates.jsonl."""

    @property
    def rows(self) -> int:
        """Rows read, unreadable ones included; with `keep: {steps: n}`, the cuts instead of the row."""
        return sum(part.rows for part in self.parts)

    @property
    def kept(self) -> int:
        """Rows that stay."""
        return self.reduced.kept

    @property
    def filtered(self) -> Counter[str]:
        """Rows dropped on purpose, by the key that did: where, join, last_of."""
        return sum((part.filtered for part in self.parts), Counter())

    @property
    def rejects(self) -> Counter[str]:
        """Rows that do not fit, by reason."""
        return sum((part.rejects for part in self.parts), Counter())

    @property
    def notes(self) -> Counter[str]:
        """Counters that drop no row."""
        return sum((part.notes for part in self.parts), Counter())

    @property
    def duplicates(self) -> int:
        """Rows with the duplicate key of a row that stays."""
        return self.reduced.duplicates

    @property
    def yield_(self) -> float:
        """1 - rejects / (rows - filtered)."""
        wanted = self.rows - self.filtered.total()
        return 1 - self.rejects.total() / wanted if wanted else 1.0

    @property
    def max_same(self) -> float:
        """The share of the most frequent duplicate key in the rows that fit."""
        fit = self.kept + self.duplicates
        return self.reduced.most_frequent / fit if fit else 0.0

    def unseen(self) -> list[str]:
        """Keys of declared paths that matched nothing in any part, the most telling first."""
        if not self.parts:
            return []
        everywhere = frozenset.intersection(*(part.unseen for part in self.parts))
        return [probe.key for probe in probes(self.schema) if probe.key in everywhere]


def run(dataset: str) -> None:
    """Build build/extract/<dataset>/ from params.yaml. Raises DataError that says what to change."""
    started = time.monotonic()
    declaration = load(dataset)
    with failing(declaration), collected(declaration, workers=workers()) as outcome:
        from draftmill.extract.failures import check
        from draftmill.extract.table import write

        listed = keep("extract", f"{dataset}.rejects.jsonl")
        try:
            check(outcome, declaration)
        except DraftmillError as error:
            write_rejects(outcome, listed)
            error.fix = "\n  ".join(filter(None, (error.fix, f"the dropped rows are listed in {listed}")))
            raise
        listed.unlink(missing_ok=True)
        folder = output("extract", dataset)
        repeated = write(outcome.reduced, folder / "rows.parquet")
        write_rejects(outcome, folder / "rejects.jsonl")
        composed = params()
        made_from = of_source(dataset, composed["datasets"][dataset], composed.get("source_mode") or "real")
        _write_metrics(outcome, repeated, folder, made_from)
    record_run("extract", dataset, seconds=round(time.monotonic() - started, 3), rows=outcome.rows)
    say(f"extract {dataset}: {summary(outcome)}")


def workers() -> int:
    """`run.workers`: how many processes share the work; 0 means one for each core that this one may use."""
    settings: Mapping[str, Any] = params().get("run") or {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(settings.get("workers") or 0) or cores or 1


@contextmanager
def collected(declaration: Declaration, workers: int = 1, memory: int = MEMORY_BYTES) -> Iterator[Outcome]:
    """The work on a source, as many rows as the declaration allows; scratch files live until the context is left.

    `memory`: bytes of rows that are kept out of files; only speed depends on it, and on `workers`.
    """
    schema, source, limit = declaration.schema, declaration.source, declaration.limit
    joins = schema.join is not None
    with scratch("extract", declaration.name) as folder, _located(declaration):
        pieces = chunks(source, None if source.rows or joins else columns(schema))
        if joins or schema.last_of:
            relate(schema, pieces, folder / "relations.sqlite")
        several = workers > 1 and len(pieces) > 1 and limit is None
        # Before the progress, which is a thread: processes are cheaper to start while there is one.
        found = shared(schema, folder, pieces, workers) if several else _alone(schema, folder, pieces, limit, memory)
        with progress(f"extract {declaration.name}") as shown:
            parts = []
            for part in found:
                parts.append(part)
                shown.advance(part.rows)
        from draftmill.extract.reducing import reduce

        yield Outcome(schema, parts, reduce([run for part in parts for run in part.runs], folder), folder)


@contextmanager
def _located(declaration: Declaration) -> Iterator[None]:
    """Adds to an error about a file or a pattern which declaration it comes from."""
    try:
        yield
    except PatternTimeout as error:
        key = ".".join(filter(None, ("schema", of_pattern(declaration.schema, str(error)))))
        raise DataError(str(error), file=declaration.file, key=key, fix="write a simpler pattern") from None
    except DraftmillError as error:
        if error.file is None:
            error.file = declaration.file
        elif isinstance(error, DataError) and error.file != declaration.file:
            error.message, error.file, error.key = f"{error.file}: {error.message}", declaration.file, "source"
        raise


def _alone(schema: Schema, folder: Path, pieces: Sequence[Chunk], limit: int | None, memory: int) -> Iterator[Part]:
    """The parts in the order of the chunks, of the first `limit` rows."""
    mapper = Mapper.of(schema, folder, memory)
    for number, chunk in enumerate(pieces):
        part = mapper(number, chunk, limit)
        yield part
        limit = None if limit is None else limit - part.lines
        if limit is not None and limit <= 0:
            return


# -- outputs --------------------------------------------------------------------------------------


def write_rejects(outcome: Outcome, path: Path) -> None:
    """rejects.jsonl: rejected rows by file and line, then duplicates by their key."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
        name, before = "", 0
        for number, part in enumerate(outcome.parts):
            before = before if part.chunk.file == name else 0
            name = part.chunk.file
            with open(outcome.folder / f"{number}.rejects", encoding="utf-8") as lines:
                for line in lines:
                    entry = json.loads(line)
                    placed = {"file": name, part.chunk.unit: before + entry.pop("line"), **entry}
                    file.write(json.dumps(placed, ensure_ascii=False) + "\n")
            before += part.lines
        with open(outcome.folder / "duplicates.jsonl", encoding="utf-8") as lines:
            shutil.copyfileobj(lines, file)


def _write_metrics(outcome: Outcome, repeated_ids: int, folder: Path, lineage: Mapping[str, Any]) -> None:
    dropped = outcome.filtered + outcome.rejects + Counter(duplicate=outcome.duplicates)
    notes = outcome.notes + Counter(repeated_ids=repeated_ids)
    write_metrics(
        folder,
        outcome.rows,
        outcome.kept,
        dropped,
        **{
            "filtered": outcome.filtered.total(),
            "rejected": outcome.rejects.total(),
            "yield": round(outcome.yield_, 6),
            "max_same": round(outcome.max_same, 6),
            "notes": dict(sorted(notes.items())),
            "lineage": lineage,
        },
    )


def summary(outcome: Outcome) -> str:
    """`12 of 24 rows kept; filtered: where 3; …` on one line."""
    parts = [f"{outcome.kept} of {outcome.rows} rows kept"]
    for title, counts in (("filtered", outcome.filtered), ("rejected", outcome.rejects), ("noted", outcome.notes)):
        if listed := ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count):
            parts.append(f"{title}: {listed}")
    return "; ".join(parts + ([f"duplicates: {outcome.duplicates}"] if outcome.duplicates else []))


@contextmanager
def failing(declaration: Declaration) -> Iterator[None]:
    """Adds to an error how the earlier output comes back."""
    try:
        yield
    except DraftmillError as error:
        back = f"the earlier output comes back with: dvc checkout {address('extract', declaration.name)}"
        error.fix = f"{error.fix}\n  {back}" if error.fix else back
        raise
