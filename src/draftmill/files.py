"""Files that appear whole or not at all, canonical digests, and the two small files of every stage.

metrics.json has `rows_in`, `rows_out` and `dropped: {reason: n}`, which sum; rejects.jsonl keeps the
dropped rows' ids, reasons and a short excerpt of declared paths.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftmill.errors import of_machine

if TYPE_CHECKING:
    import pyarrow as pa


def canonical(value: object) -> bytes:
    """`value` as canonical JSON: sorted keys, no blanks, UTF-8 (lone surrogates escaped)."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except TypeError:  # keys of YAML that are no texts (`on` in a join, 0 in roles) cannot be sorted beside texts
        text = json.dumps(json.loads(json.dumps(value)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def digest(value: object, size: int = 16) -> str:
    """The first 2 × `size` hex digits of the SHA-256 of `canonical(value)`."""
    return hashlib.sha256(canonical(value)).hexdigest()[: 2 * size]


def rank(seed: int, dataset: str, row_id: str) -> int:
    """The selection rank of a row, uniform in [0, 2**64): a quota takes the lowest.

    Nested by construction: a larger quota is a superset of a smaller one, and rows added to the
    source only push a few others out.
    """
    key = f"{seed}\x00{dataset}\x00{row_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; on success it is synced and renamed to `path`, else removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception as error:
        if told := of_machine(error, path):  # before what was written so far is given back
            raise told from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def parse_yaml(text: str) -> Any:
    """The plain data of a YAML text, by the parser in C where there is one. Raises yaml.YAMLError."""
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write indented JSON with sorted keys, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line, whole or not at all."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for row in rows:
            line = json.dumps(row, ensure_ascii=False, sort_keys=True)
            file.write(line.encode("utf-8", "backslashreplace") + b"\n")


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema, **options: Any) -> Iterator[Any]:
    """A pyarrow ParquetWriter (zstd, unless `options` say otherwise) whose file appears at `path` on success."""
    import pyarrow.parquet as pq

    options = {"compression": "zstd", **options}
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:
        yield writer


def write_metrics(folder: Path, rows_in: int, rows_out: int, dropped: Mapping[str, int], **more: object) -> None:
    """Write metrics.json; raises AssertionError if the counters do not sum."""
    counted = {reason: count for reason, count in sorted(dropped.items()) if count}
    assert rows_in == rows_out + sum(counted.values()), (folder, rows_in, rows_out, counted)
    write_json(folder / "metrics.json", {"rows_in": rows_in, "rows_out": rows_out, "dropped": counted, **more})


def record_run(stage: str, dataset: str | None, **figures: object) -> None:
    """Keep figures that differ between equal builds (seconds, asked, reused) out of build/, in .draftmill/runs/."""
    from draftmill.workspace import keep

    write_json(keep("runs", stage) / f"{dataset or 'all'}.json", figures)
