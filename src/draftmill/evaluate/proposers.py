"""Who drafts: a trained or untrained drafter, prompt lookup, or nobody (plain decoding).

A proposer is fed, for each token that the target has read for good, the target's states of it and the token that
follows; then it proposes what comes next. The drafters use the modules that training uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftmill.drafters.dflash import DFlash
from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.ends import Ends
from draftmill.drafters.parts import KeysValues, attend
from draftmill.drafters.vocabulary import ids_of

Pick = Callable[[Tensor], tuple[int, Tensor | None]]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens, and for sampling the distribution [V] that each was drawn from (None: it was certain)."""

    tokens: list[int]
    distributions: list[Tensor | None]


def best(logits: Tensor) -> tuple[int, None]:
    """The most likely token, for greedy decoding."""
    return int(logits.argmax()), None


class Proposer(Protocol):
    """The drafter's side of a decoding."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget everything; a decoding of this prompt begins."""

    def feed(self, aux: Tensor, following: Sequence[int]) -> None:
        """The states [m, L·H] of the next m tokens, and the token after each."""

    def propose(self, count: int, pick: Pick) -> Proposal:
        """Up to `count` tokens after the last one fed; `pick` chooses from logits [V]."""


class Nothing:
    """Plain decoding."""

    def begin(self, prompt: Sequence[int]) -> None: ...

    def feed(self, aux: Tensor, following: Sequence[int]) -> None: ...

    def propose(self, count: int, pick: Pick) -> Proposal:
        return Proposal([], [])


class PromptLookup:
    """Copies what followed the last earlier occurrence of the longest matching n-gram (prompt lookup decoding)."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._text: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self._text = [prompt[0]]

    def feed(self, aux: Tensor, following: Sequence[int]) -> None:
        self._text.extend(following)

    def propose(self, count: int, pick: Pick) -> Proposal:
        text = self._text
        for size in range(min(self.longest, len(text) - 1), 0, -1):
            tail = text[-size:]
            for start in range(len(text) - size - 1, -1, -1):
                if text[start : start + size] == tail:
                    copied = text[start + size : start + size + count]
                    return Proposal(copied, [None] * len(copied))
        return Proposal([], [])


def _grown(kept: KeysValues | None, new: KeysValues) -> KeysValues:
    return new if kept is None else (torch.cat((kept[0], new[0])), torch.cat((kept[1], new[1])))


class Eagle3Proposer:
    """A greedy or sampled chain of an EAGLE-3 drafter. `embedding` [V, H] is the target's."""

    def __init__(self, model: Eagle3, embedding: Tensor) -> None:
        self.model, self.embedding = model.eval(), embedding
        self.ids = ids_of(model.d2t)
        self._context: KeysValues | None = None
        self._last: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
        self._count = 0

    def begin(self, prompt: Sequence[int]) -> None:
        self._context, self._count = None, 0

    @torch.inference_mode()
    def feed(self, aux: Tensor, following: Sequence[int]) -> None:
        layer = self.model.midlayer
        fused = self.model.fc(aux)
        tokens = torch.tensor(following, device=fused.device)
        positions = torch.arange(self._count, self._count + len(fused), device=fused.device)
        inputs = layer.inputs(self.embedding[tokens], fused)
        self._context = _grown(self._context, layer.self_attn.keys_values(inputs, positions))
        self._last = (inputs[-1:], fused[-1:])
        self._count += len(fused)

    @torch.inference_mode()
    def propose(self, count: int, pick: Pick) -> Proposal:
        tokens: list[int] = []
        distributions: list[Tensor | None] = []
        for logits in self.chain(count, tokens):
            token, drawn = pick(logits)
            tokens.append(int(self.ids[token]))
            distributions.append(None if drawn is None else self._spread(drawn))
        return Proposal(tokens, distributions)

    def chain(self, count: int, tokens: list[int]) -> Iterator[Tensor]:
        """Logits [Vd] of one step after the other; the caller appends the token it takes to `tokens`."""
        layer, context = self.model.midlayer, self._context
        assert context is not None, "feed comes first"
        (x, hidden), own = self._last, None
        visible = torch.tensor([self._count], device=hidden.device)
        for step in range(count):
            position = visible - 1 + step
            if step:
                x = layer.inputs(self.embedding[tokens[-1:]], hidden)
                new = layer.self_attn.keys_values(x, position)
                own = _grown(own, new)
            stacked = None if own is None else (own[0][None], own[1][None])
            hidden = layer(x, hidden, position, lambda q, own=stacked: attend(q[:, None], context, own, visible)[:, 0])
            yield self.model.logits(hidden)[0].float()

    def _spread(self, distribution: Tensor) -> Tensor:
        """A distribution over the draft vocabulary as one over the target's."""
        whole = distribution.new_zeros(self.model.arch.vocab_size)
        whole[self.ids] = distribution
        return whole


class DFlashProposer:
    """A block of a DFlash drafter; all its places are filled at once, each for itself."""

    def __init__(self, model: DFlash, ends: Ends) -> None:
        self.model, self.ends = model.eval(), ends
        self._context: list[KeysValues | None] = []
        self._count, self._anchor = 0, 0

    def begin(self, prompt: Sequence[int]) -> None:
        self._context, self._count = [None] * self.model.arch.num_layers, 0

    @torch.inference_mode()
    def feed(self, aux: Tensor, following: Sequence[int]) -> None:
        positions = torch.arange(self._count, self._count + len(aux), device=aux.device)
        new = self.model.context(aux, positions)
        self._context = [_grown(kept, one) for kept, one in zip(self._context, new, strict=True)]
        self._count, self._anchor = self._count + len(aux), following[-1]

    @torch.inference_mode()
    def propose(self, count: int, pick: Pick) -> Proposal:
        tokens, distributions = [], []
        for logits in self.logits()[:count]:
            token, drawn = pick(logits)
            tokens.append(token)
            distributions.append(drawn)
        return Proposal(tokens, distributions)

    def logits(self) -> Tensor:
        """Logits [B - 1, V] of the places after the anchor."""
        device = self.ends.embedding.device
        ids = self.model.block(torch.tensor([self._anchor], device=device))
        visible = torch.tensor([self._count], device=device)
        positions = visible[:, None] + torch.arange(ids.shape[1], device=device)

        def see(layer: int, query: Tensor, own: KeysValues) -> Tensor:
            context = self._context[layer]
            assert context is not None, "feed comes first"
            return attend(query, context, own, visible)

        outputs = self.model(self.ends.embedding[ids], positions, see)[0, 1:]
        return (outputs @ self.ends.head.T).float()


def proposer_of(model: Eagle3 | DFlash, ends: Ends) -> Eagle3Proposer | DFlashProposer:
    """The proposer for a drafter, on the device of the ends."""
    placed = model.to(ends.embedding.device)
    if isinstance(placed, Eagle3):
        return Eagle3Proposer(placed, ends.embedding)
    return DFlashProposer(placed, ends)
