"""plan: what a build would do and cost, before anything runs and without changing anything.

    draftmill plan                                  # of the configuration as it stands
    draftmill plan experiment=eagle3_kimi_k25       # of another one

stages     which stages would run, and why
amounts    rows, requests, tokens, dollars, hours, and bytes of hidden states per dataset
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What this machine or service does in an hour and costs (`run.plan`); only estimates depend on it."""

    answer_tokens_per_s: float = 1000.0
    """Tokens the target generates, over all concurrent requests."""
    state_tokens_per_s: float = 20000.0
    """Tokens of one forward pass of hidden_states."""
    characters_per_token: float = 4.0
    """To estimate prompts that were not tokenized yet."""
    prompt_tokens: int = 512
    """Of a row whose source was not extracted yet."""
