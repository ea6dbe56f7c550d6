"""Layer ids, architecture, vocabulary map, and the parts that both drafters are made of."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, load_target

from draftmill.config import build
from draftmill.drafters import Drafter, Recipe
from draftmill.drafters.architecture import resolve
from draftmill.drafters.layers import default_layers, from_block_outputs, to_block_outputs, to_boundaries
from draftmill.drafters.parts import RMSNorm, attend, rotate
from draftmill.drafters.vocabulary import choose, ids_of, map_digest, membership, offsets
from draftmill.errors import ConfigError
from draftmill.export.layout import config_of, shapes_of
from draftmill.target import Target, shape


@pytest.mark.parametrize(
    ("blocks", "eagle", "dflash"),
    [
        (30, (2, 15, 27), (2, 9, 15, 21, 28)),
        (32, (2, 16, 29), (2, 9, 16, 23, 30)),
        (36, (2, 18, 33), (2, 10, 18, 26, 34)),
        (61, (2, 30, 58), (2, 16, 31, 45, 59)),
    ],
)
def test_default_layers(blocks: int, eagle: tuple[int, ...], dflash: tuple[int, ...]) -> None:
    assert default_layers("eagle3", blocks) == eagle
    assert default_layers("dflash", blocks) == dflash


def test_two_conventions() -> None:
    layers = default_layers("eagle3", 36)
    assert to_block_outputs(layers) == [1, 17, 32]  # SGLang: 1, n//2 - 1, n - 4
    assert to_boundaries(layers) == [2, 18, 33]  # vLLM
    assert from_block_outputs(to_block_outputs(layers)) == layers


def test_too_few_blocks_or_unknown_kind() -> None:
    with pytest.raises(ValueError, match="too few"):
        default_layers("eagle3", 4)
    with pytest.raises(ValueError, match="no drafter kind"):
        default_layers("medusa", 30)


def test_architecture_takes_the_targets_sizes(tiny_target: Target) -> None:
    arch = resolve(Drafter(kind="eagle3", draft_vocab_size=100), shape(tiny_target))
    assert (arch.hidden_size, arch.intermediate_size, arch.layers) == (64, 128, (2, 4, 5))
    assert (arch.num_attention_heads, arch.num_key_value_heads, arch.draft_vocab_size) == (4, 2, 100)
    own = resolve(Drafter(kind="eagle3", intermediate_size=32, layers=[1, 2, 8]), shape(tiny_target))
    assert (own.intermediate_size, own.layers, own.draft_vocab_size) == (32, (1, 2, 8), own.vocab_size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": [1, 2, 9]}, "not all from 1 to 8"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "cannot share"),
        ({"kind": "dflash", "num_layers": 2}, "no row of the embedding"),
    ],
)
def test_architecture_that_does_not_fit(tiny_target: Target, settings: dict[str, Any], message: str) -> None:
    drafter = Drafter(**{"kind": "eagle3", **settings})
    with pytest.raises(ConfigError, match=message):
        resolve(drafter, shape(tiny_target), mask_token_id=100_000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "eagle3", "num_layers": 2}, "1 layer"),
        ({"kind": "eagle3", "layers": [1, 2]}, "3 layers"),
        ({"kind": "dflash", "layers": [3, 2]}, "ascending"),
        ({"kind": "dflash", "block_size": 1}, "block_size"),
        ({"kind": "eagle3", "ttt_steps": 0}, "ttt_steps"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Drafter(**settings)


def test_recipe_is_checked() -> None:
    for change in ({"epochs": 0.0}, {"warmup": 1.0}, {"pack_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            Recipe(**change)


# The sizes of each family's published config.json, in its own form.
QWEN3_8B = {
    "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_scaling": None,
    "tie_word_embeddings": False, "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
}  # fmt: skip
LLAMA31_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
}  # fmt: skip
KIMI_K25 = {
    "model_type": "kimi_k25", "bos_token_id": 163584, "eos_token_id": 163585,
    "text_config": {
        "model_type": "kimi_k2", "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432,
        "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840,
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "hidden_act": "silu",
        "rope_scaling": {"type": "yarn", "factor": 64.0}, "tie_word_embeddings": False, "eos_token_id": 163586,
    },
}  # fmt: skip
PRESETS = [
    ("qwen3_8b", QWEN3_8B, [1, 17, 32], [2, 18, 33], [1, 9, 17, 25, 33]),
    ("llama31_8b", LLAMA31_8B, [1, 15, 28], [2, 16, 29], [1, 8, 15, 22, 29]),
    ("kimi_k25", KIMI_K25, [1, 29, 57], [2, 30, 58], [1, 15, 30, 44, 58]),
]


def preset(name: str) -> Drafter:
    """A file of conf/drafter."""
    path = ROOT / f"conf/drafter/{name}.yaml"
    return build(Drafter, yaml.safe_load(path.read_text(encoding="utf-8")), file=str(path), key="")


@pytest.mark.parametrize(("name", "config", "nested", "top", "dflash"), PRESETS, ids=[row[0] for row in PRESETS])
def test_presets_resolve_their_layers(
    name: str, config: dict[str, Any], nested: list[int], top: list[int], dflash: list[int], tmp_path: Path
) -> None:
    """Ids in both conventions, for the target's own configuration file and its mask token."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    target = load_target(name, source={"path": str(tmp_path)})
    sizes = {**config, **config.get("text_config", {})}
    eagle = resolve(preset("eagle3"), shape(target))
    exported = config_of(eagle, "bfloat16")
    assert exported["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == nested
    assert exported["eagle_aux_hidden_state_layer_ids"] == top
    assert shapes_of(exported)["fc.weight"] == (sizes["hidden_size"], 3 * sizes["hidden_size"])
    assert exported["vocab_size"] == sizes["vocab_size"] and exported["draft_vocab_size"] == 32000
    assert exported["rope_theta"] == exported["rope_parameters"]["rope_theta"] == sizes["rope_theta"]
    block = config_of(resolve(preset("dflash"), shape(target), target.mask_token_id), "bfloat16")
    assert block["dflash_config"] == {"mask_token_id": target.mask_token_id, "target_layer_ids": dflash}
    assert block["block_size"] == 16 and block["num_hidden_layers"] == 5
    assert shapes_of(block)["fc.weight"] == (sizes["hidden_size"], 5 * sizes["hidden_size"])


def test_kimi_concatenates_three_states_of_7168(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(KIMI_K25))
    arch = resolve(preset("eagle3"), shape(load_target("kimi_k25", source={"path": str(tmp_path)})))
    assert shapes_of(config_of(arch, "bfloat16"))["fc.weight"] == (7168, 21504)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "conf/drafter").glob("*.yaml")))
def test_every_preset_names_every_setting(name: str) -> None:
    """A key that a file leaves out is a parameter that DVC does not see."""
    loaded = yaml.safe_load((ROOT / f"conf/drafter/{name}.yaml").read_text(encoding="utf-8"))
    assert loaded.keys() == {field.name for field in fields(Drafter)}
    assert loaded["recipe"].keys() == {field.name for field in fields(Recipe)}
    assert preset(name).kind in name


def test_recipes_in_use() -> None:
    eagle, block = preset("eagle3"), preset("dflash")
    assert (eagle.ttt_steps, eagle.step_decay, eagle.recipe.learning_rate, eagle.recipe.clip) == (7, 0.8, 1e-4, 0.5)
    assert (block.num_layers, block.block_size) == (5, 16)


def test_vocabulary_prefers_supervised_then_seen_then_low_ids() -> None:
    supervised, seen = np.zeros(10, np.int64), np.zeros(10, np.int64)
    supervised[7], supervised[9], seen[5], seen[7], seen[9] = 3, 1, 4, 3, 1
    assert choose(supervised, seen, 2).tolist() == [7, 9]
    assert choose(supervised, seen, 3).tolist() == [5, 7, 9]
    ids = choose(supervised, seen, 5)
    assert ids.tolist() == [0, 1, 5, 7, 9]
    assert offsets(ids).tolist() == [0, 0, 3, 4, 5]
    assert ids_of(offsets(ids)).equal(ids)
    assert membership(ids, 10).nonzero().flatten().equal(ids)
    assert map_digest(ids) != map_digest(ids[:-1])


def test_rotation_depends_on_distance_alone() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 8), torch.randn(1, 1, 8)

    def score(a: int, b: int) -> float:
        turned = rotate(q, torch.tensor([a]), 100.0) * rotate(k, torch.tensor([b]), 100.0)
        return float(turned.sum())

    assert score(3, 1) == pytest.approx(score(13, 11), abs=1e-5)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-3)


def test_norm_is_fp32_inside() -> None:
    norm = RMSNorm(4, 1e-6)
    x = torch.tensor([[3.0, 4.0, 0.0, 0.0]])
    assert torch.allclose(norm(x), x / 2.5, atol=1e-5)
    assert norm(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("own_keys", [0, 3])
def test_attention_is_softmax_over_context_and_own_keys(own_keys: int) -> None:
    """Against the definition, with grouped heads: query head h uses key head h // group."""
    torch.manual_seed(0)
    blocks, width, heads, kv, size, length = 2, 2, 4, 2, 8, 5
    query = torch.randn(blocks, width, heads, size)
    context = (torch.randn(length, kv, size), torch.randn(length, kv, size))
    own = (torch.randn(blocks, own_keys, kv, size), torch.randn(blocks, own_keys, kv, size)) if own_keys else None
    visible = torch.tensor([2, 5])
    mixed = attend(query, context, own, visible)
    for m in range(blocks):
        keys, values = (part[: visible[m]] for part in context)
        if own is not None:
            keys, values = torch.cat((keys, own[0][m])), torch.cat((values, own[1][m]))
        for b in range(width):
            for h in range(heads):
                weights = (keys[:, h // 2] @ query[m, b, h] / size**0.5).softmax(0)
                assert torch.allclose(mixed[m, b, h], weights @ values[:, h // 2], atol=1e-5)
