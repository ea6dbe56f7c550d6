"""The stage: build/train/drafter/ -> build/export/, linted before it counts as done."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from draftmill.console import say
from draftmill.drafters import Drafter
from draftmill.drafters.architecture import read_architecture
from draftmill.errors import BuildError
from draftmill.export.layout import config_of
from draftmill.export.lint import lint
from draftmill.files import replacing, write_json
from draftmill.lineage import lineage
from draftmill.workspace import BUILD, output

MAPS = ("d2t", "t2d")


def export(trained: Path, folder: Path, dtype: str) -> None:
    """Write config.json, model.safetensors and lineage.json of the drafter in `trained` to `folder`.

    dtype: float32 or bfloat16. Raises BuildError if the result breaks a rule of a loader.
    """
    arch, facts = read_architecture(trained / "drafter.json")
    tensors = load_file(trained / "model.safetensors")
    cast = {name: tensor if name in MAPS else tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.safetensors") as temporary:
        save_file(cast, temporary, metadata={"format": "pt"})
    write_json(folder / "config.json", config_of(arch, dtype))
    write_json(folder / "lineage.json", lineage(dtype=dtype, train=facts.get("lineage")))
    findings = lint(folder, vocab_size=arch.vocab_size, target_layers=arch.target_layers)
    for warning in (finding for finding in findings if not finding.fatal):
        say(f"export: {warning.message}")
    fatal = [finding.message for finding in findings if finding.fatal]
    if fatal:
        fix = "draftmill wrote this itself: please report it, with the target's config.json"
        raise BuildError("; ".join(fatal), file=folder, fix=fix)


def build(drafter: Drafter) -> None:
    """The stage."""
    export(BUILD / "train" / "drafter", output("export"), drafter.export_dtype)
