"""The draft vocabulary of EAGLE-3: which target tokens its head can propose, and the map to their ids.

Servers read `d2t`, an offset: target id = i + d2t[i]; `t2d` marks the target ids inside.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Counts = npt.NDArray[np.int64]


def choose(supervised: Counts, seen: Counts, size: int) -> Tensor:
    """The `size` target ids of the draft vocabulary, ascending, int64.

    The most frequent supervised tokens come first; a small blend leaves room, which is filled by frequency in
    all its tokens, prompts included, then by lowest id (merges of a BPE vocabulary stand in order of frequency).
    Both counts are [V].
    """
    order = np.lexsort((np.arange(len(supervised)), -seen, -supervised))
    return torch.from_numpy(np.sort(order[:size]).astype(np.int64))


def offsets(ids: Tensor) -> Tensor:
    """d2t [Vd] int64 from the ascending target ids [Vd]."""
    return ids - torch.arange(len(ids))


def membership(ids: Tensor, vocab_size: int) -> Tensor:
    """t2d [V] bool: which target ids are in the draft vocabulary."""
    inside = torch.zeros(vocab_size, dtype=torch.bool)
    inside[ids] = True
    return inside


def ids_of(d2t: Tensor) -> Tensor:
    """The target ids [Vd] from d2t."""
    return d2t + torch.arange(len(d2t), device=d2t.device)


def map_digest(ids: Tensor) -> str:
    """16 hex digits that name a vocabulary map."""
    return hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest()[:16]
