"""`draftmill export-tokens`: tokenized rows as JSON Lines, for those who feed another trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow.parquet as pq

from draftmill.config import declared
from draftmill.errors import BuildError
from draftmill.pipeline import repro
from draftmill.workspace import BUILD

BATCH_ROWS = 256


def rows(dataset: str) -> Iterator[dict[str, Any]]:
    """Rows with something to train: input_ids, loss_mask (0 or 1 a token), seq_len, n_prompt_tokens,
    n_response_tokens. Raises BuildError if the dataset is not tokenized, UsageError if there is none of that name.
    """
    folder = BUILD / "tokenize" / dataset
    files = [pq.ParquetFile(_there(folder / name, dataset)) for name in ("tokens.parquet", "mask.parquet")]
    tokens, masks = (_rows_of(file) for file in files)
    for row, mask in zip(tokens, masks, strict=True):
        assert row["id"] == mask["id"], (dataset, row["id"], mask["id"])
        if mask["n_trainable"]:
            length = len(row["input_ids"])
            yield {
                "input_ids": row["input_ids"],
                "loss_mask": expanded(mask["loss_mask"], length),
                "seq_len": length,
                "n_prompt_tokens": row["n_prompt_tokens"],
                "n_response_tokens": row["n_response_tokens"],
            }


def write_jsonl(datasets: Sequence[str], file: BinaryIO) -> int:
    """Write the rows of some datasets, one JSON object a line; how many."""
    count = 0
    for dataset in datasets:
        for row in rows(dataset):
            file.write(orjson.dumps(row) + b"\n")
            count += 1
    return count


def expanded(runs: Sequence[dict[str, int]], length: int) -> list[int]:
    """0 or 1 for each token, from runs of trainable ones."""
    mask = [0] * length
    for run in runs:
        mask[run["start"] : run["start"] + run["length"]] = [1] * run["length"]
    return mask


def _rows_of(file: pq.ParquetFile) -> Iterator[dict[str, Any]]:
    return (row for batch in file.iter_batches(BATCH_ROWS) for row in batch.to_pylist())


def _there(file: Path, dataset: str) -> Path:
    if not file.exists():
        declared(dataset)
        raise BuildError("not there yet", file=file, fix=repro("tokenize", dataset))
    return file
