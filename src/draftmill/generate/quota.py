"""Which rows are asked: hash rank, and a quota that takes a prefix.

A quota is a number of rows, `all`, `{fraction: 0.1}` or `{tokens: 5M}`, optionally inside each stratum
of a `meta` value (`by`). The ranking is nested: a larger quota keeps every row of a smaller one.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from draftmill.errors import ConfigError, did_you_mean
from draftmill.files import rank

_SUFFIX = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)\s*([KMB]?)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """A parsed quota: exactly one of `rows`, `fraction` and `tokens`, or none of them for `all`."""

    rows: int | None = None
    fraction: float | None = None
    tokens: int | None = None
    """Answer tokens, whatever the mask: rows count in rank order until their sum is reached."""
    by: str | None = None

    def rows_of(self, available: int) -> int:
        """How many of `available` rows (of one stratum) are candidates."""
        if self.rows is not None:
            return min(self.rows, available)
        if self.fraction is not None:
            return min(math.ceil(self.fraction * available - 1e-9), available)
        return available


def parse(value: Any, *, file: str, key: str) -> Quota:
    """A quota as it stands in a dataset's file; raises ConfigError at `key`."""
    if value == "all":
        return Quota()
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"rows": value}
    if not isinstance(value, dict):
        raise ConfigError(
            f"not a quota: {value!r}", file=file, key=key, fix="a number of rows, all, {fraction: 0.1} or {tokens: 5M}"
        )
    kinds = [name for name in value if name != "by"]
    if len(kinds) != 1:
        raise ConfigError("give exactly one of rows, fraction, tokens", file=file, key=key, found=str(sorted(value)))
    kind = kinds[0]
    if kind not in ("rows", "fraction", "tokens"):
        fix = did_you_mean(str(kind), ("rows", "fraction", "tokens", "by"))
        raise ConfigError(f"unknown key '{kind}'", file=file, key=f"{key}.{kind}", fix=fix)
    amount = _amount(kind, value[kind])
    if amount is None:
        fix = {"rows": "a whole number", "fraction": "a number in (0, 1]", "tokens": "such as 5M or 200000"}[kind]
        raise ConfigError(f"not an amount: {value[kind]!r}", file=file, key=f"{key}.{kind}", fix=fix)
    return Quota(by=value.get("by"), **{kind: amount})


def _amount(kind: str, value: Any) -> Any:
    if isinstance(value, bool):
        return None
    if kind == "tokens" and isinstance(value, str):
        match = _TOKENS.fullmatch(value.strip())
        return round(float(match[1]) * _SUFFIX[match[2].upper()]) if match else None
    if kind == "fraction":
        return float(value) if isinstance(value, int | float) and 0 < value <= 1 else None
    return value if isinstance(value, int) and value >= 0 else None


def select(
    ids: Sequence[str], strata: Iterable[str] | None, quota: Quota, *, seed: int, dataset: str, cap: int | None
) -> list[int]:
    """Indices of the rows a quota takes, in rank order; with a token quota, all rows that may be asked.

    Args:
        ids: row ids; `strata` gives each row's stratum, in the same order, or is None.
        cap: an upper limit of rows for the whole dataset, or None.
    """
    ranks = [rank(seed, dataset, row_id) for row_id in ids]
    groups: dict[str, list[int]] = defaultdict(list)
    for index, stratum in enumerate(strata if strata is not None else ("",) * len(ids)):
        groups[stratum].append(index)

    def by_rank(index: int) -> tuple[int, str]:
        return ranks[index], ids[index]

    taken = [i for group in groups.values() for i in sorted(group, key=by_rank)[: quota.rows_of(len(group))]]
    taken.sort(key=by_rank)
    return taken if cap is None else taken[:cap]


def within_tokens(counts: Iterable[int], tokens: int) -> int:
    """How many rows a token quota keeps, given their answer tokens in rank order.

    Rows count until their sum reaches `tokens`; the row that reaches it is kept.
    """
    total = kept = 0
    for count in counts:
        if total >= tokens:
            break
        total, kept = total + count, kept + 1
    return kept
