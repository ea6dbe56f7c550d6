"""`draftmill path`: try a path on documents."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer()

# Signs that JSON leaves as they are and a terminal obeys, or hides text by.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@app.command("path")
def path_command(
    expression: Annotated[str, typer.Argument(help="A path: RFC 9535, or the shorthand, as in turns[role=user].text")],
    files: Annotated[
        list[str] | None, typer.Argument(help="JSON, JSON Lines, csv or Parquet; standard input if none")
    ] = None,
) -> None:
    """Evaluate a path over JSON documents and print every match as one line of JSON.

    A JSON file is one document; of JSON Lines, csv and Parquet every row is one.
    """
    from draftmill.errors import DataError, UsageError
    from draftmill.paths import PathError, PatternTimeout, compile

    try:
        path = compile(expression)
    except PathError as error:
        raise UsageError(f"cannot read the path: {error}") from None
    try:
        for document in documents(files or []):
            for match in path(document):
                print(json_line(match))
        sys.stdout.flush()
    except PatternTimeout as error:
        raise DataError(str(error)) from None
    except BrokenPipeError:
        # The reader of the pipe has seen enough; nothing may be flushed into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def documents(files: list[str]) -> Iterator[Any]:
    """The JSON documents in some files, or on standard input. Raises DataError at the first that is none."""
    if files:
        yield from _of_files(files)
        return
    with tempfile.TemporaryDirectory() as folder:
        spooled = Path(folder, "standard input.json")
        spooled.write_bytes(sys.stdin.buffer.read())
        yield from _of_files([str(spooled)])


def _of_files(files: list[str]) -> Iterator[Any]:
    from draftmill.errors import DataError
    from draftmill.extract.readers import ChunkReader, Reject, chunks
    from draftmill.extract.source import Source

    for file in files:
        before = 0
        for chunk in chunks(Source(files=file)):
            whole = chunk.kind == "json" and chunk.rows is None
            reader = ChunkReader(replace(chunk, rows="$") if whole else chunk)
            for number, value in reader:
                if isinstance(value, Reject):
                    place = f"{chunk.unit} {before + number}"
                    raise DataError(f"{value.reason.replace('_', ' ')}: {value.detail}", file=chunk.file, key=place)
                yield value
            before += reader.count


def json_line(value: Any) -> str:
    """`value` as one line of JSON that no terminal takes for a command."""
    text = json.dumps(value, ensure_ascii=False)
    return _UNSAFE.sub(lambda sign: f"\\u{ord(sign.group()):04x}", text)
