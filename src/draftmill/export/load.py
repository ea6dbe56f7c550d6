"""An exported directory back as a module: what evaluation decodes with is what servers get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from draftmill.drafters.architecture import Architecture
from draftmill.drafters.dflash import DFlash
from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.layers import from_block_outputs
from draftmill.errors import BuildError
from draftmill.export.layout import EAGLE3


def architecture_of(config: dict[str, Any]) -> Architecture:
    """The architecture that an exported config.json describes."""
    eagle = config["architectures"] == [EAGLE3]
    own = config["eagle_config"] if eagle else config["dflash_config"]
    ids = own["eagle_aux_hidden_state_layer_ids" if eagle else "target_layer_ids"]
    eos = config.get("eos_token_id")
    return Architecture(
        kind="eagle3" if eagle else "dflash",
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_key_value_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        num_layers=config["num_hidden_layers"],
        layers=from_block_outputs(ids),
        vocab_size=config["vocab_size"],
        draft_vocab_size=config.get("draft_vocab_size", config["vocab_size"]),
        rms_norm_eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
        max_position_embeddings=config["max_position_embeddings"],
        target_layers=config.get("num_target_layers", 0),
        block_size=config.get("block_size", 0),
        mask_token_id=own.get("mask_token_id"),
        bos_token_id=config.get("bos_token_id"),
        eos_token_ids=tuple(eos if isinstance(eos, list) else [] if eos is None else [eos]),
        pad_token_id=config.get("pad_token_id"),
    )


def load_export(folder: Path) -> Eagle3 | DFlash:
    """The drafter in `folder`, in fp32 and evaluation mode. Raises BuildError if there is none."""
    path = folder / "config.json"
    if not path.exists():
        raise BuildError("no exported drafter here", file=folder, fix="dvc repro export")
    arch = architecture_of(json.loads(path.read_text(encoding="utf-8")))
    model = Eagle3(arch) if arch.kind == "eagle3" else DFlash(arch)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval().requires_grad_(False)
