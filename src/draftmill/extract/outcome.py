"""What can become of a row, and what is counted on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


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

    `arrow`: rows come from Arrow, whose filler nulls are pruned. `notes`: counters that drop no row.
    """

    arrow: bool = False
    notes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that fits: kept, unless it turns out to be a duplicate."""

    id: str | None
    content: bytes
    """16 bytes: the hash of the conversation before `keep`, and the tools (and the cut, for `steps`)."""
    dedup: bytes | None
    group: bytes
    conversation: bytes
    tools: bytes | None
    meta: bytes | None
    user_text: str


Message = dict[str, Any]
