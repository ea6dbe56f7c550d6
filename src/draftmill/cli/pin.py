"""`draftmill pin`: hold a dataset of the Hub at one commit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def pin(
    name: Annotated[str, typer.Argument(help="a dataset: conf/dataset/NAME.yaml")],
    revision: Annotated[str | None, typer.Option(help="branch, tag or commit; default: the main branch")] = None,
) -> None:
    """Write the commit that a Hub dataset stands at into its declaration."""
    import yaml

    from draftmill.console import say
    from draftmill.errors import ConfigError, DataError, UsageError, did_you_mean
    from draftmill.extract.hub import latest
    from draftmill.extract.pinning import pin as write

    file = Path("conf/dataset", f"{name}.yaml")
    if not file.is_file():
        known = [path.stem for path in file.parent.glob("*.yaml")]
        raise UsageError(f"there is no {file}", fix=did_you_mean(name, known) if known else None)
    try:
        source = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("source") or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", file=file) from None
    if not isinstance(source, dict) or not source.get("hub"):
        raise ConfigError("has no Hub dataset to pin", file=file, key="source.hub")
    try:
        commit = latest(str(source["hub"]), revision)
    except DataError as error:
        error.file = str(file)
        raise
    write(file, commit)
    before = source.get("revision")
    say(f"{file}: source.revision is {commit}" + (f", was {before}" if before and before != commit else ""))
