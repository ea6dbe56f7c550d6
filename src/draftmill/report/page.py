"""Puts the page and the model card together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from draftmill.console import printable
from draftmill.files import write_text
from draftmill.report.collect import Build, collect
from draftmill.report.sections import headline, sections
from draftmill.workspace import BUILD

ROWS_SHOWN_EACH = 2
SHOWN_TOKENS = 1500


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A run of text whose tokens are all trainable, or all not."""

    text: str
    trainable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRow:
    """One tokenized row as the page shows it."""

    dataset: str
    id: str
    tokens: int
    trainable: int
    pieces: list[Piece]


def write_report(folder: Path) -> Path:
    """Write index.html and model_card.md into `folder`; returns the page's path."""
    from plotly.offline import get_plotlyjs

    build = collect()
    page = render("page.html.jinja", build=build, rows=shown_rows(build))
    # The library goes in last and unescaped: it is a constant of the installed package, not data.
    page = page.replace("</head>", f"<script>{get_plotlyjs()}</script>\n</head>", 1)
    write_text(folder / "index.html", page)
    write_text(folder / "model_card.md", render("model_card.md.jinja", build=build))
    return folder / "index.html"


def render(template: str, *, build: Build, rows: list[ShownRow] | None = None) -> str:
    """Fill one of this package's templates; HTML is escaped by the template's name."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("draftmill.report", ""),
        autoescape=lambda name: bool(name) and ".html" in str(name),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template(template).render(
        build=build, rows=rows or [], sections=sections(build), headline=headline(build)
    )


def shown_rows(build: Build) -> list[ShownRow]:
    """The first rows of every dataset that is trained on, as text with the trainable runs marked."""
    from draftmill.config import section
    from draftmill.target import Target, renderer

    decode = renderer(section("target", Target)).decode
    return [row for dataset in build.datasets for row in _rows_of(dataset.name, decode)]


def _rows_of(dataset: str, decode: Callable[[Sequence[int]], str]) -> list[ShownRow]:
    import pyarrow.parquet as pq

    folder = BUILD / "tokenize" / dataset
    if not (folder / "tokens.parquet").exists():
        return []
    # The first row group only: a dataset may be large, and two rows are shown.
    tokens = pq.ParquetFile(folder / "tokens.parquet").iter_batches(ROWS_SHOWN_EACH, columns=["id", "input_ids"])
    masks = pq.ParquetFile(folder / "mask.parquet").iter_batches(ROWS_SHOWN_EACH, columns=["id", "loss_mask"])
    first_tokens, first_masks = next(tokens, None), next(masks, None)
    if first_tokens is None or first_masks is None:
        return []
    runs = {row["id"]: row["loss_mask"] for row in first_masks.to_pylist()}
    return [
        ShownRow(
            dataset=dataset,
            id=printable(row["id"]),
            tokens=len(row["input_ids"]),
            trainable=sum(run["length"] for run in runs[row["id"]]),
            pieces=pieces(row["input_ids"][:SHOWN_TOKENS], runs[row["id"]], decode),
        )
        for row in first_tokens.to_pylist()
    ]


def pieces(
    ids: Sequence[int], runs: Sequence[Mapping[str, int]], decode: Callable[[Sequence[int]], str]
) -> list[Piece]:
    """The text of `ids` cut where the loss mask (runs of start and length, in tokens) begins and ends."""
    cut, done = [], 0
    for run in runs:
        start, end = run["start"], run["start"] + run["length"]
        cut += [(done, start, False), (start, end, True)]
        done = end
    cut.append((done, len(ids), False))
    texts = [(decode(ids[start:end]), trainable) for start, end, trainable in cut if ids[start:end]]
    return [Piece(text=printable(text), trainable=trainable) for text, trainable in texts]
