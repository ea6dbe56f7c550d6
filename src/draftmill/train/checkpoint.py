"""Checkpoints in .draftmill/train/<fingerprint>/: tensors as safetensors, the rest as JSON, never pickle.

The tensors of a step appear first under a name of their own; latest.json, which names them, is written last.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from draftmill.errors import BuildError
from draftmill.files import replacing, write_json

LATEST = "latest.json"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a training stands. window: sums of train.stats since the last line of history."""

    step: int = 0
    tokens: int = 0
    window: list[float] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    best: float = 0.0
    looks_since_best: int = 0
    stopped: bool = False


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    with replacing(path) as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary)


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write a checkpoint and delete the ones before it."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}.{name}"] = value
    path = folder / f"step-{progress.step:08d}.safetensors"
    save_tensors(path, tensors)
    write_json(folder / LATEST, {"file": path.name, **asdict(progress)})
    for old in folder.glob("step-*.safetensors"):
        if old != path:
            old.unlink()


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Continue from the last checkpoint, if there is one, else from the start.

    Raises BuildError if the checkpoint is damaged, or was made with another vocabulary map.
    """
    latest = folder / LATEST
    if not latest.exists():
        return Progress()
    fix = f"delete {folder}, and the training starts over"
    try:
        content = json.loads(latest.read_text(encoding="utf-8"))
        tensors = load_file(folder / content.pop("file"))
    except Exception as error:
        raise BuildError(f"this checkpoint cannot be read ({error})", file=latest, fix=fix) from None
    weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    same_map(model, weights, latest, fix)
    model.load_state_dict(weights)
    for name, parameter in model.named_parameters():
        if f"step.{name}" in tensors:
            optimizer.state[parameter] = {moment: _like(tensors[f"{moment}.{name}"], parameter) for moment in MOMENTS}
    return Progress(**content)


def _like(value: Tensor, parameter: Tensor) -> Tensor:
    """Moments live beside their parameter; the step count too where the fused kernel wants it there."""
    return value.to(parameter.device)


def same_map(model: nn.Module, weights: dict[str, Tensor], file: Path, fix: str) -> None:
    """Raises BuildError if `weights` have another draft vocabulary than `model`."""
    own, theirs = getattr(model, "d2t", None), weights.get("d2t")
    if own is not None and (theirs is None or not torch.equal(own.cpu(), theirs)):
        raise BuildError("the draft vocabulary of this checkpoint is not that of the blend", file=file, fix=fix)
