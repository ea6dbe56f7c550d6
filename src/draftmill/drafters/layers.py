"""Which layers of the target a drafter sees, and the one place where layer numbers are converted.

The canonical name of a layer is its hidden_states index: 0 is the embedding output, k the output of
block k-1, n the output of the last block before the final norm. Servers count differently, and under
one field name even two ways, so that an off-by-one there is silent and ruins acceptance.
"""

from __future__ import annotations

DFLASH_TARGET_LAYERS = 5


def default_layers(kind: str, num_layers: int, count: int = DFLASH_TARGET_LAYERS) -> tuple[int, ...]:
    """The hidden_states indices that a drafter of this kind reads from a target of `num_layers` blocks, ascending.

    eagle3: (2, n//2, n-3), what SGLang and vLLM assume where a checkpoint names none. dflash: `count` indices,
    linear from 2 to n-2 (SpecForge, `build_target_layer_ids`, which counts outputs of blocks: one less each).
    Raises ValueError for another kind, or a target with too few blocks for distinct layers.
    """
    if kind == "eagle3":
        layers: tuple[int, ...] = (2, num_layers // 2, num_layers - 3)
    elif kind == "dflash":
        span = num_layers - 4
        layers = tuple(round(1 + i * span / max(count - 1, 1)) + 1 for i in range(count))
    else:
        raise ValueError(f"no drafter kind '{kind}'; there are eagle3 and dflash")
    if sorted(set(layers)) != list(layers):
        raise ValueError(f"a target of {num_layers} blocks has too few for the default layers of {kind}: {layers}")
    return layers


def to_block_outputs(layers: tuple[int, ...]) -> list[int]:
    """Ids that mean "output of block v" (SGLang's nested EAGLE-3 field; `target_layer_ids` of DFlash)."""
    return [layer - 1 for layer in layers]


def to_boundaries(layers: tuple[int, ...]) -> list[int]:
    """Ids that mean hidden_states[v] (vLLM's top-level EAGLE-3 field)."""
    return list(layers)


def from_block_outputs(ids: list[int]) -> tuple[int, ...]:
    """The inverse of `to_block_outputs`."""
    return tuple(value + 1 for value in ids)
