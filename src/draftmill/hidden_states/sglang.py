"""A check of stored states against an SGLang server, over HTTP. For a sample only: it answers in JSON floats.

The server is started with `command(...)`. Asked for a prompt's hidden states it gives, as entry 0 of
`meta_info.hidden_states`, the EAGLE-3 layers of every token, concatenated: [T, 3*H]. SGLang names no last state then,
so the last one is not compared. Its own layer numbers count block outputs, one less than ours.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from draftmill.drafters.layers import to_block_outputs
from draftmill.errors import BuildError
from draftmill.hidden_states.engines import Batch, ask
from draftmill.hidden_states.manifest import Ids


class Sglang:
    """A running server that returns the states of `layers` (hidden_states indices, in its order)."""

    def __init__(self, url: str, layers: Sequence[int], hidden_size: int, timeout_s: float = 600.0) -> None:
        self.url, self.layers, self.hidden_size, self.timeout_s = url.rstrip("/"), tuple(layers), hidden_size, timeout_s

    @contextmanager
    def open(self, layers: Sequence[int]) -> Iterator[Batch]:
        """Rows to {layer: [B, longest, H]} float32, one request a row."""

        def batch(rows: Sequence[Ids]) -> dict[int, Tensor]:
            states = torch.nn.utils.rnn.pad_sequence([self._row(row) for row in rows], batch_first=True)
            size = self.hidden_size
            return {layer: states[..., i * size : (i + 1) * size] for i, layer in enumerate(layers)}

        yield batch

    def _row(self, ids: Ids) -> Tensor:
        body = {
            "input_ids": ids.tolist(),
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_hidden_states": True,
            "extra_key": uuid.uuid4().hex,  # a cached prefix would come without its states
        }
        answer = ask(f"{self.url}/generate", body, self.timeout_s)
        found = (answer.get("meta_info") or {}).get("hidden_states")
        states = torch.tensor(found[0]) if found else torch.empty(0, 0)
        if states.shape != (len(ids), len(self.layers) * self.hidden_size):
            raise BuildError(
                f"its states are {list(states.shape)}, not {[len(ids), len(self.layers) * self.hidden_size]}",
                file=self.url,
                fix=f"start it with:  {command('MODEL', self.layers)}",
            )
        return states


def command(model: str, layers: Sequence[int]) -> str:
    """The command that starts an SGLang server which returns these layers."""
    ids = " ".join(map(str, to_block_outputs(tuple(layers))))
    return (
        f"python -m sglang.launch_server --model-path {model} --disable-radix-cache "
        "--enable-return-aux-hidden-states --speculative-algorithm EAGLE3 "
        f"--return-aux-hidden-state-layer-ids {ids}"
    )
