"""Compute a sample of rows a second time, each alone, and compare with what is stored.

It finds what a checksum cannot: states of other weights, of wrong layers, or mixed up between rows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import torch
from torch import Tensor

from draftmill.errors import BuildError
from draftmill.hidden_states.engines import Engine
from draftmill.hidden_states.store import Reader

# Relative L2 distance of one row's states at one layer, by the model's dtype. Rounding to bfloat16 gives 0.002, and a
# bfloat16 model sums in another order from batch to batch: 0.01. Another layer or row gives more than 0.3.
TOLERANCE = {torch.float32: 0.01}
TOLERANCE_LOW_PRECISION = 0.05


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far a row is off at one layer, |stored - computed| / |computed|, and how far rounding can bring it."""

    row: str
    layer: str
    distance: float
    tolerance: float

    @property
    def within(self) -> bool:
        """Whether it is rounding; what is not a number is not."""
        return self.distance <= self.tolerance


def compare(
    row: str, stored: tuple[Tensor, Tensor], found: dict[int, Tensor], layers: Sequence[int], final: int | None
) -> list[Deviation]:
    """Deviations of one row: stored aux [T, L*H] and last [T, H] against computed {layer: [1, T, H]}.

    `final` is the index of `last`, or None if that was not computed.
    """
    aux, last = stored
    size = last.shape[1]
    pairs = [(str(layer), aux[:, i * size : (i + 1) * size], found[layer]) for i, layer in enumerate(layers)]
    pairs += [("last", last, found[final])] if final is not None else []
    return [_deviation(row, name, kept, new[0]) for name, kept, new in pairs]


def _deviation(row: str, layer: str, stored: Tensor, computed: Tensor) -> Deviation:
    reference = computed.detach().float().cpu()
    norm = torch.linalg.vector_norm(reference).item() or 1.0
    distance = torch.linalg.vector_norm(stored.float() - reference).item() / norm
    return Deviation(row, layer, distance, TOLERANCE.get(computed.dtype, TOLERANCE_LOW_PRECISION))


def check(deviations: Sequence[Deviation], store: Path) -> float:
    """The largest distance. Raises BuildError naming row and layer of one that is beyond rounding."""
    for off in deviations:
        if not off.within:
            raise BuildError(
                f"row {off.row}, computed again, differs at layer {off.layer} from what is stored",
                file=store,
                found=f"relative distance {off.distance:.3g}; rounding gives at most {off.tolerance}",
                fix=f"were the target's weights changed without a new revision? Then  rm -r {store}  and build again",
            )
    return max((off.distance for off in deviations), default=0.0)


def sampled(
    folder: Path, engine: Engine, count: int, layers: Sequence[int] | None = None, final: bool = True
) -> list[Deviation]:
    """Compute `count` random rows of an output folder again, and compare.

    `layers` limits what is compared to these (default: all); `final` says whether the engine gives the last state.
    """
    reader = Reader(folder, layers)
    index = pq.read_table(folder / "index.parquet").to_pylist()
    last = reader.manifest.num_layers
    made: list[Deviation] = []
    with engine.open([*reader.layers, *([last] if final and last not in reader.layers else [])]) as batch:
        for row in random.sample(index, min(count, len(index))):
            place = (row["shard"], row["offset"], row["length"])
            found = batch([reader.ids(*place).numpy()])
            made += compare(row["id"], reader.read(*place), found, reader.layers, last if final else None)
    return made
