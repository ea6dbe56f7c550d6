"""EAGLE-3: one layer that reads the target's states at three depths and the next token's embedding.

    aux [T, 3·Ht] --fc--> hidden ─┐
                                  ├─ midlayer ─> hidden' --norm, lm_head--> logits over the draft vocabulary
    embedding of token t+1 ───────┘

The pair (state of token t, token t+1) stands at position t and predicts token t+2. A further step replaces
the state by the layer's output, takes the next token, and stands one position further. Tensor names are those
of LlamaForCausalLMEagle3 in SGLang and vLLM. The embedding is the target's and not part of the module.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from draftmill.drafters.architecture import Architecture
from draftmill.drafters.parts import MLP, KeysValues, RMSNorm, rotate

AUX_LAYERS = 3
Attend = Callable[[Tensor], Tensor]


class Attention(nn.Module):
    """The projections of the midlayer's attention, whose input is 2H wide."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.size, self.theta = arch.head_dim, arch.rope_theta
        queries, keys = arch.num_attention_heads * self.size, arch.num_key_value_heads * self.size
        self.q_proj = nn.Linear(2 * arch.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * arch.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * arch.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, arch.hidden_size, bias=False)

    def query(self, x: Tensor, positions: Tensor) -> Tensor:
        """[N, A, D] from [N, 2H]."""
        return rotate(self.q_proj(x).unflatten(-1, (-1, self.size)), positions, self.theta)

    def keys_values(self, x: Tensor, positions: Tensor) -> KeysValues:
        """Keys and values, [N, K, D] each, from [N, 2H]."""
        keys = rotate(self.k_proj(x).unflatten(-1, (-1, self.size)), positions, self.theta)
        return keys, self.v_proj(x).unflatten(-1, (-1, self.size))


class Midlayer(nn.Module):
    """The one layer. Its residual stream is the un-normed hidden state."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.self_attn = Attention(arch)
        self.mlp = MLP(arch.hidden_size, arch.intermediate_size)
        self.input_layernorm = RMSNorm(arch.hidden_size, arch.rms_norm_eps)
        self.hidden_norm = RMSNorm(arch.hidden_size, arch.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(arch.hidden_size, arch.rms_norm_eps)

    def inputs(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """What the attention projects, [N, 2H], from [N, H] each."""
        hidden_normed = self.hidden_norm(hidden)
        return torch.cat((self.input_layernorm(embeddings).to(hidden_normed.dtype), hidden_normed), dim=-1)

    def forward(self, x: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The next hidden state [N, H] of N queries; `attend` maps queries [N, A, D] to mixtures of values."""
        mixed = attend(self.self_attn.query(x, positions))
        hidden = hidden + self.self_attn.o_proj(mixed.flatten(-2))
        residual: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return residual


class Eagle3(nn.Module):
    """The drafter. `d2t` and `t2d` are its vocabulary map."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.arch = arch
        self.fc = nn.Linear(AUX_LAYERS * arch.hidden_size, arch.hidden_size, bias=False)
        self.midlayer = Midlayer(arch)
        self.norm = RMSNorm(arch.hidden_size, arch.rms_norm_eps)
        self.lm_head = nn.Linear(arch.hidden_size, arch.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(arch.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(arch.vocab_size, dtype=torch.bool))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., Vd] over the draft vocabulary from the layer's output [..., H]."""
        scores: Tensor = self.lm_head(self.norm(hidden))
        return scores
