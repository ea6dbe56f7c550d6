"""The target's hidden states of every tokenized row, at the layers the drafters read.

    build/tokenize/D/tokens.parquet ─> plan (which rows go to which shard)
                                         │   rows that .draftmill/states/ holds are linked, not computed
                                         └─> capture (one forward, hooks) ─> shard-*.safetensors, index, manifest

settings   this file: no torch here, so that composing the configuration stays fast
pack       length-sorted batches and shards; pure
capture    forward hooks at the wanted blocks, stopped after the last one
engines    who computes: the model in this process, or a vLLM server
shards     the file of one shard, and the store of finished ones
plan       which shard holds which row, the same again after a kill
stage      the whole stage for one dataset
recheck    a sample of rows computed a second time and compared
store      what training reads: Reader, verify
manifest   what an output folder holds; adopt and collect for the kept shards
online     states for training without storing any
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftmill.drafters.layers import default_layers

BYTES_PER_VALUE = {"bfloat16": 2, "float32": 4}
BYTES_PER_ID = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class States:
    """What is kept of the target's hidden states; everything here changes bytes."""

    for_: list[Literal["eagle3", "dflash"]]  # drafters whose default layers are captured (their union)
    layers: list[int] | None = None  # further hidden_states indices, for a drafter with layers of its own
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # of the stored values
    mode: Literal["offline", "online"] = "offline"  # online: nothing is stored, training computes them
    engine: Literal["transformers", "vllm"] = "transformers"  # in process, or a server that holds larger targets
    shard_gb: float = 1.0  # a shard is closed at this many 10^9 bytes; a killed build loses at most one

    def __post_init__(self) -> None:
        if not self.for_ and not self.layers:
            raise ValueError("names no layer: give `for` a drafter, such as [eagle3], or list `layers`")
        if self.shard_gb <= 0:
            raise ValueError(f"shard_gb must be above 0, not {self.shard_gb}")

    def layer_set(self, num_layers: int) -> tuple[int, ...]:
        """The wanted hidden_states indices (0 = embedding output) of a target with `num_layers` blocks, ascending.

        Raises ValueError for an index outside 0..num_layers, or a target with too few blocks for a default set.
        """
        wanted = set(self.layers or ())
        for kind in self.for_:
            wanted |= set(default_layers(kind, num_layers))
        outside = sorted(layer for layer in wanted if not 0 <= layer <= num_layers)
        if outside:
            raise ValueError(f"layers {outside} do not exist: this target has hidden_states 0 to {num_layers}")
        return tuple(sorted(wanted))

    def bytes_per_token(self, num_layers: int, hidden_size: int) -> int:
        """Stored bytes of one token: the layer set and the last state, and its id."""
        return (len(self.layer_set(num_layers)) + 1) * hidden_size * BYTES_PER_VALUE[self.dtype] + BYTES_PER_ID


@dataclass(frozen=True, kw_only=True, slots=True)
class StatesRun:
    """How they are computed on this machine; nothing here is tracked."""

    batch_tokens: int = 4096  # tokens of one forward, padding included; a longer row goes alone
    recheck_rows: int = 2  # rows of every build that are computed a second time and compared
    url: str | None = None  # of the vLLM server
    concurrency: int = 16  # its requests in flight; batch_tokens bounds them too
    timeout_s: float = 600.0  # of one request
