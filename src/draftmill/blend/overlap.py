"""How much the datasets share, from extract alone: known before a single answer is paid for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftmill.blend.near import Index, Signature, stream
from draftmill.workspace import BUILD


@dataclass(frozen=True, slots=True)
class Pair:
    """Rows of `second` that `first` has too: `exact` by the dedup key, `near` alike by signature but not equal."""

    first: str
    second: str
    exact: int
    near: int


def overlap(datasets: Sequence[str], threshold: float = 0.85) -> list[Pair]:
    """Every pair of datasets, in name order, that has a row in common; datasets not extracted yet are left out."""
    index = Index(threshold)
    keys: dict[str, set[str]] = {}
    owners: list[str] = []
    exact: Counter[tuple[str, str]] = Counter()
    near: Counter[tuple[str, str]] = Counter()
    for name in sorted(set(datasets)):
        if not (BUILD / "extract" / name / "rows.parquet").exists():
            continue
        rows = list(_rows(name))
        for dedup, found in rows:
            known = keys.get(dedup, set()) if dedup else set()
            exact.update((other, name) for other in known)
            alike = {owners[key] for _, key in index.like(found)} if found is not None else set()
            near.update((other, name) for other in alike - known)
        for dedup, found in rows:
            if dedup:
                keys.setdefault(dedup, set()).add(name)
            if found is not None:
                index.add(found)
                owners.append(name)
    return [Pair(*pair, exact[pair], near[pair]) for pair in sorted(exact.keys() | near.keys())]


def _rows(dataset: str) -> Iterator[tuple[str | None, Signature | None]]:
    import pyarrow.parquet as pq

    dedup = pq.read_table(BUILD / "extract" / dataset / "rows.parquet", columns=["dedup"]).column("dedup").to_pylist()
    yield from zip(dedup, (found for _, found in stream(dataset)), strict=True)
