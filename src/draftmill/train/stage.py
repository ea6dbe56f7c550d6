"""The whole stage: settings and files in, build/train/ out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftmill.drafters import Drafter
from draftmill.drafters.architecture import Architecture, resolve, write_architecture
from draftmill.drafters.ends import read_ends
from draftmill.drafters.initialize import new_dflash, new_eagle3
from draftmill.drafters.vocabulary import choose, ids_of, map_digest
from draftmill.errors import DataError
from draftmill.files import digest, record_run
from draftmill.hidden_states.online import Online
from draftmill.lineage import SIZE, lineage, of_target
from draftmill.target import Target, load_model, prepare, shape, weights_digest
from draftmill.train import TrainRun
from draftmill.train.checkpoint import Progress, save_tensors
from draftmill.train.data import Packs, Read, Rows, Stored, plan_packs, read_rows, shuffled
from draftmill.train.dflash import DFlashObjective
from draftmill.train.eagle3 import Eagle3Objective
from draftmill.train.metrics import Metrics
from draftmill.train.processes import group, pick_device
from draftmill.train.trainer import Trainer
from draftmill.workspace import BUILD, keep, output

CODE = ("drafters", "train")


def train(drafter: Drafter, target: Target, seed: int, run: TrainRun, device_name: str = "auto") -> Progress:
    """Train the drafter on build/blend/ and write build/train/{drafter,metrics}/.

    Raises DataError for a blend without a supervised token or states of something else, ConfigError for settings
    that do not fit the target.
    """
    began, device, blend, recipe = time.monotonic(), pick_device(device_name), BUILD / "blend", drafter.recipe
    seed = seed if drafter.seed is None else drafter.seed
    rows, heldout = read_rows(blend / "train.parquet"), read_rows(blend / "heldout.parquet", recipe.heldout_rows)
    if not rows.supervised.any():
        raise DataError(
            "no supervised token to train on", file=blend / "train.parquet", fix="look at the blend's table"
        )
    arch = resolve(drafter, shape(target), target.mask_token_id)
    objective = make_objective(drafter, arch, target, rows, seed, device)
    marks = {"settings": asdict(drafter), "seed": seed, "target": weights_digest(target), "code": _code_digest()}
    marks |= {name: _file_digest(blend / f"{name}.parquet") for name in ("train", "heldout")}
    read, order = _reader(rows, arch, target, device), shuffled(len(rows), recipe.epochs, seed).tolist()
    with group(device) as processes:
        folder, out = output("train"), keep("train", digest(marks, 8))
        metrics = Metrics(folder / "metrics", run.tensorboard) if processes.rank == 0 else None
        trainer = Trainer(
            objective=objective,
            recipe=recipe,
            run=run,
            group=processes,
            device=device,
            folder=out,
            train=_packed(rows, order, recipe.pack_tokens, read),
            heldout=_packed(heldout, range(len(heldout)), recipe.pack_tokens, read),
            record=metrics.record if metrics is not None else lambda line: None,
        )
        progress = trainer.fit()
        if metrics is not None:
            facts: dict[str, Any] = {"steps": progress.step, "tokens_seen": progress.tokens}
            metrics.close(**facts, draft_vocab_size=arch.draft_vocab_size)
            made_from = _lineage(drafter, target, [marks["train"], marks["heldout"]])
            facts |= {"seed": seed, "target": target.name, "lineage": made_from}
            _write(folder / "drafter", objective.drafter, arch, **facts)
            _forget(out)
            run_facts = {"seconds": time.monotonic() - began, "waited": trainer.waited_s, "tokens": progress.tokens}
            record_run("train", None, resumed_at=trainer.resumed_at, **run_facts)
    return progress


def _lineage(drafter: Drafter, target: Target, blend: object) -> dict[str, Any]:
    """By the bytes of the blend, not by what it was made from: that may change without a row that differs."""
    recipe = digest(asdict(drafter), SIZE)
    return lineage(target=of_target(target), declaration=recipe, blend=digest(blend, SIZE))


def _forget(checkpoints: Path) -> None:
    for file in checkpoints.iterdir():
        file.unlink()
    checkpoints.rmdir()


def make_objective(
    settings: Drafter, arch: Architecture, target: Target, rows: Rows, seed: int, device: torch.device
) -> Eagle3Objective | DFlashObjective:
    """A new drafter with its loss, on a device."""
    ends = read_ends(prepare(target), shape(target))
    if arch.kind == "dflash":
        block = new_dflash(arch, seed).to(device)
        return DFlashObjective(block, ends.to(device), settings.anchors, settings.gamma, seed)
    ids = choose(*rows.counts(arch.vocab_size), arch.draft_vocab_size)
    model = new_eagle3(settings, arch, ends, ids, seed).to(device)
    return Eagle3Objective(model, ends.to(device), settings.ttt_steps, settings.step_decay)


def _reader(rows: Rows, arch: Architecture, target: Target, device: torch.device) -> Read:
    """Where states come from: the shards, or the target itself where the blend names none (states.mode: online)."""
    if any(shard is not None for shard in rows.shard):
        return Stored(BUILD / "hidden_states", arch.layers, weights_digest(target))
    online = Online(load_model(target, str(device)), arch.layers)
    return lambda source, members: online.read_batch([source.tokens(row) for row in members])


def _packed(rows: Rows, order: Sequence[int], limit: int, read: Read) -> Packs:
    return Packs(rows=rows, plan=plan_packs(rows.lengths(), order, limit), read=read)


def _write(folder: Path, model: nn.Module, arch: Architecture, **facts: Any) -> None:
    """drafter/: model.safetensors, and drafter.json last."""
    tensors: dict[str, Tensor] = model.state_dict()
    if "d2t" in tensors:
        facts["vocabulary"] = map_digest(ids_of(tensors["d2t"]))
    save_tensors(folder / "model.safetensors", tensors)
    write_architecture(folder / "drafter.json", arch, **facts)


def _file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _code_digest() -> str:
    """Digest of the code that trains: a checkpoint of other code is not gone on from."""
    root = Path(__file__).parents[1]
    files = sorted(path for part in CODE for path in (root / part).glob("*.py"))
    return digest([_file_digest(path) for path in files], 8)
