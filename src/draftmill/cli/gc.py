"""`draftmill gc`: give back disk that nothing uses."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def gc(
    rev: Annotated[list[str] | None, typer.Option(help="a git revision whose hidden states are kept too")] = None,
    checkpoints: Annotated[bool, typer.Option(help="also those of trainings that were not finished")] = False,
    dry_run: Annotated[bool, typer.Option(help="only say what would go")] = False,
) -> None:
    """Delete outputs of removed datasets, and stored hidden states that no kept manifest names. Answers stay."""
    from draftmill.console import say
    from draftmill.gc import collect

    found = collect(rev or [], checkpoints=checkpoints, dry_run=dry_run)
    for name, size in found:
        say(f"{name}: {size / 1e6:,.1f} MB")
    total = sum(size for _, size in found)
    say(f"{'would free' if dry_run else 'freed'} {total / 1e6:,.1f} MB")
