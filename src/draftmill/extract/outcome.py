"""What can become of a row, what is counted on the way, and the columns that rows which fit are collected in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


class Rejected(Exception):
    """The row does not fit its declaration; `reason` is its counter."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class UnknownRole(Rejected):
    """A label that neither the declaration nor the built-in map knows: fails the whole dataset."""

    def __init__(self, label: object) -> None:
        super().__init__("unknown_role", str(label))


@dataclass(slots=True)
class Work:
    """What the parts of the engine share while they read one chunk.

    `arrow`: rows come from Arrow, whose filler nulls are pruned. `calls`: a tool call or result has been
    seen, so calls and results are paired from now on. `notes`: counters that drop no row.
    """

    arrow: bool = False
    calls: bool = False
    notes: Counter[str] = field(default_factory=Counter)


Candidate = tuple[str, bytes, "bytes | None", bytes, bytes, "bytes | None", "bytes | None", bytes]
"""A row that fits: id, content, dedup, group, conversation, tools, meta, users.

`content`: 16 bytes, the hash of the conversation before `keep`, and the tools; `dedup` (or None) and `group`:
16 bytes; `users`: the JSON of the user turns that are kept, for the signature. The rest is as written.
"""


@dataclass(slots=True)
class Candidates:
    """Rows that fit: kept, unless one turns out to be a duplicate."""

    rows: list[Candidate] = field(default_factory=list)
    size: int = 0
    """About how many bytes they take."""
