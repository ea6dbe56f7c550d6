"""MinHash signatures of the user turns, for near duplicates: each shingle is hashed once, whatever the number of bins.

A shingle is the 16 bytes that begin at the start of a word, or at any character outside ASCII, of the lower-cased
text: about three words. The top 6 bits of its hash choose one of 64 bins, and a bin keeps the lowest of the rest
(one-permutation hashing: Li, Owen, Zhang 2012); an empty bin borrows from the next filled one to the right
(densification by rotation: Shrivastava, Li 2014). The share of equal positions of two signatures estimates the
Jaccard similarity of their sets of shingles; datasketch takes them as
`MinHash(num_perm=NUM_PERM, hashvalues=unpack(signature))`. Sixty-four permutations of every shingle, and one call
for each row, would cost twenty times all the rest of extract.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
NUM_PERM = 64
SHINGLE_BYTES = 16
SIZE = 4 * NUM_PERM
"""Bytes of a packed signature."""
MAX_BYTES = 4096
"""Of a longer text the first and the last half of this are looked at."""
_BATCH_BYTES = 1 << 17  # what is worked on stays in a core's cache
_PADDING = b"\n" * SHINGLE_BYTES
_EMPTY = np.uint32(0xFFFFFFFF)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # those of splitmix64


def signatures(texts: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    """The signatures of UTF-8 texts, uint32 [len(texts), NUM_PERM]; a text without a word has that of nothing."""
    found, batch, size = [], [], 0
    for text in texts:
        if len(text) > MAX_BYTES:
            text = text[: MAX_BYTES // 2] + text[-MAX_BYTES // 2 :]
        batch.append(text)
        size += len(text)
        if size >= _BATCH_BYTES:
            found.append(_signatures(batch))
            batch, size = [], 0
    return np.concatenate([*found, _signatures(batch)])


def unpack(packed: bytes) -> npt.NDArray[np.uint32]:
    """A packed signature as uint32 [NUM_PERM]."""
    return np.frombuffer(packed, dtype="<u4")


def _signatures(texts: list[bytes]) -> npt.NDArray[np.uint32]:
    # Padding keeps a row's last shingles from reaching into the next row.
    text = _lower(np.frombuffer(_PADDING.join([b"", *texts, b""]), np.uint8))
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(lengths + SHINGLE_BYTES)
    starts = _starts(text)
    hashes = _hashes(text, starts)
    rows = np.repeat(np.arange(len(texts)), np.diff(np.searchsorted(starts, np.concatenate(([0], ends)))))
    lowest = np.full(len(texts) * NUM_PERM, _EMPTY, np.uint32)
    bins = rows * NUM_PERM + (hashes >> np.uint64(58)).astype(np.int64)
    np.minimum.at(lowest, bins, (hashes >> np.uint64(26)).astype(np.uint32) & ~np.uint32(1))
    _densify(lowest)
    return lowest.reshape(-1, NUM_PERM)


def _lower(text: Bytes) -> Bytes:
    """The text with ASCII's capitals made small."""
    return text | (text - np.uint8(ord("A")) < 26).view(np.uint8) * np.uint8(32)


def _starts(text: Bytes) -> npt.NDArray[np.int64]:
    """Where words begin, and characters outside ASCII."""
    letters, digits = text - np.uint8(ord("a")) < 26, text - np.uint8(ord("0")) < 10
    word = letters | digits | (text >= 0x80)
    return np.flatnonzero((word[1:] & ~word[:-1]) | (text[1:] >= 0xC0)) + 1


def _hashes(text: Bytes, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash, good in its upper half, of the 16 bytes at each of `starts`."""
    pieces = np.ndarray((len(text) - 15,), "V16", buffer=text, strides=(1,))
    words = pieces[starts].view("<u8").astype(np.uint64, copy=False)
    hashes: npt.NDArray[np.uint64] = words[::2] * _MULTIPLIERS[0]
    hashes ^= hashes >> np.uint64(32)
    hashes += words[1::2]
    hashes *= _MULTIPLIERS[1]
    hashes ^= hashes >> np.uint64(32)
    hashes *= _MULTIPLIERS[0]
    return hashes


def _densify(lowest: npt.NDArray[np.uint32]) -> None:
    """Fill empty bins from the next filled bin to the right, going round in a row; the distance is mixed in."""
    full = lowest != _EMPTY
    filled, empty, before = np.flatnonzero(full), np.flatnonzero(~full), np.cumsum(full)
    ends = np.concatenate(([0], before[NUM_PERM - 1 :: NUM_PERM]))
    row = empty // NUM_PERM
    some = ends[row + 1] > ends[row]
    empty, row = empty[some], row[some]
    following = before[empty]
    following = np.where(following < ends[row + 1], following, ends[row])
    distance = (filled[following] - empty) % NUM_PERM
    lowest[empty] = lowest[filled[following]] + distance.astype(np.uint32) * np.uint32(0x9E3779B1)
