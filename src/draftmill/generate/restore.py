"""Fills the store from answers.parquet: a checkout with `dvc pull` and no store asks nothing again.

DVC deletes the file before the stage runs, but keeps it in its cache, under the hash that dvc.lock names.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from draftmill import pipeline
from draftmill.console import say
from draftmill.generate.request import Answer
from draftmill.generate.store import Store
from draftmill.workspace import BUILD

_COLUMNS = ["conversation", "turns", "output_ids"]


def fill(store: Store, dataset: str) -> int:
    """Put the answers of the dataset's last build into the store, unless they are there; how many it got."""
    path = earlier_answers(dataset)
    if path is None or _has(store, path):
        return 0
    count = 0
    for key, answer in answers(path):
        store.put(key, answer)
        count += 1
    store.commit()
    say(f"generate {dataset}: {count} answers of the last build are in the store now")
    return count


def earlier_answers(dataset: str) -> Path | None:
    """answers.parquet of the workspace, else that of DVC's cache; None if there is neither."""
    path = BUILD / "generate" / dataset / "answers.parquet"
    if path.exists():
        return path
    cached = _in_cache(dataset, path)
    return cached if cached is not None and cached.exists() else None


def answers(path: Path) -> Iterator[tuple[str, Answer]]:
    """(key, answer) of every generated turn in an answers.parquet."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(256, columns=_COLUMNS):
            for row in batch.to_pylist():
                yield from _of_row(row)


def _of_row(row: dict[str, Any]) -> Iterator[tuple[str, Answer]]:
    generated = [turn for turn in orjson.loads(row["turns"]) if turn["origin"] == "generated"]
    ids = row["output_ids"] or [None] * len(generated)
    conversation = orjson.loads(row["conversation"])
    for turn, output_ids in zip(generated, ids, strict=True):
        message = None if output_ids is not None else conversation[turn["position"]]
        yield (
            turn["key"],
            Answer(
                finish=turn["finish_reason"],
                limit=turn["limit"],
                engine=turn["engine"],
                output_ids=output_ids,
                message=message,
                usage=turn["usage"],
            ),
        )


def _has(store: Store, path: Path) -> bool:
    """Whether the first and the last answer of the file are in the store: then all are, or never were wanted."""
    with pq.ParquetFile(path) as file:
        groups = file.metadata.num_row_groups
        ends = {0, groups - 1} if groups and file.metadata.num_rows else set()
        turns = [file.read_row_group(group, columns=_COLUMNS).to_pylist() for group in sorted(ends)]
    keys = [list(_of_row(rows[place])) for rows in turns for place in (0, -1)]
    return all(store.get(key, 0) is not None for found in keys for key, _ in found)


def _in_cache(dataset: str, path: Path) -> Path | None:
    """Where DVC's cache has the file that dvc.lock names."""
    stage = pipeline.locked("generate").get(f"generate@{dataset}", {})
    for out in stage.get("outs", []):
        if out.get("path") == path.as_posix() and isinstance(out.get("md5"), str):
            return _cache_folder() / "files" / "md5" / out["md5"][:2] / out["md5"][2:]
    return None


def _cache_folder() -> Path:
    """`cache.dir` of DVC's configuration (relative to .dvc), or .dvc/cache."""
    config = configparser.ConfigParser()
    config.read([".dvc/config", ".dvc/config.local"], encoding="utf-8")
    return Path(".dvc") / config.get("cache", "dir", fallback="cache")
