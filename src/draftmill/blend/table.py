"""The figures of a blend: one record a dataset, the printed table, and the files that `dvc plots` draws."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from draftmill.blend.allocate import Allocation, Supply
from draftmill.blend.rows import Rows
from draftmill.console import aligned
from draftmill.files import replacing

HEADER = ["dataset", "rule", "available", "requested", "unit", "feasible", "taken", "repeat"]
HEADER += ["tokens", "trainable", "rows %", "tokens %", "held out"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One dataset in the blend. `taken` counts copies; `repeat` is taken / available; tokens are those of train."""

    rule: str
    available: int
    available_trainable: int
    unit: str
    requested: int
    feasible: int
    taken: int
    repeat: float
    tokens: int
    trainable_tokens: int
    share_rows: float
    share_tokens: float
    heldout: int


def figures(
    datasets: Mapping[str, Rows], allocation: Allocation, supply: Mapping[str, Supply], taken: Mapping[str, list[int]]
) -> dict[str, Figures]:
    """Dataset -> Figures. `taken` lists the rows of each dataset, a copy as a second entry."""
    tokens = {name: int(datasets[name].tokens[taken.get(name, [])].sum()) for name in datasets}
    all_rows, all_tokens = sum(map(len, taken.values())) or 1, sum(tokens.values()) or 1
    made = {}
    for name, rows in datasets.items():
        request, own = allocation.requests.get(name), taken.get(name, [])
        made[name] = Figures(
            rule=request.rule if request else "",
            available=supply[name].rows,
            available_trainable=supply[name].tokens,
            unit=request.unit if request else "rows",
            requested=request.requested if request else 0,
            feasible=request.feasible if request else 0,
            taken=len(own),
            repeat=round(len(own) / supply[name].rows, 4) if supply[name].rows else 0.0,
            tokens=tokens[name],
            trainable_tokens=int(rows.trainable[own].sum()),
            share_rows=round(len(own) / all_rows, 6),
            share_tokens=round(tokens[name] / all_tokens, 6),
            heldout=len(rows.inside(heldout=True)) if request else 0,
        )
    return made


def text(made: Mapping[str, Figures]) -> str:
    """The table that the stage prints."""
    lines = []
    for name, f in made.items():
        asked = (f.rule or "-", f"{f.available:,}", f"{f.requested:,}", f.unit, f"{f.feasible:,}", f"{f.taken:,}")
        given = (f"{f.repeat:.2f}", f"{f.tokens:,}", f"{f.trainable_tokens:,}")
        shares = (f"{100 * f.share_rows:.1f}", f"{100 * f.share_tokens:.1f}", f"{f.heldout:,}")
        lines.append((name, *asked, *given, *shares))
    sums = [sum(getattr(f, key) for f in made.values()) for key in ("available", "taken", "tokens", "trainable_tokens")]
    available, taken, tokens, trainable = (f"{total:,}" for total in sums)
    held = f"{sum(f.heldout for f in made.values()):,}"
    return aligned(HEADER, lines, ("all", "", available, "", "", "", taken, "", tokens, trainable, "", "", held))


def write_table(path: Path, made: Mapping[str, Figures]) -> None:
    """table.csv: one line a dataset, a column for each of the Figures."""
    rows = [{"dataset": name, **asdict(f)} for name, f in made.items()]
    _write(path, list(rows[0]) if rows else ["dataset"], rows)


def write_lengths(path: Path, datasets: Mapping[str, Rows], taken: Mapping[str, list[int]]) -> None:
    """lengths.csv: a histogram of row lengths; `tokens` is the upper end of a bin (powers of 2)."""
    rows = []
    for name in datasets:
        lengths = datasets[name].tokens[taken.get(name, [])].tolist()
        bins = Counter(1 << max(length - 1, 0).bit_length() for length in lengths)
        rows += [{"dataset": name, "tokens": end, "rows": bins[end]} for end in sorted(bins)]
    _write(path, ["dataset", "tokens", "rows"], rows)


def _write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
