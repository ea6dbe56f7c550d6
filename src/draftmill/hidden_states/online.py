"""States for training without storing any (states.mode: online), in the shapes that Reader gives, on demand."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from draftmill.hidden_states import pack
from draftmill.hidden_states.capture import Capture, blocks


class Online:
    """A target's model with hooks at `layers` (hidden_states indices). A context: leaving it takes them off.

    What it returns stays on the model's device, in the model's dtype unless `dtype` says another.
    """

    def __init__(self, model: nn.Module, layers: Sequence[int], dtype: torch.dtype | None = None) -> None:
        self.layers, self.dtype = tuple(layers), dtype
        self._final = len(blocks(model))
        self._capture = Capture(model, sorted({*layers, self._final}))

    def read(self, input_ids: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """The states of one row: aux [T, L*H] in the order of `layers`, last [T, H] before the final norm."""
        return self.read_batch([input_ids], budget=1)[0]

    def read_batch(self, rows: Sequence[Tensor | Sequence[int]], budget: int = 4096) -> list[tuple[Tensor, Tensor]]:
        """The states of several rows, in their order; at most `budget` tokens in a forward, padding included."""
        ids = [torch.as_tensor(row, dtype=torch.int64) for row in rows]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        made: dict[int, tuple[Tensor, Tensor]] = {}
        for chosen in pack.batches([len(ids[i]) for i in order], budget):
            found = self._capture([ids[order[k]] for k in chosen])
            for row, k in enumerate(chosen):
                made[order[k]] = self._one(found, row, len(ids[order[k]]))
        return [made[i] for i in range(len(ids))]

    def _one(self, found: dict[int, Tensor], row: int, length: int) -> tuple[Tensor, Tensor]:
        last = found[self._final][row, :length]
        parts = [found[layer][row, :length].to(last.device) for layer in self.layers]
        aux = torch.cat(parts, dim=-1) if parts else last.new_empty(length, 0)
        return (aux, last) if self.dtype is None else (aux.to(self.dtype), last.to(self.dtype))

    def close(self) -> None:
        """Take the hooks off."""
        self._capture.close()

    def __enter__(self) -> Online:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
