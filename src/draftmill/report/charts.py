"""The charts of the report, drawn by plotly; each becomes a piece of HTML without the library.

Colours are readable on light and dark paper; the page's script sets text and grid colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from draftmill.report.collect import Build, Dataset

# Okabe and Ito's palette: told apart with any colour vision, on white and on black.
PALETTE = ("#009E73", "#E69F00", "#56B4E9", "#D55E00", "#CC79A7", "#0072B2", "#B8A800", "#8C8C8C")
BAR_PX, MARGIN_PX, CURVE_PX = 26, 130, 320


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A drawn chart: what it shows, and its HTML."""

    title: str
    html: str


def _draw(figure: go.Figure, title: str, height: int) -> Chart:
    figure.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 40, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0},
        colorway=PALETTE,
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    html = figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True})
    return Chart(title=title, html=html)


def stacked(rows: Sequence[str], parts: Mapping[str, Sequence[float]], title: str) -> Chart:
    """One horizontal bar for each row, first row on top, cut into `parts` (name: a value for each row)."""
    figure = go.Figure()
    for name, values in parts.items():
        figure.add_bar(y=list(rows), x=list(values), name=name, orientation="h", hovertemplate="%{y}: %{x}")
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    return _draw(figure, title, MARGIN_PX + BAR_PX * len(rows))


def grouped(rows: Sequence[str], parts: Mapping[str, Sequence[float]], title: str) -> Chart:
    """Two or more horizontal bars side by side for each row."""
    figure = go.Figure()
    for name, values in parts.items():
        figure.add_bar(y=list(rows), x=list(values), name=name, orientation="h", hovertemplate="%{y}: %{x}")
    figure.update_layout(barmode="group")
    figure.update_yaxes(autorange="reversed")
    return _draw(figure, title, MARGIN_PX + BAR_PX * len(parts) * len(rows) // 2)


def histogram(series: Mapping[str, Sequence[int]], title: str, unit: str) -> Chart:
    """Overlaid histograms of whole numbers."""
    figure = go.Figure()
    for name, values in series.items():
        figure.add_histogram(x=list(values), name=name, opacity=0.7)
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title=unit)
    figure.update_yaxes(title="rows")
    return _draw(figure, title, CURVE_PX)


def curves(series: Mapping[str, Sequence[tuple[int, float]]], title: str) -> Chart:
    """Lines over training steps."""
    figure = go.Figure()
    for name, points in series.items():
        mode = "lines" if len(points) > 1 else "markers"
        figure.add_scatter(x=[step for step, _ in points], y=[value for _, value in points], name=name, mode=mode)
    figure.update_xaxes(title="step")
    return _draw(figure, title, CURVE_PX)


def accept_lengths(result: Mapping[str, object], title: str) -> Chart:
    """Accept length of each dataset with its 95 % interval, beside the two baselines."""
    per = result["datasets"]
    assert isinstance(per, Mapping)
    rows = {"all": result, **per}
    figure = go.Figure()
    middle = [_number(row, "accept_length") for row in rows.values()]
    above = [_number(row, "accept_length_high") - value for row, value in zip(rows.values(), middle, strict=True)]
    below = [value - _number(row, "accept_length_low") for row, value in zip(rows.values(), middle, strict=True)]
    spread = {"type": "data", "array": above, "arrayminus": below, "color": PALETTE[7]}
    figure.add_bar(y=list(rows), x=middle, error_x=spread, name="this drafter", orientation="h")
    for key, name in (("accept_length_untrained", "untrained"), ("accept_length_prompt_lookup", "prompt lookup")):
        values = [_number(row, key) for row in rows.values()]
        figure.add_scatter(y=list(rows), x=values, name=name, mode="markers", marker={"size": 10})
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="accept length (tokens for each pass of the target)")
    return _draw(figure, title, MARGIN_PX + BAR_PX * len(rows))


def _number(row: object, key: str) -> float:
    assert isinstance(row, Mapping)
    return float(row.get(key) or 0.0)


def funnel(datasets: Sequence[Dataset], build: Build) -> Chart:
    """Where every row that was read ended: trained, held out, or dropped for a reason."""
    reasons = sorted({reason for dataset in datasets for reason in dataset.dropped})
    taken = [float(dataset.trained.get("taken", 0)) for dataset in datasets]
    parts: dict[str, Sequence[float]] = {"trained": taken}
    parts["held out"] = [float(dataset.trained.get("heldout", 0)) for dataset in datasets]
    parts |= {reason: [float(dataset.dropped.get(reason, 0)) for dataset in datasets] for reason in reasons}
    gone = [sum(values) for values in zip(*parts.values(), strict=True)]
    parts["dropped in blend"] = [max(dataset.read - rows, 0) for dataset, rows in zip(datasets, gone, strict=True)]
    return stacked([dataset.name for dataset in datasets], parts, "Rows read, and where each of them ended")
