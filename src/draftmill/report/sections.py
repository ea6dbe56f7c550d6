"""The sections of the report: for each a sentence, its charts, and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftmill.report import charts
from draftmill.report.charts import Chart
from draftmill.report.collect import Build

ACCEPT = "accept_length"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Column heads and rows of ready texts; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One heading of the page."""

    anchor: str
    title: str
    says: str
    charts: Sequence[Chart]
    table: Table | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number in large print, and what to hold it against."""

    name: str
    value: str
    note: str


def headline(build: Build) -> list[Figure]:
    """What a reader wants first: accept length, the baselines, speed, losslessness."""
    found = build.result
    low, high = found[f"{ACCEPT}_low"], found[f"{ACCEPT}_high"]
    lossless = "yes" if found["lossless"] else "NO"
    return [
        Figure(name="accept length", value=f"{found[ACCEPT]:.2f}", note=f"95 % interval {low:.2f} to {high:.2f}"),
        Figure(name="untrained drafter", value=f"{found[f'{ACCEPT}_untrained']:.2f}", note="the same prompts"),
        Figure(name="prompt lookup", value=f"{found[f'{ACCEPT}_prompt_lookup']:.2f}", note="copying from the context"),
        Figure(name="speed", value=f"{found['speedup']:.2f}×", note="of plain decoding, on this machine"),
        Figure(name="lossless", value=lossless, note=f"{found['prompts']} prompts, greedy"),
    ]


def sections(build: Build) -> list[Section]:
    """All sections, in reading order."""
    return [_accept(build), _funnel(build), _blend(build), _lengths(build), _training(build)]


def _accept(build: Build) -> Section:
    found = build.result
    keys = (ACCEPT, f"{ACCEPT}_low", f"{ACCEPT}_high", f"{ACCEPT}_untrained", f"{ACCEPT}_prompt_lookup")
    rows = {"all": found, **found["datasets"]}
    table = Table(
        head=("dataset", "accept length", "low", "high", "untrained", "prompt lookup", "prompts"),
        rows=[[name, *(_decimal(row.get(key)) for key in keys), str(row["prompts"])] for name, row in rows.items()],
    )
    acceptance = {"accepted": found["acceptance"]}
    positions = [f"draft token {i + 1}" for i in range(len(found["acceptance"]))]
    return Section(
        anchor="accept",
        title="Accept length",
        says="Tokens that one pass of the target yields on held-out prompts, the target's own token included. "
        "A drafter is worth serving when its interval lies above both baselines.",
        charts=[
            charts.accept_lengths(found, "Accept length by dataset, with its 95 % interval"),
            charts.grouped(
                positions, acceptance, "Of the steps that came to a draft token, the share that accepted it"
            ),
        ],
        table=table,
    )


def _decimal(value: Any) -> str:
    return "" if value is None else f"{value:.2f}"


def _funnel(build: Build) -> Section:
    rows = []
    for dataset in build.datasets:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(dataset.dropped.items()))
        rows.append([dataset.name, str(dataset.read), str(dataset.trained.get("taken", 0)), reasons or "none"])
    return Section(
        anchor="funnel",
        title="Where the rows went",
        says="Every row that was read is trained on, held out, or dropped for one named reason.",
        charts=[charts.funnel(build.datasets, build)],
        table=Table(head=("dataset", "read", "trained", "dropped"), rows=rows),
    )


def _blend(build: Build) -> Section:
    per: dict[str, dict[str, Any]] = build.blend.get("datasets", {})
    heads = ("available", "requested", "taken", "tokens", "trainable_tokens", "share_rows", "share_tokens")
    rows = [[name, *(_plain(row.get(head)) for head in heads)] for name, row in per.items()]
    counts = {key: [float(row.get(key) or 0) for row in per.values()] for key in ("requested", "taken")}
    shares = {
        "share of rows": [float(row.get("share_rows") or 0) for row in per.values()],
        "share of tokens": [float(row.get("share_tokens") or 0) for row in per.values()],
    }
    return Section(
        anchor="blend",
        title="The blend",
        says="What was asked for and what was taken; long conversations weigh more in tokens than in rows.",
        charts=[
            charts.grouped(list(per), counts, "Rows requested and taken"),
            charts.grouped(list(per), shares, "Share of the blend by rows and by trainable tokens"),
        ],
        table=Table(head=("dataset", *(head.replace("_", " ") for head in heads)), rows=rows),
    )


def _plain(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)


def _lengths(build: Build) -> Section:
    prompts = [length for dataset in build.datasets for length in dataset.prompt_tokens]
    answers = [length for dataset in build.datasets for length in dataset.answer_tokens]
    turns = [count for dataset in build.datasets for count in dataset.turns]
    rows = [
        [dataset.name, str(len(dataset.turns)), str(sum(dataset.prompt_tokens)), str(sum(dataset.answer_tokens))]
        for dataset in build.datasets
    ]
    return Section(
        anchor="lengths",
        title="Lengths",
        says="Tokens of the tokenized rows before blending, in the target's own tokens.",
        charts=[
            charts.histogram({"prompt": prompts, "answer": answers}, "Tokens in prompts and answers", "tokens"),
            charts.histogram({"assistant turns": turns}, "Assistant turns in a row", "turns"),
        ],
        table=Table(head=("dataset", "rows", "prompt tokens", "answer tokens"), rows=rows),
    )


def _training(build: Build) -> Section:
    loss = {name: points for name, points in build.curves.items() if "loss" in name}
    acceptance = {name: points for name, points in build.curves.items() if "accept" in name or "acc" in name}
    drawn = [charts.curves(loss, "Loss")] if loss else []
    drawn += [charts.curves(acceptance, "Agreement with the target, by draft position")] if acceptance else []
    rows = [[name, str(len(points)), f"{points[-1][1]:.4g}"] for name, points in build.curves.items()]
    return Section(
        anchor="training",
        title="Training",
        says="The drafter learns the target's next-token distribution from its hidden states.",
        charts=drawn,
        table=Table(head=("metric", "points", "last value"), rows=rows),
    )
