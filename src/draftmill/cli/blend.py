"""`draftmill blend-diff`: what a change moved in the blend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from draftmill.blend.diff import Snapshot

app = typer.Typer()


@app.command("blend-diff")
def blend_diff(
    rev: Annotated[str, typer.Argument(help="a commit, branch or tag, or an experiment of dvc exp")],
) -> None:
    """Compare the blend of this workspace with the one of a git revision: settings, rows, tokens, hold-out."""
    from draftmill.blend.diff import report
    from draftmill.console import say

    for line in report(_at(rev), _here()):
        say(line)


def _here() -> Snapshot:
    from draftmill.blend.diff import Snapshot, read
    from draftmill.config import params
    from draftmill.errors import BuildError
    from draftmill.workspace import BUILD

    folder = BUILD / "blend"
    if not (folder / "train.parquet").exists():
        raise BuildError("there is no blend here yet", file=folder, fix="dvc repro blend")
    return Snapshot(
        read(str(folder / "train.parquet")), read(str(folder / "heldout.parquet")), params().get("blend", {})
    )


def _at(rev: str) -> Snapshot:
    """The blend of a revision, from DVC's cache or its remote."""
    import yaml
    from dvc.api import DVCFileSystem
    from dvc.exceptions import DvcException
    from dvc.scm import RevError

    from draftmill.blend.diff import Snapshot, read
    from draftmill.errors import BuildError, UsageError

    try:
        files = DVCFileSystem(rev=rev)
        with files.open("params.yaml", "r") as file:
            settings = yaml.safe_load(file).get("blend", {})
        with files.open("build/blend/train.parquet") as train, files.open("build/blend/heldout.parquet") as held:
            return Snapshot(read(train), read(held), settings)
    except RevError as error:
        raise UsageError(str(error), fix="a commit, branch or tag of this repository") from None
    except (OSError, DvcException) as error:
        raise BuildError(
            f"the blend of {rev} is not there: {error}",
            fix=f"dvc fetch --rev {rev} blend, if it was pushed; else check that revision out and run dvc repro blend",
        ) from None
