"""DFlash: a few layers that fill a whole block of masks at once.

    aux [T, L·Ht] --fc, hidden_norm--> context ─┐ (keys and values of every layer)
                                                ├─ layers ─> norm, the target's head -> logits over its vocabulary
    [anchor token, MASK, MASK, …] embedded ─────┘

The anchor is the last token known, its states are not; the context is what stands strictly before it. Place k of the
block fills in the token k places after the anchor. Within the block attention goes both ways. Tensor names are those
of DFlashDraftModel in SGLang and vLLM; embedding and head are the target's and not part of the module.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from draftmill.drafters.architecture import Architecture
from draftmill.drafters.parts import MLP, KeysValues, RMSNorm, rotate

# (number of the layer, queries [M, B, A, D], the block's own keys and values [M, B, K, D]) -> mixtures [M, B, A, D]
Attend = Callable[[int, Tensor, KeysValues], Tensor]


class Attention(nn.Module):
    """Projections with a norm on each head's queries and keys, as in Qwen3."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.size, self.theta = arch.head_dim, arch.rope_theta
        queries, keys = arch.num_attention_heads * self.size, arch.num_key_value_heads * self.size
        self.q_proj = nn.Linear(arch.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(arch.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(arch.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, arch.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.size, arch.rms_norm_eps)
        self.k_norm = RMSNorm(self.size, arch.rms_norm_eps)

    def query(self, x: Tensor, positions: Tensor) -> Tensor:
        """[..., A, D] from [..., H]."""
        return rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.size))), positions, self.theta)

    def keys_values(self, x: Tensor, positions: Tensor) -> KeysValues:
        """Keys and values, [..., K, D] each, from [..., H]."""
        keys = rotate(self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.size))), positions, self.theta)
        return keys, self.v_proj(x).unflatten(-1, (-1, self.size))


class Layer(nn.Module):
    """One layer over the block; the context enters by its attention only."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.self_attn = Attention(arch)
        self.mlp = MLP(arch.hidden_size, arch.intermediate_size)
        self.input_layernorm = RMSNorm(arch.hidden_size, arch.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(arch.hidden_size, arch.rms_norm_eps)

    def forward(self, hidden: Tensor, positions: Tensor, attend: Callable[[Tensor, KeysValues], Tensor]) -> Tensor:
        """[M, B, H] of M blocks."""
        x = self.input_layernorm(hidden)
        own = self.self_attn.keys_values(x, positions)
        mixed = attend(self.self_attn.query(x, positions), own)
        hidden = hidden + self.self_attn.o_proj(mixed.flatten(-2))
        residual: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return residual


class DFlash(nn.Module):
    """The drafter."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.arch = arch
        self.fc = nn.Linear(len(arch.layers) * arch.hidden_size, arch.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(arch.hidden_size, arch.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(arch) for _ in range(arch.num_layers))
        self.norm = RMSNorm(arch.hidden_size, arch.rms_norm_eps)

    def context(self, aux: Tensor, positions: Tensor) -> list[KeysValues]:
        """Keys and values [T, K, D] of every layer from the target's states [T, L·H]."""
        fused = self.hidden_norm(self.fc(aux))
        return [layer.self_attn.keys_values(fused, positions) for layer in self.layers]  # type: ignore[union-attr, operator]

    def block(self, anchors: Tensor) -> Tensor:
        """Token ids [M, B] of the blocks that begin with `anchors` [M]."""
        assert self.arch.mask_token_id is not None
        ids = torch.full((len(anchors), self.arch.block_size), self.arch.mask_token_id, device=anchors.device)
        ids[:, 0] = anchors
        return ids

    def forward(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Normed outputs [M, B, H] of M blocks; embeddings [M, B, H], positions [M, B]."""
        hidden = embeddings
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, positions, lambda query, own, number=number: attend(number, query, own))
        normed: Tensor = self.norm(hidden)
        return normed
