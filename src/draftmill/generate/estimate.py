"""The mean answer length while answers are still coming in: short ones come back first.

The mean of the finished answers is biased low. Questions in flight say that their answers are longer than
what was written so far; with them as censored observations, the Kaplan-Meier estimator of the survival
function of lengths (Kaplan and Meier, 1958) has no such bias. Beyond the longest length seen so far a
log-normal tail is fitted to the curve and cut at the length limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

_NORMAL = NormalDist()
# Points of the curve whose survival is near 0 or 1 carry no information about its slope.
_FIT_FROM, _FIT_TO = 0.02, 0.98


def kaplan_meier(finished: Sequence[float], running: Sequence[float]) -> list[tuple[float, float]]:
    """[(length, share of answers longer than it)] at each distinct finished length, ascending."""
    events = sorted([(length, 0) for length in finished] + [(length, 1) for length in running])
    at_risk, survival = len(events), 1.0
    curve: list[tuple[float, float]] = []
    for length, censored in events:
        if not censored:
            survival *= 1 - 1 / at_risk
            if curve and curve[-1][0] == length:
                curve[-1] = (length, survival)
            else:
                curve.append((length, survival))
        at_risk -= 1
    return curve


def mean_length(finished: Sequence[float], running: Sequence[float], limit: float) -> float:
    """Estimated mean of all answer lengths, those in flight included.

    Args:
        finished: lengths of finished answers, in tokens.
        running: lengths so far of the answers in flight.
        limit: the length limit.
    """
    curve = kaplan_meier(finished, running)
    if not curve:
        return math.nan
    area = before = 0.0
    share = 1.0
    for length, after in curve:
        area += share * (length - before)
        before, share = length, after
    return area + _tail(curve, limit) if share > 1e-9 else area


def _tail(curve: list[tuple[float, float]], limit: float) -> float:
    """The area under the survival function from the last finished length to the limit."""
    last, share = curve[-1]
    fit = _log_normal(curve)
    if fit is None:
        return 0.0
    normal = NormalDist(*fit)
    at_last = 1 - normal.cdf(math.log(last))
    if at_last <= 0:
        return 0.0
    return share / at_last * (_area(normal, limit) - _area(normal, last))


def _area(normal: NormalDist, upto: float) -> float:
    """The integral of 1 - F from 0 to `upto` for the log-normal: E[min(X, upto)]."""
    mean, deviation, log = normal.mean, normal.stdev, math.log(upto)
    below = math.exp(mean + deviation**2 / 2) * _NORMAL.cdf((log - mean - deviation**2) / deviation)
    return below + upto * (1 - normal.cdf(log))


def _log_normal(curve: list[tuple[float, float]]) -> tuple[float, float] | None:
    """(mean, deviation) of the logarithm, by least squares on the normal probability plot of the curve."""
    points = [
        (_NORMAL.inv_cdf(1 - share), math.log(length))
        for length, share in curve
        if _FIT_FROM < share < _FIT_TO and length > 0
    ]
    if len(points) < 2:
        return None
    n = len(points)
    x, y = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
    spread = sum((p[0] - x) ** 2 for p in points)
    slope = sum((p[0] - x) * (p[1] - y) for p in points) / spread if spread else 0.0
    return (y - slope * x, slope) if slope > 1e-6 else None
