"""How accept length grows with the size of the blend: a saturating power law, a - b · rows^-c.

The form is that of the data-scaling laws of Hoffmann et al. (2022, arXiv:2203.15556), for one quantity and one
variable. Four sizes carry three parameters only just; the fit says where more data still pays, not more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EXPONENTS = np.linspace(0.05, 2.0, 196)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """accept length ≈ limit - scale · rows^-exponent; `error` is the root mean square of the residuals."""

    limit: float
    scale: float
    exponent: float
    error: float

    def at(self, rows: float) -> float:
        """The accept length that the curve gives for a number of rows."""
        return float(self.limit - self.scale * rows**-self.exponent)


def fit(rows: Sequence[float], lengths: Sequence[float]) -> Curve | None:
    """Least squares for limit and scale at each exponent of a grid; None for fewer than three different sizes."""
    if len(set(rows)) < 3:
        return None
    sizes, values = np.asarray(rows, dtype=float), np.asarray(lengths, dtype=float)
    best: Curve | None = None
    for exponent in EXPONENTS:
        design = np.stack([np.ones_like(sizes), -(sizes**-exponent)], axis=1)
        (limit, scale), *_ = np.linalg.lstsq(design, values, rcond=None)
        error = float(np.sqrt(np.mean((design @ (limit, scale) - values) ** 2)))
        if best is None or error < best.error:
            best = Curve(limit=float(limit), scale=float(scale), exponent=float(exponent), error=error)
    return best
