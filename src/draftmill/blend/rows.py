"""The light columns of every tokenized row of one dataset, and what became of each row.

The token ids stay on disk until `write`; a million rows fit in memory here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from draftmill.errors import BuildError
from draftmill.files import rank
from draftmill.pipeline import repro
from draftmill.workspace import BUILD

REASONS = ("empty_mask", "contaminated", "duplicate", "near_duplicate", "no_rule", "not_selected")


@dataclass(frozen=True, slots=True)
class Drop:
    """A dropped row, and what it matched if it is a duplicate or contaminated."""

    dataset: str
    id: str
    reason: str
    matched: str | None = None
    span: str | None = None


class Rows:
    """One dataset's rows, in the order of its files (by id). `reason` is None for a row that is still in."""

    def __init__(
        self,
        dataset: str,
        ids: list[str],
        tokens: Iterable[int],
        trainable: Iterable[int],
        groups: list[str],
        dedup: list[str | None],
    ) -> None:
        self.dataset, self.ids, self.groups, self.dedup = dataset, ids, groups, dedup
        self.tokens = np.fromiter(tokens, np.int64, len(ids))
        self.trainable = np.fromiter(trainable, np.int64, len(ids))
        self.reason: list[str | None] = [None] * len(ids)
        self.heldout = np.zeros(len(ids), dtype=bool)
        self.drops: list[Drop] = []

    def __len__(self) -> int:
        return len(self.ids)

    def drop(self, row: int, reason: str, matched: str | None = None, span: str | None = None) -> None:
        """Take a row out, for one of REASONS; the first reason counts."""
        if self.reason[row] is None:
            self.reason[row] = reason
            self.drops.append(Drop(self.dataset, self.ids[row], reason, matched, span))

    def drop_all(self, reason: str) -> None:
        """Take out every row that is still in."""
        for row in range(len(self)):
            self.drop(row, reason)

    def inside(self, heldout: bool) -> list[int]:
        """The rows that are still in, on one side of the hold-out."""
        return [i for i, reason in enumerate(self.reason) if reason is None and self.heldout[i] == heldout]

    def order(self, heldout: bool, seed: int) -> list[int]:
        """The rows that are still in, on one side of the hold-out, by their selection rank."""
        return sorted(self.inside(heldout), key=lambda row: rank(seed, self.dataset, self.ids[row]))

    def conversation(self, row: int, known: Container[str]) -> str:
        """The id of the conversation a row comes from: tokenize names the further rows of one ID#k."""
        name = self.ids[row]
        return name if name in known else name.rpartition("#")[0]


def load(dataset: str) -> Rows:
    """Read a dataset's tokens, mask and state index, checking that they are about the same rows.

    Rows with an empty mask are dropped at once. Raises BuildError for files that do not belong together.
    """
    import pyarrow.parquet as pq

    folder = BUILD / "tokenize" / dataset
    tokens = pq.read_table(folder / "tokens.parquet", columns=["id", "group", "dedup"])
    mask = pq.read_table(folder / "mask.parquet", columns=["id", "n_trainable"])
    index = pq.read_table(BUILD / "hidden_states" / dataset / "index.parquet", columns=["id", "length"])
    for other, path in ((mask, folder / "mask.parquet"), (index, _index(dataset))):
        if other.column("id") != tokens.column("id"):
            raise BuildError("its rows are not those of tokens.parquet", file=path, fix=repro("hidden_states", dataset))
    rows = Rows(
        dataset,
        tokens.column("id").to_pylist(),
        index.column("length").to_pylist(),
        mask.column("n_trainable").to_pylist(),
        tokens.column("group").to_pylist(),
        tokens.column("dedup").to_pylist(),
    )
    for row in np.flatnonzero(rows.trainable == 0).tolist():
        rows.drop(row, "empty_mask")
    return rows


def _index(dataset: str) -> Path:
    return BUILD / "hidden_states" / dataset / "index.parquet"
