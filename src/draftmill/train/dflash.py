"""DFlash training: blocks at random anchors among the supervised tokens, each filled in at once.

A block sees the target's states strictly before its anchor, in its own row, and itself. Place k carries the
cross-entropy of the token k places after the anchor, if that is supervised, with weight exp(-(k - 1) / gamma).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from draftmill.drafters.dflash import DFlash
from draftmill.drafters.ends import Ends
from draftmill.drafters.parts import KeysValues, attend
from draftmill.train.data import Pack
from draftmill.train.loss import HardCrossEntropy
from draftmill.train.stats import Stats

ANCHORS_PER = 1024  # tokens of a pack, for the number of anchors


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """M blocks. anchors [M]: their places in the pack, ascending; labels [M, B - 1]: token ids to fill in;
    weights [M, B - 1]: of the loss, zero where nothing is supervised. spans: of each row with blocks its blocks
    and its tokens, (block start, block end, token start, token end).
    """

    anchors: Tensor
    labels: Tensor
    weights: Tensor
    spans: tuple[tuple[int, int, int, int], ...]


def draw_anchors(pack: Pack, wanted: int, seed: tuple[int, ...]) -> Tensor:
    """At most `wanted` places, ascending, from the supervised ones that another supervised token follows."""
    supervised = torch.zeros(len(pack.ids) + 1, dtype=torch.bool, device=pack.ids.device)
    supervised[pack.predicted] = True
    same_row = torch.cat((pack.positions[1:] > 0, pack.positions.new_zeros(1, dtype=torch.bool)))
    candidates = (supervised[:-1] & supervised[1:] & same_row).nonzero().squeeze(-1)
    chosen = np.random.default_rng(seed).permutation(len(candidates))[:wanted]
    return candidates[torch.from_numpy(np.sort(chosen)).to(candidates.device)]


def blocks(pack: Pack, anchors: Tensor, size: int, gamma: float) -> Blocks:
    """The blocks of `size` places at these anchors."""
    ahead = torch.arange(1, size, device=anchors.device)
    edges = torch.tensor([edge for bounds in pack.bounds for edge in bounds], device=anchors.device)
    ends = edges.view(-1, 2)[torch.searchsorted(edges.view(-1, 2)[:, 1].contiguous(), anchors, right=True), 1]
    places = anchors[:, None] + ahead
    inside = places < ends[:, None]
    places = torch.where(inside, places, anchors[:, None])
    supervised = torch.zeros(len(pack.ids), dtype=torch.bool, device=anchors.device)
    supervised[pack.predicted] = True
    weights = torch.exp(-(ahead - 1) / gamma) * (inside & supervised[places])
    found = torch.searchsorted(anchors, edges).view(-1, 2).tolist()
    spans = tuple((*part, *bounds) for part, bounds in zip(found, pack.bounds, strict=True) if part[0] < part[1])
    return Blocks(anchors=anchors, labels=pack.ids[places], weights=weights, spans=spans)


def fill(model: DFlash, embedding: Tensor, pack: Pack, made: Blocks) -> Tensor:
    """The normed outputs [M, B, H] of the blocks of a pack."""
    context = model.context(pack.aux, pack.positions)
    ids = model.block(pack.ids[made.anchors])
    positions = pack.positions[made.anchors][:, None] + torch.arange(ids.shape[1], device=ids.device)

    def see(layer: int, query: Tensor, own: KeysValues) -> Tensor:
        keys, values = context[layer]
        mixed = []
        for first, end, start, stop in made.spans:
            part = (own[0][first:end], own[1][first:end])
            visible = made.anchors[first:end] - start
            mixed.append(attend(query[first:end], (keys[start:stop], values[start:stop]), part, visible))
        return torch.cat(mixed)

    outputs: Tensor = model(embedding[ids], positions, see)
    return outputs


class DFlashObjective(nn.Module):
    """The drafter with its loss. Frozen: the target's embedding and head."""

    def __init__(self, drafter: DFlash, ends: Ends, anchors: int, gamma: float, seed: int) -> None:
        super().__init__()
        self.drafter, self.ends, self.anchors, self.gamma, self.seed = drafter, ends, anchors, gamma, seed
        self.steps = drafter.arch.block_size - 1

    def blocks(self, pack: Pack, draw: int) -> Blocks:
        """The blocks of a pack in draw number `draw`: the same again whoever asks."""
        wanted = math.ceil(self.anchors * len(pack.ids) / ANCHORS_PER)
        anchors = draw_anchors(pack, wanted, (self.seed, draw))
        return blocks(pack, anchors, self.drafter.arch.block_size, self.gamma)

    def count(self, pack: Pack, draw: int) -> float:
        """The sum of the weights of a draw."""
        return float(self.blocks(pack, draw).weights.sum())

    def forward(self, pack: Pack, draw: int) -> tuple[Tensor, Stats]:
        """The summed loss of a pack (divide by `count` over the whole step) and its figures."""
        made = self.blocks(pack, draw)
        if not len(made.anchors):
            return torch.stack([p.sum() * 0 for p in self.drafter.parameters()]).sum(), Stats.empty(self.steps)
        outputs = fill(self.drafter, self.ends.embedding, pack, made)[:, 1:]
        loss, best = HardCrossEntropy.apply(
            outputs.flatten(0, 1), self.ends.head, made.labels.flatten(), made.weights.flatten()
        )
        supervised = made.weights > 0
        hits = (best.view_as(made.labels) == made.labels) & supervised
        chains = hits.cumprod(-1).sum(0).tolist()
        stats = Stats(
            agreed=[float(one) for one in chains], reached=float(len(hits)), supervised=float(supervised.sum())
        )
        return loss, stats
