"""One prompt decoded every way: drafted live, checked against the target alone, the baselines replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftmill.evaluate import Evaluate
from draftmill.evaluate.decode import Decoded, Greedy, Sampling, decode
from draftmill.evaluate.figures import difference
from draftmill.evaluate.prompts import Prompt
from draftmill.evaluate.proposers import Nothing, Proposer
from draftmill.evaluate.session import Live, Recording, Replay


@dataclass(slots=True, kw_only=True)
class Outcome:
    """All decodings of one prompt; `plain` only of some.

    place: where the drafted text leaves the target's own greedy text, and how far apart the two tokens' logits are
    there; None where it never does.
    """

    prompt: Prompt
    drafted: Decoded
    untrained: Decoded
    lookup: Decoded
    plain: Decoded | None = None
    place: int | None = None
    margin: float = 0.0


@dataclass(kw_only=True)
class Bench:
    """What decodes: the live target, and the three proposers."""

    settings: Evaluate
    live: Live
    eos: tuple[int, ...]
    drafts: int
    drafter: Proposer
    untrained: Proposer
    lookup: Proposer
    seed: int

    def run(self, prompt: Prompt, plainly: bool) -> Outcome:
        """Decode one prompt; `plainly`: also without the drafter, token by token."""
        limit = self.settings.max_new_tokens
        drafted = self._live(self.drafter, prompt, self._rule(prompt), self.drafts)
        recording = Recording(prompt.ids, drafted.tokens, torch.cat(drafted.aux))
        drafted.aux.clear()
        ended = drafted.tokens[-1] in self.eos
        untrained, lookup = (
            decode(
                Replay(recording),
                proposer,
                prompt.ids,
                Greedy(),
                drafts=self.drafts,
                max_new_tokens=limit if ended else len(drafted.tokens),
                eos=self.eos,
            )
            for proposer in (self.untrained, self.lookup)
        )
        outcome = Outcome(prompt=prompt, drafted=drafted, untrained=untrained, lookup=lookup)
        if plainly:
            outcome.plain = self._live(Nothing(), prompt, Greedy(), 0)
        if self.settings.temperature == 0:
            outcome.place, outcome.margin = self._check(outcome)
        return outcome

    def _rule(self, prompt: Prompt) -> Greedy | Sampling:
        if self.settings.temperature == 0:
            return Greedy()
        return Sampling(self.settings.temperature, self.seed + len(prompt.ids))

    def _live(self, proposer: Proposer, prompt: Prompt, rule: Greedy | Sampling, drafts: int) -> Decoded:
        limit = self.settings.max_new_tokens
        keep = drafts > 0
        return decode(
            self.live, proposer, prompt.ids, rule, drafts=drafts, max_new_tokens=limit, eos=self.eos, record=keep
        )

    def _check(self, outcome: Outcome) -> tuple[int | None, float]:
        """Compare with plain decoding, where that was done, and always with one parallel pass over the text."""
        place, margin = self.live.disagreement(outcome.prompt.ids, outcome.drafted.tokens)
        if outcome.plain is None:
            return place, margin
        found = difference(outcome.plain.tokens, outcome.drafted.tokens)
        if found is None:
            return place, margin
        _, margin = self.live.disagreement(outcome.prompt.ids, outcome.plain.tokens[: found + 1], force=found)
        return found, margin


def spread(count: int, wanted: int | None) -> set[int]:
    """`wanted` of `count` numbers, evenly spread; all of them for None."""
    if wanted is None or wanted >= count:
        return set(range(count))
    return {round(i * count / wanted) for i in range(wanted)}


def faults(outcomes: Sequence[Outcome], tie_margin: float) -> list[Outcome]:
    """Outcomes whose text differs where no tie explains it."""
    return [one for one in outcomes if one.place is not None and one.margin >= tie_margin]
