"""Which shard holds which row. Rows that the store has stay where they are; only new rows make new shards.

The layout depends on what the store held when the plan was made, so the plan is kept beside the shards: after a
kill, or when an earlier set of rows comes back, the same rows land in the same shards, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from draftmill.files import digest, write_json
from draftmill.hidden_states import pack
from draftmill.hidden_states.shards import Store, shard_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Shard name -> fingerprints of all its rows, in order; together they hold every wanted row."""

    shards: dict[str, list[str]]


def make(wanted: Mapping[str, int], store: Store, max_tokens: int) -> Plan:
    """The kept plan for these rows (fingerprint -> length) if it can still be followed, else a new one, kept."""
    path = store.folder / "plans" / f"{digest([sorted(wanted), max_tokens])}.json"
    plan = _kept(path)
    if plan is None or not all(_followable(shard, rows, wanted, store) for shard, rows in plan.shards.items()):
        plan = _new(wanted, store, max_tokens)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, plan.shards)
    return plan


def _kept(path: Path) -> Plan | None:
    try:
        return Plan(shards=json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


def _followable(shard: str, rows: list[str], wanted: Mapping[str, int], store: Store) -> bool:
    there = shard in store.parts or wanted.keys() >= set(rows)
    return there and shard == shard_name(store.key, rows)


def _new(wanted: Mapping[str, int], store: Store, max_tokens: int) -> Plan:
    shards: dict[str, list[str]] = {}
    found: set[str] = set()
    # Of two shards with the same row, the one that serves more rows is taken: fewer files to link.
    by_use = sorted(store.parts, key=lambda shard: (-sum(row in wanted for row, _ in store.rows(shard)), shard))
    for shard in by_use:
        rows = [row for row, _ in store.rows(shard)]
        if any(row in wanted and row not in found for row in rows):
            shards[shard] = rows
            found.update(rows)
    # Longest first: too little memory shows at once. Equal lengths by fingerprint: the order is the content's.
    missing = sorted(wanted.keys() - found, key=lambda row: (-wanted[row], row))
    for chosen in pack.shards([wanted[row] for row in missing], max_tokens):
        rows = [missing[i] for i in chosen]
        shards[shard_name(store.key, rows)] = rows
    return Plan(shards=shards)


def locations(plan: Plan, wanted: Mapping[str, int], store: Store) -> dict[str, tuple[str, int, int]]:
    """Fingerprint -> (shard, offset, length) of every wanted row; all shards of the plan must be in the store."""
    found: dict[str, tuple[str, int, int]] = {}
    for shard in plan.shards:
        offset = 0
        for row, length in store.rows(shard):
            if row in wanted:
                found.setdefault(row, (shard, offset, length))
            offset += length
    return found
