"""Training of a drafter on the blend's rows and the target's kept hidden states.

    build/blend/train.parquet ─┐
                               ├─ data: packs of whole rows ─ eagle3 | dflash: loss ─ trainer ─> build/train/drafter/
    build/hidden_states/D/ ────┘                                                        └──────> build/train/metrics/

Checkpoints are kept in .draftmill/train/<fingerprint>/ until the training is finished; one that was killed goes
on from the last, bit for bit on the same number of processes. This module holds the settings of the run only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRun:
    """How training is run on this machine; nothing here is tracked."""

    checkpoint_every_s: float = 60.0  # seconds between two checkpoints
    log_every: int = 10  # optimizer steps between two lines of metrics
    tensorboard: bool = False  # also write TensorBoard events, if that package is installed
