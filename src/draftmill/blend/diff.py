"""What a change moved: two blends compared row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from draftmill.console import aligned

Rows = dict[tuple[str, str], tuple[int, int]]
"""(dataset, id) -> (copies, tokens of one copy)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of a blend and the settings it was made with."""

    train: Rows
    heldout: Rows
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """One dataset: rows of train (copies counted) and their tokens before and now, and distinct rows in and out."""

    dataset: str
    before: int
    now: int
    entered: int
    left: int
    tokens_before: int
    tokens_now: int


def read(file: BinaryIO | str) -> Rows:
    """The rows of a train.parquet or heldout.parquet."""
    import pyarrow.parquet as pq

    columns = pq.read_table(file, columns=["dataset", "id", "length"])
    made: Rows = {}
    for dataset, row, length in zip(*(column.to_pylist() for column in columns.columns), strict=True):
        made[dataset, row] = (made.get((dataset, row), (0, 0))[0] + 1, length)
    return made


def moved(before: Rows, now: Rows) -> list[Moved]:
    """One Moved for each dataset of either blend, by name."""

    def count(rows: Rows, tokens: bool) -> Counter[str]:
        total: Counter[str] = Counter()
        for (dataset, _), (copies, length) in rows.items():
            total[dataset] += copies * (length if tokens else 1)
        return total

    rows_before, rows_now = count(before, False), count(now, False)
    tokens_before, tokens_now = count(before, True), count(now, True)
    entered = Counter(dataset for dataset, _ in now.keys() - before.keys())
    left = Counter(dataset for dataset, _ in before.keys() - now.keys())
    return [
        Moved(
            dataset=name,
            before=rows_before[name],
            now=rows_now[name],
            entered=entered[name],
            left=left[name],
            tokens_before=tokens_before[name],
            tokens_now=tokens_now[name],
        )
        for name in sorted(rows_before.keys() | rows_now.keys())
    ]


def report(before: Snapshot, now: Snapshot) -> Iterator[str]:
    """The lines that `draftmill blend-diff` prints."""
    for key, old, new in _settings(before.settings, now.settings):
        yield f"{key}: {old} -> {new}"
    header = ("train", "rows before", "now", "in", "out", "share % before", "now", "tokens before", "now")
    found = moved(before.train, now.train)
    whole = {"before": sum(m.before for m in found) or 1, "now": sum(m.now for m in found) or 1}
    lines = [_line(m, whole) for m in found]
    total = Moved(
        dataset="all",
        before=sum(m.before for m in found),
        now=sum(m.now for m in found),
        entered=sum(m.entered for m in found),
        left=sum(m.left for m in found),
        tokens_before=sum(m.tokens_before for m in found),
        tokens_now=sum(m.tokens_now for m in found),
    )
    yield aligned(header, lines, _line(total, whole))
    held, was = now.heldout.keys(), before.heldout.keys()
    yield f"held out: {len(was)} rows before, {len(held)} now, {len(held - was)} in, {len(was - held)} out"
    yield (
        f"across the hold-out: {len(was & now.train.keys())} from held out to train, "
        f"{len(before.train.keys() & held)} from train to held out"
    )


def _line(m: Moved, whole: Mapping[str, int]) -> tuple[str, ...]:
    shares = (f"{100 * m.before / whole['before']:.1f}", f"{100 * m.now / whole['now']:.1f}")
    counts = (f"{m.before:,}", f"{m.now:,}", f"{m.entered:,}", f"{m.left:,}")
    return (m.dataset, *counts, *shares, f"{m.tokens_before:,}", f"{m.tokens_now:,}")


def _settings(before: Any, now: Any, key: str = "blend") -> Iterator[tuple[str, Any, Any]]:
    """Every setting that differs, by dotted key; None where there is none."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*before, *now]):
            yield from _settings(before.get(name), now.get(name), f"{key}.{name}")
    elif before != now:
        yield key, before, now
