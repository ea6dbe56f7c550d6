"""A MinHash signature of a text, for near duplicates: one hash for each window, one permutation for all bins.

The text is lower-cased; its shingles are windows of 8 bytes of its UTF-8. Each is hashed once to 64 bits;
the top 6 bits choose one of 64 bins, and a bin keeps the lowest of the rest (one-permutation hashing: Li, Owen,
Zhang 2012). An empty bin borrows from the next filled one to the right (densification by rotation: Shrivastava,
Li 2014). The share of equal positions of two signatures estimates the Jaccard similarity of their shingle sets;
datasketch takes them as `MinHash(num_perm=NUM_PERM, hashvalues=unpack(signature))`. Computing 64 permutations
instead costs 64 times as much, more than all the rest of extract.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

NUM_PERM = 64
SHINGLE_BYTES = 8
SIZE = 4 * NUM_PERM
"""Bytes of a packed signature."""
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # splitmix64's finalizer
_EMPTY = np.uint32(0xFFFFFFFF)


def signature(text: str) -> bytes | None:
    """The packed signature of a text, SIZE bytes; None for a text without any character."""
    data = text.lower().encode("utf-8", "surrogatepass")
    if not data:
        return None
    hashes = _mix(_windows(data.ljust(SHINGLE_BYTES)))
    bins = (hashes >> np.uint64(58)).astype(np.intp)
    lowest = np.full(NUM_PERM, _EMPTY, dtype=np.uint32)
    np.minimum.at(lowest, bins, (hashes & np.uint64(0xFFFFFFFE)).astype(np.uint32))
    return _densify(lowest).astype("<u4").tobytes()


def unpack(packed: bytes) -> npt.NDArray[np.uint32]:
    """The signature as uint32 [NUM_PERM]."""
    return np.frombuffer(packed, dtype="<u4")


def _windows(data: bytes) -> npt.NDArray[np.uint64]:
    """Every window of 8 bytes as a uint64 [len(data) - 7]."""
    raw = np.frombuffer(data, dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(raw, SHINGLE_BYTES).copy().view("<u8").ravel()


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _MULTIPLIERS[0]
        values = (values ^ (values >> np.uint64(27))) * _MULTIPLIERS[1]
    return values ^ (values >> np.uint64(31))


def _densify(lowest: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Empty bins filled from the next filled bin to the right, the distance mixed in."""
    filled = np.flatnonzero(lowest != _EMPTY)
    places = np.arange(NUM_PERM)
    following = filled[np.searchsorted(filled, places) % len(filled)]
    distance = (following - places) % NUM_PERM
    return (lowest[following] + distance.astype(np.uint32) * np.uint32(0x9E3779B1)).astype(np.uint32)
