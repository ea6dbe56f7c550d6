"""Drafters: the small models that propose tokens for a target, EAGLE-3 and DFlash.

    settings (here)  ->  architecture (with the target's shape)  ->  eagle3 | dflash (torch)
                                                                     |
                       the same module in train, export and evaluate; tensor names as servers want them

This module holds the settings only and imports no torch, so that the configuration is checked fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MINIMUM_BLOCK = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a drafter is trained. Everything here changes bytes and is tracked."""

    epochs: float = 4.0  # passes over the blend
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    warmup: float = 0.04  # share of the steps with a rising learning rate; a cosine to zero follows
    clip: float = 0.5  # largest norm of the gradient
    pack_tokens: int = 4096  # rows are packed up to this length; a longer row is a pack of its own
    packs_per_step: int = 1  # gradient accumulation: packs of one optimizer step, over all processes
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # bfloat16: autocast over fp32 weights; auto: on GPU
    heldout_every: int = 200  # optimizer steps between two looks at the held-out rows
    heldout_rows: int = 64  # at most so many held-out rows are looked at
    patience: int | None = None  # stop after so many looks without a better held-out acceptance; null: never

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "clip"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("pack_tokens", "packs_per_step", "heldout_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the steps, from 0 to below 1, not {self.warmup}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafter:
    """What is trained. A null size is the target's own."""

    kind: Literal["eagle3", "dflash"]
    seed: int | None = None  # of the first weights and the order of rows; null: the project's, which also picks rows
    layers: list[int] | None = None  # hidden_states indices of the target that are read; null: the kind's default
    num_layers: int = 1  # blocks of the drafter; EAGLE-3 has one
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    draft_vocab_size: int | None = None  # EAGLE-3: size of the draft vocabulary; null: the whole one
    train_head: bool = True  # EAGLE-3: the head starts from the target's rows; false keeps it there
    ttt_steps: int = 7  # EAGLE-3: unrolled steps of training-time test
    step_decay: float = 0.8  # EAGLE-3: loss weight of step i is step_decay ** i
    block_size: int = 16  # DFlash: the anchor token and block_size - 1 predicted ones
    anchors: int = 64  # DFlash: blocks drawn from each 1024 tokens of a pack
    gamma: float = 7.0  # DFlash: loss weight of place k is exp(-(k - 1) / gamma)
    export_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        if self.kind == "eagle3" and self.num_layers != 1:
            raise ValueError(f"num_layers: an EAGLE-3 drafter has 1 layer, not {self.num_layers}")
        if self.kind == "eagle3" and self.layers is not None and len(self.layers) != 3:
            raise ValueError(f"layers: EAGLE-3 reads 3 layers of the target, not {len(self.layers)}")
        if self.layers is not None and sorted(set(self.layers)) != self.layers:
            raise ValueError(f"layers must be ascending and distinct, not {self.layers}")
        if self.kind == "dflash" and self.block_size < MINIMUM_BLOCK:
            raise ValueError(f"block_size must be at least {MINIMUM_BLOCK}, not {self.block_size}")
        for name in ("num_layers", "ttt_steps", "anchors"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
