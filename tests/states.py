"""A tiny Llama and tokenized datasets for the tests of hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from draftmill.hidden_states import States, StatesRun
from draftmill.hidden_states.engines import Engine, Local
from draftmill.hidden_states.manifest import Ids
from draftmill.hidden_states.stage import Job

LAYERS, HIDDEN, VOCABULARY = 8, 32, 97


def make_model(seed: int = 0) -> Any:
    """A random Llama of 8 blocks, in evaluation mode."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
    )
    return LlamaForCausalLM(config).eval()


def make_rows(count: int, longest: int = 60, seed: int = 0) -> list[Ids]:
    """Random token ids; the first `count` of one endless list, so that a larger count only adds rows."""
    rows = []
    for i in range(count):
        random = np.random.default_rng([seed, i])
        rows.append(random.integers(0, VOCABULARY, int(random.integers(1, longest))).astype(np.int32))
    return rows


def write_tokens(dataset: str, rows: Sequence[Ids]) -> None:
    """build/tokenize/<dataset>/tokens.parquet with the two columns that hidden_states reads."""
    path = Path("build/tokenize") / dataset / "tokens.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = pa.array([row.tolist() for row in rows], pa.list_(pa.int32()))
    pq.write_table(pa.table({"id": [f"r{i:04}" for i in range(len(rows))], "input_ids": ids}), path)


def make_job(dataset: str = "d", recheck_rows: int = 0, batch_tokens: int = 128, **states: Any) -> Job:
    """A Job for the tiny Llama; shards of about 60 kB unless `states` says otherwise."""
    settings = {"for_": ["eagle3"], "dtype": "float32", "shard_gb": 6e-5} | states
    return Job(
        dataset=dataset,
        states=States(**settings),
        run=StatesRun(batch_tokens=batch_tokens, recheck_rows=recheck_rows),
        target={"name": "tiny", "revision": None, "weights": "w0", "states": "store0"},
        num_layers=LAYERS,
        hidden_size=HIDDEN,
    )


class Counting:
    """An engine that counts the rows and tokens it computes, padding included."""

    def __init__(self, model: nn.Module) -> None:
        self.inner: Engine = Local(model)
        self.rows = self.tokens = 0

    def __call__(self) -> Counting:
        return self

    def open(self, layers: Sequence[int]) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def opened() -> Any:
            with self.inner.open(layers) as batch:

                def counted(rows: Sequence[Ids]) -> dict[int, Tensor]:
                    self.rows += len(rows)
                    self.tokens += len(rows) * max(map(len, rows))
                    return batch(rows)

                yield counted

        return opened()


def reference(model: Any, ids: Ids, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """aux and the normed last state of one row, from transformers' own output_hidden_states."""
    with torch.inference_mode():
        states = model(input_ids=torch.from_numpy(ids).long()[None], output_hidden_states=True).hidden_states
    return torch.cat([states[layer][0] for layer in layers], dim=-1), states[-1][0]
