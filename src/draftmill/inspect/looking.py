"""Read the first rows of a source, propose a declaration, and try it on them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from draftmill.errors import DataError
from draftmill.extract import Source
from draftmill.extract.declaration import from_map
from draftmill.extract.failures import DAMAGED, UNREADABLE
from draftmill.extract.readers import Reject, read
from draftmill.extract.run import collected, summary
from draftmill.inspect.propose import Proposal, propose

ROWS = 400
EXPECTED_YIELD = 0.99


@dataclass(slots=True)
class Inspection:
    """What was read and what came of it; `funnel` is the proposal's, tried on the rows read."""

    source: Source
    rows: list[Any]
    unreadable: Counter[str]
    proposal: Proposal
    funnel: str = ""
    declaration: dict[str, Any] = field(default_factory=dict)


def inspect(source: Source, rows: int = ROWS) -> Inspection:
    """Read the first rows of `source`, propose a declaration, and try it on them.

    Raises DataError for what cannot be read or holds no row.
    """
    items = [item.value for item in itertools.islice(read(source), rows)]
    values = [value for value in items if not isinstance(value, Reject)]
    unreadable = Counter(value.reason for value in items if isinstance(value, Reject))
    if not values:
        raise _no_row(source, [value for value in items if isinstance(value, Reject)])
    found = Inspection(source, values, unreadable, propose(values, _one_document(source, values)))
    if found.proposal.schema is not None:
        _try(found, rows)
    return found


def _no_row(source: Source, refused: list[Reject]) -> DataError:
    """The error for a source of which nothing can be read, in the words for the first that was refused."""
    file = str(source.files or source.hub)
    if not refused:
        return DataError("no row can be read: it holds none", file=file)
    first = refused[0]
    found = f"{len(refused)} tried; the first: {first.reason} ({first.detail})"
    return DataError("no row can be read", file=file, found=found, fix=UNREADABLE.get(first.reason, DAMAGED))


def _one_document(source: Source, rows: list[Any]) -> bool:
    """Whether the rows may be the elements of one JSON document: a single .json file of turns."""
    return (
        isinstance(source.files, str)
        and Path(source.files).is_file()
        and ".jsonl" not in source.files
        and len(rows) > 1
    )


def _try(found: Inspection, rows: int) -> None:
    """Run the proposal over the rows read; a yield below the usual one is written into it, with its reasons."""
    proposal, schema = found.proposal, dict(found.proposal.schema or {})
    source = {key: value for key, value in asdict(found.source).items() if value is not None}
    source |= {"rows": proposal.rows} if proposal.rows else {}
    found.declaration = {
        "tags": [],
        "source": source,
        "schema": schema,
        "quota": "all",
        "answer": "regenerate",
        "mask": "assistant",
    }
    declaration = replace(from_map("inspect", found.declaration, "proposed", "real"), limit=rows)
    with collected(declaration) as outcome:
        found.funnel = summary(outcome)
        unknown = outcome.rejects["unknown_role"] == outcome.rows  # another note says so
        if outcome.yield_ < EXPECTED_YIELD and not unknown:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(outcome.rejects.items()) if count)
            proposal.notes.append(f"{outcome.rejects.total()} of {outcome.rows} rows do not fit: {reasons}")
            if outcome.kept:
                schema["expect"] = {"yield": math.floor(outcome.yield_ * 100) / 100}
