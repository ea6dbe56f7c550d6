"""The target's weights for computing, and its dimensions without loading anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftmill.errors import ConfigError
from draftmill.target.config import Target
from draftmill.target.prepare import prepare

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Dimensions of a decoder, from its config.json."""

    layers: int
    hidden_size: int
    vocab_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    max_positions: int
    rms_norm_eps: float
    hidden_act: str
    rope_theta: float
    rope_scaling: dict[str, Any] | None  # rope_type and its parameters, without the base; None for plain rope
    tied: bool  # the output head is the embedding
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None


def shape(target: Target) -> Shape:
    """The target's dimensions. Raises ConfigError that names the key missing in config.json."""
    path = prepare(target) / "config.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    config = {**whole, **whole.get("text_config", {})}  # models with pictures nest the language part
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta", 10000.0)
    plain = rope.get("rope_type", rope.get("type", "default")) == "default"
    eos = config.get("eos_token_id")
    try:
        heads = config["num_attention_heads"]
        return Shape(
            layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            vocab_size=config["vocab_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            max_positions=config["max_position_embeddings"],
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            hidden_act=config.get("hidden_act", "silu"),
            rope_theta=float(theta),
            rope_scaling=None if plain else rope,
            tied=bool(config.get("tie_word_embeddings", False)),
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=tuple(eos if isinstance(eos, list) else [eos] if eos is not None else []),
            pad_token_id=config.get("pad_token_id"),
        )
    except KeyError as error:
        raise ConfigError(f"the model's configuration has no {error}", file=path) from None


def load_model(target: Target, run_device: str = "auto") -> PreTrainedModel:
    """The target in evaluation mode, without gradients, on `run_device`.

    auto: spread over the GPUs where there are several, else on the GPU if there is one, else on the CPU.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    gpus = torch.cuda.device_count()
    spread = run_device == "auto" and gpus > 1
    model = AutoModelForCausalLM.from_pretrained(
        prepare(target),
        dtype=target.dtype if target.dtype == "auto" else getattr(torch, target.dtype),
        device_map="auto" if spread else None,
        trust_remote_code=target.trust_remote_code,
        local_files_only=True,
    ).eval()
    model.requires_grad_(False)
    if spread:
        return model
    return model.to(("cuda" if gpus else "cpu") if run_device == "auto" else run_device)
