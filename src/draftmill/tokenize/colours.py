"""Tokens as text for people: pieces with their trainable ones apart, for `draftmill show` and the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftmill.target import Renderer


def pieces(renderer: Renderer, input_ids: Sequence[int], runs: Sequence[tuple[int, int]]) -> list[tuple[str, bool]]:
    """The row's text cut where training starts and stops: (text, trainable).

    `runs` are (start, length) in tokens. A character whose bytes lie on both sides of a border shows as U+FFFD.
    """
    shown: list[tuple[str, bool]] = []
    position = 0
    for start, length in runs:
        if start > position:
            shown.append((renderer.decode(input_ids[position:start]), False))
        shown.append((renderer.decode(input_ids[start : start + length]), True))
        position = start + length
    if position < len(input_ids):
        shown.append((renderer.decode(input_ids[position:]), False))
    return shown
