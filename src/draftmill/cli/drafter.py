"""Commands about drafters: lint-export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command("lint-export")
def lint_export(
    folder: Annotated[Path, typer.Argument(help="a drafter's directory: config.json and *.safetensors")],
    target: Annotated[Path | None, typer.Option(help="the target's model folder, for checks against it")] = None,
) -> None:
    """Check a drafter's directory by the rules of SGLang's and vLLM's loaders."""
    import json

    from draftmill.console import say
    from draftmill.errors import BuildError
    from draftmill.export.lint import lint

    vocab = layers = None
    if target is not None:
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
        config |= config.get("text_config") or {}
        vocab, layers = config["vocab_size"], config["num_hidden_layers"]
    findings = lint(folder, vocab_size=vocab, target_layers=layers)
    for finding in findings:
        say(f"{'error' if finding.fatal else 'warning'}: {finding.message}")
    broken = sum(finding.fatal for finding in findings)
    if broken:
        raise BuildError(f"{broken} broken rules", file=folder)
    say(f"{folder}: no broken rule")
