"""Which rows are kept for evaluation: a pure function of the group key, so growth moves nobody across.

No dataset name and no seed is in the hash: the same prompt in two datasets falls on one side.
"""

from __future__ import annotations

import hashlib

from draftmill.blend import Holdout
from draftmill.blend.rows import Rows


def is_heldout(group: str, holdout: Holdout) -> bool:
    """Whether the rows of a group are held out. A larger fraction holds out a superset."""
    key = f"{holdout.salt}\x00{group}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") < int(holdout.fraction * 2**64)


def mark(rows: Rows, holdout: Holdout) -> None:
    """Set `heldout` of every row."""
    sides = {group: is_heldout(group, holdout) for group in set(rows.groups)}
    rows.heldout[:] = [sides[group] for group in rows.groups]
