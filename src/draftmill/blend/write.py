"""train.parquet and heldout.parquet: the rows chosen, in a seeded order, with all that training reads but the states.

The order mixes all datasets, so the rows are scattered to buckets on disk (one pass over each dataset), and each
bucket is sorted and appended: memory is bounded by a bucket, whatever the blend's size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from draftmill.errors import BuildError
from draftmill.files import parquet_writer, rank
from draftmill.hidden_states.manifest import fingerprint
from draftmill.pipeline import repro
from draftmill.workspace import BUILD, scratch

BUCKET_TOKENS = 16_000_000
_RUNS = pa.list_(pa.struct([("start", pa.int32()), ("length", pa.int32())]))
_SPANS = pa.list_(
    pa.struct(
        [
            ("turn", pa.int32()),
            ("start", pa.int32()),
            ("end", pa.int32()),
            ("origin", pa.string()),
            ("flag", pa.float32()),
        ]
    )
)
SCHEMA = pa.schema(
    [
        ("dataset", pa.string()),
        ("id", pa.string()),
        ("shard", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int32()),
        ("fingerprint", pa.string()),
        ("copy", pa.int32()),
        ("position", pa.int64()),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", _RUNS),
        ("spans", _SPANS),
        ("n_trainable", pa.int32()),
        ("group", pa.string()),
        ("dedup", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A row of the blend: its place in its dataset's files, and which copy of it this is."""

    dataset: str
    row: int
    copy: int


def shuffled(chosen: Sequence[Chosen], ids: Mapping[str, Sequence[str]], seed: int) -> list[Chosen]:
    """The global order: by a hash of seed, dataset, id and copy, so that a change elsewhere moves no pair of rows."""
    return sorted(
        chosen, key=lambda c: (rank(seed, f"order\x00{c.dataset}", f"{ids[c.dataset][c.row]}\x00{c.copy}"), c.dataset)
    )


def write(path: Path, order: Sequence[Chosen], tokens: int) -> None:
    """Write the rows in this order. `tokens` is their total, which sets the number of buckets."""
    size = -(-len(order) // (1 + tokens // BUCKET_TOKENS)) or 1
    wanted: dict[str, dict[int, list[tuple[int, int]]]] = {}
    for position, chosen in enumerate(order):
        places = wanted.setdefault(chosen.dataset, {})
        places.setdefault(chosen.row, []).append((chosen.copy, position))
    with scratch("blend", path.stem) as folder:
        buckets = [folder / str(i) for i in range(-(-len(order) // size))]
        _scatter(wanted, buckets, size)
        with parquet_writer(path, SCHEMA) as writer:
            for bucket in buckets:
                with pa.OSFile(str(bucket)) as file:
                    writer.write_table(ipc.open_stream(file).read_all().sort_by("position"))


def _scatter(wanted: Mapping[str, Mapping[int, list[tuple[int, int]]]], buckets: Sequence[Path], size: int) -> None:
    files = [pa.OSFile(str(bucket), "wb") for bucket in buckets]
    writers = [ipc.new_stream(file, SCHEMA) for file in files]
    try:
        for dataset in sorted(wanted):
            for first, table in _batches(dataset):
                found = [(row, *place) for row in range(len(table)) for place in wanted[dataset].get(first + row, ())]
                for bucket, writer in enumerate(writers):
                    _append(writer, table, dataset, [place for place in found if place[2] // size == bucket])
    finally:
        for closing in (*writers, *files):
            closing.close()


def _append(writer: Any, table: pa.Table, dataset: str, places: list[tuple[int, int, int]]) -> None:
    if not places:
        return
    rows, copies, positions = zip(*places, strict=True)
    own = table.take(pa.array(rows, pa.int64()))
    _check(own, dataset)
    columns = {name: own.column(name) for name in own.column_names}
    columns["dataset"] = pa.array([dataset] * len(rows), pa.string())
    columns["copy"], columns["position"] = pa.array(copies, pa.int32()), pa.array(positions, pa.int64())
    made = pa.table([columns[field.name] for field in SCHEMA], names=SCHEMA.names).cast(SCHEMA)
    writer.write_table(made)


def _check(table: pa.Table, dataset: str) -> None:
    """The states must be of these very tokens: a fingerprint of other ones ends the stage."""
    ids = (row for chunk in table.column("input_ids").chunks for row in chunk)
    for row, name in zip(ids, table.column("fingerprint").to_pylist(), strict=True):
        if fingerprint(row.values.to_numpy(zero_copy_only=False)) != name:
            path = BUILD / "hidden_states" / dataset / "index.parquet"
            raise BuildError("is about other tokens", file=path, fix=repro("hidden_states", dataset))


def _batches(dataset: str, size: int = 512) -> Iterator[tuple[int, pa.Table]]:
    """(number of the first row, joined columns) of a dataset's three tables, which have the same rows in one order."""
    folder = BUILD / "tokenize" / dataset
    sources = (
        (folder / "tokens.parquet", ["id", "input_ids", "spans", "group", "dedup"]),
        (folder / "mask.parquet", ["loss_mask", "n_trainable"]),
        (BUILD / "hidden_states" / dataset / "index.parquet", ["shard", "offset", "length", "fingerprint"]),
    )
    files = [pq.ParquetFile(path) for path, _ in sources]
    try:
        streams = [
            _even(file.iter_batches(size, columns=names), size) for file, (_, names) in zip(files, sources, strict=True)
        ]
        first = 0
        for parts in zip(*streams, strict=True):
            yield first, pa.table({name: part.column(name) for part in parts for name in part.column_names})
            first += len(parts[0])
    finally:
        for file in files:
            file.close()


def _even(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `size` rows but the last: row groups of unlike files end at unlike rows."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        while sum(map(len, held)) >= size:
            table = pa.Table.from_batches(held)
            yield table.slice(0, size)
            held = table.slice(size).to_batches()
    if held:
        yield pa.Table.from_batches(held)
