"""Length-sorted batches and shards. Pure functions over lengths; no tensor is touched here.

Causal attention with padding on the right needs no mask: a real position never sees a later one.
So the only cost of unequal lengths is the padding itself, and it is bounded here.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_PADDING = 0.05


def batches(lengths: Sequence[int], budget: int, max_padding: float = MAX_PADDING) -> list[range]:
    """Split rows that are sorted by falling length into consecutive batches, as ranges of indices.

    A batch has at most `budget` tokens, padding included (a longer row is alone), and at most
    `max_padding` of its tokens are padding.
    """
    result, start, real = [], 0, 0
    for end, length in enumerate(lengths):
        padded = (end - start + 1) * lengths[start]
        if end > start and (padded > budget or padded - real - length > max_padding * padded):
            result.append(range(start, end))
            start, real = end, 0
        real += length
    return [*result, range(start, len(lengths))] if lengths else []


def shards(lengths: Sequence[int], max_tokens: int) -> list[range]:
    """Split rows into consecutive shards of at most `max_tokens` tokens each (a longer row is alone)."""
    result, start, filled = [], 0, 0
    for end, length in enumerate(lengths):
        if end > start and filled + length > max_tokens:
            result.append(range(start, end))
            start, filled = end, 0
        filled += length
    return [*result, range(start, len(lengths))] if lengths else []


def padding(lengths: Sequence[int], split: Sequence[range]) -> float:
    """The share of padding among the tokens that these batches compute."""
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in split)
    return 1 - sum(lengths) / padded if padded else 0.0
