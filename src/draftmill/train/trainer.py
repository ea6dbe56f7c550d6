"""The training loop: packs in, weights and history out; the same for both drafters.

A step sums the losses of `packs_per_step` packs over all processes and divides by the number of positions that
carry loss in them, so that neither accumulation nor the number of processes changes the gradient.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from draftmill.console import progress as shown
from draftmill.console import say
from draftmill.drafters import Recipe
from draftmill.errors import ConfigError
from draftmill.train import TrainRun, checkpoint
from draftmill.train.checkpoint import Progress
from draftmill.train.data import Pack, Packs
from draftmill.train.processes import Group
from draftmill.train.stats import Stats

Record = Callable[[dict[str, Any]], None]


class Objective(Protocol):
    """A drafter with its loss (train.eagle3, train.dflash); also an nn.Module."""

    drafter: nn.Module
    steps: int

    def count(self, pack: Pack, draw: int) -> float: ...
    def __call__(self, pack: Pack, draw: int) -> tuple[Tensor, Stats]: ...


def learning_rate(recipe: Recipe, step: int, total: int) -> float:
    """Linear warmup over the first share of the steps, then a cosine to zero."""
    warm = max(recipe.warmup * total, 1e-9)
    if step + 1 <= warm:
        return recipe.learning_rate * (step + 1) / warm
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(total - warm, 1)))


def make_optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW over what is trained."""
    return torch.optim.AdamW(
        [parameter for parameter in module.parameters() if parameter.requires_grad],
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        weight_decay=recipe.weight_decay,
        fused=True,
    )


@dataclass(kw_only=True)
class Trainer:
    """One training; `record` gets each line of history."""

    objective: Any
    recipe: Recipe
    run: TrainRun
    group: Group
    device: torch.device
    folder: Path
    train: Packs
    heldout: Packs
    record: Record
    progress: Progress = field(default_factory=Progress)
    waited_s: float = 0.0
    resumed_at: int = 0

    def __post_init__(self) -> None:
        if self.recipe.packs_per_step % self.group.world:
            raise ConfigError(
                f"{self.recipe.packs_per_step} packs do not share out over {self.group.world} processes",
                key="drafter.recipe.packs_per_step",
                fix=f"a multiple of {self.group.world}",
            )
        self.total = -(-len(self.train.plan) // self.recipe.packs_per_step)
        self.share = self.recipe.packs_per_step // self.group.world
        self.wrapped = self.group.wrap(self.objective)
        self.optimizer = make_optimizer(self.objective.drafter, self.recipe)
        self.stats = Stats.empty(self.objective.steps)

    def fit(self) -> Progress:
        """Train from the last checkpoint to the end. The trained weights are the objective's drafter's."""
        self.progress = checkpoint.load(self.folder, self.objective.drafter, self.optimizer)
        self.resumed_at = self.progress.step
        if self.resumed_at and self.group.rank == 0:
            say(f"train: goes on from step {self.resumed_at} of {self.total}")
        if self.progress.window:
            self.stats.load(self.progress.window)
        for line in self.progress.history:
            self.record(line)
        packs = self.train.load(self._mine(self.progress.step))
        saved = time.monotonic()
        with shown("training", self.total, "steps") as bar:
            bar.advance(self.progress.step)
            while self.progress.step < self.total and not self.progress.stopped:
                self._step(packs)
                bar.advance(1, self._note())
                if time.monotonic() - saved >= self.run.checkpoint_every_s:
                    self._save()
                    saved = time.monotonic()
        self._save()
        self._take_best()
        return self.progress

    def _mine(self, step: int) -> list[list[int]]:
        """This process's packs from `step` on; the last step is filled up with the first packs."""
        size = self.recipe.packs_per_step
        full = list(islice(cycle(self.train.plan), self.total * size))
        return full[step * size + self.group.rank :: self.group.world]

    def _step(self, packs: Iterator[Pack]) -> None:
        began = time.monotonic()
        batch = [pack.to(self.device) for pack in islice(packs, self.share)]
        self.waited_s += time.monotonic() - began
        step = self.progress.step
        for options in self.optimizer.param_groups:
            options["lr"] = learning_rate(self.recipe, step, self.total)
        counted = sum(self.objective.count(pack, self._draw(number)) for number, pack in enumerate(batch))
        tokens = sum(len(pack.ids) for pack in batch)
        count, tokens_all = self.group.sum([counted, float(tokens)], self.device)
        stats = self._backward(batch, count or 1.0)
        nn.utils.clip_grad_norm_(self.objective.drafter.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        summed = Stats.empty(self.objective.steps)
        summed.load(self.group.sum(stats.values(), self.device))
        summed.count = count
        self.stats.add(summed)
        self.progress.step += 1
        self.progress.tokens += int(tokens_all)
        self._after_step()

    def _backward(self, batch: list[Pack], count: float) -> Stats:
        """Gradients of the batch's summed loss over `count`; its figures."""
        stats = Stats.empty(self.objective.steps)
        for number, pack in enumerate(batch):
            last = number + 1 == len(batch)
            quiet: Any = nullcontext() if last or self.group.world == 1 else self.wrapped.no_sync()  # type: ignore[operator]
            with quiet, self._autocast():
                loss, figures = self.wrapped(pack, self._draw(number))
                (loss * (self.group.world / count)).backward()
            figures.loss = float(loss.detach())
            stats.add(figures)
        return stats

    def _draw(self, number: int) -> int:
        """The number of this process's pack among all packs of the training: seeds what is drawn for it."""
        return (self.progress.step * self.share + number) * self.group.world + self.group.rank

    def _autocast(self) -> torch.autocast:
        wanted = self.recipe.precision
        enabled = wanted == "bfloat16" or (wanted == "auto" and self.device.type == "cuda")
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _after_step(self) -> None:
        step, last = self.progress.step, self.progress.step == self.total
        line: dict[str, Any] = {}
        if step % self.run.log_every == 0 or last:
            line |= {f"train/{name}": value for name, value in self.stats.figures().items()}
            self.stats = Stats.empty(self.objective.steps)
        if self.heldout.plan and (step % self.recipe.heldout_every == 0 or last):
            figures = self.look()
            line |= {f"heldout/{name}": value for name, value in figures.items()}
            self._judge(figures["accept_length"])
        if line:
            line = {"step": step, "tokens": self.progress.tokens, **line}
            self.progress.history.append(line)
            self.record(line)
        self.progress.window = self.stats.values()

    @torch.no_grad()
    def look(self) -> dict[str, float]:
        """Figures on the held-out rows, without a gradient."""
        stats = Stats.empty(self.objective.steps)
        mine = range(self.group.rank, len(self.heldout.plan), self.group.world)
        packs = self.heldout.load([self.heldout.plan[number] for number in mine])
        for number, pack in zip(mine, packs, strict=True):
            placed = pack.to(self.device)
            with self._autocast():
                loss, figures = self.objective(placed, number)
            figures.loss, figures.count = float(loss), self.objective.count(placed, number)
            stats.add(figures)
        stats.load(self.group.sum(stats.values(), self.device))
        return stats.figures()

    def _judge(self, accept_length: float) -> None:
        """Early stopping: keep the best weights, and stop after `patience` looks without better ones."""
        if self.recipe.patience is None:
            return
        self.progress.looks_since_best += 1
        if accept_length > self.progress.best:
            self.progress.best, self.progress.looks_since_best = accept_length, 0
            if self.group.rank == 0:
                checkpoint.save_tensors(self.folder / "best.safetensors", self.objective.drafter.state_dict())
        self.progress.stopped = self.progress.looks_since_best >= self.recipe.patience

    def _save(self) -> None:
        if self.group.rank == 0:
            checkpoint.save(self.folder, self.objective.drafter, self.optimizer, self.progress)

    def _take_best(self) -> None:
        best = self.folder / "best.safetensors"
        if self.recipe.patience is not None and best.exists():
            self.objective.drafter.load_state_dict(load_file(best))

    def _note(self) -> str:
        last = self.progress.history[-1] if self.progress.history else {}
        return f"loss {last['train/loss']:.2f}" if "train/loss" in last else ""
