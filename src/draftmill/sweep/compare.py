"""The comparison of a sweep's jobs: a table for the terminal, a CSV, and a plot that stands alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftmill.files import write_text
from draftmill.sweep.jobs import Result
from draftmill.sweep.scaling import Curve

if TYPE_CHECKING:
    import plotly.graph_objects as go

FIGURES = ("accept_length", "accept_length_low", "accept_length_high", "accept_length_untrained")


def swept(results: Sequence[Result]) -> list[str]:
    """The keys whose values differ between jobs, in the order of the command line."""
    settings = [_settings(result) for result in results]
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    return [key for key in keys if len({setting.get(key) for setting in settings}) > 1] or keys


def table(results: Sequence[Result]) -> list[list[str]]:
    """A header and one line per job, the longest accept length first, failed jobs last."""
    keys = swept(results)
    lines = [[*keys, "rows", "accept length", "95 % interval", "untrained", "experiment"]]
    ranked = sorted(results, key=lambda result: -result.accept_length if result.error is None else float("inf"))
    for result in ranked:
        settings = _settings(result)
        lines.append([*(settings.get(key, "") for key in keys), *_figures(result), result.experiment])
    return lines


def _figures(result: Result) -> list[str]:
    if result.error is not None:
        return ["", "failed", "", ""]
    length, low, high, untrained = (float(result.metrics[key]) for key in FIGURES)
    return [f"{result.rows:,}", f"{length:.3f}", f"{low:.3f} to {high:.3f}", f"{untrained:.3f}"]


def _settings(result: Result) -> dict[str, str]:
    pairs = (override.split("=", 1) for override in result.overrides)
    return {key.lstrip("+"): value for key, value in pairs}


def write(folder: Path, results: Sequence[Result], curve: Curve | None) -> None:
    """Write comparison.csv and comparison.html into `folder`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table(results))
    write_text(folder / "comparison.csv", text.getvalue())
    done = [result for result in results if result.error is None]
    if done:
        page = _plot(done, curve).to_html(include_plotlyjs=True, full_html=True)
        write_text(folder / "comparison.html", page)


def _plot(results: Sequence[Result], curve: Curve | None) -> go.Figure:
    """Accept length over the first swept key, one line per combination of the others, with the intervals as bars."""
    import plotly.graph_objects as go

    by_size = curve is not None
    first, *others = swept(results)
    figure = go.Figure()
    groups: dict[str, list[Result]] = {}
    for result in results:
        settings = _settings(result)
        groups.setdefault(", ".join(f"{key} {settings.get(key, '')}" for key in others), []).append(result)
    for name, group in groups.items():
        lows, highs = ([float(result.metrics[f"accept_length_{end}"]) for result in group] for end in ("low", "high"))
        figure.add_scatter(
            x=[result.rows if by_size else _settings(result).get(first, "") for result in group],
            y=[result.accept_length for result in group],
            error_y={
                "array": [high - result.accept_length for high, result in zip(highs, group, strict=True)],
                "arrayminus": [result.accept_length - low for low, result in zip(lows, group, strict=True)],
            },
            name=name or "accept length",
            mode="markers" if by_size else "lines+markers",
        )
    if curve is not None:
        sizes = sorted(result.rows or 1 for result in results)
        steps = [sizes[0] * (2 * sizes[-1] / sizes[0]) ** (i / 50) for i in range(51)]
        figure.add_scatter(x=steps, y=[curve.at(rows) for rows in steps], name="fit", mode="lines")
        figure.update_xaxes(type="log", title="rows of the blend")
    else:
        figure.update_xaxes(type="category", title=first)
    figure.update_yaxes(title="accept length (bars: 95 % interval)")
    figure.update_layout(title="What each build of the sweep reached", template="plotly_white")
    return figure
