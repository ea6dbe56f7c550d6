"""Commands about the whole build: compose, use, mend, funnel."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def compose(
    reset: Annotated[bool, typer.Option(help="drop values that `dvc exp run -S` set in params.yaml")] = False,
) -> None:
    """Compose conf/ into params.yaml, check everything, and show what changed. `dvc repro` does it by itself."""
    from draftmill.compose.ensure import recompose
    from draftmill.console import say

    if not recompose(reset=reset):
        say("params.yaml is up to date")


@app.command()
def use(name: Annotated[str, typer.Argument(help="a file of conf/experiment, without .yaml")]) -> None:
    """Choose the experiment that a plain build builds: edits the last default of conf/config.yaml."""
    from draftmill.compose import experiments
    from draftmill.compose.ensure import recompose
    from draftmill.console import say

    before = experiments.chosen()
    experiments.use(name)
    try:
        recompose()
    except BaseException:
        experiments.use(before)
        raise
    say(f"conf/config.yaml builds {name} now")


@app.command()
def mend() -> None:
    """After a kill -9: delete what it left half-written of DVC's own lock files. Nothing built is lost."""
    from draftmill import mend as files
    from draftmill.console import say

    for path in files.mend():
        say(f"{path}: was half-written, deleted")


@app.command()
def funnel() -> None:
    """What each dataset brought, from rows read to hidden states; then accept length and where the report is."""
    from draftmill import funnel as figures
    from draftmill.console import say

    say(figures.table())
    for line in figures.outcome():
        say(line)
