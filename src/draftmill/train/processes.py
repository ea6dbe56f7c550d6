"""One process, or several under torchrun: each takes its share of the packs, and sums are exact."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The processes that train together."""

    rank: int = 0
    world: int = 1

    def sum(self, values: list[float], device: torch.device) -> list[float]:
        """Element-wise sum over processes."""
        if self.world == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return list(total.tolist())

    def wrap(self, module: nn.Module) -> nn.Module:
        """`module`, with gradients averaged over the processes."""
        if self.world == 1:
            return module
        return nn.parallel.DistributedDataParallel(module, broadcast_buffers=False)


@contextmanager
def group(device: torch.device) -> Iterator[Group]:
    """The group that torchrun's environment describes; alone without one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Group()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Group(rank=dist.get_rank(), world=world)
    finally:
        dist.destroy_process_group()


def pick_device(name: str) -> torch.device:
    """`auto`: this process's GPU if there is one, else the CPU."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")
