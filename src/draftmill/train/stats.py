"""Figures that add up over packs and processes: loss, and how far chains of drafts agree with the target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Stats:
    """Sums. agreed[i]: drafts whose first i+1 tokens are the target's best; reached: drafts looked at.

    supervised: places with a loss mask; outside: those whose best token the draft vocabulary lacks.
    """

    agreed: list[float]
    reached: float = 0.0
    supervised: float = 0.0
    outside: float = 0.0
    loss: float = 0.0
    count: float = 0.0

    @classmethod
    def empty(cls, steps: int) -> Stats:
        """Nothing counted yet."""
        return cls(agreed=[0.0] * steps)

    @classmethod
    def of_chains(cls, hits: Tensor, index: Tensor, exists: Tensor, starts: int, outside: int) -> Stats:
        """From hits [S, N]: step i's guess of supervised token n, made from start index[i, n], is the target's best.

        Where exists [S, N] is false there was no guess. `starts` is the number of places that drafts start from.
        """
        chain = torch.ones(starts, dtype=torch.bool, device=hits.device)
        agreed = []
        for step, here in enumerate(exists):
            right = torch.zeros_like(chain)
            right[index[step][here]] = hits[step][here]
            chain &= right
            agreed.append(float(chain.sum()))
        supervised = float(hits.shape[1])
        return cls(agreed=agreed, reached=float(exists[0].sum()), supervised=supervised, outside=float(outside))

    def add(self, other: Stats) -> None:
        """Add another's sums to these."""
        self.load([a + b for a, b in zip(self.values(), other.values(), strict=True)])

    def values(self) -> list[float]:
        """All sums as one list, for a reduction over processes."""
        return [*self.agreed, self.reached, self.supervised, self.outside, self.loss, self.count]

    def load(self, values: list[float]) -> None:
        """The inverse of `values`."""
        *self.agreed, self.reached, self.supervised, self.outside, self.loss, self.count = values

    def figures(self) -> dict[str, float]:
        """Named metrics: loss, accept_length (teacher-forced, bonus included), acceptance by position, outside."""
        reached = max(self.reached, 1.0)
        before = [reached, *self.agreed[:-1]]
        by_place = {
            f"acceptance_{i}": a / max(b, 1.0) for i, (a, b) in enumerate(zip(self.agreed, before, strict=True))
        }
        return {
            "loss": self.loss / (self.count or 1.0),
            "accept_length": 1 + sum(self.agreed) / reached,
            "outside_vocabulary": self.outside / max(self.supervised, 1.0),
            **by_place,
        }
