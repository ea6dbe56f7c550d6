"""`draftmill try`: run a declaration over some rows and look at what comes out."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer()


@app.command("try")
def try_command(
    declaration: Annotated[str, typer.Argument(help="a dataset's name, or the path of a YAML file")],
    more: Annotated[list[str] | None, typer.Argument(help="further files, after --files", hidden=True)] = None,
    files: Annotated[list[str] | None, typer.Option(help="files to read instead of the declared source")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="read at most this many rows")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="what each path means, matched, and where it stopped")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="one JSON object: rows, kept, filtered, duplicates, rejects, first")
    ] = False,
) -> None:
    """Run a declaration over its source, or over FILES, and print the funnel and the first conversations.

    Nothing is written. Ends as the stage `extract` would: 0, or 1 with what is wrong and how to mend it.
    """
    from draftmill.errors import UsageError
    from draftmill.extract.trying import attempt

    if more and not files:
        raise UsageError(
            f"what is '{more[0]}'?", fix="files come after --files:  draftmill try NAME --files a.jsonl b.jsonl"
        )
    attempt(declaration, [*(files or ()), *(more or ())], rows, explain, json)
