"""Commands about drafters: lint-export, bench-serve."""

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
        say(f"{'error' if finding.fatal else 'warning'}: {finding.message}\n  fix: {finding.fix}")
    broken = sum(finding.fatal for finding in findings)
    if broken:
        raise BuildError(f"{broken} broken rules", file=folder, fix="see each above; docs/serving.md has the layout")
    say(f"{folder}: no broken rule")


@app.command("bench-serve")
def bench_serve(
    server: Annotated[str, typer.Option(help="vllm or sglang")] = "vllm",
    python: Annotated[str, typer.Option(help="the Python of the environment that has the server")] = "python",
    drafter: Annotated[Path, typer.Option(help="the exported drafter")] = Path("build/export"),
    in_flight: Annotated[str, typer.Option(help="loads, requests at a time")] = "1,8,32",
    max_new_tokens: Annotated[int | None, typer.Option(help="of each answer; else evaluate's")] = None,
    draft_tokens: Annotated[int | None, typer.Option(help="drafts a step; else evaluate's")] = None,
    port: Annotated[int, typer.Option()] = 8350,
    flag: Annotated[list[str] | None, typer.Option(help="a further flag of the server; repeat it")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write the figures here")] = None,
) -> None:
    """Measure the exported drafter in a real server: tokens per second with it and without, and its accept length."""
    from draftmill.config import section
    from draftmill.errors import UsageError
    from draftmill.evaluate.serve import Server, bench
    from draftmill.target import Target, prepare

    if server not in ("vllm", "sglang"):
        raise UsageError(f"--server is vllm or sglang, not {server}")
    if not all(part.strip().isdigit() for part in in_flight.split(",")):
        raise UsageError(f"--in-flight is a list of numbers such as 1,8,32, not {in_flight}")
    started = Server(
        kind="vllm" if server == "vllm" else "sglang",
        python=python,
        target=prepare(section("target", Target)).absolute(),
        port=port,
        flags=tuple(flag or ()),
    )
    loads = [int(part) for part in in_flight.split(",")]
    limits = {"max_new_tokens": max_new_tokens, "draft_tokens": draft_tokens}
    bench(started, drafter.absolute(), loads=loads, json_file=json_file, **limits)
