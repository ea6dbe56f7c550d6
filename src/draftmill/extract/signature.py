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

NUM_PERM = 64
SHINGLE_BYTES = 16
SIZE = 4 * NUM_PERM
"""Bytes of a packed signature."""
MAX_BYTES = 4096
"""Of a longer text the first and the last half of this are looked at."""
_BATCH_BYTES = 1 << 18  # what is worked on stays in a core's cache
_PADDING = b"\n" * SHINGLE_BYTES
_EMPTY = np.uint32(0xFFFFFFFF)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # those of splitmix64


_CLASSES = bytes(2 if byte >= 0xC0 else int(byte >= 0x80 or chr(byte).isalnum()) for byte in range(256))
"""Of each byte: 0 between words, 1 within ASCII words and characters, 2 at the start of any other character."""


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
    data = _PADDING.join([b"", *texts, b""]).lower()
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(lengths + SHINGLE_BYTES)
    classes = np.frombuffer(data.translate(_CLASSES), np.uint8)
    starts = np.flatnonzero(classes[1:] > classes[:-1]) + 1
    hashes = _hashes(data, starts)
    rows = np.repeat(np.arange(len(texts)), np.diff(np.searchsorted(starts, np.concatenate(([0], ends)))))
    lowest = np.full(len(texts) * NUM_PERM, _EMPTY, np.uint32)
    bins = rows * NUM_PERM + (hashes >> np.uint64(58)).astype(np.int64)
    np.minimum.at(lowest, bins, (hashes >> np.uint64(26)).astype(np.uint32) & ~np.uint32(1))
    return _densified(lowest.reshape(-1, NUM_PERM))


def _hashes(data: bytes, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash, good in its upper half, of the 16 bytes at each of `starts`."""
    words: npt.NDArray[np.uint64] = np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))
    hashes = words[starts]
    hashes *= _MULTIPLIERS[0]
    hashes ^= hashes >> np.uint64(32)
    hashes += words[starts + 8]
    hashes *= _MULTIPLIERS[1]
    hashes ^= hashes >> np.uint64(32)
    hashes *= _MULTIPLIERS[0]
    return hashes


def _densified(lowest: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Empty bins filled from the next filled bin to the right, going round; the distance is mixed in."""
    far = 4 * NUM_PERM
    filled = np.where(lowest != _EMPTY, np.arange(NUM_PERM, dtype=np.int16), np.int16(far))
    filled = np.concatenate((filled, np.minimum(filled + np.int16(NUM_PERM), np.int16(far))), axis=1)
    following = np.minimum.accumulate(filled[:, ::-1], axis=1)[:, ::-1][:, :NUM_PERM]
    distance = (following - np.arange(NUM_PERM, dtype=np.int16)).astype(np.uint32)
    borrowed = np.take_along_axis(lowest, following.astype(np.intp) % NUM_PERM, axis=1)
    return np.where(following < far, borrowed + distance * np.uint32(0x9E3779B1), _EMPTY)
