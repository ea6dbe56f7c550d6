"""EAGLE-3 by training-time test: the drafter is unrolled on its own outputs, as it will be when it drafts.

Step 0 pairs the target's state of token t with token t+1, at position t, and predicts token t+2. In step i the
layer's output stands in for the state, tokens shift by i, the position grows by i; the query sees the keys of
step 0 up to t and its own keys of the steps before. Only places from which a supervised token is predicted are
queries; of all others the keys and values of step 0 are all that is ever used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.ends import Ends
from draftmill.drafters.parts import KeysValues, attend
from draftmill.drafters.vocabulary import ids_of
from draftmill.train.data import Pack
from draftmill.train.loss import SoftCrossEntropy, best_tokens
from draftmill.train.stats import Stats


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where what is predicted: queries [Q] (places t in the pack), and for step i and supervised token n the
    query that predicts it: index [S, N] into queries, exists [S, N] bool (it is in the same row).
    spans: of each row its queries and its tokens, (query start, query end, token start, token end).
    """

    queries: Tensor
    index: Tensor
    exists: Tensor
    spans: tuple[tuple[int, int, int, int], ...]


def places(pack: Pack, steps: int) -> Places:
    """The places of a pack for `steps` unrolled steps."""
    back = torch.arange(steps, device=pack.ids.device)[:, None] + 2
    wanted, exists = pack.predicted - back, pack.positions[pack.predicted] >= back
    queries = wanted[exists].unique()
    index = torch.searchsorted(queries, wanted).clamp_(max=max(len(queries) - 1, 0))
    edges = torch.tensor([edge for bounds in pack.bounds for edge in bounds], device=queries.device)
    found = torch.searchsorted(queries, edges).view(-1, 2).tolist()
    spans = tuple((*part, *bounds) for part, bounds in zip(found, pack.bounds, strict=True) if part[0] < part[1])
    return Places(queries=queries, index=index, exists=exists, spans=spans)


def unroll(model: Eagle3, embedding: Tensor, pack: Pack, at: Places, steps: int) -> list[Tensor]:
    """The layer's outputs [Q, H] (un-normed) of each step."""
    layer = model.midlayer
    ends = torch.cat([torch.full((b - a,), d - 1) for a, b, _, d in at.spans]).to(at.queries.device)
    following = pack.ids.roll(-1)  # a row's last place gets a foreign token; no query that is supervised sees it
    fused = model.fc(pack.aux)
    inputs = layer.inputs(embedding[following], fused)
    context = layer.self_attn.keys_values(inputs, pack.positions)
    hidden, x, outputs, own = fused[at.queries], inputs[at.queries], [], []
    for step in range(steps):
        positions = pack.positions[at.queries] + step
        if step:
            tokens = pack.ids[torch.minimum(at.queries + 1 + step, ends)]
            x = layer.inputs(embedding[tokens], hidden)
            own.append(layer.self_attn.keys_values(x, positions))
        stacked = (torch.stack([k for k, _ in own], 1), torch.stack([v for _, v in own], 1)) if own else None
        hidden = layer(x, hidden, positions, lambda query, own=stacked: _attend_rows(query, context, own, at))
        outputs.append(hidden)
    return outputs


def _attend_rows(query: Tensor, context: KeysValues, own: KeysValues | None, at: Places) -> Tensor:
    """Attention of queries [Q, A, D], each to its own row only."""
    mixed = []
    for first, end, start, stop in at.spans:
        keys, values = context[0][start:stop], context[1][start:stop]
        diagonal = None if own is None else (own[0][first:end], own[1][first:end])
        visible = at.queries[first:end] - start + 1
        mixed.append(attend(query[first:end, None], (keys, values), diagonal, visible)[:, 0])
    return torch.cat(mixed)


class Eagle3Objective(nn.Module):
    """The drafter with its loss. Frozen: the target's embedding, norm and head."""

    def __init__(self, drafter: Eagle3, ends: Ends, steps: int, decay: float) -> None:
        super().__init__()
        self.drafter, self.ends, self.steps, self.decay = drafter, ends, steps, decay
        self.teacher_head = ends.head[ids_of(drafter.d2t)]
        self._best: dict[tuple[str, int], Tensor] = {}

    def best(self, pack: Pack) -> Tensor:
        """The target's own best token [N] at every supervised place; computed once a row and kept, 4 bytes each."""
        for row, (start, stop) in zip(pack.rows, pack.bounds, strict=True):
            if row not in self._best:
                inside = pack.predicted[(pack.predicted >= start) & (pack.predicted < stop)]
                found = best_tokens(self.ends.final(pack.last[inside - 1]), self.ends.head)
                self._best[row] = found.int().cpu()
        return torch.cat([self._best[row] for row in pack.rows]).long().to(pack.ids.device)

    def count(self, pack: Pack, draw: int = 0) -> float:
        """Supervised positions that carry loss: those whose best token is in the draft vocabulary."""
        return float(self.drafter.t2d[self.best(pack)].sum())

    def forward(self, pack: Pack, draw: int = 0) -> tuple[Tensor, Stats]:
        """The summed loss of a pack (divide by `count` over the whole step) and its figures."""
        best = self.best(pack)
        inside = self.drafter.t2d[best]
        at = places(pack, self.steps)
        if not len(at.queries):
            return torch.stack([p.sum() * 0 for p in self.drafter.parameters()]).sum(), Stats.empty(self.steps)
        outputs = unroll(self.drafter, self.ends.embedding, pack, at, self.steps)
        students = torch.stack([self.drafter.norm(out)[at.index[i]] for i, out in enumerate(outputs)])
        decay = self.decay ** torch.arange(self.steps, device=students.device)
        weights = decay[:, None] * (at.exists & inside)
        teacher = self.ends.final(pack.last[pack.predicted - 1])
        head = self.drafter.lm_head.weight
        loss, drafted = SoftCrossEntropy.apply(students, head, teacher, self.teacher_head, weights)
        hits = (ids_of(self.drafter.d2t)[drafted] == best) & at.exists
        return loss, Stats.of_chains(hits, at.index, at.exists, len(at.queries), len(best) - int(inside.sum()))
