"""Hidden states of a transformers model: hooks at exactly the wanted blocks, stopped after the last one.

Index k of `hidden_states` is the output of block k-1; 0 is what enters block 0. The state of the last
block is taken before the final norm (transformers' own hidden_states[-1] is after it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from draftmill.errors import BuildError


class _Stop(Exception):
    """Ends a forward pass once the last wanted state is there."""


def decoder(model: Any) -> Any:
    """The part of a model that ends before the head."""
    return model.get_decoder() if hasattr(model, "get_decoder") else model


def blocks(model: nn.Module) -> nn.ModuleList:
    """The target's decoder blocks: the module list as long as its configuration says.

    Raises BuildError if there is none.
    """
    config: Any = model.config
    count = config.get_text_config().num_hidden_layers
    for name, module in decoder(model).named_modules():
        # The towers for pictures and sound have blocks too, and may have as many.
        other = any(word in name for word in ("vision", "visual", "image", "audio"))
        if isinstance(module, nn.ModuleList) and len(module) == count and not other:
            return module
    raise BuildError(f"{type(model).__name__} has no list of {count} blocks", fix="use a causal language model")


class Capture:
    """Runs a model up to its last wanted block and returns what stood at the wanted layers.

    Use through `capturing`, which takes the hooks off again.
    """

    def __init__(self, model: nn.Module, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self.device = next(model.parameters()).device
        self._seen: dict[int, Tensor] | None = None  # only while a call of ours runs: the model may have other users
        self._handles: list[Any] = []
        self._decoder = decoder(model)
        found = blocks(model)
        for layer in self.layers:
            if layer == 0:
                self._handles.append(found[0].register_forward_pre_hook(self._enter, with_kwargs=True))
            else:
                self._handles.append(found[layer - 1].register_forward_hook(self._leave(layer)))

    def _enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._keep(0, args[0] if args else kwargs["hidden_states"])

    def _leave(self, layer: int) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            self._keep(layer, output if isinstance(output, Tensor) else output[0])

        return hook

    def _keep(self, layer: int, states: Tensor) -> None:
        if self._seen is None:
            return
        self._seen[layer] = states
        if layer == max(self.layers):
            raise _Stop

    @torch.inference_mode()
    def __call__(self, rows: Sequence[Tensor]) -> dict[int, Tensor]:
        """States of some rows (int64 [S_i] each): layer -> [B, max S, H] in the model's dtype.

        Rows are padded on the right; what stands at padded positions means nothing.
        """
        ids = nn.utils.rnn.pad_sequence(list(rows), batch_first=True).to(self.device)
        seen: dict[int, Tensor] = {}
        self._seen = seen
        try:
            self._decoder(input_ids=ids, use_cache=False)
        except _Stop:
            return seen
        finally:
            self._seen = None
        raise BuildError(f"the forward pass ended without layer {max(self.layers)}")

    def close(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()


@contextmanager
def capturing(model: nn.Module, layers: Sequence[int]) -> Iterator[Capture]:
    """A Capture whose hooks are gone afterwards."""
    capture = Capture(model, layers)
    try:
        yield capture
    finally:
        capture.close()
