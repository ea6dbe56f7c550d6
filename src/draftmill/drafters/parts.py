"""What both drafters are made of: norm, rotary positions, MLP, and one attention for training and decoding.

Shapes: T tokens of context, M blocks of B queries (EAGLE-3: B = 1), A heads, K key-value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

KeysValues = tuple[Tensor, Tensor]


class RMSNorm(nn.Module):
    """x / rms(x) · weight, computed in fp32 and returned in the dtype of x."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of x [..., heads, D] at positions [...], halves paired as in transformers' Llama."""
    half = x.shape[-1] // 2
    exponents = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angles = positions[..., None, None].float() * theta**-exponents
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half].float(), x[..., half:].float()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def attend(query: Tensor, context: KeysValues, own: KeysValues | None, visible: Tensor) -> Tensor:
    """Attention of M blocks of queries to the start of one context and to their own keys, under one softmax.

    query [M, B, A, D]; context keys and values [T, K, D], of which block m sees the first visible[m];
    own keys and values [M, J, K, D], all seen by their block and by no other. Returns [M, B, A, D].
    For EAGLE-3 the context is step 0 and `own` the diagonals of later steps; for DFlash `own` is the block.
    """
    keys, values = context
    blocks, width, heads, size = query.shape
    kv_heads, length = keys.shape[1], keys.shape[0]
    group = heads // kv_heads
    grouped = (query * size**-0.5).view(blocks, width, kv_heads, group, size)
    rows = grouped.permute(2, 0, 1, 3, 4).reshape(kv_heads, blocks * width * group, size)
    scores = (rows @ keys.permute(1, 2, 0)).view(kv_heads, blocks, width * group, length).float()
    hidden = torch.arange(length, device=query.device) >= visible[:, None]
    scores = scores.masked_fill(hidden[None, :, None, :], float("-inf"))
    if own is None:
        weights = scores.softmax(-1).to(values.dtype)
        mixed = weights.view(kv_heads, -1, length) @ values.transpose(0, 1)
    else:
        by_block = rows.view(kv_heads, blocks, width * group, size)
        own_scores = (by_block @ own[0].permute(2, 0, 3, 1)).float()
        weights = torch.cat((scores, own_scores), dim=-1).softmax(-1).to(values.dtype)
        mixed = weights[..., :length].reshape(kv_heads, -1, length) @ values.transpose(0, 1)
        mixed = mixed + (weights[..., length:] @ own[1].permute(2, 0, 1, 3)).view_as(mixed)
    return mixed.view(kv_heads, blocks, width, group, size).permute(1, 2, 0, 3, 4).reshape(query.shape)
