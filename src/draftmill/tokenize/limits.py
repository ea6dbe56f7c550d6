"""Rows longer than `max_seq_len`: rejected, cut after a turn, or windowed; never silently truncated."""

from __future__ import annotations

from draftmill.tokenize.rows import TokenRow


def fit(row: TokenRow, limit: int, policy: str) -> list[TokenRow]:
    """The row, or what `policy` makes of it if it has more than `limit` tokens.

    reject: nothing. cut: the row up to the end of the last assistant turn that ends within the limit; nothing if
    there is none. window: rows that end with an assistant turn and reach back as far as the limit lets them, each
    turn in `spans` of one; a turn longer than the limit is in none.
    """
    if len(row.input_ids) <= limit:
        return [row]
    if policy == "cut":
        return _cut(row, limit)
    return _windows(row, limit) if policy == "window" else []


def _cut(row: TokenRow, limit: int) -> list[TokenRow]:
    kept = [span for span in row.spans if span.end <= limit]
    return [TokenRow(input_ids=row.input_ids[: kept[-1].end], spans=kept)] if kept else []


def _windows(row: TokenRow, limit: int) -> list[TokenRow]:
    windows: list[TokenRow] = []
    left = [span for span in row.spans if span.end - span.start <= limit]
    while left:
        first = left[0].start
        inside = [span for span in left if span.end - first <= limit]
        end = inside[-1].end
        start = max(0, end - limit)
        spans = [span.moved(start) for span in inside]
        windows.append(TokenRow(input_ids=row.input_ids[start:end], spans=spans))
        left = left[len(inside) :]
    return windows
