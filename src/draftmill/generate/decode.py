"""Batched decoding of a causal language model, one token a step, rows leaving as they finish.

Prompts are padded on the left; positions and the attention mask count real tokens only, so that a row's
answer does not depend on what is decoded beside it (beyond ties in floating point).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from draftmill.generate.request import Request
    from draftmill.generate.settings import Sampling


@torch.inference_mode()
def decode(
    model: Any,
    requests: Sequence[Request],
    sampling: Sampling,
    eos_ids: Sequence[int],
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, list[int]]]:
    """Yield (index of the request, its new token ids with the end-of-turn id), in the order they finish.

    Args:
        model: a transformers causal language model in eval mode.
        eos_ids: ids that end an answer.
        stopped: asked before each token; when it says so, unfinished rows are given up.
    """
    from transformers import DynamicCache

    device, cache = model.device, DynamicCache()
    # transformers renames the argument; the old name warns from 5.24 on and goes with 5.40.
    cached = {"cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values": cache}
    ids, mask = _left_padded([request.prompt_ids for request in requests], device)
    rows = list(range(len(requests)))
    said: list[list[int]] = [[] for _ in requests]
    draw = _Draw(sampling, requests, device)
    step_ids, positions = ids, (mask.cumsum(-1) - 1).clamp(min=0)
    while rows and not stopped():
        out = model(
            input_ids=step_ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **cached,
        )
        chosen = draw(out.logits[:, -1].float(), rows)
        for row, token in zip(rows, chosen.tolist(), strict=True):
            said[row].append(token)
        going = [i for i, row in enumerate(rows) if not _ended(said[row], requests[row].limit, eos_ids)]
        yield from ((row, said[row]) for i, row in enumerate(rows) if i not in set(going))
        positions = positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=-1)
        if len(going) < len(rows):
            kept = torch.tensor(going, dtype=torch.long, device=device)
            rows, chosen, positions, mask = [rows[i] for i in going], chosen[kept], positions[kept], mask[kept]
            if rows:
                cache.batch_select_indices(kept)
        step_ids = chosen[:, None]


def _ended(said: list[int], limit: int, eos_ids: Sequence[int]) -> bool:
    return said[-1] in eos_ids or len(said) >= limit


def _left_padded(prompts: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and mask, both int64 [B, T]; the padding id is masked out, so its value is of no account."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    return ids, mask


class _Draw:
    """Chooses the next token of each row: the argmax, or a draw with a generator of the row's own."""

    def __init__(self, sampling: Sampling, requests: Sequence[Request], device: torch.device) -> None:
        self.sampling = sampling
        self.generators = (
            [torch.Generator(device).manual_seed(sampling.seed ^ request.seed) for request in requests]
            if sampling.temperature
            else []
        )

    def __call__(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """logits float32 [B, V] of `rows` -> ids int64 [B]."""
        if not self.sampling.temperature:
            return logits.argmax(-1)
        probabilities = nucleus(logits / self.sampling.temperature, self.sampling.top_p, self.sampling.top_k)
        picks = [
            torch.multinomial(p, 1, generator=self.generators[r]) for p, r in zip(probabilities, rows, strict=True)
        ]
        return torch.cat(picks)


def nucleus(logits: torch.Tensor, top_p: float, top_k: int | None) -> torch.Tensor:
    """Probabilities [B, V] of the `top_k` likeliest tokens whose mass before them is below `top_p`, renormalized."""
    ordered, order = logits.softmax(-1).sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    keep = before < top_p
    if top_k is not None:
        keep[:, top_k:] = False
    kept = ordered * keep
    return torch.zeros_like(kept).scatter_(-1, order, kept / kept.sum(-1, keepdim=True))
