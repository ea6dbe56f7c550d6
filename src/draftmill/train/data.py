"""From the blend's rows to packs: whole rows, one after the other, with their hidden states.

The order is a function of seed and epoch alone, so that a resumed run and any number of processes see the
same packs in the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftmill.errors import BuildError, DataError

Ints = npt.NDArray[np.int64]
Read = Callable[["Rows", Sequence[int]], list[tuple[Tensor, Tensor]]]
AHEAD = 2  # packs read before they are needed


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of train.parquet or heldout.parquet, in columns; row r has the tokens ids[starts[r]:starts[r+1]].

    supervised [all tokens] bool is the loss mask; name tells the two files apart.
    """

    name: str
    ids: npt.NDArray[np.int32]
    starts: Ints
    supervised: npt.NDArray[np.bool_]
    dataset: list[str]
    shard: list[str | None]
    offset: list[int | None]

    def __len__(self) -> int:
        return len(self.dataset)

    def tokens(self, row: int) -> Tensor:
        """The token ids [T] int64 of a row."""
        return torch.from_numpy(self.ids[self.starts[row] : self.starts[row + 1]].astype(np.int64))

    def lengths(self) -> Ints:
        """Tokens of each row."""
        return np.diff(self.starts)

    def counts(self, vocab_size: int) -> tuple[Ints, Ints]:
        """How often each token id is supervised, and is seen at all: [V] each."""
        seen = np.bincount(self.ids, minlength=vocab_size)
        return np.bincount(self.ids[self.supervised], minlength=vocab_size), seen


def read_rows(path: Path, limit: int | None = None) -> Rows:
    """The rows of one of the blend's files. Raises DataError for a loss mask outside its row."""
    import pyarrow.parquet as pq

    if not path.exists():
        raise BuildError("the blend is not there", file=path, fix="dvc repro blend")
    columns = ["id", "dataset", "shard", "offset", "input_ids", "loss_mask"]
    table = pq.read_table(path, columns=columns).combine_chunks().slice(0, limit)
    tokens = table["input_ids"].combine_chunks()
    starts = np.concatenate(([0], np.cumsum(tokens.value_lengths().to_numpy(zero_copy_only=False)))).astype(np.int64)
    supervised = np.zeros(starts[-1], dtype=np.bool_)
    for row, runs in enumerate(table["loss_mask"].to_pylist()):
        for run in runs:
            start = starts[row] + run["start"]
            if run["start"] < 0 or start + run["length"] > starts[row + 1]:
                raise DataError(f"the loss mask of row {table['id'][row]} is outside the row", file=path)
            supervised[start : start + run["length"]] = True
    return Rows(
        name=path.stem,
        ids=tokens.flatten().to_numpy(zero_copy_only=False).astype(np.int32, copy=False),
        starts=starts,
        supervised=supervised,
        dataset=table["dataset"].to_pylist(),
        shard=table["shard"].to_pylist(),
        offset=table["offset"].to_pylist(),
    )


def plan_packs(lengths: Ints, order: Sequence[int], limit: int) -> list[list[int]]:
    """Rows in the given order, packed up to `limit` tokens; a longer row is a pack of its own."""
    packs: list[list[int]] = []
    filled = limit
    for row in order:
        if filled + lengths[row] > limit:
            packs.append([])
            filled = 0
        packs[-1].append(int(row))
        filled += int(lengths[row])
    return packs


def shuffled(rows: int, epochs: float, seed: int) -> Ints:
    """Row numbers for `epochs` passes, each in its own order; a fraction takes that part of one more pass."""
    total = max(round(rows * epochs), 1)
    passes = (np.random.default_rng((seed, epoch)).permutation(rows) for epoch in range(-(-total // rows)))
    return np.concatenate(list(passes))[:total]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """Rows one after the other: ids [T] int64, aux [T, L·H], last [T, H] (pre-norm), positions [T] within the row.

    bounds: start and end of each row in T; rows: which they are; predicted [N]: the supervised places p in T,
    ascending (only those with at least two tokens of their row before them: nothing can be drafted earlier).
    """

    ids: Tensor
    aux: Tensor
    last: Tensor
    positions: Tensor
    bounds: tuple[tuple[int, int], ...]
    rows: tuple[tuple[str, int], ...]
    predicted: Tensor

    def to(self, device: torch.device) -> Pack:
        """The same on a device."""
        moved = {name: getattr(self, name).to(device) for name in ("ids", "aux", "last", "positions", "predicted")}
        return Pack(bounds=self.bounds, rows=self.rows, **moved)


def load_pack(rows: Rows, members: Sequence[int], read: Read) -> Pack:
    """Read the states of `members` and lay the rows out."""
    lengths = [int(rows.starts[row + 1] - rows.starts[row]) for row in members]
    ends = np.cumsum(lengths).tolist()
    states = read(rows, members)
    positions = torch.cat([torch.arange(length) for length in lengths])
    mask = np.concatenate([rows.supervised[rows.starts[row] : rows.starts[row + 1]] for row in members])
    return Pack(
        ids=torch.cat([rows.tokens(row) for row in members]),
        aux=torch.cat([aux for aux, _ in states]).float(),
        last=torch.cat([last for _, last in states]).float(),
        positions=positions,
        bounds=tuple((end - length, end) for end, length in zip(ends, lengths, strict=True)),
        rows=tuple((rows.name, row) for row in members),
        predicted=((positions >= 2) & torch.from_numpy(mask)).nonzero().squeeze(-1),
    )


class Stored:
    """Reads the kept states of rows, at the drafter's layers, from all datasets' folders.

    `weights` names the target that they must be of (target.weights_digest).
    """

    def __init__(self, folder: Path, layers: Sequence[int], weights: str) -> None:
        self.folder, self.layers, self.weights = folder, tuple(layers), weights
        self._readers: dict[str, Any] = {}

    def __call__(self, rows: Rows, members: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """aux [T, L·H] and last [T, H] of each row. Raises DataError for states that are not of these tokens."""
        return [self._one(rows, row) for row in members]

    def _one(self, rows: Rows, row: int) -> tuple[Tensor, Tensor]:
        dataset, shard, offset = rows.dataset[row], rows.shard[row], rows.offset[row]
        folder, tokens = self.folder / dataset, rows.tokens(row)
        if shard is None or offset is None:
            raise DataError(f"row {row} of the blend has no stored states", file=folder, fix="dvc repro blend")
        if dataset not in self._readers:
            from draftmill.hidden_states.store import Reader

            self._readers[dataset] = Reader(folder, layers=self.layers, weights=self.weights)
        reader = self._readers[dataset]
        if not torch.equal(reader.ids(shard, offset, len(tokens)).long(), tokens):
            message = f"shard '{shard}' at token {offset} holds the states of other tokens"
            raise DataError(message, file=folder, fix="dvc repro blend")
        aux, last = reader.read(shard, offset, len(tokens))
        return aux, last


@dataclass(frozen=True, kw_only=True, slots=True)
class Packs:
    """Rows and how they are packed: `plan` has the row numbers of each pack, `read` gives their states."""

    rows: Rows
    plan: list[list[int]]
    read: Read

    def load(self, plan: Sequence[Sequence[int]]) -> Iterator[Pack]:
        """The packs of a plan in order, read by a thread a little ahead of their use."""
        members = iter(plan)
        with ThreadPoolExecutor(1) as pool:
            pending = [pool.submit(load_pack, self.rows, pack, self.read) for pack in islice(members, AHEAD)]
            while pending:
                pack = pending.pop(0).result()
                pending += [pool.submit(load_pack, self.rows, later, self.read) for later in islice(members, 1)]
                yield pack
