"""The funnel: what each dataset brought, from rows read to hidden states, as one table.

Counts come from build/*/<dataset>/metrics.json; seconds and shares of reuse differ between equal builds and come from
.draftmill/runs/. A stage that has not run leaves its columns empty.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftmill.config import params
from draftmill.console import aligned
from draftmill.workspace import BUILD, keep

STAGES = ("extract", "generate", "tokenize", "hidden_states")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One dataset's figures; None where a stage has not run.

    `read` and `kept` are rows of extract, `asked` and `answered` rows of generate (asked: within the quota, whether
    or not an earlier answer was used), `truncated` answers that ran into the token limit. `tokens` and `trainable`
    are counts, `state_bytes` the size of the hidden states, `seconds` the wall time of the last run of the four
    stages, `reused` the share of answers that needed no new request.
    """

    dataset: str
    read: int | None
    kept: int | None
    asked: int | None
    answered: int | None
    truncated: int | None
    tokens: int | None
    trainable: int | None
    state_bytes: int | None
    seconds: float | None
    reused: float | None


def rows() -> list[Row]:
    """The funnel of every enabled dataset, in alphabetical order."""
    return [_row(name) for name in params()["dataset_names"]]


def _row(dataset: str) -> Row:
    extract, generate, tokenize = (_json(BUILD / stage / dataset / "metrics.json") for stage in STAGES[:3])
    runs = {stage: _json(keep("runs", stage) / f"{dataset}.json") for stage in STAGES}
    seconds = [run["seconds"] for run in runs.values() if "seconds" in run]
    asked, reused = runs["generate"].get("asked"), runs["generate"].get("reused")
    folder = BUILD / "hidden_states" / dataset
    return Row(
        dataset=dataset,
        read=extract.get("rows_in"),
        kept=extract.get("rows_out"),
        asked=generate.get("taken", generate.get("rows_in")),
        answered=generate.get("rows_out"),
        truncated=generate.get("flags", {}).get("truncated", 0) if generate else None,
        tokens=tokenize.get("tokens"),
        trainable=tokenize.get("trainable_tokens"),
        state_bytes=sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else None,
        seconds=sum(seconds) if seconds else None,
        reused=reused / (asked + reused) if reused is not None and asked is not None and asked + reused else None,
    )


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


COLUMNS = (
    "dataset",
    "read",
    "kept",
    "asked",
    "answered",
    "cut",
    "tokens",
    "trainable",
    "states GB",
    "seconds",
    "reused",
)


def cells(row: Row) -> tuple[str, ...]:
    """A row's figures as text, one per column of `COLUMNS`; a dash where there is none."""

    def number(value: float | None, form: str = ",") -> str:
        return "-" if value is None else format(value, form)

    gigabytes = None if row.state_bytes is None else row.state_bytes / 1e9
    counts = (row.read, row.kept, row.asked, row.answered, row.truncated, row.tokens, row.trainable)
    shares = (number(gigabytes, ".3f"), number(row.seconds, ".1f"), number(row.reused, ".0%"))
    return (row.dataset, *(number(count) for count in counts), *shares)


def total(found: Sequence[Row]) -> Row:
    """The sums over all datasets; the share of reuse is weighted by the rows asked."""

    def added(key: str) -> Any:
        values = [getattr(row, key) for row in found if getattr(row, key) is not None]
        return sum(values) if values else None

    weighted = [(row.reused, row.asked) for row in found if row.reused is not None and row.asked]
    asked = sum(weight for _, weight in weighted)
    reused = sum(share * weight for share, weight in weighted) / asked if asked else None
    sums = {key: added(key) for key in Row.__dataclass_fields__ if key not in ("dataset", "reused")}
    return Row(dataset="total", reused=reused, **sums)


def table() -> str:
    """The whole funnel as plain text."""
    found = rows()
    return aligned(COLUMNS, [cells(row) for row in found], cells(total(found)))


def outcome() -> list[str]:
    """Accept length with its 95 % interval beside the baselines, and where the report is; what is there of it."""
    measured, report = _json(BUILD / "evaluate" / "metrics.json"), BUILD / "report" / "index.html"
    lines = []
    if "accept_length" in measured:
        low, high = measured["accept_length_low"], measured["accept_length_high"]
        lines.append(
            f"accept length {measured['accept_length']:.2f} (95 % interval {low:.2f} to {high:.2f}), "
            f"untrained {measured['accept_length_untrained']:.2f}, "
            f"prompt lookup {measured['accept_length_prompt_lookup']:.2f}"
        )
    return [*lines, f"report: {report}"] if report.exists() else lines
