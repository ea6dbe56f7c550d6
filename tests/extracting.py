"""Rows through a declaration, in the order they were written, for the tests of extract."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftmill.errors import DraftmillError
from draftmill.extract.declaration import from_map
from draftmill.extract.failures import check
from draftmill.extract.run import collected
from draftmill.extract.trying import first_rows
from draftmill.extract.validation import validate

FILE = "conf/dataset/toy.yaml"


@dataclass(frozen=True)
class Extracted:
    """What came of some rows; `conversations` are [(role, content), …] and `messages` the whole messages."""

    messages: list[list[dict[str, Any]]]
    tools: list[Any]
    ids: list[str]
    rejects: Counter[str]
    filtered: Counter[str]
    notes: Counter[str]
    duplicates: int
    unseen: list[str]

    @property
    def conversations(self) -> list[list[tuple[str, str]]]:
        return [[(message["role"], message["content"]) for message in row] for row in self.messages]

    @property
    def only(self) -> list[tuple[str, str]]:
        """The conversation of the only row that was kept."""
        assert len(self.messages) == 1, (self.messages, self.rejects)
        return self.conversations[0]


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    """Rows as JSON Lines or Parquet, as the suffix says."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def declaration(schema: Mapping[str, Any] | str, files: str | list[str], **more: Any) -> dict[str, Any]:
    """A dataset's map; `schema` may be YAML."""
    parsed = yaml.safe_load(schema) if isinstance(schema, str) else dict(schema)
    return {"source": {"files": files, **more.pop("source", {})}, "schema": parsed, **more}


def extract(
    folder: Path,
    schema: Mapping[str, Any] | str,
    *rows: Any,
    suffix: str = ".jsonl",
    checked: bool = False,
    **more: Any,
) -> Extracted:
    """Run `rows` through `schema`; with `checked` a failure of the whole dataset is raised."""
    path = write_rows(folder / f"rows{suffix}", rows)
    raw = declaration(schema, str(path), **more)
    validate("toy", raw, FILE)
    with collected(from_map("toy", raw, FILE, "real"), memory=1 << 28) as outcome:
        if checked:
            check(outcome, from_map("toy", raw, FILE, "real"))
        first = first_rows(outcome, 10_000)
        dropped = outcome.kept + outcome.duplicates + outcome.rejects.total() + outcome.filtered.total()
        assert outcome.rows == dropped, "every row ends in exactly one counter"
        return Extracted(
            [row["messages"] for row in first],
            [row.get("tools") for row in first],
            [row["id"] for row in first],
            outcome.rejects,
            outcome.filtered,
            +outcome.notes,
            outcome.duplicates,
            outcome.unseen(),
        )


def failure(folder: Path, schema: Mapping[str, Any] | str, *rows: Any, **more: Any) -> str:
    """The message that a declaration over `rows` fails with; it names file and key, and says what to do."""
    with pytest.raises(DraftmillError) as caught:
        extract(folder, schema, *rows, checked=True, **more)
    assert caught.value.file and caught.value.key and caught.value.fix, str(caught.value)
    return str(caught.value)


def chat(*turns: tuple[str, Any], role: str = "role", text: str = "content") -> list[dict[str, Any]]:
    """Turns as objects."""
    return [{role: who, text: said} for who, said in turns]
