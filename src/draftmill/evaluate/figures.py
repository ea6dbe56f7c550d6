"""From decodings to figures: accept length with its interval, acceptance by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from draftmill.evaluate.decode import Decoded

CONFIDENCE = 95


def accept_length(decoded: Sequence[Decoded]) -> float:
    """Tokens a step, the bonus included: 1 where nothing is ever accepted."""
    steps = sum(len(one.steps) for one in decoded)
    return sum(one.emitted for one in decoded) / steps if steps else 1.0


def interval(decoded: Sequence[Decoded], resamples: int, seed: int) -> tuple[float, float]:
    """95 % bootstrap interval of the accept length over prompts (percentiles of resampled ratios of sums)."""
    emitted = np.array([one.emitted for one in decoded], dtype=np.float64)
    steps = np.array([len(one.steps) for one in decoded], dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(decoded), size=(resamples, len(decoded)))
    ratios = emitted[drawn].sum(1) / np.maximum(steps[drawn].sum(1), 1)
    tail = (100 - CONFIDENCE) / 2
    low, high = np.percentile(np.maximum(ratios, 1.0), [tail, 100 - tail])
    return float(low), float(high)


def acceptance(decoded: Sequence[Decoded], drafts: int) -> list[float]:
    """Share of the drafts at each position that are accepted, of those that the target got to."""
    accepted = np.concatenate([np.array(one.steps, dtype=np.int64) for one in decoded])
    proposed = np.concatenate([np.array(one.proposed, dtype=np.int64) for one in decoded])
    shares = []
    for place in range(drafts):
        reached = int(((accepted >= place) & (proposed > place)).sum())
        shares.append(int((accepted > place).sum()) / reached if reached else 0.0)
    return shares


def seconds_per_token(decoded: Sequence[Decoded]) -> float:
    """Wall-clock seconds a token, after the prompt was read."""
    return sum(one.seconds for one in decoded) / max(sum(one.emitted for one in decoded), 1)


def difference(plain: Sequence[int], drafted: Sequence[int]) -> int | None:
    """The first place where the drafted text leaves the plain one; None if it never does."""
    length = min(len(plain), len(drafted))
    return next((i for i in range(length) if plain[i] != drafted[i]), None)


def rounded(value: Any, digits: int = 4) -> Any:
    """Numbers in nested maps and lists, rounded for a file that people compare."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {key: rounded(inner, digits) for key, inner in value.items()}
    return [rounded(inner, digits) for inner in value] if isinstance(value, list) else value
