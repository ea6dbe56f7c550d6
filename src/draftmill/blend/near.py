"""Near duplicates: rows whose user turns are alike by their MinHash signatures, found with datasketch's LSH.

Signatures were computed in extract, so a new dataset costs only its own. A candidate of the LSH index counts only
if the share of equal positions, the estimate of the Jaccard similarity, reaches the threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from draftmill.blend import NearDuplicates
from draftmill.blend.rows import Rows
from draftmill.extract.signature import NUM_PERM, unpack
from draftmill.workspace import BUILD

Signature = np.ndarray[Any, np.dtype[np.uint32]]


class Index:
    """Signatures under integer keys, and the search for one that is like another."""

    def __init__(self, threshold: float) -> None:
        from datasketch import MinHashLSH

        self.threshold = threshold
        # Bands chosen for a lower threshold: a miss costs a duplicate, a false candidate only a comparison.
        # At 0.85 this finds 99 % of the pairs that are exactly that similar.
        self._lsh = MinHashLSH(threshold=max(threshold - 0.1, 0.05), num_perm=NUM_PERM, weights=(0.1, 0.9))
        self._known: list[Signature] = []

    def add(self, found: Signature) -> int:
        """Add a signature; returns its key: 0, 1, 2, ..."""
        key = len(self._known)
        self._known.append(found)
        self._lsh.insert(key, _minhash(found), check_duplication=False)
        return key

    def like(self, wanted: Signature) -> list[tuple[float, int]]:
        """(similarity, key) of every signature at or above the threshold, the most similar and earliest first."""
        keys = sorted(self._lsh.query(_minhash(wanted)))
        shares = [(float(np.mean(self._known[key] == wanted)), key) for key in keys]
        return sorted((pair for pair in shares if pair[0] >= self.threshold), key=lambda pair: (-pair[0], pair[1]))


def _minhash(found: Signature) -> Any:
    from datasketch import LeanMinHash

    # The scheme is only a label that datasketch wants equal everywhere: these values are extract's own.
    return LeanMinHash(seed=1, hashvalues=found.astype(np.uint64), scheme="legacy")


def stream(dataset: str) -> Iterator[tuple[str, Signature | None]]:
    """(conversation id, signature) of a dataset's extracted rows; None where the user turns have no word."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(BUILD / "extract" / dataset / "rows.parquet") as file:
        for batch in file.iter_batches(columns=["id", "signature"]):
            packed = batch.column("signature").to_pylist()
            yield from zip(batch.column("id").to_pylist(), map(_unpacked, packed), strict=True)


def _unpacked(packed: bytes | None) -> Signature | None:
    """None also for a text without a word: extract fills its signature with the largest number."""
    if packed is None:
        return None
    found = unpack(packed)
    return None if (found == np.uint32(0xFFFFFFFF)).all() else found


def drop_near(datasets: Mapping[str, Rows], priority: Sequence[str], settings: NearDuplicates, seed: int) -> None:
    """Drop each row that is like one of another dataset, or of the other side of the hold-out, that comes earlier.

    Held-out rows come first, then the order of `priority`, then the rank of the row; rows of one dataset
    on one side are not compared: what is alike there is extract's decision.
    """
    index = Index(settings.threshold)
    owners: list[tuple[str, str]] = []
    for heldout in (True, False):
        for name in priority:
            rows, known = datasets[name], dict(stream(name))
            kept: list[tuple[Signature, str]] = []
            for row in rows.order(heldout, seed):
                found = known.get(rows.conversation(row, known))
                if found is None:
                    continue
                matches = index.like(found)
                if matches:
                    similarity, key = matches[0]
                    owner, other = owners[key]
                    rows.drop(row, "near_duplicate", f"{owner}/{other}", f"similarity {similarity:.2f}")
                else:
                    kept.append((found, rows.ids[row]))
            for found_signature, row_id in kept:  # only now: rows of one dataset are not compared with each other
                index.add(found_signature)
                owners.append((name, row_id))
