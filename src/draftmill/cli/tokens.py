"""`draftmill show`, `draftmill export-tokens`, `draftmill check-template`: rows, tokens and templates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command("show")
def show_command(
    dataset: Annotated[str, typer.Argument(help="Name of a dataset")],
    row: Annotated[str | None, typer.Option("--row", help="Id of a row; the first if none")] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", help="raw, extract, generate, template or tokenize; all if none")
    ] = None,
) -> None:
    """Show one row on its way: raw, conversation, answers, template text, tokens with the trainable ones coloured."""
    from draftmill.tokenize.show import show

    show(dataset, row, stage)


@app.command("export-tokens")
def export_command(
    datasets: Annotated[
        list[str] | None, typer.Argument(help="Names of datasets; all that are tokenized if none")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output if none")] = None,
    form: Annotated[str, typer.Option("--format", help="jsonl")] = "jsonl",
) -> None:
    """Write tokenized rows for another trainer: input_ids, loss_mask, seq_len, n_prompt_tokens, n_response_tokens."""
    import sys

    from draftmill.errors import BuildError, UsageError
    from draftmill.files import replacing
    from draftmill.tokenize.export import write_jsonl
    from draftmill.workspace import BUILD

    if form != "jsonl":
        raise UsageError(f"no format '{form}'", fix="jsonl")
    names = datasets or sorted(path.parent.name for path in (BUILD / "tokenize").glob("*/tokens.parquet"))
    if not names:
        raise BuildError("nothing is tokenized yet", file=BUILD / "tokenize", fix="dvc repro")
    if output is None:
        count = write_jsonl(names, sys.stdout.buffer)
        sys.stdout.flush()
    else:
        with replacing(output) as temporary, open(temporary, "wb") as file:
            count = write_jsonl(names, file)
    print(f"{count} rows of {len(names)} datasets", file=sys.stderr)


@app.command("check-template")
def check_command(
    target: Annotated[str, typer.Argument(help="Name of a file in conf/target, or a folder with a tokenizer")],
) -> None:
    """Say how a target's chat template treats tools, reasoning, history and system text, and show an example."""
    from draftmill.tokenize.probe import check

    check(target)
