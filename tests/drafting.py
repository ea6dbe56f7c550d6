"""A project as blend leaves it: hidden states and rows on disk, for the tests of train, export and evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from draftmill.drafters import Drafter, Recipe
from draftmill.drafters.architecture import resolve
from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.ends import Ends
from draftmill.drafters.initialize import random_weights
from draftmill.drafters.vocabulary import membership, offsets
from draftmill.hidden_states import States, StatesRun
from draftmill.hidden_states.stage import build, engine, job
from draftmill.target import Target, load_model, shape
from draftmill.train import TrainRun
from draftmill.train.data import Pack, Rows, load_pack

RUNS = pa.list_(pa.struct([("start", pa.int32()), ("length", pa.int32())]))
SPANS = pa.list_(pa.struct([("turn", pa.int32()), ("start", pa.int32()), ("end", pa.int32()), ("origin", pa.string())]))


@dataclass(frozen=True, kw_only=True)
class Talk:
    """One row: token ids, and where the answers stand in them."""

    dataset: str
    id: str
    ids: list[int]
    answers: list[tuple[int, int]]
    held_out: bool = False


def talks(target: Target, count: int, held_out: int, prompt: int = 12, answer: int = 12, seed: int = 0) -> list[Talk]:
    """Rows of random prompts with the target's own greedy answers; the last `held_out` are held out."""
    model, form = load_model(target, "cpu"), shape(target)
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(32, min(form.vocab_size, 127), (count, prompt), generator=generator)
    prompts[:, 0] = torch.arange(count) % 90 + 33
    with torch.inference_mode():
        rows = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=answer,
            min_new_tokens=answer,
            do_sample=False,
            pad_token_id=0,
        )
    return [
        Talk(
            dataset="ab"[number % 2],
            id=f"r{number:04d}",
            ids=row.tolist(),
            answers=[(prompt, prompt + answer)],
            held_out=number >= count - held_out,
        )
        for number, row in enumerate(rows)
    ]


def make_project(rows: Sequence[Talk], target: Target, states: States | None = None) -> None:
    """Write build/{tokenize,hidden_states,blend}/ below the working directory."""
    wanted = states or States(for_=["eagle3"], dtype="float32")
    for dataset in sorted({row.dataset for row in rows}):
        own = sorted((row for row in rows if row.dataset == dataset), key=lambda row: row.id)
        folder = Path("build/tokenize") / dataset
        folder.mkdir(parents=True, exist_ok=True)
        ids = pa.array([row.ids for row in own], pa.list_(pa.int32()))
        pq.write_table(pa.table({"id": [row.id for row in own], "input_ids": ids}), folder / "tokens.parquet")
        work = job(dataset, wanted, StatesRun(), target)
        build(work, partial(engine, work, target, "cpu"))
    write_blend(rows)


def write_blend(rows: Sequence[Talk]) -> None:
    """Write build/blend/{train,heldout}.parquet of rows whose states are there."""
    places: dict[tuple[str, str], dict[str, Any]] = {}
    for dataset in {row.dataset for row in rows}:
        for place in pq.read_table(f"build/hidden_states/{dataset}/index.parquet").to_pylist():
            places[dataset, place["id"]] = place
    Path("build/blend").mkdir(parents=True, exist_ok=True)
    for name, held_out in (("train", False), ("heldout", True)):
        chosen = [row for row in rows if row.held_out == held_out]
        table = pa.table(
            {
                "dataset": [row.dataset for row in chosen],
                "id": [row.id for row in chosen],
                "shard": [places[row.dataset, row.id]["shard"] for row in chosen],
                "offset": [places[row.dataset, row.id]["offset"] for row in chosen],
                "length": [len(row.ids) for row in chosen],
                "copy": [0] * len(chosen),
                "position": list(range(len(chosen))),
                "input_ids": pa.array([row.ids for row in chosen], pa.list_(pa.int32())),
                "loss_mask": pa.array(
                    [[{"start": a, "length": b - a} for a, b in row.answers] for row in chosen], RUNS
                ),
                "spans": pa.array(
                    [
                        [
                            {"turn": t, "start": a, "end": b, "origin": "generated"}
                            for t, (a, b) in enumerate(row.answers)
                        ]
                        for row in chosen
                    ],
                    SPANS,
                ),
            }
        )
        pq.write_table(table, f"build/blend/{name}.parquet")


SMALL = Drafter(
    kind="eagle3",
    draft_vocab_size=120,
    ttt_steps=3,
    recipe=Recipe(epochs=2.0, learning_rate=1e-3, pack_tokens=64, packs_per_step=2, heldout_every=3),
)
QUICK = TrainRun(checkpoint_every_s=0.0, log_every=2)


def random_model(target: Target, vocab: int = 120) -> tuple[Eagle3, Ends]:
    """A drafter of random weights and random ends."""
    arch = resolve(replace(SMALL, draft_vocab_size=vocab), shape(target))
    model = Eagle3(arch)
    random_weights(model, 1)
    ids = torch.arange(0, 2 * vocab, 2)
    with torch.no_grad():
        model.d2t.copy_(offsets(ids))
        model.t2d.copy_(membership(ids, arch.vocab_size))
    torch.manual_seed(2)
    table = torch.randn(arch.vocab_size, arch.hidden_size)
    return model, Ends(embedding=table, norm=torch.ones(arch.hidden_size), head=torch.randn_like(table), eps=1e-5)


def random_pack(model: Eagle3, lengths: list[int], answers: list[tuple[int, int]], seed: int = 0) -> Pack:
    """Rows of random tokens and states, supervised in `answers`."""
    generator = torch.Generator().manual_seed(seed)
    starts = np.cumsum([0, *lengths]).astype(np.int64)
    total, size = int(starts[-1]), model.arch.hidden_size
    ids = torch.randint(0, model.arch.vocab_size, (total,), generator=generator)
    aux = torch.randn(total, 3 * size, generator=generator)
    last = torch.randn(total, size, generator=generator)
    mask = np.zeros(total, np.bool_)
    for start, (a, b) in zip(starts, answers, strict=False):
        mask[start + a : start + b] = True
    rows = Rows(
        name="train",
        ids=ids.numpy().astype(np.int32),
        starts=starts,
        supervised=mask,
        dataset=["d"] * len(lengths),
        shard=[None] * len(lengths),
        offset=[None] * len(lengths),
    )
    return load_pack(rows, range(len(lengths)), lambda r, m: [(aux[s:e], last[s:e]) for s, e in _spans(r, m)])


def _spans(rows: Rows, members: Any) -> list[tuple[int, int]]:
    return [(int(rows.starts[row]), int(rows.starts[row + 1])) for row in members]
