"""The target's two ends that a drafter shares, frozen: the embedding, and the final norm with the head.

Only these tensors are read from the target's folder; its blocks are not loaded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from draftmill.errors import BuildError
from draftmill.target import Shape

_EMBEDDING, _NORM, _HEAD = "embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """embedding and head [V, H], norm [H]; one tensor serves as both where the target ties them."""

    embedding: torch.Tensor
    norm: torch.Tensor
    head: torch.Tensor
    eps: float

    def to(self, device: torch.device) -> Ends:
        """The same on a device."""
        embedding = self.embedding.to(device)
        head = embedding if self.head is self.embedding else self.head.to(device)
        return Ends(embedding=embedding, norm=self.norm.to(device), head=head, eps=self.eps)

    def final(self, last: torch.Tensor) -> torch.Tensor:
        """The normed last states [..., H] that the head multiplies, from pre-norm ones."""
        return torch.nn.functional.rms_norm(last.float(), self.norm.shape, self.norm.float(), self.eps)


def read_ends(folder: Path, shape: Shape) -> Ends:
    """The ends of the model in `folder`, in fp32. Raises BuildError if one is missing."""
    where = _tensor_files(folder)
    embedding = _read(folder, where, _EMBEDDING)
    head = embedding if shape.tied else _read(folder, where, _HEAD)
    return Ends(embedding=embedding, norm=_read(folder, where, _NORM), head=head, eps=shape.rms_norm_eps)


def read_block(folder: Path, block: int) -> dict[str, torch.Tensor]:
    """The tensors of one block of the target, by name within the block, in fp32."""
    marker = f"layers.{block}."
    where = _tensor_files(folder)
    names = [name for name in where if marker in name]
    return {name.split(marker, 1)[1]: _read(folder, where, name) for name in names}


def _tensor_files(folder: Path) -> dict[str, str]:
    """The file of each tensor."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    single = folder / "model.safetensors"
    if not single.exists():
        raise BuildError("no model.safetensors here", file=folder, fix="the target must be a folder of safetensors")
    with safe_open(single, "pt") as file:
        return dict.fromkeys(file.keys(), single.name)


def _read(folder: Path, where: dict[str, str], suffix: str) -> torch.Tensor:
    names = [name for name in where if name.endswith(suffix)]
    if not names:
        raise BuildError(f"the target has no tensor …{suffix}", file=folder)
    name = min(names, key=len)
    with safe_open(folder / where[name], "pt") as file:
        return file.get_tensor(name).float()
