"""Evaluation: real speculative decoding with the target and the exported drafter, on held-out prompts.

    build/blend/heldout.parquet ─ prompts ─┐
    the target ────────────── session ─────┼─ bench: live with the drafter, some also plainly; ─ figures
    build/export/ ─────────── proposers ───┘         untrained drafter and prompt lookup replayed     │
                                                                                  metrics.json <──────┘

Every drafted text is checked to be the target's own greedy text.
This module holds the settings only and imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate:
    """What is decoded and measured; tracked."""

    max_prompts: int = 20  # of each dataset
    max_prompt_tokens: int = 2048  # a longer prompt is passed over
    plain_prompts: int | None = None  # so many are also decoded plainly, for the speed; null: all
    max_new_tokens: int = 128
    draft_tokens: int = 3  # EAGLE-3: length of the chain; DFlash drafts its block
    temperature: float = 0.0  # 0: greedy; above: lossless sampling, without the check against plain decoding
    lookup_ngram: int = 3  # prompt lookup: longest n-gram that is looked for
    tie_margin: float = 1e-3  # top two logits closer than this count as a tie in the lossless check
    bootstrap: int = 2000  # resamples of prompts for the 95 % intervals

    def __post_init__(self) -> None:
        for name in ("max_prompts", "plain_prompts", "max_prompt_tokens", "draft_tokens", "lookup_ngram", "bootstrap"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_new_tokens < self.draft_tokens + 2:
            raise ValueError(f"max_new_tokens must leave room for a draft, not {self.max_new_tokens}")
        if self.temperature < 0:
            raise ValueError(f"temperature cannot be below 0: {self.temperature}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateRun:
    """How evaluation is run on this machine; not tracked."""

    examples: int = 20  # decoded prompts written to examples.jsonl
