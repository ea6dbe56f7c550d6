"""The rows that extract left, read lazily."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from draftmill.errors import BuildError, ConfigError, did_you_mean
from draftmill.generate.dialogue import Message
from draftmill.pipeline import repro

_COLUMNS = ("id", "conversation", "tools", "group", "dedup", "meta")
_BATCH_ROWS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractedRow:
    """One row of rows.parquet; `tools`, `group`, `dedup` and `meta` as they stand there."""

    id: str
    conversation: list[Message]
    tools: str | None
    group: str | None
    dedup: str | None
    meta: str | None

    @property
    def size(self) -> int:
        """Characters of content: a measure of the prompt's length that costs nothing."""
        return sum(len(message.get("content") or "") for message in self.conversation)

    @property
    def tool_list(self) -> list[Any] | None:
        """The tools as data."""
        return orjson.loads(self.tools) if self.tools else None


class Rows:
    """build/extract/<dataset>/rows.parquet. Raises BuildError if it is not there."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise BuildError("not there yet", file=path, fix=repro("extract", path.parent.name))
        self._path = path

    def ids(self) -> list[str]:
        """The ids, in the order of the file."""
        return self._column("id")

    def strata(self, by: str, *, file: str, key: str) -> list[str]:
        """Each row's value of the `meta` entry `by`, as canonical JSON. Raises ConfigError if no row has it."""
        metas = [orjson.loads(text) if text else {} for text in self._column("meta")]
        known = {name for meta in metas for name in meta}
        if metas and by not in known:
            fix = f"{did_you_mean(by, known)}" if known else f"declare it: schema.meta: {{{by}: <path>}}"
            raise ConfigError(f"no meta value '{by}' to take the quota by", file=file, key=key, fix=fix)
        return [orjson.dumps(meta.get(by), option=orjson.OPT_SORT_KEYS).decode() for meta in metas]

    def read(self, indices: Collection[int] | None = None) -> Iterator[tuple[int, ExtractedRow]]:
        """(index, row) of the rows at `indices`, or of all, in the order of the file."""
        wanted = None if indices is None else set(indices)
        index = 0
        with pq.ParquetFile(self._path) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(_COLUMNS)):
                for values in batch.to_pylist():
                    if wanted is None or index in wanted:
                        yield index, _row(values)
                    index += 1

    def mean_bytes(self) -> float:
        """Mean size of a conversation's text, from the file's own statistics."""
        meta = pq.read_metadata(self._path)
        place = meta.schema.names.index("conversation")
        size = sum(meta.row_group(i).column(place).total_uncompressed_size for i in range(meta.num_row_groups))
        return float(size / max(meta.num_rows, 1))

    def _column(self, name: str) -> list[Any]:
        with pq.ParquetFile(self._path) as file:  # pq.read_table would import pandas: a third of a second
            return file.read(columns=[name])[name].to_pylist()


def _row(values: dict[str, Any]) -> ExtractedRow:
    return ExtractedRow(**{**values, "conversation": orjson.loads(values["conversation"])})
