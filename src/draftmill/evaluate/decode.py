"""The loop of speculative decoding, greedy or sampled, that changes the speed and never the text.

The target reads the last token and the drafts in one pass; drafts are taken as long as the target agrees, and one
token of the target's own comes on top (the bonus), so a step gives at least one token.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftmill.evaluate.proposers import Pick, Proposal, Proposer, best
from draftmill.evaluate.session import Session, Verified


@dataclass(slots=True, kw_only=True)
class Decoded:
    """One answer: its tokens, drafts accepted in each step, and seconds after the prompt was read.

    reached[i] and accepted[i]: how often draft i was up for a decision, and how often it was taken.
    """

    tokens: list[int]
    steps: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    aux: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def emitted(self) -> int:
        """Tokens of all steps, the bonus included; the first token of the answer is the prompt's and not among them."""
        return sum(self.steps) + len(self.steps)


class Greedy:
    """T = 0: a draft is taken if it is the target's best token."""

    pick: Pick = staticmethod(best)

    def first(self, verified: Verified) -> int:
        """The answer's first token."""
        return verified.best[-1]

    def judge(self, proposal: Proposal, verified: Verified) -> list[int]:
        """The drafts taken and the bonus."""
        taken = 0
        while taken < len(proposal.tokens) and proposal.tokens[taken] == verified.best[taken]:
            taken += 1
        return [*proposal.tokens[:taken], verified.best[taken]]


class Sampling:
    """T > 0, lossless: draft x of distribution q is taken with probability min(1, p(x) / q(x)); after a refusal the
    bonus is drawn from max(p - q, 0), normalized (Leviathan et al. 2023, arXiv 2211.17192)."""

    def __init__(self, temperature: float, seed: int) -> None:
        self.temperature = temperature
        self.generator = torch.Generator().manual_seed(seed)

    def pick(self, logits: Tensor) -> tuple[int, Tensor]:
        """Draw a draft from logits [V]."""
        distribution = (logits / self.temperature).softmax(-1)
        return self._draw(distribution), distribution

    def first(self, verified: Verified) -> int:
        """The answer's first token."""
        return self._draw(self._target(verified)[-1])

    def judge(self, proposal: Proposal, verified: Verified) -> list[int]:
        """The drafts taken and the bonus."""
        wanted = self._target(verified)
        for place, (token, drawn) in enumerate(zip(proposal.tokens, proposal.distributions, strict=True)):
            p = wanted[place]
            q = torch.zeros_like(p).index_fill_(0, torch.tensor([token]), 1.0) if drawn is None else drawn.cpu()
            if float(torch.rand((), generator=self.generator)) * float(q[token]) >= float(p[token]):
                rest = (p - q).clamp_(min=0)
                return [*proposal.tokens[:place], self._draw(rest if bool(rest.any()) else p)]
        return [*proposal.tokens, self._draw(wanted[len(proposal.tokens)])]

    def _target(self, verified: Verified) -> Tensor:
        assert verified.logits is not None, "a replay has no distribution to sample from"
        return (verified.logits.cpu() / self.temperature).softmax(-1)

    def _draw(self, weights: Tensor) -> int:
        return int(torch.multinomial(weights.cpu(), 1, generator=self.generator))


def decode(
    session: Session,
    proposer: Proposer,
    prompt: Sequence[int],
    rule: Greedy | Sampling,
    *,
    drafts: int,
    max_new_tokens: int,
    eos: Sequence[int],
    record: bool = False,
) -> Decoded:
    """Decode until an end token, or until a whole step might pass `max_new_tokens`.

    `record` keeps the target's aux states.
    """
    verified = session.begin(prompt)
    token = rule.first(verified)
    result = Decoded(tokens=[token])
    began = time.perf_counter()
    proposer.begin(prompt)
    proposer.feed(verified.aux, [*prompt[1:], token])
    result.aux += [verified.aux] * record
    while token not in eos and len(result.tokens) + 1 + drafts <= max_new_tokens:
        proposal = proposer.propose(drafts, rule.pick)
        verified = session.verify([token, *proposal.tokens])
        new = rule.judge(proposal, verified)
        ended = next((i for i, one in enumerate(new) if one in eos), len(new) - 1)
        new = new[: ended + 1]
        session.keep(len(new))
        proposer.feed(verified.aux[: len(new)], new)
        result.aux += [verified.aux[: len(new)]] * record
        result.tokens += new
        result.steps.append(len(new) - 1)
        result.proposed.append(len(proposal.tokens))
        token = new[-1]
    result.seconds = time.perf_counter() - began
    return result
