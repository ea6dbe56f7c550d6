"""What every benchmark ends with: its figures beside their limits, as a table or as one JSON object."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure and what it must be."""

    name: str
    value: float
    limit: float
    better: Literal["higher", "lower"]

    @property
    def ok(self) -> bool:
        """Whether the limit is kept."""
        return self.value <= self.limit if self.better == "lower" else self.value >= self.limit


def at_most(name: str, value: float, limit: float) -> Figure:
    """A figure that is better the lower it is."""
    return Figure(name, value, limit, "lower")


def at_least(name: str, value: float, limit: float) -> Figure:
    """A figure that is better the higher it is."""
    return Figure(name, value, limit, "higher")


def main(about: str | None, measure: Callable[[bool], list[Figure]], quickly: str) -> None:
    """Measure and print; exit code 1 if a limit is missed, which the JSON object says itself.

    `measure` gets whether --quick was given; what it prints on the way is the detail. `quickly`: what --quick leaves
    out.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{quickly}; under 50 seconds on a quiet core")
    parser.add_argument("--json", action="store_true", help="only the figures, as one JSON object")
    given = parser.parse_args()
    if given.json:
        with contextlib.redirect_stdout(sys.stderr):
            figures = measure(given.quick)
        print(json.dumps({"figures": [{**asdict(figure), "ok": figure.ok} for figure in figures]}))
        return
    figures = measure(given.quick)
    for figure in figures:
        sign, verdict = {"lower": "at most", "higher": "at least"}[figure.better], "ok" if figure.ok else "MISSED"
        print(f"{figure.name:32} {figure.value:10.4g}   {sign:8} {figure.limit:<8g} {verdict}")
    sys.exit(not all(figure.ok for figure in figures))
