"""The command that looks at unknown data and proposes its declaration."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def inspect(
    source: Annotated[str, typer.Argument(help="a file, a folder, a glob, or the id of a dataset on the Hub")],
    write: Annotated[str | None, typer.Option(metavar="NAME", help="save as conf/dataset/NAME.yaml")] = None,
    rows: Annotated[int, typer.Option(min=1, help="rows to look at")] = 400,
    config: Annotated[str | None, typer.Option(help="configuration of a Hub dataset")] = None,
    split: Annotated[str | None, typer.Option(help="split of a Hub dataset")] = None,
    context: Annotated[int | None, typer.Option(help="tokens over which a row is long; default: the target's")] = None,
) -> None:
    """Show the keys, roles and shares of a few hundred rows, and a ready declaration."""
    from draftmill.console import say
    from draftmill.errors import DataError
    from draftmill.inspect import inspect as look
    from draftmill.inspect import report, write_declaration, yaml_text
    from draftmill.inspect.origin import context_length, find_source

    try:
        found = look(find_source(source, config, split), rows)
    except DataError as error:
        if error.key in ("source.split", "source.config"):  # no file to edit yet
            error.fix = f"choose one with --{error.key.removeprefix('source.')}"
        error.file = error.file or source
        raise
    for line in report(found, context or context_length()):
        say(line)
    if found.proposal.schema is None:
        raise DataError(
            "no conversation and no known columns were found",
            file=source,
            found="; ".join(found.proposal.notes) or "the keys above",
            fix="if one of them holds prompts, write  schema: {prompt: KEY}  (docs/declare.md) and run `draftmill try`",
        )
    if write is not None:
        path = write_declaration(write, yaml_text(found.declaration, found.proposal.notes))
        say(f"written: {path}; check it with  draftmill try {path}")
