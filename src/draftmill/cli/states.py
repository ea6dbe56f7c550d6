"""`draftmill check-states`: are the stored hidden states whole, and the target's?"""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer()


@app.command("check-states")
def check_states(
    dataset: Annotated[str, typer.Argument(help="one of build/hidden_states/")],
    rows: Annotated[int, typer.Option(min=0, help="rows to compute again; 0: only the checksums")] = 8,
    sglang: Annotated[
        str | None, typer.Option(help="URL of an SGLang server that computes them (EAGLE-3 layers)")
    ] = None,
) -> None:
    """Check every checksum, then compute a sample of rows again and compare; exit 1 if anything is off."""
    from draftmill.config import params, section
    from draftmill.console import say
    from draftmill.drafters.layers import default_layers
    from draftmill.hidden_states import recheck
    from draftmill.hidden_states.engines import Local
    from draftmill.hidden_states.manifest import load_manifest
    from draftmill.hidden_states.sglang import Sglang
    from draftmill.hidden_states.store import verify
    from draftmill.target import Target, load_model
    from draftmill.workspace import BUILD, keep

    folder = BUILD / "hidden_states" / dataset
    manifest = load_manifest(folder)
    say(f"{dataset}: {verify(folder) / 1e6:,.1f} MB in {len(manifest.shards)} shards, every checksum holds")
    if not rows:
        return
    if sglang:
        layers = default_layers("eagle3", manifest.num_layers)
        found = recheck.sampled(folder, Sglang(sglang, layers, manifest.hidden_size), rows, layers, final=False)
    else:
        found = recheck.sampled(folder, Local(load_model(section("target", Target), params()["run"]["device"])), rows)
    worst = recheck.check(found, keep("states", manifest.target["states"]))
    named = ", ".join(dict.fromkeys(one.layer for one in found))
    say(f"{min(rows, manifest.rows)} rows computed again, layers {named}: relative distance at most {worst:.2g}")
