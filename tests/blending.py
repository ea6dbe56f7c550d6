"""Small tokenized datasets for the tests of blend: what extract, tokenize and hidden_states would have written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from draftmill.blend import Blend, members, stage
from draftmill.blend.write import SCHEMA
from draftmill.config import build
from draftmill.extract.signature import signatures
from draftmill.hidden_states.manifest import fingerprint

BUILD = Path("build")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass
class Row:
    """One row: its user text decides dedup key, group and signature."""

    id: str
    text: str = ""
    tokens: int = 10
    trainable: int = 4
    group: str | None = None
    dedup: str | None = ""
    conversation: str | None = None  # the extracted row it comes from, if tokenize made several of it
    ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = self.text or f"what is {digest(self.id)} plus {digest(self.id[::-1])}, and why is it so?"
        self.dedup = digest(self.text) if self.dedup == "" else self.dedup
        self.group = self.group or digest(self.text)
        self.ids = list(np.random.default_rng(int(digest(self.id), 16) % 2**32).integers(0, 500, self.tokens))


def rows(prefix: str, count: int, **more: Any) -> list[Row]:
    return [Row(f"{prefix}{i:05}", **more) for i in range(count)]


def write_dataset(name: str, made: Sequence[Row], row_group_size: int = 100) -> None:
    """The files of one dataset below build/, rows by id."""
    made = sorted(made, key=lambda row: row.id)
    ids = [row.id for row in made]
    spans = [[{"turn": 1, "start": r.tokens - r.trainable, "end": r.tokens, "origin": "generated"}] for r in made]
    masks = [[{"start": r.tokens - r.trainable, "length": r.trainable}] if r.trainable else [] for r in made]
    tokens = {
        "id": ids,
        "input_ids": pa.array([r.ids for r in made], pa.list_(pa.int32())),
        "spans": pa.array(spans, SCHEMA.field("spans").type),
        "group": [r.group for r in made],
        "dedup": pa.array([r.dedup for r in made], pa.string()),
    }
    mask = {
        "id": ids,
        "loss_mask": pa.array(masks, SCHEMA.field("loss_mask").type),
        "n_trainable": pa.array([r.trainable for r in made], pa.int32()),
    }
    index = {
        "id": ids,
        "shard": pa.array([f"shard-{name}"] * len(ids), pa.string()),
        "offset": pa.array(np.cumsum([0, *(r.tokens for r in made)])[:-1], pa.int64()),
        "length": pa.array([r.tokens for r in made], pa.int32()),
        "fingerprint": pa.array([fingerprint(np.array(r.ids)) for r in made], pa.string()),
    }
    for place, columns in (
        ("tokenize/{}/tokens", tokens),
        ("tokenize/{}/mask", mask),
        ("hidden_states/{}/index", index),
    ):
        path = BUILD / f"{place.format(name)}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    manifest = {"version": "0", "dataset": name, "mode": "online", "engine": "transformers", "target": {"states": "s"}}
    manifest |= {"layers": [2], "num_layers": 8, "hidden_size": 4, "dtype": "float32", "shards": {}}
    manifest |= {"rows": len(ids), "tokens": 0, "bytes": 0}
    (BUILD / "hidden_states" / name / "manifest.json").write_text(json.dumps(manifest))
    write_extract(name, made)


def write_extract(name: str, made: Sequence[Row]) -> None:
    """build/extract/<name>/rows.parquet: the conversations that the rows come from."""
    first = {row.conversation or row.id: row for row in made}
    talks = [json.dumps([{"role": "user", "content": row.text}]) for row in first.values()]
    packed = signatures([row.text.encode() for row in first.values()]).astype("<u4") if first else []
    columns = {
        "id": list(first),
        "conversation": talks,
        "dedup": pa.array([row.dedup for row in first.values()], pa.string()),
        "signature": pa.array([one.tobytes() for one in packed], pa.binary()),
    }
    path = BUILD / "extract" / name / "rows.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def run(
    datasets: Mapping[str, Sequence[Row]],
    allocate: Mapping[str, Any] | None = None,
    declared: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    **settings: Any,
) -> None:
    """Write the datasets and blend them: everything, unless `allocate` says otherwise."""
    for name, made in datasets.items():
        write_dataset(name, made)
    blend_again(list(datasets), allocate, declared, seed, **settings)


def blend_again(
    names: Sequence[str],
    allocate: Mapping[str, Any] | None = None,
    declared: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    **settings: Any,
) -> None:
    section = {"allocate": allocate or {"all": {"match": "*", "take": "all"}}, **settings}
    blend = build(Blend, section, file="conf/blend/x.yaml", key="")
    found = members(blend, {name: {} for name in names} | dict(declared or {}))
    stage.build(blend, found, seed, {})


def table(side: str = "train") -> list[dict[str, Any]]:
    return list(pq.read_table(BUILD / "blend" / f"{side}.parquet").to_pylist())


def chosen(side: str = "train", dataset: str | None = None) -> list[str]:
    return [f"{row['dataset']}/{row['id']}" for row in table(side) if dataset in (None, row["dataset"])]


def metrics() -> dict[str, Any]:
    return dict(json.loads((BUILD / "blend/metrics.json").read_text()))


def dropped() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BUILD / "blend/dropped.jsonl").read_text().splitlines()]
