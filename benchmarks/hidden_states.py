"""What the hidden_states stage costs beyond the forward pass itself, and what reading its shards costs training.

    python benchmarks/hidden_states.py [--quick] [--json]

All figures are ratios of processor seconds in one run, one thread, on a random Llama with the embedded
target's dimensions (hidden 576; 30 blocks, or 8 with --quick):

capture   a bare forward of the same tokens through the same blocks, row by row, so without a padded token /
          the whole stage: reading, planning, batching, casting, writing, checksums
padding   the share of computed tokens that is padding, over lengths like those of chats
loading   seconds of reading a row's states, checksum included, from files dropped from the page cache /
          the floor of an EAGLE-3 training step on that row: its bare matrix products, forward and backward
memory    peak memory with many shards / with few
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Without this folder: its tokenize.py would stand for the module of the standard library that others import.
sys.path[:] = [str(HERE / "common"), *(folder for folder in sys.path if Path(folder).resolve() != HERE)]

import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from figures import Figure, at_least, at_most, main

from draftmill.hidden_states import States, StatesRun, pack, stage
from draftmill.hidden_states.engines import Local
from draftmill.hidden_states.store import Reader

HIDDEN, FFN, HEADS, KV, VOCABULARY, DRAFT_VOCABULARY, TTT = 576, 1536, 9, 3, 4096, 8192, 3
CAPTURE, PADDING, LOADING, MEMORY = 0.9, 0.05, 0.02, 1.25
MEMORY_PROGRAM = "import runpy; print(runpy.run_path({file!r})['peak']({rows}))"


def make_model(blocks: int) -> Any:
    """A random Llama of the embedded target's width."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=blocks,
        num_attention_heads=HEADS,
        num_key_value_heads=KV,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def chat_lengths(count: int, seed: int = 0) -> list[int]:
    """Lengths like those of tokenized chats: log-normal, a median of 240, at most 2048."""
    drawn = np.random.default_rng(seed).lognormal(np.log(240), 0.8, count)
    return np.clip(drawn, 16, 2048).astype(int).tolist()


def write_rows(lengths: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    """tokens.parquet of the dataset `bench` with random ids; returns them."""
    random = np.random.default_rng(1)
    rows = [random.integers(0, VOCABULARY, length).astype(np.int32) for length in lengths]
    path = Path("build/tokenize/bench/tokens.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = pa.array([row.tolist() for row in rows], pa.list_(pa.int32()))
    pq.write_table(pa.table({"id": [f"{i:06}" for i in range(len(rows))], "input_ids": ids}), path)
    return rows


def make_job(blocks: int, shard_gb: float = 1.0) -> stage.Job:
    """The stage's work, as configured by default."""
    return stage.Job(
        dataset="bench",
        states=States(for_=["eagle3"], shard_gb=shard_gb),
        run=StatesRun(recheck_rows=0),
        target={"name": "bench", "revision": None, "weights": "w", "states": "bench"},
        num_layers=blocks,
        hidden_size=HIDDEN,
    )


def seconds(run: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    started = time.process_time()
    run()
    return time.process_time() - started


def bare(model: Any, rows: Sequence[np.ndarray[Any, Any]]) -> None:
    """The blocks alone, one row after the other: not one padded token, nothing kept."""
    with torch.inference_mode():
        for row in rows:
            model.model(input_ids=torch.from_numpy(row).long()[None], use_cache=False)


def compare_capture(blocks: int, count: int, repeats: int) -> tuple[float, float]:
    """The bare forward's seconds / the stage's, at their best; and the padding of the stage's own batches."""
    model, lengths = make_model(blocks), chat_lengths(count)
    rows = write_rows(lengths)
    bare(model, rows[:2])
    alone, whole = [], []
    for run in range(repeats):
        alone.append(seconds(lambda: bare(model, rows)))
        whole.append(seconds(lambda: stage.build(make_job(blocks), lambda: Local(model))))
        if run + 1 < repeats:
            shutil.rmtree(".draftmill/states")
    ordered = sorted(lengths, reverse=True)
    return min(alone) / min(whole), pack.padding(ordered, pack.batches(ordered, StatesRun().batch_tokens))


def training_floor(tokens: int) -> float:
    """Seconds of an EAGLE-3 step's matrix products on so many tokens: fc, one block, the draft head; 3 TTT steps."""
    size, heads = HIDDEN, HIDDEN // HEADS
    once = [(3 * size, size)]
    each = [(2 * size, size), (2 * size, 2 * KV * heads), (size, size), (size, 2 * FFN), (FFN, size)]
    shapes = once + TTT * [*each, (size, DRAFT_VOCABULARY)]

    def run() -> None:
        for rows, columns in shapes:
            left, right = torch.ones(tokens, rows), torch.ones(rows, columns)
            result = left @ right
            _ = result @ right.T, left.T @ result

    run()
    return min(seconds(run) for _ in range(3))


def compare_loading() -> float:
    """Seconds of reading every row's states / the floor of training on them."""
    folder = Path("build/hidden_states/bench")
    for path in folder.glob("shard-*"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    index = pq.read_table(folder / "index.parquet").to_pylist()
    tokens = sum(row["length"] for row in index)

    def read() -> None:
        reader = Reader(folder)
        for row in np.random.default_rng(2).permutation(len(index)):
            aux, last = reader.read(index[row]["shard"], index[row]["offset"], index[row]["length"])
            aux.float(), last.float()

    started = time.perf_counter()
    read()
    spent = time.perf_counter() - started
    return spent / (training_floor(512) * tokens / 512)


def peak(rows: int) -> float:
    """Peak memory in MiB of a stage with so many rows in shards of 8 MB; for a process of its own."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        write_rows([100] * rows)
        model = make_model(8)
        sys.stdout = sys.stderr
        stage.build(make_job(8, shard_gb=0.008), lambda: Local(model))
        sys.stdout = sys.__stdout__
        os.chdir("/")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compare_memory(few: int, many: int) -> float:
    """Peak memory with many rows as a multiple of that with few."""
    peaks = []
    for rows in (few, many):
        program = MEMORY_PROGRAM.format(file=__file__, rows=rows)
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        peaks.append(float(done.stdout.splitlines()[-1]))
    return peaks[1] / peaks[0]


def measure(quick: bool) -> list[Figure]:
    """All figures."""
    torch.set_num_threads(1)
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="draftmill-bench-") as name:
        os.chdir(name)
        os.environ.pop("DRAFTMILL_KEEP", None)
        capture, padding = compare_capture(8 if quick else 30, 16 if quick else 150, 2 if quick else 3)
        loading = compare_loading()
        os.chdir(before)
    memory = compare_memory(50, 200 if quick else 4000)
    return [
        at_least("capture_of_bare_forward", capture, CAPTURE),
        at_most("padding", padding, PADDING),
        at_most("loading_of_training", loading, LOADING),
        at_most("memory_growth", memory, MEMORY),
    ]


if __name__ == "__main__":
    main(__doc__, measure, "a shallower model and fewer rows")
