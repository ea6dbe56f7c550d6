"""Exact duplicates across datasets, by the dedup key.

Held-out rows come first, whatever their dataset: a row of train that shares a key with a held-out one is
dropped. Then the dataset earlier in `priority` keeps its rows. Within one dataset extract has decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftmill.blend.rows import Rows


def drop_exact(datasets: Mapping[str, Rows], priority: Sequence[str]) -> None:
    """Drop each row whose dedup key an earlier (side, dataset) has; a row without a key is never a duplicate."""
    owners: dict[str, tuple[bool, str, str]] = {}
    for heldout in (True, False):
        for name in priority:
            rows = datasets[name]
            for row in rows.inside(heldout):
                key = rows.dedup[row]
                if key is None:
                    continue
                side, owner, kept = owners.setdefault(key, (heldout, name, rows.ids[row]))
                if (side, owner) != (heldout, name):
                    rows.drop(row, "duplicate", f"{owner}/{kept}")
