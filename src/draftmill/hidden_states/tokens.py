"""The distinct rows of a tokenized dataset, their ids on disk: memory holds a fingerprint and two numbers a row."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from draftmill.hidden_states.manifest import Ids, fingerprint


class Rows:
    """Reads tokens.parquet once; `names` are the (id, fingerprint) pairs in the file's order (by id).

    A context: leaving it removes the ids from the disk.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.names: list[tuple[str, str]] = []
        self.lengths: dict[str, int] = {}
        self._starts: dict[str, int] = {}
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115  (closed by __exit__)
        self._tokens = 0
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(256, columns=["id", "input_ids"]):
                for row, ids in zip(batch.column("id").to_pylist(), batch.column("input_ids"), strict=True):
                    self._add(row, ids.values.to_numpy(zero_copy_only=False))
        self._spool.flush()

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self._spool.close()

    def _add(self, row: str, values: np.ndarray[Any, Any]) -> None:
        ids: Ids = np.ascontiguousarray(values, dtype="<i4")
        name = fingerprint(ids)
        self.names.append((row, name))
        if name not in self._starts:
            self._starts[name], self.lengths[name] = self._tokens, len(ids)
            self._spool.write(ids.tobytes())
            self._tokens += len(ids)

    def ids(self, name: str) -> Ids:
        """The token ids of a row, by fingerprint."""
        self._spool.seek(4 * self._starts[name])
        return np.frombuffer(self._spool.read(4 * self.lengths[name]), dtype="<i4")
