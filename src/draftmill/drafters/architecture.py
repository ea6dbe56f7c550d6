"""A drafter's shape, resolved: the settings' nulls filled in from the target's.

It is written as drafter.json beside the weights, and everything that needs a shape reads it from there.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftmill.config import build
from draftmill.drafters import Drafter
from draftmill.drafters.layers import default_layers
from draftmill.errors import BuildError, ConfigError

if TYPE_CHECKING:
    from draftmill.target import Shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """Sizes of a drafter and of the target it was made for. `layers` are hidden_states indices."""

    kind: str
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_layers: int
    layers: tuple[int, ...]
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float  # the target's; its scaling is left out, since a drafter is trained from scratch
    max_position_embeddings: int
    target_layers: int
    block_size: int = 0  # DFlash only
    mask_token_id: int | None = None  # DFlash only
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None


def resolve(drafter: Drafter, shape: Shape, mask_token_id: int | None = None) -> Architecture:
    """The architecture of `drafter` for a target of this shape.

    Raises ConfigError for layers that the target does not have, or a mask token beyond its embedding.
    """
    heads = drafter.num_attention_heads or shape.heads
    kv_heads = drafter.num_key_value_heads or min(shape.kv_heads, heads)
    if heads % kv_heads:
        raise ConfigError(f"{heads} heads cannot share {kv_heads} key-value heads", key="drafter.num_key_value_heads")
    vocab, is_block = shape.vocab_size, drafter.kind == "dflash"
    return Architecture(
        kind=drafter.kind,
        hidden_size=shape.hidden_size,
        intermediate_size=drafter.intermediate_size or shape.intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=drafter.head_dim or shape.head_dim,
        num_layers=drafter.num_layers,
        layers=_layers(drafter, shape.layers),
        vocab_size=vocab,
        draft_vocab_size=vocab if is_block else min(drafter.draft_vocab_size or vocab, vocab),
        rms_norm_eps=shape.rms_norm_eps,
        rope_theta=shape.rope_theta,
        max_position_embeddings=shape.max_positions,
        target_layers=shape.layers,
        block_size=drafter.block_size if is_block else 0,
        mask_token_id=_mask_token(mask_token_id, vocab) if is_block else None,
        bos_token_id=shape.bos_token_id,
        eos_token_ids=shape.eos_token_ids,
        pad_token_id=shape.pad_token_id,
    )


def _layers(drafter: Drafter, blocks: int) -> tuple[int, ...]:
    try:
        layers = tuple(drafter.layers) if drafter.layers is not None else default_layers(drafter.kind, blocks)
    except ValueError as error:
        raise ConfigError(str(error), key="drafter.layers", fix="name the layers") from None
    if layers[0] < 1 or layers[-1] > blocks:
        raise ConfigError(f"{list(layers)} are not all from 1 to {blocks}, the target's blocks", key="drafter.layers")
    return layers


def _mask_token(mask_token_id: int | None, vocab: int) -> int:
    if mask_token_id is None:
        raise ConfigError("DFlash needs a mask token", key="target.mask_token_id", fix="name an unused embedding row")
    if not 0 <= mask_token_id < vocab:
        raise ConfigError(f"{mask_token_id} is no row of the embedding ({vocab} rows)", key="target.mask_token_id")
    return mask_token_id


def write_architecture(path: Path, architecture: Architecture, **more: Any) -> None:
    """Write drafter.json: the architecture and facts about its making."""
    from draftmill.files import write_json

    write_json(path, {"architecture": dataclasses.asdict(architecture), **more})


def read_architecture(path: Path) -> tuple[Architecture, dict[str, Any]]:
    """Read drafter.json; raises BuildError if it is missing."""
    if not path.exists():
        raise BuildError("no trained drafter here", file=path, fix="dvc repro train")
    content = json.loads(path.read_text(encoding="utf-8"))
    value = content.pop("architecture")
    return build(Architecture, value, file=str(path), key="architecture"), content
