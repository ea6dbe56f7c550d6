"""How many rows, or trainable tokens, each dataset gives. Pure: numbers in, numbers out.

A total is split by Webster's divisor method with caps: seat j of a dataset with weight w stands at
(j - 1/2) / w on one line, and the total takes the first seats on it. So the sums are exact, a cap
moves the rest to the others, and a larger total gives no dataset less (largest remainders would).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from draftmill.blend import Amount, Blend, Rule

Unit = Literal["rows", "tokens"]


class Supply:
    """What a dataset can give: the trainable tokens of its rows, in the order of their rank."""

    def __init__(self, trainable: Sequence[int]) -> None:
        total, self._sums = 0, [0]
        for tokens in trainable:
            total += tokens
            self._sums.append(total)
        self.rows, self.tokens = len(trainable), total

    def tokens_of(self, rows: int) -> int:
        """Trainable tokens of the first `rows` rows, counting further rounds over the dataset as repeats."""
        rounds, rest = divmod(rows, self.rows) if self.rows else (0, 0)
        return rounds * self.tokens + self._sums[rest]

    def rows_for(self, amount: int, unit: Unit) -> int:
        """Rows of a request: the longest prefix whose tokens do not exceed it, if the unit is tokens."""
        if unit == "rows" or not self.tokens:
            return amount if unit == "rows" else 0
        rounds, rest = divmod(amount, self.tokens)
        low, high = 0, self.rows
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._sums[middle] <= rest else (low, middle - 1)
        return rounds * self.rows + low

    def available(self, unit: Unit) -> int:
        """Rows or tokens, each counted once."""
        return self.rows if unit == "rows" else self.tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the blend asks of one dataset, and what of that it can have."""

    dataset: str
    rule: str
    unit: Unit
    requested: int
    feasible: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The requests, by dataset name, and why they cannot be met (empty: they can)."""

    requests: dict[str, Request]
    problems: list[str]


def apportion(total: int, weights: Mapping[str, float], caps: Mapping[str, int] | None = None) -> dict[str, int]:
    """Split `total` by weight, each part at most its cap; the parts sum to `total`, or to all caps if that is less."""
    parts = dict.fromkeys(sorted(weights), 0)
    limit = {name: (caps[name] if caps is not None else total) if weights[name] > 0 else 0 for name in parts}
    total = min(total, sum(limit.values()))
    if total <= 0:
        return parts

    def at(scale: float) -> dict[str, int]:
        return {name: min(limit[name], math.floor(weights[name] * scale + 0.5)) for name in parts}

    low, high = 0.0, total / sum(weights.values())
    while sum(at(high).values()) < total:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle).values()) <= total else (low, middle)
    # A little under the threshold, so that rounding of floats decides nothing; the last few seats go one by one.
    parts = at(low * (1 - 1e-9))
    seats = [((parts[name] + 0.5) / weights[name], name) for name in parts if parts[name] < limit[name]]
    heapq.heapify(seats)
    for _ in range(total - sum(parts.values())):
        _, name = heapq.heappop(seats)
        parts[name] += 1
        if parts[name] < limit[name]:
            heapq.heappush(seats, ((parts[name] + 0.5) / weights[name], name))
    return parts


def allocate(blend: Blend, rules: Mapping[str, Sequence[str]], supply: Mapping[str, Supply]) -> Allocation:
    """Resolve takes, then shares of what they leave of the size. `rules` maps a rule to its datasets."""
    requests: dict[str, Request] = {}
    problems: list[str] = []
    size = blend.size if isinstance(blend.size, Amount) else None
    unit: Unit = size.unit if size else "rows"
    left = size.number if size else None
    for name, rule in blend.allocate.items():
        if rule.take is None:
            continue
        made = _take(name, rule, rules[name], supply, blend.max_repeat)
        used = _amount(made, supply, unit)
        if left is not None and used > left:
            problems.append(f"{name} takes {used} {unit}, and only {left} of size are left")
            made = _cut(made, left, unit, supply)
            used = _amount(made, supply, unit)
        left = None if left is None else left - used
        requests.update((request.dataset, request) for request in made)
    shares = {name: rule.share for name, rule in blend.allocate.items() if rule.share is not None}
    if shares:
        room = left if left is not None else _scarcest(blend, rules, supply)
        for name, amount in apportion(room, shares).items():
            made = _split(name, blend.allocate[name], amount, unit, rules[name], supply, blend.max_repeat)
            requests.update((request.dataset, request) for request in made)
    elif left:
        problems.append(f"size is {left} {unit} more than all takes give, and no rule has a share")
    problems += [
        f"{r.dataset}: {r.requested} {r.unit} requested, {r.feasible} feasible"
        for r in requests.values()
        if r.requested > r.feasible
    ]
    return Allocation(requests=dict(sorted(requests.items())), problems=problems)


def _take(
    name: str, rule: Rule, datasets: Sequence[str], supply: Mapping[str, Supply], max_repeat: int
) -> list[Request]:
    if isinstance(rule.take, Amount):
        return _split(name, rule, rule.take.number, rule.take.unit, datasets, supply, max_repeat)
    return [
        Request(dataset=d, rule=name, unit="rows", requested=supply[d].rows, feasible=supply[d].rows) for d in datasets
    ]


def _split(
    name: str,
    rule: Rule,
    amount: int,
    unit: Unit,
    datasets: Sequence[str],
    supply: Mapping[str, Supply],
    max_repeat: int,
) -> list[Request]:
    weights = _weights(rule, datasets, supply)
    caps = {d: supply[d].available(unit) * max_repeat for d in datasets}
    parts = apportion(amount, weights, caps)
    if sum(parts.values()) < amount:  # it cannot be met: show what was asked of each
        parts = apportion(amount, weights if any(weights.values()) else dict.fromkeys(datasets, 1.0))
    return [
        Request(dataset=d, rule=name, unit=unit, requested=parts[d], feasible=min(parts[d], caps[d])) for d in datasets
    ]


def _weights(rule: Rule, datasets: Sequence[str], supply: Mapping[str, Supply]) -> dict[str, float]:
    # Relative to the largest: a small temperature must not overflow.
    largest = max((supply[d].rows for d in datasets), default=0) or 1
    return {d: (supply[d].rows / largest) ** (1 / rule.temperature) for d in datasets}


def _amount(requests: Sequence[Request], supply: Mapping[str, Supply], unit: Unit) -> int:
    """What the feasible parts of some requests come to, in another unit."""
    total = 0
    for request in requests:
        own = supply[request.dataset]
        rows = own.rows_for(request.feasible, request.unit)
        total += rows if unit == "rows" else own.tokens_of(rows)
    return total


def _cut(requests: Sequence[Request], left: int, unit: Unit, supply: Mapping[str, Supply]) -> list[Request]:
    """Requests whose feasible parts come to at most `left`, in proportion; what was requested stays as it was."""
    amounts = {request.dataset: _amount([request], supply, unit) for request in requests}
    parts = apportion(left, {d: float(amount) for d, amount in amounts.items()}, amounts)
    return [
        Request(
            dataset=r.dataset,
            rule=r.rule,
            unit=unit,
            requested=max(amounts[r.dataset], parts[r.dataset]),
            feasible=parts[r.dataset],
        )
        for r in requests
    ]


def _scarcest(blend: Blend, rules: Mapping[str, Sequence[str]], supply: Mapping[str, Supply]) -> int:
    """The largest number of rows for all shares together of which every dataset can give its part without repeats."""
    shares = {name: rule.share for name, rule in blend.allocate.items() if rule.share}
    total = sum(shares.values())
    bounds = []
    for name, share in shares.items():
        weights = _weights(blend.allocate[name], rules[name], supply)
        whole = sum(weights.values())
        bounds += [supply[d].rows * total * whole / (share * weights[d]) for d in rules[name] if weights[d]] or [0.0]
    size = math.floor(min(bounds))
    while size and not _fits(size, blend, shares, rules, supply):
        size -= 1
    return size


def _fits(
    size: int,
    blend: Blend,
    shares: Mapping[str, float],
    rules: Mapping[str, Sequence[str]],
    supply: Mapping[str, Supply],
) -> bool:
    for name, amount in apportion(size, shares).items():
        parts = apportion(amount, _weights(blend.allocate[name], rules[name], supply))
        if any(parts[d] > supply[d].rows for d in parts):
            return False
    return True
