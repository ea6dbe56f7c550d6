"""Soft cross-entropy against the target's distribution, without ever holding logits of all positions.

Chunks of positions go through both heads, and the gradient is taken on the way: between two chunks only sums
and hidden-sized tensors remain. In training-time test the tokens of a step do not depend on the logits of the
step before, so all steps of a position share one teacher row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_VALUES = 1 << 22  # logits held at once


class SoftCrossEntropy(torch.autograd.Function):
    """Σ weight · CE(softmax(teacher), softmax(student)) with its gradient, chunk by chunk.

    students [S, N, H], head [Vd, H], teacher [N, H] with teacher_head [Vd, H] (no gradient), weights [S, N].
    Returns the sum, and the student's best token [S, N] as an index into the draft vocabulary.
    """

    @staticmethod
    def forward(
        ctx: Any, students: Tensor, head: Tensor, teacher: Tensor, teacher_head: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The sum (fp32 scalar) and the best tokens (int64)."""
        steps, count, _ = students.shape
        best = torch.empty(steps, count, dtype=torch.int64, device=students.device)
        total = torch.zeros((), device=students.device)
        by_student, by_head = torch.empty_like(students), torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        size = max(CHUNK_VALUES // (len(head) * (steps + 1)), 1)
        for start in range(0, count, size):
            part = slice(start, start + size)
            student = students[:, part].reshape(-1, students.shape[-1])
            wanted = (teacher[part] @ teacher_head.T).float().softmax(-1)
            scores = (student @ head.T).float()
            best[:, part] = scores.argmax(-1).view(steps, -1)
            slope = _slope_in_place(scores, wanted, weights[:, part], total)
            by_student[:, part] = (slope.to(head.dtype) @ head).view(steps, -1, students.shape[-1])
            if by_head is not None:
                by_head += slope.to(student.dtype).T @ student
        ctx.save_for_backward(by_student, by_head)
        ctx.mark_non_differentiable(best)
        return total, best

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Gradients of students and head, scaled."""
        by_student, by_head = ctx.saved_tensors
        return by_student * grads[0], None if by_head is None else by_head * grads[0], None, None, None


def _slope_in_place(scores: Tensor, wanted: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Turn logits [S·n, Vd] into weight · (softmax - wanted); adds the loss to `total`."""
    steps, count = weights.shape
    logs = torch.log_softmax(scores, -1).view(steps, count, -1)
    total += (weights * -torch.einsum("snv,nv->sn", logs, wanted)).sum()
    return logs.exp_().sub_(wanted).mul_(weights[..., None]).view(steps * count, -1)


class HardCrossEntropy(torch.autograd.Function):
    """Σ weight · CE(label, softmax(states · headᵀ)) with the gradient of the states; the head is frozen.

    states [N, H], head [V, H], labels [N], weights [N]. Returns the sum, and the best token [N].
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The sum (fp32 scalar) and the best tokens (int64)."""
        best, by_state = torch.empty_like(labels), torch.empty_like(states)
        total = torch.zeros((), device=states.device)
        size = max(CHUNK_VALUES // len(head), 1)
        for start in range(0, len(states), size):
            part = slice(start, start + size)
            logs = torch.log_softmax((states[part] @ head.T).float(), -1)
            best[part] = logs.argmax(-1)
            here = labels[part, None]
            total -= (weights[part] * logs.gather(-1, here).squeeze(-1)).sum()
            slope = logs.exp_().scatter_add_(-1, here, -torch.ones_like(here, dtype=logs.dtype))
            by_state[part] = slope.mul_(weights[part, None]).to(head.dtype) @ head
        ctx.save_for_backward(by_state)
        ctx.mark_non_differentiable(best)
        return total, best

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """The gradient of the states, scaled."""
        (by_state,) = ctx.saved_tensors
        return by_state * grads[0], None, None, None


def best_tokens(states: Tensor, head: Tensor) -> Tensor:
    """argmax over the whole vocabulary: ids [N] int64 from normed states [N, H] and head [V, H]."""
    size = max(CHUNK_VALUES // len(head), 1)
    parts = [(states[start : start + size] @ head.T).argmax(-1) for start in range(0, len(states), size)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=states.device)
