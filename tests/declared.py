"""Run a declaration through extract, for tests of declarations: the funnel and the records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from draftmill.extract.declaration import from_map
from draftmill.extract.run import collected, write_rejects
from draftmill.extract.table import write
from draftmill.extract.validation import check_form

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Extracted:
    """What extract made of a source; `records` have id, messages, tools, group, meta, in the order of ids."""

    rows: int
    kept: int
    filtered: int
    duplicates: int
    rejects: Counter[str]
    max_same: float
    yield_: float
    unseen: list[str]
    records: list[dict[str, Any]]
    dropped: list[dict[str, Any]]

    @property
    def funnel(self) -> tuple[int, int, int, int, int]:
        """rows, kept, filtered, duplicates, rejected."""
        return self.rows, self.kept, self.filtered, self.duplicates, self.rejects.total()

    def by_user_text(self, text: str) -> dict[str, Any]:
        """The one record whose last user turn is `text`."""
        found = [record for record in self.records if user_texts(record)[-1:] == [text]]
        assert len(found) == 1, (text, len(found))
        return found[0]


def user_texts(record: Mapping[str, Any]) -> list[str]:
    """Texts of the user turns of a record."""
    return [message["content"] for message in record["messages"] if message["role"] == "user"]


def roles(record: Mapping[str, Any]) -> list[str]:
    """Roles of the messages of a record."""
    return [message["role"] for message in record["messages"]]


def declared(name: str) -> dict[str, Any]:
    """The declaration of a dataset of this project, as it is written."""
    loaded = yaml.safe_load((ROOT / "conf" / "dataset" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def extract(declaration: Mapping[str, Any], folder: Path, name: str = "tried", mode: str = "real") -> Extracted:
    """Run `declaration` (its form is checked first) with scratch files and outputs in `folder`."""
    check_form(declaration, f"{name}.yaml")
    parsed = from_map(name, declaration, f"{name}.yaml", mode)
    with collected(parsed) as outcome:
        write(outcome.reduced, folder / "rows.parquet")
        write_rejects(outcome, folder / "rejects.jsonl")
        records = [
            {
                "id": row["id"],
                "messages": json.loads(row["conversation"]),
                "tools": row["tools"] and json.loads(row["tools"]),
                "group": row["group"],
                "meta": row["meta"] and json.loads(row["meta"]),
            }
            for row in pq.read_table(folder / "rows.parquet").to_pylist()
        ]
        return Extracted(
            rows=outcome.rows,
            kept=outcome.kept,
            filtered=outcome.filtered.total(),
            duplicates=outcome.duplicates,
            rejects=Counter({reason: count for reason, count in outcome.rejects.items() if count}),
            max_same=outcome.max_same,
            yield_=outcome.yield_,
            unseen=outcome.unseen(),
            records=records,
            dropped=[json.loads(line) for line in (folder / "rejects.jsonl").read_text("utf-8").splitlines()],
        )
