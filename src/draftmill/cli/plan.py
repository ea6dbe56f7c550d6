"""`draftmill plan`: what a build would do and cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from draftmill.plan.amounts import Amount, Total
    from draftmill.plan.stages import Step

app = typer.Typer()
UNKNOWN = "after extract"


@app.command()
def plan(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="as on Hydra's command line: experiment=NAME, datasets.x.quota=500")
    ] = None,
) -> None:
    """Show what a build would run and why, what it takes, and what datasets share. Runs nothing, changes nothing."""
    from draftmill.blend.overlap import overlap
    from draftmill.compose.composition import composed
    from draftmill.compose.validation import validate
    from draftmill.console import say
    from draftmill.plan.amounts import estimate
    from draftmill.plan.stages import steps

    composition = composed(overrides or [])
    validate(composition)
    found = steps(composition.values)
    for line in _grouped(found):
        say(line)
    say(f"{len(found)} stages at most: one whose inputs come out as they were is skipped" if found else "up to date")
    say("")
    _show(*estimate(composition.values))
    for pair in overlap(composition.values["answered"]):
        say(f"{pair.first} and {pair.second} share {pair.exact:,} rows, and {pair.near:,} that are nearly alike")


def _grouped(found: Sequence[Step]) -> Iterator[str]:
    """`stage: why (datasets)`, one line for all datasets with the same reasons."""
    groups: dict[tuple[str, str], list[str]] = {}
    for step in found:
        stage, _, dataset = step.name.partition("@")
        reasons = "; ".join(step.reasons).replace(f"datasets.{dataset}.", "")
        groups.setdefault((stage, reasons), []).append(dataset)
    for (stage, reasons), names in groups.items():
        yield f"{stage}: {reasons}" + (f" ({', '.join(names)})" if names != [""] else "")


def _show(amounts: Sequence[Amount], total: Total) -> None:
    from draftmill.console import aligned, say

    header = ("dataset", "available", "rows", "requests", "prompt tokens", "answer tokens", "states GB")
    lines = []
    for amount in amounts:
        counts = (amount.rows, amount.requests, amount.prompt_tokens, amount.answer_tokens)
        cells = (UNKNOWN if amount.rows is None else f"{count:,}" for count in counts)
        bound = "" if amount.available is None or not amount.is_bound else "≤ "
        available = UNKNOWN if amount.available is None else f"{bound}{amount.available:,}"
        lines.append((amount.dataset, available, *cells, f"{amount.state_bytes / 1e9:.3f}"))
    say(aligned(header, lines))
    if open_ := [amount.dataset for amount in amounts if amount.rows is None]:
        say(f"without {', '.join(open_)}: how much they hold is known {UNKNOWN}")
    dollars = "no prices" if total.dollars is None else f"{total.dollars:,.2f} US dollars"
    say(
        f"{total.requests:,} requests, {dollars}, {total.answer_hours:.2f} hours of answering and "
        f"{total.state_hours:.2f} of capturing at the rates under run.plan"
    )
    warning = "  MORE THAN THERE IS" if total.state_bytes > total.free_bytes else ""
    say(f"hidden states {total.state_bytes / 1e9:,.2f} GB, {total.free_bytes / 1e9:,.0f} GB free{warning}")
