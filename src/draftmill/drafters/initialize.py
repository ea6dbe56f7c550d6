"""Where a drafter's weights start: seeded noise, with what the target can give in its place."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftmill.drafters import Drafter
from draftmill.drafters.architecture import Architecture
from draftmill.drafters.dflash import DFlash
from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.ends import Ends
from draftmill.drafters.vocabulary import membership, offsets

INITIAL_STD = 0.02


def random_weights(model: nn.Module, seed: int) -> None:
    """Seeded normal noise of standard deviation 0.02 in every linear layer; norms stay at one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0.0, INITIAL_STD, generator=generator)


def new_eagle3(settings: Drafter, arch: Architecture, ends: Ends, ids: Tensor, seed: int) -> Eagle3:
    """An EAGLE-3 drafter with the draft vocabulary `ids` [Vd].

    The head holds the target's rows.
    """
    model = Eagle3(arch)
    random_weights(model, seed)
    with torch.no_grad():
        model.d2t.copy_(offsets(ids))
        model.t2d.copy_(membership(ids, arch.vocab_size))
        model.lm_head.weight.copy_(ends.head[ids])
    model.lm_head.weight.requires_grad_(settings.train_head)
    return model


def new_dflash(arch: Architecture, seed: int) -> DFlash:
    """A DFlash drafter."""
    model = DFlash(arch)
    random_weights(model, seed)
    return model
