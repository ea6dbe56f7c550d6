"""Export to the layout of SGLang and vLLM, and the linter's rules, each broken once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from draftmill.drafters import Drafter
from draftmill.drafters.architecture import resolve, write_architecture
from draftmill.drafters.dflash import DFlash
from draftmill.drafters.eagle3 import Eagle3
from draftmill.drafters.initialize import new_dflash, random_weights
from draftmill.drafters.vocabulary import membership, offsets
from draftmill.errors import BuildError, UsageError
from draftmill.export.layout import shapes_of
from draftmill.export.lint import lint
from draftmill.export.load import load_export
from draftmill.export.stage import export
from draftmill.target import Target, prepare, shape
from draftmill.train.checkpoint import save_tensors

EAGLE3 = Drafter(kind="eagle3", draft_vocab_size=100)
DFLASH = Drafter(kind="dflash", layers=[2, 3, 4, 5, 6], num_layers=2, block_size=4)


def trained(folder: Path, target: Target, drafter: Drafter) -> Eagle3 | DFlash:
    """A drafter of random weights as train leaves it."""
    arch = resolve(drafter, shape(target), target.mask_token_id)
    if drafter.kind == "dflash":
        model: Eagle3 | DFlash = new_dflash(arch, 3)
    else:
        model = Eagle3(arch)
        random_weights(model, 3)
        ids = torch.arange(20, 220, 2)
        model.d2t.copy_(offsets(ids))
        model.t2d.copy_(membership(ids, arch.vocab_size))
    save_tensors(folder / "model.safetensors", model.state_dict())
    write_architecture(folder / "drafter.json", arch)
    return model


@pytest.fixture
def eagle(tmp_path: Path, tiny_target: Target) -> Path:
    """An exported EAGLE-3 drafter."""
    trained(tmp_path / "t", tiny_target, EAGLE3)
    export(tmp_path / "t", tmp_path / "eagle", "float32")
    return tmp_path / "eagle"


@pytest.fixture
def dflash(tmp_path: Path, tiny_target: Target) -> Path:
    """An exported DFlash drafter."""
    trained(tmp_path / "t", tiny_target, DFLASH)
    export(tmp_path / "t", tmp_path / "dflash", "float32")
    return tmp_path / "dflash"


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def test_eagle3_directory_to_the_letter(eagle: Path) -> None:
    """Names and shapes of the table in the formats; H 64, A 4, K 2, D 16, I 128, Vd 100."""
    tensors = load_file(eagle / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "fc.weight": (64, 192),
        "midlayer.self_attn.q_proj.weight": (64, 128),
        "midlayer.self_attn.k_proj.weight": (32, 128),
        "midlayer.self_attn.v_proj.weight": (32, 128),
        "midlayer.self_attn.o_proj.weight": (64, 64),
        "midlayer.mlp.gate_proj.weight": (128, 64),
        "midlayer.mlp.up_proj.weight": (128, 64),
        "midlayer.mlp.down_proj.weight": (64, 128),
        "midlayer.input_layernorm.weight": (64,),
        "midlayer.hidden_norm.weight": (64,),
        "midlayer.post_attention_layernorm.weight": (64,),
        "norm.weight": (64,),
        "lm_head.weight": (100, 64),
        "d2t": (100,),
        "t2d": (tensors["t2d"].shape[0],),
    }
    assert tensors["d2t"].dtype == torch.int64 and tensors["t2d"].dtype == torch.bool
    assert (torch.arange(100) + tensors["d2t"]).tolist() == list(range(20, 220, 2))
    config = config_of(eagle)
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["model_type"] == "llama"
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] and config["rope_scaling"] is None
    assert config["tie_word_embeddings"] is False and config["use_cache"] is True
    assert config["dtype"] == config["torch_dtype"] == "float32" and config["num_hidden_layers"] == 1
    assert config["draft_vocab_size"] == 100 and config["vocab_size"] == len(tensors["t2d"])


def test_dflash_directory_to_the_letter(dflash: Path) -> None:
    tensors, config = load_file(dflash / "model.safetensors"), config_of(dflash)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes_of(config)
    assert not {"embed_tokens.weight", "lm_head.weight", "d2t"} & tensors.keys()
    assert tensors["fc.weight"].shape == (64, 320) and tensors["layers.1.self_attn.k_norm.weight"].shape == (16,)
    assert config["architectures"] == ["DFlashDraftModel"] and config["model_type"] == "qwen3"
    assert config["dflash_config"] == {"mask_token_id": 259, "target_layer_ids": [1, 2, 3, 4, 5]}
    assert config["block_size"] == 4 and config["num_target_layers"] == 8
    assert config["layer_types"] == ["full_attention"] * 2
    assert "eagle_aux_hidden_state_layer_ids" not in config


@pytest.mark.parametrize("drafter", [EAGLE3, DFLASH])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_export_comes_back(tmp_path: Path, tiny_target: Target, drafter: Drafter, dtype: str) -> None:
    model = trained(tmp_path / "t", tiny_target, drafter)
    export(tmp_path / "t", tmp_path / "e", dtype)
    again = load_export(tmp_path / "e")
    assert again.arch.layers == model.arch.layers and again.arch.kind == drafter.kind
    assert replace(again.arch, target_layers=0) == replace(model.arch, target_layers=0)
    for name, tensor in model.state_dict().items():
        wanted = tensor if tensor.dtype in (torch.int64, torch.bool) else tensor.to(getattr(torch, dtype)).float()
        assert torch.equal(again.state_dict()[name], wanted), name


Config, Tensors = dict[str, Any], dict[str, torch.Tensor]
NESTED, TOP = "eagle_config", "eagle_aux_hidden_state_layer_ids"


def broken(folder: Path, change: Callable[[Config, Tensors], object], **known: int) -> list[str]:
    """The linter's fatal messages after a change."""
    config, tensors = config_of(folder), load_file(folder / "model.safetensors")
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return [finding.message for finding in lint(folder, **known) if finding.fatal]


def _rename(tensors: Tensors, old: str, new: str) -> None:
    tensors[new] = tensors.pop(old)


def _spoil(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[3] = float("nan")


EAGLE_FAULTS: dict[str, tuple[Callable[[Config, Tensors], object], str]] = {
    "nested ids off by one": (lambda c, t: c[NESTED].update({TOP: [2, 4, 5]}), "off by one"),
    "top ids off by one": (lambda c, t: c.update({TOP: [1, 3, 4]}), "off by one"),
    "both off by one": (
        lambda c, t: (c[NESTED].update({TOP: [2, 4, 5]}), c.update({TOP: [3, 5, 6]})),
        "counts outputs of blocks and must be [1, 3, 4]",
    ),
    "two ids": (lambda c, t: c.update({TOP: [2, 4]}), "must be three numbers"),
    "ids beyond the target": (
        lambda c, t: (c[NESTED].update({TOP: [1, 3, 9]}), c.update({TOP: [2, 4, 10]})),
        "outside the target's 8",
    ),
    "no d2t": (lambda c, t: t.pop("d2t"), "tensor d2t is missing"),
    "absolute d2t": (lambda c, t: t.update(d2t=t["d2t"] + torch.arange(100)), "it must hold offsets"),
    "d2t without sense": (lambda c, t: t.update(d2t=t["d2t"] - 500), "no map of ids"),
    "d2t of 32 bits": (lambda c, t: t.update(d2t=t["d2t"].int()), "must be int64"),
    "t2d of other ids": (lambda c, t: t.update(t2d=t["t2d"].roll(1)), "does not mark the ids of d2t"),
    "renamed tensor": (
        lambda c, t: _rename(t, "midlayer.hidden_norm.weight", "midlayer.hidden_norms.weight"),
        "'midlayer.hidden_norms.weight' looks like it, renamed",
    ),
    "extra tensor": (lambda c, t: t.update(extra=torch.zeros(2)), "tensor extra is unknown"),
    "wrong shape": (lambda c, t: t.update({"fc.weight": torch.zeros(64, 128)}), "has shape [64, 128]"),
    "NaN": (lambda c, t: _spoil(t, "norm.weight"), "NaN"),
    "no rope_theta": (lambda c, t: c.pop("rope_theta"), "rope_theta is missing"),
    "no rope_parameters": (lambda c, t: c.pop("rope_parameters"), "rope_parameters.rope_theta is missing"),
    "two ropes": (lambda c, t: c["rope_parameters"].update(rope_theta=5.0), "but rope_parameters.rope_theta 5.0"),
    "tied": (lambda c, t: c.update(tie_word_embeddings=True), "tie_word_embeddings must be false"),
    "use_cache null": (lambda c, t: c.update(use_cache=None), "use_cache is null"),
    "another vocabulary": (lambda c, t: c.update(vocab_size=300), "vocab_size is 300"),
    "model type": (lambda c, t: c.update(model_type="qwen3"), "model_type must be 'llama'"),
    "architecture": (lambda c, t: c.update(architectures=["Llama"]), "architectures must be"),
    "no head_dim": (lambda c, t: c.pop("head_dim"), "head_dim missing"),
    "no draft size": (lambda c, t: c.pop("draft_vocab_size"), "draft_vocab_size"),
    "no dtype": (lambda c, t: (c.pop("dtype"), c.pop("torch_dtype")), "neither dtype"),
}

DFLASH_FAULTS: dict[str, tuple[Callable[[Config, Tensors], object], str]] = {
    "mask token beyond the embedding": (lambda c, t: c["dflash_config"].update(mask_token_id=9999), "is beyond"),
    "no mask token": (lambda c, t: c["dflash_config"].pop("mask_token_id"), "is beyond"),
    "ids off by one": (
        lambda c, t: c["dflash_config"].update(target_layer_ids=[2, 3, 4, 5, 6]),
        "off by one: dflash_config.target_layer_ids counts outputs of blocks and must be [1, 2, 3, 4, 5]",
    ),
    "ids off by one downwards": (
        lambda c, t: c["dflash_config"].update(target_layer_ids=[0, 1, 2, 3, 4]),
        "off by one",
    ),
    "no ids": (lambda c, t: c["dflash_config"].update(target_layer_ids=[]), "must be a list of numbers"),
    "an eagle field": (lambda c, t: c.update({TOP: [1, 2, 3]}), "must not be there"),
    "layer types": (lambda c, t: c.update(layer_types=["full_attention"]), "one entry a layer"),
    "no target layers": (lambda c, t: c.pop("num_target_layers"), "num_target_layers is missing"),
    "a head of its own": (lambda c, t: t.update({"lm_head.weight": torch.zeros(2, 2)}), "lm_head.weight is unknown"),
}


@pytest.mark.parametrize("fault", EAGLE_FAULTS)
def test_linter_finds_in_eagle3(fault: str, eagle: Path, tiny_target: Target) -> None:
    change, message = EAGLE_FAULTS[fault]
    form = shape(tiny_target)
    assert lint(eagle, vocab_size=form.vocab_size, target_layers=8) == []
    found = broken(eagle, change, vocab_size=form.vocab_size, target_layers=8)
    assert any(message in one for one in found), found


@pytest.mark.parametrize("fault", DFLASH_FAULTS)
def test_linter_finds_in_dflash(fault: str, dflash: Path, tiny_target: Target) -> None:
    change, message = DFLASH_FAULTS[fault]
    assert lint(dflash) == []
    found = broken(dflash, change)
    assert any(message in one for one in found), found


def test_linter_warns(eagle: Path, dflash: Path) -> None:
    def unusual(config: Config, tensors: Tensors) -> None:
        config[NESTED][TOP], config[TOP] = [0, 1, 2], [1, 2, 3]

    assert broken(eagle, unusual, target_layers=8) == []
    assert any("not the usual" in one.message for one in lint(eagle, target_layers=8))

    def last_layer(config: Config, tensors: Tensors) -> None:
        config["dflash_config"]["target_layer_ids"] = [1, 2, 3, 4, 7]

    assert broken(dflash, last_layer) == []
    assert any("last layer is among those read" in one.message for one in lint(dflash))


def test_one_id_list_is_enough_only_for_the_default(eagle: Path) -> None:
    assert broken(eagle, lambda c, t: c.pop(TOP), target_layers=8) == []
    assert "vLLM then assumes" in broken(eagle, lambda c, t: c[NESTED].update({TOP: [0, 1, 2]}), target_layers=8)[0]


def test_layers_0_is_midlayer(eagle: Path) -> None:
    def rename(config: Config, tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("midlayer.")]:
            _rename(tensors, name, name.replace("midlayer.", "layers.0."))

    assert broken(eagle, rename) == []


def test_damaged_file_and_no_drafter(eagle: Path, tmp_path: Path) -> None:
    file = eagle / "model.safetensors"
    file.write_bytes(file.read_bytes()[:200])
    assert "cannot be read" in lint(eagle)[0].message
    with pytest.raises(UsageError, match=r"no config\.json"):
        lint(tmp_path)
    (eagle / "config.json").write_text("[1]")
    with pytest.raises(UsageError, match="not a JSON object"):
        lint(eagle)


def test_command(eagle: Path, tiny_target: Target) -> None:
    from draftmill.cli import application

    target = str(prepare(tiny_target))
    done = CliRunner().invoke(application(), ["lint-export", str(eagle), "--target", target])
    assert done.exit_code == 0 and "no broken rule" in done.output
    broken(eagle, lambda c, t: c.update(tie_word_embeddings=True))
    done = CliRunner().invoke(application(), ["lint-export", str(eagle)])
    assert isinstance(done.exception, BuildError) and "tie_word_embeddings" in done.output


def test_export_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no trained drafter"):
        export(tmp_path, tmp_path / "e", "float32")
    with pytest.raises(BuildError, match="no exported drafter"):
        load_export(tmp_path)
